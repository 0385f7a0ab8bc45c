"""Records the events of a stage's jobs, from which its metrics are made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import structs

from minishark.cluster.jobs import Job, JobEvent, JobFinished, TaskCompleted, explain
from minishark.compiler.stages.stage import Stage
from minishark.query.metrics import OperatorMetrics, StageMetrics, TaskMetrics
from minishark.query.operators import Measure, measured, own_operators
from minishark.query.shown import estimated_rows
from minishark.worker.protocol import TaskOutcome


def task_metrics(
    event: TaskCompleted,
    outcome: TaskOutcome,
    local: bool | None = None,
    why: tuple[str, ...] = (),
) -> TaskMetrics:
    """The metrics of a task that has completed; `local` is None without preferred nodes."""
    return TaskMetrics(
        node=event.node,
        executor=event.executor,
        attempt=event.attempt,
        rows=outcome.rows,
        bytes=outcome.nbytes,
        disk_bytes=outcome.nbytes if outcome.on_disk else 0,
        received=outcome.received,
        run_s=event.run_s,
        queue_s=event.queue_s,
        local=local,
        why=why,
    )


@dataclass(slots=True)
class _Job:
    """A job of the stage without payloads, and its events without results: both may be large."""

    spec: Job
    events: list[JobEvent] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class StageRecord:
    """A stage and its jobs: one, or more if lost outputs were computed again."""

    stage: Stage  # the stage
    # Whether the metrics say why each task ran where it did, and what operators did.
    explained: bool = False
    _jobs: dict[int, _Job] = field(default_factory=dict)
    _outcomes: dict[int, TaskOutcome] = field(default_factory=dict)
    _completed: dict[int, TaskCompleted] = field(default_factory=dict)
    _preferred: dict[int, frozenset[str]] = field(default_factory=dict)
    _started_s: float = field(default_factory=time.perf_counter)
    _elapsed_s: float = 0.0

    def submitted(self, number: int, job: Job, preferred: dict[int, frozenset[str]]) -> None:
        """A job of the stage starts; `preferred` has the preferred nodes of its tasks."""
        tasks = tuple(structs.replace(task, payload=b"") for task in job.tasks)
        self._jobs[number] = _Job(structs.replace(job, tasks=tasks, shared=b""))
        self._preferred.update(preferred)

    def completed(self, number: int, event: TaskCompleted, outcome: TaskOutcome) -> None:
        """A task has completed; a later attempt replaces an earlier one."""
        event = structs.replace(event, result=b"")
        self._jobs[number].events.append(event)
        self._completed[event.task_id] = event
        self._outcomes[event.task_id] = outcome
        self._elapsed_s = time.perf_counter() - self._started_s

    def finished(self, number: int, event: JobFinished) -> None:
        """A job has ended."""
        self._jobs[number].events.append(event)
        self._elapsed_s = time.perf_counter() - self._started_s

    def uses_disk(self) -> bool:
        """Whether an output went to disk for lack of shared memory."""
        return any(outcome.on_disk for outcome in self._outcomes.values())

    def metrics(self, rerun: int) -> StageMetrics:
        """The stage's metrics; `rerun` outputs were lost and computed again."""
        return StageMetrics(
            index=self.stage.index,
            tasks=self.stage.tasks,
            elapsed_s=self._elapsed_s,
            by_task=tuple(self._tasks()),
            after=tuple(self.stage.parents),
            remade_tasks=rerun,
            operators=tuple(self._operators()),
        )

    def measures(self) -> list[Measure]:
        """What each of its operators did, if the query is explained."""
        outcomes = (self._outcomes[index] for index in sorted(self._outcomes))
        return measured(self.stage, outcomes) if self.explained else []

    def _operators(self) -> Iterator[OperatorMetrics]:
        for (node, depth), each in zip(own_operators(self.stage), self.measures(), strict=False):
            yield OperatorMetrics(
                name=type(node.operator).__name__,
                label=node.operator.label([child.schema for child in node.children]),
                depth=depth,
                estimated_rows=estimated_rows(node),
                rows=each.rows,
                run_s=each.run_s,
                ended_early=each.cut,
            )

    def _tasks(self) -> Iterator[TaskMetrics]:
        reasons = {}
        for job in self._jobs.values() if self.explained else ():
            reasons.update(explain(job.spec, job.events))
        for index in sorted(self._outcomes):
            yield self.task(index, tuple(reasons[index].lines()) if index in reasons else ())

    def task(self, index: int, why: tuple[str, ...] = ()) -> TaskMetrics:
        """The metrics of a completed task."""
        event, preferred = self._completed[index], self._preferred.get(index)
        local = event.node in preferred if preferred else None
        return task_metrics(event, self._outcomes[index], local, why)

    def job(self, number: int) -> Job:
        """A job of the stage, without payloads."""
        return self._jobs[number].spec

    @property
    def elapsed_s(self) -> float:
        """From the stage's submission to its last completion."""
        return self._elapsed_s
