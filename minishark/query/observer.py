"""Tells the events of one query, and cancels it from other threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minishark.cluster.jobs import Job, JobFinished, TaskFailed
from minishark.errors import QueryCancelledError, QueryTimeoutError
from minishark.events import kinds
from minishark.events.traces import trace_parent
from minishark.query.metrics import QueryMetrics, RevisionMetrics, TaskMetrics
from minishark.query.operators import Measure
from minishark.query.planner import QueryPlan
from minishark.query.shown import Shown

_STEPS_MAX = 20_000
_OPERATORS_MAX = 2_000


@dataclass(slots=True, kw_only=True)
class QueryObserver:
    """Where a query's events go; safe to use from several threads.

    Attributes:
        number: of the query in its session.
        emit: takes its events.
        kind: "query" or "load".
        timed_out_s: its limit, if it was cancelled as that is over.
    """

    number: int
    emit: Callable[[kinds.AnyEvent], None]
    kind: str = "query"
    timed_out_s: float | None = None
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _revisions: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End the query; it raises QueryCancelledError soon."""
        self._cancelled.set()
        with self._lock:
            if self._stop is not None:
                self._stop()

    @contextlib.contextmanager
    def limited_to(self, seconds: float | None) -> Iterator[None]:
        """A block that is cancelled after so long; it raises QueryTimeoutError then."""
        if seconds is None:
            yield
            return
        within_s = min(seconds, threading.TIMEOUT_MAX)  # it may be infinite
        timer = threading.Timer(within_s, self._time_out, (seconds,))
        timer.daemon = True
        timer.start()
        try:
            yield
        except QueryCancelledError as error:
            if self.timed_out_s is None:
                raise
            raise QueryTimeoutError(
                f"The {self.kind} took longer than query_timeout_s, {seconds:g} s, and was "
                "cancelled."
            ) from error
        finally:
            timer.cancel()

    def _time_out(self, seconds: float) -> None:
        self.timed_out_s = seconds
        self.cancel()

    @contextlib.contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """A block in which nobody calls `check`: cancelling calls `stop`, and never after it."""
        with self._lock:
            self.check()
            self._stop = stop
        try:
            yield
        finally:
            with self._lock:
                self._stop = None

    def check(self) -> None:
        """Raise QueryCancelledError if the query or load was cancelled."""
        if self._cancelled.is_set():
            raise QueryCancelledError(f"The {self.kind} was cancelled.")

    def started(self, sql: str) -> None:
        """The query was asked for."""
        text = kinds.shortened(sql)
        self.emit(
            kinds.QueryStarted(
                at=time.time(),
                query=self.number,
                sql=text,
                trace_parent=trace_parent(),
                kind=self.kind,
            )
        )

    def planned(self, plan: QueryPlan, planning_s: float) -> None:
        """There is a plan, the first or a new one."""
        nodes, stages = plan.shown
        self.emit(
            kinds.QueryPlanned(
                at=time.time(), query=self.number, planning_s=planning_s, plan=nodes, stages=stages
            )
        )

    def divided(self, stages: Mapping[int, tuple[str, int]]) -> None:
        """The stages of a load, which has no plan: what they do, and their tasks.

        Each reads the one before it.
        """
        plans = tuple(
            kinds.StagePlan(
                stage=stage,
                tasks=tasks,
                does=does,
                reads=tuple(each for each in stages if each == stage - 1),
            )
            for stage, (does, tasks) in stages.items()
        )
        self.emit(kinds.QueryPlanned(at=time.time(), query=self.number, stages=plans))

    def revised(self, revisions: Sequence[RevisionMetrics], plan: Shown) -> None:
        """The plan was changed while the query ran; `revisions` are all changes so far."""
        new, self._revisions = revisions[self._revisions :], len(revisions)
        for each in new:
            self.emit(
                kinds.QueryPlanned(
                    at=time.time(),
                    query=self.number,
                    plan=plan[0],
                    stages=plan[1],
                    rule=each.rule,
                    reason=each.reason,
                )
            )

    def tag(self, stage: int) -> kinds.StageTag:
        """By what the jobs of a stage are known again."""
        return kinds.StageTag(query=self.number, stage=stage)

    def submitted(self, stage: int, tasks: int, again: int) -> None:
        """Tasks of a stage run as a job; `again` of them had completed before."""
        self.emit(
            kinds.StageStarted(
                at=time.time(), query=self.number, stage=stage, tasks=tasks, again=again
            )
        )

    def completed(self, stage: int, task: int, figures: TaskMetrics) -> None:
        """A task has completed."""
        self.emit(
            kinds.TaskEnded(
                at=time.time(),
                query=self.number,
                stage=stage,
                task=task,
                node=figures.node,
                executor=figures.executor,
                attempt=figures.attempt,
                rows=figures.rows,
                bytes=figures.bytes,
                disk_bytes=figures.disk_bytes,
                run_s=figures.run_s,
                queue_s=figures.queue_s,
                local=figures.local,
            )
        )

    def failed(self, stage: int, event: TaskFailed) -> None:
        """A task has failed for good."""
        self.emit(
            kinds.TaskFailed(
                at=time.time(),
                query=self.number,
                stage=stage,
                task=event.task_id,
                node=event.node,
                executor=event.executor,
                message=kinds.shortened(event.message, 1_000),
            )
        )

    def finished(
        self,
        stage: int,
        elapsed_s: float,
        job: Job | None,
        event: JobFinished,
        measures: Sequence[Measure] = (),
    ) -> None:
        """A stage's job has ended; its placement is told of a `job`.

        `measures` say what the stage's operators did, if that was measured.
        """
        if event.placement and job is not None:
            waits = (task.wait_s for task in job.tasks if task.preferred_nodes)
            self.emit(
                kinds.StagePlaced(
                    at=time.time(),
                    query=self.number,
                    stage=stage,
                    tasks=tuple(task.task_id for task in job.tasks),
                    steps=event.placement[:_STEPS_MAX],
                    preferred={
                        task.task_id: task.preferred_nodes
                        for task in job.tasks
                        if task.preferred_nodes
                    },
                    wait_s=next(waits, None),
                    requires=job.options.requires,
                )
            )
        self.emit(
            kinds.StageEnded(
                at=time.time(),
                query=self.number,
                stage=stage,
                elapsed_s=elapsed_s,
                operators=tuple(
                    kinds.OperatorFigures(each.rows, each.run_s, each.cut)
                    for each in measures[:_OPERATORS_MAX]
                ),
            )
        )

    def loaded(self, elapsed_s: float) -> None:
        """The table is stored."""
        self.emit(
            kinds.QueryEnded(
                at=time.time(),
                query=self.number,
                state="done",
                elapsed_s=elapsed_s,
                kind=self.kind,
            )
        )

    def ended(self, metrics: QueryMetrics) -> None:
        """The query has its answer."""
        self.emit(
            kinds.QueryEnded(
                at=time.time(),
                query=self.number,
                state="done",
                elapsed_s=metrics.elapsed_s,
                planning_s=metrics.planning_s,
                warnings=metrics.warnings,
                in_front_end=not metrics.by_stage,
            )
        )

    def raised(self, error: BaseException, elapsed_s: float) -> None:
        """The query has failed, or was cancelled."""
        cancelled = isinstance(error, QueryCancelledError | KeyboardInterrupt)
        self.emit(
            kinds.QueryEnded(
                at=time.time(),
                query=self.number,
                state="cancelled" if cancelled else "failed",
                elapsed_s=elapsed_s,
                error=kinds.message(error),
                kind=self.kind,
            )
        )
