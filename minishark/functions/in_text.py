"""Functions of `minishark.functions` for texts of dialects that have them by these names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from minishark.dataframe.column import (
    ByType,
    Call,
    Column,
    Generator,
    Kind,
    atom,
    call,
    case,
    column_or_name,
    combine,
    flat,
    value,
)
from minishark.dataframe.generated_functions import generated
from minishark.dataframe.window import WindowSpec
from minishark.functions import public
from minishark.functions.arguments import literal_text
from minishark.functions.public import expr, lit
from minishark.functions.python import hashes
from minishark.functions.tables import TEMPLATES
from minishark.functions.templates import function_of, shown_as

__all__ = [
    "CALLABLE",
    "Column",
    "by_type",
    "call",
    "called",
    "case",
    "column_or_name",
    "expr",
    "flat",
    "hashed",
    "items",
    "lit",
    "literal_text",
    "of_calls",
    "over",
    "sql",
    "value",
    "with_parameters",
]

# In a text they would have other names, or make no sense.
_OF_PYTHON = {
    "arrow_udf", "asc", "asc_nulls_first", "asc_nulls_last", "broadcast", "call_function",
    "call_udf", "col", "column", "count_distinct", "create_map", "desc", "desc_nulls_first",
    "desc_nulls_last", "expr", "lit", "pandas_udf", "sum_distinct", "udf", "udtf", "when",
}  # fmt: skip
CALLABLE = frozenset({*TEMPLATES, *public.__all__} - _OF_PYTHON)
"""The names of those that text may call."""


def called(name: str, arguments: Sequence[Any]) -> Column:
    """A call, given its arguments: Columns, numbers, functions of Columns.

    Raises:
        OptionError, TypeError: it takes other arguments.
    """
    template = TEMPLATES.get(name)
    function = getattr(public, name) if template is None else function_of(template)
    made: Column = function(*arguments)
    return made


def hashed(name: str, columns: Sequence[Any]) -> Column:
    """Spark's `hash` or `xxhash64` of columns, or names."""
    run, returns = (hashes.murmur3, "INTEGER") if name == "hash" else (hashes.xxhash64, "BIGINT")
    function = generated(name, run, returns)
    made, listed = lit(42), list(map(column_or_name, columns))
    for column in listed:
        made = call(function, column, call("system.main.typeof", column), made)
    return made.alias(f"{name}({', '.join(map(shown_as, listed))})")


def sql(column: Column) -> str:
    """The SQL of a call, as an operand."""
    text = column.sql(lambda reference: reference.name)
    return f"({text})" if column.level else text


def of_calls(name: str, item: str, *aggregates: str) -> Column:
    """A call of a macro with a text and aggregates, to which FILTER and OVER can be added."""
    parts: list[Any] = [f"{name}(", expr(item)]
    for aggregate in aggregates:
        function, arguments = aggregate.removesuffix(")").split("(", 1)
        added = Call(function=function, arguments=expr(arguments)).column(Kind.FREE)
        parts += [", ", added]
    return atom(combine(*parts, ")", bare=True))


def by_type(item: Column, make: Callable[[Column, str], Column]) -> Column:
    """What a function of a Column and its type makes of it."""
    return ByType(argument=item, make=make).column()


def over(column: Column, window: str) -> Column:
    """A call of an aggregate over a window, given the text in the parentheses of OVER."""
    return column.over(WindowSpec(frame=window))


def items(column: Column, names: Sequence[str], *, is_map: bool) -> list[tuple[str, str]] | None:
    """The select items that a generator of rows makes, and their names; None if it is none."""
    if not isinstance(column, Generator):
        return None
    fits = column.of_map and (is_map or len(names) == len(column.of_map) != len(column.of_list))
    parts = (column.alias(*names) if names else column, "of_map" if fits else "of_list")
    return [(sql(part), part.name or "") for part in getattr(*parts)]


def with_parameters(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """A function of any number of Columns as one that has parameters of these names."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def named(*columns: Column) -> Any:
        return function(*columns)

    named.__signature__ = signature  # type: ignore[attr-defined]
    return named
