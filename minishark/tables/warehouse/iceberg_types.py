"""DuckDB's types as Iceberg's, and columns as Iceberg's schemas. Pure.

Types that Iceberg lacks are stored in a wider one where every value has a place there (TINYINT in
`int`, UBIGINT in `decimal(20, 0)`, ENUM and JSON in `string`); others are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import duckdb
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from minishark.errors import UnsupportedError
from minishark.model.expressions import Column, Schema, quote

_SIMPLE: dict[str, type[IcebergType]] = {
    "boolean": BooleanType,
    "tinyint": IntegerType,
    "smallint": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "utinyint": IntegerType,
    "usmallint": IntegerType,
    "uinteger": LongType,
    "float": FloatType,
    "double": DoubleType,
    "varchar": StringType,
    "enum": StringType,
    "blob": BinaryType,
    "date": DateType,
    "time": TimeType,
    "timestamp": TimestampType,
    "timestamp_s": TimestampType,
    "timestamp_ms": TimestampType,
    "timestamp with time zone": TimestamptzType,
    "uuid": UUIDType,
}
_DECIMALS = {"ubigint": (20, 0), "hugeint": (38, 0)}
_BACK: dict[type[IcebergType], str] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    StringType: "VARCHAR",
    BinaryType: "BLOB",
    FixedType: "BLOB",
    DateType: "DATE",
    TimeType: "TIME",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMP WITH TIME ZONE",
    UUIDType: "UUID",
}


def iceberg_type(column: str, type_: str, ids: Iterator[int]) -> IcebergType:
    """The type in which a column is stored.

    Args:
        column: its name, for messages.
        type_: its type in DuckDB.
        ids: gives the ids of nested fields.

    Raises:
        UnsupportedError: Iceberg has nothing that holds its values.
    """
    return _stored(column, duckdb.sqltype(type_), ids)


def _stored(column: str, type_: Any, ids: Iterator[int]) -> IcebergType:
    kind = type_.id
    if kind in _SIMPLE:
        return _SIMPLE[kind]()
    if kind in _DECIMALS:
        return DecimalType(*_DECIMALS[kind])
    match kind:
        case "decimal":
            (_, precision), (_, scale) = type_.children
            return DecimalType(precision, scale)
        case "list" | "array":
            number = next(ids)
            element = _stored(column, type_.children[0][1], ids)
            return ListType(element_id=number, element=element, element_required=False)
        case "map":
            key, value = next(ids), next(ids)
            (_, key_type), (_, value_type) = type_.children
            return MapType(
                key_id=key,
                key_type=_stored(column, key_type, ids),
                value_id=value,
                value_type=_stored(column, value_type, ids),
                value_required=False,
            )
        case "struct":
            fields = [(next(ids), name, child) for name, child in type_.children]
            return StructType(
                *(
                    NestedField(number, name, _stored(column, child, ids), required=False)
                    for number, name, child in fields
                )
            )
    raise UnsupportedError(
        f"Column {column!r} has type {type_}, which Iceberg tables do not have: cast it, for "
        "example to VARCHAR."
    )


def iceberg_schema(columns: Schema, required: Sequence[str] = ()) -> IcebergSchema:
    """An Iceberg schema of columns; `required` are NOT NULL."""
    ids = count(1)
    tops = [(next(ids), column) for column in columns]
    fields = [
        NestedField(
            number,
            column.name,
            iceberg_type(column.name, column.type, ids),
            required=column.name in required,
        )
        for number, column in tops
    ]
    return IcebergSchema(*fields)


def duckdb_type(type_: IcebergType) -> str:
    """The type that a stored column has in queries.

    Raises:
        UnsupportedError: DuckDB has none, or minishark does not read it.
    """
    match type_:
        case DecimalType():
            return f"DECIMAL({type_.precision},{type_.scale})"
        case ListType():
            return f"{duckdb_type(type_.element_type)}[]"
        case MapType():
            return f"MAP({duckdb_type(type_.key_type)}, {duckdb_type(type_.value_type)})"
        case StructType():
            fields = [f"{quote(f.name)} {duckdb_type(f.field_type)}" for f in type_.fields]
            return f"STRUCT({', '.join(fields)})"
    for kind, name in _BACK.items():
        if isinstance(type_, kind):
            return name
    raise UnsupportedError(f"minishark does not read Iceberg's type {type_}.")


def duckdb_schema(schema: IcebergSchema) -> Schema:
    """The columns of an Iceberg table, with the types that they have in queries."""
    return tuple(
        Column(field.name, str(duckdb.sqltype(duckdb_type(field.field_type))))
        for field in schema.fields
    )
