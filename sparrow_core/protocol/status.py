"""The status of nodes, their executors and tasks, as clients see it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from sparrow_core.protocol.ids import JobId, TaskId


class ExecutorStatus(Struct, frozen=True):
    """An executor, as last reported."""

    name: str
    pid: int
    slots: int


class TaskStatus(Struct, frozen=True, kw_only=True):
    """A running task of a tagged job of this client.

    Attributes:
        tag: That of its job.
        executor: Its name.
        for_s: How long it had been there when its node last reported.
    """

    tag: Any
    job_id: JobId
    task_id: TaskId
    attempt: int
    executor: str
    for_s: float


class NodeStatus(Struct, frozen=True, kw_only=True):
    """A node, as last reported.

    Attributes:
        queued: Reservations of all schedulers.
        running: Tasks of all schedulers.
        deaths: Of the node's process and its executors.
        last_death: How the last of them ended.
        longest: Of the tasks that run the longest there, those of this client's tagged jobs.
    """

    name: str
    pid: int
    executors: tuple[ExecutorStatus, ...]
    alive: bool
    attributes: tuple[str, ...] = ()
    draining: bool = False
    queued: int = 0
    running: int = 0
    deaths: int = 0
    last_death: str = ""
    longest: tuple[TaskStatus, ...] = ()

    @property
    def slots(self) -> int:
        """How many tasks can run there at the same time."""
        return sum(executor.slots for executor in self.executors)
