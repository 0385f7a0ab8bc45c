"""Loads tables: data of any kind -> partitioned, replicated Arrow files on the nodes.

Without partitioning columns, rows keep the source's order: each partition is a contiguous range,
stored by one task; or it is a file that a node has already, which a task measures only. With them,
loading takes two stages. The first reads the source, one task per piece, and divides rows into
buckets by hash; the second stores the partitions, one task each. The hash is that of shuffles, so
joins of tables partitioned alike need no shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from minishark.cluster.backend import (
    FilesLostError,
    FragmentRejectedError,
    Placement,
    task_error,
)
from minishark.cluster.job_events import Job, JobEvent, JobFinished, TaskCompleted, TaskFailed
from minishark.cluster.replicas import replica_locations
from minishark.compiler.stages.fragment import bucket_column
from minishark.errors import DataError, TaskFailedError, TasksLostError
from minishark.model.catalog import Partition
from minishark.model.expressions import ColumnRef, Schema, quote
from minishark.query.inputs import partition_slices, stage_slices
from minishark.query.observer import QueryObserver
from minishark.query.run import Site
from minishark.query.stage_graph import Read, StageGraph, StageNode, Submission, TaskOutput
from minishark.query.stage_jobs import StageJobs
from minishark.sources.contract import Snapshot, Source
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess
from minishark.sources.storage_options import Storage
from minishark.worker.protocol import (
    FileSlice,
    OutputKind,
    StageTask,
    TaskOutcome,
    TaskPayload,
    decode_outcome,
    encode,
)

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Origin:
    """The version of a source that a table was loaded from."""

    source: Source
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """The rows of a table to load, as pieces that tasks read in parallel."""

    schema: Schema
    reads: tuple[bytes, ...] = ()  # pieces that are splits of a source: pickled `SplitRead`s
    slices: tuple[FileSlice, ...] = ()  # pieces that are stored Arrow files
    are_stored: bool = False  # whether these have the types and the layout of partitions
    digest: str = ""  # of the rows in these files, which says where they are cut; "" for unknown
    rows: tuple[int, ...] = ()  # the number of rows of each slice, if known
    partitions: tuple[FileSlice, ...] = ()  # files with all rows that may become partitions
    merged: tuple[Partition, ...] = ()  # partitions to be stored again, each as one file
    # What says how each of these changes, and the positions of the columns that are set.
    further: tuple[Mapping[str, tuple[FileSlice, ...]], ...] = ()
    set: tuple[int, ...] = ()
    origin: Origin | None = None  # what the table can be loaded from again
    opened: Snapshot | None = None  # keeps the rows of `reads` readable

    def payloads(self) -> list[TaskPayload]:
        """One task per piece."""
        own = [
            TaskPayload(index=i, inputs={}, reads={"in0": (read,)})
            for i, read in enumerate(self.reads)
        ]
        first = len(own)
        return own + [
            TaskPayload(index=first + i, inputs={"in0": (s,)}) for i, s in enumerate(self.slices)
        ]

    def runs(self, count: int) -> list[TaskPayload]:
        """`count` tasks, each with consecutive pieces; fewer if there are fewer pieces."""
        # If the slices' row counts are known, tasks get about equal numbers of rows instead.
        if self.rows:
            return self._even_runs(count)
        pieces = max(1, len(self.reads) + len(self.slices))
        count = min(count, pieces)
        ends = [pieces * (i + 1) // count for i in range(count)]
        runs = zip([0, *ends[:-1]], ends, strict=True)
        return [self._run(i, first, last) for i, (first, last) in enumerate(runs)]

    def _even_runs(self, count: int) -> list[TaskPayload]:
        # A task without pieces reads zero batches of the first slice, for the schema.
        runs: list[list[FileSlice]] = [[] for _ in range(count)]
        total = max(1, sum(self.rows))
        first = 0
        for item, rows in zip(self.slices, self.rows, strict=True):
            runs[min(count - 1, (first + rows // 2) * count // total)].append(item)
            first += rows
        nothing = msgspec.structs.replace(self.slices[0], first=0, last=0)
        return [
            TaskPayload(index=i, inputs={"in0": tuple(run) or (nothing,)})
            for i, run in enumerate(runs)
        ]

    def _run(self, index: int, first: int, last: int) -> TaskPayload:
        if self.slices:
            return TaskPayload(index=index, inputs={"in0": self.slices[first:last]})
        return TaskPayload(index=index, inputs={}, reads={"in0": self.reads[first:last]})


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A table's layout with all defaults filled in."""

    partition_by: tuple[str, ...]
    partitions: int
    replicas: int


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """The result of a load."""

    partitions: tuple[Partition, ...]
    measured: tuple[pa.Table, ...]  # each partition's statistics, for `merge_statistics`
    on_disk: bool  # whether a partition was written to disk for lack of shared memory


@dataclass(slots=True, kw_only=True)
class TableLoader:
    """Loads a table into a cluster."""

    site: Site  # where tasks run
    folder: str
    buckets: str  # another folder, for what is repartitioned
    source: TableSource  # where its rows come from
    layout: TableLayout  # how they are partitioned and replicated
    observer: QueryObserver  # told what happens
    storage: Storage = field(default_factory=Storage)  # how object stores are reached
    on_progress: OnProgress | None = None  # called with the number of tasks done and of all tasks
    _graph: StageGraph = field(init=False)
    _pieces: Sequence[TaskPayload] = field(init=False)
    _placed: Placement = field(init=False)
    _done: int = 0

    def __post_init__(self) -> None:
        layout = self.layout
        if self._is_divided:
            self._pieces = self.source.payloads()
            nodes = [
                StageNode(index=0, tasks=len(self._pieces)),
                StageNode(index=1, tasks=layout.partitions, reads=(Read(0),)),
            ]
        else:
            self._pieces = self._whole_pieces()
            nodes = [StageNode(index=1, tasks=len(self._pieces))]
        self._graph = StageGraph(nodes)

    def _whole_pieces(self) -> Sequence[TaskPayload]:
        """A task for each partition, which reads its rows."""
        source = self.source
        if source.merged:
            further = source.further or ({},) * len(source.merged)
            return [
                TaskPayload(index=i, inputs={"in0": partition_slices(partition), **more})
                for i, (partition, more) in enumerate(zip(source.merged, further, strict=True))
            ]
        if self._takes_files:
            return [
                TaskPayload(index=i, inputs={"in0": (s,)}) for i, s in enumerate(source.partitions)
            ]
        return source.runs(self.layout.partitions)

    @property
    def _is_divided(self) -> bool:
        """Whether rows are partitioned by hash; else each piece is a partition."""
        return bool(self.layout.partition_by) and self.layout.partitions > 1

    @property
    def _takes_files(self) -> bool:
        """Whether the source's files become the partitions, where they are."""
        return not self._is_divided and len(self.source.partitions) == self.layout.partitions

    def load(self) -> LoadedTable:
        self.renew()
        self._tell_stages()
        StageJobs(
            graph=self._graph,
            backend=self.site.backend,
            work=self,
            lost_nodes=self.site.lost_nodes,
            clock=self.site.clock,
        ).run()
        outcomes = [output.outcome for output in self._graph.outputs(1)]
        if any(outcome.file is None for outcome in outcomes):
            raise DataError(f"A row of {self.folder} is changed twice.")
        return stored_table(outcomes)

    def stored(self) -> dict[str, tuple[str, ...]]:
        """The files of the partitions that are stored so far, with their locations."""
        outputs = (self._graph.at(1, i) for i in range(self.layout.partitions))
        outcomes = [output.outcome for output in outputs if output is not None]
        return {outcome.file: outcome.locations for outcome in outcomes if outcome.file is not None}

    def _tell_stages(self) -> None:
        pieces, store = len(self._pieces), "store partitions"
        if self._is_divided:
            divide = f"divide rows by hash of {', '.join(self.layout.partition_by)}"
            self.observer.divided({0: (divide, pieces), 1: (store, self.layout.partitions)})
        else:
            self.observer.divided({1: (store, pieces)})

    # The protocol that `StageJobs` drives

    def job(self, submission: Submission) -> Job:
        """Tasks that divide pieces into buckets, or that store partitions."""
        if submission.stage == 0:
            shared = self._dividing()
            payloads = [self._pieces[i] for i in submission.tasks]
            preferred: list[tuple[str, ...]] = [()] * len(payloads)
        else:
            shared = self._storing()
            payloads = [self._partition(i) for i in submission.tasks]
            preferred = [payload.replicas[:1] for payload in payloads]
        tasks = tuple(
            self._placed.task(p.index, encode(p), nodes)
            for p, nodes in zip(payloads, preferred, strict=True)
        )
        stage = submission.stage
        self.observer.submitted(stage, len(tasks), self._graph.rerun(stage))
        # Data placement must not depend on the placement policy, which experiments compare.
        tag = self.observer.tag(stage)
        return self._placed.job(tasks, encode(shared), group=self.folder, tag=tag, by_policy=False)

    def _dividing(self) -> StageTask:
        schema = self.source.schema
        names = [f"in0.{quote(column.name)}" for column in schema]
        positions = {column.name.lower(): i for i, column in enumerate(schema)}
        keys = [positions[name.lower()] for name in self.layout.partition_by]
        columns = [ColumnRef(i, schema[i].type) for i in keys]
        bucket = bucket_column(columns, names, self.layout.partitions)
        return StageTask(
            sql=f"SELECT {_columns(schema)}, {bucket} FROM in0",
            types=tuple(column.type for column in schema),
            output=OutputKind.BUCKETS,
            folder=self.buckets,
            buckets=self.layout.partitions,
            stores=self._placed.stores,
            access=self._access(),
        )

    def _storing(self) -> StageTask:
        source = self.source
        schema = source.schema
        return StageTask(
            sql=""
            if self._is_divided
            or self._takes_files
            or source.reads
            or source.merged
            or source.are_stored
            else f"SELECT {_columns(schema)} FROM in0",
            changed=source.set if source.merged else None,
            types=tuple(column.type for column in schema),
            output=OutputKind.PARTITION,
            folder=self.folder,
            columns=tuple((column.name, column.type) for column in schema),
            stores=self._placed.stores,
            access=self._access(),
        )

    def _access(self) -> StoreAccess:
        reads = any(payload.reads for payload in self._pieces)
        return self.storage.access() if reads else FROM_ENVIRONMENT

    def _partition(self, index: int) -> TaskPayload:
        first, live = index, self._placed.nodes
        if self.source.merged:
            first = self.source.merged[index].index
        elif self._takes_files and (home := self.source.partitions[index].locations[0]) in live:
            first = live.index(home)
        nodes = replica_locations(live, first, self.layout.replicas)
        if not self._is_divided:
            return msgspec.structs.replace(self._pieces[index], replicas=nodes)
        divided = self._graph.outputs(0)
        outcomes, held = [d.outcome for d in divided], [d.node for d in divided]
        slices = stage_slices(outcomes, held, range(index, index + 1))
        return TaskPayload(index=index, inputs={"in0": slices}, replicas=nodes)

    def task_output(self, submission: Submission, event: TaskCompleted) -> TaskOutput:
        outcome = decode_outcome(event.result)
        return TaskOutput(outcome, event.node, outcome.locations or (event.node,))

    def on_event(self, submission: Submission, event: JobEvent) -> None:
        stage = submission.stage
        if isinstance(event, TaskCompleted):
            outcome = decode_outcome(event.result)
            self.observer.completed(stage, event, outcome.figures)
            if self.on_progress is not None:
                total = len(self._pieces) + self._is_divided * self.layout.partitions
                self._done = min(total, self._done + 1)  # lost outputs are computed twice
                self.on_progress(self._done, total)
        elif isinstance(event, JobFinished):
            self.observer.finished(stage)

    def failure(self, submission: Submission, event: TaskFailed) -> Exception:
        self.observer.failed(submission.stage, event)
        error = task_error(event)
        if isinstance(error, FragmentRejectedError | TaskFailedError):
            return DataError(f"The data can't be read: {error}")
        return error

    def inputs_lost(self, files: Sequence[FileSlice]) -> TasksLostError:
        return FilesLostError(files)

    def renew(self) -> None:
        self._placed = self.site.placement()

    def waiting(self) -> None:
        """End the load if it was cancelled; progress is reported by completed tasks only."""
        self.observer.check()


def stored_table(outcomes: Sequence[TaskOutcome]) -> LoadedTable:
    partitions = tuple(
        Partition(
            index=i,
            file=_file_of(outcome),
            locations=outcome.locations,
            rows=outcome.figures.rows,
            bytes=outcome.figures.bytes,
        )
        for i, outcome in enumerate(outcomes)
    )
    measured = tuple(_measured(outcome) for outcome in outcomes)
    return LoadedTable(
        partitions, measured, any(outcome.figures.disk_bytes for outcome in outcomes)
    )


def _columns(schema: Schema) -> str:
    return ", ".join(f"in0.{quote(c.name)} AS c{i}" for i, c in enumerate(schema))


def _measured(outcome: TaskOutcome) -> pa.Table:
    assert outcome.statistics is not None, "tasks that store partitions measure them"
    return pa.ipc.open_stream(outcome.statistics).read_all()


def _file_of(outcome: TaskOutcome) -> str:
    assert outcome.file is not None, "partitions are stored in files"
    return outcome.file
