"""DuckDB connections of the front end: for small things, interruptible ones, what they undo."""

from __future__ import annotations

import atexit
import contextlib
import os
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


_PREPARED = "_minishark_prepared"
_opening = threading.Lock()
_opened: list[duckdb.DuckDBPyConnection] = []  # none yet, or one


@contextlib.contextmanager
def aside(*, large: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for what needs no session, such as to parse an expression.

    All are to one database of this process, as DuckDB takes 20 ms to open one. It has one thread;
    what is `large` gets a database of its own, with all threads. What is set or created must be so
    for the connection only: SET SESSION, CREATE TEMP TABLE.
    """
    opened = duckdb.connect() if large else _beside()
    with contextlib.closing(opened) as connection, ConnectionUse(connection):
        try:
            yield connection
        except (duckdb.FatalException, duckdb.InternalException):
            with _opening:
                _close()  # it may refuse all else
            raise


def _beside() -> duckdb.DuckDBPyConnection:
    with _opening:
        if not _opened:
            _opened.append(duckdb.connect(config={"threads": "1"}))
        return _opened[0].cursor()


def _close() -> None:
    while _opened:
        _opened.pop().close()


def _before_fork() -> None:
    _opening.acquire()
    _close()  # a child could neither use nor close it


os.register_at_fork(
    before=_before_fork, after_in_parent=_opening.release, after_in_child=_opening.release
)
atexit.register(_close)  # or DuckDB's bindings would complain that it is still there


def check_prepared(con: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Resolve the names and types of a statement with parameters.

    Raises:
        duckdb.Error: they can't be resolved.
    """
    con.execute(f"PREPARE {_PREPARED} AS {sql}")
    con.execute(f"DEALLOCATE {_PREPARED}")


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
