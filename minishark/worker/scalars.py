"""Python functions that SQL calls, registered in DuckDB."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from minishark.worker.functions import FunctionFailedError, Interrupted, end_copies_of
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


def callable_of(function: ScalarFunction, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that DuckDB calls for a user's function."""
    if function.vectorized:

        @functools.wraps(fn)
        def over_arrays(*arrays: Any) -> Any:
            result = fn(*(_whole(array) for array in arrays))
            return pa.array(result) if isinstance(result, list) else result

        return over_arrays
    if function.sees_nulls:
        return fn

    @functools.wraps(fn)
    def over_values(*values: Any) -> Any:
        return None if any(value is None for value in values) else fn(*values)

    return over_values


def _whole(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def uncalled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the parameters of `fn` that must not be called, for planning."""

    @functools.wraps(fn)
    def planned(*_: Any) -> Any:
        message = "user functions are not called while planning"
        raise RuntimeError(message)

    return planned


@dataclass(slots=True)
class Scalars:
    """The functions registered in a slot's DuckDB, and what they raised during the last task."""

    _known: dict[str, ScalarFunction] = field(default_factory=dict)
    _raised: list[BaseException] = field(default_factory=list)

    def forget(self) -> None:
        """Forget all functions: DuckDB was restarted."""
        self._known.clear()

    @contextlib.contextmanager
    def known_to(
        self, con: duckdb.DuckDBPyConnection, wanted: Sequence[ScalarFunction]
    ) -> Iterator[None]:
        """Register a task's functions while it runs, and raise what they raise.

        Raises:
            FunctionFailedError: one raised, or can't be unpickled here.
        """
        self._raised.clear()
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
        if self._known.pop(function.name, None) is not None:
            con.remove_function(function.name)
        create_function(con, function, self._watched(callable_of(function, fn)))
        self._known[function.name] = function

    def _watched(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, keeping what it raises: DuckDB would only keep the message."""
        own = os.getpid()

        @functools.wraps(fn)
        def watched(*values: Any) -> Any:
            try:
                return fn(*values)
            except BaseException as error:
                self._raised.append(error)
                raise
            finally:
                end_copies_of(own)

        return watched
