"""The executor: gives tasks to its slots, results to clients, and slots back to the node monitor.

A slot is an address (a thread with a runner of its own in reality, a delayed message in
simulation). An executor outlives jobs; what the tasks of a job share is kept here until EndJob. Its
heartbeat tells the node monitor what it has, so that lost messages are found. Bounds: tasks by the
slots that the node monitor counts; shared parts by the open jobs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, assert_never

from sparrow_core import policy
from sparrow_core.ids import Address, JobId, NodeName, name_of
from sparrow_core.machine import Envelope
from sparrow_core.messages import (
    EndJob,
    EndJobs,
    ExecutorIn,
    ExecutorStatus,
    ForgetJob,
    GetShared,
    InterruptTask,
    JobShared,
    RunTask,
    SlotDone,
    SlotReady,
    StartTask,
    StopTask,
    TaskError,
    TaskFinished,
    TaskResult,
    Tick,
)
from sparrow_core.parts import ExecutorInfo, TaskKey


@dataclass(slots=True)
class _Running:
    slot: Address
    run: RunTask
    interrupted: bool = False


@dataclass(slots=True)
class _Job:
    """A job: the slots that have run its tasks, and how long these run lately."""

    slots: dict[Address, None] = field(default_factory=dict)
    mean_s: float | None = None


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
        """Make an executor whose slots are still to report SlotReady."""
        self.address = address
        self.name = name_of(address)
        self._node = node
        self._node_monitor = node_monitor
        self._info = ExecutorInfo(address, pid, len(slots), framework)
        self._heartbeat_s = heartbeat_s
        self._slots = tuple(slots)
        self._load: dict[Address, int] = {}  # tasks at each slot that is ready
        self._turn = 0  # the slot that is next, by number
        self._unready = dict.fromkeys(slots)
        self._waiting: OrderedDict[TaskKey, RunTask] = OrderedDict()
        self._running: dict[TaskKey, _Running] = {}
        self._shared: dict[JobId, bytes] = {}
        self._jobs: dict[JobId, _Job] = {}
        self._generation = 0

    def on_message(self, msg: ExecutorIn, now: float) -> list[Envelope]:
        """Take one message; see the module docstring."""
        del now  # an executor measures nothing: slots do
        match msg:
            case RunTask():
                return self._on_run_task(msg)
            case SlotDone():
                return self._on_slot_done(msg)
            case JobShared():
                self._shared[msg.job_id] = msg.shared
                self._jobs.setdefault(msg.job_id, _Job())
                return self._start()
            case EndJob():
                return self._end_job(msg.job_id)
            case EndJobs():
                return [out for job_id in msg.job_ids for out in self._end_job(job_id)]
            case StopTask():
                self._waiting.pop(msg.key, None)
                return self._interrupt(msg.key)
            case SlotReady():
                return self._on_slot_ready(msg)
            case Tick():
                return self._on_tick(msg)
            case _:
                assert_never(msg)

    def _on_run_task(self, msg: RunTask) -> list[Envelope]:
        if msg.key in self._running:
            return []  # told twice
        self._waiting[msg.key] = msg
        self._jobs.setdefault(msg.key.job_id, _Job())
        return self._start()

    def _start(self) -> list[Envelope]:
        out: list[Envelope] = []
        for key, run in tuple(self._waiting.items()):
            job = self._jobs[key.job_id]
            slot = self._slot_for(job)
            if slot is None:
                break
            if run.has_shared and key.job_id not in self._shared:
                continue  # asked for by the next tick
            del self._waiting[key]
            self._load[slot] += 1
            self._running[key] = _Running(slot, run)
            job.slots[slot] = None
            shared = self._shared[key.job_id] if run.has_shared else b""
            out.append(Envelope(slot, StartTask(key, shared, run.payload)))
        return out

    def _slot_for(self, job: _Job) -> Address | None:
        """An idle slot; one that runs something, too, if the job's tasks are short enough.

        Very short tasks come in batches: to wake a slot for each would take longer than they do.
        """
        ahead = policy.tasks_ahead(job.mean_s)
        slot = self._slots[self._turn]
        if self._load.get(slot, 0) >= policy.batch_size(job.mean_s):
            self._turn = (self._turn + 1) % len(self._slots)
            slot = self._slots[self._turn]
        if self._load.get(slot, ahead + 1) > ahead:
            slot = min(self._load, key=self._load.__getitem__, default=slot)
        return slot if self._load.get(slot, ahead + 1) <= ahead else None

    def _on_slot_done(self, msg: SlotDone) -> list[Envelope]:
        running = self._running.get(msg.key)
        if running is None or running.slot != msg.slot:
            return []  # told twice
        del self._running[msg.key]
        self._load[msg.slot] -= 1
        if running.interrupted:
            return [self._finished(msg.key), *self._start()]
        return [*self._outcome(running.run, msg), *self._start()]

    def _outcome(self, run: RunTask, msg: SlotDone) -> list[Envelope]:
        if msg.message is None:
            job = self._jobs[msg.key.job_id]
            job.mean_s = policy.smoothed(job.mean_s, msg.run_s)
            result = TaskResult(msg.key, self._node, self.name, msg.run_s, msg.result)
            finished = TaskFinished(msg.key, self.address, None, msg.run_s)
            return [Envelope(run.client, result), Envelope(self._node_monitor, finished)]
        if msg.retryable:
            return [self._finished(msg.key, msg.message)]
        error = TaskError(msg.key, self._node, self.name, msg.message, msg.detail)
        return [Envelope(run.client, error), self._finished(msg.key)]

    def _finished(self, key: TaskKey, lost: str | None = None) -> Envelope:
        return Envelope(self._node_monitor, TaskFinished(key, self.address, lost))

    def _end_job(self, job_id: JobId) -> list[Envelope]:
        job = self._jobs.pop(job_id, None)
        if job is None:
            return []
        self._shared.pop(job_id, None)
        out: list[Envelope] = []
        for key in [key for key in self._waiting if key.job_id == job_id]:
            del self._waiting[key]
            out.append(self._finished(key))
        for key in self._running:
            if key.job_id == job_id:
                out += self._interrupt(key)
        return [*out, *(Envelope(slot, ForgetJob(job_id)) for slot in job.slots)]

    def _interrupt(self, key: TaskKey) -> list[Envelope]:
        """Withhold the outcome of an attempt and make it stop, if it runs."""
        running = self._running.get(key)
        if running is None:
            return []
        running.interrupted = True
        return [Envelope(running.slot, InterruptTask(key))]

    def _on_slot_ready(self, msg: SlotReady) -> list[Envelope]:
        if msg.slot not in self._unready:
            return []
        del self._unready[msg.slot]
        self._load[msg.slot] = 0
        return [] if self._unready else [self._status()]

    def _status(self) -> Envelope:
        running = (*self._waiting, *self._running)
        return Envelope(self._node_monitor, ExecutorStatus(self._info, tuple(self._jobs), running))

    def _on_tick(self, msg: Tick) -> list[Envelope]:
        if msg.generation != self._generation:
            return []  # a doubled timer
        self._generation += 1
        out = [Envelope(self.address, Tick(self._generation), self._heartbeat_s)]
        if self._unready:
            return out
        out.append(self._status())
        unshared = {
            key.job_id: None
            for key, run in self._waiting.items()
            if run.has_shared and key.job_id not in self._shared
        }
        out += [Envelope(self._node_monitor, GetShared(job, self.address)) for job in unshared]
        out += [  # again: the runner may not have been interruptible at the first time
            Envelope(running.slot, InterruptTask(key))
            for key, running in self._running.items()
            if running.interrupted
        ]
        return out

    def gauges(self) -> dict[str, float]:
        """How much there is of what."""
        return {
            "waiting": len(self._waiting),
            "running": len(self._running),
            "slots_idle": sum(not load for load in self._load.values()),
            "jobs": len(self._jobs),
        }

    def check(self) -> None:
        """Assert that slots have the tasks that they are thought to have."""
        assert sorted([*self._load, *self._unready]) == sorted(self._slots)
        load = Counter(running.slot for running in self._running.values())
        assert load == +Counter(self._load)
        assert not self._running.keys() & self._waiting.keys()
        assert all(job_id in self._jobs for job_id in self._shared)
        assert all(key.job_id in self._jobs for key in self._waiting)
