"""The in-memory driver: an event loop that delivers messages between machines of one process.

Messages within the process are delivered in order, so that a message that a machine sends itself
without delay comes after all that are waiting already. `post`, `after` and `stop` are thread-safe;
everything else belongs to the loop's thread. What machines and their callbacks post is delivered
in the same turn, and needs no wake-up. The ZeroMQ driver adds sockets.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, get_args

from machine_kit.addresses import Address, address, endpoint_of, name_of
from machine_kit.machine import Envelope, Machine, Message, Tap, Tick

_ADDRESSES_MAX = 1 << 16
# Long timers fire together, at most so much later: most belong to jobs that have ended long since,
# and each of a thousand jobs a second would wake the loop for its own.
_SLACK_S = 0.01
_SLACK_FROM_S = 0.1


@lru_cache(_ADDRESSES_MAX)
def _split(to: Address) -> tuple[str, str]:
    return endpoint_of(to), name_of(to)


CALLER = "caller"  # the name under which a `Caller` is hosted


class Call(Message, frozen=True):
    """Call this on the loop's thread; it never leaves the process."""

    callback: Callable[[], object]


class Caller(Machine[Call]):
    """Calls what it is sent: for those who live on the loop's thread and are no machines."""

    inputs: ClassVar[Any] = Call

    def on_message(self, msg: Call, now: float) -> list[Envelope]:
        msg.callback()
        return []


class LocalDriver:
    """Delivers messages between the machines that it hosts."""

    def __init__(self, endpoint: str) -> None:
        """Make a driver whose machines have addresses `<endpoint>#<name>`.

        `taps` are called with each message that a machine has taken and its answers.
        """
        self.endpoint = endpoint
        self.undeliverable = 0
        self.taps: list[Tap] = []
        self.machines: dict[str, Machine[Any]] = {}
        self._local: deque[tuple[str, Message]] = deque()
        self._timers: list[tuple[float, int, Envelope]] = []
        self._posted: deque[Envelope] = deque()
        self._posted_in_turn: deque[Envelope] = deque()  # by the loop's own thread
        self._thread: int | None = None  # the loop's, during a turn
        self._order = itertools.count()
        self._stopping = False
        self._awake = threading.Event()
        self._woken = False

    def address(self, name: str) -> Address:
        """The address of a machine hosted here."""
        return address(self.endpoint, name)

    def host(self, name: str, machine: Machine[Any]) -> Address:
        """Host a machine under a name; starts its periodic timer if it has one."""
        self.machines[name] = machine
        if Tick in get_args(machine.inputs):
            self.post(self.address(name), Tick(0))
        return self.address(name)

    def post(self, to: Address, msg: Message) -> None:
        """Send a message from outside the machines. Thread-safe."""
        self.after(0.0, to, msg)

    def after(self, delay_s: float, to: Address, msg: Message) -> None:
        """Send a message after a delay. Thread-safe."""
        envelope = Envelope(to, msg, delay_s)
        if self._thread == threading.get_ident():
            self._posted_in_turn.append(envelope)
            return
        self._posted.append(envelope)
        self._signal()

    def call(self, callback: Callable[[], object], delay_s: float = 0.0) -> None:
        """Call back on the loop's thread, after a delay; a `Caller` is hosted. Thread-safe."""
        self.after(delay_s, self.address(CALLER), Call(callback))

    def stop(self) -> None:
        """Make `run` return soon. Thread-safe, also in signal handlers."""
        self._stopping = True
        self._signal()

    def run(self) -> None:
        while not self._stopping:
            self._thread = None  # what a signal's handler posts now must end the wait
            self._wait(self._timeout_s())
            self._thread = threading.get_ident()
            self._woken = False  # before taking: a later post wakes the loop again
            self._take_posted()
            self._fire_timers()
            self._deliver()
            self._send()

    def counters(self) -> dict[str, int]:
        return {"messages_undeliverable": self.undeliverable}

    def _signal(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()

    def _wake(self) -> None:
        self._awake.set()

    def _wait(self, timeout_s: float) -> None:
        self._awake.wait(None if timeout_s == math.inf else timeout_s)
        self._awake.clear()

    def _timeout_s(self) -> float:
        if self._posted or self._posted_in_turn:
            return 0.0
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else math.inf

    def _take_posted(self) -> None:
        while self._posted:
            self._route(self._posted.popleft())

    def _take_posted_in_turn(self) -> None:
        while self._posted_in_turn:
            self._route(self._posted_in_turn.popleft())

    def _fire_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            envelope = heapq.heappop(self._timers)[2]
            self._local.append((name_of(envelope.to), envelope.msg))

    def _deliver(self) -> None:
        self._take_posted_in_turn()
        while self._local:
            name, msg = self._local.popleft()
            machine = self.machines.get(name)
            if machine is None:
                self.undeliverable += 1
                continue
            now = time.monotonic()
            out = machine.on_message(msg, now)
            for tap in self.taps:
                tap(self.address(name), msg, out, now)
            for envelope in out:
                self._route(envelope)
            self._take_posted_in_turn()

    def _route(self, envelope: Envelope) -> None:
        if envelope.delay_s > 0:
            due = time.monotonic() + envelope.delay_s
            if envelope.delay_s >= _SLACK_FROM_S:
                due = math.ceil(due / _SLACK_S) * _SLACK_S
            heapq.heappush(self._timers, (due, next(self._order), envelope))
            return
        endpoint, name = _split(envelope.to)
        if endpoint == self.endpoint:
            self._local.append((name, envelope.msg))
        else:
            self._queue_remote(endpoint, name, envelope.msg)

    def _queue_remote(self, endpoint: str, name: str, msg: Message) -> None:
        """There is no other process: the message is dropped."""
        self.undeliverable += 1

    def _send(self) -> None:
        """Nothing leaves the process."""

    def close(self) -> None:
        """Nothing to close."""
