"""Functions for expressions: PySpark's names where DuckDB's differ, and all of DuckDB's.

A function that is not defined here is DuckDB's: `F.levenshtein("a", "b")` is `levenshtein(a, b)` in
SQL. A text argument is a column's name and other Python values are literals; `lit("text")` is a
text literal. Functions that are defined here take text literals where columns make little sense, as
in PySpark: `F.split("path", "/")`.

>>> from minishark import functions as F
>>> session.range(3).select(F.sum("id").alias("total"), F.max(F.col("id") * 2).alias("m")).collect()
[Row(total=3, m=4)]
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
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
    infix,
    only_reference,
    separated,
    text_column,
    value,
)
from minishark.dataframe.dates import date_pattern
from minishark.dataframe.duckdb_functions import described, is_of_rows
from minishark.dataframe.local import declared_columns, json_structure
from minishark.dataframe.names import ident, nearest, spelt_otherwise
from minishark.errors import OptionError, UnsupportedError

# Helpers

_column = column_or_name


def _call(function: str, *columns: Any) -> Column:
    return call(function, *map(_column, columns))


def _aggregate(function: str, *columns: Any) -> Column:
    return call(function, *map(_column, columns), kind=Kind.GROUP)


def _grouping(function: str, *columns: Any) -> Column:
    # A function of the grouping set, not of rows, so it is no Call that takes FILTER or OVER.
    return replace(_call(function, *columns), kind=Kind.GROUP)


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
    """Any function by its name, for example a macro; text arguments are column names."""
    columns = [column_or_name(argument) for argument in arguments]
    kind = _kinds().get(name.lower(), Kind.FREE)
    if name.lower() in _TAKING_FLOAT:
        columns[1:] = [_with_decimals(column_) for column_ in columns[1:]]
    if kind is not Kind.FREE or name.lower() in _VARYING or is_of_rows(name):
        return call(ident(name), *columns, kind=kind)
    listed = combine(*separated(columns), bare=True)
    return Call(function=ident(name), arguments=listed, certain=False).column(Kind.FREE)


def broadcast(_: Any) -> Any:
    """Always raise UnsupportedError: joins are planned by table sizes, without hints."""
    raise UnsupportedError("minishark broadcasts by the sizes of tables; it takes no hints.")


# Conditions


def when(condition: Column, result: Any) -> CaseColumn:
    """CASE WHEN; continue with `.when(...)` and `.otherwise(...)`."""
    return case(condition, result)


coalesce = _named("coalesce", "The first value that is not NULL.")


def ifnull(column_: Any, default: Any) -> Column:
    """`column_`, or `default` where it is NULL."""
    return _call("coalesce", column_, default)


nvl = ifnull


def nvl2(column_: Any, not_null: Any, null: Any) -> Column:
    """`not_null` where `column_` is not NULL, else `null`."""
    return case(_column(column_).is_not_null(), _column(not_null)).otherwise(_column(null))


def nanvl(column_: Any, default: Any) -> Column:
    """`column_`, or `default` where it is NaN."""
    chosen = _column(column_)
    return case(chosen.is_nan(), _column(default)).otherwise(chosen)


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


def sum_distinct(column_: Any) -> Column:
    """The sum of the distinct values."""
    return _distinct("sum", _column(column_))


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


def percentile(column_: Any, fraction: Any) -> Column:
    """The quantile of the values, interpolated; `fraction` is from 0 to 1."""
    return _aggregate("quantile_cont", column_, value(fraction))


def percentile_approx(column_: Any, fraction: Any, accuracy: int = 10_000) -> Column:
    """An approximate quantile of the values.

    Args:
        column_: the values.
        fraction: from 0 to 1; a list of fractions gives a list of values.
        accuracy: positive; DuckDB uses its own.
    """
    if accuracy <= 0:
        raise OptionError("accuracy is a positive number.")
    return call_function("approx_quantile", column_, value(fraction))


every = _named("bool_and", "Whether it is true in all rows.", make=_aggregate)
some = _named("bool_or", "Whether it is true in any row.", make=_aggregate)
std = _named("stddev_samp", "The standard deviation of a sample.", make=_aggregate)


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


# Numbers


def log(first_: Any, second: Any = None) -> Column:
    """The natural logarithm; with two arguments, the first is the base."""
    return _call("ln", first_) if second is None else _call("log", first_, second)


def log1p(column_: Any) -> Column:
    """The natural logarithm of 1 + x."""
    return call("ln", _column(column_) + 1)


def expm1(column_: Any) -> Column:
    """E to the power of x, minus 1."""
    return call("exp", _column(column_)) - 1


def bround(column_: Any, scale: int = 0) -> Column:
    """Rounded, half to even."""
    return _call("round_even", column_, value(scale))


signum = _named("sign", "-1, 0 or 1.")


def rand(seed: int | None = None) -> Column:
    """A random number from 0 to 1.

    Raises:
        UnsupportedError: a seed was passed; each task has a random generator of its own.
    """
    if seed is not None:
        raise UnsupportedError(
            "Random numbers take no seed; derive them from a column with hash()."
        )
    return call("random", kind=Kind.FREE)


# Text


def concat(*columns: Any) -> Column:
    """Texts or lists concatenated; NULL if one of them is (DuckDB's concat skips NULLs)."""
    return functools.reduce(lambda left, right: infix(left, "||", right), map(_column, columns))


def concat_ws(separator: str, *columns: Any) -> Column:
    """Texts joined by a separator; NULLs are skipped."""
    return _call("concat_ws", value(separator), *columns)


def format_string(pattern: str, *columns: Any) -> Column:
    """Values formatted as by C's printf."""
    return _call("printf", value(pattern), *columns)


def initcap(column_: Any) -> Column:
    """The first letter of each word in upper case, the others in lower case."""
    words = _call("string_split", _call("lower", column_), value(" "))
    word = "upper(word_[1]) || word_[2:]"
    return combine("array_to_string(list_transform(", words, f", lambda word_: {word}), ' ')")


def instr(column_: Any, substring_: str) -> Column:
    """The position of a text in another, from 1; 0 if it is not there."""
    return _call("instr", column_, value(substring_))


def locate(substring_: str, column_: Any) -> Column:
    """The position of a text in another, from 1; 0 if it is not there."""
    return instr(column_, substring_)


def lpad(column_: Any, length: int, pad: str = " ") -> Column:
    """Padded at the left, or truncated, to a length."""
    return _call("lpad", column_, value(length), value(pad))


def rpad(column_: Any, length: int, pad: str = " ") -> Column:
    """Padded at the right, or truncated, to a length."""
    return _call("rpad", column_, value(length), value(pad))


def regexp_extract(column_: Any, pattern: str, group: int = 1) -> Column:
    """The text that a group of a regular expression matches; empty if there is no match."""
    return _call("regexp_extract", column_, value(pattern), value(group))


def regexp_replace(column_: Any, pattern: str, replacement: str) -> Column:
    r"""All matches of a regular expression replaced; groups are \1, \2 ..."""
    return _call("regexp_replace", column_, value(pattern), value(replacement), value("g"))


def split(column_: Any, pattern: str) -> Column:
    """The parts between the matches of a regular expression."""
    return _call("string_split_regex", column_, value(pattern))


def substring(column_: Any, start: Any, length: Any) -> Column:
    """`length` characters from the one at `start`, counted from 1."""
    return _column(column_).substr(start, length)


def translate(column_: Any, matching: str, replacement: str) -> Column:
    """Each character of `matching` replaced by the one at its position in `replacement`."""
    return _call("translate", column_, value(matching), value(replacement))


def get_json_object(column_: Any, path: str) -> Column:
    """The value at a path such as "$.a.b" in a JSON text, as text; NULL if it is no JSON."""
    return call("json_extract_string", _column(column_).try_cast("JSON"), value(path))


def from_json(column_: Any, schema: Any) -> Column:
    """A JSON text as a struct; fields are NULL where the text lacks them, or is no JSON.

    Args:
        column_: the text.
        schema: names and types of the fields: "a INT, b VARCHAR[]", a mapping, or a pyarrow schema.

    Raises:
        DataError: the schema is not understood.
    """
    fields = {name: json_structure(type_) for name, type_ in declared_columns(schema)}
    text = _column(column_)
    parsed = case(call("json_valid", text), text).when(text.is_not_null(), "{}")
    return call("json_transform", parsed, json.dumps(fields))


# Dates and times


def current_date() -> Column:
    """Today, in the session's time zone."""
    return Column(("current_date",), level=Level.ATOM)


def current_timestamp() -> Column:
    """Now, with its time zone; the same in the whole query."""
    return call("now")


def to_date(column_: Any, pattern: str | None = None) -> Column:
    """A text as a date; `pattern` is one such as "dd.MM.yyyy" or "%d.%m.%Y"."""
    return to_timestamp(column_, pattern).cast("DATE") if pattern else _column(column_).cast("DATE")


def to_timestamp(column_: Any, pattern: str | None = None) -> Column:
    """A text as a timestamp; `pattern` is one such as "dd.MM.yyyy HH:mm" or "%d.%m.%Y %H:%M"."""
    if pattern is None:
        return _column(column_).cast("TIMESTAMP")
    return _call("strptime", column_, value(date_pattern(pattern)))


def date_format(column_: Any, pattern: str) -> Column:
    """A date or timestamp formatted by a pattern such as "dd.MM.yyyy" or "%d.%m.%Y"."""
    return _call("strftime", column_, value(date_pattern(pattern)))


def date_trunc(unit: str, column_: Any) -> Column:
    """Truncated to the "year", "month", "day", "hour" ..."""
    return _call("date_trunc", value(unit), column_)


def trunc(column_: Any, unit: str) -> Column:
    """A date truncated to the "year", "quarter", "month" or "week"."""
    return date_trunc(unit, column_).cast("DATE")


def date_add(column_: Any, days: Any) -> Column:
    """A date some days later."""
    return infix(_column(column_), "+", _days(days))


def date_sub(column_: Any, days: Any) -> Column:
    """A date some days earlier."""
    return infix(_column(column_), "-", _days(days))


def datediff(end: Any, start: Any) -> Column:
    """The number of days from `start` to `end`."""
    return _call("date_diff", value("day"), start, end)


def add_months(column_: Any, months: Any) -> Column:
    """A date some months later, or the last day of its month."""
    moved = infix(_column(column_).cast("DATE"), "+", _call("to_months", _days(months)))
    return moved.cast("DATE")


def dayofweek(column_: Any) -> Column:
    """1 for Sunday to 7 for Saturday (DuckDB's dayofweek starts at 0)."""
    return _call("dayofweek", column_) + 1


def weekday(column_: Any) -> Column:
    """0 for Monday to 6 for Sunday (DuckDB's weekday starts at Sunday)."""
    return _call("isodow", column_) - 1


def unix_timestamp(column_: Any) -> Column:
    """The seconds since 1970."""
    return call("epoch", _column(column_).cast("TIMESTAMP")).cast("BIGINT")


timestamp_seconds = _named(
    "to_timestamp", "The timestamp, with time zone, so many seconds after 1970-01-01 00:00 UTC."
)


# Lists, structs, maps

array = _named("list_value", "The values as a list.")


def struct(*columns: Any) -> Column:
    """Columns as the fields of a struct; their names are those of the fields."""
    parts: list[Any] = []
    for column_ in map(_column, columns):
        reference = only_reference(column_)
        name = column_.name or (reference.name if reference else None)
        if name is None:
            raise OptionError("A field of a struct needs a name; give it one with alias().")
        parts += [", "] * bool(parts) + [f"{ident(name)} := ", column_]
    return combine("struct_pack(", *parts, ")", bare=True)


def create_map(*columns: Any) -> Column:
    """A map of alternating keys and values."""
    keys, values = map(_column, columns[::2]), map(_column, columns[1::2])
    return call("map", _call("list_value", *keys), _call("list_value", *values))


size = _named("len", "The number of elements of a list, or of entries of a map.")


def element_at(column_: Any, key: Any) -> Column:
    """An element of a list by its position from 1, or from the end if negative; or of a map."""
    return combine(_column(column_), "[", value(key), "]")


def array_contains(column_: Any, item: Any) -> Column:
    """Whether a list has an element."""
    return _call("list_contains", column_, value(item))


def array_position(column_: Any, item: Any) -> Column:
    """The position of an element in a list, from 1; 0 if it is not there."""
    return _call("coalesce", _call("list_position", column_, value(item)), 0)


def array_join(column_: Any, delimiter: str) -> Column:
    """The elements joined to one text."""
    return _call("array_to_string", column_, value(delimiter))


array_max = _named("list_max", "The greatest element.")
array_min = _named("list_min", "The least element.")


def slice(column_: Any, start: Any, length: Any) -> Column:
    """`length` elements from the one at `start`, counted from 1."""
    first_, count_ = value(start), value(length)
    return _call("list_slice", column_, first_, first_ + count_ - 1)


def sequence(start: Any, stop: Any, step: Any = 1) -> Column:
    """A list of the numbers from `start` to `stop`, both included."""
    return _call("generate_series", start, stop, step)


def explode(column_: Any) -> Column:
    """A row for each element of a list, or for each entry of a column of maps.

    An entry makes two columns, `key` and `value`. There is no row for an empty list or NULL.
    """
    return call("unnest", _column(column_), kind=Kind.FREE)


def explode_outer(column_: Any) -> Column:
    """A row for each element of a list; one with NULL for an empty list or NULL."""
    chosen = _column(column_)
    filled = case(call("len", chosen) > 0, chosen).otherwise([None])
    return call("unnest", filled, kind=Kind.FREE)


def transform(column_: Any, function: Callable[[Column], Any]) -> Column:
    """`function` of each element of a list: `F.transform("xs", lambda x: x + 1)`."""
    return combine("list_transform(", _column(column_), ", ", _lambda(function), ")", bare=True)


def filter(column_: Any, function: Callable[[Column], Any]) -> Column:
    """The elements of a list that fulfil a condition."""
    return combine("list_filter(", _column(column_), ", ", _lambda(function), ")", bare=True)


def exists(column_: Any, function: Callable[[Column], Any]) -> Column:
    """Whether any element of a list fulfils a condition."""
    return call("len", filter(column_, function)) > 0


def forall(column_: Any, function: Callable[[Column], Any]) -> Column:
    """Whether all elements of a list fulfil a condition."""
    return call("len", filter(column_, function)) == call("len", _column(column_))


def aggregate(column_: Any, start: Any, function: Callable[[Column, Column], Any]) -> Column:
    """The elements of a list reduced from the left: `function(accumulator, element)`."""
    parts = (_column(column_), ", ", _lambda(function), ", ", _column(start))
    return combine("list_reduce(", *parts, ")", bare=True)


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
        return _DOUBLE.sub(lambda found: format(Decimal(found[0]), "f"), piece)

    return replace(column_, pieces=tuple(map(decimal, column_.pieces)))


def _days(count_: Any) -> Column:
    """A number of days or months as INTEGER, the only type that DuckDB adds to dates."""
    return value(count_) if isinstance(count_, int) else _column(count_).cast("INTEGER")


def _lambda(function: Callable[..., Any]) -> Column:
    """A Python function of Columns as a lambda of DuckDB's."""
    # A name that ends in an underscore is unlikely to hide a column.
    names = [f"{name.rstrip('_')}_" for name in inspect.signature(function).parameters]
    body = value(function(*(Column((name,), level=Level.ATOM) for name in names)))
    return combine(f"lambda {', '.join(names)}: ", body, bare=True)


# Set-returning or volatile: they must not be moved or evaluated twice.
_VARYING = ("unnest", "random", "uuid", "gen_random_uuid")


@functools.cache
def _kinds() -> dict[str, Kind]:
    kinds = {"scalar": Kind.ROW, "aggregate": Kind.GROUP, "macro": Kind.FREE}
    found = {name: kinds[kind] for name, (kind, _) in described().items()}
    return found | dict.fromkeys(_VARYING, Kind.FREE)


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
    for known in (name.lower(), spelt_otherwise(name, described())):
        if known in described():
            return _duckdb_function(known)
    near = nearest(name, itertools.chain(__all__, described()))
    raise AttributeError(f"There is no function {name!r}.{near}", name=name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in described() if name.isidentifier())})


# Not what is imported here: users see these at Tab.
__all__ = [
    name
    for name, item in globals().items()
    if not name.startswith("_") and getattr(item, "__module__", None) == __name__
]
for _name in __all__:
    if globals()[_name].__name__ == "function":
        globals()[_name].__name__ = globals()[_name].__qualname__ = _name
