"""Runs the stages of one query on a cluster and gathers the answer.

A stage starts when those that it reads are complete; all that can start, start together. Outputs
that are lost with nodes are computed again by the tasks that made them (`stage_graph` decides
which).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
from msgspec import structs

from minishark.cluster.backend import (
    Backend,
    Files,
    FilesLostError,
    OnPrint,
    Placement,
    Workplace,
    printed_by,
    task_error,
)
from minishark.cluster.job_events import (
    Job,
    JobEvent,
    JobFinished,
    PlacementStep,
    TaskCompleted,
    TaskFailed,
)
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput
from minishark.errors import ExecutionError, TasksLostError
from minishark.model.catalog import Table
from minishark.model.events.kinds import AnyEvent
from minishark.query.adaptation import Adaptation
from minishark.query.clock import SYSTEM_CLOCK, Clock
from minishark.query.inputs import lost_partitions, output_file
from minishark.query.job_builder import NO_NAMES, Environment, JobBuilder
from minishark.query.limits import DiskUse
from minishark.query.observer import QueryObserver
from minishark.query.progress import ProgressHandler, QueryProgress, StageProgress
from minishark.query.questions import Question
from minishark.query.reuse import Reuse
from minishark.query.reused import ReusedOutputs, reused_event
from minishark.query.shown import operator_figures, shown
from minishark.query.sinks import Output, Sink
from minishark.query.stage_graph import Read, StageGraph, StageNode, Submission, TaskOutput
from minishark.query.stage_jobs import StageJobs
from minishark.worker.prints import PRINTED_AFTER_S, PRINTS_FOLDER, PrintedFiles
from minishark.worker.progress import parts_done
from minishark.worker.protocol import (
    FileSlice,
    KeptOutput,
    OutputKind,
    StageTask,
    TaskOutcome,
    decode_outcome,
)
from minishark.worker.store import InputMissingError, Store

Result = TypeVar("Result")
_KEPT = (OutputKind.PARTITION, OutputKind.FILES)
"""Outputs that are what the user asked for: no query takes them for itself."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where jobs run."""

    backend: Backend  # takes jobs
    # Gives the placement over the nodes that are alive now, which have the folders that the jobs
    # write to.
    placement: Callable[[], Placement]
    # Of some nodes, those known to have lost their files.
    lost_nodes: Callable[[Collection[str]], Collection[str]] = lambda _: ()
    clock: Clock = SYSTEM_CLOCK


def site_of(
    cluster: Workplace,
    placement: Callable[[], Placement],
    *folders: str,
    clock: Clock = SYSTEM_CLOCK,
) -> Site:
    """Where jobs run that write to these folders: on nodes that have them."""

    def placed() -> Placement:
        site = placement()
        cluster.make_folder(*folders)
        return site

    return Site(cluster.backend, placed, cluster.lost_nodes, clock)


@contextlib.contextmanager
def query_folder(cluster: Files, number: int) -> Iterator[str]:
    """A folder for the files of one query, removed afterwards."""
    folder = cluster.folder(f"queries/{number}")
    try:
        yield folder
    finally:
        cluster.remove_folder(folder)


_LOOK_S = 0.5  # between looks at what tasks print


@dataclass(slots=True, kw_only=True)
class QueryRun:
    """One execution of a query."""

    stages: Sequence[Stage]  # the stages, in topological order; the last gives the result
    # Gives the tables that they read, by name in lower case, as they were when planned, with their
    # current locations.
    tables: Callable[[], Mapping[str, Table]]
    site: Site  # where jobs run
    store: Store  # where results are read from
    folder: str  # the query's folder for outputs, relative to a node's storage folder
    output: Output  # what the last stage's tasks do with their rows
    # The session's settings, definitions and functions.
    environment: Environment = field(default_factory=Environment)
    threads: int = 1  # the number of threads for a large task that is alone in its stage
    is_alone: bool = False  # whether it is the only query of its session that is open
    # Whether the metrics say why each task ran where it did, and what operators did.
    explained: bool = False
    traced: bool = False  # whether the observer is told how tasks were placed
    # Called at least once a second; what it raises ends the query.
    on_progress: ProgressHandler | None = None
    # Revises the stages that have not started when one is complete; None for never.
    adaptation: Adaptation | None = None
    # Told what happens; it may end the query.
    observer: QueryObserver = field(default_factory=lambda: QueryObserver(number=0, emit=_unheard))
    on_print: OnPrint | None = None  # takes what user code prints in tasks
    printed: PrintedFiles = field(default_factory=PrintedFiles)  # reads what they print meanwhile
    disk: DiskUse = field(default_factory=lambda: DiskUse(None))
    reuse: Reuse | None = None  # outputs that others have computed; None to compute all
    made_by: str = ""  # which query it is, for those who take its outputs
    question: Question | None = None  # that it answers, if that has a name
    _reused: ReusedOutputs | None = None
    _answer: list[TaskOutput] | None = None  # the last stage's outputs, if all were taken
    _looked_s: float = 0.0
    # By stage, the nodes that store what its tasks read of tables.
    _preferred: dict[int, dict[int, frozenset[str]]] = field(default_factory=dict)
    _explained_jobs: dict[int, Job] = field(default_factory=dict)  # by submission
    _by_index: dict[int, Stage] = field(init=False)
    _graph: StageGraph = field(init=False)
    _builder: JobBuilder = field(init=False)
    _jobs: StageJobs = field(init=False)
    _stored: Mapping[str, Table] = field(init=False)
    _placement: Placement = field(init=False)
    _started_s: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._by_index = {stage.index: stage for stage in self.stages}
        self._graph = StageGraph([self._node(stage) for stage in self.stages])
        self._builder = JobBuilder(
            graph=self._graph,
            last=self._last.index,
            output=self.output,
            folder=self.folder,
            working_folder=working_folder(),
            environment=self.environment,
            threads=self.threads,
            traced=self.explained or self.traced,
            profiled=self.explained,
            is_alone=self.is_alone,
            kept="" if self.reuse is None else self.reuse.folder,
        )
        if self.reuse is not None:
            self._reused = ReusedOutputs(
                reuse=self.reuse,
                graph=self._graph,
                described=self._described,
                made_by=self.made_by,
                lost_nodes=self.site.lost_nodes,
                on_complete=self._adapt,
                on_taken=self._taken,
                question=self.question,
                columns=self.output.names,
            )
        self._jobs = StageJobs(
            graph=self._graph,
            sharing=self._reused,
            backend=self.site.backend,
            work=self,
            lost_nodes=self.site.lost_nodes,
            clock=self.site.clock,
        )

    @property
    def _last(self) -> Stage:
        return self.stages[-1]

    def _node(self, stage: Stage) -> StageNode:
        reads = [item for item in stage.inputs if isinstance(item, StageInput)]
        return StageNode(
            index=stage.index,
            tasks=stage.tasks,
            reads=tuple(Read(item.stage, item.mode is ReadMode.OWN) for item in reads),
            varies=stage.varies or any(f.volatile for f in self.environment.called_by(stage)),
            enough_rows=stage.enough_rows,
            after=stage.after,
        )

    def _described(self, stage: Stage) -> StageTask:
        return self._builder.described(stage)  # which may be another one by then

    def run(self) -> None:
        """Run all stages; outputs that are lost meanwhile are computed again.

        Raises:
            FragmentRejectedError: DuckDB did not accept a fragment.
            PartitionsLostError: all replicas of a table's partitions are gone.
            ExecutionError: a task failed for good, or too much was lost.
            ClusterError: no node is left to run tasks.
        """
        self.renew()
        if self._reused is not None:
            self._reused.plan(self.stages, self._stored)
            self._answer = self._reused.answer(self.stages)
        try:
            if self._answer is None:
                self._run_jobs()
        finally:
            self._look_for_prints()
            self.printed.remove()

    def _run_jobs(self) -> None:
        self._jobs.run()
        if self._reused is not None:
            self._reused.finished(self._last)

    def close(self) -> None:
        """Nobody reads its outputs any more."""
        if self._reused is not None:
            self._reused.close()

    def finished(self, sink: Sink[Result]) -> Result:
        """What a sink makes of the outputs; those that it finds lost are computed again.

        Raises:
            MinisharkError: as `run` does.
        """
        while True:
            try:
                return sink.finish(self)
            except InputMissingError as missing:
                self._run_again(FilesLostError(missing.files))
            except FilesLostError as lost:
                self._run_again(lost)

    def _run_again(self, lost: FilesLostError) -> None:
        """Compute outputs of the last stage again that were lost after `run`."""
        if self._answer is not None and self._reused is not None:
            self._reused.lost(item.file for item in lost.files)
            self._answer = None
        else:
            self._jobs.lose(lost.files, str(lost))
        self._run_jobs()

    # Results

    def outcomes(self) -> list[tuple[TaskOutcome, str]]:
        """The outcome of each task of the last stage, and its node."""
        outputs = self._answer or self._graph.outputs(self._last.index)
        return [(output.outcome, output.node) for output in outputs]

    def result(self) -> pa.Table:
        """The gathered rows.

        Raises:
            ExecutionError: they have other columns than the query had when it was planned.
        """
        tables = self._outputs()
        filled = [table for table in tables if table.num_rows] or tables[:1]
        return self._named(pa.concat_tables(filled))

    def batches(self) -> pa.RecordBatchReader:
        """The gathered rows as a stream.

        The files stay mapped when the query's folder is gone; each is unmapped when its rows have
        been read, or with the reader.

        Raises:
            ExecutionError: they have other columns than the query had when it was planned.
        """
        tables = deque(map(self._named, self._outputs()))
        self.store.forget(self.folder)
        return pa.RecordBatchReader.from_batches(tables[0].schema, _drained(tables))

    def pieces(self) -> list[FileSlice | pa.Table]:
        """The last stage's outputs: where each is stored, or itself if it came in a message."""
        return [
            output_file(outcome, node) if outcome.inline is None else self._read(outcome, node)
            for outcome, node in self.outcomes()
        ]

    def _named(self, table: pa.Table) -> pa.Table:
        """A task's rows under the column names that users know.

        A whole statement resolves files again when it runs; they may have changed since.
        """
        names = list(self.output.names)
        whole = self._last.is_statement and self.output.function is None
        if table.num_columns != len(names) or (whole and table.column_names != names):
            raise ExecutionError(
                f"The query returned the columns {', '.join(table.column_names)}, but was planned "
                f"with {', '.join(names)}: what it reads has changed. Run it again."
            )
        return table.rename_columns(names)

    def _outputs(self) -> list[pa.Table]:
        """The last stage's outputs."""
        return [self._read(outcome, node) for outcome, node in self.outcomes()]

    def _read(self, outcome: TaskOutcome, node: str) -> pa.Table:
        if outcome.inline is not None:
            return pa.ipc.open_stream(outcome.inline).read_all()
        return self.store.read((output_file(outcome, node),))

    # Figures

    def _taken(self, stage: int, outputs: Sequence[KeptOutput], *, is_answer: bool) -> None:
        """Outputs of a stage were taken."""
        number = self.observer.number
        self.observer.reused(reused_event(number, stage, outputs, is_answer=is_answer))

    def progress(self) -> QueryProgress:
        """How far the query is."""
        stages = tuple(self._stage_progress(stage) for stage in self.stages)
        elapsed_s = time.perf_counter() - self._started_s
        return QueryProgress(stages, elapsed_s, self.observer.number)

    def _stage_progress(self, stage: Stage) -> StageProgress:
        record = self.observer.record.stage(stage.index)
        is_done = self._graph.done(stage.index)
        done = stage.tasks if is_done else len(self._graph.outputs(stage.index))
        started = record.began_s > 0
        return StageProgress(
            index=stage.index,
            tasks=stage.tasks,
            done=done,
            figures=record.totals,
            started=started,
            running=self._running(stage) if started and done < stage.tasks else 0.0,
        )

    def _running(self, stage: Stage) -> float:
        """How much of the tasks that run is done, as far as this host knows."""
        parts: dict[int, float] = {}
        for node in self._placement.nodes:
            folder = self.store.in_memory(self.folder, node)
            for index, part in parts_done(folder, self._builder.prefix(stage)).items():
                if index < stage.tasks and self._graph.at(stage.index, index) is None:
                    parts[index] = max(part, parts.get(index, 0.0))
        return sum(parts.values())

    # The protocol that `StageJobs` drives

    def job(self, submission: Submission) -> Job:
        """Tasks of a stage, as a job."""
        stage = self._by_index[submission.stage]
        names = NO_NAMES if self._reused is None else self._reused.names_of(submission)
        job, preferred = self._builder.job(stage, submission, self._stored, self._placement, names)
        self._preferred.setdefault(stage.index, {}).update(preferred)
        self.observer.submitted(stage.index, stage.tasks, self._graph.rerun(stage.index))
        if self.explained or self.traced:  # without payloads, which may be large
            tasks = tuple(structs.replace(task, payload=b"") for task in job.tasks)
            kept = structs.replace(job, tasks=tasks, shared=b"")
            self._explained_jobs[submission.number] = kept
        return structs.replace(job, tag=self.observer.tag(stage.index))

    def task_output(self, submission: Submission, event: TaskCompleted) -> TaskOutput:
        """What a task has put out, and where it is stored."""
        outcome = decode_outcome(event.result)
        is_last = submission.stage == self._last.index
        # Inline results and files for users do not go with a node.
        safe = outcome.file is None or (is_last and self.output.kind is OutputKind.FILES)
        locations = () if safe else outcome.locations or (event.node,)
        output = TaskOutput(outcome, event.node, locations)
        if self._reused is None:
            return output
        return self._reused.completed(submission.stage, event, output)

    def on_event(self, submission: Submission, event: JobEvent) -> None:
        """Record what a task or job did."""
        index = submission.stage
        if isinstance(event, TaskCompleted):
            output = self._graph.at(index, event.task_id)
            assert output is not None, "the graph hears of a completion first"
            preferred = self._preferred[index].get(event.task_id)
            self.observer.completed(index, event, output.outcome.figures, preferred)
            self._show(event.executor, output.outcome.printed)
            if index != self._last.index or self.output.kind not in _KEPT:
                self.disk.add(output.outcome)
            missing = (task for task in submission.tasks if self._graph.at(index, task) is None)
            if self._graph.has_enough(index) and any(True for _ in missing):
                self._ended(submission, ())  # the others are cancelled, so its job tells no more
        elif isinstance(event, JobFinished):
            self._ended(submission, event.placement)
            self._adapt(index)

    def _ended(self, submission: Submission, placement: Sequence[PlacementStep]) -> None:
        """A stage has what it needs of a job, which was placed so."""
        index = submission.stage
        job = self._explained_jobs.pop(submission.number, None)
        if job is not None and (placement or self.explained):
            self.observer.placed(index, job, placement, is_kept=self.explained)
        outcomes = [output.outcome for output in self._graph.outputs(index)]
        is_complete = self._graph.done(index) or self._graph.has_enough(index)
        is_measured = self.explained and is_complete
        stage = self._by_index[index]
        self.observer.finished(index, operator_figures(stage, outcomes) if is_measured else ())

    def _adapt(self, stage: int) -> None:
        """Revise what is left of the query if the size of a stage has become known."""
        adaptation = self.adaptation
        if adaptation is None or not self._graph.done(stage):
            return
        outcomes = [output.outcome for output in self._graph.outputs(stage)]
        if not adaptation.complete(stage, outcomes, may_vary=self._graph.may_vary(stage)):
            return
        stages = adaptation.revised(self.stages, self._graph.started)
        if stages is not self.stages:
            self.stages = stages
            self._by_index = {stage.index: stage for stage in stages}
            self._graph.revise([self._node(stage) for stage in stages])
            self._builder = replace(self._builder, last=self._last.index)
            if self._reused is not None:
                self._reused.plan(stages, self._stored)
            plan = shown(adaptation.executed(stages), stages, self._stored)
            self.observer.revised(adaptation.revisions, plan)

    def failure(self, submission: Submission, event: TaskFailed) -> Exception:
        """The error of a task that failed for good."""
        self.observer.failed(submission.stage, event)
        self._show(event.executor, printed_by(event))
        return task_error(event, is_own_text=self._by_index[submission.stage].is_statement)

    def inputs_lost(self, files: Sequence[FileSlice]) -> TasksLostError:
        """The error for table partitions that are gone."""
        errors = (lost_partitions(table, files) for table in self._stored.values())
        return next((error for error in errors if error is not None), FilesLostError(files))

    def renew(self) -> None:
        """Look up the live nodes and the locations of tables."""
        self._placement = self.site.placement()
        self._stored = self.tables()

    def waiting(self) -> None:
        """Report progress; ends the run if it was cancelled."""
        self.observer.check()
        if self.on_progress is not None:
            self.on_progress(self.progress())
        if time.perf_counter() > self._looked_s + _LOOK_S:
            self._look_for_prints()
        if self._reused is not None:
            self._reused.look()

    def _show(self, executor: str, printed: str) -> None:
        if printed and self.on_print is not None:
            self._look_for_prints()  # which were before
            self.on_print(executor, printed)

    def _look_for_prints(self) -> None:
        """Show what tasks have printed that run still, or were lost."""
        now = time.perf_counter()
        if self.on_print is None or now < self._started_s + PRINTED_AFTER_S:
            return
        self._looked_s = now
        folders = [
            self.store.in_memory(f"{folder}/{PRINTS_FOLDER}", node)
            for folder in dict.fromkeys((self.folder, self.output.folder or self.folder))
            for node in self._placement.nodes
        ]
        for executor, text in self.printed.new(folders):
            self.on_print(executor, text)


def _unheard(event: AnyEvent) -> None:
    """Nobody listens."""


def _drained(tables: deque[pa.Table]) -> Iterator[pa.RecordBatch]:
    while tables:
        yield from tables.popleft().to_batches()


def working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # it was removed
        return ""
