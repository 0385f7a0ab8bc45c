"""Python functions that Columns call: users' (`functions.udf`) and minishark's own.

A Column belongs to no session, so its functions can't be registered when it is made. They have
names that nobody else uses; a session registers those that it finds in a query's text when the
query is bound.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import duckdb

from minishark.dataframe.applied import pickled
from minishark.worker.protocol import ScalarFunction
from minishark.worker.scalars import create_function, uncalled

PREFIX = "minishark_"
_NAME = re.compile(rf"\b{PREFIX}\w+")
_lock = threading.RLock()
_generated: dict[str, tuple[ScalarFunction, Callable[..., Any]]] = {}


def generated(
    label: str,
    fn: Callable[..., Any],
    returns: str,
    *,
    parameters: Sequence[str] | None = None,
    vectorized: bool = False,
    volatile: bool = False,
    sees_nulls: bool = True,
    takes_task: bool = False,
) -> str:
    """The name in SQL of a function, which sessions register when they need it.

    Args:
        label: what the user calls it.
        fn: see `ScalarFunction`.
        returns: its DuckDB result type.
        parameters: its DuckDB parameter types; None for any.
        vectorized: whether it takes Arrow arrays.
        volatile: whether equal arguments may give different results.
        sees_nulls: whether it is called if an argument is NULL.
        takes_task: whether it takes the task's index, and no arguments of SQL's.

    Raises:
        OptionError: the function can't be pickled.
    """
    data = pickled(label, fn)
    kind = f"{returns} {parameters} {vectorized} {volatile} {sees_nulls} {takes_task}"
    digest = hashlib.sha256(data + kind.encode()).hexdigest()[:12]
    word = re.sub(r"\W", "", label.lower()) or "function"
    function = ScalarFunction(
        name=f"{PREFIX}{word}_{digest}",
        pickled=data,
        returns=returns,
        parameters=None if parameters is None else tuple(parameters),
        vectorized=vectorized,
        sees_nulls=sees_nulls,
        volatile=volatile,
        takes_task=takes_task,
    )
    with _lock:
        _generated[function.name] = (function, fn)
    return function.name


class TakesFunctions(Protocol):
    """What a runtime does with functions."""

    def offer_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        """Make a Python function callable from SQL, unless it is already."""


def offer_called(sql: str, runtime: TakesFunctions) -> None:
    """Offer a session the functions that a query calls."""
    if PREFIX in sql:
        with _lock:  # or two threads would register the same
            for name in dict.fromkeys(_NAME.findall(sql)):
                if name in _generated:
                    runtime.offer_function(*_generated[name])


def declare(connection: duckdb.DuckDBPyConnection, sql: str, *, run: bool = False) -> None:
    """Let a connection bind a query that calls such functions; run it only with `run`."""
    if PREFIX in sql:
        with _lock:
            names = dict.fromkeys(_NAME.findall(sql))
            functions = [_generated[name] for name in names if name in _generated]
        for function, fn in functions:
            create_function(connection, function, fn if run else uncalled(function, fn))
