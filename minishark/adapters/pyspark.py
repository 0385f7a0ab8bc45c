"""Sessions in which text, types and tables are Spark's: the room of all that means.

    >>> from minishark.spark import session
    >>> spark = session(nodes=1)
    >>> spark.sql("SELECT named_struct('a', 1) AS s, array(1, 2) AS l").show()
    +---+------+
    |  s|     l|
    +---+------+
    |{1}|[1, 2]|
    +---+------+
    >>> spark.stop()

DataFrames and functions are minishark's own. Text is translated by sqlglot, in `sql`, `filter` and
`selectExpr`; NULLs come first in ascending sorts; where a function of Spark's means something else
than DuckDB's of the same name, a macro of the session says so (MACROS), which is planned as any
other expression; rows and types are shown as Spark shows them.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from minishark.adapters.spark_text import MEANINGS, OURS, duckdb_expression, duckdb_text
from minishark.dataframe import DataFrame, types
from minishark.dataframe.dialect import Dialect, DTypes
from minishark.dataframe.local import as_arrow, row_names, row_values
from minishark.dataframe.runtime import note_session
from minishark.dataframe.show import text_rows
from minishark.errors import DataError
from minishark.session.builder import SessionBuilder
from minishark.session.catalog import Settings
from minishark.session.connect import connect
from minishark.session.scope import Scope
from minishark.session.session import Session

__all__ = ["SparkSession", "session"]

_PARTS = (
    "year", "quarter", "month", "week", "weekofyear", "day", "dayofmonth", "dayofweek", "isodow",
    "dayofyear", "hour", "minute", "second",
)  # fmt: skip
_IS_WHOLE = r"regexp_full_match(x, '\s*[+-]?[0-9]+\s*')"
_IS_LIST = "right(system.main.typeof(a), 1) = ']'"
_KEY = "TRY_CAST(CAST(k AS VARCHAR) AS BIGINT)"  # maps have keys of other types
_ITEM = f"a[coalesce(cast_to_type(CASE WHEN {_IS_LIST} THEN {_KEY} + 1 END, k), k)]"
_SCALED = "(system.main.floor(abs(x) * 1e1 ** n) + {}) / 1e1 ** n"
_STEPS = "len(system.main.generate_series(a, b, step))"
_CUT = """(x DOUBLE) AS trunc(x), (x BOOLEAN) AS x, (x BIGINT) AS x, (x HUGEINT) AS x,
    (x DECIMAL(38, 18)) AS split_part(CAST(x AS VARCHAR), '.', 1),
    (x TIMESTAMP) AS floor(system.main.epoch(x)),
    (x TIMESTAMPTZ) AS floor(system.main.epoch(x)), (x) AS x"""
# No error(): DuckDB takes it for volatile, and refuses that in windows. A text can be cast to any
# type; NULL of a list would be of any, but would keep queries on one node.
_TOLD = "CAST(CAST('{}' || left(CAST({} AS VARCHAR), 0) AS TINYINT) AS VARCHAR)"
_NO_TEXT = 'Text of this nested type: write to_json(), or cast("string") of a Column in Python.'
_NO_PAD = "Blobs are not padded: write unhex(lpad(hex(x), 2 * n, hex(pad)))."
_NO_SPAN = _TOLD.format(
    "A date and a column of intervals of days or months make a date in Spark, and a timestamp"
    " here: cast the date to a timestamp, or write the INTERVAL itself.",
    "a",
)
_TIME = " + ".join(
    f"abs(system.main.date_part('{part}', {{0}}))" for part in ("hour", "minute", "us")
)
_SPAN = f"CASE WHEN {_TIME} = 0 THEN cast_to_type({_NO_SPAN}, {{1}}) ELSE {{1}} END"
_NO_PADDED = _TOLD.format(_NO_PAD, "x")
_NO_LIST = r"^(STRUCT|MAP)\(|^(TIMESTAMP WITH|BLOB).*\]|\]\["
_WHOLE_LISTS = r"^(TINYINT|SMALLINT|INTEGER|BIGINT|BOOLEAN)(\[\])+$"
MACROS = {
    "typeof(x)": """
        CASE WHEN system.main.typeof(x) LIKE 'DECIMAL%' THEN lower(system.main.typeof(x))
        ELSE coalesce(map_extract_value(MAP {
            'VARCHAR': 'string', 'INTEGER': 'int', 'BLOB': 'binary', 'FLOAT': 'float',
            'TIMESTAMP WITH TIME ZONE': 'timestamp', '"NULL"': 'void', 'HUGEINT': 'decimal(38,0)',
            'VARCHAR[]': 'array<string>', 'INTEGER[]': 'array<int>', 'BIGINT[]': 'array<bigint>',
            'DOUBLE[]': 'array<double>'}, system.main.typeof(x)), lower(system.main.typeof(x)))
        END""",
    "whole(x VARCHAR)": f"CASE WHEN {_IS_WHOLE} THEN x ELSE x || ' (no whole number)' END, {_CUT}",
    "whole_or_null(x VARCHAR)": f"CASE WHEN {_IS_WHOLE} THEN x END, {_CUT}",
    "javas(t)": """
        CASE WHEN t IN ('nan', 'inf', '-inf')
        THEN replace(replace(t, 'nan', 'NaN'), 'inf', 'Infinity')
        WHEN TRY_CAST(t AS DOUBLE) = 0
        OR abs(TRY_CAST(t AS DOUBLE)) BETWEEN 1e-3 AND 9999999.999999998
        THEN t
        WHEN contains(t, 'e') THEN split_part(t, 'e', 1)
            || CASE WHEN contains(split_part(t, 'e', 1), '.') THEN 'E' ELSE '.0E' END
            || TRY_CAST(split_part(t, 'e', 2) AS INTEGER)
        ELSE regexp_replace(regexp_replace(t, '^(-?)0*\\.?0*([0-9])([0-9]*)\\.?([0-9]*)$',
            '\\1\\2.\\3\\4'), '(\\.[0-9]*?)0*$', '\\1')
            || CASE WHEN regexp_matches(t, '^-?[1-9]0*\\.?0*$|^-?0\\.0*[1-9]$')
            THEN '0E' ELSE 'E' END
            || CASE WHEN abs(TRY_CAST(t AS DOUBLE)) < 1 THEN -4
            ELSE length(split_part(ltrim(t, '-'), '.', 1)) - 1 END
        END""",
    "no_text(x)": _TOLD.format(_NO_TEXT, "x"),
    "as_string(x)": f"""
        CASE WHEN system.main.typeof(x) IN ('DOUBLE', 'FLOAT') THEN javas(CAST(x AS VARCHAR))
        WHEN system.main.typeof(x) = 'TIMESTAMP WITH TIME ZONE'
        THEN regexp_replace(CAST(x AS VARCHAR), '[+-][0-9:]+$', '')
        WHEN regexp_matches(system.main.typeof(x), '{_WHOLE_LISTS}') THEN lower(CAST(x AS VARCHAR))
        WHEN regexp_matches(system.main.typeof(x), '{_NO_LIST}') THEN no_text(x)
        WHEN right(system.main.typeof(x), 1) = ']'
        THEN CASE WHEN x IS NOT NULL THEN concat('[', array_to_string(list_transform(
            TRY_CAST(CAST(x AS VARCHAR) AS VARCHAR[]),
            lambda e_: coalesce(CASE WHEN system.main.typeof(x) IN ('DOUBLE[]', 'FLOAT[]')
            THEN javas(e_) ELSE e_ END, 'null')), ', '), ']') END
        ELSE CAST(x AS VARCHAR) END""",
    "parts(a)": """CASE WHEN system.main.typeof(a) IN ('DOUBLE[]', 'FLOAT[]')
        THEN list_transform(TRY_CAST(a AS VARCHAR[]), lambda e_: javas(e_))
        ELSE TRY_CAST(a AS VARCHAR[]) END""",
    # What joins texts: `x` decides, and would be cast to the type that it has here.
    "part(x VARCHAR, raw)": "raw, "
    + ", ".join(
        f"(x {kind}, raw) AS {body}"
        for body, kinds in (
            (
                """CASE WHEN abs(raw) BETWEEN 1e-3 AND 9999999.999999998
                THEN CAST(raw AS VARCHAR) ELSE as_string(raw) END""",
                ("DOUBLE", "FLOAT"),
            ),
            ("as_string(raw)", ("TIMESTAMPTZ",)),
            ("parts(raw)", ("DOUBLE[]", "FLOAT[]")),
            (
                "raw",
                (
                    "BOOLEAN",
                    "BIGINT",
                    "HUGEINT",
                    "DECIMAL(38, 18)",
                    "DATE",
                    "TIMESTAMP",
                    "BLOB",
                    "VARCHAR[]",
                    "BIGINT[]",
                ),
            ),
        )
        for kind in kinds
    )
    + ", (x, raw) AS raw",
    "seconds(x)": """
        CAST(system.main.date_part('us', CAST(x AS TIMESTAMP)) / 1e6 AS DECIMAL(8, 6))""",
    **{
        f"{part}(x VARCHAR)": f"""
        CAST(system.main.{part}(CAST(x AS TIMESTAMP)) AS INTEGER),
        (x) AS CAST(system.main.{part}(x) AS INTEGER)"""
        for part in _PARTS
    },
    "as_timestamp(x BIGINT)": "to_timestamp(x), (x DOUBLE) AS to_timestamp(x), (x) AS x",
    "starts_with(a BLOB, b BLOB)": """system.main.starts_with(hex(a), hex(b)),
        (a, b) AS system.main.starts_with(a, b)""",
    "ends_with(a BLOB, b BLOB)": """system.main.ends_with(hex(a), hex(b)),
        (a, b) AS system.main.ends_with(a, b)""",
    "contains(a BLOB, b BLOB)": """regexp_matches(hex(a), '^(..)*' || hex(b)),
        (a, b) AS system.main.contains(a, b)""",
    **{
        f"{side}(x BLOB, size, pad BLOB)": f"""{_NO_PADDED},
        (x BLOB, size, pad) AS {_NO_PADDED},
        (x, size, pad BLOB) AS system.main.{side}(as_string(x), size, decode(pad)),
        (x, size, pad) AS CASE WHEN CAST(pad AS VARCHAR) = ''
        THEN system.main.left(as_string(x), size)
        ELSE system.main.{side}(as_string(x), size, CAST(pad AS VARCHAR)) END"""
        for side in ("lpad", "rpad")
    },
    "upper(x)": "system.main.upper(CAST(x AS VARCHAR))",
    "lower(x)": "system.main.lower(CAST(x AS VARCHAR))",
    **{
        f"epoch_{unit}(x TIMESTAMP)": f"""
        system.main.epoch_{unit}(CAST(x AS TIMESTAMPTZ)),
        (x) AS system.main.epoch_{unit}(x)"""
        for unit in ("ms", "us")
    },
    "url_decode(x)": """CASE WHEN regexp_matches(x, '%(.?$|[^0-9A-Fa-f]|.[^0-9A-Fa-f])')
        THEN CAST(CAST('no URL-encoded text: ' || x AS INTEGER) AS VARCHAR)
        ELSE system.main.url_decode(x) END""",  # an error that try() takes
    "uuid()": "CAST(system.main.uuid() AS VARCHAR)",
    # Of an aggregate, DuckDB takes an overload without a look at its type: so there are none.
    "length(x)": """CAST(CASE
        WHEN system.main.typeof(x) = 'BLOB' THEN system.main.length(hex(x)) // 2
        ELSE system.main.length(CAST(x AS VARCHAR)) END AS INTEGER)""",
    "plus(a DATE, b INTERVAL)": f"""{_SPAN.format("b", "a + b")},
        (a INTERVAL, b DATE) AS {_SPAN.format("a", "a + b")}, (a, b) AS a + b""",
    "minus(a DATE, b INTERVAL)": f"{_SPAN.format('b', 'a - b')}, (a, b) AS a - b",
    "plus_days(x, days)": "cast_to_type(x + days, x)",
    **{
        f"{name}(x)": f"""CASE WHEN isnan(CAST(x AS DOUBLE)) THEN 0
        WHEN system.main.typeof(x) = 'BIGINT' THEN CAST(x AS BIGINT)
        ELSE CAST(system.main.{name}(x) AS BIGINT) END"""
        for name in ("ceil", "floor")
    },
    # A double that is written as a number halfway between two is one, to Java.
    "round(x, n)": f"""
        CASE WHEN system.main.typeof(x) = 'DOUBLE' AND {_SCALED.format(0.5)} = abs(x)
        THEN cast_to_type({_SCALED.format(1)} * CASE WHEN x < 0 THEN -1 ELSE 1 END,
            system.main.round(x, n))
        ELSE system.main.round(x, n) END, (x) AS system.main.round(x)""",
    # Elements: by positions from 0 in text, and as element_at() counts. The
    # json_array_length() of them would keep queries on one node.
    "item(a, k)": f"""CASE
        WHEN {_IS_LIST} AND ({_KEY} < 0 OR {_ITEM} IS NULL
            AND {_KEY} >= system.main.cardinality(a)) THEN no_element(k, {_ITEM})
        ELSE {_ITEM} END""",
    "element(a, k)": f"""CASE
        WHEN {_IS_LIST} AND a[k] IS NULL
            AND abs({_KEY}) NOT BETWEEN 1 AND system.main.cardinality(a) THEN no_element(k, a[k])
        ELSE a[k] END""",
    **{
        f"as_{tries}sum_of_sums(total HUGEINT)": f"{cast}(total AS BIGINT), (total) AS total"
        for tries, cast in (("", "CAST"), ("try_", "TRY_CAST"))
    },
    # Of a DECIMAL, `least` has the type, as a macro can't name an `x` that is not grouped by.
    # A product of fewer digits would have 18, which sums may exceed.
    **{
        f"as_{tries}sum(x BIGINT, total, least)": f"""{cast}(total AS BIGINT),
        (x DECIMAL(38, 18), total, least) AS
            cast_to_type(total, least * CAST(0 AS DECIMAL(19, 0))),
        (x, total, least) AS total"""
        for tries, cast in (("", "CAST"), ("try_", "TRY_CAST"))
    },
    # Quotients of decimals: cast_to_type() looks at types only, which are known when it is planned.
    "digits_of(t)": """CASE t WHEN 'TINYINT' THEN 3 WHEN 'SMALLINT' THEN 5 WHEN 'INTEGER' THEN 10
        WHEN 'BIGINT' THEN 20 ELSE coalesce(TRY_CAST(split_part(t[9:], ',', 1) AS INTEGER), 38)
        END""",
    "scale_of(t)": "coalesce(TRY_CAST(rtrim(split_part(t, ',', 2), ')') AS INTEGER), 0)",
    "fitting(whole, n)": "least(n, greatest(38 - whole, 6))",
    "quotient_scale(a, b)": """fitting(digits_of(a) - scale_of(a) + scale_of(b),
        greatest(6, scale_of(a) + digits_of(b) + 1))""",
    "with_scale(x, n)": f"system.main.round(system.main.floor(x) * 0.{'0' * 37}, n)",
    "as_avg(x BIGINT, mean, least)": """mean,
        (x DECIMAL(38, 18), mean, least) AS cast_to_type(mean, with_scale(least, fitting(
            digits_of(system.main.typeof(least)) - scale_of(system.main.typeof(least)),
            scale_of(system.main.typeof(least)) + 4))),
        (x, mean, least) AS mean""",
    # A literal such as 3 has fewer digits than an INTEGER.
    "scaled_as(a, b)": """with_scale(a + b, quotient_scale(system.main.typeof(a),
        CASE WHEN system.main.typeof(b) = 'INTEGER'
        THEN system.main.typeof(coalesce(b, CAST(0 AS TINYINT)))
        ELSE system.main.typeof(b) END))""",
    # With many decimals, a DOUBLE as text has its own digits, and not those of the nearest DECIMAL.
    "quotient(a, b)": """CASE
        WHEN regexp_matches(system.main.typeof(scaled_as(a, b)), ',[1-3][0-9]\\)')
        THEN cast_to_type(CAST(a / b AS VARCHAR), scaled_as(a, b))
        ELSE cast_to_type(a / b, scaled_as(a, b)) END""",
    "summed(x VARCHAR)": "CAST(x AS DOUBLE), (x) AS x",
    # A month is whole when its day and time of day are reached again, as java.time counts.
    "whole_months(a, b)": """date_diff('month', a, b) - CASE
        WHEN b >= a AND b - date_trunc('month', b) < a - date_trunc('month', a) THEN 1
        WHEN b < a AND b - date_trunc('month', b) > a - date_trunc('month', a) THEN -1
        ELSE 0 END""",
    # Each step is taken from the start: those of a month end with its last day.
    "series(a, b, step INTERVAL)": f"""list_filter(
        list_transform(system.main.generate_series(0, {_STEPS}),
            lambda i: cast_to_type(a + step * i, coalesce(a, b))),
        lambda d: CASE WHEN a + step >= a THEN d <= b ELSE d >= b END),
        (a DATE, b DATE, step INTEGER) AS CAST(
            system.main.generate_series(a, b, to_days(step)) AS DATE[]),
        (a, b, step) AS system.main.generate_series(a, b, step)""",
    # In a lambda, whose argument's type DuckDB knows: the overload is of the types.
    "generate_series(a, b, step)": """list_transform([{'a': a, 'b': b, 'step': step}],
        lambda v: series(v.a, v.b, v.step))[1],
        (a, b) AS system.main.generate_series(a, b), (a) AS system.main.generate_series(a)""",
    "strftime(x, pattern)": "system.main.strftime(CAST(x AS TIMESTAMP), pattern)",
    "epoch(x)": "system.main.epoch(CAST(x AS TIMESTAMPTZ))",
    "last_day(x)": "system.main.last_day(CAST(x AS DATE))",
    "monthname(x)": "substr(system.main.monthname(CAST(x AS TIMESTAMP)), 1, 3)",
    "dayname(x)": "substr(system.main.dayname(CAST(x AS TIMESTAMP)), 1, 3)",
    "sign(x)": "CASE WHEN isnan(CAST(x AS DOUBLE)) THEN 'nan'::DOUBLE ELSE system.main.sign(x) END",
}
"""What functions mean to Spark that DuckDB has under the same name: SQL by signature."""
_OR_NULL = "for NULL, or set spark.sql.ansi.enabled to false."
_DIVISION = """CREATE OR REPLACE TEMP MACRO "{0}"(a, b) AS
    CASE WHEN b = 0 THEN {1} ELSE system.main."{0}"(a, b) END"""
_ZERO_TOLD = _TOLD.format(f"Division by zero. Write try_divide() or try_mod() {_OR_NULL}", "b")
_BY_ZERO = f"""cast_to_type({_ZERO_TOLD}, system.main."{{0}}"(a, b))"""
_POSITION_TOLD = _TOLD.format(
    f"There is no element at this position. Write get() or try_element_at() {_OR_NULL}", "k"
)
_NO_ELEMENT = tuple(
    f"CREATE OR REPLACE TEMP MACRO no_element(k, item) AS {made}"
    for made in ("NULL", f"cast_to_type({_POSITION_TOLD}, item)")
)
_SET = re.compile(r"(?si)\s*SET\s+(?P<name>spark\.[\w.]+)\s*(=(?P<value>.*?))?;?\s*")
_NULLS = "NULLS_FIRST_ON_ASC_LAST_ON_DESC"


def ansi(*, is_on: bool) -> str:
    """Statements that make division by zero and an element that is not there errors, or NULL."""
    by_zero = _BY_ZERO if is_on else "NULL"
    made = [_DIVISION.format(sign, by_zero.format(sign)) for sign in ("/", "%", "//")]
    return ";".join([*made, _NO_ELEMENT[is_on]])


_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "Etc/UTC",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.timeParserPolicy": "EXCEPTION",
    "spark.sql.execution.arrow.pyspark.enabled": "false",
}


# Types


def spark_type(type_: pa.DataType) -> types.DataType:
    """The type of Spark's that holds the values of an Arrow type."""
    kinds = pa.types
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return types.ArrayType(spark_type(type_.value_type))
    if kinds.is_map(type_):
        return types.MapType(spark_type(type_.key_type), spark_type(type_.item_type))
    if kinds.is_struct(type_):
        return _struct(type_.fields)
    if kinds.is_decimal(type_):
        return types.DecimalType(type_.precision, type_.scale)
    if kinds.is_timestamp(type_):
        return types.TimestampType()
    if kinds.is_dictionary(type_):
        return spark_type(type_.value_type)
    return _TYPES.get(str(type_).removeprefix("large_").removesuffix("_view"), types.StringType)()


def _struct(fields: Iterable[pa.Field]) -> types.StructType:
    return types.StructType([types.StructField(f.name, spark_type(f.type)) for f in fields])


_TYPES = {
    "bool": types.BooleanType, "int8": types.ByteType, "int16": types.ShortType,
    "int32": types.IntegerType, "int64": types.LongType, "uint8": types.ShortType,
    "uint16": types.IntegerType, "uint32": types.LongType, "halffloat": types.FloatType,
    "float": types.FloatType, "double": types.DoubleType, "date32[day]": types.DateType,
    "binary": types.BinaryType, "null": types.NullType, "time64[us]": types.TimeType,
    "month_day_nano_interval": types.CalendarIntervalType,
    "duration[us]": types.DayTimeIntervalType,
}  # fmt: skip


def _tree(type_: types.DataType, indent: str, depth: int) -> Iterator[str]:
    """What `printSchema` prints below a type."""
    below: list[tuple[str, types.DataType, str]] = []
    match type_:
        case types.StructType():
            below = [(f.name, f.dataType, " (nullable = true)") for f in type_]
        case types.ArrayType():
            below = [("element", type_.elementType, " (containsNull = true)")]
        case types.MapType():
            value = ("value", type_.valueType, " (valueContainsNull = true)")
            below = [("key", type_.keyType, ""), value]
    for name, part, note in below if depth else ():
        kind = part.simpleString() if isinstance(part, types.DecimalType) else part.typeName()
        yield f"{indent}-- {name}: {_KINDS.get(kind, kind)}{note}"
        yield from _tree(part, f"{indent}    |", depth - 1)


_KINDS = {"null": "void", "calendarinterval": "interval"}


# Rows of Python's


def arrow_rows(rows: Sequence[Any], names: Sequence[str] | None) -> pa.Table:
    """Rows as Spark infers their types: dicts are maps, Rows and tuples structs."""
    names = row_names(rows) if names is None else names
    given = [row_values(row, names) for row in rows]
    for number, row in enumerate(given, 1):
        if len(row) != len(names):
            raise DataError(f"Row {number} has {len(row)} values; the columns are {list(names)}.")
    made = []
    for name, column in zip(names, zip(*given, strict=True), strict=True):
        try:
            type_ = functools.reduce(_merged, map(_inferred, column), pa.null())
            values = [as_arrow(item, type_, cell, by_name=True) for item in column]
            made.append(pa.array(values, type_))
        except (pa.ArrowException, OverflowError) as error:
            raise DataError(f"No type of Spark's holds the values of {name!r}: {error}") from error
    return pa.table(made, names=list(names))


def _inferred(item: Any) -> pa.DataType:
    match item:
        case bool():
            return pa.bool_()
        case int():
            return pa.int64()
        case decimal.Decimal():
            return pa.decimal128(38, 18)
        case dict():
            key = functools.reduce(_merged, map(_inferred, item), pa.null())
            return pa.map_(key, functools.reduce(_merged, map(_inferred, item.values()), pa.null()))
        case tuple():
            return pa.struct([(name, _inferred(part)) for name, part in _fields(item)])
        case list():
            return pa.list_(functools.reduce(_merged, map(_inferred, item), pa.null()))
        case _:
            return pa.array([item]).type


def _fields(item: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return list(zip(row_names([item]), item, strict=True))


def _merged(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type of values of both types; texts take all that are not nested."""
    kinds = pa.types
    if left == right or kinds.is_null(right):
        return left
    if kinds.is_null(left):
        return right
    if kinds.is_struct(left) and kinds.is_struct(right):
        fields = {f.name: f.type for f in left.fields}
        for field in right.fields:
            fields[field.name] = _merged(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    if kinds.is_list(left) and kinds.is_list(right):
        return pa.list_(_merged(left.value_type, right.value_type))
    if kinds.is_map(left) and kinds.is_map(right):
        value = _merged(left.item_type, right.item_type)
        return pa.map_(_merged(left.key_type, right.key_type), value)
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.string() in (left, right) and not (kinds.is_nested(left) or kinds.is_nested(right)):
        return pa.string()
    raise DataError(f"A column has values of {left} and of {right}. Pass a schema with types.")


def cell(value: Any) -> str:
    """A value as `show` prints it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case float():
            return _double(value)
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(" ")
            return text.rstrip("0") if "." in text else text
        case bytes():
            return f"[{value.hex(' ').upper()}]"
        case dict():
            return f"{{{', '.join(map(cell, value.values()))}}}"
        case list() if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return f"{{{', '.join(f'{cell(k)} -> {cell(v)}' for k, v in value)}}}"
        case list():
            return f"[{', '.join(map(cell, value))}]"
        case decimal.Decimal():
            return f"{value:f}"
        case pa.MonthDayNano() if not value.months and (value.days or value.nanoseconds):
            return _day_time(value.days, value.nanoseconds)
        case pa.MonthDayNano():
            return _interval(*value)
        case _:
            return str(value).translate(_ESCAPED)


_ESCAPED = str.maketrans({sign: repr(sign)[1:-1] for sign in "\n\r\t"} | {"\f": "\\f", "\b": "\\b"})


def _day_time(days: int, nanos: int) -> str:
    """As Spark shows the difference of two timestamps."""
    micros = days * 86_400_000_000 + nanos // 1000
    whole = dt.timedelta(microseconds=abs(micros))
    hours, rest = divmod(whole.seconds, 3600)
    fraction = f".{whole.microseconds:06}".rstrip("0") if whole.microseconds else ""
    time = f"{hours:02}:{rest // 60:02}:{rest % 60:02}{fraction}"
    return f"INTERVAL '{'-' * (micros < 0)}{whole.days} {time}' DAY TO SECOND"


def _interval(months: int, days: int, nanos: int) -> str:
    years, months = math.trunc(months / 12), int(math.fmod(months, 12))
    minutes, rest = math.trunc(nanos / 60e9), math.fmod(nanos, 60e9)
    hours, minutes = math.trunc(minutes / 60), int(math.fmod(minutes, 60))
    seconds = f"{rest / 1e9:.6f}".rstrip("0").rstrip(".")
    parts = {"years": years, "months": months, "days": days, "hours": hours, "minutes": minutes}
    said = [f"{count} {unit}" for unit, count in parts.items() if count]
    return " ".join([*said, f"{seconds} seconds"] if rest or not said else said)


def _double(value: float) -> str:
    """As Java writes a double."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "-Infinity" if value < 0 else "Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, _, exponent = f"{decimal.Decimal(repr(value)):e}".partition("e")
    if "." in digits:
        digits = digits.rstrip("0")
    whole, _, fraction = digits.partition(".")
    return f"{whole}.{fraction or 0}E{int(exponent)}"


def _cells(table: pa.Table) -> list[list[str]]:
    """The rows as text; a column that Python can't hold, as DuckDB writes it."""
    columns = []
    for number, column in enumerate(table.columns):
        try:
            columns.append(_column(column))
        except (ValueError, OverflowError, pa.ArrowException):
            texts = (row[0] for row in text_rows(table.select([number])))
            columns.append(["NULL" if text is None else text for text in texts])
    return [list(row) for row in zip(*columns, strict=True)]


def _column(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_map(column.type):
        return ["NULL" if v is None else cell(v) if v else "{}" for v in column.to_pylist()]
    if pa.types.is_float32(column.type):
        return [cell(None if v is None else float(f"{v:.7g}")) for v in column.to_pylist()]
    return list(map(cell, column.to_pylist()))


class SparkDialect(Dialect):
    """Spark's SQL, types and tables."""

    meanings = MEANINGS

    def statements(self, text: str) -> str:
        """Spark's SQL as DuckDB's."""
        return duckdb_text(text)

    is_sparks = True
    blob = bytearray

    def expression(self, text: str, *, named: bool = False) -> str:
        """An expression of Spark's SQL as DuckDB's."""
        return duckdb_expression(text, named=named)

    def has_function(self, name: str) -> bool:
        """Whether it is one of `minishark.functions`, which texts call."""
        return name.lower() in OURS

    def there(self, names: Sequence[Any], columns: Sequence[str]) -> Sequence[Any]:
        """Spark ignores names that are not there."""
        known = {name.lower() for name in columns}
        return [n for n in names if not isinstance(n, str) or n.lower().strip("`") in known]

    def schema(self, schema: pa.Schema) -> types.StructType:
        """Spark's types."""
        return _struct(schema)

    def dtypes(self, dtypes: DTypes, schema: Callable[[], pa.Schema]) -> DTypes:
        """Spark's names of types."""
        kinds = [spark_type(field.type).simpleString() for field in schema()]
        return [(name, kind) for (name, _), kind in zip(dtypes, kinds, strict=True)]

    def tree(self, dtypes: DTypes, schema: Callable[[], pa.Schema], depth: int | None) -> str:
        """What Spark's `printSchema` prints."""
        del dtypes
        return "\n".join(["root", *_tree(_struct(schema()), " |", depth or -1)])

    def table_text(self, table: pa.Table, count: int, *, width: int, vertical: bool) -> str:
        """What Spark's `show` prints."""
        rows = [[_cut(text, width) for text in row] for row in _cells(table.slice(0, count))]
        lines = (
            _records(table.column_names, rows)
            if vertical
            else _grid(table.column_names, rows, right=bool(width))
        )
        if table.num_rows > count:
            lines.append(f"only showing top {count} row{'s' * (count != 1)}")
        return "\n".join(lines) + ("\n" if not vertical or table.num_rows > count else "")


def _cut(text: str, width: int) -> str:
    if not width or len(text) <= width:
        return text
    return text[:width] if width < 4 else f"{text[: width - 3]}..."


def _grid(names: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool) -> list[str]:
    widths = [max(3, *map(len, column)) for column in zip(names, *rows, strict=True)]
    rule = f"+{'+'.join('-' * width for width in widths)}+"

    def line(cells: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width in zip(cells, widths, strict=True)
        )
        return f"|{'|'.join(padded)}|"

    return [rule, line(names), rule, *map(line, rows), rule]


def _records(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    left = max(3, *map(len, names))
    width = max((3, *(len(text) for row in rows for text in row)))
    lines = []
    for number, row in enumerate(rows):
        lines.append(f"-RECORD {number}".ljust(left + width + 5, "-"))
        lines += [
            f" {name.ljust(left)} | {text.ljust(width)} "
            for name, text in zip(names, row, strict=True)
        ]
    return lines


# Sessions


@dataclass(frozen=True)  # without slots, for which dataclass makes another class: super() fails
class SparkSettings(Settings):
    """Settings: Spark's are kept for who reads them again, and have no effect."""

    sparks: dict[str, str]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting."""
        if not name.startswith("spark."):
            return super().get(name, default)
        return self.sparks.get(name, _SETTINGS.get(name, default))

    def set(self, name: str, value: Any) -> None:
        """Change a setting; of Spark's, the time zone has an effect."""
        if not name.startswith("spark."):
            super().set(name, value)
            return
        if name == "spark.sql.session.timeZone":
            super().set("TimeZone", value)
        self.sparks[name] = str(value).lower() if isinstance(value, bool) else str(value)
        if name == "spark.sql.ansi.enabled":
            self.run(ansi(is_on=self.sparks[name] == "true"))

    def unset(self, name: str) -> None:
        """Reset a setting."""
        if not name.startswith("spark."):
            super().unset(name)
        elif self.sparks.pop(name, None) and name == "spark.sql.session.timeZone":
            super().unset("TimeZone")
        elif name == "spark.sql.ansi.enabled":
            self.run(ansi(is_on=True))


class _Builder:
    """`SparkSession.builder`: a new builder at each access."""

    def __get__(self, instance: object, owner: type) -> SessionBuilder[SparkSession]:
        return SessionBuilder(_connected, {})


class SparkSession(Session):
    """A session whose text, types and tables are Spark's.

    `session` makes one, or, as in PySpark, `SparkSession.builder.getOrCreate()`.
    """

    builder: Any = _Builder()
    _dialect: Dialect = SparkDialect()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sparks: dict[str, str] = {}
        self._own: Session | None = None
        self.duckdb_sql(f"SET default_null_order = '{_NULLS}'")
        made = [f"CREATE OR REPLACE TEMP MACRO {name} AS {body}" for name, body in MACROS.items()]
        self.duckdb_sql(";".join([ansi(is_on=True), *made]))

    @classmethod
    def getActiveSession(cls) -> SparkSession | None:  # noqa: N802 - PySpark's name
        """As `get_active_session`: PySpark's programs ask the class."""
        return cls.get_active_session()

    def sql(self, text: str, *args: Any, **kwargs: Any) -> DataFrame:
        """As `Session.sql`, of Spark's SQL; SET of Spark's settings as `conf.set`."""
        setting = _SET.fullmatch(text)
        if setting is None:
            return super().sql(text, *args, **kwargs)
        name, value = setting["name"], setting["value"]
        if value is not None:
            self.conf.set(name, value.strip())
        return self.create_dataframe([(name, self.conf.get(name, "<undefined>"))], ["key", "value"])

    def table(self, name: str) -> DataFrame:
        """As `Session.table`; global views are views of the session."""
        return super().table(name.removeprefix("global_temp."))

    @property
    def conf(self) -> Settings:
        """DuckDB's settings, and what was set of Spark's."""
        return SparkSettings(self._runtime, self.duckdb_sql, self._sparks)

    def create_dataframe(
        self,
        data: Any,
        schema: Any = None,
        samplingRatio: Any = None,  # noqa: N803 - PySpark's name
        verifySchema: bool = True,  # noqa: N803
    ) -> DataFrame:
        """Rows as a DataFrame, whose types are inferred as by Spark; see `arrow_rows`."""
        del samplingRatio, verifySchema
        if isinstance(data, Iterator):
            data = list(data)
        is_named = schema is None or (
            isinstance(schema, list | tuple) and all(isinstance(name, str) for name in schema)
        )
        if isinstance(data, list | tuple) and data and is_named:
            data, schema = arrow_rows(data, schema), None
        return super().create_dataframe(data, schema)

    createDataFrame = create_dataframe  # noqa: N815 - PySpark's name

    def stop(self) -> None:
        """End the session, and the cluster that was started for it."""
        super().stop()
        own, self._own = self._own, None
        if own is not None:
            own.stop()


def session(session: Session | None = None, **options: Any) -> SparkSession:
    """Open a session in which text, types and tables are Spark's.

    Args:
        session: one over whose cluster and tables it is; None starts a cluster.
        options: arguments of `minishark.connect`.
    """
    base = connect(**options) if session is None else session
    runtime = base._runtime  # noqa: SLF001 - of another session's kind
    made = SparkSession(base._group, Scope.of(runtime.scope), progress=runtime.progress)  # noqa: SLF001
    if session is None:
        made._own = base  # noqa: SLF001
        note_session(made)
    return made


@functools.wraps(connect)
def _connected(**options: Any) -> SparkSession:
    return session(**options)
