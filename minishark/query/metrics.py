"""Figures of a query, its stages and its tasks. Times are in seconds, sizes in bytes.

Only tasks are measured; the figures of stages and queries are properties derived from theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from statistics import median
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """A completed task.

    Attributes:
        node: the node that it ran on.
        executor: the executor process that ran it.
        attempt: 1 for the first attempt.
        rows: output rows.
        bytes: the size of the output.
        disk_bytes: the part of it that went to disk for lack of shared memory.
        run_s: run time.
        queue_s: time between submission and start, messages included.
        local: whether its node stores the table partitions that it reads; None if it reads none.
        why: why it ran there, in sentences, if the query asked for explanations.
        received: the bytes that came over the network for it, compressed if they were, by the node
            or session that sent them.
    """

    node: str
    executor: str
    attempt: int
    rows: int
    bytes: int
    disk_bytes: int = 0
    run_s: float
    queue_s: float
    local: bool | None
    why: tuple[str, ...] = ()
    received: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMetrics:
    """An operator in all tasks of its stage together, as DuckDB's profiler measured it.

    Attributes:
        name: what kind of operator it is, such as `Join`.
        label: the operator as EXPLAIN prints it.
        depth: how many operators of its stage are above it, up to the one that puts rows out.
        estimated_rows: the output rows that were planned with.
        rows: the output rows; None if they are unknown: DuckDB ran it as part of others.
        run_s: CPU seconds, without those of its inputs; None if they are unknown.
        ended_early: whether nobody needed more rows before it had put all of them out.
    """

    name: str
    label: str
    depth: int
    estimated_rows: float
    rows: int | None = None
    run_s: float | None = None
    ended_early: bool = False

    @property
    def misestimate(self) -> float | None:
        """How many times as many rows there were as estimated.

        Below 1 if there were fewer; None if that is unknown, or it ended early.
        """
        if self.rows is None or self.ended_early:
            return None
        return max(self.rows, 1) / max(self.estimated_rows, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusedMetrics:
    """Outputs of a stage that were not computed again.

    Attributes:
        stage: its number in the plan.
        tasks: the number of outputs.
        age_s: how long ago the oldest of them was computed.
        saved_s: how long their tasks have run then.
        made_by: the sessions and queries that have computed them.
    """

    stage: int
    tasks: int
    age_s: float
    saved_s: float
    made_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMetrics:
    """A completed stage.

    Attributes:
        index: its number in the plan.
        tasks: its number of tasks.
        elapsed_s: from its submission to its last completion.
        by_task: its completed tasks, in order.
        after: the stages that it reads.
        remade_tasks: tasks whose output was lost and computed again.
        reused_tasks: tasks that did not run, as their outputs existed.
        operators: its operators, each after the one that reads it; only of explained queries.
    """

    index: int
    tasks: int
    elapsed_s: float
    by_task: tuple[TaskMetrics, ...]
    after: tuple[int, ...] = ()
    remade_tasks: int = 0
    reused_tasks: int = 0
    operators: tuple[OperatorMetrics, ...] = ()

    @property
    def rows(self) -> int:
        """Output rows."""
        return sum(task.rows for task in self.by_task)

    @property
    def skew(self) -> float | None:
        """How unevenly rows are spread: those of the largest task / the median; None if that is 0.

        The largest task is what the next stage waits for. 1 is even.
        """
        rows = [task.rows for task in self.by_task]
        middle = median(rows) if rows else 0
        return max(rows) / middle if middle else None

    @property
    def bytes(self) -> int:
        """The size of the output."""
        return sum(task.bytes for task in self.by_task)

    @property
    def disk_bytes(self) -> int:
        """The part of the output that went to disk."""
        return sum(task.disk_bytes for task in self.by_task)

    @property
    def received(self) -> dict[str, int]:
        """The bytes that came over the network, by the node or session that sent them."""
        total: Counter[str] = Counter()
        for task in self.by_task:
            total.update(task.received)
        return dict(total.most_common())

    @property
    def run_s(self) -> tuple[float, ...]:
        """Run times of the completed tasks."""
        return tuple(task.run_s for task in self.by_task)

    @property
    def queue_s(self) -> tuple[float, ...]:
        """Queue times of the completed tasks."""
        return tuple(task.queue_s for task in self.by_task)

    @property
    def constrained_tasks(self) -> int:
        """Tasks that read table partitions, and so prefer nodes."""
        return sum(task.local is not None for task in self.by_task)

    @property
    def local_tasks(self) -> int:
        """Constrained tasks that ran on a preferred node."""
        return sum(task.local is True for task in self.by_task)

    @property
    def skipped_tasks(self) -> int:
        """Tasks that were cancelled or never started, as a LIMIT had enough rows."""
        return max(0, self.tasks - len(self.by_task) - self.reused_tasks)

    @property
    def retries(self) -> int:
        """Failed attempts of tasks that were repeated."""
        return sum(task.attempt - 1 for task in self.by_task)


@dataclass(frozen=True, slots=True)
class RevisionMetrics:
    """A change of the plan while the query ran: the rule that made it and why, in a sentence."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMetrics:
    """A completed query.

    Attributes:
        elapsed_s: from the call to the answer, planning included.
        planning_s: from the text to the stages.
        warnings: sentences for the user.
        by_stage: its stages, in topological order; none if the front end ran it.
        revisions: how its plan was changed while it ran, in this order.
        reused: what others had computed of it; all of it, if there are no stages besides.
        plans: the physical plan as it was made and as it ran, as text, if that was changed and the
            query was to be explained.
    """

    elapsed_s: float
    planning_s: float
    warnings: tuple[str, ...] = ()
    by_stage: tuple[StageMetrics, ...] = ()
    revisions: tuple[RevisionMetrics, ...] = ()
    plans: tuple[str, ...] = ()
    reused: tuple[ReusedMetrics, ...] = ()

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.by_stage)

    @property
    def tasks(self) -> int:
        """The number of tasks, without those whose outputs existed."""
        return sum(stage.tasks - stage.reused_tasks for stage in self.by_stage)

    @property
    def constrained_tasks(self) -> int:
        """Tasks that read table partitions, and so prefer nodes."""
        return sum(stage.constrained_tasks for stage in self.by_stage)

    @property
    def local_tasks(self) -> int:
        """Constrained tasks that ran on a preferred node."""
        return sum(stage.local_tasks for stage in self.by_stage)


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query, and its metrics."""

    table: pa.Table
    metrics: QueryMetrics


def as_dict(figures: Any) -> Any:
    """Metrics as dictionaries, lists and numbers, derived figures included."""
    if isinstance(figures, tuple):
        return [as_dict(each) for each in figures]
    if isinstance(figures, Mapping):
        return dict(figures)
    if not is_dataclass(figures):
        return figures
    names = [each.name for each in fields(figures)]
    members: Mapping[str, object] = vars(type(figures))
    names += [name for name, member in members.items() if isinstance(member, property)]
    return {name: as_dict(getattr(figures, name)) for name in names}
