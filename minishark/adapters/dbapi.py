"""DB-API 2.0 (PEP 249): minishark as a database for Python tools.

    >>> from minishark import dbapi
    >>> with dbapi.connect(nodes=1) as connection, connection.cursor() as cursor:
    ...     cursor.execute("SELECT ? + 1", [41]).fetchall()
    [(42,)]

Parameters are `?` or `$1` with a sequence, `$name` with a mapping. Every statement is committed at
once, unless a BEGIN came before: `commit` does nothing, and `rollback` raises NotSupportedError.
Threads may share a connection but not a cursor. Values are Python's: Decimal, date, UUID,
timedelta, int for HUGEINT, datetime with microseconds for every TIMESTAMP.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

import pyarrow as pa

from minishark import errors
from minishark.compiler.sql.statements import COUNTED
from minishark.dataframe.pandas_frames import pandas_frame
from minishark.dataframe.row import converter
from minishark.session.connect import connect as connect_session
from minishark.session.session import Session

if TYPE_CHECKING:
    import pandas as pd


apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

Parameters = Sequence[Any] | Mapping[str, Any]


_BATCH_ROWS = 1024
_DAYS_PER_MONTH = 30  # as DuckDB converts INTERVAL to timedelta


class Warning(Exception):  # noqa: A001, N818 - the name is PEP 249's
    """PEP 249's class for warnings; never raised."""


class Error(Exception):
    """Base class of all errors of this module."""


class InterfaceError(Error):
    """Misuse of the interface, such as a closed connection or cursor."""


class DatabaseError(Error):
    """Base class of errors of the database."""


class DataError(DatabaseError):
    """A problem with the data: division by zero, a failed cast, unreadable input."""


class OperationalError(DatabaseError):
    """The cluster failed, memory ran out, or the query was cancelled."""


class IntegrityError(DatabaseError):
    """A constraint of a table was violated."""


class InternalError(DatabaseError):
    """PEP 249's class for internal errors; never raised."""


class ProgrammingError(DatabaseError):
    """The statement or its parameters are wrong, or a table is missing."""


class NotSupportedError(DatabaseError):
    """A feature that minishark lacks, such as transactions."""


class TypeObject:
    """A set of types, equal to the type codes of its columns, as PEP 249 defines it."""

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
    """The UTC date of a Unix timestamp."""
    return datetime.fromtimestamp(ticks, UTC).date()


def TimeFromTicks(ticks: float) -> time:  # noqa: N802 - the name is PEP 249's
    """The UTC time of day of a Unix timestamp."""
    return datetime.fromtimestamp(ticks, UTC).time()


def TimestampFromTicks(ticks: float) -> datetime:  # noqa: N802 - the name is PEP 249's
    """The UTC date and time of a Unix timestamp, without a time zone."""
    return datetime.fromtimestamp(ticks, UTC).replace(tzinfo=None)


def connect(*args: Any, session: Session | None = None, **options: Any) -> Connection:
    """Open a connection.

    Args:
        args: arguments of `minishark.connect`.
        session: an open session, which stays open when the connection is closed. None starts a
            session that is stopped with the connection.
        options: arguments of `minishark.connect`.

    Raises:
        OperationalError: the cluster does not start.
        ProgrammingError: an option is invalid.
    """
    if session is not None:
        if args or options:
            raise ProgrammingError("Pass either a session, or options for a new one.")
        return Connection(session, owns_session=False)
    with _translated():
        return Connection(connect_session(*args, **options), owns_session=True)


class Connection:
    """A connection to a session, safe to share between threads; `connect` creates one."""

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
        """The session that runs the statements.

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
        """Run a statement on a new cursor, and return the cursor."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Commit what follows a BEGIN; every other statement is committed at once."""
        if self.session.in_transaction:
            self.execute("COMMIT")

    def rollback(self) -> None:
        """Undo what follows a BEGIN; NotSupportedError if there was none."""
        if not self.session.in_transaction:
            raise NotSupportedError(
                "Can't roll back: without BEGIN, every statement is committed at once."
            )
        self.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection, and stop the session if `connect` started it; idempotent."""
        self._closed = True
        if self._owns_session:
            self._session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Cursor:
    """Runs statements and returns their rows; not safe to share between threads.

    Attributes:
        connection: the cursor's connection.
        arraysize: how many rows `fetchmany` fetches by default.
        description: for each column name, type code (DuckDB's name of the type), None, None,
            precision, scale and None; None after a statement without rows.
        rowcount: rows of the result, or changed rows; -1 before the first statement.
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
        """Run a statement, or several separated by semicolons; the last one's rows can be fetched.

        Args:
            operation: SQL.
            parameters: values for `?` and `$1` (a sequence) or `$name` (a mapping).

        Raises:
            ProgrammingError: the statement is wrong.
            DataError: it failed on a value.
            OperationalError: the cluster failed, or ran out of memory.
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
        self._rows = _python_rows(table, types)
        return self

    def executemany(self, operation: str, sets: Iterable[Parameters]) -> Self:
        """Run a statement with each set of parameters; `rowcount` is the sum of their counts."""
        self._open_session()
        count = 0
        for parameters in sets:
            count += self.execute(operation, parameters).rowcount
            if self.description is not None:
                self._forget()
                raise ProgrammingError("executemany can't run queries; use execute.")
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
        """All remaining rows."""
        return self.fetchmany(self._answer().num_rows)

    def fetch_arrow_table(self) -> pa.Table:
        """All remaining rows, as an Arrow table."""
        rest = self._answer().slice(self._fetched)
        self._fetched += rest.num_rows
        self._rows = iter(())
        return rest

    def fetchdf(self) -> pd.DataFrame:
        """All remaining rows, as a pandas DataFrame."""
        return pandas_frame(self.fetch_arrow_table())

    @property
    def rownumber(self) -> int | None:
        """How many rows have been fetched; None if there is no result."""
        return None if self._table is None else self._fetched

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing; required by PEP 249."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing; required by PEP 249."""

    def close(self) -> None:
        """Close the cursor; idempotent."""
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_session(self) -> Session:
        if self._closed:
            raise InterfaceError("The cursor is closed.")
        return self.connection.session

    def _answer(self) -> pa.Table:
        self._open_session()
        if self._table is None:
            raise ProgrammingError("No result to fetch from; execute a query first.")
        return self._table

    def _forget(self) -> None:
        self.description = None
        self.rowcount = -1
        self._table = None
        self._rows = iter(())
        self._fetched = 0


def _precision(type_: str) -> tuple[int | None, int | None]:
    decimal = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_)
    return (int(decimal[1]), int(decimal[2])) if decimal else (None, None)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise PEP 249's exceptions instead of minishark's."""
    try:
        yield
    except errors.MinisharkError as error:
        raise standard_class(type(error))(str(error)) from error


_CLASSES: tuple[tuple[tuple[type[errors.MinisharkError], ...], type[DatabaseError]], ...] = (
    ((errors.TransactionError,), OperationalError),
    ((errors.QueryError, errors.CatalogError, errors.OptionError), ProgrammingError),
    ((errors.UnsupportedError,), NotSupportedError),
    ((errors.ConstraintError,), IntegrityError),
    ((errors.TaskFailedError, errors.DataError), DataError),
    ((errors.ExecutionError, errors.ClusterError, errors.QueryCancelledError), OperationalError),
)


def standard_class(kind: type[errors.MinisharkError]) -> type[DatabaseError]:
    """PEP 249's class for an error of minishark's."""
    return next((theirs for ours, theirs in _CLASSES if issubclass(kind, ours)), DatabaseError)


def _python_rows(table: pa.Table, types: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a table with DuckDB's (or Arrow's) `types`, converted one batch at a time."""
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        columns = [
            _values(column, type_, field)
            for column, type_, field in zip(batch.columns, types, table.schema, strict=True)
        ]
        yield from zip(*columns, strict=True) if columns else ((),) * batch.num_rows


def _values(column: pa.Array, type_: str, field: pa.Field) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    convert = _converter(field, type_)
    try:
        values: list[Any] = column.to_pylist()
        return values if convert is None else [None if v is None else convert(v) for v in values]
    except (ValueError, OverflowError) as error:
        raise errors.DataError(
            f"Python can't represent a value of column {field.name}: {error}"
        ) from error


def _converter(field: pa.Field, type_: str) -> Callable[[Any], Any] | None:
    if type_ in ("HUGEINT", "UHUGEINT"):
        return int
    if type_ == "UUID":
        return UUID
    if pa.types.is_interval(field.type):
        return _timedelta
    return converter(field)


def _timedelta(interval: pa.MonthDayNano) -> timedelta:
    months, days, nanoseconds = interval
    return timedelta(days=months * _DAYS_PER_MONTH + days, microseconds=nanoseconds // 1000)
