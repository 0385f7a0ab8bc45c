"""Connections to PostgreSQL: strings, errors without secrets, a transaction kept for others."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote_plus, unquote, urlencode, urlsplit

import pyarrow as pa

from minishark.errors import DataError, OptionError

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

Dsn: TypeAlias = str | Callable[[], str]
"""A connection string or URI of libpq, or what returns one where a connection is made."""


_CONNECT_S = 10
_LOCK_S = 60  # for which statements wait for ALTER TABLE, TRUNCATE and the like
LOCK_OF_TASKS_S = 5
"""For which tasks wait: who has the table waits in turn for the query to end."""
# libpq's variables that say how to connect, with its names for them in connection strings.
_VARIABLES = {
    "PGHOST": "host",
    "PGHOSTADDR": "hostaddr",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGPASSWORD": "password",
    "PGPASSFILE": "passfile",
    "PGSERVICE": "service",
    "PGSSLMODE": "sslmode",
    "PGSSLROOTCERT": "sslrootcert",
}
_SERVER_ERROR = re.compile(r"ERROR:\s+(.+)")  # without the statement, which the driver repeats


class Server:
    """How to connect; what it shows of itself has no credentials."""

    def __init__(self, dsn: Dsn, name: str, statement_timeout: float | None) -> None:
        self._dsn, self.name = dsn, name
        self._timeout = statement_timeout

    def __repr__(self) -> str:
        return f"Server({self.name!r})"

    def is_same_as(self, other: Server) -> bool:
        """Whether both connect to the same database as the same user."""
        return self._dsn == other._dsn

    def connected(self) -> Connected:
        return Connected(self)

    def connect(self) -> Connection:
        from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

        dsn = self._dsn if isinstance(self._dsn, str) else complete(self._dsn())
        assert isinstance(dsn, str), "the function has been called"
        failure: DataError | None = None
        try:
            connection: Connection = dbapi.connect(dsn, autocommit=True)
        except dbapi.Error as error:
            failure = self.told(error, dsn)
        if failure is not None:
            raise failure  # without a cause or context, which may quote the string
        try:
            fetched(connection, "SET standard_conforming_strings = on")
            fetched(connection, "SET TimeZone = 'UTC'")
            fetched(connection, f"SET lock_timeout = {_LOCK_S * 1000}")
            if self._timeout is not None:
                fetched(connection, f"SET statement_timeout = {int(self._timeout * 1000)}")
        except BaseException:
            connection.close()
            raise
        return connection

    def told(self, error: Exception, dsn: str = "") -> DataError:
        """What the server or the driver said, without credentials."""
        match = _SERVER_ERROR.search(str(error))
        text = (match[1] if match else str(error)).strip().rstrip(".")
        for secret in passwords_in(dsn):
            text = text.replace(secret, "***")
        if _has_odd_password(dsn):
            text = "in the password of the connection string, write @ as %40 and / as %2F"
        hint = ""
        if "snapshot" in text and ("invalid" in text or "does not exist" in text):
            hint = (
                " The transaction that keeps the rows has ended: somebody terminated it, or the "
                "query took longer than the source's option `hold` allows."
            )
        if "lock timeout" in text:
            hint = " Somebody changes the table's columns, truncates it or writes it anew."
        return DataError(f"Can't read {self.name}: {text}.{hint}")


class Connected:
    """A connection that is closed at the end of the block; errors of the driver become ours."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> Connection:
        self._connection = self._server.connect()
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - an optional dependency

        _close(self._connection)
        if isinstance(error, (dbapi.Error, pa.ArrowException, OSError)):
            raise self._server.told(error) from error


class Moment:
    """What the tables of one query see of a server, from the first that asks until it is ended.

    Args:
        server: where.
        hold: seconds for which the server keeps it.
    """

    def __init__(self, server: Server, hold: float) -> None:
        self._server, self._hold = server, hold
        self._lock = threading.Lock()
        self._holder: _Holder | None = None

    def again(self) -> Moment:
        """Another one of the same kind."""
        return Moment(self._server, self._hold)

    def serves(self, other: Moment) -> bool:
        """Whether both are of one server, kept equally long."""
        return self._server.is_same_as(other._server) and self._hold == other._hold

    def exported(self, table: str) -> str:
        """The name by which other transactions take over the snapshot, to read a table.

        Until the end nobody can truncate the table or write it anew, which would move rows from
        one range of blocks to another, or remove them from snapshots.

        Args:
            table: its name in SQL.

        Raises:
            DataError: the server does not answer, or does not keep the snapshot any more.
        """
        with self._lock:
            if self._holder is None:
                self._holder = _Holder(self._server, self._hold)
            self._holder.lock(table)
            return self._holder.snapshot

    def end(self) -> None:
        """End the transaction that keeps the rows, if there is one."""
        with self._lock:
            holder, self._holder = self._holder, None
        if holder is not None:
            holder.close()


class _Holder:
    """A transaction that keeps its snapshot for others; it ends with the object."""

    def __init__(self, server: Server, seconds: float) -> None:
        connection = server.connect()
        try:
            limit = f"SET idle_in_transaction_session_timeout = {int(seconds * 1000)}"
            fetched(connection, limit)
            fetched(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            ((snapshot,),) = fetched(connection, "SELECT pg_export_snapshot()")
        except Exception as error:
            _close(connection)
            raise server.told(error) from error
        self.snapshot: str = snapshot
        self._server, self._connection = server, connection
        self.close = weakref.finalize(self, _close, connection)

    def lock(self, table: str) -> None:
        """Keep others from moving the rows of a table, which has not to be a table proper.

        Raises:
            DataError: the server does not keep the snapshot any more, or somebody has the table.
        """
        try:
            fetched(self._connection, f"SELECT FROM {table} LIMIT 0")
        except Exception as error:
            self.close()  # whatever it is, the snapshot can't be relied upon
            raise self._server.told(error) from error


def fetched(connection: Connection, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        # EXPLAIN and statements that change the transaction are none that COPY takes.
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": False})
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []


def _close(connection: Connection) -> None:
    # The server may be gone, and then so is what would be closed.
    with contextlib.suppress(Exception):
        connection.close()


# Connection strings


def complete(dsn: Dsn) -> Dsn:
    """A connection string with what the environment adds, for executors, who have another one."""
    if not isinstance(dsn, str):
        return dsn
    if dsn.startswith("env:"):
        variable = dsn.removeprefix("env:")
        if variable not in os.environ:
            raise OptionError(f"The environment has no variable {variable} for PostgreSQL.")
        dsn = os.environ[variable]
    given = {_VARIABLES[name]: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    defaults = {"connect_timeout": str(_CONNECT_S), **given}
    if dsn.startswith(("postgresql://", "postgres://")):
        return _complete_uri(dsn, defaults)
    named = set(re.findall(r"(\w+)\s*=", dsn))
    added = [
        f"{key}={_quoted_parameter(value)}"
        for key, value in defaults.items()
        if key not in named and not ("service" in named and key != "connect_timeout")
    ]
    return " ".join([dsn, *added]).strip()


def _complete_uri(uri: str, defaults: Mapping[str, str]) -> str:
    parts = urlsplit(uri)
    user, _, server = parts.netloc.rpartition("@")
    given = {key for key, _ in parse_qsl(parts.query)}
    given |= {"user"} if user else set()
    given |= {"password"} if ":" in user else set()
    given |= {"host", "hostaddr"} if server else set()
    given |= {"port"} if re.search(r":\d+$", server) else set()
    given |= {"dbname"} if parts.path.strip("/") else set()
    added = {key: value for key, value in defaults.items() if key not in given}
    if "service" in given:
        added = {key: value for key, value in added.items() if key == "connect_timeout"}
    text = urlencode(added, quote_via=lambda text, *_: quote_plus(text).replace("+", "%20"))
    return f"{uri}{'&' if parts.query else '?'}{text}" if added else uri


def _quoted_parameter(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _has_odd_password(dsn: str) -> bool:
    """Whether libpq may take a part of a URI's password for a host or port, and quote it."""
    user, at, _ = dsn.partition("://")[2].rpartition("@")
    return bool(at and re.search("[@/]", user.partition(":")[2]))


def passwords_in(dsn: str) -> list[str]:
    """The passwords of a connection string, as messages might quote them."""
    user = urlsplit(dsn).netloc.rpartition("@")[0] if "://" in dsn else ""
    passwords = [
        user.partition(":")[2],
        *(v for k, v in parse_qsl(urlsplit(dsn).query) if k == "password"),
    ]
    passwords += [match[1] for match in re.finditer(r"password\s*=\s*'?((?:[^'\s\\]|\\.)+)", dsn)]
    return [form for text in passwords if text for form in {text, unquote(text)}]
