"""A program's workers and controller in simulated time.

The machines are those of production, in the simulator of sparrow_core. A task's duration is what
its function says with `spend`; the worker is deaf meanwhile, as a real one is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from canary_core.driver import Driver, Source
from canary_core.machines.controller import Controller, Settings
from canary_core.machines.worker import Neighbours, Worker
from canary_core.protocol.messages import (
    Ended,
    Failure,
    Finished,
    Kept,
    Leave,
    Outcome,
    Progress,
    Work,
    WorkerIn,
    WorkerLost,
)
from canary_core.results import result_of
from machine_kit.addresses import Address, address
from machine_kit.machine import Envelope, Machine, Message
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.world import World

CONTROLLER = address("controller", "controller")
ROUNDING_S = 1e-9  # a message put off until then may come a rounding error earlier
_spending: list[SimulatedWorker] = []


def spend(seconds: float) -> None:
    """Called by a task's function: the task takes so long in simulated time, here."""
    if _spending:
        _spending[-1].spent_s += seconds * _spending[-1].slowness


def now_s() -> float:
    """Called by a task's function: the simulated time, with what tasks have spent until here."""
    worker = _spending[-1]
    return worker.started_s + worker.spent_s


class SimulatedWorker(Machine[WorkerIn]):
    """A worker that is deaf while its tasks run.

    Attributes:
        slowness: Its tasks take so many times as long.
        started_s: When it took the latest message; `spent_s` is what tasks have taken since.
    """

    inputs: ClassVar[Any] = WorkerIn

    def __init__(self, make: Callable[[Callable[[], float]], Worker], slowness: float) -> None:
        self.slowness = slowness
        self.spent_s = 0.0
        self.started_s = self._busy_until = 0.0
        self._deferred = 0  # messages that came while tasks ran, and will come again
        self.machine = make(lambda: self.started_s + self.spent_s)

    def on_message(self, msg: WorkerIn, now: float) -> list[Envelope]:
        """Take a message now, or when the running tasks are over."""
        if now + ROUNDING_S < self._busy_until:
            self._deferred += not isinstance(msg, Work)
            return [Envelope(self.machine.address, msg, self._busy_until - now)]
        if isinstance(msg, Work):
            if self._deferred:  # what came meanwhile is looked at before more tasks are run
                return [Envelope(self.machine.address, msg, ROUNDING_S)]
        elif self._deferred:
            self._deferred -= 1
        self.started_s, self.spent_s = now, 0.0
        _spending.append(self)
        try:
            out = self.machine.on_message(msg, now)
        finally:
            _spending.pop()
        self._busy_until = now + self.spent_s
        if not self.spent_s:
            return out
        return [
            Envelope(envelope.to, envelope.msg, envelope.delay_s + self.spent_s) for envelope in out
        ]

    def check(self) -> None:
        """Assert the invariants."""
        self.machine.check()


class _Host(Machine[Message]):
    """The process around a machine: takes what it tells."""

    inputs: ClassVar[Any] = Ended | Finished | Progress

    def __init__(self, take: Callable[[Message], None]) -> None:
        self._take = take

    def on_message(self, msg: Message, now: float) -> list[Envelope]:
        """Note what the machine tells its host."""
        del now
        self._take(msg)
        return []


class SimulatedRun:
    """A program in simulated time.

    Args:
        driver: The program.
        settings: For the controller.
        workers: How many there are from the start.
        seed: Of the network's faults and delays.
        network: Between processes.
        source: Tables.
        wire: Encode and decode all messages.
        checked: Assert invariants after each message.
        neighbours: Makes what a worker knows of the others; it knows nothing if not given.

    Attributes:
        outcome: How the program ended, as the controller told its host.
        ended: Workers that have ended, with why.
    """

    def __init__(
        self,
        driver: Driver,
        settings: Settings,
        *,
        workers: int,
        seed: int = 0,
        network: Network | None = None,
        source: Source | None = None,
        wire: bool = False,
        checked: bool = False,
        neighbours: Callable[[], Neighbours] | None = None,
    ) -> None:
        self.world = World(seed, network, wire=wire, checked=checked)
        self.outcome: Outcome | None = None
        self.progress: Progress | None = None
        self.ended: dict[Address, Failure | None] = {}
        self.workers: dict[Address, SimulatedWorker] = {}
        self._driver = driver
        self._settings = settings
        self._source = source
        self._neighbours = neighbours
        self._born = 0
        self._made = 0
        self.start_controller()
        for _ in range(workers):
            self.add_worker()

    def add_worker(self, slowness: float = 1.0) -> Address:
        """Start a worker now."""
        name = f"w{self._made}"
        self._made += 1
        at = address(name, "worker")

        def make(clock: Callable[[], float]) -> Worker:
            return Worker(
                at, CONTROLLER, self._driver, source=self._source, clock=clock, host=name,
                neighbours=self._neighbours and self._neighbours(),
            )  # fmt: skip

        self.workers[at] = worker = SimulatedWorker(make, slowness)
        self.world.host(address(name, "host"), _Host(lambda msg: self._on_ended(at, msg)))
        self.world.host(at, worker)
        return at

    def start_controller(self) -> None:
        """Start a controller; one after the first takes the place of its predecessor."""
        self._born += 1
        controller = Controller(CONTROLLER, self._settings, born=self._born)
        self.world.host(address("controller", "host"), _Host(self._on_told))
        self.world.host(CONTROLLER, controller)

    def kill_worker(self, worker: Address) -> None:
        """A worker's process dies without a word."""
        self.world.kill(worker.partition("#")[0])
        self.workers.pop(worker, None)

    def notice_death(self, worker: Address) -> None:
        """The controller's host knows that a worker's process has died."""
        self.world.post(CONTROLLER, WorkerLost(worker))

    def kill_controller(self) -> None:
        """The controller's process dies without a word."""
        self.world.kill("controller")

    def leave(self, worker: Address) -> None:
        """A worker is asked to end without harm."""
        self.world.post(worker, Leave())

    def run(self, until_s: float) -> None:
        """Simulate until the program is over, or until a time."""
        self.world.run(until_s, done=lambda: self.outcome is not None)

    def result(self, until_s: float = 1000.0) -> Any:
        """Simulate to the end; returns the program's result.

        Raises:
            CanaryError: The program failed.
            TimeoutError: It was not over by that (simulated) time.
        """
        self.run(until_s)
        if self.outcome is None:
            raise TimeoutError(f"not over after {until_s:g} simulated seconds: {self.progress}")
        return result_of(self.outcome)

    def _on_told(self, msg: Message) -> None:
        if isinstance(msg, Finished):
            self.outcome = msg.outcome
            self.world.post(CONTROLLER, Kept())
        elif isinstance(msg, Progress):
            self.progress = msg

    def _on_ended(self, worker: Address, msg: Message) -> None:
        if isinstance(msg, Ended):
            self.ended[worker] = msg.failure
            self.world.kill(worker.partition("#")[0])
            self.workers.pop(worker, None)
