"""The node monitor: queues reservations of a node and asks for tasks when a slot is free.

    Reserve ─▶ queue ─free slot─▶ asking ─AssignTasks─▶ ready ─▶ running ─TasksEnded─▶ report
                                    └─ no answer within `ask_timeout_s`: the scheduler is taken
    for dead and its reservations are dropped (if it lives, our heartbeat makes it restore them)

Which job is asked for next is up to the node's queue discipline. Everything that comes in together
is acted on together: the first message that could change what to do makes the machine send itself a
`Flush`, which comes after all that is already waiting; so a busy node sends few messages (one
GetTasks a job, with all reports in it). Bounds: running tasks by slots; asking plus ready by slots
plus answers that came too late; the queue by `queue_max`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, assert_never

from sparrow_core.machines.slots import NodeJob
from sparrow_core.machines.task_keeper import NodeMonitorConfig, TaskKeeper
from sparrow_core.protocol.ids import Address, JobId, name_of
from sparrow_core.protocol.machine import Envelope, Figure
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
    JobShared,
    NodeLeft,
    NodeLoad,
    NodeMonitorIn,
    NodeRefused,
    ProbeLoad,
    RegisterNode,
    Reserve,
    SetWeights,
    StopTask,
    TasksEnded,
    Tick,
)
from sparrow_core.protocol.types import ExecutorInfo, HeldJob

__all__ = ["NodeMonitor", "NodeMonitorConfig"]

_GONE_MAX = 1024


class NodeMonitor(TaskKeeper):
    """The node monitor of one node."""

    inputs: ClassVar[Any] = NodeMonitorIn

    def on_message(self, msg: NodeMonitorIn, now: float) -> list[Envelope]:
        """Take one message; see the module docstring."""
        match msg:
            case TasksEnded():
                return self._on_tasks_ended(msg, now)
            case Flush():
                return self._on_flush(now)
            case AssignTasks():
                return self._on_assign_tasks(msg, now)
            case Reserve():
                return self._on_reserve(msg, now)
            case JobShared():
                self._jobs.setdefault(msg.job_id, NodeJob(msg.scheduler)).shared = msg.shared
                return []
            case CancelReservations():
                return self._on_cancel_reservations(msg)
            case EndJob():
                return self._end_jobs((msg.job_id,), msg)
            case EndJobs():
                return self._end_jobs(msg.job_ids, msg)
            case ProbeLoad():
                load = self._queued or -max(0, self._pool.total_room())
                return [Envelope(msg.scheduler, NodeLoad(msg.job_id, self.name, load))]
            case ExecutorStatus():
                return self._on_executor_status(msg, now)
            case ExecutorLost():
                return self._on_executor_lost(msg)
            case GetShared():
                return self._on_get_shared(msg)
            case SetWeights():
                return self._on_set_weights(msg)
            case Drain():
                self._draining = True
                return [*self._register(), *self._wake()]
            case NodeRefused():
                return [Envelope(self._supervisor, msg)] if self._supervisor else []
            case Tick():
                return self._on_tick(msg, now)
            case _:
                assert_never(msg)

    def _on_flush(self, now: float) -> list[Envelope]:
        if not self._flush_due:
            return []  # a doubled note
        self._flush_due = False
        if self._ready or self._queue:  # else nothing is to be started
            self._pool.ahead = self._ahead()
        out = [*self._start_ready(now), *self._ask(now), *self._report_losses()]
        return [*out, *self._leave()] if self._draining else out

    # --- executors -----------------------------------------------------------------------------

    def _on_executor_status(self, msg: ExecutorStatus, now: float) -> list[Envelope]:
        address = msg.info.address
        if address in self._gone:
            return []  # sent before it died
        out = [
            Envelope(address, StopTask(key))
            for key in msg.running
            if key not in self._running or self._running[key].executor != address
        ]
        if address not in self._pool.executors:
            self._pool.add(msg.info, now)
            return [*out, *self._register(), *self._wake()]
        executor = self._pool.executors[address]
        executor.heard_at = now
        known = dict.fromkeys(msg.running)
        for key in tuple(executor.running):
            if key not in known and self._running[key].at <= now - self._config.grace_s:
                self._end_task(key, "the executor does not know of it")
        over = tuple(job_id for job_id in msg.jobs if job_id not in self._jobs)
        if over:
            out.append(Envelope(address, EndJobs(over)))
        return [*out, *self._wake()]

    def _on_executor_lost(self, msg: ExecutorLost) -> list[Envelope]:
        if msg.executor in self._gone:
            return []  # told twice
        self._gone[msg.executor] = None
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._deaths += 1
        self._last_death = f"{name_of(msg.executor)}: {msg.reason}{self._at_work(msg.executor)}"
        return self._lose_executor(msg.executor, msg.reason)

    def _at_work(self, address: Address) -> str:
        """What an executor has been running, in words."""
        executor = self._pool.executors.get(address)
        tasks = [str(key.task_id) for key in executor.running] if executor is not None else []
        return f", while it had task {', '.join(tasks)}" if tasks else ""

    def _lose_executor(self, address: Address, reason: str) -> list[Envelope]:
        executor = self._pool.remove(address)
        if executor is None:
            return []
        for key in executor.running:
            self._end_task(key, f"executor lost ({reason})")
        for job in self._jobs.values():
            job.told.pop(address, None)
        return [*self._register(), *self._wake()]

    # --- the node ------------------------------------------------------------------------------

    def _on_set_weights(self, msg: SetWeights) -> list[Envelope]:
        if msg.version > self._weights.version:
            self._weights = msg
            weights = {user: weight for user, weight in msg.weights if weight > 0}
            self._discipline.set_weights(weights)
        return []

    def _leave(self) -> list[Envelope]:
        """If the node drains and nothing is left: say so, and fall silent."""
        if self._left or self._queue or self._asking or self._ready or self._running:
            return []
        self._left = True
        out = [Envelope(scheduler, NodeLeft(self.name)) for scheduler in self._schedulers]
        return [*out, Envelope(self._supervisor, Drained())] if self._supervisor else out

    def _on_tick(self, msg: Tick, now: float) -> list[Envelope]:
        if msg.generation != self._generation:
            return []  # a doubled timer
        self._generation += 1
        self._give_up_asking(now)
        out = [Envelope(self.address, Tick(self._generation), self._config.heartbeat_s)]
        timeout_s = self._config.executor_timeout_s
        for executor in self._pool.silent(now, timeout_s, self._config.heartbeat_s):
            out += self._lose_executor(executor, f"silent for {timeout_s:g} s")
        return [*out, *self._register(), *self._wake()]

    def _register(self) -> list[Envelope]:
        """Heartbeats: to each scheduler, what the node has of its jobs."""
        if self._left:
            return []
        infos = tuple(executor.info for executor in self._pool.executors.values())
        return [self._heartbeat(scheduler, infos) for scheduler in self._schedulers]

    def _heartbeat(self, scheduler: Address, infos: tuple[ExecutorInfo, ...]) -> Envelope:
        held: Counter[JobId] = Counter()
        for job_id, job in self._jobs.items():
            if job.scheduler == scheduler:
                held[job_id] = 0
        for job_id, each in self._queue.items():
            if each.scheduler == scheduler:
                held[job_id] += each.count
        running = tuple(key for key, task in self._tasks() if task.answer.scheduler == scheduler)
        msg = RegisterNode(
            PROTOCOL_VERSION, self.name, self.address, infos,
            tuple(HeldJob(job_id, count) for job_id, count in held.items()), running,
            self._attributes, self._draining, (self._queued, len(self._running)), self._weights,
            self._unreported.take(scheduler), self._deaths, self._last_death,
        )  # fmt: skip
        return Envelope(scheduler, msg)

    def gauges(self) -> dict[str, float]:
        """How much there is of what."""
        return {
            "queued": self._queued,
            "asking": sum(ask.count for ask in self._asking.values()),
            "ready": len(self._ready),
            "running": len(self._running),
            "slots_free": max(0, self._pool.total_room()),
            "executors": len(self._pool.executors),
        }

    def figures(self) -> Iterator[Figure]:
        """What each executor has, and has done."""
        return self._pool.figures()

    def check(self) -> None:
        """Assert that slots are never overcommitted and the indexes agree."""
        executors = self._pool.executors
        placed = {key: address for address, each in executors.items() for key in each.running}
        assert placed == {key: task.executor for key, task in self._running.items()}
        assert not self._ready.keys() & self._running.keys()
        assert all(queued.count > 0 for queued in self._queue.values())
        assert self._queued == sum(queued.count for queued in self._queue.values())
        assert self._queued <= self._config.queue_max
        self._memory.check([task.assignment.memory_bytes for task in self._running.values()])
        self._lanes.check(self._queue)
        assert all(key.job_id in self._jobs for key in self._ready)
        assert not executors.keys() & self._gone.keys()
        taken = Counter(task.answer.claim.framework for _, task in self._tasks())
        for ask in self._asking.values():
            taken[ask.claim.framework] += ask.count
        self._pool.check(taken)
