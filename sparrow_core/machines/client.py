"""The client: submits jobs to schedulers round robin, collects results, handles failover.

Life of a job:

    submitting ──JobAccepted──▶ open ──all results──▶ JobFinished
        │  ▲ no answer: retry    │ ╲ TaskError, JobAborted, CancelJob ──▶ JobFailed
        │  │ at the next one     │
        │  └─────────────────────┘ scheduler silent, dead, or does not know the job
        └─ no scheduler answers, or none has a node for it, for `recovery_s` ──▶ JobFailed

A job that moves is resubmitted with its unfinished tasks under a new id (`job`, `job~1`, ...), so
that nodes can tell the submissions apart even if both schedulers are alive. The new scheduler
adopts what runs already. Results of any submission count; the first result of a task is committed,
and the task is never submitted again.

While jobs are open, their schedulers are pinged. The jobs of one that is silent for unusually long
(`policy.suspicion`) move to another. If it turns out to be alive, it is told to forget them: that
it was only slow costs messages, but no task. Optionally, stragglers are submitted a second time
(SOSP'13, section 3.4).

What the client relies on: results come from executors directly and may be lost or duplicated;
`PingJob` finds tasks that the scheduler has seen finish but whose results never came, and has them
run again. Bounds: one entry per open job, `_ABANDONED_MAX` abandoned submissions.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, assert_never

from msgspec import Struct

from machine_kit.addresses import Address
from machine_kit.machine import Envelope
from machine_kit.peers import Peers
from machine_kit.ticks import Ticks
from sparrow_core.policy.suspicion import Suspicion
from sparrow_core.protocol.events import (
    JobEvent,
    JobFailed,
    JobFinished,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TasksReturned,
)
from sparrow_core.protocol.ids import JobId, TaskId
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AllNodesLost,
    CancelJob,
    ClientIn,
    EndJob,
    JobAborted,
    JobAccepted,
    JobPlaced,
    JobStatus,
    JobTimer,
    KnownNodes,
    Notify,
    Ping,
    PingJob,
    Pong,
    RerunTasks,
    SchedulerLost,
    SchedulerSilent,
    SetSchedulers,
    StartJob,
    StragglerTimer,
    SubmitJob,
    TaskAbandoned,
    TaskError,
    TaskResults,
    TasksWithdrawn,
    WatchTimer,
    WithdrawTasks,
)
from sparrow_core.protocol.types import PlacementStep, TaskSpec

_ABANDONED_MAX = 10_000
_PINGS_A_SILENCE = 4
_DOUBLINGS_MAX = 30  # of a timeout
_ELSEWHERE = ("no_nodes", "overloaded")  # reasons that may not hold at another scheduler


class ClientConfig(Struct, frozen=True, kw_only=True):
    """Limits of a client.

    Attributes:
        accept_timeout_s: Timeout of the first submission; doubles each time.
        accept_timeout_max_s: But not beyond this.
        recovery_s: How long a job waits for a scheduler that answers, or for a node on which it may
            run, before it fails: processes that died are being started again meanwhile. May be
            infinite.
        silence_min_s: A scheduler that is silent for less than this keeps its jobs; one that is for
            longer loses them to another, if that is unusual for it, or at `silence_max_s`.
        silence_max_s: The longest silence that can be usual.
        ping_s: Interval at which the scheduler is asked about an open job.
        job_silence_max_s: A job about which its scheduler says nothing for this long is
            resubmitted, even if there is no other scheduler.
        result_wait_s: How long the result of a finished task may take before the task is rerun.
        max_deaths: Deaths of a job's schedulers in a row, while none of its tasks ends, after which
            it fails: what its tasks did to their nodes has died with the schedulers.
        release: What must be equal in a cluster beside the protocol, see `SchedulerConfig`; empty
            for clients to which it does not matter.
    """

    accept_timeout_s: float = 0.1
    accept_timeout_max_s: float = 1.6
    recovery_s: float = 30.0
    silence_min_s: float = 0.1
    silence_max_s: float = 3.0
    ping_s: float = 1.0
    job_silence_max_s: float = 3.0
    result_wait_s: float = 1.0
    max_deaths: int = 4
    release: str = ""


@dataclass(slots=True, kw_only=True)
class _Job:
    """An open job.

    Attributes:
        missing: Tasks without a result.
        submission: Number of the current submission, from 0.
        unanswered: Submissions since the last answer.
        waited_s: How long their answers were awaited. Not measured by the clock: time in which this
            process did not run is not counted.
        replaced: Ids of earlier submissions.
        refusals: By schedulers, for reasons that may not hold elsewhere.
        refused_at: When all of them last had no node for it.
        refused_since: When the first of these refusals came, since it last was anywhere.
        story: What was lost before the first of them.
        pausing: Whether it is submitted nowhere, but will be again by the timer.
        overdue: Tasks that the scheduler saw finish without a result, and since when.
        took_s: Times from the start to each result, to find stragglers.
        copy: Scheduler and id of the second submission of stragglers.
        placement: Steps so far; None before the scheduler has reported them.
        stopped: Whether tasks that may run were withdrawn.
        deaths: Of schedulers that had accepted it, since a task of it last ended.
    """

    start: StartJob
    scheduler: Address
    started_at: float
    heard_at: float
    missing: dict[TaskId, TaskSpec]
    submission: int = 0
    unanswered: int = 0
    waited_s: float = 0.0
    replaced: tuple[JobId, ...] = ()
    refusals: int = 0
    refused_at: float = -math.inf
    refused_since: float = -math.inf
    story: tuple[str, ...] = ()
    pausing: bool = False
    accepted: bool = False
    generation: int = 0
    overdue: dict[TaskId, float] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)
    copy: tuple[Address, JobId] | None = None
    placement: tuple[PlacementStep, ...] | None = None
    stopped: bool = False
    deaths: int = 0

    @property
    def wire_id(self) -> JobId:
        job_id = self.start.job_id
        return JobId(f"{job_id}~{self.submission}") if self.submission else job_id


class Client:
    """The client machine of an embedding program, for any number of jobs."""

    inputs: ClassVar[Any] = ClientIn

    def __init__(
        self,
        address: Address,
        sink: Address,
        schedulers: Sequence[Address],
        config: ClientConfig | None = None,
    ) -> None:
        """Make a client of these schedulers; events go to `sink` in Notify messages."""
        self.address = address
        self._sink = sink
        self._schedulers = list(schedulers)
        self._config = config or ClientConfig()
        self._turn = 0  # round robin
        self._jobs: dict[JobId, _Job] = {}
        self._suspicions: dict[Address, Suspicion] = {}
        self._heard = Peers[Address]()
        self._silent: dict[Address, None] = {}
        # Submissions that a silent scheduler may still have, and what it is told when it is heard.
        self._abandoned: dict[JobId, tuple[Address, EndJob]] = {}
        watch_s = self._config.silence_min_s / _PINGS_A_SILENCE
        self._ticks = Ticks(address, watch_s, WatchTimer)
        self._watching = False
        self._nodes_lost: str | None = None
        self._schedulers_lost = "no scheduler is left"

    def on_message(self, msg: ClientIn, now: float) -> list[Envelope]:
        match msg:
            case TaskResults():
                return self._on_task_results(msg, now)
            case StartJob():
                return self._on_start_job(msg, now)
            case JobAccepted():
                return self._on_job_accepted(msg, now)
            case JobStatus():
                return self._on_job_status(msg, now)
            case JobTimer():
                return self._on_job_timer(msg, now)
            case Pong():
                self._suspicion(msg.scheduler).heard(now)
                return self._on_heard(msg.scheduler, now)
            case WatchTimer():
                return self._on_watch_timer(msg, now)
            case StragglerTimer():
                return self._on_straggler_timer(msg)
            case JobPlaced():
                return self._on_job_placed(msg)
            case TaskError():
                return self._on_task_error(msg)
            case TaskAbandoned():
                return self._on_task_abandoned(msg)
            case WithdrawTasks():
                return self._on_withdraw_tasks(msg)
            case TasksWithdrawn():
                return self._on_tasks_withdrawn(msg)
            case JobAborted():
                return self._on_job_aborted(msg, now)
            case CancelJob():
                job = self._jobs.get(msg.job_id)
                return self._fail(job, "cancelled", "the job was cancelled") if job else []
            case SchedulerLost():
                return self._on_scheduler_lost(msg, now)
            case SetSchedulers():
                return self._on_set_schedulers(msg, now)
            case AllNodesLost():
                return self._on_all_nodes_lost(msg)
            case KnownNodes():
                return [Envelope(self._sink, msg)]
            case _:
                assert_never(msg)

    # --- submission ----------------------------------------------------------------------------

    def _on_start_job(self, msg: StartJob, now: float) -> list[Envelope]:
        if self._nodes_lost is not None:
            return [self._notify(msg.job_id, JobFailed("no_nodes", self._nodes_lost))]
        if not self._schedulers:
            failed = JobFailed("no_scheduler", self._schedulers_lost)
            return [self._notify(msg.job_id, failed)]
        if not msg.tasks:
            return [self._notify(msg.job_id, JobFinished())]
        missing = {task.task_id: task for task in msg.tasks}
        # Round robin over schedulers: jobs of one client spread evenly without coordination.
        self._turn += 1
        scheduler = self._scheduler_after(self._turn - 1)
        job = self._jobs[msg.job_id] = _Job(
            start=msg, scheduler=scheduler, started_at=now, heard_at=now, missing=missing
        )
        return [*self._submit(job), *self._watch(scheduler, now)]

    def _scheduler_after(self, turn: int) -> Address:
        """The next scheduler round robin, a silent one only if all are."""
        count = len(self._schedulers)
        ring = [self._schedulers[(turn + step) % count] for step in range(1, count + 1)]
        return min(ring, key=lambda scheduler: scheduler in self._silent)

    def _submit(self, job: _Job) -> list[Envelope]:
        msg = self._submission(job, job.wire_id)
        return [Envelope(job.scheduler, msg), self._timer(job, self._accept_timeout_s(job))]

    def _accept_timeout_s(self, job: _Job) -> float:
        # Backoff: the scheduler may be alive but overloaded.
        doublings = min(job.unanswered, _DOUBLINGS_MAX)
        doubled = self._config.accept_timeout_s * 2.0**doublings
        return min(doubled, self._config.accept_timeout_max_s)

    def _submission(self, job: _Job, wire_id: JobId) -> SubmitJob:
        start = job.start
        return SubmitJob(
            version=PROTOCOL_VERSION,
            job_id=wire_id,
            client=self.address,
            user=start.user,
            tasks=tuple(job.missing.values()),
            shared=start.shared,
            placement=start.placement,
            probe_ratio=start.probe_ratio,
            options=start.options,
            replaces=() if wire_id != job.wire_id else job.replaced,
            release=self._config.release,
        )

    def _timer(self, job: _Job, delay_s: float) -> Envelope:
        job.generation += 1
        return Envelope(self.address, JobTimer(job.start.job_id, job.generation), delay_s)

    def _on_job_timer(self, msg: JobTimer, now: float) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        if job is None or job.generation != msg.generation:
            return []  # superseded by a later timer
        if job.pausing:
            return self._move(job, now)
        if job.accepted:
            return self._ping(job, now)
        delay_s = self._accept_timeout_s(job)
        job.unanswered += 1
        job.waited_s += delay_s
        if job.waited_s >= self._config.recovery_s:
            text = f"no scheduler has answered for {self._config.recovery_s:g} s"
            return self._fail(job, "no_scheduler", text)
        if len(self._schedulers) == 1 or self._heard.silent_s(job.scheduler, now) < delay_s:
            return self._submit(job)  # it is alive: it was slow, or the message was lost
        return self._move(job, now)

    def _move(self, job: _Job, now: float) -> list[Envelope]:
        """Submit the unfinished tasks to the next scheduler, under a new id."""
        if not job.missing:
            return self._finish(job)  # only the report of its placement was lost
        if not self._schedulers:
            return self._fail(job, "no_scheduler", self._schedulers_lost)
        end = self._give_up_submission(job)
        is_known = job.scheduler in self._schedulers
        turn = self._schedulers.index(job.scheduler) if is_known else self._turn
        job.scheduler = self._scheduler_after(turn)
        return [end, *self._submit_anew(job, now)]

    def _give_up_submission(self, job: _Job) -> Envelope:
        """If the scheduler is alive after all, it must forget the job, of which tasks may run."""
        moved = EndJob(job.wire_id, moved=True)
        if job.scheduler in self._schedulers:
            self._abandon(job.scheduler, moved)
        return Envelope(job.scheduler, moved)

    def _submit_anew(self, job: _Job, now: float) -> list[Envelope]:
        """Submit the unfinished tasks under a new id, to the job's scheduler."""
        # All earlier submissions, because a node may have missed that one of them ended.
        job.replaced = (*job.replaced, job.wire_id)
        job.submission += 1
        job.accepted = job.pausing = False
        job.heard_at = now
        job.overdue.clear()
        return [*self._submit(job), *self._watch(job.scheduler, now)]

    def _on_job_accepted(self, msg: JobAccepted, now: float) -> list[Envelope]:
        job = self._current(msg.job_id)
        if job is None:
            return []  # about an earlier submission
        job.heard_at = now
        was_accepted, job.accepted = job.accepted, True
        job.unanswered, job.waited_s = 0, 0.0
        # Only now: the first sign of life after a silence has jobs without an answer submitted
        # anew, and this one has been answered.
        heard = self._on_heard(job.scheduler, now)
        return heard if was_accepted else [*heard, self._timer(job, self._config.ping_s)]

    # --- silent schedulers ---------------------------------------------------------------------

    def _watch(self, scheduler: Address, now: float) -> list[Envelope]:
        """A job was submitted to the scheduler: watch for its silence from now on."""
        busy = (job for job in self._jobs.values() if job.scheduler == scheduler)
        if len([*itertools.islice(busy, 2)]) <= 1:
            # It was not pinged before, so its last sign of life may be old.
            self._suspicion(scheduler).begin(now)
        if self._watching:
            return []
        self._watching = True
        return [self._ticks.begin(now)]

    def _suspicion(self, scheduler: Address) -> Suspicion:
        suspicion = self._suspicions.get(scheduler)
        if suspicion is None:
            suspicion = Suspicion(self._config.silence_min_s, self._config.silence_max_s)
            self._suspicions[scheduler] = suspicion
        return suspicion

    def _on_watch_timer(self, msg: WatchTimer, now: float) -> list[Envelope]:
        if not (self._watching and self._ticks.is_due(msg.generation, now)):
            return []
        if self._ticks.stall_s:
            self._forgive(self._ticks.stall_s, now)
        if not self._jobs:
            self._watching = False
            return []
        busy = dict.fromkeys(job.scheduler for job in self._jobs.values())
        out: list[Envelope] = []
        for scheduler in busy:
            if scheduler not in self._silent and self._suspicions[scheduler].is_silent(now):
                out += self._fall_silent(scheduler, now)
        asked = {**busy, **dict.fromkeys(job.scheduler for job in self._jobs.values())}
        asked.update(self._silent)  # to notice when they are heard again
        pings = [Envelope(scheduler, Ping(self.address)) for scheduler in asked]
        return [*out, *pings, self._ticks.next()]

    def _forgive(self, stall_s: float, now: float) -> None:
        """Do not take time in which this process did not run for silence of schedulers."""
        for suspicion in self._suspicions.values():
            suspicion.forgive(stall_s, now)
        for job in self._jobs.values():
            job.refused_at += stall_s
            job.refused_since += stall_s

    def _fall_silent(self, scheduler: Address, now: float) -> list[Envelope]:
        """Move the scheduler's jobs to another one that is not silent, if there is one."""
        self._silent[scheduler] = None
        out = [Envelope(self._sink, SchedulerSilent(scheduler, True))]
        # If all are silent, this process or its network is more likely the cause: jobs stay.
        if any(other not in self._silent for other in self._schedulers):
            out += self._move_all(scheduler, now)
        return out

    def _move_all(self, scheduler: Address, now: float) -> list[Envelope]:
        moving = [job for job in self._jobs.values() if job.scheduler == scheduler]
        return [envelope for job in moving for envelope in self._move(job, now)]

    def _on_heard(self, scheduler: Address, now: float) -> list[Envelope]:
        """The scheduler is alive; if it was silent, it must forget the jobs that have moved."""
        self._heard.heard(scheduler, now)
        if scheduler not in self._silent:
            return []
        del self._silent[scheduler]
        out = [Envelope(self._sink, SchedulerSilent(scheduler, False))]
        for at, end in tuple(self._abandoned.values()):
            if at == scheduler:
                del self._abandoned[end.job_id]
                out.append(Envelope(scheduler, end))
        # The link is whole again: do not wait for timers whose backoff has grown meanwhile, and do
        # not count what was sent in vain.
        for job in self._jobs.values():
            if job.unanswered and not job.accepted:
                job.unanswered, job.waited_s = 0, 0.0
                out.append(self._give_up_submission(job))
                job.scheduler = scheduler
                out += self._submit_anew(job, now)
        return out

    def _abandon(self, scheduler: Address, end: EndJob) -> None:
        if scheduler in self._silent:
            self._abandoned[end.job_id] = (scheduler, end)
            if len(self._abandoned) > _ABANDONED_MAX:  # their leases end at the scheduler anyway
                del self._abandoned[next(iter(self._abandoned))]

    # --- while a job is open -------------------------------------------------------------------

    def _ping(self, job: _Job, now: float) -> list[Envelope]:
        if not job.missing or job.heard_at <= now - self._config.job_silence_max_s:
            return self._move(job, now)
        submissions = [(job.scheduler, job.wire_id), *([job.copy] if job.copy else [])]
        missing = tuple(job.missing)
        pings = [Envelope(to, PingJob(id_, self.address, missing)) for to, id_ in submissions]
        return [*pings, self._timer(job, self._config.ping_s)]

    def _on_job_status(self, msg: JobStatus, now: float) -> list[Envelope]:
        job = self._current(msg.job_id)
        if job is None:
            return []
        heard = self._on_heard(job.scheduler, now)
        if not msg.known:
            return [*heard, *self._move(job, now)]
        job.heard_at = now
        finished = [task_id for task_id in msg.finished if task_id in job.missing]
        job.overdue = {task_id: job.overdue.get(task_id, now) for task_id in finished}
        # Results travel directly from executors, so a status may overtake them: wait a little.
        limit = now - self._config.result_wait_s
        lost = tuple(task_id for task_id, since in job.overdue.items() if since <= limit)
        for task_id in lost:
            del job.overdue[task_id]
        rerun = [Envelope(job.scheduler, RerunTasks(job.wire_id, lost))] if lost else []
        return [*heard, *rerun]

    def _on_task_results(self, msg: TaskResults, now: float) -> list[Envelope]:
        job = self._jobs.get(job_of(msg.job_id))
        if job is None:
            return []
        took_s = now - job.started_at
        events = []
        for result in msg.results:
            if job.missing.pop(result.task_id, None) is None:
                continue  # first completion wins
            queue_s = max(0.0, took_s - result.run_s)
            event = TaskCompleted(
                task_id=result.task_id, result=result.result, node=msg.node, executor=msg.executor,
                attempt=result.attempt, queue_s=queue_s, run_s=result.run_s,
            )  # fmt: skip
            events.append(event)
        if not events:
            return []
        job.refused_at, job.story, job.deaths = -math.inf, (), 0  # there are nodes
        out = [self._notify(job.start.job_id, *events)]
        # Results may be late instead of lost.
        for event in events if job.overdue else ():
            job.overdue.pop(event.task_id, None)
        if not job.missing:
            # With `explain`, it ends when its placement has been reported, or at the next ping.
            explained = job.placement is not None or not job.start.options.explain
            return [*out, *self._finish(job)] if explained else out
        return [*out, *self._expect_stragglers(job, len(events), now)]

    def _on_job_placed(self, msg: JobPlaced) -> list[Envelope]:
        job = self._jobs.get(job_of(msg.job_id))
        if job is None:
            return []
        job.placement = (*(job.placement or ()), *msg.steps)
        return [] if job.missing else self._finish(job)

    def _finish(self, job: _Job) -> list[Envelope]:
        return self._end(job, JobFinished(job.placement or ()))

    # --- stragglers ----------------------------------------------------------------------------

    def _expect_stragglers(self, job: _Job, count: int, now: float) -> list[Envelope]:
        """When half of the tasks are done, set a timer for the others."""
        factor = job.start.options.straggler_factor
        if factor <= 0:
            return []
        before = len(job.took_s)
        job.took_s += [now - job.started_at] * count
        if not before < (len(job.start.tasks) + 1) // 2 <= len(job.took_s):
            return []
        due_s = job.started_at + factor * statistics.median(job.took_s)
        timer = StragglerTimer(job.start.job_id)
        return [Envelope(self.address, timer, max(0.0, due_s - now))]

    def _on_straggler_timer(self, msg: StragglerTimer) -> list[Envelope]:
        """Submit the missing tasks a second time, without ending the first submission."""
        job = self._jobs.get(msg.job_id)
        if job is None or job.copy is not None:
            return []
        # Another id: the nodes must not take it for the first submission.
        wire_id = JobId(f"{msg.job_id}~copy")
        turn = self._schedulers.index(job.scheduler) if job.scheduler in self._schedulers else 0
        scheduler = self._scheduler_after(turn)
        job.copy = (scheduler, wire_id)
        return [Envelope(scheduler, self._submission(job, wire_id))]

    def _on_task_error(self, msg: TaskError) -> list[Envelope]:
        job = self._jobs.get(job_of(msg.key.job_id))
        if job is None or msg.key.task_id not in job.missing:
            return []
        event = TaskFailed(
            msg.key.task_id, msg.message, msg.detail, msg.node, msg.executor, msg.timed_out
        )
        if job.start.options.independent:
            return self._settle(job, (msg.key.task_id,), event)
        text = f"task {msg.key.task_id} failed on {msg.executor}: {msg.message}"
        return [self._notify(job.start.job_id, event), *self._fail(job, "task_failed", text)]

    def _on_task_abandoned(self, msg: TaskAbandoned) -> list[Envelope]:
        job = self._current(msg.job_id)
        if job is None or msg.task_id not in job.missing:
            return []
        if not job.start.options.independent:
            return self._fail(job, "task_lost", msg.message, msg.story)
        return self._settle(job, (msg.task_id,), TaskLost(msg.task_id, msg.message, msg.story))

    def _settle(self, job: _Job, task_ids: Sequence[TaskId], *events: JobEvent) -> list[Envelope]:
        """No result of these tasks is awaited any more; the job ends if they were the last."""
        for task_id in task_ids:
            job.missing.pop(task_id, None)
            job.overdue.pop(task_id, None)
        out = [self._notify(job.start.job_id, *events)] if events else []
        return out if job.missing else [*out, *self._finish(job)]

    # --- withdrawn tasks -----------------------------------------------------------------------

    def _on_withdraw_tasks(self, msg: WithdrawTasks) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        tasks = tuple(task_id for task_id in msg.tasks if job and task_id in job.missing)
        if job is None or not tasks:
            return []
        submissions = [(job.scheduler, job.wire_id), *([job.copy] if job.copy else [])]
        if not msg.stop:
            # With a copy, one of the two may have begun: they are not taken back.
            submissions = submissions[:1] if job.copy is None else []
        out = [Envelope(to, WithdrawTasks(id_, tasks, msg.stop)) for to, id_ in submissions]
        if not msg.stop:
            return out
        job.stopped = True
        return [*out, *self._settle(job, tasks)]

    def _on_tasks_withdrawn(self, msg: TasksWithdrawn) -> list[Envelope]:
        job = self._current(msg.job_id)
        if job is None:
            return []
        tasks = tuple(task_id for task_id in msg.tasks if task_id in job.missing)
        return self._settle(job, tasks, TasksReturned(tasks)) if tasks else []

    def _on_job_aborted(self, msg: JobAborted, now: float) -> list[Envelope]:
        job = self._current(msg.job_id)
        if job is None:
            return []
        job.refusals += msg.kind in _ELSEWHERE  # each scheduler is tried once
        if not job.missing:
            return self._finish(job)
        if msg.kind in _ELSEWHERE and job.refusals < len(self._schedulers):
            return self._move(job, now)
        if msg.kind == "no_nodes" and self._may_wait(job, now):
            # Nodes that died are being started again: ask all schedulers anew in a moment.
            job.refusals, job.accepted, job.pausing = 0, False, True
            job.story = msg.story or job.story
            return [self._timer(job, self._config.accept_timeout_s)]
        return self._fail(job, msg.kind, msg.message, msg.story or job.story)

    def _may_wait(self, job: _Job, now: float) -> bool:
        """Whether a job that no scheduler can place has not waited for long enough yet."""
        if math.isinf(job.refused_at) or job.refused_at < now - self._config.recovery_s:
            job.refused_since = now  # it was placed meanwhile
        job.refused_at = now
        return now - job.refused_since < self._config.recovery_s

    # --- ends ----------------------------------------------------------------------------------

    def _fail(
        self, job: _Job, kind: str, message: str, story: tuple[str, ...] = ()
    ) -> list[Envelope]:
        return self._end(job, JobFailed(kind, message, story))

    def _end(self, job: _Job, event: JobFinished | JobFailed) -> list[Envelope]:
        job_id = job.start.job_id
        del self._jobs[job_id]
        # With a copy, tasks that lost the race may still run and must be interrupted; so must
        # withdrawn ones.
        finished = isinstance(event, JobFinished) and job.copy is None and not job.stopped
        end = EndJob(job.wire_id, finished)
        self._abandon(job.scheduler, end)
        out = [self._notify(job_id, event), Envelope(job.scheduler, end)]
        if job.copy is not None:
            scheduler, wire_id = job.copy
            out.append(Envelope(scheduler, EndJob(wire_id)))
        return out

    def _notify(self, job_id: JobId, *events: JobEvent) -> Envelope:
        return Envelope(self._sink, Notify(job_id, events))

    def _current(self, wire_id: JobId) -> _Job | None:
        job = self._jobs.get(job_of(wire_id))
        return job if job is not None and job.wire_id == wire_id else None

    def _on_scheduler_lost(self, msg: SchedulerLost, now: float) -> list[Envelope]:
        if msg.returns:  # its jobs move, to itself if it is the only one
            self._silent[msg.scheduler] = None
            silent = Envelope(self._sink, SchedulerSilent(msg.scheduler, True))
            failed = self._blame(msg)
            return [silent, *failed, *self._move_all(msg.scheduler, now)]
        if msg.scheduler in self._schedulers:
            self._schedulers.remove(msg.scheduler)
        if msg.reason:
            self._schedulers_lost = f"no scheduler is left; the last one: {msg.reason}"
        self._silent.pop(msg.scheduler, None)
        return self._move_all(msg.scheduler, now)

    def _blame(self, msg: SchedulerLost) -> list[Envelope]:
        """A scheduler has died, once more: the jobs that may be why, again and again, fail."""
        out: list[Envelope] = []
        for job in [open_ for open_ in self._jobs.values() if open_.scheduler == msg.scheduler]:
            if not job.accepted:
                continue  # it died of something else, perhaps while it started
            job.deaths += 1
            if job.deaths >= self._config.max_deaths:
                text = f"its scheduler's process died {job.deaths} times before a task of it ended"
                out += self._fail(job, "task_lost", f"{text}; at last: {msg.reason}", job.story)
        return out

    def _on_set_schedulers(self, msg: SetSchedulers, now: float) -> list[Envelope]:
        gone = [scheduler for scheduler in self._schedulers if scheduler not in msg.schedulers]
        self._schedulers = list(msg.schedulers)
        for scheduler in gone:
            self._silent.pop(scheduler, None)
        # Jobs stay with silent schedulers only as long as there are no others.
        if any(scheduler not in self._silent for scheduler in self._schedulers):
            gone += self._silent
        return [out for scheduler in gone for out in self._move_all(scheduler, now)]

    def _on_all_nodes_lost(self, msg: AllNodesLost) -> list[Envelope]:
        self._nodes_lost = f"no node is left{msg.reason and f'; the last one: {msg.reason}'}"
        jobs = tuple(self._jobs.values())
        return [out for job in jobs for out in self._fail(job, "no_nodes", self._nodes_lost)]

    def gauges(self) -> dict[str, float]:
        return {
            "jobs": len(self._jobs),
            "missing": sum(len(job.missing) for job in self._jobs.values()),
            "schedulers_silent": len(self._silent),
        }

    def check(self) -> None:
        """Assert that open jobs miss results, and that timers and tables agree."""
        for job_id, job in self._jobs.items():
            assert job.start.job_id == job_id
            assert job.missing or (job.start.options.explain and job.placement is None)
            assert job.overdue.keys() <= job.missing.keys()
            assert 0.0 <= job.waited_s < self._config.recovery_s
            assert not (job.pausing and job.accepted)
            assert job.scheduler in self._suspicions
        assert self._watching or not self._jobs


def job_of(wire_id: JobId) -> JobId:
    """The job of one of its submissions."""
    return JobId(wire_id.partition("~")[0])
