"""Python functions over the rows of a task: calling, checking and stopping them.

A `Function` takes a reader of the rows and yields tables. It is created in the front end, travels
by cloudpickle in the part of a stage that its tasks share, and is called once per task. What it
yields must match its declared schema: the same columns, each of the declared type or of one whose
values that type can hold exactly.

Whatever user code raises becomes a `FunctionFailedError`, so that it is never taken for an error of
DuckDB, Arrow or the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import os
import reprlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import cloudpickle
import duckdb
import pyarrow as pa

from minishark.model.expressions import quote
from minishark.sources.arrow_types import readable
from minishark.worker.streaming import batches_of

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

_PACKAGE = str(Path(__file__).parents[1])
_RETURNED = "function_rows"
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_NUMBERS = frozenset((*_INTEGERS, *(f"U{t}" for t in _INTEGERS), "FLOAT", "DOUBLE", "BIGNUM"))
_TEXTS = frozenset(("VARCHAR", "JSON", "UUID"))
_DATES = frozenset(("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"))


class Function(Protocol):
    """A function over the rows of a task."""

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        """The output rows for the rows of one task."""


class FunctionFailedError(Exception):
    """User code raised, or returned something invalid.

    Attributes:
        traceback: the frames of user code, as text.
        pickled: the exception, by cloudpickle; empty if it can't be pickled.
    """

    def __init__(self, message: str, trace: str = "", pickled: bytes = b"") -> None:
        super().__init__(_sendable(message))
        self.traceback = _sendable(trace)
        self.pickled = pickled

    @classmethod
    def of(cls, error: BaseException) -> FunctionFailedError:
        """An exception of user code, in a form that can be sent."""
        if isinstance(error, FunctionFailedError):
            return error
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frames = frames.tb_next
        _read_lines(frames)
        pickled = _pickled(error)
        described = traceback.TracebackException(type(error), error, frames)
        notes, described.__notes__ = described.__notes__, None
        message = list(described.format_exception_only())[-1].strip()
        if not pickled:  # else the exception tells its notes itself
            described.__notes__ = notes
        return cls(message, "".join(described.format()).rstrip(), pickled)


_SHOWN = reprlib.Repr()
_SHOWN.maxlevel = 3
_SHOWN.maxstring = _SHOWN.maxother = 120
_SHOWN.maxdict = _SHOWN.maxlist = _SHOWN.maxtuple = 12


def note_call(error: BaseException, *arguments: object, named: str = "") -> None:
    """Have an exception of user code say what it was called with, shortened; or what `named` is."""
    shown = named or ", ".join(
        f"{len(item)} bytes" if isinstance(item, bytes | bytearray) else _SHOWN.repr(item)
        for item in arguments
    )
    with contextlib.suppress(TypeError):  # a class may have made its notes something else
        error.add_note(_sendable(f"Called with: {shown}"))


def _sendable(text: str) -> str:
    """Text without lone surrogates, as in names of files that are no UTF-8: messages are UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _pickled(error: BaseException) -> bytes:
    """An exception by cloudpickle, if it survives the round trip; never SystemExit and the like."""
    if not isinstance(error, Exception):
        return b""
    try:
        data: bytes = cloudpickle.dumps(error)
        same = type(cloudpickle.loads(data)) is type(error)
    except Exception:  # noqa: BLE001 - whatever user-defined classes do
        return b""
    return data if same else b""


# The kinds of functions that users pass


@dataclass(frozen=True, slots=True)
class MapTable:
    """`fn(table) -> table`, once per partition."""

    fn: Callable[[pa.Table], Any]

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        return (as_arrow(self.fn(rows.read_all())),)


@dataclass(frozen=True, slots=True)
class MapBatches:
    """`fn(iterator of record batches) -> iterator of record batches`."""

    fn: Callable[[Iterator[pa.RecordBatch]], Iterable[Any]]

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        return map(as_arrow, _iterable(self.fn(iter(rows))))


@dataclass(frozen=True, slots=True)
class MapFrames:
    """`fn(iterator of pandas frames) -> iterator of pandas frames`."""

    fn: Callable[[Iterator[pd.DataFrame]], Iterable[Any]]

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        frames = (batch.to_pandas() for batch in rows)
        return map(as_arrow, _iterable(self.fn(frames)))


@dataclass(frozen=True, slots=True)
class MapGroups:
    """`fn(rows)` or `fn(key, rows)` for each group of rows.

    The last column is the group's number, and rows come in its order.
    """

    fn: Callable[..., Any]
    keys: tuple[int, ...]  # positions of the grouping columns
    with_key: bool  # whether it takes the key too: a tuple with a value per grouping column
    pandas: bool  # whether it takes and gives pandas frames instead of Arrow tables

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

        table = rows.read_all()
        last = table.num_columns - 1
        runs = pc.run_end_encode(table.column(last).combine_chunks())
        table = table.remove_column(last)
        ends = runs.run_ends.to_pylist()
        return [
            self._called(table.slice(first, end - first))
            for first, end in zip([0, *ends], ends, strict=False)
        ]

    def _called(self, group: pa.Table) -> pa.Table:
        scalars = tuple(group.column(i)[0] for i in self.keys)
        key = tuple(scalar.as_py() for scalar in scalars) if self.pandas else scalars
        data = group.to_pandas() if self.pandas else group
        try:
            return as_arrow(self.fn(key, data) if self.with_key else self.fn(data))
        except Exception as error:
            keys = ", ".join(str(group.column(i)[0]) for i in self.keys)
            note_call(error, named=f"the group of {keys}, {group.num_rows} rows")
            raise


@dataclass(frozen=True, slots=True)
class CoGroups:
    """`fn(left, right)` or `fn(key, left, right)` of a group: keys, and two columns of rows."""

    fn: Callable[..., Any]
    keys: int  # how many columns are keys
    with_key: bool
    pandas: bool  # whether it takes and gives pandas frames instead of Arrow tables

    def __call__(self, group: pa.Table) -> pa.Table:
        sides = [self._side(group, name) for name in ("left", "right")]
        if not self.with_key:
            return as_arrow(self.fn(*sides))
        scalars = tuple(group.column(position)[0] for position in range(self.keys))
        key = tuple(scalar.as_py() for scalar in scalars) if self.pandas else scalars
        return as_arrow(self.fn(key, *sides))

    def _side(self, group: pa.Table, name: str) -> Any:
        rows = group.column(name).drop_null()
        batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in rows.chunks]
        table = pa.Table.from_batches(batches, pa.schema(list(rows.type)))
        return table.to_pandas() if self.pandas else table


@dataclass(frozen=True, slots=True)
class SortRows:
    """The rows of a task in an order."""

    keys: tuple[tuple[int, str], ...]  # positions of columns, each with what follows in ORDER BY
    null_order: str  # where NULLs are, unless that says it: a value of DuckDB's setting

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        table = rows.read_all()
        listed = ", ".join(f"#{position + 1} {order}" for position, order in self.keys)
        with duckdb.connect() as connection:
            connection.execute("SET arrow_lossless_conversion = true")
            connection.execute(f"SET default_null_order = '{self.null_order}'")
            connection.register("t", table)
            yield connection.sql(f"FROM t ORDER BY {listed}").to_arrow_table()


@dataclass(frozen=True, slots=True)
class ForEach:
    """`fn(table)`, once per partition, for its side effects; without output."""

    fn: Callable[[pa.Table], Any]

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        self.fn(rows.read_all())
        return ()


def _iterable(value: object) -> Iterable[Any]:
    # A reader is an iterator of batches, and a stream: functions may return what they were given.
    is_table = hasattr(value, "__arrow_c_stream__") and not isinstance(value, pa.RecordBatchReader)
    if isinstance(value, Iterable) and not is_table:
        return value
    raise FunctionFailedError(
        f"The function returned a {type(value).__name__}; it must return an iterator: use yield."
    )


def as_arrow(value: Any) -> pa.Table:
    """A function's return value as an Arrow table.

    Raises:
        FunctionFailedError: it is no table of any kind.
    """
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns"):
        return pa.Table.from_pandas(value, preserve_index=False)
    if hasattr(value, "__arrow_c_stream__"):
        return pa.table(value)
    raise FunctionFailedError(
        f"The function gave {type(value).__name__}; it must give tables: "
        "of pyarrow, pandas, or another library with Arrow streams."
    )


# Calling


def called(
    function: Function, reader: pa.RecordBatchReader, names: Sequence[str]
) -> list[pa.Table]:
    """The tables that `function` returns for the rows of `reader`, with columns called `names`.

    Raises:
        FunctionFailedError: it raised.
    """
    source = _Source(reader, names)
    own = os.getpid()
    try:
        return [table for table in function(source.reader()) if table.num_columns]
    except Interrupted:
        raise
    except BaseException as error:
        if source.error is not None:
            raise source.error from None
        raise FunctionFailedError.of(error) from error
    finally:
        end_copies_of(own)


def end_copies_of(pid: int) -> None:
    """Exit if this process is not `pid`: then user code has forked, and this is the child.

    A forked executor must not continue as one: it would write the same files, and outlive it.
    """
    if os.getpid() != pid:
        os._exit(0)


class _Source:
    """The input rows of a function; remembers errors of the rows, which are not the function's."""

    def __init__(self, reader: pa.RecordBatchReader, names: Sequence[str]) -> None:
        self.error: Exception | None = None
        self._reader = reader
        extra = reader.schema.names[len(names) :]
        fields = zip(reader.schema, [*names, *extra], strict=True)
        self._schema = pa.schema([field.with_name(name) for field, name in fields])

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches_of(self._reader):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        except Exception as error:
            self.error = error
            raise


# Checking


def conformed(
    con: duckdb.DuckDBPyConnection,
    tables: Sequence[pa.Table],
    returns: Sequence[tuple[str, str]],
    label: str,
) -> duckdb.DuckDBPyRelation:
    """The tables of a function as a relation with columns c0, c1, ... of the declared types.

    It is registered at `con`, where `release` unregisters it; `label` is for messages.

    Raises:
        FunctionFailedError: a column is missing, is not declared, or does not fit its type.
    """
    for table in tables:
        check_names(table.column_names, [name for name, _ in returns], label)
    if not tables:
        nulls = [f"CAST(NULL AS {type_}) AS c{i}" for i, (_, type_) in enumerate(returns)]
        return con.sql(f"SELECT {', '.join(nulls)} WHERE false")
    con.register(_RETURNED, _joined(tables, [name for name, _ in returns], label))
    relation = con.table(_RETURNED)
    types = [str(type_) for type_ in relation.types]
    columns = [(name, has, wants) for (name, wants), has in zip(returns, types, strict=True)]
    _check_types(con, columns, label)
    casts = [f"CAST({quote(n)} AS {wants}) AS c{i}" for i, (n, _, wants) in enumerate(columns)]
    return con.sql(f"SELECT {', '.join(casts)} FROM {_RETURNED}")


def release(con: duckdb.DuckDBPyConnection) -> None:
    """Unregister the rows of `conformed`."""
    con.unregister(_RETURNED)


def check_names(given: Sequence[str], declared: Sequence[str], label: str) -> None:
    for what, names in (
        ("does not give column", [name for name in declared if name not in given]),
        ("gives a column that its schema lacks:", [name for name in given if name not in declared]),
        ("gives twice column", [name for name in declared if list(given).count(name) > 1]),
    ):
        if names:
            columns = ", ".join(map(repr, dict.fromkeys(names)))
            raise FunctionFailedError(f"The function of {label} {what} {columns}.")


def _joined(tables: Sequence[pa.Table], names: Sequence[str], label: str) -> pa.Table:
    """All tables as one, its columns in the declared order."""
    ordered = [table.select(list(names)) for table in tables]
    try:
        return readable(pa.concat_tables(ordered, promote_options="permissive"))
    except pa.ArrowException as error:
        raise FunctionFailedError(
            f"The function of {label} gives tables that differ in their types: {error}"
        ) from error


def _check_types(
    con: duckdb.DuckDBPyConnection, columns: Sequence[tuple[str, str, str]], label: str
) -> None:
    """Check that the declared type of each column (name, type, declared type) fits its values."""
    other = [(name, has, wants) for name, has, wants in columns if has not in (wants, '"NULL"')]
    if not other:
        return
    tests = []
    for name, has, wants in other:
        if kind_of(has) != kind_of(wants):
            raise FunctionFailedError(
                f"The function of {label} gives column {name!r} as {has}, "
                f"but its schema says {wants}."
            )
        column, cast = quote(name), f"TRY_CAST({quote(name)} AS {wants})"
        back = f"TRY_CAST({cast} AS {has}) IS NOT DISTINCT FROM {column}"
        tests.append(f"{column} IS NULL OR ({cast} IS NOT NULL AND {back})")
    verdicts = ", ".join(f"coalesce(bool_and({test}), true)" for test in tests)
    (fits,) = con.execute(f"SELECT {verdicts} FROM {_RETURNED}").fetchall()
    for (name, has, wants), fit in zip(other, fits, strict=True):
        if not fit:
            raise FunctionFailedError(
                f"The function of {label} gives values in column {name!r} ({has}) that {wants}, "
                "as its schema says, can't hold exactly."
            )


def kind_of(type_: str) -> str:
    """The kind of a type: only within a kind are values cast, if none changes."""
    if type_.endswith("]"):
        return "list"
    name = type_.partition("(")[0]
    if name == "DECIMAL" or name in _NUMBERS:
        return "number"
    if name == "ENUM" or name in _TEXTS:
        return "text"
    return "date" if name in _DATES else name


# Stopping


class Interrupted(BaseException):
    """Raised in user code when its query was cancelled."""


class UserCode:
    """Lets another thread stop the user code that a slot runs.

    An asynchronous exception reaches a Python thread between two bytecodes; code that is blocked in
    C gets it on return.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._asked_s: float | None = None

    def run(self, function: Callable[[], T]) -> T:
        """Call a function, which `stop` may interrupt; no exception arrives after it returns.

        Not a context manager: an exception that arrived as one is left would keep it open, and
        `stop` would interrupt whatever the thread does next, or who gets its number when it ends.
        """
        thread = threading.get_ident()
        self._forget()
        try:
            self._thread = thread
            return function()
        finally:
            self._thread = None  # seen by all calls of `stop` but one, which holds the lock
            try:
                with self._lock:
                    # To withdraw an exception sets a flag in CPython that makes all loops of the
                    # process slower for good: only if there may be one.
                    if self._asked_s is not None:
                        _raise_in(thread, None)
            except Interrupted:
                pass  # it arrived just here, and was the last

    def _forget(self) -> None:
        with self._lock:
            self._asked_s = None

    def stop(self) -> float:
        """Interrupt user code, if it runs; for how many seconds it has ignored that."""
        with self._lock:
            thread = self._thread
            if thread is None:
                return 0.0
            # Before the exception is on its way: who withdraws it must know.
            if self._asked_s is None:
                self._asked_s = time.monotonic()
            if not _must_not_be_interrupted(thread):
                _raise_in(thread, Interrupted)
            return time.monotonic() - self._asked_s


def _read_lines(frames: TracebackType | None) -> None:
    """Read the lines that a traceback shows: they are cached then."""
    for frame, _ in traceback.walk_tb(frames):
        linecache.getlines(frame.f_code.co_filename, frame.f_globals)


_WHOLE = (
    _read_lines.__code__,  # would leave a file open
    # Until the new thread runs, CPython knows both by the same number and would give it the
    # exception. It would end at once, and the first thread wait for ever.
    threading.Thread.start.__code__,
)
"""Functions that are not interrupted: who stops user code asks again later."""


def _must_not_be_interrupted(thread: int) -> bool:
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way
    while frame is not None and frame.f_code not in _WHOLE:
        frame = frame.f_back
    return frame is not None


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    exception = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
