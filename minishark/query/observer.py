"""Tells the events of one query, and cancels it from other threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from minishark.cluster.job_events import Job, PlacementStep, TaskCompleted, TaskFailed
from minishark.errors import QueryCancelledError, QueryTimeoutError
from minishark.model.events import kinds
from minishark.model.events.figures import OperatorFigures, TaskFigures
from minishark.model.events.record import QueryRecord, Revision
from minishark.model.events.traces import trace_parent
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
        record: what its events say; it has no placements but those of explained queries.
        timed_out_s: its limit, if it was cancelled as that is over.
    """

    number: int
    emit: Callable[[kinds.AnyEvent], None]
    kind: str = "query"
    record: QueryRecord = field(default_factory=QueryRecord)
    timed_out_s: float | None = None
    _began_s: dict[int, float] = field(default_factory=dict)  # stages, by `perf_counter`
    _cancelled: threading.Event = field(default_factory=threading.Event)
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

    def _tell(self, event: kinds.AnyEvent) -> None:
        self.record.apply(event)
        self.emit(event)

    def started(self, sql: str) -> None:
        """The query was asked for."""
        text = kinds.shortened(sql)
        self._tell(
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
        self._began_s.clear()
        self._tell(
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
                reads=tuple(earlier for earlier in stages if earlier == stage - 1),
            )
            for stage, (does, tasks) in stages.items()
        )
        self._tell(kinds.QueryPlanned(at=time.time(), query=self.number, stages=plans))

    def revised(self, revisions: Sequence[Revision], plan: Shown) -> None:
        """The plan was changed while the query ran; `revisions` are all changes so far."""
        for rule, reason in revisions[len(self.record.revisions) :]:
            self._tell(
                kinds.QueryPlanned(
                    at=time.time(),
                    query=self.number,
                    plan=plan[0],
                    stages=plan[1],
                    rule=rule,
                    reason=reason,
                )
            )

    def tag(self, stage: int) -> kinds.StageTag:
        """By what the jobs of a stage are known again."""
        return kinds.StageTag(query=self.number, stage=stage)

    def submitted(self, stage: int, tasks: int, again: int) -> None:
        """Tasks of a stage run as a job; so far, `again` had completed before."""
        self._began_s.setdefault(stage, time.perf_counter())
        self._tell(
            kinds.StageStarted(
                at=time.time(), query=self.number, stage=stage, tasks=tasks, again=again
            )
        )

    def reused(self, event: kinds.StageReused) -> None:
        """Tasks of a stage do not run, as their outputs exist."""
        self._tell(event)

    def completed(
        self,
        stage: int,
        event: TaskCompleted,
        measured: TaskFigures,
        preferred: Collection[str] | None = None,
    ) -> None:
        """A task has completed, with the figures that its executor has `measured`.

        Args:
            stage: its stage.
            event: where and when it ran.
            measured: what it did.
            preferred: the nodes that store what it reads of tables; None if it reads nothing.
        """
        self._tell(
            kinds.TaskEnded(
                at=time.time(),
                query=self.number,
                stage=stage,
                task=event.task_id,
                figures=structs.replace(
                    measured,
                    node=event.node,
                    executor=event.executor,
                    attempt=event.attempt,
                    run_s=event.run_s,
                    queue_s=event.queue_s,
                    local=event.node in preferred if preferred else None,
                ),
            )
        )

    def failed(self, stage: int, event: TaskFailed) -> None:
        """A task has failed for good."""
        self._tell(
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

    def placed(
        self, stage: int, job: Job, steps: Sequence[PlacementStep], *, is_kept: bool
    ) -> None:
        """How a job of a stage was placed; whether that is kept in the record."""
        waits = (task.wait_s for task in job.tasks if task.preferred_nodes)
        event = kinds.StagePlaced(
            at=time.time(),
            query=self.number,
            stage=stage,
            tasks=tuple(task.task_id for task in job.tasks),
            steps=tuple(steps[:_STEPS_MAX]),
            preferred={
                task.task_id: task.preferred_nodes for task in job.tasks if task.preferred_nodes
            },
            wait_s=next(waits, None),
            requires=job.options.requires,
        )
        (self._tell if is_kept else self.emit)(event)

    def finished(self, stage: int, operators: Sequence[OperatorFigures] = ()) -> None:
        """A stage's job has ended; `operators` did this, if that was measured."""
        self._tell(
            kinds.StageEnded(
                at=time.time(),
                query=self.number,
                stage=stage,
                elapsed_s=time.perf_counter() - self._began_s[stage],
                operators=tuple(operators[:_OPERATORS_MAX]),
            )
        )

    def ended(
        self,
        elapsed_s: float,
        planning_s: float = 0.0,
        warnings: tuple[str, ...] = (),
        *,
        in_front_end: bool = False,
    ) -> QueryRecord:
        """The query has its answer, or the table is stored; returns the record, which is whole."""
        self._tell(
            kinds.QueryEnded(
                at=time.time(),
                query=self.number,
                state="done",
                elapsed_s=elapsed_s,
                planning_s=planning_s,
                warnings=warnings,
                in_front_end=in_front_end,
                kind=self.kind,
            )
        )
        return self.record

    def raised(self, error: BaseException, elapsed_s: float) -> None:
        """The query has failed, or was cancelled."""
        cancelled = isinstance(error, QueryCancelledError | KeyboardInterrupt)
        self._tell(
            kinds.QueryEnded(
                at=time.time(),
                query=self.number,
                state="cancelled" if cancelled else "failed",
                elapsed_s=elapsed_s,
                error=kinds.message(error),
                kind=self.kind,
            )
        )
