"""Runs the stages of one query on a cluster and gathers the answer.

A stage starts when those that it reads are complete; all that can start, start together. What gets
lost with nodes is made again by the tasks that made it (`recovery.py` decides which).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from minishark.catalog import Table
from minishark.cluster.backend import Backend, FilesLostError, JobEvent, Placement, task_error
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput, TableInput
from minishark.errors import ExecutionError, TasksLostError
from minishark.query.admission import function_bytes
from minishark.query.inputs import (
    lost_partitions,
    named_relation,
    preferred_nodes,
    read_partitions,
    stage_slices,
)
from minishark.query.locality import Holding, hosts_of, near, stage_holdings
from minishark.query.metrics import StageMetrics
from minishark.query.progress import ProgressHandler, QueryProgress, StageProgress
from minishark.query.recorder import StageRecord
from minishark.query.sinks import Ending, Files
from minishark.query.stage_graph import Made, Read, StageGraph, StageNode, Submission
from minishark.query.stage_jobs import StageJobs
from minishark.worker.protocol import (
    FileSlice,
    OutputKind,
    ScalarFunction,
    StageTask,
    TaskOutcome,
    TaskPayload,
    decode_outcome,
    encode,
)
from minishark.worker.store import InputMissingError, Store
from sparrow_core import (
    JobFinished,
    JobOptions,
    JobSpec,
    NodeName,
    TaskCompleted,
    TaskFailed,
    TaskSpec,
)


@dataclass(slots=True)
class QueryRun:
    """One execution of a query.

    Attributes:
        stages: the stages, in an order in which they can run; the last gives the result.
        tables: gives the tables that they read, by name in lower case, as they were when planned,
            with the nodes that hold them now.
        backend: where tasks run.
        store: where results are read from.
        placement: gives how tasks are placed on the nodes that live now.
        folder: where the query's files go, relative to a node's storage folder.
        ending: what becomes of the last stage's rows.
        settings: SET statements that hold for the query.
        definitions: statements that make what a whole statement may name: views, macros, types.
        scalars: Python functions that SQL may call.
        on_progress: hears how far the query is, at least once a second; what it raises ends the
            query.
        explained: whether the metrics tell why each task ran where it did.
        lost_nodes: those of some nodes whose files are gone, as far as is known.
        threads: how many cores a large task may use that is alone in its stage.
    """

    stages: Sequence[Stage]
    tables: Callable[[], Mapping[str, Table]]
    backend: Backend
    store: Store
    placement: Callable[[], Placement]
    folder: str
    ending: Ending
    settings: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    scalars: tuple[ScalarFunction, ...] = ()
    on_progress: ProgressHandler | None = None
    explained: bool = False
    lost_nodes: Callable[[Collection[str]], Collection[str]] = lambda _: ()
    threads: int = 1
    _records: dict[int, StageRecord] = field(default_factory=dict)
    _by_index: dict[int, Stage] = field(init=False)
    _graph: StageGraph = field(init=False)
    _jobs: StageJobs = field(init=False)
    _read_tables: Mapping[str, Table] = field(init=False)
    _placed: Placement = field(init=False)
    _started_s: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._by_index = {stage.index: stage for stage in self.stages}
        self._graph = StageGraph([self._node(stage) for stage in self.stages])
        self._jobs = StageJobs(self._graph, self.backend, self, self.lost_nodes)

    def _node(self, stage: Stage) -> StageNode:
        reads = [item for item in stage.inputs if isinstance(item, StageInput)]
        return StageNode(
            stage.index,
            stage.tasks,
            tuple(Read(item.stage, item.mode is ReadMode.OWN) for item in reads),
            stage.varies or any(f.volatile for f in self._called_in(stage)),
            stage.enough_rows,
        )

    def run(self) -> None:
        """Run all stages; what gets lost on the way is made again by the tasks that made it.

        Raises:
            FragmentRejectedError: DuckDB did not accept a fragment.
            PartitionsLostError: all that held partitions of a table are gone.
            ExecutionError: a task failed for good, or too much was lost.
            ClusterError: there is nobody left to run tasks.
        """
        self.renew()
        self._jobs.run()

    def remake(self, lost: FilesLostError) -> None:
        """Make those of the last stage's outputs again that were lost after `run`.

        Raises:
            MinisharkError: as `run` does.
        """
        self._jobs.lose(lost.files, str(lost))
        self._jobs.run()

    def outcomes(self) -> list[tuple[TaskOutcome, str]]:
        """What each task of the last stage has done, and on which node."""
        return [(made.outcome, made.node) for made in self._graph.made(self.stages[-1].index)]

    def result(self) -> pa.Table:
        """The rows that were gathered.

        Raises:
            ExecutionError: they have other columns than the query had when it was planned.
        """
        tables = self._read_all()
        filled = [table for table in tables if table.num_rows] or tables[:1]
        return self._named(pa.concat_tables(filled))

    def _named(self, table: pa.Table) -> pa.Table:
        """What a task has put out, with the names that users know.

        A whole statement looks at files again when it runs; they may have changed since.
        """
        names = list(self.ending.names)
        whole = self.stages[-1].is_statement and self.ending.function is None
        if table.num_columns != len(names) or (whole and table.column_names != names):
            raise ExecutionError(
                f"The query gave the columns {', '.join(table.column_names)}, but had "
                f"{', '.join(names)} when it was planned: what it reads has changed. Run it again."
            )
        return table.rename_columns(names)

    def batches(self) -> pa.RecordBatchReader:
        """The rows that were gathered, piece by piece.

        The files stay mapped when the query's folder is gone; each is let go of when its rows have
        been read, or with the reader.

        Raises:
            ExecutionError: they have other columns than the query had when it was planned.
        """
        tables = deque(map(self._named, self._read_all()))
        self.store.forget(self.folder)
        return pa.RecordBatchReader.from_batches(tables[0].schema, _drained(tables))

    def metrics(self) -> tuple[StageMetrics, ...]:
        """The figures of every stage that has completed."""
        done = (stage for stage in self.stages if self._graph.done(stage.index))
        found = (self._records[stage.index] for stage in done if stage.index in self._records)
        return tuple(record.metrics(self._graph.remade(record.stage.index)) for record in found)

    def progress(self) -> QueryProgress:
        """How far the query is."""
        stages = tuple(self._stage_progress(stage) for stage in self.stages)
        return QueryProgress(stages, time.perf_counter() - self._started_s)

    def _stage_progress(self, stage: Stage) -> StageProgress:
        outcomes = [made.outcome for made in self._graph.made(stage.index)]
        rows = sum(outcome.rows for outcome in outcomes)
        done = stage.tasks if self._graph.done(stage.index) else len(outcomes)
        return StageProgress(stage.index, stage.tasks, done, rows, stage.index in self._records)

    def uses_disk(self) -> bool:
        """Whether an output had to go to disk."""
        return any(record.uses_disk() for record in self._records.values())

    # What `StageJobs` asks for

    def job(self, submission: Submission) -> JobSpec:
        """Tasks of a stage, as a job."""
        stage, placement = self._by_index[submission.stage], self._placed
        tables = {
            item.name: self._read_tables[item.table.lower()]
            for item in stage.inputs
            if isinstance(item, TableInput)
        }
        preferred = {i: self._preferred(stage, tables, i) for i in submission.tasks}
        every = frozenset(placement.nodes)
        tasks = tuple(
            TaskSpec(
                index,
                encode(self._payload(stage, tables, index)),
                _constraint(nodes, every),
                placement.wait_s,
                self._memory_bytes(stage, tables, index),
            )
            for index, nodes in preferred.items()
        )
        job = JobSpec(
            tasks,
            shared=encode(self._stage_task(stage, tables)),
            user=placement.user,
            placement=placement.policy,
            probe_ratio=placement.probe_ratio,
            options=JobOptions(explain=self.explained),
        )
        record = self._records.setdefault(stage.index, StageRecord(stage))
        record.submitted(submission.number, job, preferred)
        return job

    def made(self, submission: Submission, event: TaskCompleted) -> Made:
        """What a task has put out, and where it lies."""
        outcome = decode_outcome(event.result)
        is_last = submission.stage == self.stages[-1].index
        elsewhere = outcome.file is None or (is_last and isinstance(self.ending.sink, Files))
        locations = () if elsewhere else outcome.locations or (event.node,)
        return Made(outcome, event.node, locations)

    def heard(self, submission: Submission, event: JobEvent) -> None:
        """Note what a task or job did."""
        record = self._records[submission.stage]
        if isinstance(event, TaskCompleted):
            made = self._graph.at(submission.stage, event.task_id)
            assert made is not None
            record.completed(submission.number, event, made.outcome)
        elif isinstance(event, JobFinished):
            record.finished(submission.number, event)

    def failure(self, submission: Submission, event: TaskFailed) -> Exception:
        """The error of a task that failed for good."""
        return task_error(event, is_own_text=self._by_index[submission.stage].is_statement)

    def inputs_lost(self, files: Sequence[FileSlice]) -> TasksLostError:
        """The error for partitions that are gone."""
        errors = (lost_partitions(table, files) for table in self._read_tables.values())
        return next((error for error in errors if error is not None), FilesLostError(files))

    def renew(self) -> None:
        """Look where tables lie, and which nodes live."""
        self._placed = self.placement()
        self._read_tables = self.tables()

    def waiting(self) -> None:
        """Tell how far the query is."""
        if self.on_progress is not None:
            self.on_progress(self.progress())

    def _is_last(self, stage: Stage) -> bool:
        return stage.index == self.stages[-1].index

    def _preferred(self, stage: Stage, tables: Mapping[str, Table], index: int) -> frozenset[str]:
        nodes = preferred_nodes(stage, tables, index)
        if hosts := hosts_of(self._placed.nodes, self._placed.stores):
            close = near(self._holdings(stage, tables, index), hosts)
            nodes = (nodes & close) or close or nodes
        if not self._is_last(stage):
            return nodes
        return self.ending.nodes(nodes, index, self._placed.nodes)

    def _memory_bytes(self, stage: Stage, tables: Mapping[str, Table], index: int) -> int:
        """What a task needs beside DuckDB's memory, as far as it is foreseen."""
        if self.ending.function is None or not self._is_last(stage):
            return 0
        read_bytes = sum(size for _, size in self._holdings(stage, tables, index))
        return function_bytes(stage.schema, stage.plan.rows / stage.tasks, read_bytes)

    def _holdings(self, stage: Stage, tables: Mapping[str, Table], index: int) -> Iterator[Holding]:
        """What task `index` reads, and where it lies."""
        for item in stage.inputs:
            if isinstance(item, TableInput):
                for partition in read_partitions(item, tables, index):
                    yield partition.locations, partition.bytes
            else:
                yield from stage_holdings(*self._outputs(item, index), index)

    def _stage_task(self, stage: Stage, tables: Mapping[str, Table]) -> StageTask:
        shared = {
            item.name: slices
            for item in stage.inputs
            if item.mode is ReadMode.ALL and not named_relation(item, tables, 0)
            for slices in [self._slices(item, tables, 0)]
        }
        output = OutputKind.BUCKETS if stage.buckets else OutputKind.PIECE
        types = () if stage.is_statement else tuple(column.type for column in stage.schema)
        task = StageTask(
            sql=stage.sql,
            types=types,
            shared_inputs=shared,
            output=output,
            folder=self.folder,
            prefix=f"{stage.index}-",
            buckets=stage.buckets,
            prelude=self.settings + (self.definitions if stage.is_statement else ()),
            rows=stage.plan.rows / stage.tasks,
            stores=self._placed.stores,
            scalars=self._called_in(stage),
            working_folder=_working_folder(),
            hints=stage.hints,
        )
        if self._is_last(stage):
            task = self.ending.stage(task, stage.schema)
        python = task.function is not None or task.scalars  # of which one thread runs at a time
        if stage.is_large_task and not python and task.output is not OutputKind.FILES:
            task = msgspec.structs.replace(task, threads=self.threads)
        return task

    def _called_in(self, stage: Stage) -> tuple[ScalarFunction, ...]:
        """The Python functions that a stage may call; a whole statement may by way of a macro."""
        if not self.scalars or stage.is_statement:
            return self.scalars
        text = " ".join((stage.sql, *(cte.sql for cte in stage.hints.ctes))).lower()
        return tuple(f for f in self.scalars if f.name in text)

    def _payload(self, stage: Stage, tables: Mapping[str, Table], index: int) -> TaskPayload:
        own = {
            item.name: self._slices(item, tables, index)
            for item in stage.inputs
            if item.mode is not ReadMode.ALL and not named_relation(item, tables, index)
        }
        relations = {
            item.name: relation
            for item in stage.inputs
            if (relation := named_relation(item, tables, index))
        }
        payload = TaskPayload(index, own, relations)
        if not self._is_last(stage):
            return payload
        return self.ending.payload(payload, self._placed.nodes)

    def _slices(
        self, item: TableInput | StageInput, tables: Mapping[str, Table], index: int
    ) -> tuple[FileSlice, ...]:
        if isinstance(item, TableInput):
            return tuple(
                FileSlice(p.file, p.locations) for p in read_partitions(item, tables, index)
            )
        outcomes, nodes, mode = self._outputs(item, index)
        return stage_slices(outcomes, nodes, mode, index)

    def _outputs(
        self, item: StageInput, index: int
    ) -> tuple[list[TaskOutcome], list[str], ReadMode]:
        """What task `index` reads of an earlier stage: outputs, where they lie, which part."""
        if item.mode is ReadMode.OWN:
            own = self._graph.at(item.stage, index)
            assert own is not None
            return [own.outcome], [own.node], ReadMode.ALL
        made = self._graph.made(item.stage)
        return [each.outcome for each in made], [each.node for each in made], item.mode

    def _read_all(self) -> list[pa.Table]:
        """The last stage's outputs; those that are gone by now are made again."""
        while True:
            try:
                return [self._read(outcome, node) for outcome, node in self.outcomes()]
            except InputMissingError as error:
                self.remake(FilesLostError(error.files))

    def _read(self, outcome: TaskOutcome, node: str) -> pa.Table:
        if outcome.inline is not None:
            return pa.ipc.open_stream(outcome.inline).read_all()
        assert outcome.file is not None
        return self.store.read((FileSlice(outcome.file, (node,)),))


def _drained(tables: deque[pa.Table]) -> Iterator[pa.RecordBatch]:
    while tables:
        yield from tables.popleft().to_batches()


def _constraint(nodes: frozenset[str], every: frozenset[str]) -> tuple[NodeName, ...]:
    """Preferred nodes as a constraint; all nodes are none, and so are nodes that are gone."""
    nodes &= every
    return () if nodes >= every else tuple(NodeName(node) for node in sorted(nodes))


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # it was removed
        return ""
