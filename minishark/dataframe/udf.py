"""Python functions that SQL calls: `session.udf.register("name", fn, "BIGINT")`.

The planning database gets a stub with the function's signature, which is never called; each
executor creates the real function when a fragment calls it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from minishark.dataframe.applied import check_callable, pickled
from minishark.dataframe.column import Column, call, column_or_name, sql_type
from minishark.dataframe.local import declared_columns
from minishark.dataframe.runtime import Runtime
from minishark.errors import OptionError
from minishark.worker.protocol import ScalarFunction

NULL_HANDLINGS = ("default", "special")


class UserFunctions:
    """`session.udf`: Python functions for SQL and for Columns.

    Examples:
        >>> shout = session.udf.register("shout", lambda text: text.upper() + "!", "VARCHAR")
        >>> session.sql("SELECT shout('hey') AS said").collect()
        [Row(said='HEY!')]
        >>> @session.udf("BIGINT")
        ... def doubled(x: int) -> int:
        ...     return 2 * x
        >>> session.range(3).select(doubled("id").alias("twice")).collect()
        [Row(twice=0), Row(twice=2), Row(twice=4)]
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def register(
        self,
        name: str,
        fn: Callable[..., Any],
        return_type: Any,
        parameters: Sequence[Any] | None = None,
        *,
        vectorized: bool = False,
        null_handling: str = "default",
        deterministic: bool = True,
    ) -> Callable[..., Column]:
        """Make a Python function callable from SQL, replacing one of the same name.

        Args:
            name: its name in SQL.
            fn: takes the values of a row and returns a value; with `vectorized`, takes Arrow arrays
                and returns one of the same length.
            return_type: the type of its result: DuckDB's, Python's or pyarrow's.
            parameters: the types of its arguments; None for its annotations, or for any types if it
                has none.
            vectorized: whether it takes many rows at once, which is many times faster. It gets
                NULLs as nulls.
            null_handling: "default": where an argument is NULL the result is NULL, and `fn` is not
                called. "special": it is called with None.
            deterministic: whether equal arguments always give equal results; if not, it is called
                once for each row, like random().

        Returns:
            A function of Columns or column names that returns a Column.

        Raises:
            DataError: a type is not valid.
            OptionError: DuckDB has a function of that name, or `fn` can't be pickled.
        """
        check_callable("udf.register", fn)
        if null_handling not in NULL_HANDLINGS:
            raise OptionError(f"null_handling is one of {', '.join(NULL_HANDLINGS)}.")
        if not name.isidentifier():
            raise OptionError(f"{name!r} can't be called in SQL; use letters, digits and _.")
        function = ScalarFunction(
            name=name.lower(),
            pickled=pickled(name, fn),
            returns=_type(return_type),
            parameters=_parameters(fn, parameters),
            vectorized=vectorized,
            sees_nulls=vectorized or null_handling == "special",
            volatile=not deterministic,
        )
        self._runtime.register_function(function, fn)
        return lambda *columns: call(function.name, *map(column_or_name, columns))

    def __call__(
        self, return_type: Any, *, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Column]]:
        """A decorator that registers a function under its own name; see `register`."""

        def decorate(fn: Callable[..., Any]) -> Callable[..., Column]:
            return self.register(name or fn.__name__, fn, return_type, **options)

        return decorate

    def remove(self, name: str) -> None:
        """Remove a function.

        Raises:
            OptionError: no function of that name was registered.
        """
        self._runtime.remove_function(name.lower())


def _type(type_: Any) -> str:
    ((_, found),) = declared_columns({"x": sql_type(type_)})
    return found


def _parameters(fn: Callable[..., Any], parameters: Sequence[Any] | None) -> tuple[str, ...] | None:
    """The types of a function's arguments; None if not all of them are known."""
    if parameters is None:
        try:
            signature = inspect.signature(fn, eval_str=True)
        except (NameError, TypeError, ValueError):
            return None
        annotations = [p.annotation for p in signature.parameters.values()]
        if not all(isinstance(a, type) and a is not inspect.Parameter.empty for a in annotations):
            return None
        try:
            return tuple(_type(annotation) for annotation in annotations)
        except OptionError:  # annotated with something else, such as an Arrow array
            return None
    return tuple(map(_type, parameters))
