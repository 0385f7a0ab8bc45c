"""Python rows and frames -> an Arrow table to load into the cluster."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from minishark.compiler.sql.connection import aside
from minishark.dataframe.column import sql_type
from minishark.dataframe.names import ident
from minishark.dataframe.row import Row
from minishark.dataframe.types import DataType, StructType, duckdb_schema, duckdb_type
from minishark.errors import DataError
from minishark.model.expressions import quote
from minishark.tables.sources import arrow_table
from minishark.worker.columns import column_of

SchemaLike: TypeAlias = Sequence[str] | Mapping[str, Any] | pa.Schema | StructType | str | None
"""Column names; or names and types: a mapping, "a BIGINT, b VARCHAR", a pyarrow schema,
a StructType; or None."""


_TYPE_ALONE = re.compile(r"\w+(?:\([\d, ]+\))?|(?:array|map)<.*>", re.IGNORECASE)
_OF_PYSPARK = re.compile(r"[<:]|\b(timestamp_ntz|timestamp_ltz|variant|void)\b", re.IGNORECASE)
_CONVERSION_ERRORS = (OverflowError, TypeError, ValueError)


def local_table(data: Any, schema: SchemaLike = None) -> pa.Table:
    """Rows, a frame, or what offers an Arrow stream as a table with the columns of `schema`."""
    names, types = names_and_types(schema)
    if isinstance(data, list | tuple):
        return _of_rows(data, names, types)
    table = arrow_table(data)
    if names is None:
        return table
    if len(names) != table.num_columns:
        raise DataError(f"The data has {table.num_columns} columns, the schema {len(names)}.")
    table = table.rename_columns(list(names))
    if types is None:
        return table
    with aside(large=True) as connection:
        return _cast(connection, table, names, types)


def declared_columns(schema: SchemaLike) -> tuple[tuple[str, str], ...]:
    names, types = names_and_types(schema)
    if not names or types is None:
        raise DataError('A schema with types is needed, such as "id BIGINT, name VARCHAR".')
    _, types = _declared(", ".join(f"{quote(n)} {t}" for n, t in zip(names, types, strict=True)))
    return tuple(zip(names, types, strict=True))


def json_structure(type_: str) -> Any:
    """A DuckDB type as the structure that `json_transform` takes."""
    return _structure(duckdb.sqltype(type_))


def _structure(type_: Any) -> Any:
    match type_.id:
        case "struct":
            return {name: _structure(child) for name, child in type_.children}
        case "list" | "array":
            return [_structure(type_.children[0][1])]
        case _:
            return str(type_)


def names_and_types(schema: SchemaLike) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Names and DuckDB types; None for those that the schema lacks."""
    match schema:
        case None:
            return None, None
        case pa.Schema():
            return tuple(schema.names), tuple(sql_type(field.type) for field in schema)
        case Mapping():
            return tuple(schema), tuple(sql_type(type_) for type_ in schema.values())
        case StructType():
            return tuple(schema.names), tuple(field.dataType.sql() for field in schema)
        case DataType():  # as in PySpark, a type alone is that of the column `value`
            return ("value",), (schema.sql(),)
        case str() if _TYPE_ALONE.fullmatch(schema.strip()):  # as above
            return _declared(f"value {duckdb_type(schema.strip())}")
        case str():
            of_pyspark = _OF_PYSPARK.search(schema) is not None
            return _declared(duckdb_schema(schema) if of_pyspark else schema)
        case _:
            return tuple(map(str, schema)), None


def _declared(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and types in the text of a schema, which DuckDB parses."""
    with aside() as connection:
        try:
            connection.execute(f"CREATE TEMP TABLE declared ({text})")
        except duckdb.Error as error:
            message, _, _ = str(error).partition("\n\nLINE ")
            raise DataError(
                f"The schema {text!r} is not understood: {message}\nWrite names and types, such as "
                '"id BIGINT, name VARCHAR".'
            ) from error
        relation = connection.table("declared")
        return tuple(relation.columns), tuple(map(str, relation.types))


def _of_rows(
    rows: Sequence[Any], names: tuple[str, ...] | None, types: tuple[str, ...] | None
) -> pa.Table:
    if names is None:
        names = row_names(rows)
    columns: list[list[Any]] = [[] for _ in names]
    for number, row in enumerate(rows, 1):
        values = row_values(row, names)
        if len(values) != len(names):
            raise DataError(f"Row {number} has {len(values)} values; the columns are {names}.")
        for column, item in zip(columns, values, strict=True):
            column.append(item)
    with aside() as connection:
        arrays = [
            _array(connection, column, name, None if types is None else types[index])
            for index, (name, column) in enumerate(zip(names, columns, strict=True))
        ]
    return pa.table(arrays, names=list(names))


def row_names(rows: Sequence[Any]) -> tuple[str, ...]:
    """The names in the rows, or PySpark's `_1`, `_2` ... if they have none."""
    if not rows:
        raise DataError("There are no rows to infer the columns from; pass a schema.")
    first = rows[0]
    if isinstance(first, Mapping):
        return tuple(dict.fromkeys(str(name) for row in rows for name in row))
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return tuple(first._fields)
    if isinstance(first, Row) and first.names:
        return first.names
    if isinstance(first, tuple | list):
        return tuple(f"_{number}" for number in range(1, len(first) + 1))
    return ("value",)


def row_values(row: Any, names: Sequence[str]) -> Sequence[Any]:
    match row:
        case Mapping():
            return [row.get(name) for name in names]
        case tuple() | list():
            return row
        case _:
            return (row,)


def _array(
    connection: duckdb.DuckDBPyConnection, values: list[Any], name: str, type_: str | None
) -> pa.Array:
    try:
        if type_ is None:
            return column_of(values)
        declared = connection.sql(f"SELECT NULL::{type_} AS a")
        empty = declared.to_arrow_table()
        has_text = any(isinstance(value, str) for value in values)
        if connection.from_arrow(empty).types == declared.types and not has_text:
            wanted = empty.schema[0].type
            if pa.types.is_nested(wanted):
                values = [as_arrow(value, wanted) for value in values]
            if pa.types.is_integer(wanted):
                _check_whole(values, type_)
            return pa.array(values, wanted)
        # Arrow lacks the type, or some values are text: DuckDB casts all of them from text.
        texts = pa.array([None if value is None else str(value) for value in values], pa.string())
        return _cast(connection, pa.table({"a": texts}), ("a",), (type_,)).column(0)
    except (pa.ArrowException, duckdb.Error, DataError, *_CONVERSION_ERRORS) as error:
        hint = "" if type_ else " Pass a schema with types."
        raise DataError(f"The values of column {name!r} do not fit: {error}.{hint}") from error


def _text(item: Any) -> Any:
    return item if isinstance(item, bytes | bytearray) else str(item)  # Arrow reads UTF-8


def as_arrow(
    item: Any, type_: pa.DataType, text: Callable[[Any], Any] = _text, *, by_name: bool = False
) -> Any:
    """A value, perhaps of Rows and dicts, as Arrow takes it for a type; others are texts there.

    Rows go into structs by place, as in PySpark, unless `by_name`; dicts by name.
    """
    kinds = pa.types
    if item is None:
        return None
    if kinds.is_string(type_):
        return item if isinstance(item, str) else text(item)
    if not kinds.is_nested(type_):
        return item
    of = functools.partial(as_arrow, text=text, by_name=by_name)
    if kinds.is_list(type_):
        if isinstance(item, str | bytes | bytearray):
            raise DataError(f"{item!r} is no list")
        return [of(part, type_.value_type) for part in item]
    if kinds.is_map(type_):
        pairs = item.items() if isinstance(item, Mapping) else item
        return [(of(key, type_.key_type), of(value, type_.item_type)) for key, value in pairs]
    if kinds.is_struct(type_):
        if not isinstance(item, Mapping):
            names = row_names([item]) if by_name else [field.name for field in type_.fields]
            if len(item) != len(names):
                raise DataError(f"{item!r} does not have the {len(names)} fields of a struct")
            item = dict(zip(names, item, strict=True))
        return {field.name: of(item.get(field.name), field.type) for field in type_.fields}
    return item


def _cast(
    connection: duckdb.DuckDBPyConnection,
    table: pa.Table,
    names: Sequence[str],
    types: Sequence[str],
) -> pa.Table:
    connection.execute("SET SESSION arrow_lossless_conversion = true")
    items = ", ".join(
        f"CAST({ident(name)} AS {type_}) AS {ident(name)}"
        for name, type_ in zip(names, types, strict=True)
    )
    try:
        return connection.from_arrow(table).project(items).to_arrow_table()
    except duckdb.Error as error:
        raise DataError(f"The data does not fit the schema: {error}") from error
    finally:
        connection.execute("RESET SESSION arrow_lossless_conversion")


def _check_whole(values: Sequence[Any], type_: str) -> None:
    """Arrow would cut off the fractions of floats."""
    for value in values:
        if isinstance(value, float) and not value.is_integer():
            raise DataError(f"{value} is no whole number, as {type_} wants")
