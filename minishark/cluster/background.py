"""Work for a thread that nobody waits for, dropped where the thread does not keep up with it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_QUEUED_MAX = 10_000

T = TypeVar("T")


class Background(Generic[T]):
    """A thread that handles items, all at once that have come meanwhile."""

    def __init__(self, handle: Callable[[Sequence[T]], None], name: str) -> None:
        """Start the thread, which is called `name`."""
        self._handle = handle
        self._queued: queue.Queue[T | None] = queue.Queue(_QUEUED_MAX)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Have an item handled, unless too many wait for that."""
        with contextlib.suppress(queue.Full):
            self._queued.put_nowait(item)

    def close(self, within_s: float) -> None:
        """Wait until all is handled, for so many seconds at most."""
        until_s = time.monotonic() + within_s
        with contextlib.suppress(queue.Full):
            self._queued.put(None, timeout=within_s)
        self._thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        is_open = True
        while is_open:
            items = [self._queued.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    items.append(self._queued.get_nowait())
            is_open = None not in items
            batch = [item for item in items if item is not None]
            if batch:
                self._handle(batch)
