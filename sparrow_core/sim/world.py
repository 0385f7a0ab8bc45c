"""The event heap: delivers envelopes among machines in simulated time.

It also kills and starts processes. An address's endpoint is its process, as in reality: messages
within a process arrive at once and in order, messages between processes go through the network.
Equal times stay in order of sending, so that a seed reproduces a run to the last event.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, assert_never, get_args

import msgspec

from sparrow_core.client import Client
from sparrow_core.events import JobEvent, JobFailed, JobFinished, TaskCompleted
from sparrow_core.executor import Executor
from sparrow_core.ids import Address, JobId, NodeName, address, endpoint_of
from sparrow_core.machine import Envelope, Machine
from sparrow_core.messages import (
    ExecutorLost,
    ForgetJob,
    InterruptTask,
    KnownNodes,
    Message,
    Notify,
    SlotDone,
    SlotIn,
    SlotReady,
    StartTask,
    TaskKey,
    Tick,
)
from sparrow_core.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.scheduler import Scheduler, SchedulerConfig
from sparrow_core.sim.network import Network

_DURATION = struct.Struct("<d")
_RESPAWN_S = 0.3
Trace = Callable[[float, Address, Message], None]


def payload_of(duration_s: float) -> bytes:
    """The payload of a simulated task: how long it runs."""
    return _DURATION.pack(duration_s)


class World:
    """Simulated time, machines, and the network between them.

    Args:
        seed: Of the network, and of `rng`, which the machines share.
        network: What happens to messages between processes.
        wire: Encode and decode each of them, as the ZeroMQ driver does.
        checked: Call a machine's `check` after each of its messages.
        trace: Called with each message that is delivered.
    """

    def __init__(
        self,
        seed: int,
        network: Network | None = None,
        *,
        wire: bool = False,
        checked: bool = False,
        trace: Trace | None = None,
    ) -> None:
        """Start at time 0 with no machine."""
        self.now = 0.0
        self.events = 0
        self.rng = Random(seed)
        self.machines: dict[Address, Machine[Any]] = {}
        self._network = network or Network()
        self._network_rng = Random(f"network {seed}")
        self._wire = wire
        self._checked = checked
        self._trace = trace
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Callable[[], None] | tuple[Address, Message]]] = []

    def host(self, at: Address, machine: Machine[Any]) -> Address:
        """Host a machine, and start its periodic timer if it has one."""
        self.machines[at] = machine
        if Tick in get_args(machine.inputs):
            self.post(at, Tick(0))
        return at

    def kill(self, endpoint: str) -> None:
        """End a process: all its machines vanish."""
        for at in [at for at in self.machines if endpoint_of(at) == endpoint]:
            del self.machines[at]

    def post(self, to: Address, msg: Message, delay_s: float = 0.0) -> None:
        """Deliver a message, without the network."""
        heapq.heappush(self._heap, (self.now + delay_s, next(self._order), (to, msg)))

    def call(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._heap, (at_s, next(self._order), action))

    def run(self, until_s: float, *, done: Callable[[], bool] = lambda: False) -> None:
        """Let events happen until a time, or until `done` (asked after each)."""
        while self._heap and self._heap[0][0] <= until_s and not done():
            self.now, _, event = heapq.heappop(self._heap)
            self.events += 1
            if callable(event):
                event()
            else:
                self._deliver(*event)

    def _deliver(self, to: Address, msg: Message) -> None:
        machine = self.machines.get(to)
        if machine is None:
            return  # its process is dead
        if self._trace is not None:
            self._trace(self.now, to, msg)
        for envelope in machine.on_message(msg, self.now):
            self._send(to, envelope)
        if self._checked:
            machine.check()

    def _send(self, sender: Address, envelope: Envelope) -> None:
        if endpoint_of(sender) == endpoint_of(envelope.to):
            self.post(envelope.to, envelope.msg, envelope.delay_s)
            return
        msg = self._over_the_wire(envelope) if self._wire else envelope.msg
        for delay_s in self._network.delays_s(self._network_rng):
            self.post(envelope.to, msg, delay_s + envelope.delay_s)

    def _over_the_wire(self, envelope: Envelope) -> Message:
        machine = self.machines.get(envelope.to)
        if machine is None:
            return envelope.msg
        body = msgspec.msgpack.encode(envelope.msg)
        decoded: Message = msgspec.msgpack.decode(body, type=machine.inputs)
        assert decoded == envelope.msg
        return decoded


class SimulatedSlot:
    """A slot whose tasks take the time that their payload says, and return it."""

    inputs: ClassVar[Any] = SlotIn | SlotDone

    def __init__(self, at: Address, executor: Address, on_run: Callable[[TaskKey], None]) -> None:
        """Make a slot; `on_run` is told of each start."""
        self._address = at
        self._executor = executor
        self._on_run = on_run
        self._running: TaskKey | None = None

    def on_message(self, msg: SlotIn | SlotDone, now: float) -> list[Envelope]:
        """Start a task (a SlotDone to oneself is its end) or interrupt it."""
        del now
        match msg:
            case StartTask():
                assert self._running is None
                self._running = msg.key
                self._on_run(msg.key)
                (duration_s,) = _DURATION.unpack(msg.payload)
                done = SlotDone(self._address, msg.key, duration_s, msg.payload)
                return [Envelope(self._address, done, duration_s)]
            case SlotDone():
                return self._end(msg)
            case InterruptTask():
                done = SlotDone(self._address, msg.key, 0.0, b"", "interrupted")
                return self._end(done)
            case ForgetJob():
                return []
            case _:
                assert_never(msg)

    def _end(self, done: SlotDone) -> list[Envelope]:
        if self._running != done.key:
            return []  # interrupted before
        self._running = None
        return [Envelope(self._executor, done)]

    def check(self) -> None:
        """Nothing to check."""


class Recorder:
    """The sink of a simulated client: what became of jobs, and when."""

    inputs: ClassVar[Any] = Notify | KnownNodes

    def __init__(self) -> None:
        """Start with nothing."""
        self.completed: dict[JobId, dict[int, int]] = {}  # how often each task was committed
        self.ended: dict[JobId, JobFinished | JobFailed] = {}
        self.ended_at: dict[JobId, float] = {}

    def on_message(self, msg: Notify | KnownNodes, now: float) -> list[Envelope]:
        """Record an event."""
        if isinstance(msg, Notify):
            self._record(msg.job_id, msg.event, now)
        return []

    def _record(self, job_id: JobId, event: JobEvent, now: float) -> None:
        assert job_id not in self.ended, f"{job_id} has an event after its end"
        if isinstance(event, TaskCompleted):
            tasks = self.completed.setdefault(job_id, {})
            tasks[event.task_id] = tasks.get(event.task_id, 0) + 1
        elif isinstance(event, JobFinished | JobFailed):
            self.ended[job_id] = event
            self.ended_at[job_id] = now

    def check(self) -> None:
        """Assert that no task was committed twice."""
        assert all(count == 1 for tasks in self.completed.values() for count in tasks.values())


class SimulatedCluster:
    """Schedulers, nodes and one client in a world.

    Args:
        world: Where.
        nodes: How many; they are called n0, n1 ...
        slots: Of the one executor of each node.
        schedulers: How many, each a process of its own.
        heartbeat_s: Of nodes and executors.
    """

    def __init__(
        self,
        world: World,
        *,
        nodes: int,
        slots: int = 1,
        schedulers: int = 1,
        heartbeat_s: float = 0.5,
    ) -> None:
        """Host all machines; nodes register as time begins to run."""
        self.world = world
        self.recorder = Recorder()
        self.starts: dict[TaskKey, int] = {}
        self.schedulers = [address(f"s{number}", "scheduler") for number in range(schedulers)]
        self._slots = slots
        self._heartbeat_s = heartbeat_s
        self._incarnations = itertools.count()
        self._executors: dict[NodeName, Address] = {}
        for scheduler in self.schedulers:
            self.start_scheduler(scheduler)
        for number in range(nodes):
            self.start_node(NodeName(f"n{number}"))
        sink = address("front", "sink")
        self.client = address("front", "client")
        world.host(sink, self.recorder)
        world.host(self.client, Client(self.client, sink, self.schedulers))

    def start_scheduler(self, at: Address) -> None:
        """Start a scheduler process (anew)."""
        config = SchedulerConfig(node_timeout_s=6 * self._heartbeat_s)
        self.world.host(at, Scheduler(at, self.world.rng, config))

    def start_node(self, name: NodeName) -> None:
        """Start a node's process (anew) and its executor."""
        monitor = self._monitor(name)
        config = NodeMonitorConfig(heartbeat_s=self._heartbeat_s)
        self.world.host(monitor, NodeMonitor(name, monitor, self.schedulers, config=config))
        self._start_executor(name)

    def kill_node(self, name: NodeName) -> None:
        """End a node's process and its executor."""
        self.world.kill(endpoint_of(self._monitor(name)))
        self.world.kill(endpoint_of(self._executors[name]))

    def kill_executor(self, name: NodeName) -> None:
        """End a node's executor; its supervisor sees it at once and starts another."""
        executor = self._executors[name]
        if executor in self.world.machines:
            self.world.kill(endpoint_of(executor))
            self.world.post(self._monitor(name), ExecutorLost(executor, "killed"))
            self.world.call(self.world.now + _RESPAWN_S, lambda: self._respawn(name))

    def _respawn(self, name: NodeName) -> None:
        if self._monitor(name) in self.world.machines:
            self._start_executor(name)

    def _monitor(self, name: NodeName) -> Address:
        return address(name, "monitor")

    def _start_executor(self, name: NodeName) -> None:
        endpoint = f"{name}-e{next(self._incarnations)}"
        at = self._executors[name] = address(endpoint, endpoint)
        slots = [address(endpoint, f"slot-{slot}") for slot in range(self._slots)]
        monitor = self._monitor(name)
        executor = Executor(at, name, monitor, slots, heartbeat_s=self._heartbeat_s)
        self.world.host(at, executor)
        for slot in slots:
            self.world.host(slot, SimulatedSlot(slot, at, self._on_run))
            self.world.post(at, SlotReady(slot))

    def _on_run(self, key: TaskKey) -> None:
        self.starts[key] = self.starts.get(key, 0) + 1
