"""Columns of PostgreSQL: their types in DuckDB, the SQL that reads them, predicates on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from minishark.errors import DataError, OptionError
from minishark.model.expressions import quote, quote_text
from minishark.model.predicates import Comparison, Predicate

_PRECISION_MAX = 38
_EPOCH_DAYS = 10_957  # from 1970 to 2000, PostgreSQL's epoch
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1

# Types whose values travel as they are: PostgreSQL's name, DuckDB's, and Arrow's.
_PLAIN: Mapping[str, tuple[str, pa.DataType]] = {
    "bool": ("BOOLEAN", pa.bool_()),
    "int2": ("SMALLINT", pa.int16()),
    "int4": ("INTEGER", pa.int32()),
    "int8": ("BIGINT", pa.int64()),
    "float4": ("FLOAT", pa.float32()),
    "float8": ("DOUBLE", pa.float64()),
    "text": ("VARCHAR", pa.string()),
    "varchar": ("VARCHAR", pa.string()),
    "bpchar": ("VARCHAR", pa.string()),
    "char": ("VARCHAR", pa.string()),
    "name": ("VARCHAR", pa.string()),
    "bytea": ("BLOB", pa.binary()),
    "date": ("DATE", pa.date32()),
    "time": ("TIME", pa.time64("us")),
    "timestamp": ("TIMESTAMP", pa.timestamp("us")),
    "timestamptz": ("TIMESTAMP WITH TIME ZONE", pa.timestamp("us", tz="UTC")),
    "interval": ("INTERVAL", pa.month_day_nano_interval()),
    "uuid": ("UUID", pa.uuid()),
    "json": ("JSON", pa.json_()),
    "jsonb": ("JSON", pa.json_()),
}
_TEXTS = ("text", "varchar")
_ORDERS = (
    Comparison.LESS,
    Comparison.LESS_OR_EQUAL,
    Comparison.GREATER,
    Comparison.GREATER_OR_EQUAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresColumn:
    """A column: how it is read, and what becomes of it."""

    name: str
    kind: str  # PostgreSQL's name of the type, without domains; "numeric", "enum", "array", "other"
    type: str  # DuckDB's
    arrow: pa.DataType
    read: str  # SQL that is selected
    value: str  # SQL that predicates compare
    is_binary_equal: bool = True  # whether only equal bytes are equal


def condition(column: PostgresColumn, predicate: Predicate) -> str | None:
    """A predicate as SQL of PostgreSQL; None if it could be false where DuckDB's is true."""
    comparison = predicate.comparison
    if column.kind in ("other", "array"):
        return None
    if comparison in (Comparison.IS_NULL, Comparison.IS_NOT_NULL):
        return f"{column.value} {comparison}"
    literals = [_literal(column, value) for value in predicate.values]
    if not literals or None in literals:
        return None
    value = column.value
    if column.kind in _TEXTS:
        # DuckDB compares bytes. Equality needs no collation, and may use an index without one.
        if comparison in _ORDERS or not column.is_binary_equal:
            value = f'{value} COLLATE "C"'
    elif column.kind == "bpchar":
        # Blanks at the end don't count: more is equal than in DuckDB, and less is different.
        if comparison not in (Comparison.EQUAL, Comparison.IN):
            return None
    elif column.kind in ("uuid", "bytea", "enum", "bool") and comparison in _ORDERS:
        return None
    if comparison is Comparison.IN:
        return f"{value} IN ({', '.join(map(str, literals))})"
    return f"{value} {comparison} {literals[0]}"


def _literal(column: PostgresColumn, value: Any) -> str | None:
    """A value as a constant of the column's type; None for values that it can't have."""
    match column.kind, value:
        case "bool", bool():
            return str(value).lower()
        case "int2" | "int4" | "int8", int():
            return f"({value})"
        case "float4" | "float8", float() | int():
            return f"'{value}'::float8"
        case "numeric", Decimal() | int():
            return f"({value})"
        case "text" | "varchar" | "enum", str() if "\0" not in value:
            return f"{quote_text(value)}::text"
        case "bpchar", str() if "\0" not in value:
            return f"{quote_text(value)}::bpchar"
        case "bytea", bytes():
            return rf"'\x{value.hex()}'::bytea"
        case "date", date() if not isinstance(value, datetime):
            return f"'{value.isoformat()}'::date"
        case "time", time():
            return f"'{value.isoformat()}'::time"
        case "timestamp", datetime() if value.tzinfo is None:
            return f"'{value.isoformat()}'::timestamp"
        case "timestamptz", datetime() if value.tzinfo is not None:
            return f"'{value.astimezone(UTC).isoformat()}'::timestamptz"
        case "uuid", UUID():
            return f"'{value}'::uuid"
        case _:
            return None


def converted(
    batch: pa.RecordBatch, columns: Sequence[PostgresColumn], target: pa.Schema, name: str
) -> pa.RecordBatch:
    arrays = []
    for array, column in zip(batch.columns, columns, strict=True):
        try:
            arrays.append(_array(array, column.arrow))
        except pa.ArrowException as error:
            raise DataError(
                f"A value of column {column.name} of {name} does not fit {column.type}: {error}. "
                "Read it as text through a view, or set the option `numeric` for columns of "
                "numeric without precision."
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _array(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_date32(target):
        return _with_infinity(array, pa.int32(), _EPOCH_DAYS, _INT32_MAX)
    if pa.types.is_timestamp(target):
        return _with_infinity(array, pa.int64(), _EPOCH_MICROSECONDS, _INT64_MAX).cast(target)
    if array.type == target:
        return array
    if isinstance(target, pa.BaseExtensionType):
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        return pa.ExtensionArray.from_storage(target, storage.cast(target.storage_type))
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.cast(target)


def _with_infinity(array: pa.Array, plain: pa.DataType, epoch: int, top: int) -> pa.Array:
    """PostgreSQL's infinite dates, which the driver has moved by its epoch, as DuckDB's."""
    values = array.view(plain)
    positive = epoch - top - 2  # 2^n - 1 moved beyond the largest number
    negative = epoch - top - 1
    extremes = pc.min_max(values)["min"].as_py()
    if extremes is None or extremes > negative:
        return array
    values = pc.if_else(pc.equal(values, positive), pa.scalar(top, plain), values)
    values = pc.if_else(pc.equal(values, negative), pa.scalar(-top, plain), values)
    return values.view(array.type)


def postgres_column(row: Sequence[Any], numeric: Numeric) -> PostgresColumn:
    name, kind, category, modifier, element, element_category, is_binary_equal = row
    sql = quote(name)
    if kind == "numeric":
        chosen = _decimal(modifier) or numeric
        return PostgresColumn(
            name=name,
            kind="numeric" if pa.types.is_decimal(chosen.arrow) else "other",
            type=chosen.type,
            arrow=chosen.arrow,
            read=chosen.sql(sql),
            value=chosen.rounded(sql),
        )
    if category == "e":
        text = f"{sql}::text"
        return PostgresColumn(
            name=name, kind="enum", type="VARCHAR", arrow=pa.string(), read=text, value=text
        )
    if kind in _PLAIN:
        type_, arrow = _PLAIN[kind]
        read_as = "other" if kind in ("json", "jsonb", "interval", "char", "name") else kind
        return PostgresColumn(
            name=name,
            kind=read_as,
            type=type_,
            arrow=arrow,
            read=sql,
            value=sql,
            is_binary_equal=is_binary_equal,
        )
    if kind == "oid":  # has no sign
        whole = f"{sql}::int8"
        return PostgresColumn(
            name=name, kind="int8", type="BIGINT", arrow=pa.int64(), read=whole, value=whole
        )
    if element is not None:
        return _array_column(name, (element, element_category), modifier, numeric)
    return PostgresColumn(
        name=name,
        kind="other",
        type="VARCHAR",
        arrow=pa.string(),
        read=f"{sql}::text",
        value=sql,
    )


def _array_column(
    name: str, element: tuple[str, str], modifier: int, numeric: Numeric
) -> PostgresColumn:
    """An array as a list. One of several dimensions is no list: the server raises an error."""
    kind, category = element
    plain = kind in _PLAIN and category != "e"
    type_, arrow = _PLAIN[kind] if plain else ("VARCHAR", pa.string())
    server = f"{quote(kind)}[]" if plain else "text[]"
    if kind == "numeric":
        chosen = _decimal(modifier) or numeric
        type_, arrow = chosen.type, chosen.arrow
    sql = quote(name)
    list_ = sql if plain else f"{sql}::text[]"
    several = f"({sql}::text || ' has several dimensions')::{server}"
    return PostgresColumn(
        name=name,
        kind="array",
        type=f"{type_}[]",
        arrow=pa.list_(arrow),
        read=f"CASE WHEN array_ndims({sql}) > 1 THEN {several} ELSE {list_} END",
        value=sql,
    )


@dataclass(frozen=True, slots=True)
class Numeric:
    """What becomes of values of `numeric`."""

    type: str
    arrow: pa.DataType
    scale: int | None = None  # to which they are rounded

    def rounded(self, sql: str) -> str:
        return sql if self.scale is None else f"round({sql}, {self.scale})"

    def sql(self, sql: str) -> str:
        if pa.types.is_floating(self.arrow):
            return f"{sql}::float8"
        return f"{self.rounded(sql)}::text"


def _decimal(modifier: int) -> Numeric | None:
    """The type of `numeric(p, s)`; None without precision, or if DECIMAL can't hold it."""
    if modifier < 0:
        return None
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    if scale >= 1024:  # eleven bits with a sign
        scale -= 2048
    # PostgreSQL has negative scales, and those above the precision.
    digits = max(precision - min(scale, 0), scale)
    scale = max(scale, 0)
    if digits > _PRECISION_MAX:
        return None
    return Numeric(f"DECIMAL({digits},{scale})", pa.decimal128(digits, scale))


def numeric_option(text: str) -> Numeric:
    plain = re.sub(r"\s", "", text).upper()
    if plain == "DOUBLE":
        return Numeric("DOUBLE", pa.float64())
    if plain == "VARCHAR":
        return Numeric("VARCHAR", pa.string())
    match = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", plain)
    if match is None or not int(match[2]) <= int(match[1]) <= _PRECISION_MAX or int(match[1]) < 1:
        raise OptionError(
            f"numeric is DECIMAL(p, s) with p up to {_PRECISION_MAX}, DOUBLE or VARCHAR, "
            f"not {text!r}."
        )
    precision, scale = int(match[1]), int(match[2])
    return Numeric(plain, pa.decimal128(precision, scale), scale)
