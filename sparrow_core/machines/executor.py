"""The executor: passes tasks to its slots, results to clients, and ends to the node monitor.

Life of a task:

                       JobShared
    RunTasks ──▶ unshared ──▶ waiting ──slot free──▶ running ──SlotDone──▶ TaskResults or TaskError
       │                        ▲                       │                  to the client, TasksEnded
       └── shared part is here ─┘                       │                  to the node monitor
                                        StopTask, EndJob: InterruptTask; its outcome is discarded

A slot is an address: a thread with a runner in reality, a delayed message in simulation. Executors
outlive jobs; the shared part of a job is kept until EndJob.

What the executor relies on: messages from the node monitor may be lost or duplicated (a heartbeat
lists what it has, so that both sides notice), while slots are in the same process, whose messages
arrive once and in order. Bounds: tasks by the slots that the node monitor counts; shared parts by
open jobs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, assert_never

from msgspec import Struct

from machine_kit.addresses import Address, name_of
from machine_kit.machine import Envelope, Tick
from machine_kit.ticks import Ticks
from sparrow_core.policy import sampling as policy
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    EndJob,
    EndJobs,
    ExecutorIn,
    ExecutorStatus,
    ForgetJob,
    GetShared,
    InterruptTask,
    JobShared,
    ReturnTask,
    RunTasks,
    SlotDone,
    SlotReady,
    StartTasks,
    StopTask,
    TaskError,
    TaskResults,
    TasksEnded,
    TasksWithdrawn,
    TellOutcomes,
)
from sparrow_core.protocol.types import (
    Assignment,
    AttemptEnd,
    ExecutorInfo,
    Result,
    SlotOutcome,
    TaskKey,
)


class _Task(Struct):
    """A task that waits (`slot` is None) or is at a slot; it came with the message `batch`.

    `wanted_back` is the request for its return, if there is one.
    """

    assignment: Assignment
    batch: RunTasks
    slot: Address | None = None
    interrupted: bool = False
    wanted_back: ReturnTask | None = None


@dataclass(slots=True)
class _Job:
    """A job here.

    Attributes:
        slots: That have run its tasks, and must be told when it ends.
        mean_s: Running mean of its task times; None before the first.
        load_max: Tasks that a slot may have, including the running one.
        batch: Tasks that a slot is woken up for.
    """

    slots: dict[Address, None] = field(default_factory=dict)
    mean_s: float | None = None
    load_max: int = 1
    batch: int = 1

    def expect(self, mean_s: float) -> None:
        """Its tasks take so long on average."""
        self.mean_s = mean_s
        self.load_max = 1 + policy.tasks_ahead(mean_s)
        self.batch = min(policy.batch_size(mean_s), self.load_max)


@dataclass(slots=True)
class _Ended:
    """Results and ends of tasks of one job, to be reported together."""

    results: list[Result] = field(default_factory=list)
    ends: list[AttemptEnd] = field(default_factory=list)


class Executor:
    """One executor of a node; it registers when all its slots are ready."""

    inputs: ClassVar[Any] = ExecutorIn

    def __init__(
        self,
        address: Address,
        node: NodeName,
        node_monitor: Address,
        slots: Sequence[Address],
        *,
        pid: int = 0,
        framework: str = "",
        heartbeat_s: float = 0.5,
    ) -> None:
        """Make an executor whose slots have yet to send SlotReady."""
        self.address = address
        self.name = name_of(address)
        self._node = node
        self._node_monitor = node_monitor
        self._info = ExecutorInfo(address, pid, len(slots), framework)
        self._slots = tuple(slots)
        self._load: dict[Address, int] = {}  # tasks at each ready slot
        self._turn = 0  # number of the slot to fill next
        self._unready = dict.fromkeys(slots)
        self._waiting: OrderedDict[TaskKey, _Task] = OrderedDict()
        self._unshared: dict[TaskKey, _Task] = {}  # JobShared has not come yet
        self._running: dict[TaskKey, _Task] = {}
        self._shared: dict[JobId, bytes] = {}
        self._jobs: dict[JobId, _Job] = {}
        self._ticks = Ticks(address, heartbeat_s)

    def on_message(self, msg: ExecutorIn, now: float) -> list[Envelope]:
        match msg:
            case RunTasks():
                return self._on_run_tasks(msg)
            case SlotDone():
                return self._on_slot_done(msg)
            case JobShared():
                return self._on_job_shared(msg)
            case EndJob():
                return self._end_job(msg.job_id)
            case EndJobs():
                return [out for job_id in msg.job_ids for out in self._end_job(job_id)]
            case StopTask():
                return self._drop(msg.key) or self._interrupt(msg.key)
            case ReturnTask():
                return self._on_return_task(msg)
            case SlotReady():
                return self._on_slot_ready(msg)
            case Tick():
                return self._on_tick(msg, now)
            case _:
                assert_never(msg)

    def _on_run_tasks(self, msg: RunTasks) -> list[Envelope]:
        job_id = msg.job_id
        job = self._jobs.setdefault(job_id, _Job())
        if job.mean_s is None and (expected_s := policy.expected_s(msg.task_s)) is not None:
            job.expect(expected_s)
        unshared = msg.has_shared and job_id not in self._shared
        # Unshared ones wait: the next tick asks for the shared part.
        queue = self._unshared if unshared else self._waiting
        for assignment in msg.tasks:
            key = TaskKey(job_id, assignment.task_id, assignment.attempt)
            if key in self._waiting or key in self._unshared or key in self._running:
                continue  # a duplicate
            queue[key] = _Task(assignment, msg)
        return self._start()

    def _on_job_shared(self, msg: JobShared) -> list[Envelope]:
        self._shared[msg.job_id] = msg.shared
        self._jobs.setdefault(msg.job_id, _Job())
        for key in [key for key in self._unshared if key.job_id == msg.job_id]:
            self._waiting[key] = self._unshared.pop(key)
        return self._start()

    def _start(self) -> list[Envelope]:
        """Pass waiting tasks to slots, in one message per slot and job."""
        started: dict[tuple[Address, JobId], list[_Task]] = {}
        while self._waiting:  # in order: no task overtakes another one
            key, task = next(iter(self._waiting.items()))
            job = self._jobs[key.job_id]
            slot = self._slot_for(job)
            if slot is None:
                break
            self._waiting.popitem(last=False)
            self._load[slot] += 1
            task.slot = slot
            self._running[key] = task
            job.slots[slot] = None
            started.setdefault((slot, key.job_id), []).append(task)
        out = []
        for (slot, job_id), tasks in started.items():
            shared = self._shared[job_id] if tasks[0].batch.has_shared else b""
            assignments = tuple([task.assignment for task in tasks])
            out.append(Envelope(slot, StartTasks(job_id, shared, assignments)))
        return out

    def _slot_for(self, job: _Job) -> Address | None:
        """An idle slot, or one with few tasks if the job's tasks are very short.

        Waking a thread takes longer than a very short task, so that these are passed in batches:
        a slot is filled up to `batch` before the next one is woken.
        """
        slot = self._slots[self._turn]
        load = self._load.get(slot, job.load_max)
        if load >= job.batch:
            self._turn = (self._turn + 1) % len(self._slots)
            slot = self._slots[self._turn]
            load = self._load.get(slot, job.load_max)
        if load >= job.load_max:
            slot = min(self._load, key=self._load.__getitem__, default=slot)
            load = self._load.get(slot, job.load_max)
        return slot if load < job.load_max else None

    def _on_slot_done(self, msg: SlotDone) -> list[Envelope]:
        out: list[Envelope] = []
        ended: dict[JobId, tuple[Address, _Ended]] = {}
        for outcome in msg.outcomes:
            task = self._running.get(outcome.key)
            if task is None or task.slot != msg.slot:
                continue  # a duplicate
            del self._running[outcome.key]
            self._load[msg.slot] -= 1
            assert self._load[msg.slot] >= 0
            job_id = outcome.key.job_id
            if job_id not in ended:
                ended[job_id] = (task.batch.client, _Ended())
            out += self._note_outcome(task, outcome, ended[job_id][1])
        for job_id, (client, tasks) in ended.items():
            out += self._report(job_id, client, tasks)
        return [*out, *self._start()]

    def _note_outcome(self, task: _Task, outcome: SlotOutcome, ended: _Ended) -> list[Envelope]:
        """Record an outcome for the report; a permanent failure is sent at once."""
        key, run_s, lost = outcome.key, None, None
        out: list[Envelope] = []
        if task.interrupted:
            pass  # its outcome is discarded
        elif outcome.returned:
            assert task.wanted_back is not None, "slots return what they are asked for"
            out.append(_returned(task.wanted_back))
        elif outcome.message is None:
            run_s = outcome.run_s
            ended.results.append(Result(key.task_id, key.attempt, run_s, outcome.result))
        elif outcome.retryable:
            lost = outcome.message
        else:
            error = TaskError(key, self._node, self.name, outcome.message, outcome.detail)
            out.append(Envelope(task.batch.client, error))
        ended.ends.append(AttemptEnd(key.task_id, key.attempt, run_s, lost))
        return out

    def _report(self, job_id: JobId, client: Address, ended: _Ended) -> list[Envelope]:
        out = []
        if ended.results:
            self._note_times(job_id, ended.results)
            results = TaskResults(job_id, self._node, self.name, tuple(ended.results))
            out.append(Envelope(client, results))
        ends = TasksEnded(job_id, self.address, tuple(ended.ends))
        return [*out, Envelope(self._node_monitor, ends)]

    def _note_times(self, job_id: JobId, results: list[Result]) -> None:
        job = self._jobs[job_id]
        mean_s = job.mean_s
        for result in results:
            mean_s = policy.smoothed(mean_s, result.run_s)
        assert mean_s is not None
        job.expect(mean_s)

    def _end_job(self, job_id: JobId) -> list[Envelope]:
        job = self._jobs.pop(job_id, None)
        if job is None:
            return []
        self._shared.pop(job_id, None)
        out: list[Envelope] = []
        dropped = []
        for queue in (self._waiting, self._unshared):
            for key in [key for key in queue if key.job_id == job_id]:
                del queue[key]
                dropped.append(AttemptEnd(key.task_id, key.attempt))
        if dropped:
            # They never ran, but the node monitor counts their slots as taken.
            ends = TasksEnded(job_id, self.address, tuple(dropped))
            out.append(Envelope(self._node_monitor, ends))
        for key in self._running:
            if key.job_id == job_id:
                out += self._interrupt(key)
        return [*out, *(Envelope(slot, ForgetJob(job_id)) for slot in job.slots)]

    def _on_return_task(self, msg: ReturnTask) -> list[Envelope]:
        running = self._running.get(msg.key)
        if running is not None and running.slot is not None:
            running.wanted_back = msg
            return [Envelope(running.slot, msg)]  # which may not have begun it
        dropped = self._drop(msg.key)
        return [*dropped, _returned(msg)] if dropped else []

    def _drop(self, key: TaskKey) -> list[Envelope]:
        """Drop an attempt that waits; nothing if there is none."""
        if self._waiting.pop(key, None) is None and self._unshared.pop(key, None) is None:
            return []
        # It never ran, but the node monitor may count its slot as taken.
        ends = (AttemptEnd(key.task_id, key.attempt),)
        return [Envelope(self._node_monitor, TasksEnded(key.job_id, self.address, ends))]

    def _interrupt(self, key: TaskKey) -> list[Envelope]:
        """Interrupt a running attempt; its outcome will be discarded."""
        task = self._running.get(key)
        if task is None or task.slot is None:
            return []
        # The runner may finish the task nevertheless; nobody wants its result any more.
        task.interrupted = True
        return [Envelope(task.slot, InterruptTask(key))]

    def _on_slot_ready(self, msg: SlotReady) -> list[Envelope]:
        if msg.slot not in self._unready:
            return []
        del self._unready[msg.slot]
        self._load[msg.slot] = 0
        return [] if self._unready else [self._status()]

    def _status(self) -> Envelope:
        running = (*self._waiting, *self._unshared, *self._running)
        return Envelope(self._node_monitor, ExecutorStatus(self._info, tuple(self._jobs), running))

    def _on_tick(self, msg: Tick, now: float) -> list[Envelope]:
        if not self._ticks.is_due(msg.generation, now):
            return []
        out = [self._ticks.next()]
        if self._unready:
            return out  # not registered yet: tasks would fail or wait
        out.append(self._status())
        out += [Envelope(slot, TellOutcomes()) for slot, load in self._load.items() if load]
        unshared = dict.fromkeys(key.job_id for key in self._unshared)
        out += [Envelope(self._node_monitor, GetShared(job, self.address)) for job in unshared]
        out += [  # again: the runner may not have been interruptible the first time
            interrupt
            for key, task in self._running.items()
            if task.interrupted
            for interrupt in self._interrupt(key)
        ]
        return out

    def gauges(self) -> dict[str, float]:
        return {
            "waiting": len(self._waiting) + len(self._unshared),
            "running": len(self._running),
            "slots_idle": sum(not load for load in self._load.values()),
            "jobs": len(self._jobs),
        }

    def check(self) -> None:
        """Assert that each task is in one state, and the load of slots."""
        assert sorted([*self._load, *self._unready]) == sorted(self._slots)
        load = Counter(task.slot for task in self._running.values())
        assert load == +Counter(self._load)
        assert not self._running.keys() & self._waiting.keys()
        assert not self._unshared.keys() & (self._waiting.keys() | self._running.keys())
        assert all(job_id in self._jobs for job_id in self._shared)
        assert all(key.job_id in self._jobs for key in (*self._waiting, *self._unshared))
        assert not any(key.job_id in self._shared for key in self._unshared)


def _returned(msg: ReturnTask) -> Envelope:
    return Envelope(msg.client, TasksWithdrawn(msg.job_id, (msg.key.task_id,)))
