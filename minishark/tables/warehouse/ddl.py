"""CREATE TABLE, ALTER TABLE and COMMENT on tables of the warehouse.

DuckDB resolves the columns of a CREATE TABLE: it creates the table, without rows, in a database of
its own. What the warehouse lacks (defaults, keys, checks) is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb

from minishark.compiler.sql.changes import NewTable
from minishark.compiler.sql.statements import Comment
from minishark.compiler.sql.tokens import Cursor, unquoted
from minishark.errors import QueryError, UnsupportedError
from minishark.model.expressions import Column, Schema, quote
from minishark.tables.warehouse.contract import Described, TableChange, Transform, same_name

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


def parsed_partitions(partitions: Sequence[str], columns: Schema) -> tuple[Transform, ...]:
    """The list of a PARTITIONED BY.

    Raises:
        QueryError: it names no column, or no transform.
    """
    return tuple(_parsed_transform(text, columns) for text in partitions)


def _parsed_transform(text: str, columns: Schema) -> Transform:
    call = _TRANSFORM.fullmatch(text.strip())
    if call is None:
        return Transform("identity", _column(unquoted(text.strip()), columns))
    arguments = [part.strip() for part in Cursor(call[2]).parts()]
    numbers = [int(part) for part in arguments if _INTEGER.fullmatch(part)]
    names = [part for part in arguments if not _INTEGER.fullmatch(part)]
    kind = call[1].lower().removesuffix("s")
    if len(names) == 1:
        column = _column(unquoted(names[0]), columns)
        if kind in ("year", "month", "day", "hour") and not numbers:
            return Transform(kind, column)
        if kind in ("bucket", "truncate") and len(numbers) == 1 and numbers[0] > 0:
            return Transform(kind, column, numbers[0])
    raise QueryError(
        f"PARTITIONED BY takes columns, year(c), month(c), day(c), hour(c), bucket(n, c) and "
        f"truncate(n, c), not {text}."
    )


def _column(name: str, columns: Schema) -> str:
    own = same_name(name, (column.name for column in columns))
    if own is None:
        listed = ", ".join(column.name for column in columns)
        raise QueryError(f"There is no column {name!r}; the columns are: {listed}.")
    return own


def alter(change: TableChange, sql: str, con: duckdb.DuckDBPyConnection) -> tuple[str, ...] | None:
    """Make the change of an ALTER TABLE; the new name if it renames the table.

    Raises:
        QueryError: it names a column that is missing, or that exists already.
        UnsupportedError: it is one that the warehouse does not have.
    """
    text = Cursor(sql)
    text.skip("ALTER", "TABLE")
    text.skip("IF", "EXISTS")
    text.name()
    columns = change.version.columns
    if text.skip("RENAME", "TO"):
        return text.name()
    if text.skip("SET", "PARTITIONED", "BY"):
        change.repartition(parsed_partitions(tuple(Cursor(text.brackets()[1:-1]).parts()), columns))
        return None
    verb = text.take()
    text.skip("COLUMN")
    match verb:
        case "ADD":
            if text.skip("IF", "NOT", "EXISTS") and _has(text.ahead()[-1], columns):
                return None
            new = described(con, f"({text.until()})")
            (column,) = new.schema
            if _has(column.name, columns):
                raise QueryError(f"There is a column {column.name!r} already.")
            if new.required:
                raise UnsupportedError("A new column can't be NOT NULL: old rows have none.")
            change.add_column(column)
        case "DROP":
            if text.skip("IF", "EXISTS") and not _has(text.ahead()[-1], columns):
                return None
            change.drop_column(_column(text.name()[-1], columns))
        case "RENAME":
            old = _column(text.name()[-1], columns)
            text.skip("TO")
            change.rename_column(old, text.name()[-1])
        case "ALTER":
            _alter_column(change, text, con)
        case _:
            raise UnsupportedError(f"The warehouse does not run ALTER TABLE ... {verb}.")
    return None


def _alter_column(change: TableChange, text: Cursor, con: duckdb.DuckDBPyConnection) -> None:
    name = _column(text.name()[-1], change.version.columns)
    if text.skip("SET", "NOT", "NULL"):
        raise UnsupportedError("A column can't become NOT NULL: old rows may have NULL.")
    if text.skip("DROP", "NOT", "NULL"):
        change.drop_not_null(name)
        return
    text.skip("SET", "DATA")
    if not text.skip("TYPE"):
        raise UnsupportedError("The warehouse alters types and NOT NULL of columns, nothing else.")
    (column,) = described(con, f"({quote(name)} {text.until('USING')})").schema
    if text.next == "USING":
        raise UnsupportedError("Types of columns are widened without USING.")
    change.change_type(name, column.type)


def _has(name: str, columns: Schema) -> bool:
    return same_name(name, (column.name for column in columns)) is not None


def comment(change: TableChange, statement: Comment) -> None:
    """Make the change of a COMMENT ON TABLE or COMMENT ON COLUMN."""
    of_table = statement.noun == "TABLE"
    column = "" if of_table else _column(statement.path[-1], change.version.columns)
    change.comment(column, statement.text)
