"""Python functions that SQL calls, registered in DuckDB."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from minishark.worker.functions import (
    FunctionFailedError,
    Interrupted,
    end_copies_of,
    note_call,
)
from minishark.worker.protocol import ScalarFunction


def create_function(
    con: duckdb.DuckDBPyConnection, function: ScalarFunction, fn: Callable[..., Any]
) -> None:
    """Register a function.

    Raises:
        duckdb.Error: DuckDB does not accept it.
    """
    con.create_function(
        function.name,
        fn,
        None if function.parameters is None else list(function.parameters),
        function.returns,
        type=PythonUDFType.ARROW if function.vectorized else PythonUDFType.NATIVE,
        # `callable_of` skips NULLs; DuckDB's own handling would also forbid to return them.
        null_handling=FunctionNullHandling.SPECIAL,
        side_effects=function.volatile,
    )


@dataclass(slots=True)
class CurrentTask:
    """The index of the task that a slot runs; 0 in the front end."""

    index: int = 0


def callable_of(
    function: ScalarFunction, fn: Callable[..., Any], task: CurrentTask
) -> Callable[..., Any]:
    """The function that DuckDB calls for a user's function."""
    if function.takes_task:
        return lambda: fn(task.index)
    if function.vectorized:

        @functools.wraps(fn)
        def over_arrays(*arrays: Any) -> Any:
            result = fn(*(_whole(array) for array in arrays))
            return pa.array(result) if isinstance(result, list) else result

        return over_arrays
    called = _keeping_nan(fn) if function.returns in ("DOUBLE", "FLOAT") else fn
    if function.sees_nulls:
        return called

    @functools.wraps(fn)
    def over_values(*values: Any) -> Any:
        return None if any(value is None for value in values) else called(*values)

    return over_values


def _keeping_nan(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same; NaN is returned as a text, as DuckDB makes NULL of the float."""

    @functools.wraps(fn)
    def keeping(*values: Any) -> Any:
        result = fn(*values)
        return "nan" if isinstance(result, float) and math.isnan(result) else result

    return keeping


def _rows(values: Sequence[Any]) -> str:
    """What a vectorized function is called with: too many values to show; else empty."""
    if values and isinstance(values[0], pa.Array | pa.ChunkedArray):
        return f"{len(values[0])} rows"
    return ""


def _whole(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def uncalled(function: ScalarFunction, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the parameters of `fn` that must not be called, for planning."""

    def planned(*_: Any) -> Any:
        message = "user functions are not called while planning"
        raise RuntimeError(message)

    def without_arguments() -> Any:
        planned()

    return without_arguments if function.takes_task else functools.wraps(fn)(planned)


@dataclass(slots=True)
class Scalars:
    """The functions registered in a slot's DuckDB, and what they raised during the last task."""

    _known: dict[str, ScalarFunction | None] = field(default_factory=dict)
    _raised: list[BaseException] = field(default_factory=list)
    _task: CurrentTask = field(default_factory=CurrentTask)

    def forget_code(self) -> None:
        """Unpickle all functions again: modules of theirs have changed."""
        self._known = dict.fromkeys(self._known)

    def forget(self) -> None:
        """Forget all functions: DuckDB was restarted."""
        self._known.clear()

    @contextlib.contextmanager
    def known_to(
        self, con: duckdb.DuckDBPyConnection, wanted: Sequence[ScalarFunction], task: int
    ) -> Iterator[None]:
        """Register the functions of the task with an index while it runs, raise what they raise.

        Raises:
            FunctionFailedError: one raised, or can't be unpickled here.
        """
        self._raised.clear()
        self._task.index = task
        for function in wanted:
            if self._known.get(function.name) != function:
                self._make(con, function)
        try:
            yield
        except duckdb.Error as error:
            for raised in self._raised:
                if isinstance(raised, Interrupted):
                    raise raised from None
                raise FunctionFailedError.of(raised) from error
            raise

    def _make(self, con: duckdb.DuckDBPyConnection, function: ScalarFunction) -> None:
        try:
            fn = cloudpickle.loads(function.pickled)
        except Exception as error:
            raise FunctionFailedError.of(error) from error
        if function.name in self._known:
            del self._known[function.name]
            con.remove_function(function.name)
        create_function(con, function, self._watched(callable_of(function, fn, self._task)))
        self._known[function.name] = function

    def _watched(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, keeping what it raises: DuckDB would only keep the message."""
        own = os.getpid()

        @functools.wraps(fn)
        def watched(*values: Any) -> Any:
            try:
                return fn(*values)
            except BaseException as error:
                if not self._raised:  # DuckDB ends the query: whatever follows is not told
                    note_call(error, *values, named=_rows(values))
                self._raised.append(error)
                raise
            finally:
                end_copies_of(own)

        return watched
