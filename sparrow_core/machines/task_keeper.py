"""A node monitor's dealings with tasks, from reservations to reports."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from sparrow_core.machines.slots import Asked, MemoryBudget, NodeJob, NodeTask, SlotPool
from sparrow_core.machines.unreported import Unreported
from sparrow_core.policy import sampling as policy
from sparrow_core.policy.disciplines import Candidates, Lanes, Queued, make_discipline
from sparrow_core.protocol.ids import Address, JobId, NodeName, name_of
from sparrow_core.protocol.machine import Envelope
from sparrow_core.protocol.messages import (
    AssignTasks,
    CancelReservations,
    EndJob,
    EndJobs,
    Flush,
    GetShared,
    GetTasks,
    JobShared,
    RefuseReservations,
    ReportTasks,
    Reserve,
    RunTasks,
    SetWeights,
    TasksEnded,
)
from sparrow_core.protocol.types import TaskKey


class NodeMonitorConfig(Struct, frozen=True):
    """Limits of a node monitor.

    Attributes:
        policy: Name of the queue discipline, see `disciplines.DISCIPLINES`.
        slots: How many tasks run at once at most, over all executors; None for all their slots.
        queue_max: How many reservations may be queued; more are refused.
        heartbeat_s: How often schedulers hear from the node.
        ask_timeout_s: How long a slot is kept for a scheduler's answer.
        grace_s: How long a task may be on its way to an executor that does not know of it.
        executor_timeout_s: An executor silent for this long is dead, until it is heard again.
        memory_bytes: How much the tasks that run at once may need together, of what they say that
            they need; a task that needs more runs when none that needs any does. None: any amount.
    """

    policy: str = "fifo"
    slots: int | None = None
    queue_max: int = 100_000
    heartbeat_s: float = 0.5
    ask_timeout_s: float = 0.5
    grace_s: float = 1.0
    executor_timeout_s: float = 5.0
    memory_bytes: int | None = None


class TaskKeeper:
    """What a node monitor does for tasks; each method returns what is to be sent."""

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

        Args:
            name: Of the node.
            address: Of this machine.
            schedulers: To which the node announces itself.
            supervisor: Hears of NodeRefused and Drained.
            attributes: What jobs may require of a node, such as "gpu" or "zone=a".
            config: Policy and limits.

        Raises:
            SparrowError: There is no such policy.
        """
        self.name = name
        self.address = address
        self._schedulers = tuple(schedulers)
        self._supervisor = supervisor
        self._attributes = tuple(attributes)
        self._config = config or NodeMonitorConfig()
        self._discipline = make_discipline(self._config.policy)
        self._pool = SlotPool(self._discipline, self._config.slots)
        self._memory = MemoryBudget(self._config.memory_bytes)
        self._gone: dict[Address, None] = {}
        self._queue: OrderedDict[JobId, Queued] = OrderedDict()
        self._lanes = Lanes(self._discipline)
        self._queued = 0  # reservations in the queue
        self._asking: dict[int, Asked] = {}
        self._ready: dict[TaskKey, NodeTask] = {}
        self._running: dict[TaskKey, NodeTask] = {}
        self._jobs: dict[JobId, NodeJob] = {}
        self._unreported = Unreported()
        self._weights = SetWeights()
        self._requests = 0
        self._deaths = 0  # of executors
        self._last_death = ""
        self._flush_due = False
        self._draining = False
        self._left = False
        self._generation = 0

    def _wake(self) -> list[Envelope]:
        if self._flush_due:
            return []
        self._flush_due = True
        return [Envelope(self.address, Flush())]

    # --- reservations and tasks ----------------------------------------------------------------

    def _on_reserve(self, msg: Reserve, now: float) -> list[Envelope]:
        room = 0 if self._draining else self._config.queue_max - self._queued
        count = min(msg.count, room)
        out: list[Envelope] = []
        if count < msg.count:
            refused = RefuseReservations(msg.job_id, self.name, msg.count - count)
            out.append(Envelope(msg.scheduler, refused))
        if not count:
            return out
        if msg.job_id not in self._queue:
            self._queue[msg.job_id] = Queued(msg.scheduler, 0, msg.claim, now)
            self._lanes.add(msg.job_id, msg.claim)
        queued = self._queue[msg.job_id]
        queued.count += count
        queued.claim = msg.claim
        self._queued += count
        return [*out, *self._wake()]

    def _unqueue(self, job_id: JobId) -> None:
        queued = self._queue.pop(job_id, None)
        if queued is not None:
            self._queued -= queued.count
            self._lanes.remove(job_id)

    def _on_cancel_reservations(self, msg: CancelReservations) -> list[Envelope]:
        self._unqueue(msg.job_id)
        answered = self._stop_asking({msg.job_id: None})
        return self._wake() if answered or self._draining else []

    def _stop_asking(self, jobs: Mapping[JobId, None]) -> bool:
        """Expect no answer for these jobs; True if one was expected."""
        requests = [request for request, ask in self._asking.items() if ask.job_id in jobs]
        for request in requests:
            self._release_ask(self._asking.pop(request))
        return bool(requests)

    def _ahead(self) -> int:
        """None while a job here has long or unknown tasks: those of others would wait for it."""
        least = policy.AHEAD_MAX if self._jobs else 0
        for job in reversed(self._jobs.values()):  # of the latest the least is known
            least = min(least, policy.tasks_ahead(job.mean_s))
            if not least:
                break
        return least

    def _start_ready(self, now: float) -> list[Envelope]:
        """Give tasks that wait to executors with room, in one message for each of their jobs."""
        started: dict[tuple[Address, JobId], list[NodeTask]] = {}
        full: dict[str, None] = {}
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
            at = executor.info.address
            task.executor, task.at = at, now
            self._running[key] = task
            self._memory.take(needs)
            executor.running[key] = None
            started.setdefault((at, key.job_id), []).append(task)
        return [
            envelope
            for (executor_at, job_id), tasks in started.items()
            for envelope in self._run(executor_at, job_id, tasks)
        ]

    def _run(self, executor: Address, job_id: JobId, tasks: list[NodeTask]) -> list[Envelope]:
        answer = tasks[0].answer
        assignments = tuple([task.assignment for task in tasks])
        run = RunTasks(job_id, answer.client, answer.has_shared, assignments)
        return [*self._share(job_id, executor), Envelope(executor, run)]

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
        """Ask for as many tasks as slots are free, one message a job."""
        asked: dict[JobId, Asked] = {}
        while (job_id := self._discipline.choose(self._askable(), now)) is not None:
            queued = self._queue[job_id]
            ask = asked.setdefault(job_id, Asked(job_id, queued.scheduler, queued.claim, 0, now))
            steady = self._discipline.steady or len(self._queue) == 1
            count = self._unclaimed(queued) if steady else 1
            ask.count += count
            self._pool.take(ask.claim, count)
            self._use_reservations(job_id, queued, count, now)
        return [self._get_tasks(ask) for ask in asked.values()]

    def _askable(self) -> Candidates:
        """The jobs for which a slot may be taken, oldest first, of each lane the oldest.

        Nothing is fetched ahead of a job that waits for a slot and has had none yet.
        """
        ahead = self._pool.ahead
        if not self._discipline.unbounded and self._pool.total_room(ahead) <= 0:
            return
        earlier = iter(self._queue)
        for job_id in self._lanes.heads():
            if ahead and not self._served_up_to(job_id, earlier):
                ahead = 0
            queued = self._queue[job_id]
            queued.ahead = ahead
            if self._unclaimed(queued) > 0:
                yield job_id, queued

    def _served_up_to(self, job_id: JobId, queue: Iterator[JobId]) -> bool:
        """Whether each job from here on to this one has had a slot; leaves the queue behind it."""
        for other in queue:
            if other not in self._jobs:
                return False
            if other == job_id:
                break
        return True

    def _unclaimed(self, queued: Queued) -> int:
        """How many tasks of the job may be asked for now."""
        wanted = queued.claim.waiting - queued.asked if self._discipline.sticky else queued.count
        if self._discipline.unbounded:
            return wanted
        return min(wanted, self._pool.room(queued.claim.framework, queued.ahead))

    def _use_reservations(self, job_id: JobId, queued: Queued, count: int, now: float) -> None:
        queued.asked += count
        queued.since = now
        if self._discipline.sticky:
            return  # until an answer says that the job is drained
        queued.count -= count
        self._queued -= count
        if queued.count == 0:
            del self._queue[job_id]
            self._lanes.remove(job_id)

    def _get_tasks(self, ask: Asked) -> Envelope:
        self._requests += 1
        self._asking[self._requests] = ask
        reports = self._unreported.take(ask.scheduler)
        msg = GetTasks(ask.job_id, self.name, self._requests, ask.count, reports)
        return Envelope(ask.scheduler, msg)

    def _report_losses(self) -> list[Envelope]:
        """Tell of lost attempts at once; successes ride on the next request or heartbeat."""
        ends = self._unreported
        return [Envelope(to, ReportTasks(ends.take(to))) for to in ends.urgent()]

    def _on_assign_tasks(self, msg: AssignTasks, now: float) -> list[Envelope]:
        ask = self._asking.pop(msg.request, None)  # None: the answer is late, or comes twice
        before = len(self._ready)
        for task in msg.tasks:
            key = TaskKey(msg.job_id, task.task_id, task.attempt)
            if key not in self._running:
                self._ready.setdefault(key, NodeTask(task, msg, now))
        self._pool.take(msg.claim, len(self._ready) - before)
        if ask is not None:
            self._release_ask(ask)
        if msg.tasks:
            self._jobs.setdefault(msg.job_id, NodeJob(msg.scheduler)).scheduler = msg.scheduler
        if msg.drained:
            self._unqueue(msg.job_id)
        elif msg.job_id in self._queue:
            self._queue[msg.job_id].claim = msg.claim
        return self._wake()

    def _release_ask(self, ask: Asked) -> None:
        self._pool.release(ask.claim, None, ask.count)
        if ask.job_id in self._queue:
            queued = self._queue[ask.job_id]
            queued.asked = max(0, queued.asked - ask.count)

    def _on_tasks_ended(self, msg: TasksEnded, now: float) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        for end in msg.ends:
            key = TaskKey(msg.job_id, end.task_id, end.attempt)
            task = self._running.get(key)
            if task is None or task.executor != msg.executor:
                continue  # told twice, or given up before
            if job is not None and end.run_s is not None:
                job.mean_s = policy.smoothed(job.mean_s, end.run_s)
            self._pool.sum_up(task.executor, end)
            self._end_task(key, end.lost, now - task.at)
        return self._wake()

    def _end_task(self, key: TaskKey, lost: str | None, ran_s: float | None = None) -> None:
        """A running task has ended, or is given up: free its slot and report it."""
        task = self._running.pop(key)
        assert task.executor is not None
        executor = self._pool.executors.get(task.executor)
        if executor is not None:
            del executor.running[key]
        self._pool.release(task.answer.claim, ran_s)
        self._memory.give_back(task.assignment.memory_bytes)
        self._unreported.add(task.answer.scheduler, key, name_of(task.executor), lost)

    def _end_jobs(self, job_ids: tuple[JobId, ...], msg: EndJob | EndJobs) -> list[Envelope]:
        """Forget jobs, and pass the message on if executors may have something of them."""
        over = dict.fromkeys(job_ids)
        for job_id in over:
            self._unqueue(job_id)
        for key in tuple(self._ready):
            if key.job_id in over:
                self._pool.release(self._ready.pop(key).answer.claim)
        answered = self._stop_asking(over)
        known = [self._jobs.pop(job_id, None) for job_id in over]
        if not any(known):
            return self._wake() if answered or self._draining else []
        return [*(Envelope(executor, msg) for executor in self._pool.executors), *self._wake()]

    def _on_get_shared(self, msg: GetShared) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        if job is None:
            return [Envelope(msg.asker, EndJob(msg.job_id))]
        if job.shared is None:
            return [Envelope(job.scheduler, msg)]
        return [Envelope(msg.asker, JobShared(msg.job_id, job.scheduler, job.shared))]

    def _give_up_asking(self, now: float) -> None:
        silent: dict[Address, None] = {}
        for request, ask in tuple(self._asking.items()):
            if ask.at <= now - self._config.ask_timeout_s:
                self._release_ask(self._asking.pop(request))
                silent[ask.scheduler] = None
        for job_id in [id_ for id_, each in self._queue.items() if each.scheduler in silent]:
            self._unqueue(job_id)

    def _tasks(self) -> Iterator[tuple[TaskKey, NodeTask]]:
        yield from self._ready.items()
        yield from self._running.items()
