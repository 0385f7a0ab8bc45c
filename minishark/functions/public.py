"""All functions under the names that users type: `minishark.functions` has them from here."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from minishark.dataframe.column import (
    Call,
    CaseColumn,
    Column,
    Kind,
    Level,
    call,
    case,
    column,
    column_or_name,
    combine,
    count_of_rows,
    separated,
    sum_of,
    text_column,
    value,
)
from minishark.dataframe.duckdb_functions import described, is_of_rows
from minishark.dataframe.names import ident, nearest, spelt_otherwise
from minishark.dataframe.udf import arrow_udf, pandas_udf, udf  # noqa: F401 - listed below
from minishark.errors import OptionError
from minishark.functions import conversions, higher_order, randomness
from minishark.functions.python_functions import python_functions
from minishark.functions.table_functions import udtf
from minishark.functions.tables import TEMPLATES
from minishark.functions.templates import function_of, shown_as

# Helpers

_column = column_or_name


def _call(function: str, *columns: Any) -> Column:
    return call(function, *map(_column, columns))


def _aggregate(function: str, *columns: Any) -> Column:
    return call(function, *map(_column, columns), kind=Kind.GROUP)


def _grouping(function: str, *columns: Any) -> Column:
    # A function of the grouping set, not of rows, so it is no Call that takes FILTER or OVER.
    return dataclasses.replace(_call(function, *columns), kind=Kind.GROUP)


def _method(method: Callable[[Column], Column]) -> Callable[[Any], Column]:
    """A method of Column as a function of a Column or a column's name."""

    def function(column_: Any) -> Column:
        return method(_column(column_))

    function.__doc__ = method.__doc__
    return function


def _named(
    duckdb_name: str, description: str, *, make: Callable[..., Column] = _call
) -> Callable[..., Column]:
    """A function of DuckDB's to which PySpark gives another name."""

    def function(*columns: Any) -> Column:
        return make(duckdb_name, *columns)

    function.__doc__ = description
    return function


# Columns and literals


def col(name: str) -> Column:
    """The column called `name`; or `alias.name`, or `struct.field`."""
    return column(name)


def lit(item: Any) -> Column:
    """A Python value as a literal; a Column is returned unchanged."""
    return value(item)


def expr(sql: str) -> Column:
    """An expression in SQL."""
    return text_column(sql)


def call_function(name: str, *arguments: Any) -> Column:
    """Any function by its name, for example a macro; text arguments are column names.

    The names are those of SQL: DuckDB's functions, and registered ones.
    """
    columns = [column_or_name(argument) for argument in arguments]
    kind = _kinds().get(name.lower(), Kind.FREE)
    if name.lower() in _TAKING_FLOAT:
        columns[1:] = [_with_decimals(column_) for column_ in columns[1:]]
    if kind is not Kind.FREE or name.lower() in _VARYING or is_of_rows(name):
        return call(ident(name), *columns, kind=kind)
    listed = combine(*separated(columns), bare=True)
    return Call(function=ident(name), arguments=listed, certain=False).column(Kind.FREE)


def broadcast(df: Any) -> Any:
    """The DataFrame itself, with a warning: joins are planned by table sizes, without hints."""
    return df.hint("broadcast")


# Conditions


call_udf = call_function


def when(condition: Column, result: Any) -> CaseColumn:
    """CASE WHEN; continue with `.when(...)` and `.otherwise(...)`."""
    return case(condition, result)


coalesce = _named("coalesce", "The first value that is not NULL.")


def ifnull(column_: Any, default: Any) -> Column:
    """`column_`, or `default` where it is NULL."""
    return _call("coalesce", column_, default)


nvl = ifnull


isnull = _method(Column.is_null)
isnotnull = _method(Column.is_not_null)


# Order

asc = _method(Column.asc)
desc = _method(Column.desc)
asc_nulls_first = _method(Column.asc_nulls_first)
desc_nulls_first = _method(Column.desc_nulls_first)
asc_nulls_last = _method(Column.asc_nulls_last)
desc_nulls_last = _method(Column.desc_nulls_last)


# Aggregates


def count(column_: Any = "*") -> Column:
    """The number of rows, or of those in which `column_` is not NULL."""
    chosen = _column(column_)
    if chosen.pieces == column("*").pieces:
        return count_of_rows()
    return _aggregate("count", chosen)


def count_distinct(*columns: Any) -> Column:
    """The number of distinct values, or of distinct combinations without NULLs."""
    chosen = [_column(column_) for column_ in columns]
    counted = chosen[0]
    if len(chosen) > 1:
        complete = functools.reduce(Column.__and__, (column_.is_not_null() for column_ in chosen))
        counted = case(complete, combine("(", *separated(chosen), ")"))
    return _distinct("count", counted)


def sum(column_: Any) -> Column:
    """The sum; of whole numbers a BIGINT, and an error if it is none.

    SQL's `sum` of whole numbers has 128 bits: `call_function("sum", "a")`.
    """
    return sum_of(_column(column_))


def try_sum(column_: Any) -> Column:
    """The sum; of whole numbers a BIGINT, and NULL if it is none."""
    made = sum_of(_column(column_), cast="TRY_CAST")
    return made.alias(f"try_sum({shown_as(_column(column_))})")


def sum_distinct(column_: Any) -> Column:
    """The sum of the distinct values, as `sum`."""
    return sum_of(_column(column_), modifier="DISTINCT ")


def collect_list(column_: Any) -> Column:
    """The values that are not NULL as a list, in no defined order."""
    chosen = _column(column_)
    return _call("coalesce", call("list", chosen, kind=Kind.GROUP).filter(chosen.is_not_null()), [])


def collect_set(column_: Any) -> Column:
    """The distinct values that are not NULL as a list, in no defined order."""
    return _call("list_distinct", collect_list(column_))


def first(column_: Any, ignorenulls: bool = False) -> Column:
    """The value of the first row, or the first that is not NULL; the order is not defined."""
    return _aggregate("any_value" if ignorenulls else "first", column_)


def last(column_: Any, ignorenulls: bool = False) -> Column:
    """The value of the last row, or the last that is not NULL; the order is not defined."""
    chosen = _column(column_)
    picked = Call(function="last", arguments=chosen, skips_nulls=ignorenulls)
    return picked.column(max(chosen.kind, Kind.GROUP))


def any_value(column_: Any, ignoreNulls: bool = False) -> Column:  # noqa: N803 - PySpark's name
    """The value of some row, or the first that is not NULL."""
    return first(column_, bool(ignoreNulls))


def first_value(column_: Any, ignoreNulls: bool = False) -> Column:  # noqa: N803
    """As `first`."""
    return first(column_, bool(ignoreNulls))


def last_value(column_: Any, ignoreNulls: bool = False) -> Column:  # noqa: N803
    """As `last`."""
    return last(column_, bool(ignoreNulls))


def nth_value(column_: Any, offset: int, ignoreNulls: bool = False) -> Column:  # noqa: N803
    """The value of the row at a position from 1 of the window's frame; perhaps without NULLs."""
    if not ignoreNulls:
        return _aggregate("nth_value", column_, value(offset))
    listed = combine(_column(column_), ", ", value(offset), " IGNORE NULLS", bare=True)
    return Call(function="nth_value", arguments=listed).column(Kind.GROUP)


def mode(column_: Any, deterministic: bool = False) -> Column:
    """The most frequent value; of several, the least if `deterministic`."""
    if not deterministic:
        return _aggregate("mode", column_)
    counts = _aggregate("histogram", column_)
    most = combine("list_max(map_values(", counts, "))", bare=True)
    often = ("list_filter(map_entries(", counts, "), lambda e_: e_.value = ", most, ")")
    least = combine("list_min(list_transform(", *often, ", lambda e_: e_.key))", bare=True)
    return least.alias(f"mode({shown_as(_column(column_))})")


def approx_count_distinct(column_: Any, rsd: float = 0.05) -> Column:
    """About the number of distinct values; DuckDB's own precision, whatever `rsd` says."""
    del rsd
    return _aggregate("approx_count_distinct", column_)


def percentile_approx(column_: Any, fraction: Any, accuracy: int | Column = 10_000) -> Column:
    """The least of the values that are at least as great as a fraction of them: exact.

    Args:
        column_: the values.
        fraction: from 0 to 1; a list of fractions gives a list of values.
        accuracy: positive; has no effect.
    """
    if not isinstance(accuracy, Column) and accuracy <= 0:
        raise OptionError("accuracy is a positive number.")
    fractions = list(fraction) if isinstance(fraction, tuple) else fraction
    return call_function("quantile_disc", column_, value(fractions))


approx_percentile = percentile_approx
array_agg = collect_list


def grouping(column_: Any) -> Column:
    """1 where `rollup` or `cube` aggregates over all values of a column, else 0."""
    return _grouping("grouping", column_)


grouping_id = _named(
    "grouping_id", "`grouping` of each column as the bits of one number.", make=_grouping
)


# Windows


def lag(column_: Any, offset: int = 1, default: Any = None) -> Column:
    """The value `offset` rows before."""
    return _aggregate("lag", column_, value(offset), value(default))


def lead(column_: Any, offset: int = 1, default: Any = None) -> Column:
    """The value `offset` rows after."""
    return _aggregate("lead", column_, value(offset), value(default))


def monotonically_increasing_id() -> Column:
    """A number for each row, from 0, in no defined order."""
    return Column(("row_number() OVER () - 1",))


# Dates and times


def current_date() -> Column:
    """Today, in the session's time zone."""
    return Column(("current_date",), level=Level.ATOM)


def current_timestamp() -> Column:
    """Now, with its time zone; the same in the whole query."""
    return call("now")


# All other functions


def _distinct(function: str, column_: Column) -> Column:
    arguments = combine("DISTINCT ", column_, bare=True)
    return Call(function=function, arguments=arguments).column(Kind.GROUP)


# Their parameters are FLOATs, to which DuckDB does not cast DOUBLE literals, but does DECIMALs.
_TAKING_FLOAT = ("approx_quantile",)
_DOUBLE = re.compile(r"(?<![\w.'])\d+(?:\.\d+)?e[-+]?\d+(?!\w)")


def _with_decimals(column_: Column) -> Column:
    """The same with DOUBLE literals written as DECIMALs."""

    def decimal(piece: Any) -> Any:
        if not isinstance(piece, str) or "'" in piece:
            return piece
        return _DOUBLE.sub(lambda double: format(Decimal(double[0]), "f"), piece)

    return dataclasses.replace(column_, pieces=tuple(map(decimal, column_.pieces)))


# Set-returning or volatile: they must not be moved or evaluated twice.
_VARYING = ("unnest", "random", "uuid", "gen_random_uuid")


@functools.cache
def _kinds() -> dict[str, Kind]:
    kinds = {"scalar": Kind.ROW, "aggregate": Kind.GROUP, "macro": Kind.FREE}
    by_name = {name: kinds[kind] for name, (kind, _) in described().items()}
    return by_name | dict.fromkeys(_VARYING, Kind.FREE)


@functools.cache
def _duckdb_function(name: str) -> Callable[..., Column]:
    def function(*arguments: Any) -> Column:
        return call_function(name, *arguments)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = described()[name][1]
    return function


def __getattr__(name: str) -> Any:
    """A function of DuckDB's, or AttributeError with the nearest names."""
    if name.startswith("__"):
        raise AttributeError(name)
    meant = spelt_otherwise(name, __all__)
    if meant is not None:
        return globals()[meant]
    for spelling in (name.lower(), spelt_otherwise(name, described())):
        if spelling in described():
            return _duckdb_function(spelling)
    near = nearest(name, itertools.chain(__all__, described()))
    raise AttributeError(f"There is no function {name!r}.{near}", name=name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in described() if name.isidentifier())})


for _functions in (higher_order, conversions, randomness):
    globals().update({_name: getattr(_functions, _name) for _name in _functions.__all__})
globals().update({_name: function_of(_each) for _name, _each in TEMPLATES.items()})
_in_python = python_functions()
globals().update(_in_python)
# Not what is imported here: users see these at Tab.
_here = (
    *(module.__name__ for module in (higher_order, conversions, randomness)),
    __name__,
    *(function.__module__ for function in (conversions.struct, randomness.rand, udf, udtf)),
)
__all__ = [
    _name
    for _name, _item in globals().items()
    if not _name.startswith("_")
    and (getattr(_item, "__module__", None) in _here or _name in {*TEMPLATES, *_in_python})
    and inspect.isfunction(_item)
]
__all__ += ["column"]  # another name of `col`
for _name in __all__:
    if globals()[_name].__name__ == "function":
        globals()[_name].__name__ = globals()[_name].__qualname__ = _name
