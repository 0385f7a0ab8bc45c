"""DB-API 2.0 (PEP 249): minishark as a database that any Python tool can open.

    >>> from minishark import dbapi
    >>> with dbapi.connect(nodes=1) as connection, connection.cursor() as cursor:
    ...     cursor.execute("SELECT ? + 1", [41]).fetchall()
    [(42,)]

Parameters are `?` or `$1` with a sequence, `$name` with a mapping. Each statement is a transaction
of its own: `commit` has nothing to do, and `rollback` raises NotSupportedError. A connection may be
shared by threads, a cursor may not. Values are Python's: Decimal, date, UUID, timedelta, int for
HUGEINT, datetime with microseconds for every TIMESTAMP.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from minishark import errors
from minishark.adapters.python_values import python_rows
from minishark.compiler.sql.statements import COUNTED
from minishark.session.connect import connect as connect_session
from minishark.session.session import Session

if TYPE_CHECKING:
    import pandas as pd

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

Parameters = Sequence[Any] | Mapping[str, Any]


class Warning(Exception):  # noqa: A001, N818 - the name is PEP 249's
    """PEP 249's class for warnings; never raised."""


class Error(Exception):
    """Base class of all errors of this module."""


class InterfaceError(Error):
    """The interface was used wrongly: a closed connection or cursor."""


class DatabaseError(Error):
    """Base class of errors of the database."""


class DataError(DatabaseError):
    """A value does not fit: division by zero, a text that is no number, unreadable input."""


class OperationalError(DatabaseError):
    """The cluster failed, memory ran out, or the query was cancelled."""


class IntegrityError(DatabaseError):
    """A constraint of a table was violated."""


class InternalError(DatabaseError):
    """PEP 249's class for a database out of step; never raised."""


class ProgrammingError(DatabaseError):
    """The statement is wrong, a table is missing, or the parameters do not fit."""


class NotSupportedError(DatabaseError):
    """Something that minishark does not do, such as transactions."""


class TypeObject:
    """Equal to the type code of every column of its kind."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TypeObject):
            return self.names == other.names
        return isinstance(other, str) and other.partition("(")[0] in self.names

    def __hash__(self) -> int:
        return hash(self.names)


STRING = TypeObject("VARCHAR", "ENUM", "UUID", "JSON")
BINARY = TypeObject("BLOB", "BIT")
NUMBER = TypeObject(
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"),
    *("UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN", "BIGNUM"),
)
DATETIME = TypeObject(
    *("DATE", "TIME", "TIME_NS", "TIME WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
    *("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "INTERVAL"),
)
ROWID = TypeObject()

Date = date
Time = time
Timestamp = datetime
Binary = bytes


def DateFromTicks(ticks: float) -> date:  # noqa: N802 - the name is PEP 249's
    """The date of a number of seconds since 1970, in UTC."""
    return datetime.fromtimestamp(ticks, UTC).date()


def TimeFromTicks(ticks: float) -> time:  # noqa: N802 - the name is PEP 249's
    """The time of day of a number of seconds since 1970, in UTC."""
    return datetime.fromtimestamp(ticks, UTC).time()


def TimestampFromTicks(ticks: float) -> datetime:  # noqa: N802 - the name is PEP 249's
    """The time of a number of seconds since 1970, in UTC, without a time zone."""
    return datetime.fromtimestamp(ticks, UTC).replace(tzinfo=None)


def connect(*args: Any, session: Session | None = None, **options: Any) -> Connection:
    """Open a connection.

    Args:
        args: for `minishark.connect`.
        session: a session to use; it stays open when the connection is closed. Without one, a
            session is started, and stopped with the connection.
        options: for `minishark.connect`.

    Raises:
        OperationalError: the cluster does not start.
        ProgrammingError: an option makes no sense.
    """
    if session is not None:
        if args or options:
            raise ProgrammingError("Options belong to a session that is started; pass no session.")
        return Connection(session, owns_session=False)
    with _translated():
        return Connection(connect_session(*args, **options), owns_session=True)


class Connection:
    """A connection to a session, for use by many threads; `connect` makes one."""

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, session: Session, *, owns_session: bool) -> None:
        self._session = session
        self._owns_session = owns_session
        self._closed = False

    @property
    def session(self) -> Session:
        """The session behind the connection.

        Raises:
            InterfaceError: the connection is closed.
        """
        if self._closed:
            raise InterfaceError("The connection is closed.")
        return self._session

    def cursor(self) -> Cursor:
        """A new cursor."""
        _ = self.session
        return Cursor(self)

    def execute(self, operation: str, parameters: Parameters | None = None) -> Cursor:
        """Run a statement on a cursor of its own."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Nothing to do: each statement has been committed when it has run."""
        _ = self.session

    def rollback(self) -> None:
        """Always raise NotSupportedError: each statement is a transaction of its own."""
        raise NotSupportedError("Each statement is a transaction of its own; none can be undone.")

    def close(self) -> None:
        """Close the connection; stops the session if `connect` started it. May be called twice."""
        self._closed = True
        if self._owns_session:
            self._session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Cursor:
    """Runs one statement after the other, and hands out rows; for one thread at a time.

    Attributes:
        connection: whose cursor it is.
        arraysize: how many rows `fetchmany` fetches by default.
        description: name, type code (DuckDB's name of the type), None, None, precision, scale and
            None for each column; None after a statement without rows.
        rowcount: rows of the answer, or rows that were changed; -1 before the first statement.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self._table: pa.Table | None = None
        self._rows: Iterator[tuple[Any, ...]] = iter(())
        self._fetched = 0
        self._closed = False

    def execute(self, operation: str, parameters: Parameters | None = None) -> Self:
        """Run a statement, or several with semicolons between; the last one's rows are fetched.

        Args:
            operation: SQL.
            parameters: values for `?` and `$1` (a sequence) or `$name` (a mapping).

        Raises:
            ProgrammingError: it is wrong.
            DataError: it failed on a value.
            OperationalError: it could not be run to its end.
        """
        session = self._open_session()
        self._forget()
        with _translated():
            parsed = session.parse(operation)[-1]
            frame = session.sql(operation, parameters or None)
            table = frame.to_arrow()
            types = [type_ for _, type_ in frame.dtypes]
        if isinstance(parsed, COUNTED) and table.column_names == ["Count"]:
            self.rowcount = sum(table.column(0).to_pylist())
            return self
        self.rowcount = table.num_rows
        self.description = tuple(
            (name, type_, None, None, *_precision(type_), None)
            for name, type_ in zip(table.column_names, types, strict=True)
        )
        self._table = table
        self._rows = python_rows(table, types)
        return self

    def executemany(self, operation: str, sets: Iterable[Parameters]) -> Self:
        """Run a statement once for each set of parameters; `rowcount` is the sum of all."""
        self._open_session()
        count = 0
        for parameters in sets:
            count += self.execute(operation, parameters).rowcount
            if self.description is not None:
                self._forget()
                raise ProgrammingError("executemany is for statements that write; use execute.")
        self._forget()
        self.rowcount = count
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None after the last."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next `size` rows, or `arraysize`; fewer at the end."""
        self._answer()
        with _translated():
            rows = list(itertools.islice(self._rows, self.arraysize if size is None else size))
        self._fetched += len(rows)
        return rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        return self.fetchmany(self._answer().num_rows)

    def fetch_arrow_table(self) -> pa.Table:
        """All rows that are left, as an Arrow table."""
        rest = self._answer().slice(self._fetched)
        self._fetched += rest.num_rows
        self._rows = iter(())
        return rest

    def fetchdf(self) -> pd.DataFrame:
        """All rows that are left, as a pandas frame (needs pandas)."""
        return self.fetch_arrow_table().to_pandas()

    @property
    def rownumber(self) -> int | None:
        """How many rows have been fetched; None if there is no answer."""
        return None if self._table is None else self._fetched

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Nothing to do: PEP 249 asks for this method, and values need no sizes here."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Nothing to do: PEP 249 asks for this method, and values need no sizes here."""

    def close(self) -> None:
        """Close the cursor; may be called twice."""
        self._forget()
        self._closed = True

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_session(self) -> Session:
        if self._closed:
            raise InterfaceError("The cursor is closed.")
        return self.connection.session

    def _answer(self) -> pa.Table:
        self._open_session()
        if self._table is None:
            raise ProgrammingError("There is no answer to fetch from; execute a query first.")
        return self._table

    def _forget(self) -> None:
        self.description = None
        self.rowcount = -1
        self._table = None
        self._rows = iter(())
        self._fetched = 0


def _precision(type_: str) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_)
    return (int(found[1]), int(found[2])) if found else (None, None)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise PEP 249's exceptions instead of minishark's."""
    try:
        yield
    except errors.MinisharkError as error:
        raise _error_class(error)(str(error)) from error


def _error_class(error: errors.MinisharkError) -> type[DatabaseError]:
    match error:
        case errors.QueryError() | errors.CatalogError() | errors.OptionError():
            return ProgrammingError
        case errors.UnsupportedError():
            return NotSupportedError
        case errors.DataError():
            return DataError
        case errors.TaskFailedError():
            return IntegrityError if str(error).startswith("Constraint Error") else DataError
        case errors.ExecutionError() | errors.ClusterError() | errors.QueryCancelledError():
            return OperationalError
        case _:
            return DatabaseError
