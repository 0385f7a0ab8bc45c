"""Python functions that SQL calls: `session.udf.register("name", fn, "BIGINT")`.

The planning database knows a function of the name that is never called; each executor makes the
real one when a fragment names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minishark.dataframe.applied import check_callable, pickled
from minishark.dataframe.column import Column, call, column_or_name, sql_type
from minishark.dataframe.local import declared_columns
from minishark.errors import OptionError
from minishark.worker.protocol import ScalarFunction

NULL_HANDLINGS = ("default", "special")


class Registry(Protocol):
    """Where functions become known: a session."""

    def register_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        """Make a function known to SQL."""
        ...

    def remove_function(self, name: str) -> None:
        """Make it unknown again."""
        ...


@dataclass(frozen=True, slots=True)
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

    registry: Registry

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
        """Make a function known to SQL; one of that name is replaced.

        Args:
            name: what SQL calls it.
            fn: takes the values of a row, gives a value. `vectorized`: takes Arrow arrays, gives
                one of the same length.
            return_type: the DuckDB type that it gives; or a Python or pyarrow type.
            parameters: the types that it takes; None takes those that it is annotated with, and any
                type where it is not.
            vectorized: whether it works on many rows at once, which is many times faster. It sees
                NULLs as nulls.
            null_handling: "default": where an argument is NULL the result is NULL, and `fn` is not
                called. "special": it is called with None.
            deterministic: whether equal arguments always give the same; if not, it is called once
                for each row, like random().

        Returns:
            A function that makes a Column of Columns or names of columns.

        Raises:
            DataError: a type is none.
            OptionError: the name belongs to a function of DuckDB's, or the function can't be sent
                to other processes.
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
        self.registry.register_function(function, fn)
        return lambda *columns: call(function.name, *map(column_or_name, columns))

    def __call__(
        self, return_type: Any, *, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Column]]:
        """A decorator that registers a function under its own name; see `register`."""

        def decorate(fn: Callable[..., Any]) -> Callable[..., Column]:
            return self.register(name or fn.__name__, fn, return_type, **options)

        return decorate

    def remove(self, name: str) -> None:
        """Make a function unknown to SQL.

        Raises:
            OptionError: there is none of that name.
        """
        self.registry.remove_function(name.lower())


def _type(type_: Any) -> str:
    ((_, found),) = declared_columns({"x": sql_type(type_)})
    return found


def _parameters(fn: Callable[..., Any], parameters: Sequence[Any] | None) -> tuple[str, ...] | None:
    """The types that a function takes; None if not all of them are known."""
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
