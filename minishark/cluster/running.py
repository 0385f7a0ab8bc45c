"""The tasks of a session that run now, as its nodes report them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from minishark.model.events import kinds
from sparrow_core import JobId, NodeStatus, TaskId

_SHOWN_MAX = 100
_ABOUT_S = 0.2  # by so much, reports of when a task began differ from one another

_Attempt: TypeAlias = tuple[JobId, TaskId, int, str]


class RunningTasks:
    """Follows which tasks run, and since when."""

    def __init__(self) -> None:
        self._attempts: dict[_Attempt, kinds.RunningTask] = {}
        self._told: tuple[kinds.RunningTask, ...] = ()

    def forget(self) -> None:
        """Tell all of them again."""
        self._told = ()

    def changes(self, statuses: Sequence[NodeStatus], now: float) -> Iterator[kinds.TasksRunning]:
        """An event with those that run, unless they are the same as at the last look."""
        self._attempts = dict(self._found(statuses, now))
        running = sorted(self._attempts.values(), key=lambda task: task.began_s)
        shown = tuple(running[:_SHOWN_MAX])
        if shown != self._told:
            self._told = shown
            yield kinds.TasksRunning(at=now, tasks=shown, more=len(running) - len(shown))

    def _found(
        self, statuses: Sequence[NodeStatus], now: float
    ) -> Iterator[tuple[_Attempt, kinds.RunningTask]]:
        for status in statuses:
            for task in status.longest:
                key = (task.job_id, task.task_id, task.attempt, task.executor)
                running, began_s = self._attempts.get(key), now - task.for_s
                # A report is up to a second old, so the earliest estimate is the best.
                if running is None or began_s < running.began_s - _ABOUT_S:
                    running = kinds.RunningTask.of(task, now)
                yield key, running
