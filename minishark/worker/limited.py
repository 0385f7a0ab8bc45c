"""Calls of user code that are given up when they take too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from minishark.worker.functions import Interrupted, UserCode

T = TypeVar("T")

POLL_S = 0.05
"""How long a thread may wait at a time: between two waits it can be interrupted."""

_STUCK_S = 1.0


class TooLongError(Exception):
    """A call took too long; the text says how long it might have."""


@dataclass(slots=True)
class LimitedCalls:
    """Calls in threads that are left behind if they do not end in time."""

    _left: list[UserCode] = field(default_factory=list)  # were given up, and have not ended

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Call a function.

        Raises:
            TooLongError: it took longer than `timeout_s`.
        """
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []
        code = UserCode()

        def work() -> None:
            try:
                results.append(code.run(function))
            except BaseException as error:  # noqa: BLE001 - raised again by the slot's thread
                errors.append(error)
            finally:
                done.set()

        context = copy_context()
        thread = threading.Thread(target=context.run, args=(work,), daemon=True)
        thread.start()
        try:
            if not _happens(done, timeout_s):
                code.stop()
                if not _happens(done, _STUCK_S):
                    self._left.append(code)
                raise TooLongError(f"It took longer than {timeout_s:g} s.")
        except Interrupted:
            code.stop()
            raise
        if errors:
            raise errors[0]
        return results[0]

    def left_behind(self) -> bool:
        """Interrupt calls again that were given up and have not ended; whether there are any."""
        if self._left:
            self._left = [code for code in self._left if code.stop()]
        return bool(self._left)


def _happens(event: threading.Event, timeout_s: float) -> bool:
    """Wait in short steps, between which this thread can be interrupted."""
    deadline = time.monotonic() + timeout_s
    while not event.is_set():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        event.wait(min(left_s, POLL_S))
    return True
