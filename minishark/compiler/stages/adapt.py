"""Adaptive execution: what is left of a query is planned anew when a stage is complete. Pure.

    remaining plan   leaves for the stages that have started, true sizes of those that are complete
         │
    rules of the phase ADAPTIVE, one after the other; then those of the phase TASKS again
         │
    revision         new stages in place of those that have not started, and why

Stages that have started stay as they are, so whatever is lost and computed again is computed by the
same fragments: a decision is never taken back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from minishark.compiler.physical.plan import PhysicalPlan, StageOutput
from minishark.compiler.physical.sizes import Situation
from minishark.compiler.rules import enabled
from minishark.compiler.rules.rule import Phase
from minishark.compiler.stages.remaining import remaining
from minishark.compiler.stages.split import split, with_tasks
from minishark.compiler.stages.stage import Stage

_OTHER_TASKS = 1.3
"""A number of tasks this many times larger or smaller is worth the change."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Another plan for what is left of a query."""

    plan: PhysicalPlan  # what is left
    # Those that are still to start, in an order in which they can run; the last one gives the
    # result. Their numbers follow those of the stages that have started.
    stages: tuple[Stage, ...]
    # For each change, the rule that made it and why, in a sentence.
    reasons: tuple[tuple[str, str], ...]


def adapt(
    plan: PhysicalPlan, planned: Sequence[Stage], started: Collection[int], situation: Situation
) -> Revision | None:
    """A better plan for what is left of `plan`; None if it stays.

    Args:
        plan: the plan that the stages which have not started were split from.
        planned: all stages of the query, as they are planned so far.
        started: the numbers of those that have started.
        situation: what is known of those that are complete.
    """
    options = situation.options
    kept = [stage for stage in planned if stage.index in started]
    left = remaining(plan, kept, situation.sizes)
    if isinstance(left.operator, StageOutput):  # rows are stored as they were shuffled
        return None
    reasons: list[tuple[str, str]] = []
    for rule, own in enabled(Phase.ADAPTIVE, options):
        revised = rule.apply(left, situation, own)
        left = revised.plan
        reasons += ((rule.name, reason) for reason in revised.reasons)
    waiting = [stage for stage in planned if stage.index not in started]
    before = sum(stage.tasks for stage in waiting)
    # Writing fragments is most of the work here, and in vain for stages that stay as they are.
    least, most = len(waiting), sum(stage.plan.distribution.partitions for stage in waiting)
    if not reasons and _is_alike(before, least) and _is_alike(before, most):
        return None
    first = 1 + max(stage.index for stage in kept)
    stages = _divided(split(left, options.disabled, first=first), kept, situation)
    after = sum(stage.tasks for stage in stages)
    if not reasons:
        if _is_alike(before, after):
            return None
        reasons.append(("coalesced_tasks", f"true sizes ask for {after} tasks, not {before}"))
    return Revision(left, stages, tuple(reasons))


def _is_alike(tasks: int, others: int) -> bool:
    return tasks < _OTHER_TASKS * others and others < _OTHER_TASKS * tasks


def _divided(
    stages: Sequence[Stage], started: Sequence[Stage], situation: Situation
) -> tuple[Stage, ...]:
    """The stages with as many tasks as their sizes ask for."""
    kept = {stage.index: stage.tasks for stage in started}
    if not situation.free_root:
        kept[stages[-1].index] = stages[-1].tasks
    return with_tasks(stages, kept, situation.options)
