"""The node monitor: queues a node's reservations and asks for tasks when slots are free.

Life of a reservation and of the task that it becomes:

    Reserve ──▶ queued ──free slot──▶ asking ──AssignTasks──▶ ready ──▶ running ──┐
                  │  ▲                  │                       (executor has     │ TasksEnded,
    cancelled,    │  └─ sticky policies ┤                        a slot: RunTasks)│ executor lost
    job over      ▼                     │ no answer for `ask_timeout_s`           ▼
                dropped ◀───────────────┘                          Unreported ──▶ JobReport

A slot is taken from the request (`asking`) to the end of the task, so that no task is fetched
that would have to wait: that is late binding. Tasks much shorter than a round trip are the
exception: for them a few are fetched ahead (`_ahead`), of jobs that all have such tasks.

Which job is asked for next is up to the node's queue discipline.

Batching: a message that may change what is to be done makes the machine send itself a `Flush`,
which arrives after all messages that are waiting already. Only the flush starts tasks and asks for
new ones. So a busy node sends few messages: one GetTasks per job, with all reports in it.

What the node monitor relies on:

- Messages to and from schedulers may be lost, duplicated or reordered; with its executors'
  supervisor it shares a process, whose messages arrive once and in order.
- A heartbeat tells each scheduler what the node has of its jobs, and the scheduler answers with
  what is missing or over. Likewise the heartbeats of executors are compared with `_running`. Only
  what is older than `grace_s` is compared, because younger messages may be on their way.
- A scheduler that does not answer is taken for dead, and its reservations are dropped; if it
  lives, the next heartbeat makes it restore them.
- When a job moves to another scheduler, that one says so (TakeOver). Attempts of the job go on,
  and are the new scheduler's: they keep the id under which they began. That id is fenced: nothing
  more is taken of it from the old scheduler, which may only have been slow; it ends with the new
  one, which ids of jobs name in their turn (`job~1` replaces `job`).

Bounds: running tasks by slots; asking and ready by slots plus answers that came too late; the
queue by `queue_max`; remembered dead executors by `_GONE_MAX`, ids of jobs that have moved by
`_MOVED_MAX`, tasks that have finished by `_DONE_MAX`.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, assert_never

from msgspec import Struct, structs

from machine_kit.addresses import Address, name_of
from machine_kit.machine import Envelope, Figure, Tick
from machine_kit.peers import Peers
from machine_kit.ticks import Ticks
from sparrow_core.machines.slots import (
    Asked,
    MemoryBudget,
    NodeExecutor,
    NodeJob,
    NodeTask,
    SlotPool,
    TaskTimes,
)
from sparrow_core.machines.unreported import Unreported
from sparrow_core.policy import sampling as policy
from sparrow_core.policy.disciplines import Candidates, Lanes, Queued, make_discipline
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AssignTasks,
    CancelReservations,
    Drain,
    Drained,
    EndJob,
    EndJobs,
    ExecutorLost,
    ExecutorStatus,
    Flush,
    GetShared,
    GetTasks,
    JobShared,
    KillExecutor,
    NodeLeft,
    NodeLoad,
    NodeMonitorIn,
    NodeRefused,
    ProbeLoad,
    RefuseReservations,
    RegisterNode,
    ReportTasks,
    Reserve,
    ReturnTask,
    RunTasks,
    SetSchedulers,
    SetWeights,
    StopTask,
    TakenOver,
    TakeOver,
    TaskError,
    TasksEnded,
    TasksWithdrawn,
)
from sparrow_core.protocol.types import (
    Blame,
    ExecutorInfo,
    HeldJob,
    KeptJob,
    MovedJob,
    NodeLevel,
    RunningTask,
    TaskKey,
)

_GONE_MAX = 1024
_MOVED_MAX = 65_536
_DONE_MAX = 4096
_UNHEARD_BEATS = 6  # an executor that was not heard for so many heartbeats does not react
_LONGEST_MAX = 50  # of how many running tasks heartbeats tell


class NodeMonitorConfig(Struct, frozen=True, kw_only=True):
    """Limits of a node monitor.

    Attributes:
        policy: Name of the queue discipline, see `disciplines.DISCIPLINES`.
        slots: Tasks that run at once at most, over all executors; None for all their slots.
        queue_max: Reservations that may be queued; more are refused.
        heartbeat_s: Interval of heartbeats to schedulers.
        ask_timeout_s: How long a slot is kept for a scheduler's answer.
        grace_s: How long a task may be on its way to an executor that does not know of it.
        executor_timeout_s: An executor that is silent for this long is taken for dead until it is
            heard again, and its tasks are lost.
        kill_wait_s: How long after that it is killed, and replaced, where the node can do that; and
            how long a task may go on after its limit, or after it was stopped, before its executor
            is. Tasks that were lost before stay with a silent executor until then.
        memory_bytes: Limit on the sum of what running tasks declare in `TaskSpec.memory_bytes`; a
            task that declares more runs when no other does that declares any. None for no limit.
        release: What must be equal in a cluster beside the protocol, see `SchedulerConfig`.
    """

    policy: str = "fifo"
    slots: int | None = None
    queue_max: int = 100_000
    heartbeat_s: float = 0.5
    ask_timeout_s: float = 0.5
    grace_s: float = 1.0
    executor_timeout_s: float = 5.0
    kill_wait_s: float = 10.0
    memory_bytes: int | None = None
    release: str = ""


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
        attributes: Sequence[str] = (),
        config: NodeMonitorConfig | None = None,
    ) -> None:
        """Make a node monitor without executors.

        `supervisor` is told of NodeRefused and Drained, and kills executors; without one, none is
        killed.

        Raises:
            SparrowError: There is no such policy.
        """
        self.name = name
        self.address = address
        self._schedulers = tuple(schedulers)
        self._supervisor = supervisor
        self._attributes = tuple(attributes)
        self._config = config or NodeMonitorConfig()
        # Components with state of their own.
        self._discipline = make_discipline(self._config.policy)
        self._pool = SlotPool(self._discipline, self._config.slots)
        self._memory = MemoryBudget(self._config.memory_bytes)
        self._lanes = Lanes(self._discipline)
        self._unreported = Unreported()
        self._heard = Peers[Address]()  # executors, silent ones too
        # A reservation's way: queued, asking, ready, running.
        self._queue: OrderedDict[JobId, Queued] = OrderedDict()
        self._queued = 0  # reservations in the queue
        self._asking: dict[int, Asked] = {}  # by request number
        self._requests = 0  # the last request number
        self._ready: dict[TaskKey, NodeTask] = {}
        self._running: dict[TaskKey, NodeTask] = {}
        self._jobs: dict[JobId, NodeJob] = {}  # of which tasks or the shared part have come
        self._times = TaskTimes()  # of these jobs
        # Fenced ids, each with the one under which its job goes on, and of these what is here.
        self._moved: OrderedDict[JobId, JobId] = OrderedDict()
        self._earlier: dict[JobId, tuple[JobId, ...]] = {}
        # What has finished lately: the scheduler that was told of it may be the one that died.
        self._done: deque[tuple[JobId, TaskId]] = deque(maxlen=_DONE_MAX)
        self._weights = SetWeights()
        self._levels = 0  # the stamp of the last that was told
        # The scheduler to tell when the node falls idle, since the last task that ended.
        self._idle_to: Address | None = None
        # Executors that died. Messages from before their death may still arrive.
        self._gone: dict[Address, None] = {}
        self._deaths = 0
        self._last_death = ""
        self._flush_due = False
        self._draining = False
        self._held = False  # it drains, and must not leave yet
        self._left = False
        self._ticks = Ticks(address, self._config.heartbeat_s)

    def on_message(self, msg: NodeMonitorIn, now: float) -> list[Envelope]:
        match msg:  # the most frequent messages first
            case TasksEnded():
                return self._on_tasks_ended(msg, now)
            case Flush():
                return self._on_flush(now)
            case AssignTasks():
                return self._on_assign_tasks(msg, now)
            case Reserve():
                return self._on_reserve(msg, now)
            case JobShared():
                return self._on_job_shared(msg)
            case CancelReservations():
                return self._on_cancel_reservations(msg)
            case TakeOver():
                return self._on_take_over(msg)
            case EndJob():
                return self._end_jobs((msg.job_id,), now)
            case EndJobs():
                return self._end_jobs(msg.job_ids, now)
            case ProbeLoad():
                load = self._queued or -max(0, self._pool.total_room())
                return [Envelope(msg.scheduler, NodeLoad(msg.job_id, self.name, load))]
            case StopTask() | ReturnTask():
                return self._on_withdrawn(msg, now)
            case ExecutorStatus():
                return self._on_executor_status(msg, now)
            case ExecutorLost():
                return self._on_executor_lost(msg, now)
            case GetShared():
                return self._on_get_shared(msg)
            case SetWeights():
                return self._on_set_weights(msg)
            case SetSchedulers():
                for scheduler in self._schedulers:
                    if scheduler not in msg.schedulers:
                        self._unreported.take(scheduler)
                self._schedulers = msg.schedulers
                return self._register(now)
            case Drain():
                # Once it may leave, a late Drain with `hold` does not keep it.
                self._held = msg.hold and (self._held or not self._draining)
                self._draining = True
                return [*self._register(now), *self._wake()]
            case NodeRefused():
                return self._on_refused(msg)
            case Tick():
                return self._on_tick(msg, now)
            case _:
                assert_never(msg)

    def _on_refused(self, msg: NodeRefused) -> list[Envelope]:
        """Serve the other schedulers; the supervisor ends a node without any.

        A scheduler may have been started again in another release while the others are cut off
        from it, and this node is well.
        """
        self._unreported.take(msg.scheduler)
        self._schedulers = tuple(
            scheduler for scheduler in self._schedulers if scheduler != msg.scheduler
        )
        refusal = structs.replace(msg, others=bool(self._schedulers))
        return [Envelope(self._supervisor, refusal)] if self._supervisor else []

    def _wake(self) -> list[Envelope]:
        """Have a Flush come, if none is on its way."""
        if self._flush_due:
            return []
        self._flush_due = True
        return [Envelope(self.address, Flush())]

    def _on_flush(self, now: float) -> list[Envelope]:
        if not self._flush_due:
            return []  # a duplicate
        self._flush_due = False
        if self._ready or self._queue:  # else nothing is to be started
            self._pool.ahead = self._ahead()
        # Tasks that are here come before new requests: they have their slots already.
        out = [*self._start_ready(now), *self._ask(now), *self._report_at_once()]
        return [*out, *self._leave()] if self._draining else out

    # --- reservations --------------------------------------------------------------------------

    def _on_reserve(self, msg: Reserve, now: float) -> list[Envelope]:
        if msg.job_id in self._moved:
            return []
        room = 0 if self._draining else self._config.queue_max - self._queued
        count = min(msg.count, room)
        out: list[Envelope] = []
        if count < msg.count:
            refused = RefuseReservations(msg.job_id, self.name, msg.count - count)
            out.append(Envelope(msg.scheduler, refused))
        if not count:
            return out
        queued = self._queue.get(msg.job_id)
        if queued is None:
            queued = Queued(scheduler=msg.scheduler, count=0, claim=msg.claim, since=now)
            self._queue[msg.job_id] = queued
            self._lanes.add(msg.job_id, msg.claim)
        queued.count += count
        queued.claim = msg.claim
        self._queued += count
        return [*out, *self._wake()]

    def _unqueue(self, job_id: JobId) -> None:
        queued = self._queue.pop(job_id, None)
        if queued is not None:
            self._queued -= queued.count
            self._lanes.remove(job_id)
            assert self._queued >= 0

    def _on_cancel_reservations(self, msg: CancelReservations) -> list[Envelope]:
        self._unqueue(msg.job_id)
        # The scheduler sends no AssignTasks to a request that this message crossed.
        answered = self._stop_asking({msg.job_id: None})
        return self._wake() if answered or self._draining else []

    def _stop_asking(self, jobs: Mapping[JobId, None]) -> bool:
        """Expect no answer for these jobs; True if one was expected."""
        requests = [request for request, ask in self._asking.items() if ask.job_id in jobs]
        for request in requests:
            self._release_ask(self._asking.pop(request))
        return bool(requests)

    # --- asking for tasks ----------------------------------------------------------------------

    def _ahead(self) -> int:
        """How many tasks may be fetched beyond one per slot; 0 unless all jobs here are short.

        A fetched task is bound to this node. Were a long task in front of it, it would wait for
        that although other nodes may have free slots.
        """
        # What was lost before runs alone: it may be what kills executors, and others would be lost
        # with it, each time again.
        if any(key.attempt > 1 for key, _ in self._tasks()):
            return 0
        return self._times.least_ahead()

    def _ask(self, now: float) -> list[Envelope]:
        """Ask for as many tasks as slots are free, in one message per job."""
        asked: dict[JobId, Asked] = {}
        while (job_id := self._discipline.choose(self._askable(), now)) is not None:
            queued = self._queue[job_id]
            ask = asked.setdefault(job_id, Asked(job_id, queued.scheduler, queued.claim, 0, now))
            # If the discipline would choose the same job again, take all its slots in one step.
            steady = self._discipline.steady or len(self._queue) == 1
            count = self._unclaimed(queued) if steady else 1
            assert count > 0, "the discipline chose a job that may have no slot"
            ask.count += count
            self._pool.take(ask.claim, count)
            self._use_reservations(job_id, queued, count, now)
        if asked:
            self._idle_to = None  # it is not idle, or these requests tell of free slots
        return [self._get_tasks(ask) for ask in asked.values()]

    def _askable(self) -> Candidates:
        """The jobs for which a slot may be taken: the oldest of each lane, oldest first."""
        ahead = self._pool.ahead
        if not self._discipline.unbounded and self._pool.total_room(ahead) <= 0:
            return
        heads = self._lanes.heads()
        # Fairness: nobody fetches ahead while a job that may be next waits for its first slot. It
        # would find none free, as the others' tasks would always be more than the slots.
        if ahead and not all(job_id in self._jobs for job_id in heads):
            ahead = 0
        for job_id in heads:
            queued = self._queue[job_id]
            queued.ahead = ahead
            if self._unclaimed(queued) > 0:
                yield job_id, queued

    def _unclaimed(self, queued: Queued) -> int:
        """How many tasks of the job may be asked for now."""
        unasked = queued.claim.waiting - queued.asked if self._discipline.sticky else queued.count
        if self._discipline.unbounded:
            return unasked
        return min(unasked, self._pool.room(queued.claim.framework, queued.ahead))

    def _use_reservations(self, job_id: JobId, queued: Queued, count: int, now: float) -> None:
        queued.asked += count
        queued.since = now
        if self._discipline.sticky:
            return  # kept until an answer says that the job is drained
        queued.count -= count
        self._queued -= count
        assert queued.count >= 0
        if queued.count == 0:
            del self._queue[job_id]
            self._lanes.remove(job_id)

    def _get_tasks(self, ask: Asked) -> Envelope:
        self._requests += 1
        self._asking[self._requests] = ask
        reports = self._unreported.take(ask.scheduler)
        level = self._level(ask.count) if ask.claim.levels else None
        msg = GetTasks(
            job_id=ask.job_id, node=self.name, request=self._requests,
            count=ask.count, reports=reports, level=level,
        )  # fmt: skip
        return Envelope(ask.scheduler, msg)

    def _level(self, asked: int = 0) -> NodeLevel:
        """The node's level now, or as if it had not asked for that many tasks."""
        self._levels += 1
        return NodeLevel(self._queued - self._pool.total_room() - asked, self._levels)

    def _on_assign_tasks(self, msg: AssignTasks, now: float) -> list[Envelope]:
        # None: the answer is a duplicate, or came after its timeout. Its tasks are taken all the
        # same, because the scheduler counts them as running here.
        ask = self._asking.pop(msg.request, None)
        if msg.job_id in self._moved:  # other attempts at its tasks are placed by now
            if ask is not None:
                self._release_ask(ask)
            return self._wake()
        before = len(self._ready)
        for task in msg.tasks:
            key = TaskKey(msg.job_id, task.task_id, task.attempt)
            if key not in self._running:
                self._ready.setdefault(key, NodeTask(assignment=task, answer=msg, at=now))
        # The slots pass from the request to its tasks. Taking before releasing keeps the user's
        # share from being dropped in between.
        self._pool.take(msg.claim, len(self._ready) - before)
        if ask is not None:
            self._release_ask(ask)
        if msg.tasks:
            job = self._job(msg.job_id, msg.scheduler)
            job.scheduler = msg.scheduler
            if job.mean_s is None:
                self._times.note(job, policy.expected_s(msg.claim.task_s))
        if msg.drained:
            self._unqueue(msg.job_id)
        elif msg.job_id in self._queue:
            self._queue[msg.job_id].claim = msg.claim
        return self._wake()

    def _job(self, job_id: JobId, scheduler: Address) -> NodeJob:
        """A job, which is known here from now on."""
        job = self._jobs.get(job_id)
        if job is None:
            job = self._jobs[job_id] = NodeJob(scheduler)
            self._times.add(job)
        return job

    def _release_ask(self, ask: Asked) -> None:
        self._pool.release(ask.claim, None, ask.count)
        if ask.job_id in self._queue:
            queued = self._queue[ask.job_id]
            # At least 0: the job may have been dropped and queued again meanwhile.
            queued.asked = max(0, queued.asked - ask.count)

    def _give_up_asking(self, now: float) -> None:
        """Drop the reservations of schedulers that have not answered in time."""
        silent: dict[Address, None] = {}
        for request, ask in tuple(self._asking.items()):
            if ask.at <= now - self._config.ask_timeout_s:
                self._release_ask(self._asking.pop(request))
                silent[ask.scheduler] = None
        # All of theirs, or each would cost a slot for another `ask_timeout_s`.
        for job_id in [id_ for id_, queued in self._queue.items() if queued.scheduler in silent]:
            self._unqueue(job_id)

    # --- running tasks -------------------------------------------------------------------------

    def _start_ready(self, now: float) -> list[Envelope]:
        """Give ready tasks to executors with room, in one message per job and executor."""
        started: dict[tuple[Address, JobId], list[NodeTask]] = {}
        full: dict[str, None] = {}  # frameworks without a free executor
        self._memory.look_again()
        for key, task in tuple(self._ready.items()):
            needs = task.assignment.memory_bytes
            if needs and not self._memory.admits(needs):
                continue
            framework = task.answer.claim.framework
            executor = None if framework in full else self._pool.idlest(framework)
            if executor is None:
                full[framework] = None
                continue
            del self._ready[key]
            assert key not in self._running
            at = executor.info.address
            task.executor, task.at = at, now
            self._running[key] = task
            self._memory.take(needs)
            executor.running[key] = None
            started.setdefault((at, key.job_id), []).append(task)
        out: list[Envelope] = []
        for (at, job_id), tasks in started.items():
            answer = tasks[0].answer
            assignments = tuple([task.assignment for task in tasks])
            run = RunTasks(
                job_id, answer.client, answer.has_shared, assignments, answer.claim.task_s
            )
            out += [*self._share(job_id, at), Envelope(at, run)]
        return out

    def _share(self, job_id: JobId, executor: Address) -> list[Envelope]:
        """The job's shared part, before the first of its tasks to this executor."""
        job = self._jobs[job_id]
        if job.shared is None or executor in job.shared_with:
            return []  # not needed, or lost: then the executor asks for it
        job.shared_with[executor] = None
        return [Envelope(executor, JobShared(job_id, job.scheduler, job.shared))]

    def _on_job_shared(self, msg: JobShared) -> list[Envelope]:
        if msg.job_id in self._jobs or msg.job_id not in self._moved:
            self._job(msg.job_id, msg.scheduler).shared = msg.shared
        return []

    def _on_get_shared(self, msg: GetShared) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        if job is None:
            return [Envelope(msg.asker, EndJob(msg.job_id))]
        if job.shared is None:
            return [Envelope(job.scheduler, msg)]  # which answers the executor directly
        return [Envelope(msg.asker, JobShared(msg.job_id, job.scheduler, job.shared))]

    def _on_tasks_ended(self, msg: TasksEnded, now: float) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        for end in msg.ends:
            key = TaskKey(msg.job_id, end.task_id, end.attempt)
            task = self._running.get(key)
            if task is None or task.executor != msg.executor:
                continue  # a duplicate, or given up before
            if job is not None and end.run_s is not None:
                self._times.note(job, policy.smoothed(job.mean_s, end.run_s))
            self._pool.sum_up(task.executor, end)
            self._end_task(key, end.lost, now - task.at)
        return self._wake()

    def _end_task(
        self,
        key: TaskKey,
        lost: str | None,
        ran_s: float | None = None,
        blame: Blame = Blame.DEATH,
    ) -> None:
        """A running task has ended, or is given up: free its slot and report it."""
        task = self._running.pop(key)
        assert task.executor is not None, "a running task has an executor"
        executor = self._pool.executors.get(task.executor)
        if executor is not None:  # else it has just been removed with all that it ran
            del executor.running[key]
        self._pool.release(task.answer.claim, ran_s)
        self._memory.give_back(task.assignment.memory_bytes)
        to, executor_name = task.answer.scheduler, name_of(task.executor)
        self._unreported.add(to, key, executor_name, lost, blame)
        if lost is None:
            self._done.append((key.job_id, key.task_id))
        if task.answer.claim.levels:
            self._idle_to = task.answer.scheduler

    def _on_withdrawn(self, msg: StopTask | ReturnTask, now: float) -> list[Envelope]:
        """A client has withdrawn a task: drop it, or have its executor do so."""
        if isinstance(msg, ReturnTask) and msg.job_id in self._moved:
            return []  # asked of the old scheduler; the client heeds answers of the new one
        running = self._running.get(msg.key)
        if running is not None and running.executor is not None:
            if isinstance(msg, StopTask) and running.unwanted_at is None:
                running.unwanted_at = now
            return [Envelope(running.executor, msg)]
        ready = self._ready.pop(msg.key, None)
        if ready is None:
            return []  # it has ended
        self._pool.release(ready.answer.claim)
        self._unreported.add(ready.answer.scheduler, msg.key, "", None)
        if isinstance(msg, StopTask):
            return self._wake()
        withdrawn = TasksWithdrawn(msg.job_id, (msg.key.task_id,))
        return [Envelope(msg.client, withdrawn), *self._wake()]

    def _report_at_once(self) -> list[Envelope]:
        """Report lost attempts; successes ride on the next request or heartbeat.

        If the node has fallen idle, no request comes: the scheduler of the last task is told if its
        placement wants to know.
        """
        ends, to = self._unreported, self._idle_to
        out: list[Envelope] = []
        if to is not None and self._pool.total_room() > 0:
            out.append(Envelope(to, ReportTasks(ends.take(to), self.name, self._level())))
            self._idle_to = None
        return [*out, *(Envelope(to, ReportTasks(ends.take(to))) for to in ends.urgent())]

    def _on_take_over(self, msg: TakeOver) -> list[Envelope]:
        """Jobs are another scheduler's from now on, with the attempts that are here."""
        current: dict[JobId, JobId] = {}
        for job in msg.jobs:
            # For one that has moved on since, the message is late: it has nothing here. None
            # replaces itself.
            if job.job_id not in self._moved and job.job_id not in job.replaces:
                self._fence(job, msg.scheduler)
                current.update(dict.fromkeys(job.replaces, job.job_id))
        while len(self._moved) > _MOVED_MAX:
            self._moved.popitem(last=False)
        answered = self._stop_asking(dict.fromkeys(current))
        running: dict[JobId, list[TaskKey]] = {}
        for key, task in self._tasks():
            if key.job_id in current:
                task.answer = structs.replace(task.answer, scheduler=msg.scheduler)
                running.setdefault(current[key.job_id], []).append(key)
        done: dict[JobId, dict[TaskId, None]] = {}
        for job_id, task_id in (*self._unreported.withdraw(current), *self._done):
            if job_id in current:
                done.setdefault(current[job_id], {})[task_id] = None
        kept = tuple(
            KeptJob(moved.job_id, tuple(running.get(moved.job_id, ())),
                    tuple(done.get(moved.job_id, ())))
            for moved in msg.jobs
        )  # fmt: skip
        woken = self._wake() if answered or self._draining else []
        return [Envelope(msg.scheduler, TakenOver(self.name, kept)), *woken]

    def _fence(self, job: MovedJob, scheduler: Address) -> None:
        """Take nothing of the job's earlier submissions from other schedulers any more."""
        here = dict.fromkeys(self._earlier.pop(job.job_id, ()))
        for job_id in job.replaces:
            here.update(dict.fromkeys(self._earlier.pop(job_id, ())))
            if job_id in self._jobs:
                here[job_id] = None
            self._moved[job_id] = job.job_id
            self._unqueue(job_id)
        if here:
            self._earlier[job.job_id] = tuple(here)
        for job_id in here:
            self._jobs[job_id].scheduler = scheduler

    def _end_jobs(self, job_ids: tuple[JobId, ...], now: float) -> list[Envelope]:
        """Forget jobs, and have executors forget them that may have something of them."""
        over: dict[JobId, None] = {}
        for job_id in job_ids:
            if job_id not in self._moved:  # else the old scheduler has no say any more
                over[job_id] = None
                over.update(dict.fromkeys(self._earlier.pop(job_id, ())))
        for job_id in over:
            self._unqueue(job_id)
        for key in tuple(self._ready):
            if key.job_id in over:
                self._pool.release(self._ready.pop(key).answer.claim)
        answered = self._stop_asking(over)
        ending = {job_id: job for job_id in over if (job := self._jobs.pop(job_id, None))}
        for job in ending.values():
            self._times.remove(job)
        if not ending:
            return self._wake() if answered or self._draining else []
        # Running tasks keep their slots until the executor says that it has stopped them.
        for key, task in self._running.items():
            if key.job_id in ending and task.unwanted_at is None:
                task.unwanted_at = now
        msg = EndJobs(tuple(ending))
        return [*(Envelope(executor, msg) for executor in self._pool.executors), *self._wake()]

    def _tasks(self) -> Iterator[tuple[TaskKey, NodeTask]]:
        yield from self._ready.items()
        yield from self._running.items()

    # --- executors -----------------------------------------------------------------------------

    def _on_executor_status(self, msg: ExecutorStatus, now: float) -> list[Envelope]:
        address = msg.info.address
        if address in self._gone:
            return []  # sent before it died
        # Attempts that were given up, for instance while the executor was thought dead.
        out = [
            Envelope(address, StopTask(key))
            for key in msg.running
            if key not in self._running or self._running[key].executor != address
        ]
        self._heard.heard(address, now)
        if address not in self._pool.executors:
            self._pool.add(msg.info)
            return [*out, *self._register(now), *self._wake()]
        executor = self._pool.executors[address]
        running = dict.fromkeys(msg.running)
        for key in tuple(executor.running):
            if key not in running and self._running[key].at <= now - self._config.grace_s:
                self._end_task(key, "the executor does not know of it", blame=Blame.NONE)
        over = tuple(job_id for job_id in msg.jobs if job_id not in self._jobs)
        if over:
            out.append(Envelope(address, EndJobs(over)))
        return [*out, *self._wake()]

    def _on_executor_lost(self, msg: ExecutorLost, now: float) -> list[Envelope]:
        if msg.executor in self._gone:
            return []  # a duplicate, or it was killed on request
        return self._bury(msg.executor, msg.reason, now)

    def _bury(self, address: Address, reason: str, now: float) -> list[Envelope]:
        """An executor is dead, or about to be: nothing more is taken from it."""
        self._gone[address] = None
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._deaths += 1
        self._last_death = f"{name_of(address)}: {reason}{self._at_work(address)}"
        out = self._lose(address, self._pool.remove(address), reason, now)
        self._heard.forget(address)
        return out

    def _at_work(self, address: Address) -> str:
        """What an executor has been running, for the message about its death."""
        executor = self._pool.executors.get(address)
        tasks = [str(key.task_id) for key in executor.running] if executor is not None else []
        return f", while it had task {', '.join(tasks)}" if tasks else ""

    def _lose(
        self, address: Address, executor: NodeExecutor | None, reason: str, now: float
    ) -> list[Envelope]:
        if executor is None:
            return []  # died before it registered, or was silent for long before
        out: list[Envelope] = []
        silent_s = self._heard.silent_s(address, now)
        for key in executor.running:
            task = self._running[key]
            if task.unwanted_at is None and task.overtime_s(now) > 0:
                out.append(self._timed_out(key, task))
                self._end_task(key, None)
            else:
                blame = self._blame(task, silent_s, now)
                self._end_task(key, f"executor lost ({reason})", blame=blame)
        for job in self._jobs.values():
            job.shared_with.pop(address, None)
        # Schedulers learn at once that there are fewer slots, or none.
        return [*out, *self._register(now), *self._wake()]

    def _blame(self, task: NodeTask, silent_s: float, now: float) -> Blame:
        """A task that came when its executor was silent already has not silenced it."""
        is_silent = silent_s > self._config.executor_timeout_s
        heard_until = now - silent_s + 2 * self._config.heartbeat_s
        return Blame.SILENCE if is_silent and task.at <= heard_until else Blame.DEATH

    def _timed_out(self, key: TaskKey, task: NodeTask) -> Envelope:
        """Tell the client what the executor did not: trying again would take as long."""
        assert task.executor is not None, "a running task has one"
        text = f"it ran longer than {task.answer.limit_s:g} s, and did not end"
        executor = name_of(task.executor)
        error = TaskError(key, self.name, executor, text, b"", timed_out=True)
        return Envelope(task.answer.client, error)

    def _look_at_executors(self, now: float) -> list[Envelope]:
        """Give silent executors up; kill those that stay silent, or do not end a task in time."""
        out: list[Envelope] = []
        timeout_s = self._config.executor_timeout_s
        for at, executor in (*self._pool.executors.items(), *self._pool.silent.items()):
            silent_s = self._heard.silent_s(at, now)
            task = self._oldest(executor, now) if at in self._pool.executors else None
            reason = self._why_kill(silent_s, task, now)
            if reason is not None:
                killed = f"{reason}, and killed"
                out += self._bury(at, killed, now)
                assert self._supervisor is not None, "there is one to kill it"
                out.append(Envelope(self._supervisor, KillExecutor(at, reason)))
            elif silent_s > timeout_s and at in self._pool.executors and not self._keeps(task):
                given_up = self._pool.give_up(at)
                out += self._lose(at, given_up, f"silent for {timeout_s:g} s", now)
        return out

    def _oldest(self, executor: NodeExecutor, now: float) -> NodeTask | None:
        """The task that an executor has surely begun: others may wait behind it."""
        key = next(iter(executor.running), None)
        if key is None:
            return None
        task = self._running[key]
        if task.first_at is None:
            task.first_at = now
        return task

    def _why_kill(self, silent_s: float, task: NodeTask | None, now: float) -> str | None:
        """Why an executor with this oldest task is to be killed; None if it is not."""
        config = self._config
        if self._supervisor is None:
            return None
        if silent_s > config.executor_timeout_s + config.kill_wait_s:
            return f"silent for {silent_s:.0f} s"
        overtime_s = 0.0 if task is None else task.overtime_s(now)
        # Where an executor is heard, inputs may be on their way, or a result is being stored.
        if overtime_s > config.kill_wait_s or self._is_unheard(min(overtime_s, silent_s)):
            return f"did not end a task {overtime_s:.0f} s after it should have"
        return None

    def _is_unheard(self, silent_s: float) -> bool:
        return silent_s > _UNHEARD_BEATS * self._config.heartbeat_s

    def _keeps(self, task: NodeTask | None) -> bool:
        """Whether a silent executor keeps its task until it is killed.

        A second one may be silent because of what silenced the first: others are not to follow.
        """
        again = task is not None and task.assignment.attempt > 1
        return again and self._supervisor is not None

    # --- the node ------------------------------------------------------------------------------

    def _on_set_weights(self, msg: SetWeights) -> list[Envelope]:
        if msg.version > self._weights.version:
            self._weights = msg
            weights = {user: weight for user, weight in msg.weights if weight > 0}
            self._discipline.set_weights(weights)
        return []

    def _leave(self) -> list[Envelope]:
        """If the node drains and nothing is left: say so, and fall silent."""
        if self._left or self._held:
            return []
        if self._queue or self._asking or self._ready or self._running:
            return []
        self._left = True
        out = [
            Envelope(scheduler, NodeLeft(self.name, self._unreported.take(scheduler)))
            for scheduler in self._schedulers
        ]
        return [*out, Envelope(self._supervisor, Drained())] if self._supervisor else out

    @property
    def draining(self) -> bool:
        """Whether it takes no new reservations."""
        return self._draining

    @property
    def has_left(self) -> bool:
        """Whether it has drained, and told the schedulers."""
        return self._left

    def _on_tick(self, msg: Tick, now: float) -> list[Envelope]:
        if not self._ticks.is_due(msg.generation, now):
            return []
        self._give_up_asking(now)
        # Under a name, a new process tells higher stamps than the one before it.
        self._levels = max(self._levels, int(1e6 * now))
        # A node that was stopped would else declare its executors dead when it is resumed.
        stall_s = self._ticks.stall_s
        self._heard.forgive(stall_s, now)
        for task in self._running.values() if stall_s else ():
            task.excuse(stall_s)
        out = [self._ticks.next(), *self._look_at_executors(now)]
        return [*out, *self._register(now), *self._wake()]

    def _register(self, now: float) -> list[Envelope]:
        """Heartbeats: to each scheduler, what the node has of its jobs."""
        if self._left:
            return []  # a heartbeat would register the node again
        infos = tuple(executor.info for executor in self._pool.executors.values())
        longest = tuple(self._longest(now))
        return [self._heartbeat(scheduler, infos, longest) for scheduler in self._schedulers]

    def _longest(self, now: float) -> Iterator[RunningTask]:
        """Those that run the longest, for whoever wonders what a node is doing.

        Most tasks that run for less than a heartbeat would be over before anybody hears of them.
        """
        for key, task in itertools.islice(self._running.items(), _LONGEST_MAX):  # oldest first
            for_s = now - task.at
            if for_s < self._config.heartbeat_s:
                break
            assert task.executor is not None, "a running task has one"
            yield RunningTask(key, name_of(task.executor), for_s)

    def _heartbeat(
        self,
        scheduler: Address,
        infos: tuple[ExecutorInfo, ...],
        longest: tuple[RunningTask, ...],
    ) -> Envelope:
        # A job without reservations is named, too: the scheduler says if it is over.
        held: Counter[JobId] = Counter()
        for job_id, job in self._jobs.items():
            if job.scheduler == scheduler:
                held[self._moved.get(job_id, job_id)] = 0
        for job_id, queued in self._queue.items():
            if queued.scheduler == scheduler:
                held[job_id] += queued.count
        running = tuple(key for key, task in self._tasks() if task.answer.scheduler == scheduler)
        msg = RegisterNode(
            version=PROTOCOL_VERSION,
            name=self.name,
            address=self.address,
            executors=infos,
            held=tuple(HeldJob(job_id, count) for job_id, count in held.items()),
            running=running,
            attributes=self._attributes,
            draining=self._draining,
            load=(self._queued, len(self._running)),
            weights=self._weights,
            reports=self._unreported.take(scheduler),
            deaths=self._deaths,
            last_death=self._last_death,
            longest=longest,
            schedulers=self._schedulers,
            release=self._config.release,
        )
        return Envelope(scheduler, msg)

    # --- observation ---------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        return {
            "queued": self._queued,
            "asking": sum(ask.count for ask in self._asking.values()),
            "ready": len(self._ready),
            "running": len(self._running),
            "slots_free": max(0, self._pool.total_room()),
            "executors": len(self._pool.executors),
        }

    def figures(self) -> Iterator[Figure]:
        return self._pool.figures()

    def check(self) -> None:
        """Assert that slots are never overcommitted and the indexes agree."""
        executors = self._pool.executors
        placed = {
            key: address for address, executor in executors.items() for key in executor.running
        }
        assert placed == {key: task.executor for key, task in self._running.items()}
        assert not self._ready.keys() & self._running.keys()
        assert all(queued.count > 0 for queued in self._queue.values())
        assert self._queued == sum(queued.count for queued in self._queue.values())
        assert self._queued <= self._config.queue_max
        self._memory.check([task.assignment.memory_bytes for task in self._running.values()])
        self._lanes.check(self._queue)
        assert all(key.job_id in self._jobs for key in self._ready)
        self._times.check(self._jobs.values())
        assert not executors.keys() & self._gone.keys()
        assert {*self._heard} == executors.keys() | self._pool.silent.keys()
        assert not self._queue.keys() & self._moved.keys()
        assert not self._earlier.keys() & self._moved.keys()
        earlier = {job_id for ids in self._earlier.values() for job_id in ids}
        assert earlier == self._jobs.keys() & self._moved.keys()
        taken = Counter(task.answer.claim for _, task in self._tasks())
        for ask in self._asking.values():
            taken[ask.claim] += ask.count
        self._pool.check(taken)
