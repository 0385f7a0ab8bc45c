"""A simulated cluster: production machines, slots that sleep, and one client."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, assert_never

import msgspec

from machine_kit.addresses import Address, address, endpoint_of
from machine_kit.machine import Envelope, Machine
from minishark_lab.simulator.world import World
from sparrow_core.machines.client import Client, ClientConfig
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.protocol.events import JobEvent, JobFailed, JobFinished, TaskCompleted
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    Drain,
    Drained,
    ExecutorLost,
    ForgetJob,
    InterruptTask,
    KillExecutor,
    KnownNodes,
    NodeRefused,
    Notify,
    ReturnTask,
    SchedulerSilent,
    SlotDone,
    SlotIn,
    SlotReady,
    StartTasks,
    TellOutcomes,
)
from sparrow_core.protocol.types import SlotOutcome, TaskKey

_DURATION = struct.Struct("<d")
_RESPAWN_S = 0.3
_SUPERVISED_S = 0.01
_QUIET_S = 1000.0


def payload_of(
    duration_s: float, homes: Sequence[str] = (), remote_factor: float = 1.0
) -> bytes:  # fmt: skip
    """The payload of a simulated task: its duration.

    On other nodes than its `homes`, if it has any, it takes `remote_factor` times as long.
    """
    if not homes:
        return _DURATION.pack(duration_s)
    return _DURATION.pack(duration_s) + _DURATION.pack(remote_factor) + ",".join(homes).encode()


def duration_of(payload: bytes, node: str = "") -> float:
    """The duration of a simulated task on a node (at home if none is given), in seconds."""
    duration_s: float = _DURATION.unpack_from(payload)[0]
    if len(payload) == _DURATION.size or not node:
        return duration_s
    homes = payload[2 * _DURATION.size :].decode().split(",")
    factor = 1.0 if node in homes else float(_DURATION.unpack_from(payload, _DURATION.size)[0])
    return duration_s * factor


class SimulatedSlot(Machine[SlotIn | SlotDone]):
    """A slot whose tasks take the time in their payload, and return that."""

    inputs: ClassVar[Any] = SlotIn | SlotDone

    def __init__(
        self,
        at: Address,
        executor: Address,
        on_run: Callable[[TaskKey], None],
        slowness: float,
        node: str = "",
    ) -> None:
        """Make a slot; `on_run` is called at each start, tasks take `slowness` times as long."""
        self._node = node
        self._slowness = slowness
        self._address = at
        self._executor = executor
        self._on_run = on_run
        self._running: TaskKey | None = None
        self._queue: dict[TaskKey, bytes] = {}

    def on_message(self, msg: SlotIn | SlotDone, now: float) -> list[Envelope]:
        """Start or interrupt a task; a SlotDone to itself is the end of a task."""
        match msg:
            case StartTasks():
                for task in msg.tasks:
                    key = TaskKey(msg.job_id, task.task_id, task.attempt)
                    self._queue[key] = task.payload
                return self._start()
            case SlotDone():
                return self._end(msg.outcomes[0])
            case InterruptTask():
                return self._end(
                    SlotOutcome(key=msg.key, run_s=0.0, result=b"", message="interrupted")
                )
            case ReturnTask():
                if msg.key not in self._queue:
                    return []  # it has begun
                return self._end(SlotOutcome(key=msg.key, run_s=0.0, result=b"", returned=True))
            case ForgetJob() | TellOutcomes():
                return []
            case _:
                assert_never(msg)

    def _end(self, outcome: SlotOutcome) -> list[Envelope]:
        if self._running == outcome.key:
            self._running = None
        elif self._queue.pop(outcome.key, None) is None:
            return []  # interrupted before
        done = SlotDone(self._address, (outcome,))
        return [Envelope(self._executor, done), *self._start()]

    def _start(self) -> list[Envelope]:
        if self._running is not None or not self._queue:
            return []
        self._running = next(iter(self._queue))
        payload = self._queue.pop(self._running)
        self._on_run(self._running)
        duration_s = duration_of(payload, self._node) * self._slowness
        done = SlotDone(
            self._address, (SlotOutcome(key=self._running, run_s=duration_s, result=payload),)
        )
        return [Envelope(self._address, done, duration_s)]

    def gauges(self) -> dict[str, float]:
        return {"running": float(self._running is not None)}


class Recorder:
    """The sink of a simulated client: records the results and ends of jobs."""

    inputs: ClassVar[Any] = Notify | KnownNodes | SchedulerSilent

    def __init__(self) -> None:
        self.completed: dict[JobId, dict[int, int]] = {}  # commits per task: must be 1
        self.ended: dict[JobId, JobFinished | JobFailed] = {}
        self.ended_at: dict[JobId, float] = {}
        self.silences: list[tuple[float, SchedulerSilent]] = []

    def on_message(self, msg: Notify | KnownNodes | SchedulerSilent, now: float) -> list[Envelope]:
        if isinstance(msg, Notify):
            for event in msg.events:
                self._record(msg.job_id, event, now)
        elif isinstance(msg, SchedulerSilent):
            self.silences.append((now, msg))
        return []

    def _record(self, job_id: JobId, event: JobEvent, now: float) -> None:
        assert job_id not in self.ended, f"{job_id} has an event after its end"
        if isinstance(event, TaskCompleted):
            tasks = self.completed.setdefault(job_id, {})
            tasks[event.task_id] = tasks.get(event.task_id, 0) + 1
        elif isinstance(event, JobFinished | JobFailed):
            self.ended[job_id] = event
            self.ended_at[job_id] = now

    def gauges(self) -> dict[str, float]:
        return {"ended": len(self.ended)}

    def check(self) -> None:
        """Assert that no task was committed twice."""
        assert all(count == 1 for tasks in self.completed.values() for count in tasks.values())


class _Supervisor(Machine[NodeRefused | Drained | KillExecutor]):
    """Replaces the executors that a node monitor wants to be killed."""

    inputs: ClassVar[Any] = NodeRefused | Drained | KillExecutor

    def __init__(self, replace: Callable[[Address], None]) -> None:
        self._replace = replace

    def on_message(self, msg: NodeRefused | Drained | KillExecutor, now: float) -> list[Envelope]:
        if isinstance(msg, KillExecutor):
            self._replace(msg.executor)
        return []


class SimulatedCluster:
    """Schedulers, each a process of its own, nodes (n0, n1 ...) and one client in a world."""

    def __init__(
        self,
        world: World,
        *,
        nodes: int,
        slots: int = 1,  # of each executor; a node has one executor per framework
        schedulers: int = 1,
        heartbeat_s: float = 0.5,
        attributes: Callable[[NodeName], tuple[str, ...]] = lambda _: (),
        frameworks: tuple[str, ...] = ("",),
        monitor: NodeMonitorConfig | None = None,
        scheduler: SchedulerConfig | None = None,
        client: ClientConfig | None = None,
        slowness: Callable[[NodeName], float] = lambda _: 1.0,  # factor on task times
        # Makes slots that do something else than to sleep: by address, executor and node.
        slot: Callable[[Address, Address, NodeName], Machine[Any]] | None = None,
    ) -> None:
        """Host all machines; nodes register when the world runs."""
        self.world = world
        self.recorder = Recorder()
        self.starts: dict[TaskKey, int] = {}
        self.started_on: dict[TaskKey, NodeName] = {}
        self.schedulers = [address(f"s{number}", "scheduler") for number in range(schedulers)]
        self.slots = slots
        self._heartbeat_s = heartbeat_s
        self._attributes = attributes
        self._frameworks = frameworks
        self._slowness = slowness
        self._slot = slot or self._sleeping
        self._monitor_config = msgspec.structs.replace(
            monitor or NodeMonitorConfig(), heartbeat_s=heartbeat_s,
            executor_timeout_s=10 * heartbeat_s,
        )  # fmt: skip
        self._scheduler_config = msgspec.structs.replace(
            scheduler or SchedulerConfig(), node_timeout_s=6 * heartbeat_s
        )
        self._incarnations = itertools.count()
        self._executors: dict[NodeName, dict[Address, str]] = {}  # with their frameworks
        self.nodes = [NodeName(f"n{number}") for number in range(nodes)]
        for at in self.schedulers:
            self.start_scheduler(at)
        for name in self.nodes:
            self.start_node(name)
        sink = address("front", "sink")
        self.client = address("front", "client")
        world.host(sink, self.recorder)
        world.host(self.client, Client(self.client, sink, self.schedulers, client))

    def start_scheduler(self, at: Address) -> None:
        self.world.host(at, Scheduler(at, self.world.rng, self._scheduler_config))

    def start_node(self, name: NodeName) -> None:
        """Start a node, or a dead one again."""
        at = self.monitor_of(name)
        supervisor = address(name, "supervisor")
        self.world.host(supervisor, _Supervisor(functools.partial(self._replace, name)))
        monitor = NodeMonitor(
            name, at, self.schedulers, supervisor=supervisor,
            attributes=self._attributes(name), config=self._monitor_config,
        )  # fmt: skip
        self.world.host(at, monitor)
        self._executors[name] = {}
        for framework in self._frameworks:
            self._start_executor(name, framework)

    def kill_node(self, name: NodeName) -> None:
        self.world.kill(endpoint_of(self.monitor_of(name)))
        for executor in self._executors[name]:
            self.world.kill(endpoint_of(executor))

    def kill_executor(self, name: NodeName) -> None:
        """Kill a node's executors; the supervisor notices at once and restarts them."""
        for executor in tuple(self._executors[name]):
            self._replace(name, executor)

    def _replace(self, name: NodeName, executor: Address) -> None:
        framework = self._executors[name].pop(executor, None)
        if framework is None:
            return  # it has died
        self.world.kill(endpoint_of(executor))
        self.world.post(self.monitor_of(name), ExecutorLost(executor, "killed"))
        respawn = functools.partial(self._respawn, name, framework)
        self.world.call(self.world.now + _RESPAWN_S, respawn)

    def drain_node(self, name: NodeName) -> None:
        """Drain a node; its processes end when it has left, as a supervisor would have it."""
        self.world.post(self.monitor_of(name), Drain())

        def end() -> None:
            monitor = self.world.machines.get(self.monitor_of(name))
            if isinstance(monitor, NodeMonitor) and monitor.has_left:
                self.kill_node(name)
            elif monitor is not None:
                self.world.call(self.world.now + _SUPERVISED_S, end)

        self.world.call(self.world.now + _SUPERVISED_S, end)

    def freeze_executor(self, name: NodeName, until_s: float) -> None:
        """Stop (SIGSTOP) a node's executors for a while."""
        for executor in self._executors[name]:
            self.world.freeze(endpoint_of(executor), until_s)

    def _respawn(self, name: NodeName, framework: str) -> None:
        if self.monitor_of(name) in self.world.machines:
            self._start_executor(name, framework)

    def monitor_of(self, name: NodeName) -> Address:
        return address(name, "monitor")

    def _start_executor(self, name: NodeName, framework: str) -> None:
        endpoint = f"{name}-e{next(self._incarnations)}"
        at = address(endpoint, endpoint)
        self._executors[name][at] = framework
        slots = [address(endpoint, f"slot-{slot}") for slot in range(self.slots)]
        executor = Executor(
            at, name, self.monitor_of(name), slots,
            framework=framework, heartbeat_s=self._heartbeat_s,
        )  # fmt: skip
        self.world.host(at, executor)
        for slot in slots:
            self.world.host(slot, self._slot(slot, at, name))
            self.world.post(at, SlotReady(slot))

    def _sleeping(self, slot: Address, executor: Address, name: NodeName) -> Machine[Any]:
        on_run = functools.partial(self._on_run, name)
        return SimulatedSlot(slot, executor, on_run, self._slowness(name), name)

    def _on_run(self, name: NodeName, key: TaskKey) -> None:
        self.starts[key] = self.starts.get(key, 0) + 1
        self.started_on[key] = name


def quiet_cluster(world: World, *, cancellation: bool = True, **shape: Any) -> SimulatedCluster:
    """A cluster in which nothing fails, so that heartbeats would only slow the simulation."""
    scheduler = SchedulerConfig(lease_s=_QUIET_S, cancellation=cancellation)
    return SimulatedCluster(world, heartbeat_s=_QUIET_S, scheduler=scheduler, **shape)
