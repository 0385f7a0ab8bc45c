"""How many queries a session has open at a time: a bound, so that overload is an error, not a heap.

Queries that are open wait for slots at the nodes, which share them fairly among sessions. What one
query makes on its way (rows that it is the first to read) belongs to it, and is never refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from minishark.errors import ResourceError

OPEN_MAX = 1000


class OpenQueries:
    """Counts the queries of a session that are open."""

    def __init__(self, open_max: int = OPEN_MAX) -> None:
        self.open_max = open_max
        self._open = 0
        self._lock = threading.Lock()
        self._here = threading.local()

    @property
    def count(self) -> int:
        """How many are open now."""
        return self._open

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be open.

        Raises:
            ResourceError: too many queries are.
        """
        if getattr(self._here, "inside", False):
            yield
            return
        with self._lock:
            if self._open >= self.open_max:
                raise ResourceError(
                    f"The session has {self._open:,} queries open, which is its limit: wait for "
                    "some of them, ask from fewer threads, or use another session."
                )
            self._open += 1
        self._here.inside = True
        try:
            yield
        finally:
            self._here.inside = False
            with self._lock:
                self._open -= 1
