"""CREATE TABLE, ALTER TABLE and COMMENT on tables of the warehouse.

DuckDB resolves the columns of a CREATE TABLE: it creates the table, without rows, in a database of
its own. What Iceberg lacks (defaults, keys, checks) is refused by name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import duckdb

from minishark.compiler.sql.changes import NewTable
from minishark.compiler.sql.statements import Comment
from minishark.compiler.sql.tokens import Cursor, unquoted
from minishark.errors import QueryError, UnsupportedError
from minishark.expressions import Column, Schema, quote
from minishark.tables.warehouse.types import iceberg_type

_TRANSFORM = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_INTEGER = re.compile(r"\d+")


def supported(table: NewTable) -> NewTable:
    """A table that the warehouse can create.

    Raises:
        UnsupportedError: it has a sort order, or a query without rows.
    """
    if table.order:
        raise UnsupportedError("The warehouse does not sort tables: write ORDER BY in queries.")
    if table.query and not table.has_rows:
        raise UnsupportedError("Write CREATE TABLE with the columns instead of WITH NO DATA.")
    return table


@dataclass(frozen=True, slots=True)
class Described:
    """The columns of a CREATE TABLE."""

    schema: Schema
    required: tuple[str, ...]  # those that are NOT NULL


def described(con: duckdb.DuckDBPyConnection, columns: str) -> Described:
    """The columns in a list of a CREATE TABLE.

    Args:
        con: a connection for this only.
        columns: the list, in brackets.

    Raises:
        QueryError: DuckDB does not accept it.
        UnsupportedError: a column has a default, or there are keys, checks or the like.
    """
    name = "minishark described"
    try:
        con.execute(f"CREATE OR REPLACE TEMP TABLE {quote(name)} {columns}")
        rows = con.execute(
            "SELECT column_name, data_type, is_nullable, column_default FROM duckdb_columns() "
            "WHERE table_name = $1 ORDER BY column_index",
            [name],
        ).fetchall()
        constraints = con.execute(
            "SELECT constraint_type FROM duckdb_constraints() WHERE table_name = $1", [name]
        ).fetchall()
        con.execute(f"DROP TABLE {quote(name)}")
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    other = sorted({kind for (kind,) in constraints} - {"NOT NULL"})
    if other:
        raise UnsupportedError(
            f"Tables of the warehouse have no {other[0]} constraints, only NOT NULL."
        )
    for column, _, _, default in rows:
        if default is not None:
            raise UnsupportedError(
                f"Tables of the warehouse have no defaults: insert the value of column {column!r}."
            )
    return Described(
        tuple(Column(column, type_) for column, type_, _, _ in rows),
        tuple(column for column, _, nullable, _ in rows if not nullable),
    )


def partition_spec(partitions: tuple[str, ...], schema: Any) -> Any:
    """Iceberg's partition spec for the list of a PARTITIONED BY.

    Raises:
        QueryError: it names no column, or no transform.
    """
    from pyiceberg.partitioning import PartitionField, PartitionSpec  # noqa: PLC0415 - an extra

    fields = []
    for number, text in enumerate(partitions):
        transform, column, name = parsed_transform(text, schema)
        source = schema.find_field(column)
        if not transform.can_transform(source.field_type):
            raise QueryError(f"A table can't be partitioned by {text}: it is {source.field_type}.")
        fields.append(PartitionField(source.field_id, 1000 + number, transform, name))
    return PartitionSpec(*fields)


def parsed_transform(text: str, schema: Any) -> tuple[Any, str, str]:
    """A transform, the column that it takes, and the name of its result."""
    from pyiceberg import transforms  # noqa: PLC0415

    found = _TRANSFORM.fullmatch(text.strip())
    if found is None:
        column = _column(unquoted(text.strip()), schema)
        return transforms.IdentityTransform(), column, column
    arguments = [part.strip() for part in Cursor(found[2]).parts()]
    numbers = [int(part) for part in arguments if _INTEGER.fullmatch(part)]
    names = [part for part in arguments if not _INTEGER.fullmatch(part)]
    kind = found[1].lower().removesuffix("s")
    units = {
        "year": transforms.YearTransform,
        "month": transforms.MonthTransform,
        "day": transforms.DayTransform,
        "hour": transforms.HourTransform,
    }
    if len(names) == 1:
        column = _column(unquoted(names[0]), schema)
        if kind in units and not numbers:
            return units[kind](), column, f"{column}_{kind}"
        if kind == "bucket" and len(numbers) == 1 and numbers[0] > 0:
            return transforms.BucketTransform(numbers[0]), column, f"{column}_bucket"
        if kind == "truncate" and len(numbers) == 1 and numbers[0] > 0:
            return transforms.TruncateTransform(numbers[0]), column, f"{column}_trunc"
    raise QueryError(
        f"PARTITIONED BY takes columns, year(c), month(c), day(c), hour(c), bucket(n, c) and "
        f"truncate(n, c), not {text}."
    )


def _column(name: str, schema: Any) -> str:
    for field_ in schema.fields:
        if field_.name.lower() == name.lower():
            return str(field_.name)
    known = ", ".join(field_.name for field_ in schema.fields)
    raise QueryError(f"There is no column {name!r}; the columns are: {known}.")


def alter(transaction: Any, sql: str, con: duckdb.DuckDBPyConnection) -> tuple[str, ...] | None:
    """Stage an ALTER TABLE; the new name if it renames the table, which is for the catalog.

    Raises:
        QueryError: it names a column that is missing, or that exists already.
        UnsupportedError: it is one that Iceberg has no change for.
    """
    text = Cursor(sql)
    text.skip("ALTER", "TABLE")
    text.skip("IF", "EXISTS")
    text.name()
    schema = transaction.table_metadata.schema()
    if text.skip("RENAME", "TO"):
        return text.name()
    if text.skip("SET", "PARTITIONED", "BY"):
        _repartition(transaction, tuple(Cursor(text.brackets()[1:-1]).parts()))
        return None
    verb = text.take()
    text.skip("COLUMN")
    with _changes(), transaction.update_schema() as update:
        match verb:
            case "ADD":
                if text.skip("IF", "NOT", "EXISTS") and _has(text.ahead()[-1], schema):
                    return None
                (column,), required = _one(described(con, f"({text.until()})"))
                if _has(column.name, schema):
                    raise QueryError(f"There is a column {column.name!r} already.")
                if required:
                    raise UnsupportedError("A new column can't be NOT NULL: old rows have none.")
                update.add_column(column.name, iceberg_type(column.name, column.type, count(1)))
            case "DROP":
                if text.skip("IF", "EXISTS") and not _has(text.ahead()[-1], schema):
                    return None
                update.delete_column(_column(text.name()[-1], schema))
            case "RENAME":
                old = _column(text.name()[-1], schema)
                text.skip("TO")
                update.rename_column(old, text.name()[-1])
            case "ALTER":
                _alter_column(update, text, schema, con)
            case _:
                raise UnsupportedError(f"The warehouse does not run ALTER TABLE ... {verb}.")
    return None


def _alter_column(update: Any, text: Cursor, schema: Any, con: duckdb.DuckDBPyConnection) -> None:
    name = _column(text.name()[-1], schema)
    if text.skip("SET", "NOT", "NULL"):
        raise UnsupportedError("A column can't become NOT NULL: old rows may have NULL.")
    if text.skip("DROP", "NOT", "NULL"):
        update.update_column(name, required=False)
        return
    text.skip("SET", "DATA")
    if not text.skip("TYPE"):
        raise UnsupportedError("The warehouse alters types and NOT NULL of columns, nothing else.")
    (column,), _ = _one(described(con, f"({quote(name)} {text.until('USING')})"))
    if text.next == "USING":
        raise UnsupportedError("Types of columns are widened without USING.")
    update.update_column(name, field_type=iceberg_type(name, column.type, count(1)))


def _one(found: Described) -> tuple[Schema, bool]:
    return found.schema, bool(found.required)


def _has(name: str, schema: Any) -> bool:
    return any(field_.name.lower() == name.lower() for field_ in schema.fields)


def _repartition(transaction: Any, partitions: tuple[str, ...]) -> None:
    """Partition rows that are written from now on in another way."""
    schema = transaction.table_metadata.schema()
    with _changes(), transaction.update_spec() as update:
        for field_ in transaction.table_metadata.spec().fields:
            update.remove_field(field_.name)
        for text in partitions:
            transform, column, name = parsed_transform(text, schema)
            update.add_field(column, transform, name)


@contextlib.contextmanager
def _changes() -> Iterator[None]:
    """Errors of pyiceberg's updates, as users get them."""
    from pyiceberg.exceptions import ValidationError  # noqa: PLC0415 - an extra

    try:
        yield
    except (ValueError, ValidationError) as error:
        raise QueryError(f"The table can't be changed so: {error}") from error


def comment(transaction: Any, statement: Comment) -> None:
    """Stage a COMMENT ON TABLE or COMMENT ON COLUMN."""
    if statement.noun == "TABLE":
        if statement.text is None:
            transaction.remove_properties("comment")
        else:
            transaction.set_properties({"comment": statement.text})
        return
    name = _column(statement.path[-1], transaction.table_metadata.schema())
    with _changes(), transaction.update_schema() as update:
        update.update_column(name, doc=statement.text or "")
