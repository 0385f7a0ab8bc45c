"""Makes tables: data of any kind -> partitioned, replicated Arrow on the nodes.

Rows of a table without partitioning columns keep the source's order: each partition is a run of it,
stored by one task. Other tables take two jobs. The first reads the source, one task per piece of
it, and divides the rows by the hash of the partitioning columns; it is the hash that shuffles use,
so tables divided alike join without one. The second stores the partitions, one task for each.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from minishark.catalog import Partition
from minishark.cluster.backend import (
    Backend,
    FragmentRejectedError,
    JobEvent,
    Placement,
    job_error,
    task_error,
)
from minishark.cluster.inputs import stage_slices
from minishark.errors import DataError, TaskFailedError
from minishark.execution.task import (
    FileSlice,
    OutputKind,
    StageTask,
    TaskOutcome,
    TaskPayload,
    decode_outcome,
    encode,
)
from minishark.expressions import ColumnRef, Schema, quote
from minishark.stages.fragment import bucket_column
from minishark.stages.stage import ReadMode
from sparrow_core import (
    JobFailed,
    JobFinished,
    JobSpec,
    NodeName,
    TaskCompleted,
    TaskFailed,
    TaskSpec,
)

OnProgress = Callable[[int, int], None]
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class TableSource:
    """Where a table's rows come from: pieces that tasks read side by side.

    Attributes:
        schema: the columns.
        relations: pieces that are SQL relations, such as `read_parquet(['a'])`.
        slices: pieces that are stored Arrow files.
        rows: how many rows each slice has, if that is known.
    """

    schema: Schema
    relations: tuple[str, ...] = ()
    slices: tuple[FileSlice, ...] = ()
    rows: tuple[int, ...] = ()

    def payloads(self) -> list[TaskPayload]:
        """One task per piece."""
        own = [TaskPayload(i, {}, {"in0": text}) for i, text in enumerate(self.relations)]
        first = len(own)
        return own + [TaskPayload(first + i, {"in0": (s,)}) for i, s in enumerate(self.slices)]

    def runs(self, count: int) -> list[TaskPayload]:
        """`count` tasks, each with neighbouring pieces.

        With about as many rows each, if these are known; else fewer tasks for fewer pieces.
        """
        if self.rows:
            return self._even_runs(count)
        pieces = max(1, len(self.relations) + len(self.slices))
        count = min(count, pieces)
        ends = [pieces * (i + 1) // count for i in range(count)]
        runs = zip([0, *ends[:-1]], ends, strict=True)
        return [self._run(i, first, last) for i, (first, last) in enumerate(runs)]

    def _even_runs(self, count: int) -> list[TaskPayload]:
        # A run without pieces reads none of the first slice, for the columns.
        runs: list[list[FileSlice]] = [[] for _ in range(count)]
        total = max(1, sum(self.rows))
        first = 0
        for item, rows in zip(self.slices, self.rows, strict=True):
            runs[min(count - 1, (first + rows // 2) * count // total)].append(item)
            first += rows
        nothing = msgspec.structs.replace(self.slices[0], first=0, last=0)
        return [TaskPayload(i, {"in0": tuple(run) or (nothing,)}) for i, run in enumerate(runs)]

    def _run(self, index: int, first: int, last: int) -> TaskPayload:
        if self.slices:
            return TaskPayload(index, {"in0": self.slices[first:last]})
        union = " UNION ALL ".join(f"FROM {relation}" for relation in self.relations[first:last])
        return TaskPayload(index, {}, {"in0": f"({union})"})


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How a table's rows are spread over the cluster."""

    partition_by: tuple[str, ...]
    partitions: int
    replicas: int


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """What a load has made.

    Attributes:
        partitions: the stored partitions.
        measured: each partition's measurements, for `merge_statistics`.
        on_disk: whether shared memory was short, so that some of it lies on disk.
    """

    partitions: tuple[Partition, ...]
    measured: tuple[pa.Table, ...]
    on_disk: bool


@dataclass(slots=True)
class TableLoader:
    """Loads tables into a cluster."""

    backend: Backend
    placement: Placement
    on_progress: OnProgress | None = None
    _done: int = 0
    _total: int = 0

    def load(self, folder: str, source: TableSource, layout: TableLayout) -> LoadedTable:
        """Load a table into `folder` of each node's storage.

        Raises:
            DataError: the source can't be read.
            ExecutionError: a task failed otherwise.
        """
        if layout.partition_by and layout.partitions > 1:
            payloads = source.payloads()
            self._total = len(payloads) + layout.partitions
            read = self._divided(folder, source, layout, payloads)
            sql = ""
        else:
            read = source.runs(layout.partitions)
            self._total = len(read)
            sql = f"SELECT {_columns(source.schema)} FROM in0"
        outcomes = self._store(folder, source.schema, layout, read, sql)
        return stored_table(outcomes, [self._holders(i, layout) for i in range(len(outcomes))])

    def _divided(
        self,
        folder: str,
        source: TableSource,
        layout: TableLayout,
        payloads: Sequence[TaskPayload],
    ) -> list[TaskPayload]:
        """Run the first job; the inputs of the second."""
        names = [f"in0.{quote(column.name)}" for column in source.schema]
        shared = StageTask(
            f"SELECT {_columns(source.schema)}, {_bucket(source.schema, layout, names)} FROM in0",
            tuple(column.type for column in source.schema),
            {},
            OutputKind.BUCKETS,
            f"{folder}-buckets",
            buckets=layout.partitions,
            peers=self.placement.peers,
        )
        outcomes = self._run(shared, payloads, [()] * len(payloads))
        done, nodes = [o for o, _ in outcomes], [n for _, n in outcomes]
        return [
            TaskPayload(i, {"in0": stage_slices(done, nodes, ReadMode.BUCKET, i)})
            for i in range(layout.partitions)
        ]

    def _store(
        self,
        folder: str,
        schema: Schema,
        layout: TableLayout,
        read: Sequence[TaskPayload],
        sql: str,
    ) -> list[TaskOutcome]:
        """Run the job that stores partitions, one per task."""
        shared = StageTask(
            sql,
            tuple(column.type for column in schema),
            {},
            OutputKind.PARTITION,
            folder,
            columns=tuple((column.name, column.type) for column in schema),
            peers=self.placement.peers,
        )
        holders = [self._holders(payload.index, layout) for payload in read]
        tasks = [
            TaskPayload(p.index, p.inputs, p.relations, nodes)
            for p, nodes in zip(read, holders, strict=True)
        ]
        outcomes = self._run(shared, tasks, [nodes[:1] for nodes in holders])
        return [outcome for outcome, _ in outcomes]

    def _holders(self, partition: int, layout: TableLayout) -> tuple[str, ...]:
        return holders(self.placement.nodes, partition, layout.replicas)

    def _run(
        self,
        shared: StageTask,
        payloads: Sequence[TaskPayload],
        preferred: Sequence[tuple[str, ...]],
    ) -> list[tuple[TaskOutcome, str]]:
        """Run one job to its end; each task's outcome and node."""
        tasks = tuple(
            TaskSpec(i, encode(payload), tuple(map(NodeName, nodes)), self.placement.wait_s)
            for i, (payload, nodes) in enumerate(zip(payloads, preferred, strict=True))
        )
        events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        # Where a partition lies is decided here, not by a placement policy that is being measured.
        job = JobSpec(tasks, shared=encode(shared), user=self.placement.user)
        job_id = self.backend.submit(job, events.put)
        try:
            return self._collect(events, len(tasks))
        except BaseException:
            self.backend.cancel(job_id)
            raise

    def _collect(
        self, events: queue.SimpleQueue[JobEvent], count: int
    ) -> list[tuple[TaskOutcome, str]]:
        found: dict[int, tuple[TaskOutcome, str]] = {}
        while True:
            try:
                event = events.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            match event:
                case TaskCompleted():
                    found[event.task_id] = (decode_outcome(event.result), event.node)
                    self._done += 1
                    if self.on_progress:
                        self.on_progress(self._done, self._total)
                case JobFinished():
                    return [found[i] for i in range(count)]
                case TaskFailed():
                    raise _load_error(event)
                case JobFailed():
                    raise job_error(event)


def holders(nodes: Sequence[str], partition: int, replicas: int) -> tuple[str, ...]:
    """The nodes that hold a partition.

    Neighbours, from a first one that depends on the partition's number only: so partitions of the
    same number lie on the same nodes, whatever their table.
    """
    return tuple(nodes[(partition + i) % len(nodes)] for i in range(replicas))


def stored_table(outcomes: Sequence[TaskOutcome], held: Sequence[tuple[str, ...]]) -> LoadedTable:
    """The table that tasks have stored, a partition each.

    Args:
        outcomes: of the tasks.
        held: which nodes hold each partition.
    """
    partitions = tuple(
        Partition(i, _file_of(outcome), nodes, outcome.rows, outcome.nbytes)
        for i, (outcome, nodes) in enumerate(zip(outcomes, held, strict=True))
    )
    measured = tuple(_measured(outcome) for outcome in outcomes)
    return LoadedTable(partitions, measured, any(outcome.on_disk for outcome in outcomes))


def _load_error(event: TaskFailed) -> Exception:
    error = task_error(event)
    if isinstance(error, FragmentRejectedError | TaskFailedError):
        return DataError(f"The data can't be read: {error}")
    return error


def _columns(schema: Schema) -> str:
    return ", ".join(f"in0.{quote(c.name)} AS c{i}" for i, c in enumerate(schema))


def _bucket(schema: Schema, layout: TableLayout, names: Sequence[str]) -> str:
    positions = {column.name.lower(): i for i, column in enumerate(schema)}
    keys = [positions[name.lower()] for name in layout.partition_by]
    return bucket_column([ColumnRef(i, schema[i].type) for i in keys], names, layout.partitions)


def _measured(outcome: TaskOutcome) -> pa.Table:
    assert outcome.statistics is not None
    return pa.ipc.open_stream(outcome.statistics).read_all()


def _file_of(outcome: TaskOutcome) -> str:
    assert outcome.file is not None
    return outcome.file
