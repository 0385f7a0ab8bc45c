"""Joins whose inputs turn out larger or smaller than estimated move other rows. Pure.

A planner broadcasts an input that it takes for small, and shuffles both if it takes them for large.
When the stage that computes an input is complete, its size is known. The planner's own costs are
then compared again, with this size: a shuffled input may be read whole by each task of the other
input, which need not be shuffled any more; a broadcast one, of which each task would build a hash
table, may be shuffled instead.

So that there is something left to decide, the larger of two inputs to be shuffled waits for the
smaller one (`waiting`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minishark.compiler.logical.operators import Cte, Join, Project, Scan
from minishark.compiler.physical.join_moves import SHUFFLE_COST, JoinCosts, JoinMove, Side
from minishark.compiler.physical.joins import KEEPS_LEFT, KEEPS_RIGHT
from minishark.compiler.physical.plan import (
    Broadcast,
    Exchange,
    Hashed,
    PhysicalPlan,
    Replicated,
    Shuffle,
    StageOutput,
)
from minishark.compiler.physical.replacing import as_planned, placed_over
from minishark.compiler.physical.sizes import Situation
from minishark.compiler.physical.work import stage_work_s, useful_tasks
from minishark.compiler.rules.rule import Phase, Revised, Rule

if TYPE_CHECKING:
    from minishark.compiler.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSwitchOptions:
    """When another move pays."""

    # The least that it saves, in rows built into a hash table: planning anew takes time too, and
    # costs are rough.
    gain_min: float = 100_000.0
    ratio_max: float = 0.8  # the most that it costs, as a share of what the present move costs


def switched(plan: PhysicalPlan, situation: Situation, options: JoinSwitchOptions) -> Revised:
    """The plan with the best moves for joins of complete stages."""
    switch = _Switch(situation, options)
    changed = switch.visit(plan)
    moved = changed.distribution != plan.distribution
    if not switch.reasons or (moved and not situation.free_root):
        return Revised(plan)
    return Revised(changed, tuple(switch.reasons))


class _Switch:
    def __init__(self, situation: Situation, options: JoinSwitchOptions) -> None:
        self._situation = situation
        self._placing = situation.placing
        self._options = options
        self.reasons: list[str] = []

    def visit(self, plan: PhysicalPlan) -> PhysicalPlan:
        if isinstance(plan.operator, Cte):
            definition, main = plan.children
            return placed_over(
                plan, (self._definition(definition), self.visit(main)), self._placing
            )
        children = tuple(map(self.visit, plan.children))
        if isinstance(plan.operator, Join):
            switched = self._joined(plan, plan.operator, *children)
            if switched is not None:
                return switched
        return placed_over(plan, children, self._placing)

    def _definition(self, plan: PhysicalPlan) -> PhysicalPlan:
        """A common table expression, whose readers rely on the distribution of its rows."""
        before = len(self.reasons)
        switched = self.visit(plan)
        if switched.distribution == plan.distribution:
            return switched
        del self.reasons[before:]
        return plan

    def _joined(
        self, plan: PhysicalPlan, join: Join, left: PhysicalPlan, right: PhysicalPlan
    ) -> PhysicalPlan | None:
        """The join with another move; None if it stays."""
        present = _present_move(left, right)
        measured = [side for side in (left, right) if self._is_known(side)]
        # Codes of text hold in the task that made them only, so their rows stay where they are.
        if present is None or not measured or _reads_codes(plan):
            return None
        left, right = _unmoved(left), _unmoved(right)
        options = self._situation.options
        costs = JoinCosts(
            Side(left.distribution, left.rows),
            Side(right.distribution, right.rows),
            options.partitions,
            options.stage_cost,
            self._tasks(plan),
        )
        cost, best = min(costs.candidates(join))
        now = costs.cost(present)
        # Costs are estimates: what saves little, or a small share, may cost more in the end.
        if now - cost < self._options.gain_min or cost > self._options.ratio_max * now:
            return None
        sides = as_planned(left), as_planned(right)
        placed = self._placing.place(join, sides, plan.schema).plan
        self.reasons.append(_reason(measured, present, best))
        return replace(placed, rows=plan.rows)  # elsewhere, but the same ones

    def _tasks(self, plan: PhysicalPlan) -> float:
        """How many tasks the stage of a join is worth, each of which would read a broadcast."""
        options = self._situation.options
        if "coalesced_tasks" in options.disabled:
            return math.inf
        work_s = stage_work_s(plan, options.costs, is_last=False)
        return useful_tasks(work_s, options.slots)

    def _is_known(self, plan: PhysicalPlan) -> bool:
        operator = plan.operator
        return isinstance(operator, StageOutput) and operator.stage in self._situation.sizes


def _present_move(left: PhysicalPlan, right: PhysicalPlan) -> JoinMove | None:
    """The move that the exchanges below a join make; None for others than these."""
    match _is_whole(left), _is_whole(right), _is_shuffled(left), _is_shuffled(right):
        case False, True, False, _:
            return JoinMove.BROADCAST_RIGHT
        case True, False, _, False:
            return JoinMove.BROADCAST_LEFT
        case False, False, True, True:
            # One of them is complete: it counts as lying where its buckets are.
            if isinstance(left.operator, Shuffle):
                return None if isinstance(right.operator, Shuffle) else JoinMove.SHUFFLE_LEFT
            return JoinMove.SHUFFLE_RIGHT if isinstance(right.operator, Shuffle) else None
    return None


def _is_whole(plan: PhysicalPlan) -> bool:
    """Whether each task reads all rows of another stage."""
    is_read = isinstance(plan.operator, StageOutput | Broadcast)
    return is_read and isinstance(plan.distribution, Replicated)


def _is_shuffled(plan: PhysicalPlan) -> bool:
    if isinstance(plan.operator, StageOutput):
        return plan.operator.has_buckets and isinstance(plan.distribution, Hashed)
    return isinstance(plan.operator, Shuffle)


def _unmoved(plan: PhysicalPlan) -> PhysicalPlan:
    """`plan` without the exchange on top that a join asked for."""
    match plan.operator:
        case StageOutput(home=home):
            return replace(plan, distribution=home)
        case Shuffle() | Broadcast():
            return plan.children[0]
        case _:
            return plan


def _reads_codes(plan: PhysicalPlan) -> bool:
    """Whether rows of this stage hold dictionary codes."""
    match plan.operator:
        case Exchange():
            return False
        case Scan(hints=hints):
            return bool(hints.dictionary_codes)
        case _:
            return any(map(_reads_codes, plan.children))


def _reason(sides: list[PhysicalPlan], present: JoinMove, best: JoinMove) -> str:
    outputs = [(side.operator, side.rows) for side in sides]
    sizes = " and ".join(
        f"stage {output.stage} has {rows:,.0f} rows, not {output.estimated_rows:,.0f}"
        for output, rows in outputs
        if isinstance(output, StageOutput)
    )
    return f"{sizes}: {best} instead of {present}"


def waiting(stages: Sequence[Stage], options: JoinSwitchOptions) -> Sequence[Stage]:
    """The stages, of which the larger shuffles of joins wait for the smaller ones.

    A shuffle that has begun can't be saved any more. Most stages have at least as many tasks as
    there are slots, so that no slot is idle for it.
    """
    shuffles = {id(stage.exchange): stage for stage in stages if stage.exchange is not None}
    needs = {stage.index: {*stage.parents} for stage in stages}
    after: dict[int, int] = {}
    joins = (node for stage in stages for node in stage.plan.own_nodes())
    for node in joins:
        sides = _large_and_small(node, options) if isinstance(node.operator, Join) else None
        if sides is None:
            continue
        large, small = shuffles[id(sides[0])].index, _stage_number(sides[1], shuffles)
        # Else each would wait for the other, by way of stages between them.
        if large not in _all_needed(small, needs):
            after[large] = small
            needs[large].add(small)
    return [
        replace(stage, after=(after[stage.index],)) if stage.index in after else stage
        for stage in stages
    ]


def _large_and_small(
    plan: PhysicalPlan, options: JoinSwitchOptions
) -> tuple[PhysicalPlan, PhysicalPlan] | None:
    """The inputs of a join to be shuffled, if the smaller one may turn out to be tiny."""
    join, (left, right) = plan.operator, plan.children
    assert isinstance(join, Join)
    if not (_is_shuffled(left) and _is_shuffled(right)):
        return None
    small, large, kinds = (
        (right, left, KEEPS_LEFT) if right.rows <= left.rows else (left, right, KEEPS_RIGHT)
    )
    is_known = not isinstance(small.operator, StageOutput) and _is_known(small.children[0])
    may_change = join.kind in kinds and not is_known
    if not may_change or not isinstance(large.operator, Shuffle):
        return None
    return (large, small) if large.rows * SHUFFLE_COST >= options.gain_min else None


def _is_known(plan: PhysicalPlan) -> bool:
    """Whether the number of rows is that of a table or a complete stage."""
    match plan.operator:
        case Project():
            return _is_known(plan.children[0])
        case operator:
            return isinstance(operator, Scan | StageOutput)


def _stage_number(plan: PhysicalPlan, shuffles: Mapping[int, Stage]) -> int:
    operator = plan.operator
    return operator.stage if isinstance(operator, StageOutput) else shuffles[id(plan)].index


def _all_needed(stage: int, needs: Mapping[int, set[int]]) -> set[int]:
    """The stages that have to be complete before a stage is."""
    needed, waiting_ = set[int](), [stage]
    while waiting_:
        number = waiting_.pop()
        if number not in needed:
            needed.add(number)
            waiting_ += sorted(needs.get(number, ()))
    return needed


def _explain(stage: Stage) -> Iterator[str]:
    for number in stage.after:
        yield f"waits for stage {number}, which may turn out to be small enough to broadcast"


JOIN_SWITCH = Rule(
    name="join_switch",
    doc="shuffle an input of a join instead of broadcasting it, or back, by its true size",
    phase=Phase.ADAPTIVE,
    apply=switched,
    options=JoinSwitchOptions(),
    everywhere=JoinSwitchOptions(),
    arrange=waiting,
    explain=_explain,
)
