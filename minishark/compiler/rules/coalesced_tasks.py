"""Several partitions in one task where a task for each would be mostly overhead.

A task takes about as long as the work on a hundred thousand values before it has read a row: it is
placed, sent, bound and stored. Partitions that follow one another are one task's input then, as if
there were fewer of them. Buckets are numbered as before, so nothing changes for other stages.

Stages that read each other's output piece by piece have the same partitions in their tasks: as many
tasks as the largest of them needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.work import (
    LEAST_TASK_S,
    MOST_TASK_S,
    stage_work_s,
    useful_tasks,
)
from minishark.compiler.rules.rule import Phase, Rule
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput


@dataclass(frozen=True, slots=True)
class CoalescedTasks:
    """The options of the rule."""

    # The work below which a task is not worth its overhead, in seconds.
    least_s: float = LEAST_TASK_S
    # The work from which on there is a task per partition, in seconds: more tasks than cores
    # balance the load, and less has to be done again after a loss.
    most_s: float = MOST_TASK_S


def coalesce(
    stages: Sequence[Stage],
    kept: Mapping[int, int],
    options: PlannerOptions,
    rule: CoalescedTasks,
) -> tuple[Stage, ...]:
    """The stages with as many tasks as are worth their overhead.

    Args:
        stages: the stages, in an order in which they can run.
        kept: the number of tasks of stages that have to stay as they are, or that have run.
        options: how many tasks run at the same time.
        rule: its options.
    """
    group = _groups(stages)
    tasks: dict[int, int] = {}
    for stage in stages:
        root = group[stage.index]
        work_s = stage_work_s(stage.plan, options.costs, is_last=stage is stages[-1])
        useful = useful_tasks(work_s, options.slots, rule.least_s, rule.most_s)
        tasks[root] = max(tasks.get(root, 1), useful)
    # Parts of a large bucket were made to be tasks.
    kept = {stage.index: stage.tasks for stage in stages if _has_shares(stage)} | dict(kept)
    tasks |= {group[index]: count for index, count in kept.items() if index in group}
    return tuple(
        replace(stage, tasks=min(stage.tasks, tasks[group[stage.index]])) for stage in stages
    )


def _has_shares(stage: Stage) -> bool:
    return any(isinstance(item, StageInput) and item.shares for item in stage.inputs)


def _groups(stages: Sequence[Stage]) -> dict[int, int]:
    """By stage, one of those that it shares the division into tasks with."""
    group: dict[int, int] = {}
    for stage in stages:
        group.setdefault(stage.index, stage.index)
        for item in stage.inputs:
            if isinstance(item, StageInput) and item.mode is ReadMode.OWN:
                old, new = group.setdefault(item.stage, item.stage), group[stage.index]
                group = {index: new if root == old else root for index, root in group.items()}
    return group


COALESCED_TASKS = Rule(
    name="coalesced_tasks",
    doc="several partitions in one task where a task for each would be mostly overhead",
    phase=Phase.TASKS,
    apply=coalesce,
    options=CoalescedTasks(),
    everywhere=CoalescedTasks(),
)
