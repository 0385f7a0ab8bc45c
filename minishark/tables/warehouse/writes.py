"""Statements that write tables of the warehouse.

They run their queries on the cluster, where tasks write files; then one commit makes these part of
the table. In a transaction, the commit waits for COMMIT.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.change_queries import Target, at_moment
from minishark.compiler.sql.changes import NewTable, parse_change
from minishark.errors import AlreadyExistsError, UnsupportedError
from minishark.tables.changes import Changes, NotHereError
from minishark.tables.store import table_schema
from minishark.tables.stores import StoreContext, counted
from minishark.tables.warehouse import ddl
from minishark.tables.warehouse.catalog import TableName, WarehouseCatalog
from minishark.tables.warehouse.changed_table import WarehouseTable
from minishark.tables.warehouse.commits import RETRIES, committing, replace, replace_schema
from minishark.tables.warehouse.tables import WarehouseTables, WarehouseTransaction
from minishark.tables.warehouse.types import iceberg_schema

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
    def catalog(self) -> WarehouseCatalog:
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
            self.changed(name) as transaction,
        ):
            renamed_to = ddl.alter(transaction, sql, con)
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
                found = ddl.Described(table_schema(context.planning.bind(query).schema), ())
        else:
            with contextlib.closing(context.planning.connection()) as con:
                found = ddl.described(con, statement.columns)
        schema = iceberg_schema(found.schema, found.required)
        spec = ddl.partition_spec(statement.partitions, schema)
        if old is not None:
            return self._replaced(old, schema, spec, query)
        transaction = catalog.new_table(name, schema, spec, statement.properties)
        location = transaction.table_metadata.location
        try:
            rows = self._filled(name, transaction, query) if query else 0
            with committing(name):
                transaction.commit_transaction()
        except BaseException:
            catalog.abandon(name, location)
            raise
        return counted(rows)

    def _replaced(self, name: TableName, schema: Any, spec: Any, query: str) -> pa.Table:
        """CREATE OR REPLACE: a new version of a table, with other columns and rows."""
        with self.changed(name) as transaction:
            # The old files first: how they are partitioned says something about old columns.
            old = self._table(name, transaction).emptied().made.removed
            replace(transaction, old, (), secrets.token_hex(8))
            replace_schema(transaction, schema, spec)
            rows = self._filled(name, transaction, query) if query else 0
        self.tables.forget(name)  # only now: the query may read the table that it replaces
        return counted(rows)

    def _filled(self, name: TableName, transaction: Any, query: str) -> int:
        """Add the rows of a query to a table without rows; how many there are."""
        new = transaction._table  # noqa: SLF001 - it is nowhere else
        table = self._table(name, transaction, new)
        names = [f"v{i}" for i in range(len(table.schema))]
        selected = Target(table.called, table.schema).typed(dict(enumerate(names)))
        added = table.added(
            f"SELECT {selected} FROM ({query}) AS v({', '.join(names)})", told=query
        )
        table.publish(None, added)
        return added.rows

    # Changes of rows

    def change(self, sql: str, name: TableName) -> pa.Table:
        """Run an INSERT, DELETE, UPDATE or MERGE on a table."""
        change, context = parse_change(sql), self.context
        assert change is not None, "it is one of these"
        with self.changed(name) as transaction, context.up_to_date():
            table = self._table(name, transaction)
            changes = Changes(
                planning=context.planning, scratch=context.scratch, run=table.run, bind=table.bind
            )
            try:
                return changes.apply(sql, change, table)
            except NotHereError as error:
                raise error.error from error

    def _table(self, name: TableName, transaction: Any, table: Any = None) -> WarehouseTable:
        return WarehouseTable(
            name,
            table or self.tables.current(name),
            transaction,
            self.context,
            resolve=self.tables.registered,
            on_written=self._note,
        )

    def _note(self, files: Sequence[str]) -> None:
        """Keep in mind that a transaction has written files."""
        if self.tables.transaction is not None:
            self.tables.transaction.files += files

    @contextlib.contextmanager
    def changed(self, name: TableName) -> Iterator[Any]:
        """Pyiceberg's transaction for a change of a table, committed after the block."""
        open_ = self.tables.transaction
        if open_ is not None:
            if open_.name is None:
                open_.name, open_.iceberg = name, self._begun(name)
            elif open_.name != name:
                raise UnsupportedError(SEVERAL.format(name, open_.name))
            yield open_.iceberg
            return
        transaction = self._begun(name)
        try:
            with committing(name):
                yield transaction
                transaction.commit_transaction()
        finally:
            self.catalog.forget(name)

    def _begun(self, name: TableName) -> Any:
        table = self.catalog.load(name)
        properties = {**RETRIES, **table.metadata.properties}
        copy = IcebergTable(
            (name.schema, name.table),
            table.metadata.model_copy(update={"properties": properties}),
            table.metadata_location,
            table.io,
            table.catalog,
        )
        return copy.transaction()

    # Transactions

    def begin(self, *, is_lazy: bool = False) -> None:
        """Begin a transaction over a table of the warehouse."""
        self.context.transaction.begin(
            lambda: WarehouseTransaction(
                catalog=self.catalog, sources=self.context.sources, is_lazy=is_lazy
            )
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
