"""The node monitor: queues reservations of a node and asks for tasks when a slot is free.

    Reserve ─▶ queue ─free slot─▶ asking ─AssignTasks─▶ ready ─▶ running ─TaskFinished─▶ report
                                    └─ no answer within `ask_timeout_s`: the scheduler is taken
    for dead and its reservations are dropped (if it lives, our heartbeat makes it restore them)

Everything that comes in together is acted on together: the first message that could change what to
do makes the machine send itself a `Flush`, which comes after all that is already waiting; so a busy
node sends few messages (one GetTasks a job, with all reports in it). Bounds: running tasks by
slots; asking plus ready by slots plus answers that came too late; the queue by the reservations of
open jobs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, assert_never

from msgspec import Struct

from sparrow_core.ids import Address, JobId, NodeName, name_of
from sparrow_core.machine import Envelope
from sparrow_core.messages import (
    PROTOCOL_VERSION,
    AssignTasks,
    CancelReservations,
    EndJob,
    ExecutorInfo,
    ExecutorLost,
    ExecutorStatus,
    Flush,
    GetShared,
    GetTasks,
    HeldJob,
    JobShared,
    NodeMonitorIn,
    NodeRefused,
    RegisterNode,
    ReportTasks,
    Reserve,
    RunTask,
    TaskFinished,
    TaskKey,
    TaskReport,
    Tick,
)

_GONE_MAX = 1024


class NodeMonitorConfig(Struct, frozen=True):
    """Limits of a node monitor.

    Attributes:
        heartbeat_s: How often schedulers hear from the node.
        ask_timeout_s: How long a slot is kept for a scheduler's answer.
        grace_s: How long a task may be on its way to an executor that does not know of it.
    """

    heartbeat_s: float = 0.5
    ask_timeout_s: float = 0.5
    grace_s: float = 1.0


@dataclass(slots=True)
class _Reservations:
    scheduler: Address
    count: int


@dataclass(slots=True)
class _Ask:
    job_id: JobId
    scheduler: Address
    count: int
    at: float


@dataclass(slots=True)
class _Task:
    run: RunTask
    scheduler: Address
    at: float
    executor: Address | None = None


@dataclass(slots=True)
class _Job:
    scheduler: Address
    shared: bytes | None = None
    told: dict[Address, None] = field(default_factory=dict)  # executors that have had `shared`


@dataclass(slots=True)
class _Executor:
    info: ExecutorInfo
    running: dict[TaskKey, None] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.info.slots - len(self.running)


class NodeMonitor:
    """The node monitor of one node."""

    inputs: ClassVar[Any] = NodeMonitorIn

    def __init__(
        self,
        name: NodeName,
        address: Address,
        schedulers: Sequence[Address],
        *,
        supervisor: Address | None = None,
        config: NodeMonitorConfig | None = None,
    ) -> None:
        """Make a node monitor without executors; `supervisor` hears of a NodeRefused."""
        self.name = name
        self.address = address
        self._schedulers = tuple(schedulers)
        self._supervisor = supervisor
        self._config = config or NodeMonitorConfig()
        self._executors: dict[Address, _Executor] = {}
        self._gone: dict[Address, None] = {}
        self._queue: OrderedDict[JobId, _Reservations] = OrderedDict()
        self._asking: dict[int, _Ask] = {}
        self._ready: dict[TaskKey, _Task] = {}
        self._running: dict[TaskKey, _Task] = {}
        self._jobs: dict[JobId, _Job] = {}
        self._reports: dict[Address, list[TaskReport]] = {}
        self._requests = 0
        self._flush_due = False
        self._generation = 0

    def on_message(self, msg: NodeMonitorIn, now: float) -> list[Envelope]:
        """Take one message; see the module docstring."""
        match msg:
            case TaskFinished():
                return self._on_task_finished(msg)
            case Flush():
                return self._on_flush(now)
            case AssignTasks():
                return self._on_assign_tasks(msg, now)
            case Reserve():
                queued = self._queue.setdefault(msg.job_id, _Reservations(msg.scheduler, 0))
                queued.count += msg.count
                return self._wake()
            case JobShared():
                self._jobs.setdefault(msg.job_id, _Job(msg.scheduler)).shared = msg.shared
                return []
            case CancelReservations():
                self._queue.pop(msg.job_id, None)
                return []
            case EndJob():
                return self._on_end_job(msg)
            case ExecutorStatus():
                return self._on_executor_status(msg, now)
            case ExecutorLost():
                return self._on_executor_lost(msg)
            case GetShared():
                return self._on_get_shared(msg)
            case NodeRefused():
                return [Envelope(self._supervisor, msg)] if self._supervisor else []
            case Tick():
                return self._on_tick(msg, now)
            case _:
                assert_never(msg)

    def _wake(self) -> list[Envelope]:
        if self._flush_due:
            return []
        self._flush_due = True
        return [Envelope(self.address, Flush())]

    # --- reservations and tasks ----------------------------------------------------------------

    def _on_flush(self, now: float) -> list[Envelope]:
        if not self._flush_due:
            return []  # a doubled note
        self._flush_due = False
        return [*self._start_ready(now), *self._ask(now), *self._report()]

    def _start_ready(self, now: float) -> list[Envelope]:
        out: list[Envelope] = []
        while self._ready and (executor := self._idlest()) is not None:
            key = next(iter(self._ready))
            task = self._ready.pop(key)
            task.executor, task.at = executor.info.address, now
            self._running[key] = task
            executor.running[key] = None
            out += self._share(key.job_id, executor.info.address)
            out.append(Envelope(executor.info.address, task.run))
        return out

    def _idlest(self) -> _Executor | None:
        idlest = max(self._executors.values(), key=lambda each: each.free, default=None)
        return idlest if idlest and idlest.free > 0 else None

    def _share(self, job_id: JobId, executor: Address) -> list[Envelope]:
        """The job's shared part, before the first of its tasks to this executor.

        If it has not come (the message was lost), the executor will ask for it.
        """
        job = self._jobs[job_id]
        if job.shared is None or executor in job.told:
            return []
        job.told[executor] = None
        return [Envelope(executor, JobShared(job_id, job.scheduler, job.shared))]

    def _ask(self, now: float) -> list[Envelope]:
        """Ask for as many tasks as slots are free, oldest job first, one message a job."""
        out: list[Envelope] = []
        free = self._unclaimed()
        while free > 0 and self._queue:
            job_id, first = next(iter(self._queue.items()))
            count = min(free, first.count)
            free -= count
            first.count -= count
            if first.count == 0:
                del self._queue[job_id]
            out.append(self._get_tasks(job_id, first.scheduler, count, now))
        return out

    def _unclaimed(self) -> int:
        free = sum(executor.free for executor in self._executors.values())
        return free - len(self._ready) - sum(ask.count for ask in self._asking.values())

    def _get_tasks(self, job_id: JobId, scheduler: Address, count: int, now: float) -> Envelope:
        self._requests += 1
        self._asking[self._requests] = _Ask(job_id, scheduler, count, now)
        reports = tuple(self._reports.pop(scheduler, ()))
        return Envelope(scheduler, GetTasks(job_id, self.name, self._requests, count, reports))

    def _report(self) -> list[Envelope]:
        pending, self._reports = self._reports, {}
        return [Envelope(to, ReportTasks(tuple(reports))) for to, reports in pending.items()]

    def _on_assign_tasks(self, msg: AssignTasks, now: float) -> list[Envelope]:
        self._asking.pop(msg.request, None)  # None: the answer is late, or comes twice
        for task in msg.tasks:
            key = TaskKey(msg.job_id, task.task_id, task.attempt)
            if key not in self._ready and key not in self._running:
                run = RunTask(key, msg.client, task.payload, msg.has_shared)
                self._ready[key] = _Task(run, msg.scheduler, now)
        if msg.tasks:
            self._jobs.setdefault(msg.job_id, _Job(msg.scheduler)).scheduler = msg.scheduler
        if msg.drained:
            self._queue.pop(msg.job_id, None)
        return self._wake()

    def _on_task_finished(self, msg: TaskFinished) -> list[Envelope]:
        task = self._running.pop(msg.key, None)
        if task is None:
            return []  # told twice, or given up before
        if msg.executor in self._executors:
            self._executors[msg.executor].running.pop(msg.key, None)
        self._note(task, msg.lost)
        return self._wake()

    def _note(self, task: _Task, lost: str | None) -> None:
        executor = name_of(task.executor) if task.executor else ""
        report = TaskReport(task.run.key, executor, lost)
        self._reports.setdefault(task.scheduler, []).append(report)

    def _on_end_job(self, msg: EndJob) -> list[Envelope]:
        self._queue.pop(msg.job_id, None)
        for key in tuple(self._ready):
            if key.job_id == msg.job_id:
                del self._ready[key]
        if self._jobs.pop(msg.job_id, None) is None:
            return []
        return [*(Envelope(executor, msg) for executor in self._executors), *self._wake()]

    def _on_get_shared(self, msg: GetShared) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        if job is None:
            return [Envelope(msg.asker, EndJob(msg.job_id))]
        if job.shared is None:
            return [Envelope(job.scheduler, msg)]
        return [Envelope(msg.asker, JobShared(msg.job_id, job.scheduler, job.shared))]

    # --- executors -----------------------------------------------------------------------------

    def _on_executor_status(self, msg: ExecutorStatus, now: float) -> list[Envelope]:
        address = msg.info.address
        if address in self._gone:
            return []  # sent before it died
        if address not in self._executors:
            self._executors[address] = _Executor(msg.info)
            return [*self._register(), *self._wake()]
        known = dict.fromkeys(msg.running)
        for key in tuple(self._executors[address].running):
            if key not in known and self._running[key].at <= now - self._config.grace_s:
                del self._executors[address].running[key]
                self._note(self._running.pop(key), "the executor does not know of it")
        over = [job_id for job_id in msg.jobs if job_id not in self._jobs]
        return [*(Envelope(address, EndJob(job_id)) for job_id in over), *self._wake()]

    def _on_executor_lost(self, msg: ExecutorLost) -> list[Envelope]:
        self._gone[msg.executor] = None
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]
        executor = self._executors.pop(msg.executor, None)
        if executor is None:
            return []
        for key in executor.running:
            self._note(self._running.pop(key), f"executor lost ({msg.reason})")
        for job in self._jobs.values():
            job.told.pop(msg.executor, None)
        return [*self._register(), *self._wake()]

    # --- time ----------------------------------------------------------------------------------

    def _on_tick(self, msg: Tick, now: float) -> list[Envelope]:
        if msg.generation != self._generation:
            return []  # a doubled timer
        self._generation += 1
        self._give_up_asking(now)
        timer = Envelope(self.address, Tick(self._generation), self._config.heartbeat_s)
        return [timer, *self._register(), *self._wake()]

    def _give_up_asking(self, now: float) -> None:
        silent: dict[Address, None] = {}
        for request, ask in tuple(self._asking.items()):
            if ask.at <= now - self._config.ask_timeout_s:
                del self._asking[request]
                silent[ask.scheduler] = None
        for job_id in [id_ for id_, each in self._queue.items() if each.scheduler in silent]:
            del self._queue[job_id]

    def _register(self) -> list[Envelope]:
        """Heartbeats: to each scheduler, what the node has of its jobs."""
        infos = tuple(executor.info for executor in self._executors.values())
        return [self._heartbeat(scheduler, infos) for scheduler in self._schedulers]

    def _heartbeat(self, scheduler: Address, infos: tuple[ExecutorInfo, ...]) -> Envelope:
        held: Counter[JobId] = Counter()
        for job_id, job in self._jobs.items():
            if job.scheduler == scheduler:
                held[job_id] = 0
        for job_id, each in self._queue.items():
            if each.scheduler == scheduler:
                held[job_id] += each.count
        running = tuple(
            key
            for tasks in (self._ready, self._running)
            for key, task in tasks.items()
            if task.scheduler == scheduler
        )
        jobs = tuple(HeldJob(job_id, count) for job_id, count in held.items())
        msg = RegisterNode(PROTOCOL_VERSION, self.name, self.address, infos, jobs, running)
        return Envelope(scheduler, msg)

    def check(self) -> None:
        """Assert that slots are never overcommitted and the indexes agree."""
        placed = {key: address for address, each in self._executors.items() for key in each.running}
        assert placed == {key: task.executor for key, task in self._running.items()}
        assert all(executor.free >= 0 for executor in self._executors.values())
        assert not self._ready.keys() & self._running.keys()
        assert all(reservations.count > 0 for reservations in self._queue.values())
        assert all(key.job_id in self._jobs for key in self._ready)
        assert not self._executors.keys() & self._gone.keys()
