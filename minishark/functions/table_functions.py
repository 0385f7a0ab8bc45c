"""Table functions: `functions.udtf` in Python, `session.tvf` of generators.

A Python class with `eval(...)` that yields rows becomes a function that returns a list of structs,
which is unnested: one row for each.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minishark.dataframe.column import Column, call, column_or_name, value
from minishark.dataframe.generated_functions import generated, offer_called
from minishark.dataframe.local import declared_columns
from minishark.dataframe.names import CamelCase, ident
from minishark.dataframe.runtime import Runtime, latest_session
from minishark.errors import OptionError, UnsupportedError
from minishark.functions.conversions import json_tuple
from minishark.functions.higher_order import (
    explode,
    explode_outer,
    inline,
    inline_outer,
    posexplode,
    posexplode_outer,
    stack,
)

if TYPE_CHECKING:
    from minishark.dataframe.frame import DataFrame


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows that a handler gives for one row of arguments, as a list of mappings."""

    handler: type[Any]
    names: tuple[str, ...]

    def __call__(self, *values: Any) -> list[dict[str, Any]]:
        made_ = self.handler()
        # DuckDB has no functions without arguments that may vary: such ones are called with NULL.
        given = values if _parameters(self.handler) else ()
        rows = [self._row(row) for row in made_.eval(*given) or ()]
        ending: Callable[[], Iterable[Any] | None] = getattr(made_, "terminate", tuple)
        return [*rows, *map(self._row, ending() or ())]

    def _row(self, row: Any) -> dict[str, Any]:
        return dict(zip(self.names, row, strict=True))


def _parameters(handler: type[Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(handler.eval).parameters.values())[1:]


@dataclass(frozen=True, slots=True)
class TableFunction:
    """What `functions.udtf` returns: called with Columns, it makes a DataFrame.

    Attributes:
        handler: the user's class.
        columns: names and DuckDB types of what it yields.
    """

    handler: type[Any]
    columns: tuple[tuple[str, str], ...]

    def __call__(self, *arguments: Any) -> DataFrame:
        """Its rows for one row of arguments, in the session that was made last.

        Raises:
            OptionError: there is no session.
        """
        session = latest_session()
        if session is None:
            raise OptionError("A table function needs a session: call minishark.connect() first.")
        made_: DataFrame = session.range(1).select(self.generator(*arguments))
        return made_

    def generator(self, *arguments: Any) -> Column:
        """The rows, as `inline` makes them of a list of structs."""
        rows = call(self.name(), *(map(column_or_name, arguments or (value(None),))))
        return inline(rows)

    def name(self) -> str:
        """The name in SQL of the function that returns the rows as a list."""
        fields = ", ".join(f"{ident(name)} {type_}" for name, type_ in self.columns)
        run = Rows(self.handler, tuple(name for name, _ in self.columns))
        return generated(self.handler.__name__, run, f"STRUCT({fields})[]", volatile=True)


def udtf(
    cls: type[Any] | None = None, *, returnType: Any = None, useArrow: bool | None = None
) -> Any:
    """A Python class as a table function; also a decorator.

    Args:
        cls: `eval(self, ...)` yields rows as tuples for one row of arguments, and so may
            `terminate(self)` after it.
        returnType: names and types of the columns: "a int, b string", or a StructType.
        useArrow: ignored: values always travel in Arrow's form.

    Raises:
        DataError: the type is not valid.
        OptionError: there is none, or the class has no `eval`.

    Examples:
        >>> from minishark import functions as F
        >>> @F.udtf(returnType="word string, letters int")
        ... class Words:
        ...     def eval(self, text):
        ...         for word in text.split():
        ...             yield word, len(word)
        >>> Words(F.lit("two words")).collect()
        [Row(word='two', letters=3), Row(word='words', letters=5)]
    """
    del useArrow
    if cls is None:
        return functools.partial(udtf, returnType=returnType)
    if returnType is None or not callable(getattr(cls, "eval", None)):
        raise OptionError("udtf() takes a class with eval(), and returnType='a int, b string'.")
    return TableFunction(cls, declared_columns(returnType))


class TableFunctions(CamelCase):
    """`session.udtf`: table functions for SQL."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def register(self, name: str, f: TableFunction) -> TableFunction:
        """Let SQL call a table function: `SELECT * FROM name(1, 'x')`.

        Raises:
            UnsupportedError: `eval` takes any number of arguments.
        """
        parameters = _parameters(f.handler)
        if any(
            parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD
            for parameter in parameters
        ):
            raise UnsupportedError("SQL calls table functions with plain parameters only.")
        listed = ", ".join(ident(parameter.name) for parameter in parameters)
        call_ = f"{f.name()}({listed or 'NULL'})"
        offer_called(f.name(), self._runtime)
        rows = f"unnest({call_}, max_depth := 2)"
        self._runtime.session.sql(
            f"CREATE OR REPLACE MACRO {ident(name)}({listed}) AS TABLE SELECT {rows}"
        )
        return f


_GENERATORS = {
    function.__name__: function
    for function in (
        explode,
        explode_outer,
        inline,
        inline_outer,
        json_tuple,
        posexplode,
        posexplode_outer,
        stack,
    )
}


class TableValued(CamelCase):
    """`session.tvf`: generators of rows as DataFrames, for `lateral_join` and alone.

    They are `explode`, `explode_outer`, `inline`, `inline_outer`, `json_tuple`, `posexplode`,
    `posexplode_outer`, `stack` and `range`.

    Examples:
        >>> from minishark import functions as F
        >>> session.tvf.explode(F.array(F.lit(1), F.lit(2))).collect()
        [Row(col=1), Row(col=2)]
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def range(
        self, start: int, end: int | None = None, step: int = 1, num_partitions: int | None = None
    ) -> DataFrame:
        """As `session.range`."""
        del num_partitions
        made_: DataFrame = self._runtime.session.range(start, end, step)
        return made_

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_GENERATORS})

    def __getattr__(self, name: str) -> Any:
        """The generator of that name."""
        if name not in _GENERATORS:
            return super().__getattr__(name)
        made_ = _GENERATORS[name]
        return lambda *columns: self._runtime.session.range(1).select(made_(*columns))
