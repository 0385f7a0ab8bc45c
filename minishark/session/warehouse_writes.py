"""Statements that write tables of the warehouse.

They run their queries on the cluster, where tasks write files; then one commit makes these part of
the table. In a transaction, the commit waits for COMMIT.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.changes import Change, Delete, Insert, Merge, NewTable, Update
from minishark.errors import AlreadyExistsError, QueryError, UnsupportedError
from minishark.model.expressions import Schema, quote
from minishark.query.sinks import CollectRows
from minishark.session.engine import Engine
from minishark.session.file_writer import counted
from minishark.session.scope import Scope
from minishark.session.warehouse_tables import (
    WarehouseTables,
    WarehouseTransaction,
    committed_or_undone,
)
from minishark.tables.store import table_schema
from minishark.tables.warehouse import ddl, dml
from minishark.tables.warehouse.contract import (
    Catalog,
    Described,
    TableChange,
    TableName,
    TableVersion,
)
from minishark.tables.warehouse.sink import WriteTable, WrittenRows
from minishark.tables.warehouse.source import FixedSource, LocatedRows
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
                columns = Described(table_schema(scope.planning.bind(query).schema))
        else:
            with contextlib.closing(scope.planning.connection()) as con:
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
        if not query:
            return 0
        written = self._written(name, change, _typed(query, change))
        change.append(written.files)
        return written.rows

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

    def _insert(self, insert: Insert, name: TableName) -> int:
        with self.changed(name) as change:
            target = _target(name, change)
            names: list[str] = []
            if insert.query:
                bound = self._bound(f"{insert.ctes}{insert.query}")
                names = [column.name for column in bound]
            written = self._written(name, change, dml.inserted(insert, target, names))
            change.append(written.files)
            return written.rows

    def _delete(self, delete: Delete, name: TableName) -> int:
        with self.changed(name) as change:
            table = change.version
            stored = table.places()
            with self._located(name, table) as (located, of):
                if self._varies(delete.condition, delete.using, delete.ctes):
                    matching = self._rows(dml.matching_files(_all(delete), located))
                    counts = {}
                    affected = dict(matching)
                else:
                    counts = dict(self._rows(dml.matching_files(delete, located)))
                    affected = counts
                whole = {place for place, n in counts.items() if n == stored[place]}
                left = frozenset(affected) - whole
                written = WrittenRows((), 0)
                if left:
                    with of(left) as some:
                        sql = dml.kept(delete, _target(name, change), some)
                        written = self._written(name, change, sql)
                if affected:
                    change.replace(affected, written.files)
                return sum(affected.values()) - (written.rows if not counts else 0)

    def _update(self, update: Update, name: TableName) -> int:
        with self.changed(name) as change:
            table = change.version
            target = _target(name, change)
            for column, _ in update.values:
                target.position(column)
            with self._located(name, table) as (located, of):
                affected = frozenset(table.places())
                if not self._varies(update.condition, update.source, update.ctes):
                    rows = self._rows(dml.matching_files(update, located))
                    affected = frozenset(place for place, _ in rows)
                if not affected:
                    return 0
                with of(affected) as some:
                    sql = dml.updated(update, target, some)
                    written = self._written(name, change, sql, counts=True)
                change.replace(affected, written.files)
                return written.changed

    def _merge(self, merge: Merge, name: TableName) -> int:
        conditions = (merge.condition, *(clause.condition for clause in merge.clauses))
        if self._varies(merge.source, merge.ctes, *conditions):
            raise UnsupportedError(
                "MERGE reads its source several times, so it takes no random(), uuid(), LIMIT or "
                "the like there and in conditions: store the source as a table first."
            )
        merge = dataclasses.replace(merge, source_names=self._names(merge))
        with self.changed(name) as change:
            target = _target(name, change)
            with self._located(name, change.version) as (located, of):
                rows = self._rows(dml.merged_files(merge, located))
                if any(changes > 1 for _, _, changes, _ in rows):
                    raise QueryError(
                        "MERGE INTO changes a row of the table more than once: several rows of "
                        "the source match it. Leave one of them in the source."
                    )
                affected = {place: int(n) for place, n, _, _ in rows}
                several = any(partners > 1 for _, _, _, partners in rows)
                written = WrittenRows((), 0)
                count = sum(affected.values())
                if affected:
                    with of(frozenset(affected)) as some:
                        sql = dml.merged(merge, target, some, several=several)
                        written = self._written(name, change, sql, counts=True)
                added = WrittenRows((), 0)
                inserts = dml.merged_inserts(merge, target, located)
                if inserts is not None:
                    added = self._written(name, change, inserts)
                new = (*written.files, *added.files)
                if affected:
                    change.replace(affected, new)
                else:
                    change.append(new)
                return count + added.rows

    def _varies(self, *texts: str) -> bool:
        """Whether two queries might find different rows for these parts of a statement."""
        return any(map(self.scope.planning.varies, texts))

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
        self, name: TableName, change: TableChange, sql: str, *, counts: bool = False
    ) -> WrittenRows:
        """The rows of a query as data files; removed again if that fails."""
        layout = change.layout
        write = WriteRows(
            table=str(name), layout=layout, write_id=secrets.token_hex(8), counts=counts
        )
        try:
            with self.engine.up_to_date(self.scope):
                renamed = self.tables.renamed(sql)
                written, _ = self.engine.run(renamed, WriteTable(write), self.scope)
        except BaseException:
            layout.remove_written(write.write_id)
            raise
        change.files.extend(file.file_path for file in written.files)
        return written

    @contextlib.contextmanager
    def _located(
        self, name: TableName, table: TableVersion
    ) -> Iterator[tuple[str, Callable[[frozenset[str]], Any]]]:
        """A relation of a table's rows with their places, and one of some of its files."""
        snapshot = table.snapshot(str(name))

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
        self.scope.transaction.begin(
            lambda: WarehouseTransaction(sources=self.engine.sources, is_lazy=is_lazy)
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


def _target(name: TableName, change: TableChange) -> dml.Target:
    return dml.Target(str(name), change.version.columns)


def _typed(query: str, change: TableChange) -> str:
    """The rows of a query in the types of the table that is made of them."""
    target = dml.Target("", change.version.columns)
    names = [f"v{i}" for i in range(len(target.schema))]
    values = dict(enumerate(names))
    return f"SELECT {target.typed(values)} FROM ({query}) AS v({', '.join(names)})"


def _all(change: Delete) -> Delete:
    return dataclasses.replace(change, condition="", using="")
