"""Threads in simulated time: each runs until it waits, and nobody runs meanwhile.

A fiber belongs to a process of the simulated world: it stands still while that is frozen.
"""

from __future__ import annotations

import math
import queue
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from minishark_lab.simulator.world import World

T = TypeVar("T")


class Fiber:
    """A thread of a process."""

    def __init__(self, fibers: Fibers, endpoint: str, function: Callable[[], object]) -> None:
        self.endpoint = endpoint
        self.error: BaseException | None = None  # what it has raised
        self.over = False
        self.closing = False
        self._fibers = fibers
        self._function = function
        # When it has ended, the hub goes on: not the fiber that has started it, as by default.
        self._greenlet = greenlet(self._run, fibers.hub)
        self._token = 0  # tells a resumption from those that were for an earlier wait

    def _run(self) -> None:
        try:
            self._function()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever waits for the fiber looks at it
            self.error = error
        self.over = True
        for each in self._fibers.waiting_for.pop(self, ()):
            each()

    def wake(self, token: int) -> None:
        """End the wait of this token; no effect if it has ended."""
        if self.over or token != self._token:
            return
        world = self._fibers.world
        frozen_until_s = world.frozen_until(self.endpoint)
        if frozen_until_s > world.now:
            world.call(frozen_until_s, lambda: self.wake(token))
            return
        self._token += 1
        self._fibers.current = self
        self._greenlet.switch()
        self._fibers.current = None

    def wait(self) -> None:
        """Let others run until somebody calls the last `waker`."""
        self._fibers.hub.switch()

    def wait_at_most(self, seconds: float) -> None:
        """Let others run until then, or until somebody calls the last `waker`."""
        token, world = self._token, self._fibers.world
        world.call(world.now + seconds, lambda: self.wake(token))
        self.wait()

    def waker(self) -> Callable[[], None]:
        """What ends the next wait, when the events of this moment have happened."""
        token, world = self._token, self._fibers.world
        return lambda: world.call(world.now, lambda: self.wake(token))

    def close(self) -> None:
        """End it where it waits; from now on it waits for nothing."""
        if not self._greenlet.dead:
            self.closing = True
            self._fibers.current = self
            self._greenlet.throw(GreenletExit)
            self._fibers.current = None


class Fibers:
    """The fibers of a world, whose events the caller of this constructor processes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hub = getcurrent()
        self.current: Fiber | None = None
        self.waiting_for: dict[Fiber, list[Callable[[], None]]] = {}
        self._all: list[Fiber] = []

    def start(self, endpoint: str, function: Callable[[], object]) -> Fiber:
        """Run a function in a process, from now on."""
        fiber = Fiber(self, endpoint, function)
        self._all.append(fiber)
        fiber.waker()()
        return fiber

    def close(self) -> None:
        """End all fibers."""
        for fiber in self._all:
            fiber.close()

    def kill(self, endpoint: str) -> None:
        """End the fibers of a process where they are: nothing more of them runs."""
        for fiber in self._all:
            if fiber.endpoint == endpoint:
                fiber.over = True

    def running(self) -> Fiber:
        """The fiber that calls this."""
        assert self.current is not None, "only fibers wait"
        return self.current

    def join(self, others: Sequence[Fiber]) -> None:
        """Wait until other fibers have ended; raises the first one's error."""
        me = self.running()
        for other in others:
            while not other.over and not me.closing:
                self.waiting_for.setdefault(other, []).append(me.waker())
                me.wait()
        for other in others:
            if other.error is not None:
                raise other.error


class SimulatedClock:
    """The clock of a process; `minishark.query.clock` documents its methods."""

    def __init__(self, fibers: Fibers, endpoint: str) -> None:
        self._fibers = fibers
        self._endpoint = endpoint

    def now_s(self) -> float:
        fiber = self._fibers.current
        if fiber is not None and fiber.closing:
            return math.inf
        return self._fibers.world.clock_s(self._endpoint)

    def sleep(self, seconds: float) -> None:
        fiber = self._fibers.running()
        if not fiber.closing:
            fiber.wait_at_most(seconds)

    def events(self) -> SimulatedEvents:
        return SimulatedEvents(self._fibers)

    def lock(self) -> AbstractContextManager[Any]:
        return SimulatedLock(self._fibers)

    def thread(self, function: Callable[[], object], name: str) -> SimulatedThread:
        return SimulatedThread(self._fibers, self._fibers.start(self._endpoint, function))

    def each(self, function: Callable[[T], object], items: Sequence[T], at_once: int) -> None:
        left = deque(items)
        errors: list[BaseException] = []

        def take() -> None:
            while left:
                item = left.popleft()
                try:
                    function(item)
                except Exception as error:  # noqa: BLE001 - raised again when all have ended
                    errors.append(error)

        count = min(at_once, len(items))
        self._fibers.join([self._fibers.start(self._endpoint, take) for _ in range(count)])
        if errors:
            raise errors[0]


class SimulatedThread:
    """What a clock has started."""

    def __init__(self, fibers: Fibers, fiber: Fiber) -> None:
        self._fibers, self._fiber = fibers, fiber

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, however long that takes."""
        self._fibers.join([self._fiber])


class SimulatedEvents:
    """A queue."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._items: deque[Any] = deque()
        self._wake: Callable[[], None] | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake()

    def get(self, *, timeout: float) -> Any:
        fiber = self._fibers.running()
        if not self._items and not fiber.closing:
            self._wake = fiber.waker()
            fiber.wait_at_most(timeout)
            self._wake = None
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class SimulatedLock:
    """A lock that a fiber may hold while it waits, and take again."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._holder: Fiber | None = None
        self._depth = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        me = self._fibers.running()
        while self._holder not in (None, me) and not me.closing:
            self._waiting.append(me.waker())
            me.wait()
        self._holder = me
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            if self._waiting:
                self._waiting.popleft()()
