"""Runs users' callbacks on a thread of their own, so that they can't stop the cluster's."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable


class Callbacks:
    """A thread that calls functions in order; it starts with the first."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, call: Callable[[], object]) -> None:
        """Call a function soon."""
        self._waiting.put(call)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="minishark-callbacks", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while (call := self._waiting.get()) is not None:
            try:
                call()
            except Exception:  # noqa: BLE001 - as `concurrent.futures` does, but to stderr
                traceback.print_exc()

    def close(self) -> None:
        """End the thread, after what it has been given."""
        self._waiting.put(None)
