"""Functions for expressions: PySpark's names where users expect them, and all of DuckDB's.

What is not written out here is looked up among DuckDB's functions, so `F.levenshtein("a", "b")`
works as `levenshtein(a, b)` does in SQL. A text argument is the name of a column, other Python
values are literals; `lit("text")` is a text. The functions that are written out say where they
differ.

>>> from minishark import functions as F
>>> session.range(3).select(F.sum("id").alias("total"), F.max(F.col("id") * 2).alias("m")).collect()
[Row(total=3, m=4)]
"""

from __future__ import annotations

import functools
from typing import Any

import duckdb

from minishark.dataframe.column import (
    CaseColumn,
    Column,
    Kind,
    call,
    case,
    column,
    column_or_name,
    text_column,
    value,
)
from minishark.dataframe.names import ident, nearest, snake_case


def col(name: str) -> Column:
    """The column called `name`; `alias.name` and `struct.field` are understood too."""
    return column(name)


def lit(item: Any) -> Column:
    """A Python value as a literal; a Column stays what it is."""
    return value(item)


def expr(sql: str) -> Column:
    """An expression in SQL."""
    return text_column(sql)


def when(condition: Column, result: Any) -> CaseColumn:
    """CASE WHEN; go on with `.when(...)` and `.otherwise(...)`."""
    return case(condition, result)


def call_function(name: str, *arguments: Any) -> Column:
    """Any function by its name, for example a macro of the session.

    Args:
        name: the name.
        arguments: names of columns, Columns, or values.
    """
    columns = [column_or_name(argument) for argument in arguments]
    return call(ident(name), *columns, kind=_kinds().get(name.lower(), Kind.FREE))


def count(item: Any = "*") -> Column:
    """The number of rows, or of those in which `item` is not NULL."""
    if isinstance(item, str) and item == "*":
        return Column(("count(*)",), "count", atomic=True, kind=Kind.GROUP)
    return call("count", column_or_name(item), kind=Kind.GROUP)


@functools.cache
def _kinds() -> dict[str, Kind]:
    """All of DuckDB's functions that can stand in an expression."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT DISTINCT lower(function_name), function_type FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro') ORDER BY ALL DESC"
        ).fetchall()
    kinds = {"scalar": Kind.ROW, "aggregate": Kind.GROUP, "macro": Kind.FREE}
    windows = dict.fromkeys(_WINDOW_FUNCTIONS, Kind.GROUP)
    return {name: kinds[type_] for name, type_ in rows} | windows | {"unnest": Kind.FREE}


_WINDOW_FUNCTIONS = (
    "row_number",
    "rank",
    "dense_rank",
    "percent_rank",
    "cume_dist",
    "ntile",
    "lag",
    "lead",
    "first_value",
    "last_value",
    "nth_value",
)


def __getattr__(name: str) -> Any:
    """A function of DuckDB's.

    Raises:
        AttributeError: there is none of that name; the sentence has the nearest ones.
    """
    if name.startswith("_"):
        raise AttributeError(name)
    snake = snake_case(name)
    if snake != name and snake in globals():
        return globals()[snake]
    found = next((known for known in (name.lower(), snake) if known in _kinds()), None)
    if found is None:
        known = [*(item for item in globals() if not item.startswith("_")), *_kinds()]
        raise AttributeError(f"There is no function {name!r}.{nearest(name, known)}", name=name)
    return functools.partial(call_function, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in _kinds() if name.isidentifier())})
