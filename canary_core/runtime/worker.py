"""A worker of a program, in the calling thread."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from canary_core.driver import Driver, Source
from canary_core.machines.worker import Worker
from canary_core.protocol.messages import Ended
from canary_core.runtime.loop import PacketLoop
from canary_core.runtime.mailbox import Mailbox, route_of
from machine_kit.addresses import Address, endpoint_of
from machine_kit.machine import Envelope, Machine

WORKER = "worker"
_LINGER_S = 0.5


class _Host(Machine[Ended]):
    """Ends the loop when the program is over for this worker."""

    inputs: ClassVar[Any] = Ended

    def __init__(self, loop: PacketLoop) -> None:
        self._loop = loop

    def on_message(self, msg: Ended, now: float) -> list[Envelope]:
        del msg, now
        self._loop.stop()
        return []


class _RingNeighbours:
    """What rings tell of other workers; of those that are reached by sockets nothing is known."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def await_data(self, worker: Address) -> bool:
        """Whether a worker waits for messages, or may."""
        return self._mailbox.is_awaited(route_of(endpoint_of(worker)))

    def have_written(self) -> bool:
        """Whether messages of other workers are there."""
        return self._mailbox.has_mail


class WorkerLoop:
    """A worker machine and the loop that drives it."""

    def __init__(
        self,
        mailbox: Mailbox,
        controller: Address,
        driver: Driver,
        *,
        source: Source | None = None,
        host: str = "",
    ) -> None:
        """Join a program.

        Args:
            mailbox: Where it receives messages; closed at the end of `run`.
            controller: The address of the program's controller.
            driver: The program, the same for all workers.
            source: What `run.table` reads.
            host: Workers with the same one die together: copies of snapshots go to others.
        """
        self._controller = controller
        self._loop = loop = PacketLoop(mailbox, self._lost, endpoint_of(controller).__eq__)
        self.machine = Worker(
            loop.address(WORKER),
            controller,
            driver,
            source=source,
            clock=time.perf_counter,
            host=host,
            born=int(time.time() * 1000),
            neighbours=_RingNeighbours(mailbox),
        )
        loop.host("host", _Host(loop))
        loop.host(WORKER, self.machine)

    def run(self) -> None:
        """Work until the program is over, or `stop`."""
        try:
            self._loop.run()
        finally:
            self._loop.close(_LINGER_S)

    def _lost(self, endpoint: str) -> None:
        if endpoint == endpoint_of(self._controller):
            self._loop.stop()  # it would restart under another address

    def stop(self) -> None:
        """Make `run` return after the current task. Thread-safe."""
        self._loop.stop()
