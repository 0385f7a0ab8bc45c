"""Databases that have a DuckLake's catalog: SQLite, PostgreSQL, or a DuckDB file.

The same SQL runs in all of them; values are written into it as literals. What is done in one block
of `reading` sees one state of the catalog; one of `writing` is alone, and commits at its end.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from minishark.errors import DataError, ExecutionError, MinisharkError, OptionError
from minishark.model.expressions import quote, quote_text
from minishark.sources.optional import library
from minishark.sources.postgres_server import Server, complete, fetched

if TYPE_CHECKING:
    import duckdb
    from adbc_driver_manager.dbapi import Connection

_WAIT_S = 30  # until another writer must have released the catalog
_OPEN_S = 0.05  # between attempts at a DuckDB file that another process has open


class LakeConnection(ABC):
    """Runs SQL in a catalog, in one transaction."""

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer to a query; empty for other statements."""

    @abstractmethod
    def has_table(self, name: str) -> bool: ...

    def texts(self, sql: str) -> pa.Table:
        """A query's answer with every value as text that DuckDB can cast; BLOBs as they are."""
        rows = self.rows(sql)
        columns = [list(map(_text, column)) for column in zip(*rows, strict=True)]
        arrays = [_array(column) for column in columns]
        return pa.Table.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])


def _text(value: Any) -> Any:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, pa.MonthDayNano):  # PostgreSQL's intervals
        months, days, ns = value
        return f"{months} months {days} days {ns // 1000} microseconds"
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def _array(column: list[Any]) -> pa.Array:
    is_binary = any(isinstance(value, bytes) for value in column)
    return pa.array(column, pa.binary() if is_binary else pa.string())


class LakeDatabase(ABC):
    """Where a catalog is.

    Attributes:
        where: what messages call it; without credentials.
        default_data_path: where files go unless it is said; empty if it has to be said.
    """

    where: str
    default_data_path: str = ""

    @abstractmethod
    def reading(self) -> contextlib.AbstractContextManager[LakeConnection]:
        """A block that sees one state (ExecutionError if the database does not answer)."""

    @abstractmethod
    def writing(self) -> contextlib.AbstractContextManager[LakeConnection]:
        """A block that nobody else writes during; undone if it fails."""

    @abstractmethod
    def column_type(self, type_: str) -> str:
        """The type in which columns of inlined rows are stored that have DuckDB's type `type_`."""

    def now(self) -> str:
        """SQL of the time of a commit."""
        return "CURRENT_TIMESTAMP"

    def table(self, sql: str) -> str:
        """A CREATE TABLE of the catalog, in the types that the database has for it."""
        return sql

    def token(self) -> object | None:
        """Equal ones mean that nothing was changed in between; None if that is not sure."""
        return None

    def close(self) -> None:  # noqa: B027 - not all keep something open
        """Nobody uses it any more."""


def open_database(address: str, *, create: bool) -> LakeDatabase:
    """The database that follows `ducklake:` in the address of a lake, as in DuckDB's ATTACH.

    Args:
        address: `sqlite:FILE`, `postgres:CONNECTION STRING`, or the path of a DuckDB file.
        create: whether a file may be missing.

    Raises:
        OptionError: there are no such catalogs, or a library is missing.
        DataError: the file is missing.
    """
    kind, separator, rest = address.partition(":")
    if kind in ("postgres", "postgresql"):
        is_uri = rest.startswith("//")
        return PostgresLake(f"postgresql:{rest}" if is_uri else rest)
    if separator and kind == "mysql":
        raise OptionError("Catalogs of DuckLakes in MySQL are not supported.")
    path = Path(rest if kind in ("sqlite", "duckdb") and separator else address).expanduser()
    path = path.absolute()
    if not create and not path.exists():
        raise DataError(f"There is no catalog of a DuckLake at {path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    return SqliteLake(path) if kind == "sqlite" else DuckDBLake(path)


@contextlib.contextmanager
def _reached(where: str, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except MinisharkError:
        raise
    except Exception as error:
        if not isinstance(error, (OSError, *errors)):
            raise
        first = str(error).partition("\n")[0]
        raise ExecutionError(f"The catalog of the DuckLake {where} failed: {first}") from error


class _Sqlite(LakeConnection):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()

    def has_table(self, name: str) -> bool:
        query = f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = {quote_text(name)}"
        return bool(self.rows(query))


class SqliteLake(LakeDatabase):
    """A catalog in a file of SQLite's."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self.default_data_path = f"{path}.files/"
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[LakeConnection]:
        with self._lock, _reached(self.where, sqlite3.Error):
            if self._connection is None:
                self._connection = sqlite3.connect(
                    self.where, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
                )
            connection = self._connection
            connection.execute(begin)
            try:
                yield _Sqlite(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def reading(self) -> contextlib.AbstractContextManager[LakeConnection]:
        return self._transaction("BEGIN")

    def writing(self) -> contextlib.AbstractContextManager[LakeConnection]:
        return self._transaction("BEGIN IMMEDIATE")

    def column_type(self, type_: str) -> str:
        if type_ in ("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT") or (
            type_ in ("UTINYINT", "USMALLINT", "UINTEGER")
        ):
            return "BIGINT"
        return "BLOB" if type_ == "BLOB" else "VARCHAR"

    def now(self) -> str:
        return "strftime('%Y-%m-%d %H:%M:%f+00', 'now')"

    def table(self, sql: str) -> str:
        for type_, kept in (("TIMESTAMPTZ", "VARCHAR"), ("UUID", "VARCHAR"), ("BOOLEAN", "BIGINT")):
            sql = sql.replace(f" {type_}", f" {kept}")
        return sql

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class _DuckDB(LakeConnection):
    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()

    def has_table(self, name: str) -> bool:
        query = "SELECT 1 FROM duckdb_tables() WHERE database_name = 'lake' AND table_name = "
        return bool(self.rows(f"{query}{quote_text(name)}"))

    def texts(self, sql: str) -> pa.Table:
        answer: pa.Table = self._connection.sql(sql).to_arrow_table()
        return answer.rename_columns([f"c{i}" for i in range(answer.num_columns)])


class DuckDBLake(LakeDatabase):
    """A catalog in a file of DuckDB's, which one process has open at a time."""

    _LOCKS: ClassVar[dict[str, threading.RLock]] = {}  # by file, of all sessions

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self.default_data_path = f"{path}.files/"
        self._lock = self._LOCKS.setdefault(os.path.realpath(path), threading.RLock())

    @contextlib.contextmanager
    def _transaction(self, mode: str) -> Iterator[LakeConnection]:
        import duckdb  # noqa: PLC0415 - a session starts before it is imported

        with self._lock, _reached(self.where, duckdb.Error), self._opened(mode) as connection:
            connection.execute("BEGIN")
            try:
                yield _DuckDB(connection)
            except BaseException:
                with contextlib.suppress(duckdb.Error):
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def reading(self) -> contextlib.AbstractContextManager[LakeConnection]:
        return self._transaction("READ_ONLY")

    def writing(self) -> contextlib.AbstractContextManager[LakeConnection]:
        # A new file can be opened by the oldest versions that have DuckLake's extension.
        is_new = not Path(self.where).exists()
        return self._transaction("STORAGE_VERSION 'v1.0.0'" if is_new else "READ_WRITE")

    @contextlib.contextmanager
    def _opened(self, mode: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """The file as a database; other processes can write to it only after the block."""
        import duckdb  # noqa: PLC0415

        until_s = time.monotonic() + _WAIT_S
        while True:
            connection = duckdb.connect(config={"threads": "1"})
            try:
                connection.execute(f"ATTACH {quote_text(self.where)} AS lake ({mode})")
                connection.execute("USE lake")
                connection.execute("SET TimeZone = 'UTC'")
                break
            except duckdb.IOException as error:
                connection.close()
                if "lock" not in str(error) or time.monotonic() > until_s:
                    raise
                time.sleep(_OPEN_S)
            except BaseException:
                connection.close()
                raise
        try:
            yield connection
        finally:
            with contextlib.suppress(duckdb.Error):
                connection.execute("USE memory; DETACH lake")
            connection.close()

    def column_type(self, type_: str) -> str:
        return type_

    def token(self) -> object | None:
        versions: list[tuple[int, int, int] | None] = []
        for path in (self.where, f"{self.where}.wal"):
            try:
                status = os.stat(path)  # noqa: PTH116 - called for each statement
            except FileNotFoundError:
                versions.append(None)
            else:
                versions.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(versions)


class _Postgres(LakeConnection):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return fetched(self._connection, sql)

    def has_table(self, name: str) -> bool:
        ((is_there,),) = self.rows(f"SELECT to_regclass({quote_text(quote(name))}) IS NOT NULL")
        return bool(is_there)


class PostgresLake(LakeDatabase):
    """A catalog in a PostgreSQL server."""

    def __init__(self, dsn: str) -> None:
        library("adbc_driver_postgresql.dbapi", "postgres")
        self.where = "PostgreSQL"
        self._server = Server(complete(dsn), "the catalog of the DuckLake", None)
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def _transaction(self, *begin: str) -> Iterator[LakeConnection]:
        from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

        with self._lock, _reached(self.where, dbapi.Error, pa.ArrowException):
            connection = self._connected(begin)
            try:
                yield _Postgres(connection)
                fetched(connection, "COMMIT")
            except BaseException:
                self.close()  # which rolls back
                raise

    def _connected(self, begin: Sequence[str]) -> Connection:
        """A connection in a transaction; the server may have ended the last one."""
        kept, self._connection = self._connection, None
        if kept is not None:
            with contextlib.suppress(Exception):
                self._begun(kept, begin)
                return kept
            with contextlib.suppress(Exception):
                kept.close()
        connection = self._server.connect()
        try:
            return self._begun(connection, begin)
        except BaseException:
            connection.close()
            raise

    def _begun(self, connection: Connection, begin: Sequence[str]) -> Connection:
        for statement in begin:
            fetched(connection, statement)
        self._connection = connection
        return connection

    def reading(self) -> contextlib.AbstractContextManager[LakeConnection]:
        return self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def writing(self) -> contextlib.AbstractContextManager[LakeConnection]:
        # Who comes second waits, and sees what the first has committed.
        lock = (
            "DO $$ BEGIN IF to_regclass('ducklake_snapshot') IS NOT NULL THEN "
            "LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE; END IF; END $$"
        )
        return self._transaction("BEGIN ISOLATION LEVEL READ COMMITTED", lock)

    def column_type(self, type_: str) -> str:
        return _POSTGRES_TYPES.get(type_, type_ if type_.startswith("DECIMAL") else "VARCHAR")

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(Exception):
                    self._connection.close()
                self._connection = None


_POSTGRES_TYPES = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "SMALLINT",
    "SMALLINT": "SMALLINT",
    "INTEGER": "INTEGER",
    "BIGINT": "BIGINT",
    "UTINYINT": "INTEGER",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "FLOAT": "REAL",
    "DOUBLE": "DOUBLE PRECISION",
    "VARCHAR": "BYTEA",
    "BLOB": "BYTEA",
    "UUID": "UUID",
    "TIME": "TIME",
    "JSON": "JSON",
    "INTERVAL": "INTERVAL",
}
