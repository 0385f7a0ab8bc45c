"""What a query did: the figures of its stages and tasks."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """What a task did.

    Attributes:
        node: where it ran.
        executor: what ran it.
        attempt: 1 for the first attempt.
        rows: how many rows it gave.
        bytes: their size.
        run_s: how long it ran.
        queue_s: how long it waited, messages included.
        local: whether its node holds the table data that it reads; None if it reads none.
        why: why it ran there, in words, if that was asked for.
    """

    node: str
    executor: str
    attempt: int
    rows: int
    bytes: int
    run_s: float
    queue_s: float
    local: bool | None
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMetrics:
    """What a stage did; times in seconds, per task that finished.

    Skipped tasks were cancelled, or never started, as no row of theirs was needed any more.
    `after` are the stages that it reads. Of remade tasks the output was lost, and made again. Of
    the `bytes`, `disk_bytes` went to disk for want of shared memory.
    """

    index: int
    tasks: int
    rows: int
    bytes: int
    elapsed_s: float
    run_s: tuple[float, ...]
    queue_s: tuple[float, ...]
    constrained_tasks: int
    local_tasks: int
    skipped_tasks: int = 0
    by_task: tuple[TaskMetrics, ...] = ()
    after: tuple[int, ...] = ()
    remade_tasks: int = 0
    disk_bytes: int = 0

    @property
    def retries(self) -> int:
        """How many attempts failed and were made again."""
        return sum(task.attempt - 1 for task in self.by_task)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMetrics:
    """What a query did.

    Attributes:
        stages: how many stages ran.
        tasks: how many tasks they had.
        constrained_tasks: tasks that read partitions of tables, and so have nodes to prefer.
        local_tasks: those of them that ran on a node that holds what they read.
        elapsed_s: from the call to the answer, planning included.
        planning_s: from the text to the stages.
        warnings: sentences for the user.
        by_stage: each stage's own figures.
    """

    stages: int
    tasks: int
    constrained_tasks: int
    local_tasks: int
    elapsed_s: float
    planning_s: float
    warnings: tuple[str, ...] = ()
    by_stage: tuple[StageMetrics, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a statement and what running it took."""

    table: pa.Table
    metrics: QueryMetrics
