"""Operators of a physical plan over other inputs than they were placed over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from minishark.compiler.logical import operators as ops
from minishark.compiler.physical.estimate import Profile
from minishark.compiler.physical.exchanges import Planned
from minishark.compiler.physical.plan import (
    GROUPING,
    Boundaries,
    Exchange,
    FinalAggregate,
    Hashed,
    Materialize,
    PartialAggregate,
    PhysicalPlan,
    SampleKeys,
    Spread,
    in_one_task,
)
from minishark.model.expressions import Schema


class Placing(Protocol):
    """Places single operators over placed inputs, as the planner does."""

    def place(self, operator: ops.Operator, children: Sequence[Planned], schema: Schema) -> Planned:
        """An operator, with exchanges where it needs them."""

    def partial(self, aggregate: ops.Aggregate, child: Planned, names: Sequence[str]) -> Planned:
        """The first phase of an aggregate, whose groups get these names."""

    def final(
        self, aggregate: ops.Aggregate, partial: Planned, schema: Schema, profile: Profile
    ) -> Planned:
        """The second phase of an aggregate."""


def as_planned(plan: PhysicalPlan) -> Planned:
    """A plan whose columns nothing is known about."""
    return Planned(plan, Profile(plan.rows, (None,) * len(plan.schema)))


def with_children(plan: PhysicalPlan, children: tuple[PhysicalPlan, ...]) -> PhysicalPlan:
    """`plan` over children that are distributed as its own; its rows follow theirs."""
    placed = plan.with_children(children)
    rows = _scaled_rows(plan, children)
    return placed if rows == plan.rows else replace(placed, rows=rows)


def _scaled_rows(plan: PhysicalPlan, children: tuple[PhysicalPlan, ...]) -> float:
    """The estimated rows of `plan` over other children.

    An estimate was made with the statistics of columns, which are not at hand any more; so it is
    corrected by the factor by which those below it were wrong.
    """
    pairs = list(zip(children, plan.children, strict=True))
    match plan.operator:
        case Exchange():
            return children[0].rows if children else plan.rows
        case ops.Cte():  # its rows are those of what reads it
            return children[1].rows
        case ops.SetOperation():
            factor = sum(new.rows for new, _ in pairs) / sum(old.rows for _, old in pairs)
            return max(1.0, plan.rows * factor)
        case Boundaries():
            return plan.rows
        case ops.Limit() | ops.TopN() | SampleKeys():
            return min(plan.rows, children[0].rows)
        case operator if isinstance(operator, GROUPING):
            # There are no more groups than values, however many rows have them.
            return min(plan.rows, children[0].rows)
    factor = 1.0
    for new, old in pairs:
        factor *= new.rows / old.rows
    return max(1.0, plan.rows * factor)


def placed_over(
    plan: PhysicalPlan, children: tuple[PhysicalPlan, ...], placing: Placing
) -> PhysicalPlan:
    """`plan` over children that may be distributed otherwise, with the exchanges that it needs."""
    pairs = zip(children, plan.children, strict=True)
    if all(new.distribution == old.distribution for new, old in pairs):
        return with_children(plan, children)
    placed = _placed(plan, children, placing)
    return replace(placed, rows=_scaled_rows(plan, children))


def _placed(
    plan: PhysicalPlan, children: tuple[PhysicalPlan, ...], placing: Placing
) -> PhysicalPlan:
    below = [as_planned(child) for child in children]
    match plan.operator:
        case Materialize() | ops.Cte():
            return replace(plan, children=children, distribution=children[-1].distribution)
        case Exchange() | Boundaries():  # they take rows from any tasks
            return replace(plan, children=children)
        case SampleKeys():
            spread = Spread(children[0].distribution.partitions)
            return replace(plan, children=children, distribution=spread)
        case PartialAggregate(complete=aggregate):
            names = [column.name for column in plan.schema[: len(aggregate.groups)]]
            return placing.partial(aggregate, below[0], names).plan
        case FinalAggregate(complete=aggregate):
            profile = Profile(plan.rows, (None,) * len(plan.schema))
            return placing.final(aggregate, below[0], plan.schema, profile).plan
        case operator if _is_early(plan):  # the exchange above it brings its rows together
            distribution = children[0].distribution
            if not in_one_task(distribution) and not isinstance(operator, ops.Distinct):
                distribution = Spread(distribution.partitions)
            return replace(plan, children=children, distribution=distribution)
        case operator:
            return placing.place(operator, below, plan.schema).plan


def _is_early(plan: PhysicalPlan) -> bool:
    """Whether an operator drops rows in each partition, and stands above the exchange again."""
    match plan.operator:
        case ops.Limit() | ops.TopN():
            return not in_one_task(plan.distribution)
        case ops.Distinct():
            below = plan.children[0].distribution
            return not in_one_task(below) and not isinstance(below, Hashed)
        case _:
            return False
