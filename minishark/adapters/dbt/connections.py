"""dbt's connections: sessions of this process, or connections to a server by ADBC."""

from __future__ import annotations

import atexit
import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from dbt.adapters.contracts.connection import (
    AdapterResponse,
    Connection,
    ConnectionState,
)
from dbt.adapters.contracts.connection import Credentials as BaseCredentials
from dbt.adapters.exceptions import FailedToConnectError
from dbt.adapters.sql import SQLConnectionManager
from dbt_common.exceptions import DbtDatabaseError, DbtRuntimeError

from minishark.adapters import dbapi
from minishark.errors import MinisharkError
from minishark.session.connect import connect
from minishark.session.session import Session
from minishark.tables.interruption import Interruption, running


@dataclass(kw_only=True)
class Credentials(BaseCredentials):
    """A target of the type `minishark` in profiles.yml.

    Attributes:
        database: the catalog of the models: `memory`, or `warehouse`.
        schema: the schema of the models.
        server: `grpc://host:port` or `grpc+tls://host:port` of a served session; None for a session
            of dbt's process, which ends with it.
        username: for the server.
        password: for the server.
        token: the server's token, instead of a user.
        certificate: a PEM file of the certificate to trust; None for the system's.
        options: arguments of `minishark.connect`, for a session of dbt's process.
    """

    database: str = "memory"
    schema: str = "main"
    server: str | None = None
    username: str | None = None
    password: str | None = None
    token: str | None = None
    certificate: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """The adapter's name."""
        return "minishark"

    @property
    def unique_field(self) -> str:
        """What dbt hashes to tell projects from each other."""
        return self.server or "embedded"

    def _connection_keys(self) -> tuple[str, ...]:
        return "server", "database", "schema", "username", "certificate", "options"


class _Sessions:
    """The sessions of this process, one for each set of options, which end with it.

    Several commands of one process, as dbt's Python interface runs them, find the tables of those
    before them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def find(self, options: Mapping[str, Any]) -> Session:
        """The session with these options; started, if there is none."""
        key = json.dumps(options, sort_keys=True, default=str)
        with self._lock:
            session = self._sessions.get(key)
            if session is None or not session.is_open:
                session = self._sessions[key] = connect(**options)
            return session

    def stop(self) -> None:
        """Stop all."""
        with self._lock:
            for session in self._sessions.values():
                session.stop()
            self._sessions.clear()


sessions = _Sessions()
atexit.register(sessions.stop)


class _Cursor(dbapi.Cursor):
    """A cursor whose statements `Embedded.cancel` ends."""

    def __init__(self, connection: Embedded) -> None:
        super().__init__(connection)
        self._interruption = connection.interruption

    def execute(self, operation: str, parameters: dbapi.Parameters | None = None) -> _Cursor:
        with running(self._interruption):
            return super().execute(operation, parameters)


class Embedded(dbapi.Connection):
    """A connection with temporary tables of its own to a session of this process."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.new_session(), owns_session=True)
        self.interruption = Interruption()

    def cursor(self) -> _Cursor:
        _ = self.session
        return _Cursor(self)

    def cancel(self) -> None:
        """End what runs, and refuse what follows."""
        self.interruption.cancel()


class Served:
    """A connection to a server, as PEP 249 defines it."""

    def __init__(self, credentials: Credentials) -> None:
        if find_spec("adbc_driver_flightsql") is None:
            raise FailedToConnectError(
                "A server needs Flight SQL's driver: pip install adbc-driver-flightsql pyarrow"
            )
        import adbc_driver_flightsql.dbapi as flight_sql  # noqa: PLC0415 - an optional package

        options: dict[str, str] = {}
        if credentials.username is not None:
            options["username"] = credentials.username
            options["password"] = credentials.password or ""
        elif credentials.token is not None:
            options["adbc.flight.sql.authorization_header"] = f"Bearer {credentials.token}"
        if credentials.certificate is not None:
            pem = Path(credentials.certificate).expanduser().read_text(encoding="ascii")
            options["adbc.flight.sql.client_option.tls_root_certs"] = pem
        self._connection = flight_sql.connect(
            str(credentials.server), db_kwargs=options, autocommit=True
        )
        self._cursors: list[Any] = []

    def cursor(self) -> Any:
        """A new cursor; the one before it is closed, as dbt closes none."""
        while self._cursors:
            self._cursors.pop().close()
        self._cursors.append(self._connection.cursor())
        return self._cursors[0]

    def cancel(self) -> None:
        """End what runs."""
        for cursor in self._cursors:
            cursor.adbc_cancel()

    def close(self) -> None:
        """Close the connection; idempotent."""
        while self._cursors:
            self._cursors.pop().close()
        self._connection.close()


class MinisharkConnections(SQLConnectionManager):
    """One connection for each of dbt's threads; each statement is committed at once."""

    TYPE: ClassVar[str] = "minishark"

    @classmethod
    def open(cls, connection: Connection) -> Connection:
        """Connect, unless it is open.

        Raises:
            FailedToConnectError: there is no such server, or the session does not start.
        """
        if connection.state == ConnectionState.OPEN:
            return connection
        credentials = connection.credentials
        try:
            if credentials.server is None:
                connection.handle = Embedded(sessions.find(credentials.options))
            else:
                connection.handle = Served(credentials)
        except Exception as error:
            connection.handle = None
            connection.state = ConnectionState.FAIL
            raise FailedToConnectError(str(error)) from error
        connection.state = ConnectionState.OPEN
        return connection

    def cancel(self, connection: Connection) -> None:
        """End what another thread runs."""
        connection.handle.cancel()

    @contextlib.contextmanager
    def exception_handler(self, sql: str) -> Iterator[None]:
        """Raise dbt's errors, with minishark's message."""
        try:
            yield
        except DbtRuntimeError:
            raise
        except (dbapi.Error, MinisharkError) as error:
            raise DbtDatabaseError(str(error)) from error
        except Exception as error:
            self.release()
            raise DbtDatabaseError(str(error)) from error

    @classmethod
    def get_response(cls, cursor: Any) -> AdapterResponse:
        """What dbt logs of a statement: the rows that it changed or answered, where known."""
        rows = cursor.rowcount
        if rows is None or rows < 0:
            return AdapterResponse(_message="OK")
        return AdapterResponse(_message=f"OK {rows}", rows_affected=rows)

    @classmethod
    def data_type_code_to_name(cls, type_code: Any) -> str:
        """DuckDB's name of a column's type, or Arrow's from a server."""
        return str(type_code)

    def begin(self) -> Connection:
        """Nothing to begin: dbt's hooks and models are statements of their own."""
        return self.get_thread_connection()

    def add_begin_query(self) -> None:
        """Never called: see `begin`."""

    def add_commit_query(self) -> None:
        """Never called: see `begin`."""

    def commit(self) -> Connection:
        """Nothing to commit."""
        return self.get_thread_connection()

    def commit_if_has_connection(self) -> None:
        """Nothing to commit."""
