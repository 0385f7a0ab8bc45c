"""What is measured of tasks and operators: defined once, and described once for all displays.

    executor ──TaskOutcome──► front end ──TaskEnded──► QueryRecord ──► EXPLAIN ANALYZE, profiles,
    measures some             adds where and when                      progress, page; spans

A new figure is a field of `TaskFigures`, its line in `FIGURES`, and the place that measures it:
displays, the page's columns among them, go through the table. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

import msgspec


class TaskFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of a task that has completed, or sums over several.

    Attributes:
        node: the node that it ran on.
        executor: the executor process that ran it.
        attempt: 1 for the first attempt.
        rows: output rows.
        bytes: the size of the output.
        disk_bytes: the part of it that went to disk for lack of shared memory.
        received: the bytes that came over the network for it, compressed if they were, by the node
            or session that sent them.
        spilled_bytes: what DuckDB had on disk at a time for lack of memory, at most; looked at four
            times a second, and at the end.
        retried_calls: calls of a Python function that were repeated, as they had failed.
        reused_calls: such calls that were not made, as an earlier attempt or program had made them.
        rejected_rows: rows of such calls that failed for good, and were set aside or are NULL.
        run_s: run time.
        queue_s: time between submission and start, messages included.
        local: whether its node stores the table partitions that it reads; None if it reads none.
    """

    node: str = ""
    executor: str = ""
    attempt: int = 1
    rows: int = 0
    bytes: int = 0
    disk_bytes: int = 0
    received: Mapping[str, int] = {}
    spilled_bytes: int = 0
    retried_calls: int = 0
    reused_calls: int = 0
    rejected_rows: int = 0
    run_s: float = 0.0
    queue_s: float = 0.0
    local: bool | None = None


class Unit(StrEnum):
    """What a figure counts."""

    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"


class Sums(StrEnum):
    """What is said of a figure for many tasks."""

    TOTAL = "total"
    """The sum."""
    BY_KEY = "by key"
    """The sum, and that of each key of mappings."""
    SPREAD = "spread"
    """Minimum, median and maximum."""
    BEYOND_FIRST = "beyond first"
    """The sum of what is above 1."""
    SHARE = "share"
    """For how many it is true, of those for which it is not None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """How people and programs see a figure of tasks.

    Attributes:
        name: the field of `TaskFigures`.
        unit: what it counts.
        sums: what is said of many tasks.
        label: what people call it, in a word or two.
        of_many: what they call it for many tasks, if not the same.
        says: what it is, in a sentence.
        heading: heads its column in a text of stages, if not what they call it, and the unit.
        part_of: another figure that it is a part of, and is shown with, if it is not 0.
        is_rare: whether it is shown only where it is not 0.
        metric: its name for Prometheus, a counter's or a histogram's; "" if others say it.
        attribute: its name in spans, if not the field's.
    """

    name: str
    unit: Unit = Unit.COUNT
    sums: Sums = Sums.TOTAL
    label: str
    of_many: str = ""
    says: str
    heading: str = ""
    part_of: str = ""
    is_rare: bool = False
    metric: str = ""
    attribute: str = ""

    def of(self, figures: TaskFigures) -> Any:
        """Its value as one number; None if a task has none."""
        value = getattr(figures, self.name)
        return sum(value.values()) if isinstance(value, Mapping) else value

    def over(self, tasks: Iterable[TaskFigures], sums: TaskFigures) -> Any:
        """What is said of many tasks, whose sums are these.

        Returns:
            Of a share, for how many it is true, and of how many; of a spread, the values; else a
            number.
        """
        match self.sums:
            case Sums.SPREAD:
                return [self.of(task) for task in tasks]
            case Sums.SHARE:
                values = [value for task in tasks if (value := self.of(task)) is not None]
                return sum(values), len(values)
            case Sums.BEYOND_FIRST:
                return sum(self.of(task) - 1 for task in tasks)
        return self.of(sums)


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            name="rows",
            label="rows",
            says="Rows that tasks put out.",
            metric="task_output_rows_total",
        ),
        Figure(
            name="bytes",
            unit=Unit.BYTES,
            label="put out",
            heading="KB",
            says="Bytes that tasks put out.",
            metric="task_output_bytes_total",
            attribute="output_bytes",
        ),
        Figure(
            name="disk_bytes",
            unit=Unit.BYTES,
            part_of="bytes",
            label="on disk",
            says="Bytes of outputs on disk.",
            metric="task_disk_bytes_total",
        ),
        Figure(
            name="run_s",
            unit=Unit.SECONDS,
            sums=Sums.SPREAD,
            label="run",
            of_many="task",
            says="Run time of tasks.",
            metric="task_seconds",
        ),
        Figure(
            name="queue_s",
            unit=Unit.SECONDS,
            sums=Sums.SPREAD,
            label="queue",
            says="Time from submitting a task to its start.",
            metric="task_queue_seconds",
        ),
        Figure(
            name="local",
            sums=Sums.SHARE,
            label="local",
            says="Tasks that ran where their table's partitions are.",
        ),
        Figure(
            name="attempt",
            sums=Sums.BEYOND_FIRST,
            label="attempt",
            of_many="retries",
            says="Failed attempts of tasks that were repeated.",
            metric="task_retries_total",
        ),
        Figure(
            name="received",
            unit=Unit.BYTES,
            sums=Sums.BY_KEY,
            is_rare=True,
            label="network",
            says="Bytes that came over the network for tasks.",
            metric="task_received_bytes_total",
            attribute="received_bytes",
        ),
        Figure(
            name="spilled_bytes",
            unit=Unit.BYTES,
            is_rare=True,
            label="spilled",
            says="Bytes that DuckDB had on disk for lack of memory, the most of each task.",
            metric="task_spilled_bytes_total",
        ),
        Figure(
            name="retried_calls",
            is_rare=True,
            label="calls repeated",
            says="Calls of Python functions that were repeated, as they had failed.",
            metric="task_retried_calls_total",
        ),
        Figure(
            name="reused_calls",
            is_rare=True,
            label="calls reused",
            says="Calls of Python functions that were not made, as they had been made before.",
            metric="task_reused_calls_total",
        ),
        Figure(
            name="rejected_rows",
            is_rare=True,
            label="rows rejected",
            says="Rows for which a Python function has failed for good.",
            metric="task_rejected_rows_total",
        ),
    )
}
"""All figures but where a task ran, in the order of columns."""


def totals(tasks: Iterable[TaskFigures]) -> TaskFigures:
    """The sums over tasks of those figures that have one."""
    all_tasks = tuple(tasks)
    sums: dict[str, Any] = {}
    for name in names_of(Sums.TOTAL):
        sums[name] = sum([getattr(task, name) for task in all_tasks])
    for name in names_of(Sums.BY_KEY):
        sums[name] = _summed([getattr(task, name) for task in all_tasks])
    return TaskFigures(**sums)


def names_of(*kinds: Sums) -> list[str]:
    """The figures of which this is said for many tasks."""
    return [name for name, figure in FIGURES.items() if figure.sums in kinds]


def _summed(mappings: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sums by key, the largest first."""
    counts: Counter[str] = Counter()
    for mapping in mappings:
        counts.update(mapping)
    return dict(counts.most_common())


def skew(rows: Sequence[int]) -> float | None:
    """How unevenly rows are spread: those of the largest task / the median; None if that is 0.

    The largest task is what the next stage waits for. 1 is even.
    """
    middle = median(rows) if rows else 0
    return max(rows) / middle if middle else None


class OperatorFigures(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """An operator in all tasks of its stage together, as DuckDB's profiler measured it.

    Attributes:
        rows: the output rows; None if they are unknown: DuckDB ran it as part of others.
        run_s: CPU seconds, without those of its inputs; None if they are unknown.
        ended_early: whether nobody needed more rows before it had put all of them out.
        name: what kind of operator it is, such as `Join`.
        label: the operator as EXPLAIN prints it.
        depth: how many operators of its stage are above it, up to the one that puts rows out.
        estimated_rows: the output rows that were planned with.
    """

    rows: int | None = None
    run_s: float | None = None
    ended_early: bool = False
    name: str = ""
    label: str = ""
    depth: int = 0
    estimated_rows: float = 0.0

    @property
    def misestimate(self) -> float | None:
        """How many times as many rows there were as estimated.

        Below 1 if there were fewer; None if that is unknown, or it ended early.
        """
        if self.rows is None or self.ended_early:
            return None
        return max(self.rows, 1) / max(self.estimated_rows, 1.0)
