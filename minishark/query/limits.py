"""The bound on open queries: overload is an error, not growing memory.

Open queries wait for slots at the nodes, which share them fairly among sessions. Cached rows that a
query is the first to read are computed as part of it, and not counted again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from minishark.errors import ResourceError

OPEN_MAX = 1000


class OpenQueries:
    """Counts the open queries of a session."""

    def __init__(self, open_max: int = OPEN_MAX) -> None:
        self.open_max = open_max
        self._open = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """The number of open queries."""
        return self._open

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count one open query (ResourceError if too many are open)."""
        with self._lock:
            if self._open >= self.open_max:
                raise ResourceError(
                    f"The session has {self._open:,} queries open, which is its limit: wait for "
                    "some of them, ask from fewer threads, or use another session."
                )
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
