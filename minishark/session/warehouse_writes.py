"""Statements that write tables of the warehouse.

They run their queries on the cluster, where tasks write files; then one commit makes these part of
the table. In a transaction, the commit waits for COMMIT.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.changes import Change, Delete, Insert, Merge, NewTable, Update
from minishark.errors import AlreadyExistsError, QueryError, UnsupportedError
from minishark.expressions import Schema, quote
from minishark.query.sinks import CollectRows
from minishark.session.engine import Engine
from minishark.session.file_writer import counted
from minishark.session.scope import Scope
from minishark.session.warehouse_tables import WarehouseTables, WarehouseTransaction
from minishark.tables.store import table_schema
from minishark.tables.warehouse import ddl, dml
from minishark.tables.warehouse.catalog import TableName, WarehouseCatalog
from minishark.tables.warehouse.commits import (
    RETRIES,
    append,
    committing,
    replace,
    replace_schema,
)
from minishark.tables.warehouse.sink import WriteTable, WrittenRows
from minishark.tables.warehouse.source import (
    FixedSource,
    LocatedRows,
    WarehouseSource,
    as_it_is,
    remove_files,
)
from minishark.tables.warehouse.types import duckdb_schema, iceberg_schema
from minishark.tables.warehouse.writer import WriteRows

SEVERAL = (
    "A transaction changes one table of the warehouse: {} can't be part of this one, which has "
    "changed {}."
)


@dataclass(frozen=True, slots=True)
class WarehouseWrites:
    """What changes tables of the warehouse."""

    tables: WarehouseTables

    @property
    def engine(self) -> Engine:
        return self.tables.engine

    @property
    def scope(self) -> Scope:
        return self.tables.scope

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
                new = kinds.rewritten(statement, dml.at_moment(sql, datetime.now(UTC)))
                assert isinstance(new, kinds.ChangeRows), "it tells the time otherwise"
                return self.change(dml.supported(new.read()), name)
        raise UnsupportedError(f"Write INSERT INTO {name} FROM 'file' instead of COPY.")

    def drop(self, name: TableName) -> None:
        self.refuse_in_transaction(f"DROP TABLE {name}")
        self.tables.forget(name)
        self.catalog.drop(name)

    def _alter(self, sql: str, name: TableName) -> None:
        with (
            contextlib.closing(self.scope.planning.connection()) as con,
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
        engine, scope, catalog = self.engine, self.scope, self.catalog
        old = catalog.find(wanted.schema, wanted.table)
        if old is not None and not statement.replaces:
            if statement.exists_ok:
                return counted(0)
            raise AlreadyExistsError(f"There is a table called {old} already.")
        name = old or catalog.new_name(wanted.schema, wanted.table)
        query = self.tables.renamed(statement.query) if statement.query else ""
        if query:
            with engine.up_to_date(scope):
                found = ddl.Described(table_schema(scope.planning.bind(query).schema), ())
        else:
            with contextlib.closing(scope.planning.connection()) as con:
                found = ddl.described(con, statement.columns)
        schema = iceberg_schema(found.schema, found.required)
        spec = ddl.partition_spec(statement.partitions, schema)
        if old is not None:
            return self._replaced(old, schema, spec, query)
        transaction = catalog.new_table(name, schema, spec, statement.properties)
        location = transaction.table_metadata.location
        try:
            written = None
            if query:
                written = self._written(name, transaction, _typed(query, transaction))
                append(transaction, written.files, _write_id())
            with committing(name):
                transaction.commit_transaction()
        except BaseException:
            catalog.abandon(name, location)
            raise
        return counted(written.rows if written is not None else 0)

    def _replaced(self, name: TableName, schema: Any, spec: Any, query: str) -> pa.Table:
        """CREATE OR REPLACE: a new version of a table, with other columns and rows."""
        with self.changed(name) as transaction:
            # The old files first: how they are partitioned says something about old columns.
            replace(transaction, [*_files(self._table(name)).values()], (), _write_id())
            replace_schema(transaction, schema, spec)
            written = None
            if query:
                written = self._written(name, transaction, _typed(query, transaction))
                append(transaction, written.files, _write_id())
        self.tables.forget(name)  # only now: the query may read the table that it replaces
        return counted(written.rows if written is not None else 0)

    # Changes of rows

    def change(self, change: Change, name: TableName) -> pa.Table:
        match change:
            case Insert():
                return counted(self._insert(change, name))
            case Delete():
                return counted(self._delete(change, name))
            case Update():
                return counted(self._update(change, name))
            case Merge():
                return counted(self._merge(change, name))

    def _insert(self, change: Insert, name: TableName) -> int:
        with self.changed(name) as transaction:
            target = _target(name, transaction)
            names: list[str] = []
            if change.query:
                bound = self._bound(f"{change.ctes}{change.query}")
                names = [column.name for column in bound]
            sql = dml.inserted(change, target, names)
            written = self._written(name, transaction, sql)
            append(transaction, written.files, _write_id())
            return written.rows

    def _delete(self, change: Delete, name: TableName) -> int:
        with self.changed(name) as transaction:
            table = self._table(name)
            files = _files(table)
            with self._located(name, table) as (located, of):
                if self._varies(change.condition, change.using, change.ctes):
                    matching = self._rows(dml.matching_files(_all(change), located))
                    counts = {}
                    affected = dict(matching)
                else:
                    counts = dict(self._rows(dml.matching_files(change, located)))
                    affected = counts
                whole = {p for p, n in counts.items() if n == files[p].record_count}
                left = frozenset(affected) - whole
                written = WrittenRows((), 0)
                if left:
                    with of(left) as some:
                        sql = dml.kept(change, _target(name, transaction), some)
                        written = self._written(name, transaction, sql)
                if affected:
                    replace(transaction, [files[p] for p in affected], written.files, _write_id())
                return sum(affected.values()) - (written.rows if not counts else 0)

    def _update(self, change: Update, name: TableName) -> int:
        with self.changed(name) as transaction:
            table = self._table(name)
            files = _files(table)
            target = _target(name, transaction)
            for column, _ in change.values:
                target.position(column)
            with self._located(name, table) as (located, of):
                affected = frozenset(files)
                if not self._varies(change.condition, change.source, change.ctes):
                    rows = self._rows(dml.matching_files(change, located))
                    affected = frozenset(path for path, _ in rows)
                if not affected:
                    return 0
                with of(affected) as some:
                    sql = dml.updated(change, target, some)
                    written = self._written(name, transaction, sql, counts=True)
                replace(transaction, [files[p] for p in affected], written.files, _write_id())
                return written.changed

    def _merge(self, change: Merge, name: TableName) -> int:
        conditions = (change.condition, *(clause.condition for clause in change.clauses))
        if self._varies(change.source, change.ctes, *conditions):
            raise UnsupportedError(
                "MERGE reads its source several times, so it takes no random(), uuid(), LIMIT or "
                "the like there and in conditions: store the source as a table first."
            )
        change = dataclasses.replace(change, source_names=self._names(change))
        with self.changed(name) as transaction:
            table = self._table(name)
            files = _files(table)
            target = _target(name, transaction)
            with self._located(name, table) as (located, of):
                rows = self._rows(dml.merged_files(change, located))
                if any(changes > 1 for _, _, changes, _ in rows):
                    raise QueryError(
                        "MERGE INTO changes a row of the table more than once: several rows of "
                        "the source match it. Leave one of them in the source."
                    )
                affected = {path: int(n) for path, n, _, _ in rows}
                several = any(partners > 1 for _, _, _, partners in rows)
                written = WrittenRows((), 0)
                count = sum(affected.values())
                if affected:
                    with of(frozenset(affected)) as some:
                        sql = dml.merged(change, target, some, several=several)
                        written = self._written(name, transaction, sql, counts=True)
                added = WrittenRows((), 0)
                inserts = dml.merged_inserts(change, target, located)
                if inserts is not None:
                    added = self._written(name, transaction, inserts)
                new = (*written.files, *added.files)
                if affected:
                    replace(transaction, [files[p] for p in affected], new, _write_id())
                else:
                    append(transaction, new, _write_id())
                return count + added.rows

    def _varies(self, *texts: str) -> bool:
        """Whether two queries might find different rows for these parts of a statement."""
        return any(map(self.scope.planning.varies, texts))

    def _table(self, name: TableName) -> Any:
        """Pyiceberg's table as it is now, which no other thread changes."""
        return as_it_is(self.tables.current(name))

    def _bound(self, sql: str) -> Schema:
        with self.engine.up_to_date(self.scope):
            return self.scope.planning.bind(self.tables.renamed(sql)).schema

    def _names(self, change: Merge) -> tuple[str, ...]:
        bound = self._bound(f"{change.ctes}SELECT * FROM {change.source}")
        return tuple(column.name for column in bound)

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.engine.up_to_date(self.scope):
            answer, _ = self.engine.run(self.tables.renamed(sql), CollectRows(), self.scope)
        return list(zip(*(column.to_pylist() for column in answer.columns), strict=True))

    def _written(
        self, name: TableName, transaction: Any, sql: str, *, counts: bool = False
    ) -> WrittenRows:
        """The rows of a query as data files; removed again if that fails."""
        metadata = transaction.table_metadata
        io = transaction._table.io  # noqa: SLF001 - a new table has it nowhere else
        write = WriteRows(
            table=str(name),
            location=metadata.properties.get("write.data.path", f"{metadata.location}/data"),
            schema=metadata.schema().model_dump_json(),
            spec=metadata.spec().model_dump_json(),
            write_id=_write_id(),
            properties=dict(metadata.properties),
            io={key: str(value) for key, value in io.properties.items()},
            counts=counts,
        )
        try:
            with self.engine.up_to_date(self.scope):
                renamed = self.tables.renamed(sql)
                written, _ = self.engine.run(renamed, WriteTable(write), self.scope)
        except BaseException:
            remove_files(io, write.location, write.write_id)
            raise
        if self.tables.transaction is not None:
            self.tables.transaction.files += [file.file_path for file in written.files]
        return written

    @contextlib.contextmanager
    def _located(
        self, name: TableName, table: Any
    ) -> Iterator[tuple[str, Callable[[frozenset[str]], Any]]]:
        """A relation of a table's rows with their places, and one of some of its files."""
        snapshot = WarehouseSource(name=str(name), current=lambda: table).resolve()

        @contextlib.contextmanager
        def of(files: frozenset[str] | None) -> Iterator[str]:
            sources = self.engine.sources
            source = FixedSource(str(name), LocatedRows(snapshot, files))
            registered = sources.add_unnamed(source).name
            try:
                yield quote(registered)
            finally:
                sources.remove(registered)

        with of(None) as located:
            yield located, of

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
        self.scope.transaction.begin(
            lambda: WarehouseTransaction(
                catalog=self.catalog, sources=self.engine.sources, is_lazy=is_lazy
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


def _write_id() -> str:
    return secrets.token_hex(8)


def _target(name: TableName, transaction: Any) -> dml.Target:
    return dml.Target(str(name), duckdb_schema(transaction.table_metadata.schema()))


def _typed(query: str, transaction: Any) -> str:
    """The rows of a query in the types of the table that is made of them."""
    target = dml.Target("", duckdb_schema(transaction.table_metadata.schema()))
    names = [f"v{i}" for i in range(len(target.schema))]
    values = dict(enumerate(names))
    return f"SELECT {target.typed(values)} FROM ({query}) AS v({', '.join(names)})"


def _files(table: Any) -> Mapping[str, Any]:
    """The data files of a table by path, as pyiceberg describes them."""
    return {task.file.file_path: task.file for task in table.scan().plan_files()}


def _all(change: Delete) -> Delete:
    return dataclasses.replace(change, condition="", using="")
