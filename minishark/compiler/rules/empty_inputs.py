"""What needs rows of an empty stage has none itself, and is not computed. Pure.

An inner join with an empty input is empty, whatever the other one has: stages that only serve it
are not started, or are cancelled. A count of no rows is a row, so it is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minishark.compiler.logical import operators as ops
from minishark.compiler.logical.operators import JoinKind, SetKind
from minishark.compiler.physical.joins import KEEPS_LEFT, KEEPS_RIGHT
from minishark.compiler.physical.plan import (
    Boundaries,
    PhysicalPlan,
    RangeShuffle,
    StageOutput,
    aggregate_of,
)
from minishark.compiler.physical.sizes import Situation
from minishark.compiler.rules.rule import Phase, Revised, Rule

_EMPTY_WITHOUT_LEFT = KEEPS_LEFT | {JoinKind.RIGHT_SEMI}
_EMPTY_WITHOUT_RIGHT = KEEPS_RIGHT | {JoinKind.SEMI}
"""Joins that only have rows of that side, or for them."""


def without_empty(plan: PhysicalPlan, situation: Situation, _: None) -> Revised:
    """The plan with no rows in place of each part that has none."""
    without = _Emptiness(situation).rewritten(plan)
    if without is plan:
        return Revised(plan)
    stages = dict.fromkeys(_empty_stages(plan, situation))
    names = ", ".join(f"stage {stage}" for stage in stages)
    verb = "has" if len(stages) == 1 else "have"
    return Revised(without, (f"{names} {verb} no rows, nor has what is joined with them",))


def _empty_stages(plan: PhysicalPlan, situation: Situation) -> Iterator[int]:
    for node in plan.nodes():
        if isinstance(node.operator, StageOutput) and node.operator.stage in situation.empty:
            yield node.operator.stage


class _Emptiness:
    """Finds parts of a plan that certainly have no rows."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._definitions: dict[int, bool] = {}
        self._known: dict[int, bool] = {}  # by identity: nodes are asked from above, again

    def rewritten(self, plan: PhysicalPlan) -> PhysicalPlan:
        # A leaf alone saves nothing; and states of aggregates have no type that SQL could name.
        if self.is_empty(plan) and plan.children and _has_types(plan):
            operator = ops.Values((), plan.schema)
            return replace(plan, operator=operator, children=(), rows=1.0)
        return plan.with_children(tuple(map(self.rewritten, plan.children)))

    def is_empty(self, plan: PhysicalPlan) -> bool:
        if id(plan) not in self._known:
            self._known[id(plan)] = self._find(plan)
        return self._known[id(plan)]

    def _find(self, plan: PhysicalPlan) -> bool:
        operator = plan.operator
        if isinstance(operator, ops.Cte):
            # Before the main plan, which reads it.
            self._definitions[operator.index] = self.is_empty(plan.children[0])
        match operator, [self.is_empty(child) for child in plan.children]:
            case StageOutput(stage=stage), _:
                return stage in self._situation.empty
            case ops.CteRef(index=index), _:
                return self._definitions.get(index, False)
            case ops.Values(rows=rows), _:
                return not rows
            case Boundaries(), _:
                return False  # NULLs, if there are no samples
            case ops.Cte(), [_, main]:
                return main
            case RangeShuffle(), [rows_, _]:
                return rows_  # beside boundaries, which are no rows of its own
            case ops.Join(kind=kind), [left, right]:
                return (left and kind in _EMPTY_WITHOUT_LEFT) or (
                    right and (kind in _EMPTY_WITHOUT_RIGHT or (left and kind is JoinKind.FULL))
                )
            case ops.SetOperation(kind=kind), [left, right]:
                if kind is SetKind.INTERSECT:
                    return left or right
                return left and (right or kind is SetKind.EXCEPT)
            case _, [child]:
                aggregate = aggregate_of(operator)
                return child and (aggregate is None or _needs_rows(aggregate))
        return False


def _needs_rows(aggregate: ops.Aggregate) -> bool:
    """Whether an aggregate of no rows has no groups."""
    return bool(aggregate.groups) and all(aggregate.grouping_sets)


def _has_types(plan: PhysicalPlan) -> bool:
    return all(column.type != "STATE" for column in plan.schema)


EMPTY_INPUTS = Rule(
    name="empty_inputs",
    doc="skip what has no rows because a stage has none",
    phase=Phase.ADAPTIVE,
    apply=without_empty,
)
