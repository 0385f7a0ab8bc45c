"""The client: submits jobs to schedulers in turn, gathers results, moves jobs off lost schedulers.

    submitting ──JobAccepted──▶ open ──all results──▶ JobFinished
        │  ▲ no answer: again,   │ ╲ TaskError, JobAborted, CancelJob ──▶ JobFailed
        │  │ to the next one     │
        │  └─────────────────────┘ scheduler silent, dead, or ignorant of the job
        └─ no scheduler answers ──▶ JobFailed

A job that moves is submitted anew with what is unfinished, under a fresh id (`job`, `job~1`, ...),
so that two schedulers which both believe in it never confuse a node; results of any submission
count, the first of a task wins. Bounds: one entry an open job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, assert_never

from msgspec import Struct

from sparrow_core.events import JobEvent, JobFailed, JobFinished, TaskCompleted, TaskFailed
from sparrow_core.ids import Address, JobId, TaskId
from sparrow_core.machine import Envelope
from sparrow_core.messages import (
    PROTOCOL_VERSION,
    AllNodesLost,
    CancelJob,
    ClientIn,
    EndJob,
    JobAborted,
    JobAccepted,
    JobStatus,
    JobTimer,
    KnownNodes,
    Notify,
    PingJob,
    RerunTasks,
    SchedulerLost,
    StartJob,
    SubmitJob,
    TaskError,
    TaskResult,
    TaskSpec,
)


class ClientConfig(Struct, frozen=True):
    """Limits of a client.

    Attributes:
        accept_timeout_s: How long the first submission may go unanswered; doubles each time.
        submissions_max: Unanswered submissions before the job fails.
        ping_s: How often an open job's scheduler is asked.
        silence_max_s: A scheduler silent for this long is given up.
        result_wait_s: How long the result of a finished task may be on its way.
    """

    accept_timeout_s: float = 0.1
    submissions_max: int = 7
    ping_s: float = 1.0
    silence_max_s: float = 3.0
    result_wait_s: float = 1.0


@dataclass(slots=True)
class _Job:
    start: StartJob
    scheduler: Address
    started_at: float
    heard_at: float
    missing: dict[TaskId, TaskSpec]
    submission: int = 0
    unanswered: int = 0
    accepted: bool = False
    generation: int = 0
    overdue: dict[TaskId, float] = field(default_factory=dict)  # finished, they say; since when

    @property
    def wire_id(self) -> JobId:
        job_id = self.start.job_id
        return JobId(f"{job_id}~{self.submission}") if self.submission else job_id


class Client:
    """The front end's side of the protocol, for any number of jobs."""

    inputs: ClassVar[Any] = ClientIn

    def __init__(
        self,
        address: Address,
        sink: Address,
        schedulers: Sequence[Address],
        config: ClientConfig | None = None,
    ) -> None:
        """Make a client of these schedulers; events go to `sink` as Notify."""
        self.address = address
        self._sink = sink
        self._schedulers = list(schedulers)
        self._config = config or ClientConfig()
        self._turn = 0
        self._jobs: dict[JobId, _Job] = {}
        self._nodes_lost = False

    def on_message(self, msg: ClientIn, now: float) -> list[Envelope]:
        """Take one message; see the module docstring."""
        match msg:
            case TaskResult():
                return self._on_task_result(msg, now)
            case StartJob():
                return self._on_start_job(msg, now)
            case JobAccepted():
                return self._on_job_accepted(msg, now)
            case JobStatus():
                return self._on_job_status(msg, now)
            case JobTimer():
                return self._on_job_timer(msg, now)
            case TaskError():
                return self._on_task_error(msg)
            case JobAborted():
                job = self._current(msg.job_id)
                return self._fail(job, msg.kind, msg.message, msg.story) if job else []
            case CancelJob():
                job = self._jobs.get(msg.job_id)
                return self._fail(job, "cancelled", "the job was cancelled") if job else []
            case SchedulerLost():
                return self._on_scheduler_lost(msg, now)
            case AllNodesLost():
                return self._on_all_nodes_lost()
            case KnownNodes():
                return [Envelope(self._sink, msg)]
            case _:
                assert_never(msg)

    # --- submission ----------------------------------------------------------------------------

    def _on_start_job(self, msg: StartJob, now: float) -> list[Envelope]:
        if self._nodes_lost:
            return [self._notify(msg.job_id, JobFailed("no_nodes", "no node is left"))]
        if not self._schedulers:
            failed = JobFailed("no_scheduler", "no scheduler is left")
            return [self._notify(msg.job_id, failed)]
        if not msg.tasks:
            return [self._notify(msg.job_id, JobFinished())]
        missing = {task.task_id: task for task in msg.tasks}
        self._turn += 1
        scheduler = self._schedulers[self._turn % len(self._schedulers)]
        job = self._jobs[msg.job_id] = _Job(msg, scheduler, now, now, missing)
        return self._submit(job, msg.tasks)

    def _submit(self, job: _Job, tasks: tuple[TaskSpec, ...]) -> list[Envelope]:
        start = job.start
        msg = SubmitJob(
            PROTOCOL_VERSION, job.wire_id, self.address, start.user,
            tasks, start.shared, start.placement, start.probe_ratio,
        )  # fmt: skip
        delay_s = self._config.accept_timeout_s * 2**job.unanswered
        return [Envelope(job.scheduler, msg), self._timer(job, delay_s)]

    def _timer(self, job: _Job, delay_s: float) -> Envelope:
        job.generation += 1
        return Envelope(self.address, JobTimer(job.start.job_id, job.generation), delay_s)

    def _on_job_timer(self, msg: JobTimer, now: float) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        if job is None or job.generation != msg.generation:
            return []  # an old timer
        if job.accepted:
            return self._ping(job, now)
        job.unanswered += 1
        if job.unanswered >= self._config.submissions_max:
            text = f"no scheduler answers ({job.unanswered} submissions)"
            return self._fail(job, "no_scheduler", text)
        if len(self._schedulers) > 1:
            return self._move(job, now)
        return self._submit(job, tuple(job.missing.values()))

    def _move(self, job: _Job, now: float) -> list[Envelope]:
        """Submit what is unfinished to the next scheduler, under a new id."""
        if not self._schedulers:
            return self._fail(job, "no_scheduler", "no scheduler is left")
        end = Envelope(job.scheduler, EndJob(job.wire_id))
        if job.scheduler in self._schedulers:
            turn = self._schedulers.index(job.scheduler) + 1
        else:
            turn = self._turn
        job.scheduler = self._schedulers[turn % len(self._schedulers)]
        job.submission += 1
        job.accepted = False
        job.heard_at = now
        job.overdue.clear()
        return [end, *self._submit(job, tuple(job.missing.values()))]

    def _on_job_accepted(self, msg: JobAccepted, now: float) -> list[Envelope]:
        job = self._current(msg.job_id)
        if job is None:
            return []  # answers an older submission, which has been ended
        job.heard_at = now
        if job.accepted:
            return []
        job.accepted = True
        job.unanswered = 0
        return [self._timer(job, self._config.ping_s)]

    # --- while a job is open -------------------------------------------------------------------

    def _ping(self, job: _Job, now: float) -> list[Envelope]:
        if job.heard_at <= now - self._config.silence_max_s:
            return self._move(job, now)
        ping = PingJob(job.wire_id, self.address, tuple(job.missing))
        return [Envelope(job.scheduler, ping), self._timer(job, self._config.ping_s)]

    def _on_job_status(self, msg: JobStatus, now: float) -> list[Envelope]:
        job = self._current(msg.job_id)
        if job is None:
            return []
        if not msg.known:
            return self._move(job, now)
        job.heard_at = now
        finished = [task_id for task_id in msg.finished if task_id in job.missing]
        job.overdue = {task_id: job.overdue.get(task_id, now) for task_id in finished}
        limit = now - self._config.result_wait_s
        lost = tuple(task_id for task_id, since in job.overdue.items() if since <= limit)
        for task_id in lost:
            del job.overdue[task_id]
        return [Envelope(job.scheduler, RerunTasks(job.wire_id, lost))] if lost else []

    def _on_task_result(self, msg: TaskResult, now: float) -> list[Envelope]:
        job = self._jobs.get(_job_of(msg.key.job_id))
        if job is None or job.missing.pop(msg.key.task_id, None) is None:
            return []  # first completion wins
        job.overdue.pop(msg.key.task_id, None)
        event = TaskCompleted(
            msg.key.task_id, msg.result, msg.node, msg.executor, msg.key.attempt,
            max(0.0, now - job.started_at - msg.run_s), msg.run_s,
        )  # fmt: skip
        out = [self._notify(job.start.job_id, event)]
        return out if job.missing else [*out, *self._end(job, JobFinished())]

    def _on_task_error(self, msg: TaskError) -> list[Envelope]:
        job = self._jobs.get(_job_of(msg.key.job_id))
        if job is None or msg.key.task_id not in job.missing:
            return []
        event = TaskFailed(msg.key.task_id, msg.message, msg.detail, msg.node, msg.executor)
        text = f"task {msg.key.task_id} failed on {msg.executor}: {msg.message}"
        return [self._notify(job.start.job_id, event), *self._fail(job, "task_failed", text)]

    # --- ends ----------------------------------------------------------------------------------

    def _fail(
        self, job: _Job, kind: str, message: str, story: tuple[str, ...] = ()
    ) -> list[Envelope]:
        return self._end(job, JobFailed(kind, message, story))

    def _end(self, job: _Job, event: JobFinished | JobFailed) -> list[Envelope]:
        job_id = job.start.job_id
        del self._jobs[job_id]
        return [self._notify(job_id, event), Envelope(job.scheduler, EndJob(job.wire_id))]

    def _notify(self, job_id: JobId, event: JobEvent) -> Envelope:
        return Envelope(self._sink, Notify(job_id, event))

    def _current(self, wire_id: JobId) -> _Job | None:
        job = self._jobs.get(_job_of(wire_id))
        return job if job is not None and job.wire_id == wire_id else None

    def _on_scheduler_lost(self, msg: SchedulerLost, now: float) -> list[Envelope]:
        if msg.scheduler in self._schedulers:
            self._schedulers.remove(msg.scheduler)
        moving = [job for job in self._jobs.values() if job.scheduler == msg.scheduler]
        return [envelope for job in moving for envelope in self._move(job, now)]

    def _on_all_nodes_lost(self) -> list[Envelope]:
        self._nodes_lost = True
        jobs = tuple(self._jobs.values())
        return [out for job in jobs for out in self._fail(job, "no_nodes", "no node is left")]

    def check(self) -> None:
        """Assert that open jobs miss something, and only what they consist of."""
        for job_id, job in self._jobs.items():
            assert job.start.job_id == job_id
            assert job.missing
            assert job.overdue.keys() <= job.missing.keys()
            assert 0 <= job.unanswered < self._config.submissions_max


def _job_of(wire_id: JobId) -> JobId:
    return JobId(wire_id.partition("~")[0])
