"""The use of a DuckDB connection of the front end: by one thread at a time, and interruptible."""

from __future__ import annotations

import threading
from types import TracebackType

import duckdb

_INTERRUPTED = "Query interrupted"
"""What DuckDB's Python client says, in a RuntimeError, in the place of what Ctrl-C has raised."""


class ConnectionUse:
    """A lock around the calls of one connection, out of which Ctrl-C comes as KeyboardInterrupt.

    It may be taken again by the thread that holds it: around a part after which the connection
    must be ready for other calls, as it is not while an interrupted query is open.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, RuntimeError) and str(error) == _INTERRUPTED:
                self._con.abort()
                raise KeyboardInterrupt from error
        finally:
            self._lock.release()
