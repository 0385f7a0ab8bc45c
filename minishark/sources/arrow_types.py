"""What DuckDB calls the types of Arrow, rows that it can read, and values of Arrow as its text."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import pyarrow as pa

from minishark.errors import UnsupportedError
from minishark.model.expressions import Column, Schema, quote_text

_WIDTHS = {"BOOLEAN": 1, "INTEGER": 4, "FLOAT": 4, "DATE": 4}
_WIDTH = 8
_TEXT_WIDTH = 16  # of text and nested values, whose true width is unknown


def duckdb_schema(schema: pa.Schema, name: str) -> Schema:
    """The columns of `schema` with DuckDB's types.

    Args:
        schema: in Arrow's types.
        name: the source, for messages.

    Raises:
        UnsupportedError: a type that DuckDB does not have, or names that differ in case only.
    """
    import duckdb  # noqa: PLC0415 - a session starts before it is imported

    counts = Counter(column.lower() for column in schema.names)
    twice = [column for column in schema.names if counts[column.lower()] > 1]
    if twice:
        raise UnsupportedError(
            f"Columns {' and '.join(twice)} of {name} differ in case only, which SQL can't tell "
            "apart; rename one."
        )
    try:
        types = _types(schema.serialize().to_pybytes())
    except (duckdb.Error, pa.ArrowException) as error:
        raise UnsupportedError(f"{name} has a type that DuckDB lacks: {error}") from error
    return tuple(
        Column(column, "VARCHAR" if type_ == '"NULL"' else type_)
        for column, type_ in zip(schema.names, types, strict=True)
    )


@lru_cache(maxsize=256)
def _types(serialized: bytes) -> tuple[str, ...]:
    """DuckDB's types of a schema, which are asked for with each version of a table.

    They are remembered, as DuckDB takes some milliseconds to open a database.
    """
    import duckdb  # noqa: PLC0415 - as above

    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    with duckdb.connect() as connection:
        return tuple(map(str, connection.from_arrow(schema.empty_table()).types))


def text_of(value: Any, type_: pa.DataType) -> str | None:
    """A value as text that DuckDB's CAST reads; None for types without such a text."""
    nested = pa.types.is_nested(type_) or isinstance(type_, pa.ExtensionType)
    if nested or pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return None
    if pa.types.is_fixed_size_binary(type_) or pa.types.is_null(type_):
        return None
    try:
        scalar = pa.scalar(value, type=type_)
        text: str | None = scalar.cast(pa.string()).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return text


def constant(value: Any, type_: pa.DataType) -> str | None:
    """SQL of a value that is cast to its DuckDB type; None if there is none."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes) and not isinstance(type_, pa.ExtensionType):
        return f"from_hex({quote_text(value.hex())})"
    text = str(value) if isinstance(type_, pa.UuidType) else text_of(value, type_)
    return None if text is None else quote_text(text)


def memory_bytes(schema: Schema, rows: int, stored: int) -> int:
    """About what `rows` rows take in memory, where only their stored size in bytes is known."""
    widths = (
        _WIDTHS.get(column.type, _TEXT_WIDTH if _is_wide(column.type) else _WIDTH)
        for column in schema
    )
    return max(rows * sum(widths), stored)


def _is_wide(type_: str) -> bool:
    return type_.startswith(("VARCHAR", "BLOB", "STRUCT", "MAP", "JSON")) or type_.endswith("]")


def readable(rows: pa.Table) -> pa.Table:
    """The same rows, without what DuckDB refuses to read: structs in structs of a slice."""
    nested = [i for i, type_ in enumerate(rows.schema.types) if _is_nested_struct(type_)]
    for position in nested:
        chunks = [_from_zero(chunk) for chunk in rows.column(position).chunks]
        field = rows.schema.field(position)
        rows = rows.set_column(position, field, pa.chunked_array(chunks, field.type))
    return rows


def _is_nested_struct(type_: pa.DataType) -> bool:
    return pa.types.is_struct(type_) and any(pa.types.is_struct(field.type) for field in type_)


def _from_zero(array: pa.Array) -> pa.Array:
    """The same values in structs that have no offsets; those of other types are not copied."""
    if not pa.types.is_struct(array.type):
        return array
    fields = [_from_zero(values) for values in array.flatten()]
    return pa.StructArray.from_arrays(fields, fields=[*array.type], mask=array.is_null())
