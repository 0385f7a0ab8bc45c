"""Users' Python functions, checked and pickled to be sent to executors."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa

from minishark.dataframe.local import SchemaLike, declared_columns
from minishark.dataframe.row import Row, rows_of
from minishark.errors import DataError, OptionError
from minishark.worker.call_policy import CallPolicy
from minishark.worker.call_shapes import Shape
from minishark.worker.calls import MapCalls, is_async, makes_instances
from minishark.worker.functions import Function, note_call
from minishark.worker.protocol import TaskFunction
from minishark.worker.values import unsendable


@dataclass(frozen=True, slots=True)
class OfRows:
    """`fn(iterator of Rows)` as a function of an Arrow table."""

    fn: Callable[[Iterator[Row]], Any]
    integers: Sequence[str]  # columns of 128-bit integers

    def __call__(self, table: pa.Table) -> Any:
        return self.fn(rows_of(table, self.integers))


@dataclass(frozen=True, slots=True)
class RowsOf:
    """An Arrow table as an iterable of Rows, which travels as the table."""

    table: pa.Table
    integers: tuple[str, ...]  # columns of 128-bit integers

    def __iter__(self) -> Iterator[Row]:
        return rows_of(self.table, self.integers)


@dataclass(frozen=True, slots=True)
class EachRow:
    """`fn(row)` as a function of an iterator of Rows."""

    fn: Callable[[Row], Any]

    def __call__(self, rows: Iterator[Row]) -> None:
        for row in rows:
            try:
                self.fn(row)
            except Exception as error:
                note_call(error, row)
                raise


ON_ERROR = ("raise", "null", "quarantine")


def map_calls(label: str, fn: Callable[..., Any], shape: Shape, policy: CallPolicy) -> MapCalls:
    """Calls of a function, or of instances of a class, that was checked.

    Raises:
        OptionError: it can't be called, or an option is not valid.
    """
    check_callable(label, fn)
    if makes_instances(fn) and not _instances_are_callable(fn):
        raise OptionError(
            f"{label}() was given a class whose instances can't be called: give it a __call__, or "
            "pass a function."
        )
    if policy.on_error not in ON_ERROR:
        raise OptionError(f"on_error is one of {', '.join(map(repr, ON_ERROR))}.")
    counts: tuple[tuple[str, Any, int], ...] = (
        ("batch_rows", shape.block_rows, 1),
        ("retries", policy.retries, 0),
        ("concurrency", policy.concurrency, 1),
    )
    for name, value, least in counts:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise OptionError(f"{name} of {label}() is a whole number of at least {least}.")
    if not 0 <= policy.backoff_s < math.inf:
        raise OptionError(f"backoff_s of {label}() is a number of seconds, 0 or more.")
    if policy.timeout_s is not None and not 0 < policy.timeout_s < math.inf:
        raise OptionError(f"timeout_s of {label}() is a number of seconds above 0, or None.")
    if policy.concurrency > 1 and not is_async(fn):
        raise OptionError(
            f"concurrency of {label}() is for async functions: plain ones run one call at a time "
            "in each executor. Write `async def`, with asyncio.to_thread for what blocks."
        )
    return MapCalls(fn, shape, policy)


def _instances_are_callable(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return any("__call__" in vars(class_) for class_ in fn.__mro__)


def task_function(
    label: str,
    function: Function,
    schema: SchemaLike,
    keys: tuple[int, ...] = (),
    *,
    only_returns: bool = True,
) -> TaskFunction:
    # `label` is the method that the user called, `keys` are the positions of the grouping columns.
    returns = declared_columns(schema)
    for name, type_ in returns:
        if "ENUM(" in type_:
            raise DataError(f"Column {name!r} of {label} can't be an ENUM; declare VARCHAR.")
    return TaskFunction(label, pickled(label, function), returns, keys, only_returns)


def pickled(label: str, function: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(function)
    except Exception as error:
        raise unsendable(f"The function of {label}", error) from error
    return data


def check_callable(label: str, fn: object) -> None:
    if not callable(fn):
        raise OptionError(f"{label}() takes a function, not {type(fn).__name__}.")


def takes_key(label: str, fn: Callable[..., Any]) -> bool:
    """Whether a function is `fn(key, rows)` rather than `fn(rows)`."""
    check_callable(label, fn)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    positional = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) not in (1, 2):
        raise OptionError(f"The function of {label} takes (rows) or (key, rows).")
    return len(positional) == 2
