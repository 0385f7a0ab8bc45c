"""What happened to a stage's tasks, for the figures of its query."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import structs

from minishark.cluster.backend import JobEvent
from minishark.compiler.stages.stage import Stage
from minishark.query.metrics import StageMetrics, TaskMetrics
from minishark.worker.protocol import TaskOutcome
from sparrow_core import JobFinished, JobSpec, TaskCompleted, TaskSpec, explain


@dataclass(slots=True)
class _Job:
    """A job of the stage, without what its tasks were given, and its events without results."""

    spec: JobSpec
    events: list[JobEvent] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class StageRecord:
    """A stage and its jobs: one, or more if outputs had to be made again.

    Attributes:
        stage: the stage.
    """

    stage: Stage
    _jobs: dict[int, _Job] = field(default_factory=dict)
    _outcomes: dict[int, TaskOutcome] = field(default_factory=dict)
    _completed: dict[int, TaskCompleted] = field(default_factory=dict)
    _preferred: dict[int, frozenset[str]] = field(default_factory=dict)
    _started_s: float = field(default_factory=time.perf_counter)
    _elapsed_s: float = 0.0

    def submitted(self, number: int, job: JobSpec, preferred: dict[int, frozenset[str]]) -> None:
        """A job of the stage starts; its tasks prefer nodes as far as these are named."""
        # What remains of it tells why tasks ran where they did.
        tasks = tuple(map(_without_payload, job.tasks))
        self._jobs[number] = _Job(structs.replace(job, tasks=tasks, shared=b""))
        self._preferred.update(preferred)

    def completed(self, number: int, event: TaskCompleted, outcome: TaskOutcome) -> None:
        """A task has been completed."""
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
        """Whether an output had to go to disk."""
        return any(outcome.on_disk for outcome in self._outcomes.values())

    def metrics(self, rerun: int) -> StageMetrics:
        """The figures; `rerun` outputs were lost and computed again."""
        finished = sorted(self._outcomes)
        outcomes = [self._outcomes[i] for i in finished]
        events = [self._completed[i] for i in finished]
        constrained = [i for i in finished if self._preferred.get(i)]
        return StageMetrics(
            index=self.stage.index,
            tasks=self.stage.tasks,
            rows=sum(outcome.rows for outcome in outcomes),
            bytes=sum(outcome.nbytes for outcome in outcomes),
            elapsed_s=self._elapsed_s,
            run_s=tuple(event.run_s for event in events),
            queue_s=tuple(event.queue_s for event in events),
            constrained_tasks=len(constrained),
            local_tasks=sum(self._completed[i].node in self._preferred[i] for i in constrained),
            skipped_tasks=self.stage.tasks - len(finished),
            by_task=tuple(self._tasks(finished)),
            after=tuple(self.stage.parents),
            remade_tasks=rerun,
            disk_bytes=sum(outcome.nbytes for outcome in outcomes if outcome.on_disk),
        )

    def _tasks(self, finished: list[int]) -> Iterator[TaskMetrics]:
        reasons = {}
        for job in self._jobs.values():
            if job.spec.options.explain:
                reasons.update(explain(job.spec, job.events))
        for index in finished:
            event, outcome = self._completed[index], self._outcomes[index]
            preferred = self._preferred.get(index)
            yield TaskMetrics(
                node=event.node,
                executor=event.executor,
                attempt=event.attempt,
                rows=outcome.rows,
                bytes=outcome.nbytes,
                run_s=event.run_s,
                queue_s=event.queue_s,
                local=event.node in preferred if preferred else None,
                why=tuple(reasons[index].lines()) if index in reasons else (),
            )


def _without_payload(task: TaskSpec) -> TaskSpec:
    return structs.replace(task, payload=b"")
