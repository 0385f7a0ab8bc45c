"""INSERT, DELETE, UPDATE and MERGE on tables in the cluster's memory, at the cost of what changes.

DuckDB says what a statement means: an INSERT runs in the scratch database, on an empty table with
the columns, defaults and constraints of the real one, and the rows that are in it afterwards become
a delta. A query that gives these rows runs on the cluster before.

What can't be done so is left to the scratch database with all rows of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from minishark.catalog import Table
from minishark.compiler.sql.statements import Target
from minishark.compiler.stages.fragment import bucket_column
from minishark.errors import QueryError, UnsupportedError
from minishark.expressions import ColumnRef, quote
from minishark.query.sinks import CollectRows
from minishark.session.engine import Engine
from minishark.session.scratch_database import ROWS, Shell
from minishark.tables.warehouse import dml


@dataclass(frozen=True, slots=True)
class MemoryWrites:
    """Runs statements that change rows of tables in memory; the caller lets one write at a time."""

    engine: Engine

    def run(self, sql: str, target: Target) -> pa.Table | None:
        """Run a statement; its answer, or None if only the scratch database can run it."""
        table = self._table(target.name)
        if table is None:
            return None
        match dml.verb_of(sql):
            case "INSERT":
                return self._insert(sql, table)
            case _:
                return None

    def _table(self, name: str) -> Table | None:
        """The table that a statement changes; None if its rows are not in the cluster alone."""
        engine = self.engine
        if engine.scratch.must_keep(name):
            return None
        with engine.up_to_date():
            table = engine.tables.catalog.find(name)
        return table if table is not None and table.is_computed else None

    # INSERT

    def _insert(self, sql: str, table: Table) -> pa.Table | None:
        engine = self.engine
        if engine.planning.reads_nothing(sql, table.name):
            made = engine.scratch.insert(sql, _shell(table))
            self._add(table, made.rows)
            return made.answer
        try:
            change = dml.parse_change(sql)
            assert isinstance(change, dml.Insert), "it begins like an INSERT"
            if not change.query:  # DEFAULT VALUES
                return None
            given, _ = engine.run(f"{change.ctes}{change.query}", CollectRows(lossless=True))
        except (UnsupportedError, QueryError):
            return None  # DuckDB says what is wrong, or knows what minishark does not
        how = "BY NAME " if change.by_name else ""
        if change.columns is not None:
            how = f"({', '.join(map(quote, change.columns))}) "
        insert = f"INSERT INTO {quote(table.name)} {how}FROM {quote(ROWS)}"
        made = engine.scratch.insert(insert, _shell(table), given)
        self._add(table, made.rows)
        return made.answer

    def _add(self, table: Table, rows: pa.Table) -> None:
        """Publish the version of a table with more rows, the last column being their buckets."""
        if not rows.num_rows:
            return
        tables, last = self.engine.tables, rows.num_columns - 1
        buckets = rows.column(last) if table.is_hashed else None
        rows = rows.remove_column(last)
        tables.changed(table, tables.deltas.with_rows(table, rows, buckets), rows)


def _shell(table: Table) -> Shell:
    """What an empty table is like that stands for another one."""
    columns = ", ".join(f"{quote(column.name)} {column.type}" for column in table.schema)
    return Shell(
        name=table.name,
        create=f"CREATE TABLE memory.main.{quote(table.name)} ({columns})",
        types=tuple(column.type for column in table.schema),
        bucket=_bucket(table),
    )


def _bucket(table: Table) -> str:
    """An expression for the number of a row's partition."""
    if not table.is_hashed:
        return "0 AS bucket"
    names = [quote(column.name) for column in table.schema]
    positions = {column.name.lower(): i for i, column in enumerate(table.schema)}
    keys = [positions[name.lower()] for name in table.partition_by]
    columns = [ColumnRef(i, table.schema[i].type) for i in keys]
    return bucket_column(columns, names, len(table.partitions))
