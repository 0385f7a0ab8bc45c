"""Sinks: what becomes of the rows of a query's last stage.

A sink has its say twice. Before the run it shapes the plan and says what the tasks of the last
stage do with their rows (`Output`, which travels to executors). After the run it turns what these
tasks have left into a result. Sinks that make tables and files are in `minishark.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pyarrow as pa
from msgspec import structs

from minishark.cluster.replicas import replica_locations
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.model.expressions import Schema
from minishark.worker.protocol import (
    CopyTarget,
    FileSlice,
    OutputKind,
    StageTask,
    TaskFunction,
    TaskPayload,
)

if TYPE_CHECKING:
    from minishark.compiler.stages.stage import Stage
    from minishark.query.stored_rows import StoredRows
    from minishark.worker.protocol import TaskOutcome
    from minishark.worker.store import Store

Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table's rows are to be partitioned and replicated."""

    partition_by: tuple[str, ...] = ()  # columns to hash; none keeps the query's order
    partitions: int | None = None  # None for as many as the query has, or its size asks
    replicas: int = 1  # the number of nodes that store each partition
    even: bool = False  # whether partitions are to be of equal size, whatever the query's are
    kept: bool = False  # whether the query's partitions are the user's, so that few rows stay apart
    ranges: tuple[str, ...] = ()  # columns to range-partition by, in their sort order


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What the tasks of the last stage do with their rows."""

    kind: OutputKind  # result rows, pieces for a later reader, partitions, or files
    columns: tuple[str, ...]  # the names of the stage's columns, as users know them
    function: TaskFunction | None = None  # a Python function to which the rows are passed first
    lossless: bool = False  # for RESULT, whether DuckDB's types stay
    in_order: bool = False  # whether rows come as they are read, by one thread
    cuts: int = 0  # for PIECE, the minimum number of record batches to cut a task's rows into
    folder: str = ""  # for PARTITION, the table's folder, relative to a node's storage folder
    replicas: int = 0  # for PARTITION, the number of nodes that store each
    target: CopyTarget | None = None  # for FILES, where to
    buckets: int = 0  # for BUCKETS, how many; the last column has each row's number

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that come out, after the function if there is one."""
        if self.function is None:
            return self.columns
        return tuple(name for name, _ in self.function.returns)

    def stage_task(self, task: StageTask, schema: Schema) -> StageTask:
        """The last stage's task description, completed; `schema` has its fragment's columns."""
        if self.kind is OutputKind.RESULT and self.function is None:
            return structs.replace(task, output=self.kind, lossless=self.lossless)
        if self.kind is OutputKind.BUCKETS:
            return self._in_buckets(_with_positional_columns(task, schema), len(schema) - 1)
        columns = zip(self.columns, (column.type for column in schema), strict=True)
        # Only tables have a folder of their own; all other output is in the query's folder.
        into = {"folder": self.folder, "prefix": ""} if self.kind is OutputKind.PARTITION else {}
        return structs.replace(
            _with_positional_columns(task, schema),
            output=self.kind,
            columns=tuple(columns),
            function=self.function,
            lossless=self.lossless,
            cuts=self.cuts,
            target=self.target,
            **into,
        )

    def _in_buckets(self, task: StageTask, last: int) -> StageTask:
        columns = ", ".join((*(f"c{i}" for i in range(last)), f"c{last} AS bucket"))
        return structs.replace(
            task,
            output=self.kind,
            sql=f"SELECT {columns} FROM ({task.sql})",
            types=task.types[:-1],
            buckets=self.buckets,
        )

    def payload(self, payload: TaskPayload, nodes: Sequence[str]) -> TaskPayload:
        """A task of the last stage, with the nodes that store its rows if it makes a partition."""
        return structs.replace(payload, replicas=self._locations(payload.index, nodes))

    def nodes(self, preferred: frozenset[str], index: int, nodes: Sequence[str]) -> frozenset[str]:
        """Where a task of the last stage should run: where its rows are to be stored, if at all."""
        stored = frozenset(self._locations(index, nodes))
        return (preferred & stored) or stored or preferred

    def _locations(self, index: int, nodes: Sequence[str]) -> tuple[str, ...]:
        if self.kind is not OutputKind.PARTITION:
            return ()
        return replica_locations(nodes, index, self.replicas)


class CompleteRun(Protocol):
    """A complete run of a query (`query/run.py`), as sinks see it."""

    stages: Sequence[Stage]  # in topological order; the last gives the result
    store: Store  # where results are read from
    output: Output

    def outcomes(self) -> list[tuple[TaskOutcome, str]]:
        """The outcome of each task of the last stage, and its node."""

    def result(self) -> pa.Table:
        """The gathered rows."""

    def batches(self) -> pa.RecordBatchReader:
        """The gathered rows as a stream, which outlives the query's files."""

    def pieces(self) -> list[FileSlice | pa.Table]:
        """The last stage's outputs: where each is stored, or itself if it came in a message."""


class Sink(Generic[Result_co]):
    """What a query is run for; by default, its plan stays, and its rows go to the front end."""

    leaves_plan = False
    """Whether the plan stays as it is, and users don't see which task has put out which rows."""

    lossless = False
    """Whether rows keep DuckDB's types, instead of those in which users get results."""

    takes_constants = False
    """Whether rows that DuckDB has computed while planning need no task, nor its figures."""

    def distributes_files(self, options: PlannerOptions) -> bool:
        """Whether queries over named files may be planned over ranges of their rows."""
        return self.leaves_plan

    def takes_stored(self, *, on_hosts: bool) -> bool:
        """Whether columns of a stored table need no task, nor its figures.

        They may be `on_hosts` that do not share this one's memory.
        """
        return False

    @property
    def needs_tasks(self) -> bool:
        """Whether rows that the front end computed are of no use."""
        return True

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """The planner options, adapted to this sink."""
        return options

    def shape(self, plan: PhysicalPlan) -> PhysicalPlan:
        """The plan with its rows partitioned as this sink needs them."""
        return plan

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        """What the tasks of the last stage of `plan` do; `columns` are its column names."""
        return Output(kind=OutputKind.RESULT, columns=columns, lossless=self.lossless)

    def finish(self, run: CompleteRun) -> Result_co:
        """The result of a complete run, whose files still exist."""
        raise NotImplementedError

    def accept(self, rows: pa.Table) -> Result_co:
        """The result of rows that the front end computed, unless `needs_tasks`."""
        raise NotImplementedError

    def accept_stored(self, rows: StoredRows, store: Store) -> Result_co | None:
        """The result of rows that are stored, if it `takes_stored` ones; None if tasks must run."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CollectRows(Sink[pa.Table]):
    """All rows in the front end, as one Arrow table."""

    lossless: bool = False
    leaves_plan = True
    needs_tasks = False

    def finish(self, run: CompleteRun) -> pa.Table:
        return run.result()

    def accept(self, rows: pa.Table) -> pa.Table:
        return rows


class StreamRows(Sink[pa.RecordBatchReader]):
    """Rows as a stream of record batches, which are memory-mapped, not loaded."""

    leaves_plan = True
    takes_constants = True
    needs_tasks = False

    def takes_stored(self, *, on_hosts: bool) -> bool:
        return not on_hosts

    def finish(self, run: CompleteRun) -> pa.RecordBatchReader:
        return run.batches()

    def accept(self, rows: pa.Table) -> pa.RecordBatchReader:
        return rows.to_reader()

    def accept_stored(self, rows: StoredRows, store: Store) -> pa.RecordBatchReader | None:
        return rows.read(store)


@dataclass(frozen=True, slots=True)
class HandOver(Sink[Result_co]):
    """Rows that another system takes over piece by piece, while the query's files exist.

    `take` is given the pieces, which are stored files or small tables, and the names of their
    columns.
    `take_stored` is given columns of a stored table, and may return None for tasks to read them.
    """

    take: Callable[[Sequence[FileSlice | pa.Table], Sequence[str]], Result_co]
    take_stored: Callable[[StoredRows], Result_co | None]
    leaves_plan = True
    needs_tasks = False

    def takes_stored(self, *, on_hosts: bool) -> bool:
        return True

    def finish(self, run: CompleteRun) -> Result_co:
        return self.take(run.pieces(), run.output.names)

    def accept(self, rows: pa.Table) -> Result_co:
        return self.take([rows], rows.column_names)

    def accept_stored(self, rows: StoredRows, store: Store) -> Result_co | None:
        return self.take_stored(rows)


@dataclass(frozen=True, slots=True)
class ApplyFunction(Sink[pa.Table]):
    """What a Python function returns for a query's partitions, as one Arrow table."""

    function: TaskFunction

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """Several tasks even for few rows: what a function takes does not depend on their size."""
        return options.in_stages()

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        return Output(kind=OutputKind.RESULT, columns=columns, function=self.function)

    def finish(self, run: CompleteRun) -> pa.Table:
        return run.result()


def _with_positional_columns(task: StageTask, schema: Schema) -> StageTask:
    """A stage whose SQL names its columns c0, c1, ..."""
    # Fragments do so already; a whole statement has the names and types that its user wrote.
    if task.types:
        return task
    names = ", ".join(f"c{i}" for i in range(len(schema)))
    casts = ", ".join(f"CAST(c{i} AS {column.type}) AS c{i}" for i, column in enumerate(schema))
    return structs.replace(task, sql=f"SELECT {casts} FROM ({task.sql}) AS t({names})")
