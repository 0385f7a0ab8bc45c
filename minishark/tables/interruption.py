"""Cancels what one thread runs from another, whichever part of the engine it is in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from minishark.errors import QueryCancelledError


class Interruption:
    """Ends the statements of a `with running(...)` block; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stops: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End what runs now, and all that follows in the block, with QueryCancelledError."""
        with self._lock:
            self._cancelled = True
            for stop in self._stops:
                stop()

    @contextlib.contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """A part that `stop` ends; it is never called after the part.

        Raises:
            QueryCancelledError: it was cancelled before.
        """
        with self._lock:
            if self._cancelled:
                raise QueryCancelledError("The statement was cancelled.")
            self._stops.append(stop)
        try:
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)


_current: ContextVar[Interruption | None] = ContextVar("interruption", default=None)


@contextlib.contextmanager
def running(interruption: Interruption) -> Iterator[None]:
    """A block of this thread that `interruption` can end."""
    token = _current.set(interruption)
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def stopped_by(stop: Callable[[], None]) -> Iterator[None]:
    """A part of what this thread runs that `stop` ends, if somebody can cancel it."""
    interruption = _current.get()
    if interruption is None:
        yield
    else:
        with interruption.stopped_by(stop):
            yield
