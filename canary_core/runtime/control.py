"""A program's controller, in a thread of its own."""

from __future__ import annotations

import threading
import traceback
from typing import Any, ClassVar

from canary_core.machines.controller import Controller, Settings
from canary_core.protocol.messages import Cancel, Finished, Kept, Outcome, Progress, WorkerLost
from canary_core.runtime.loop import PacketLoop
from canary_core.runtime.mailbox import Mailbox
from canary_core.runtime.worker import WORKER
from machine_kit.addresses import Address, address
from machine_kit.machine import Envelope, Machine

_CONTROLLER = "controller"
_HOST = "host"


class _Host(Machine[Finished | Progress]):
    """Keeps what the controller tells."""

    inputs: ClassVar[Any] = Finished | Progress

    def __init__(self, controller: Address) -> None:
        self._controller = controller
        self.outcome: Outcome | None = None
        self.progress: Progress | None = None
        self.over = threading.Event()

    def on_message(self, msg: Finished | Progress, now: float) -> list[Envelope]:
        del now
        match msg:
            case Finished():
                self.outcome = msg.outcome
                self.over.set()
                return [Envelope(self._controller, Kept())]
            case Progress():
                self.progress = msg
        return []


class ControlThread:
    """The controller of a program, from `start` to `close`; thread-safe."""

    def __init__(self, mailbox: Mailbox, settings: Settings) -> None:
        """Make the controller.

        Args:
            mailbox: Where it receives messages; it is closed by `close`.
            settings: Of the program.
        """
        # A worker that is suspended is given up, so that others do its work. But a controller that
        # was suspended itself has lost all connections.
        self._loop = PacketLoop(mailbox, self._lost, lambda _: self._loop.was_suspended)
        self.address = self._loop.address(_CONTROLLER)
        self._host = _Host(self.address)
        self.machine = Controller(self.address, settings)
        self._loop.host(_HOST, self._host)
        self._loop.host(_CONTROLLER, self.machine)
        self._thread = threading.Thread(target=self._run, name="canary-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException:  # noqa: BLE001 - whoever waits for the outcome must not hang
            traceback.print_exc()
        finally:
            self._host.over.set()
            self._loop.close()

    @property
    def outcome(self) -> Outcome | None:
        """How the program has ended; None while it runs, or if the controller itself failed."""
        return self._host.outcome

    @property
    def progress(self) -> Progress | None:
        """The controller's last report; None before the first."""
        return self._host.progress

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the outcome; False after the timeout."""
        return self._host.over.wait(timeout_s)

    def cancel(self) -> None:
        """End the program early."""
        self._loop.post(self.address, Cancel())

    def _lost(self, endpoint: str) -> None:
        self.post(WorkerLost(address(endpoint, WORKER)))

    def post(self, msg: Any) -> None:
        """Give the controller a message of the host, such as Move or Drain."""
        self._loop.post(self.address, msg)

    def close(self) -> None:
        """End the thread; workers that still run end when they miss the controller."""
        self._loop.stop()
        if self._thread.ident is None:
            self._loop.close()
        else:
            self._thread.join()
