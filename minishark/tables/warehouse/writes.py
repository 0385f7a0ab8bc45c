"""Statements that write tables of the warehouse.

They run their queries on the cluster, where tasks write files; then one commit makes these part of
the table. In a transaction, the commit waits for COMMIT.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.change_queries import at_moment
from minishark.compiler.sql.changes import NewTable, parse_change
from minishark.errors import AlreadyExistsError, UnsupportedError
from minishark.tables.changes import Changes, NotHereError
from minishark.tables.store import table_schema
from minishark.tables.stores import StoreContext, counted
from minishark.tables.warehouse import ddl
from minishark.tables.warehouse.changed_table import WarehouseTable
from minishark.tables.warehouse.contract import Catalog, Described, TableChange, TableName
from minishark.tables.warehouse.tables import (
    WarehouseTables,
    WarehouseTransaction,
    committed_or_undone,
)

SEVERAL = (
    "A transaction changes one table of the warehouse: {} can't be part of this one, which has "
    "changed {}."
)


@dataclass(frozen=True, slots=True)
class WarehouseWrites:
    """What changes tables of the warehouse."""

    tables: WarehouseTables

    @property
    def context(self) -> StoreContext:
        return self.tables.context

    @property
    def catalog(self) -> Catalog:
        return self.tables.catalog

    def write_to(self, statement: kinds.Write, name: TableName) -> pa.Table:
        match statement:
            case kinds.DropTable():
                self.drop(name)
                return counted(0)
            case kinds.AlterTable(sql=sql):
                self._alter(sql, name)
                return counted(0)
            case kinds.ChangeRows(sql=sql):
                return self.change(at_moment(sql, datetime.now(UTC)), name)
        raise UnsupportedError(f"Write INSERT INTO {name} FROM 'file' instead of COPY.")

    def drop(self, name: TableName) -> None:
        self.refuse_in_transaction(f"DROP TABLE {name}")
        self.tables.forget(name)
        self.catalog.drop(name)

    def _alter(self, sql: str, name: TableName) -> None:
        with (
            contextlib.closing(self.context.planning.connection()) as con,
            self.changed(name) as change,
        ):
            renamed_to = ddl.alter(change, sql, con)
        if renamed_to is not None:
            self.refuse_in_transaction(f"ALTER TABLE {name} RENAME")
            self.tables.forget(name)
            to = self.tables.resolved(renamed_to) if len(renamed_to) > 1 else None
            self.catalog.rename(name, to or TableName(name.schema, renamed_to[-1]))

    def create(self, statement: NewTable, wanted: TableName) -> pa.Table:
        ddl.supported(statement)
        self.refuse_in_transaction(f"CREATE TABLE {wanted}")
        context, catalog = self.context, self.catalog
        old = catalog.find(wanted.schema, wanted.table)
        if old is not None and not statement.replaces:
            if statement.exists_ok:
                return counted(0)
            raise AlreadyExistsError(f"There is a table called {old} already.")
        name = old or catalog.new_name(wanted.schema, wanted.table)
        query = self.tables.renamed(statement.query) if statement.query else ""
        if query:
            with context.up_to_date():
                columns = Described(table_schema(context.planning.bind(query).schema))
        else:
            with contextlib.closing(context.planning.connection()) as con:
                columns = ddl.described(con, statement.columns)
        partitions = ddl.parsed_partitions(statement.partitions, columns.schema)
        if old is not None:
            with self.changed(name) as change:
                change.redefine(columns, partitions)
                rows = self._filled(name, change, query)
            self.tables.forget(name)  # only now: the query may read the table that it replaces
            return counted(rows)
        with self._committed(
            catalog.create(name, columns, partitions, statement.properties)
        ) as new:
            rows = self._filled(name, new, query)
        return counted(rows)

    def _filled(self, name: TableName, change: TableChange, query: str) -> int:
        """Give a new table the rows of a query; how many."""
        return self._table(name, change).filled(query) if query else 0

    def change(self, sql: str, name: TableName) -> pa.Table:
        """Run an INSERT, DELETE, UPDATE or MERGE on a table."""
        parsed, context = parse_change(sql), self.context
        assert parsed is not None, "it is one of these"
        with self.changed(name) as change, context.up_to_date():
            table = self._table(name, change)
            changes = Changes(
                planning=context.planning, scratch=context.scratch, run=table.run, bind=table.bind
            )
            try:
                return changes.apply(sql, parsed, table)
            except NotHereError as error:
                raise error.error from error

    def _table(self, name: TableName, change: TableChange) -> WarehouseTable:
        return WarehouseTable(name, change, self.context, self.tables.registered)

    @contextlib.contextmanager
    def changed(self, name: TableName) -> Iterator[TableChange]:
        """A change of a table, committed after the block; in a transaction, that waits."""
        open_ = self.tables.transaction
        if open_ is None:
            with self._committed(self.catalog.change(name)) as change:
                yield change
            return
        if open_.change is None:
            open_.name, open_.change = name, self.catalog.change(name)
        elif open_.name != name:
            raise UnsupportedError(SEVERAL.format(name, open_.name))
        yield open_.change

    @contextlib.contextmanager
    def _committed(self, change: TableChange) -> Iterator[TableChange]:
        """A block whose change is committed after it, or undone if it fails."""
        try:
            yield change
        except BaseException:
            change.roll_back()
            raise
        committed_or_undone(change)

    # Transactions

    def begin(self, *, is_lazy: bool = False) -> None:
        """Begin a transaction over a table of the warehouse."""
        self.context.transaction.begin(
            lambda: WarehouseTransaction(sources=self.context.sources, is_lazy=is_lazy)
        )

    def refuse_in_transaction(self, what: str) -> None:
        open_ = self.tables.transaction
        if open_ is not None and open_.refuses:
            raise UnsupportedError(f"{what} can't be part of a transaction: COMMIT first.")

    def refuse_memory_write(self, statement: kinds.Write) -> None:
        open_ = self.tables.transaction
        if open_ is not None and open_.refuses:
            changed = open_.name or "nothing yet"
            target = statement.target.name if statement.target is not None else "a table in memory"
            raise UnsupportedError(SEVERAL.format(target, changed))
