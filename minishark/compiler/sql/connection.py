"""A lock for a DuckDB connection of the front end, which keeps it interruptible; what it undoes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import duckdb

_INTERRUPTED = "Query interrupted"
"""The RuntimeError by which DuckDB's Python client replaces what Ctrl-C raised."""


class ConnectionUse:
    """A lock around the calls of one connection that raises KeyboardInterrupt on Ctrl-C.

    It is reentrant, for parts after which the connection must be ready for other calls: it is not
    while an interrupted query is open.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, lock: threading.RLock | None = None) -> None:
        """A lock of its own, or one that is shared with other connections."""
        self._con = con
        self._lock = lock or threading.RLock()

    def shared_by(self, con: duckdb.DuckDBPyConnection) -> ConnectionUse:
        """The same lock, for another connection."""
        return ConnectionUse(con, self._lock)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if isinstance(error, RuntimeError) and str(error) == _INTERRUPTED:
                self._con.abort()
                raise KeyboardInterrupt from error
        finally:
            self._lock.release()


@contextlib.contextmanager
def undone(con: duckdb.DuckDBPyConnection, statements: Sequence[str] = ()) -> Iterator[None]:
    """A transaction that begins with these statements, and is rolled back in any case.

    Those that fail are left out: what they are about is gone.
    """
    left = [*statements]
    while not _began(con, left):
        pass
    try:
        yield
    finally:
        con.execute("ROLLBACK")


def _began(con: duckdb.DuckDBPyConnection, statements: list[str]) -> bool:
    """Whether all of them ran; removes the first that did not, as an error ends a transaction."""
    con.execute("BEGIN")
    for place, sql in enumerate(statements):
        try:
            con.execute(sql).fetchall()
        except BaseException as error:
            con.execute("ROLLBACK")
            if not isinstance(error, duckdb.Error) or isinstance(error, duckdb.InterruptException):
                raise
            del statements[place]
            return False
    return True
