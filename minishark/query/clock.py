"""What waits: time, queues, locks and pools, which are handed in.

What runs queries, loads tables and keeps replicas takes these from a `Clock` and from nowhere else.
With another one, the same code runs in simulated time (`minishark_lab/simulation`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Events(Protocol):
    """A queue without a bound; its users bound what they ask for."""

    def put(self, item: Any) -> None:
        """Append an item; called from any thread."""

    def get(self, *, timeout: float) -> Any:
        """The first item, after at most `timeout` seconds; `queue.Empty` if there is none."""


class Thread(Protocol):
    """A thread that runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for so many seconds at most."""


class Clock(Protocol):
    """Time, and all that takes some of it."""

    def now_s(self) -> float:
        """Seconds since any moment; they never go back."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def events(self) -> Events:
        """A new queue."""

    def lock(self) -> AbstractContextManager[Any]:
        """A new lock, which may be held while time passes, and which its holder may take again."""

    def thread(self, function: Callable[[], object], name: str) -> Thread:
        """Run a function beside the program, which does not wait for it when it ends."""

    def each(self, function: Callable[[T], object], items: Sequence[T], at_once: int) -> None:
        """Call a function with each item, some `at_once`; raises the first error when all ended."""


class SystemClock:
    """The time of this machine; threads wait."""

    def now_s(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)

    def events(self) -> Events:
        """A queue between threads."""
        return queue.SimpleQueue[Any]()

    def lock(self) -> AbstractContextManager[Any]:
        """A lock between threads."""
        return threading.RLock()

    def thread(self, function: Callable[[], object], name: str) -> Thread:
        """A thread of this process."""
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    def each(self, function: Callable[[T], object], items: Sequence[T], at_once: int) -> None:
        """In threads of a pool."""
        with ThreadPoolExecutor(at_once, "minishark-each") as pool:
            list(pool.map(function, items))


SYSTEM_CLOCK: Clock = SystemClock()
