"""Work for a thread that nobody waits for: what it does not come to do costs a miss, not an answer.

Of items that come faster than they are handled, the oldest stay and the newest are dropped, as what
is made first is what a query that starts again asks for first. What the handler raises ends with
its batch. Both are said once, and counted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_QUEUED_MAX = 10_000

T = TypeVar("T")


class Background(Generic[T]):
    """A thread that handles items, all at once that have come meanwhile.

    Attributes:
        dropped: how many items were not handled, as too many waited or their handler failed.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[T]], None],
        name: str,
        say: Callable[[str], None] = lambda _: None,
        *,
        gather_s: float = 0.0,
    ) -> None:
        """Start the thread, which is called `name`.

        Args:
            handle: handles items.
            name: of the thread.
            say: is told why items were dropped.
            gather_s: how long an item waits for others, so that they are handled together.
        """
        self.dropped = 0
        self._handle = handle
        self._say = say
        self._gather_s = gather_s
        self._closes = threading.Event()
        self._reasons: dict[str, None] = {}
        self._queued: queue.Queue[T | None] = queue.Queue(_QUEUED_MAX)
        self._lock = threading.Lock()  # guards `dropped` and the reasons
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        """Whether items wait."""
        return not self._queued.empty()

    def put(self, item: T) -> None:
        """Have an item handled, unless too many wait for that."""
        try:
            self._queued.put_nowait(item)
        except queue.Full:
            self._drop(1, f"more than {_QUEUED_MAX:,} of them waited")

    def close(self, within_s: float) -> None:
        """Wait until all is handled, for so many seconds at most."""
        until_s = time.monotonic() + within_s
        self._closes.set()
        try:
            self._queued.put(None, timeout=within_s)
        except queue.Full:
            return  # it has had its time
        self._thread.join(max(0.0, until_s - time.monotonic()))

    def _drop(self, count: int, why: str) -> None:
        with self._lock:
            self.dropped += count
            is_new = why not in self._reasons
            self._reasons[why] = None
        if is_new:
            self._say(why)

    def _run(self) -> None:
        is_open = True
        while is_open:
            items = [self._queued.get()]
            self._closes.wait(self._gather_s)
            try:
                while True:
                    items.append(self._queued.get_nowait())
            except queue.Empty:
                pass
            is_open = None not in items
            batch = [item for item in items if item is not None]
            if batch:
                try:
                    self._handle(batch)
                except Exception as error:  # noqa: BLE001 - a lost batch must not end those to come
                    self._drop(len(batch), f"{type(error).__name__}: {error}")
