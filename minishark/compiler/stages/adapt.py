"""Adaptive execution: what is left of a query is planned anew when a stage is complete. Pure.

    remaining plan   leaves for the stages that have started, true sizes of those that are complete
         │
    rules of the phase ADAPTIVE, one after the other
         │
    revision         new stages in place of those that have not started, and why

Stages that have started stay as they are, so whatever is lost and computed again is computed by the
same fragments: a decision is never taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.sizes import Situation
from minishark.compiler.rules import enabled
from minishark.compiler.rules.rule import Phase
from minishark.compiler.stages.remaining import remaining
from minishark.compiler.stages.split import split, with_tasks
from minishark.compiler.stages.stage import Stage


@dataclass(frozen=True, slots=True)
class Revision:
    """Another plan for what is left of a query.

    Attributes:
        plan: what is left.
        stages: those that are still to start, in an order in which they can run; the last one gives
            the result. Their numbers follow those of the stages that have started.
        reasons: for each change, the rule that made it and why, in a sentence.
    """

    plan: PhysicalPlan
    stages: tuple[Stage, ...]
    reasons: tuple[tuple[str, str], ...]


def adapt(plan: PhysicalPlan, started: Sequence[Stage], situation: Situation) -> Revision | None:
    """A better plan for what is left of `plan`; None if it stays.

    Args:
        plan: the plan that `started` and the stages that have not started were split from.
        started: the stages that have started.
        situation: what is known of those that are complete.
    """
    options = situation.options
    left = remaining(plan, started, situation.sizes)
    reasons: list[tuple[str, str]] = []
    for rule, own in enabled(Phase.ADAPTIVE, options):
        revised = rule.apply(left, situation, own)
        left = revised.plan
        reasons += ((rule.name, reason) for reason in revised.reasons)
    if not reasons:
        return None
    first = 1 + max(stage.index for stage in started)
    stages = (*started, *split(left, options.disabled, first=first))
    fixed = stages[: len(started)] if situation.free_root else (*started, stages[-1])
    stages = with_tasks(stages, {stage.index: stage.tasks for stage in fixed}, options)
    return Revision(left, stages[len(started) :], tuple(reasons))
