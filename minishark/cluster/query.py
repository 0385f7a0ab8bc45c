"""Runs the stages of one query on a cluster and gathers the answer.

A stage starts when those that it reads are complete; all that can start, start together. Events
come on the cluster's thread and are handled on the caller's, one at a time.
"""

from __future__ import annotations

import os
import queue
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from msgspec import structs

from minishark.catalog import Table
from minishark.cluster.backend import Backend, JobEvent, Placement, job_error, task_error
from minishark.cluster.inputs import named_relation, preferred_nodes, read_partitions, stage_slices
from minishark.cluster.locality import Holding, hosts_of, near, stage_holdings
from minishark.cluster.metrics import StageMetrics, TaskMetrics
from minishark.cluster.progress import ProgressHandler, QueryProgress, StageProgress
from minishark.cluster.sinks import Ending
from minishark.errors import ExecutionError, TasksLostError
from minishark.execution.store import InputMissingError, Store
from minishark.execution.task import (
    FileSlice,
    OutputKind,
    ScalarFunction,
    StageTask,
    TaskOutcome,
    TaskPayload,
    decode_outcome,
    encode,
)
from minishark.stages.stage import ReadMode, Stage, StageInput, TableInput
from sparrow_core import (
    JobFailed,
    JobFinished,
    JobId,
    JobOptions,
    JobSpec,
    NodeName,
    TaskCompleted,
    TaskFailed,
    TaskSpec,
    explain,
)

_POLL_S = 0.25
_CANCEL_WAIT_S = 2.0


@dataclass(slots=True)
class _StageRun:
    """A stage while it runs."""

    stage: Stage
    preferred: tuple[frozenset[str], ...]
    started_s: float
    outcomes: list[TaskOutcome | None]
    nodes: list[str]
    run_s: list[float]
    queue_s: list[float]
    job: JobSpec
    events: list[JobEvent] = field(default_factory=list)
    job_id: JobId | None = None
    elapsed_s: float = 0.0

    def complete(self) -> list[TaskOutcome]:
        """The outcomes of all tasks."""
        return [outcome for outcome in self.outcomes if outcome is not None]

    def output(self) -> list[tuple[TaskOutcome, str]]:
        """What each task has done, in order, and on which node."""
        pairs = zip(self.outcomes, self.nodes, strict=True)
        return [(outcome, node) for outcome, node in pairs if outcome is not None]

    def has_enough(self) -> bool:
        """Whether the first tasks have given all rows that are needed, and others still run."""
        missing = self.stage.enough_rows
        if missing is None or None not in self.outcomes:
            return False
        for outcome in self.outcomes:
            if outcome is None:
                return False
            missing -= outcome.rows
            if missing <= 0:
                return True
        return False

    def metrics(self) -> StageMetrics:
        finished = [i for i, outcome in enumerate(self.outcomes) if outcome is not None]
        constrained = [i for i in finished if self.preferred[i]]
        outcomes = self.complete()
        return StageMetrics(
            self.stage.index,
            self.stage.tasks,
            sum(outcome.rows for outcome in outcomes),
            sum(outcome.nbytes for outcome in outcomes),
            self.elapsed_s,
            tuple(self.run_s[i] for i in finished),
            tuple(self.queue_s[i] for i in finished),
            len(constrained),
            sum(self.nodes[i] in self.preferred[i] for i in constrained),
            self.stage.tasks - len(finished),
            tuple(self._tasks()),
            tuple(self.stage.parents),
        )

    def _tasks(self) -> Iterator[TaskMetrics]:
        completed = {e.task_id: e for e in self.events if isinstance(e, TaskCompleted)}
        reasons = explain(self.job, self.events) if self.job.options.explain else {}
        for index, outcome in enumerate(self.outcomes):
            if outcome is None:
                continue
            event, preferred = completed[index], self.preferred[index]
            yield TaskMetrics(
                event.node,
                event.executor,
                event.attempt,
                outcome.rows,
                outcome.nbytes,
                event.run_s,
                event.queue_s,
                event.node in preferred if preferred else None,
                tuple(reasons[index].lines()) if index in reasons else (),
            )


@dataclass(slots=True)
class QueryRun:
    """One execution of a query.

    Attributes:
        stages: the stages, in an order in which they can run; the last gives the result.
        tables: the tables that they read, by name in lower case, as they were when planned.
        backend: where tasks run.
        store: where results are read from.
        placement: how tasks are placed.
        folder: where the query's files go, relative to a node's storage folder.
        ending: what becomes of the last stage's rows.
        settings: SET statements that hold for the query.
        definitions: statements that make what a whole statement may name: views, macros, types.
        scalars: Python functions that SQL may call.
        on_progress: hears how far the query is, at least once a second; what it raises ends the
            query.
        explained: whether the metrics tell why each task ran where it did.
    """

    stages: Sequence[Stage]
    tables: Mapping[str, Table]
    backend: Backend
    store: Store
    placement: Placement
    folder: str
    ending: Ending
    settings: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    scalars: tuple[ScalarFunction, ...] = ()
    on_progress: ProgressHandler | None = None
    explained: bool = False
    _runs: dict[int, _StageRun] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)
    _events: queue.SimpleQueue[tuple[int, JobEvent]] = field(default_factory=queue.SimpleQueue)
    _started_s: float = field(default_factory=time.perf_counter)

    def run(self) -> None:
        """Run all stages.

        Raises:
            FragmentRejectedError: DuckDB did not accept a fragment.
            ExecutionError: a task failed for good.
            ClusterError: there is nobody left to run tasks.
        """
        try:
            self._start_ready()
            last = self.stages[-1].index
            while last not in self._done:
                self._report()
                self._handle_next()
        except BaseException:
            self._cancel()
            raise

    def outcomes(self) -> list[tuple[TaskOutcome, str]]:
        """What each task of the last stage has done, and on which node."""
        return self._runs[self.stages[-1].index].output()

    def result(self) -> pa.Table:
        """The rows that were gathered.

        Raises:
            ExecutionError: they have other columns than the query had when it was planned.
        """
        tables = [self._read(outcome, node) for outcome, node in self.outcomes()]
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
        read = (self._read(outcome, node) for outcome, node in self.outcomes())
        tables = deque(map(self._named, read))
        self.store.forget(self.folder)
        return pa.RecordBatchReader.from_batches(tables[0].schema, _drained(tables))

    def metrics(self) -> tuple[StageMetrics, ...]:
        """The figures of every stage that has completed."""
        return tuple(self._runs[i].metrics() for i in sorted(self._done))

    def progress(self) -> QueryProgress:
        """How far the query is."""
        stages = tuple(self._stage_progress(stage) for stage in self.stages)
        return QueryProgress(stages, time.perf_counter() - self._started_s)

    def _stage_progress(self, stage: Stage) -> StageProgress:
        run = self._runs.get(stage.index)
        outcomes = run.complete() if run is not None else []
        rows = sum(outcome.rows for outcome in outcomes)
        done = stage.tasks if stage.index in self._done else len(outcomes)
        return StageProgress(stage.index, stage.tasks, done, rows, run is not None)

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.progress())

    def uses_disk(self) -> bool:
        """Whether an output had to go to disk."""
        outcomes = (o for run in self._runs.values() for o in run.complete())
        return any(outcome.on_disk for outcome in outcomes)

    def _start_ready(self) -> None:
        for stage in self.stages:
            if stage.index not in self._runs and self._done.issuperset(stage.parents):
                self._start(stage)

    def _start(self, stage: Stage) -> None:
        tables = {
            item.name: self.tables[item.table.lower()]
            for item in stage.inputs
            if isinstance(item, TableInput)
        }
        preferred = tuple(self._preferred(stage, tables, index) for index in range(stage.tasks))
        every = frozenset(self.placement.nodes)
        tasks = tuple(
            TaskSpec(
                index,
                encode(self._payload(stage, tables, index)),
                _constraint(nodes, every),
                self.placement.wait_s,
            )
            for index, nodes in enumerate(preferred)
        )
        job = JobSpec(
            tasks,
            shared=encode(self._stage_task(stage, tables)),
            user=self.placement.user,
            placement=self.placement.policy,
            probe_ratio=self.placement.probe_ratio,
            options=JobOptions(explain=self.explained),
        )
        run = _StageRun(
            stage,
            preferred,
            time.perf_counter(),
            [None] * stage.tasks,
            [""] * stage.tasks,
            [0.0] * stage.tasks,
            [0.0] * stage.tasks,
            # The payloads have been sent; what remains tells why tasks ran where they did.
            structs.replace(job, tasks=tuple(_without_payload(task) for task in tasks), shared=b""),
        )
        self._runs[stage.index] = run
        run.job_id = self.backend.submit(job, partial(_tagged, self._events, stage.index))

    def _is_last(self, stage: Stage) -> bool:
        return stage.index == self.stages[-1].index

    def _preferred(self, stage: Stage, tables: Mapping[str, Table], index: int) -> frozenset[str]:
        nodes = preferred_nodes(stage, tables, index)
        if hosts := hosts_of(self.placement.nodes, self.placement.peers):
            close = near(self._holdings(stage, tables, index), hosts)
            nodes = (nodes & close) or close or nodes
        return self.ending.nodes(nodes, index) if self._is_last(stage) else nodes

    def _holdings(self, stage: Stage, tables: Mapping[str, Table], index: int) -> Iterator[Holding]:
        """What task `index` reads, and where it lies."""
        for item in stage.inputs:
            if isinstance(item, TableInput):
                for partition in read_partitions(item, tables, index):
                    yield partition.holders, partition.bytes
            else:
                run = self._runs[item.stage]
                yield from stage_holdings(run.complete(), run.nodes, item.mode, index)

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
            stage.sql,
            types,
            shared,
            output,
            self.folder,
            f"{stage.index}-",
            stage.buckets,
            prelude=self.settings + (self.definitions if stage.is_statement else ()),
            rows=stage.plan.rows / stage.tasks,
            aggregates_early=stage.aggregates_early,
            peers=self.placement.peers,
            scalars=self._called_in(stage),
            working_folder=_working_folder(),
        )
        return self.ending.stage(task, stage.schema) if self._is_last(stage) else task

    def _called_in(self, stage: Stage) -> tuple[ScalarFunction, ...]:
        """The Python functions that a stage may call; a whole statement may by way of a macro."""
        text = stage.sql.lower()
        return tuple(f for f in self.scalars if stage.is_statement or f.name in text)

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
        return self.ending.payload(payload) if self._is_last(stage) else payload

    def _slices(
        self, item: TableInput | StageInput, tables: Mapping[str, Table], index: int
    ) -> tuple[FileSlice, ...]:
        if isinstance(item, TableInput):
            return tuple(FileSlice(p.file, p.holders) for p in read_partitions(item, tables, index))
        outcomes, nodes = zip(*self._runs[item.stage].output(), strict=True)
        return stage_slices(outcomes, nodes, item.mode, index)

    def _handle_next(self) -> None:
        try:
            index, event = self._events.get(timeout=_POLL_S)
        except queue.Empty:
            return
        if index in self._done:  # its other tasks were not needed
            return
        run = self._runs[index]
        match event:
            case TaskCompleted():
                run.outcomes[event.task_id] = decode_outcome(event.result)
                run.nodes[event.task_id] = event.node
                run.run_s[event.task_id] = event.run_s
                run.queue_s[event.task_id] = event.queue_s
                run.events.append(structs.replace(event, result=b""))
                if run.has_enough():
                    assert run.job_id is not None
                    self.backend.cancel(run.job_id)
                    self._finish(run)
            case JobFinished():
                run.events.append(event)
                self._finish(run)
            case TaskFailed():
                raise task_error(event, is_own_text=run.stage.is_statement)
            case JobFailed():
                raise job_error(event)

    def _finish(self, run: _StageRun) -> None:
        run.elapsed_s = time.perf_counter() - run.started_s
        self._done.add(run.stage.index)
        self._start_ready()

    def _read(self, outcome: TaskOutcome, node: str) -> pa.Table:
        if outcome.inline is not None:
            return pa.ipc.open_stream(outcome.inline).read_all()
        assert outcome.file is not None
        try:
            return self.store.read((FileSlice(outcome.file, (node,)),))
        except InputMissingError as error:
            raise TasksLostError(f"A part of the result is gone: {error}.") from error

    def _cancel(self) -> None:
        """Stop what is still running, and wait a little until it has stopped."""
        open_jobs = {i: r.job_id for i, r in self._runs.items() if i not in self._done and r.job_id}
        for job_id in open_jobs.values():
            self.backend.cancel(job_id)
        deadline = time.monotonic() + _CANCEL_WAIT_S
        while open_jobs and time.monotonic() < deadline:
            try:
                index, event = self._events.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, JobFinished | JobFailed):
                open_jobs.pop(index, None)


def _without_payload(task: TaskSpec) -> TaskSpec:
    return structs.replace(task, payload=b"")


def _drained(tables: deque[pa.Table]) -> Iterator[pa.RecordBatch]:
    while tables:
        yield from tables.popleft().to_batches()


def _tagged(events: queue.SimpleQueue[tuple[int, JobEvent]], stage: int, event: JobEvent) -> None:
    events.put((stage, event))


def _constraint(nodes: frozenset[str], every: frozenset[str]) -> tuple[NodeName, ...]:
    """Preferred nodes as a constraint; all nodes are none."""
    return () if nodes >= every else tuple(NodeName(node) for node in sorted(nodes))


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # it was removed
        return ""
