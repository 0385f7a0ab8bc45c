"""Tables that users name: created from data of any kind or from queries, changed, and dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from minishark.compiler.hints import UNNAMED_SOURCE
from minishark.compiler.sql.changes import parse_change
from minishark.compiler.sql.statements import AlterTable, ChangeRows, CreateTable, Target, Write
from minishark.dataframe import DataFrame
from minishark.dataframe.lazy_query import query_of
from minishark.dataframe.names import ident
from minishark.dataframe.partitioned import kept
from minishark.errors import AlreadyExistsError, CatalogError, UnsupportedError
from minishark.model.catalog import Table
from minishark.query.sinks import Layout
from minishark.session.engine import Engine
from minishark.session.memory_transactions import NOT_IN_TRANSACTION, MemoryTransaction, in_memory
from minishark.session.memory_writes import MemoryWrites
from minishark.session.scope import Scope
from minishark.sources.contract import Source
from minishark.sources.files import NamedFiles
from minishark.tables.cached import CACHED_PREFIX
from minishark.tables.sources import arrow_table
from minishark.tables.store import (
    StoreAsTable,
    as_stored,
    kept_by_arrow,
    stored_schema,
    table_schema,
)
from minishark.tables.tables import check_layout, named_columns

HIDDEN = (CACHED_PREFIX, UNNAMED_SOURCE, "warehouse.")
"""How the names of tables start that no user has named."""


@dataclass(frozen=True, slots=True)
class NamedTables:
    """The tables that users name."""

    engine: Engine  # stores them, and runs statements
    scope: Scope  # what names mean, and what is changed but not committed

    def _refuse_in_transaction(self) -> None:
        if in_memory(self.scope) is not None:
            raise UnsupportedError(NOT_IN_TRANSACTION)

    @property
    def names(self) -> list[str]:
        engine = self.engine
        names = [*self.scope.catalog.loaded, *self.scope.scratch.own_tables, *engine.sources.names]
        return sorted(name for name in names if not name.startswith(HIDDEN))

    def add_source(self, name: str, source: Source, *, replace: bool) -> None:
        """Let queries read a source by a name."""
        with self.engine.up_to_date(self.scope):
            if name not in self.engine.sources or not replace:
                self.check_new(name, replace=False)
            self.engine.sources.add(name, source)

    def create(
        self,
        name: str,
        data: Any,
        *,
        layout: Layout,
        replace: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        engine, scope = self.engine, self.scope
        with engine.up_to_date(scope):
            if isinstance(data, DataFrame) and not data.is_local():
                layout = kept(query_of(data), layout)
                self.store_query(name, data.sql(), layout, replace=replace)
                return
            self.check_new(name, replace=replace)
            if isinstance(data, duckdb.DuckDBPyRelation) and not kept_by_arrow(
                map(str, data.types)
            ):
                self._refuse_in_transaction()
                columns = zip(data.columns, map(str, data.types), strict=True)
                scope.scratch.put(name, columns, arrow_table(data))
                engine.warn(
                    f"Table {name} stays in the front end, as Arrow lacks types of its columns."
                )
                return
            check_layout(layout)
            if isinstance(data, str | Path):
                data = NamedFiles(data, engine.sources.reach(scope.settings))
            with engine.tables.folder() as folder:
                table = engine.tables.build(
                    name,
                    folder,
                    data,
                    layout,
                    on_progress=on_progress,
                    observed=partial(engine.observed, scope=scope, kind="load"),
                )
                self._publish(table, replace=replace)

    def check_new(self, name: str, *, replace: bool) -> None:
        """Raise CatalogError if there is something else of that name."""
        self.engine.tables.check_new(name, replace=replace, catalog=self.scope.catalog)
        if self.scope.planning.has_view(name):
            raise CatalogError(f"There is a view called {name!r}; drop it first.")
        if name in self.engine.sources:
            raise CatalogError(f"There is a source called {name!r}; drop it first.")
        if not replace and name.lower() in self.scope.scratch.own_tables:
            raise AlreadyExistsError(
                f"There is a table called {name!r} already; pass replace=True."
            )

    def _publish(self, table: Table, *, replace: bool) -> None:
        with self.engine.writing:
            open_ = in_memory(self.scope)
            if open_ is not None:
                self._check_only_rows(table.name)
                open_.put(table)
                return
        # Another thread may be loading what a statement made of a table of that name before: it
        # must not replace this one.
        with self.engine.loading:
            self.engine.tables.publish(table, replace=replace)
            self.scope.scratch.drop(table.name)

    def _check_only_rows(self, name: str) -> None:
        """Refuse to replace or drop, in a transaction, what the scratch database has."""
        scratch = self.scope.scratch
        if scratch.must_keep(name) or name.lower() in scratch.own_tables:
            raise UnsupportedError(NOT_IN_TRANSACTION)

    def store_query(self, name: str, sql: str, layout: Layout, *, replace: bool) -> None:
        """Store the rows of a query as a table, without bringing them to the front end."""
        tables = self.engine.tables
        bound = self.scope.planning.bind(sql).schema
        schema = stored_schema(table_schema(bound))
        check_layout(layout)
        self.check_new(name, replace=replace)
        keys = named_columns(name, layout.partition_by, [column.name for column in schema])
        layout = dataclasses.replace(layout, partition_by=keys)
        with tables.folder() as folder:
            sink = StoreAsTable(
                tables=tables, name=name, schema=schema, folder=folder, layout=layout
            )
            table, _ = self.engine.run(as_stored(sql, bound), sink, self.scope)
            self._publish(table, replace=replace)

    def drop(self, name: str, *, missing_ok: bool = False) -> None:
        engine = self.engine
        engine.check_open(self.scope)
        if name in engine.sources:
            self._refuse_in_transaction()
            engine.sources.remove(name)
            return
        with engine.writing:
            open_ = in_memory(self.scope)
            if open_ is not None:
                self._drop_in(open_, name, missing_ok=missing_ok)
                return
        with engine.loading:  # or another thread, loading its last change, would create it again
            here = self.scope.scratch.drop(name)
            if name in engine.tables.catalog:
                engine.tables.drop(name)
                return
        if not here and not missing_ok:
            raise engine.tables.catalog.unknown(name)

    def _drop_in(self, open_: MemoryTransaction, name: str, *, missing_ok: bool) -> None:
        with self.engine.up_to_date(self.scope):
            self._check_only_rows(name)
            if name in self.scope.catalog:
                open_.drop(name)
            elif not missing_ok:
                raise self.scope.catalog.unknown(name)

    def insert(self, name: str, query: str) -> None:
        sql = f"INSERT INTO {ident(name)} {query}"
        self.write(ChangeRows(sql, Target(name, is_main=True), parse_change(sql)))

    def is_named(self, target: Target) -> bool:
        """Whether a statement that writes there changes one of these tables."""
        return target.is_main and (len(target.path) > 1 or not self.scope.scratch.is_elsewhere)

    def write(self, statement: Write) -> pa.Table:
        # The cluster loads the changes before the next query.
        engine, scope = self.engine, self.scope
        sql, target = statement.sql, statement.target
        engine.check_open(scope)
        if target is not None and not self.is_named(target):
            return self.run_in_scratch(sql)
        if target is not None and target.name in engine.sources:
            raise UnsupportedError(f"{target.name} is a source, which minishark only reads.")
        # Names may mean others than on the cluster.
        is_here = scope.scratch.is_elsewhere or scope.scratch.names_temporary(sql)
        with engine.writing:
            if isinstance(statement, ChangeRows) and target is not None and not is_here:
                answer = MemoryWrites(engine, scope).run(statement, target)
                if answer is not None:
                    return answer
            open_ = in_memory(scope)
            if open_ is not None:
                if target is None or is_here:
                    raise UnsupportedError(NOT_IN_TRANSACTION)
                return self._write_in(open_, statement, target)
            if isinstance(statement, AlterTable) and statement.renamed and target is not None:
                self._check_free(statement.renamed, target)
            engine.compute(scope.planning.tables_in(sql), scope)
            return scope.scratch.write(sql, target)

    def _write_in(self, open_: MemoryTransaction, statement: Write, target: Target) -> pa.Table:
        """Run a statement in the scratch database, for a transaction."""
        engine, scope, sql = self.engine, self.scope, statement.sql
        with engine.up_to_date(scope):
            engine.compute(scope.planning.tables_in(sql), scope)
            written = scope.scratch.write_uncommitted(sql, target)
            exists_ok = isinstance(statement, CreateTable) and statement.table.exists_ok
            if exists_ok and (target.name in scope.catalog or scope.planning.has_view(target.name)):
                return written.answer
            if any(each.definition is None for each in written.changed):
                raise UnsupportedError(NOT_IN_TRANSACTION)
            for each in written.changed:
                self._check_free(each.name, target)
            for name in written.gone:
                open_.drop(name)
            for each in written.changed:
                with engine.tables.folder() as folder:
                    open_.put(engine.built(each, folder))
        return written.answer

    def _check_free(self, name: str, target: Target) -> None:
        """Raise AlreadyExistsError if a table can't be created as, or renamed to, this name.

        The scratch database does not tell: it has neither the cluster's tables but the one that is
        changed, nor views of tables that a transaction has dropped.
        """
        exists = name in self.scope.catalog
        if exists and name.lower() != target.name.lower():
            raise AlreadyExistsError(f'Catalog Error: Table with name "{name}" already exists!')
        if not exists and self.scope.planning.has_view(name):
            raise AlreadyExistsError(f'Catalog Error: View with name "{name}" already exists!')

    def run_in_scratch(self, sql: str, *, comments: bool = False) -> pa.Table:
        """Run a statement about what only the scratch database has: schemas, sequences, ...

        One that `comments` may be about a table of the cluster, too.
        """
        engine, scope = self.engine, self.scope
        self._refuse_in_transaction()
        with engine.up_to_date(scope):
            engine.compute(scope.planning.tables_in(sql), scope)
            return scope.scratch.run(sql, comments=comments)
