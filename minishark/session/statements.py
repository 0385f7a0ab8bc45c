"""How each kind of statement runs: on the cluster, in the catalog, or in the front end."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import duckdb
import pyarrow as pa

from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.sql.statements import (
    CopyTo,
    CreateEnum,
    CreateTableAs,
    Deallocate,
    Definition,
    DropTable,
    Execute,
    Explain,
    FrontEndCommand,
    FrontEndQuery,
    ParsedStatement,
    Prepare,
    Query,
    Setting,
    SetVariable,
    Show,
    Write,
)
from minishark.compiler.sql.tokens import fill_parameters, split_arguments
from minishark.dataframe import DataFrame, Runner
from minishark.errors import CatalogError, QueryError, UnsupportedError
from minishark.expressions import Schema
from minishark.query.planner import Queries, RefusedError
from minishark.query.sinks import Layout
from minishark.session.scratch_database import WrittenTables
from minishark.tables.cached import KEPT_PREFIX, DerivedTables
from minishark.tables.copy import (
    Copy,
    CopyGoal,
    check_options,
    parsed_copy,
    publish,
    staging_folder,
)
from minishark.tables.kept import Keep, as_stored, kept_exactly, stored_schema, table_schema
from minishark.tables.tables import Tables, check_layout, named_columns


@dataclass(slots=True)
class Statements:
    """Runs statements where they can run.

    Attributes:
        runner: what runs the DataFrames that statements answer with: the session.
        planning: binds and optimizes queries.
        written: the session's own database.
        tables: the tables in the cluster.
        queries: runs queries on the cluster.
        derived: the tables that only DataFrames know.
    """

    runner: Runner
    planning: PlanningDatabase
    written: WrittenTables
    tables: Tables
    queries: Queries
    derived: DerivedTables
    _prepared: dict[str, str] = field(default_factory=dict)
    _loading: threading.Lock = field(default_factory=threading.Lock)

    def run(self, text: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> DataFrame:
        """Run all statements in a text but a last query, which runs when its rows are asked for.

        Args:
            text: one statement, or several with semicolons between.
            params: values of parameters; one statement only.

        Returns:
            The last one's answer.

        Raises:
            QueryError: it does not parse, or names what does not exist; with DuckDB's message.
            UnsupportedError: it is a statement that minishark does not run.
        """
        statements = self.planning.statements(text)
        if params is not None:
            if len(statements) > 1:
                raise QueryError("Parameters go with one statement; run the others without them.")
            statements = self.planning.statements(fill_parameters(statements[0].sql, params))
        for statement in statements[:-1]:
            self._statement(statement)
        last = statements[-1]
        if len(statements) > 1 and isinstance(last, Query):
            last = Query(last.sql)  # those before it may change how it is parsed
        return self._statement(last)

    @property
    def loaded_tables(self) -> list[str]:
        """The names of the tables in the cluster, but for those that are only promised."""
        names = [table.name for table in self.tables.catalog]
        return [name for name in names if self.derived.is_made(name)]

    def load_changed(self) -> None:
        """Load into the cluster what statements have changed since the last query."""
        with self._loading:
            self.derived.sweep()
            for table in self.written.changed():
                if table.rows is not None:
                    self.tables.create(table.name, table.rows, replace=True)
                elif table.name in self.tables.catalog:
                    self.tables.drop(table.name)
                self.written.loaded(table)

    def query_here(self, sql: str) -> pa.Table:
        """Run a query in the session's own database, over all rows of the cluster's tables."""
        self.derived.make(self.planning.tables_in(sql))
        return self.written.query(sql, self.loaded_tables, self.tables.read)

    def keep(self, name: str, sql: str, layout: Layout, *, replace: bool) -> None:
        """Make the rows of a query a table, without bringing them here."""
        bound = self.planning.bind(sql).schema
        sql, schema = as_stored(sql, bound), stored_schema(table_schema(bound))
        check_layout(layout.partitions, layout.replicas)
        self.tables.check_new(name, replace=replace)
        columns = [column.name for column in schema]
        keys = named_columns(name, layout.partition_by, columns)
        layout = dataclasses.replace(layout, partition_by=keys)
        try:
            with self.tables.folder() as folder:
                goal = Keep(self.tables, name, schema, folder, layout)
                table, _ = self.queries.run_for(sql, goal)
                self.tables.publish(table, replace=replace)
        except RefusedError:
            rows = self._rows_of(sql).rename_columns(columns)
            self.tables.create(
                name,
                rows,
                partition_by=keys,
                partitions=layout.partitions,
                replicas=layout.replicas,
                replace=replace,
            )
        self.written.drop(name)  # what it was before

    def _statement(self, statement: ParsedStatement) -> DataFrame:
        sql = statement.sql
        match statement:
            case Query(parsed=parsed):
                return self._query(sql, None, parsed)
            case Explain(analyze=analyze):
                return self._query(sql, "analyze" if analyze else "plan")
            case Show():
                return self._show(statement)
            case FrontEndQuery():
                return self._known(self.query_here(sql))
            case FrontEndCommand():
                return self._run_here(sql)
            case Definition() | Setting():
                return self._define(statement)
            case SetVariable():
                return self._set_variable(sql)
            case CreateEnum():
                return self._create_enum(sql)
            case Write():
                return self._write(statement)
            case CopyTo(query=query, destination=destination):
                return self._copy(query, destination)
            case Prepare(name=name, statement=prepared):
                self._prepared[name] = prepared
                return self._changed_rows(0)
            case Execute(name=name, arguments=arguments):
                return self.run(self._prepared_statement(name), arguments)
            case Deallocate(name=name):
                self._prepared_statement(name)
                del self._prepared[name]
                return self._changed_rows(0)
            case _:
                assert_never(statement)

    def _show(self, statement: Show) -> DataFrame:
        """What concerns the catalog only; the planning database's rows are made up."""
        sql = statement.sql
        self.load_changed()
        if not statement.is_show and self.planning.tables_in(sql):
            return self._known(self.query_here(sql))
        names = [name for name in self.loaded_tables if not name.startswith(KEPT_PREFIX)]
        return self._known(self.written.catalog(sql, names, self.tables.read))

    def _rows_of(self, query: str) -> pa.Table:
        """The rows of a query, in the types that DuckDB has."""
        frame = self.run(query)
        if frame.is_known:
            return frame.to_arrow()
        return self.queries.run(query, lossless=True).table

    def _query(
        self, sql: str, explain: str | None, parsed: duckdb.Statement | None = None
    ) -> DataFrame:
        self.load_changed()
        if self.written.is_elsewhere:
            return self._queried_here(sql, explain)
        try:
            bound = self.planning.bind(sql, parsed)
        except QueryError:
            if self.written.has_own:
                with contextlib.suppress(QueryError, CatalogError):
                    return self._queried_here(sql, explain)
            raise
        return DataFrame.of_statement(self.runner, sql, bound.schema, explain)

    def _queried_here(self, sql: str, explain: str | None) -> DataFrame:
        """A query of what only the session's own database knows."""
        if explain is None:
            return self._known(self.query_here(sql))
        plan = self.written.explain(
            sql, self.loaded_tables, self.tables.read, analyze=explain == "analyze"
        )
        return self._known(pa.table({"explain_value": [f"Runs in the front end\n{plan}"]}))

    def _run_here(self, sql: str) -> DataFrame:
        self.load_changed()
        self.derived.make(self.planning.tables_in(sql))
        return self._known(self.written.run(sql, self.loaded_tables, self.tables.read))

    def _known(self, table: pa.Table) -> DataFrame:
        return DataFrame(self.runner, None, known=table)

    def _changed_rows(self, count: int) -> DataFrame:
        return self._known(pa.table({"Count": pa.array([count], pa.int64())}))

    def _prepared_statement(self, name: str) -> str:
        if name not in self._prepared:
            raise QueryError(f"There is no prepared statement called {name}.")
        return self._prepared[name]

    def _define(self, statement: Definition | Setting) -> DataFrame:
        """A definition or setting, for planning, for executors, and for statements that write."""
        setting = isinstance(statement, Setting)
        if isinstance(statement, Setting) and statement.is_reserved:
            raise UnsupportedError("minishark chooses this setting itself; see connect().")
        self.load_changed()
        if self.written.is_elsewhere and not setting:
            return self._run_here(statement.sql)
        try:
            self.planning.define(statement.sql)
        except QueryError:
            if not self.written.has_own:
                raise
            self.written.define(statement.sql, alone=True)
            return self._changed_rows(0)
        self.written.define(statement.sql)
        if setting:
            self.queries.set(statement.sql)
        else:
            self.queries.definitions = (*self.queries.definitions, statement.sql)
        return self._changed_rows(0)

    def _create_enum(self, sql: str) -> DataFrame:
        """A type of the values that a query has, for planning and for executors."""
        self.load_changed()
        known = self.written.create_enum(sql, self.loaded_tables, self.tables.read)
        self.planning.define(known)
        self.queries.definitions = (*self.queries.definitions, known)
        return self._changed_rows(0)

    def _set_variable(self, sql: str) -> DataFrame:
        """A variable, whose value may come from a query, for planning and for executors."""
        self.load_changed()
        known = self.written.set_variable(sql, self.loaded_tables, self.tables.read)
        self.planning.define(known)
        self.queries.set(known)
        return self._changed_rows(0)

    def _write(self, statement: Write) -> DataFrame:
        """A statement that changes tables; the cluster hears of it before the next query."""
        sql, target = statement.sql, statement.target
        if self.written.is_elsewhere or (target is not None and not target.is_main):
            return self._run_here(sql)
        name = target.name if target is not None else None
        match statement:
            case CreateTableAs(query=query) if name and self._can_create(name, statement):
                self.keep(name, query, Layout(replicas=2), replace=True)
                return self._changed_rows(self.tables.catalog.get(name).rows)
            case DropTable(missing_ok=missing_ok) if name:
                return self._drop(name, missing_ok=missing_ok)
            case _:
                self.derived.make(self.planning.tables_in(sql))
                tables = self.loaded_tables
                return self._known(self.written.write(sql, target, tables, self.tables.read))

    def _copy(self, query: str, target: str) -> DataFrame:
        """COPY ... TO, written by tasks where they can."""
        self.load_changed()
        copy = parsed_copy(target, split_arguments)
        (statement,) = self.planning.statements(query)
        here = self.written.is_elsewhere or not isinstance(statement, Query)
        if copy is not None and not here:
            with contextlib.suppress(RefusedError):
                schema = self._bound_or_none(query)
                if schema is not None and kept_exactly(schema):
                    return self._changed_rows(self._copy_in_tasks(query, schema, copy))
        return self._known(self.written.copy(self._rows_of(query), target))

    def _bound_or_none(self, query: str) -> Schema | None:
        """A query's columns; None if only the session's own database may know them."""
        try:
            return self.planning.bind(query).schema
        except QueryError:
            if not self.written.has_own:
                raise
            return None

    def _can_create(self, name: str, created: CreateTableAs) -> bool:
        """Whether a CREATE TABLE AS can run on the cluster.

        If not, the session's own database runs it: what exists already, or has columns that Arrow
        does not keep as they are.
        """
        self.load_changed()
        exists = name in self.tables.catalog or name.lower() in self.written.own_tables
        if exists and not created.replaces:
            return False
        try:
            schema = self.planning.bind(created.query).schema
        except QueryError:  # perhaps for what only the session's own database knows
            return False
        return kept_exactly(schema)

    def _drop(self, name: str, *, missing_ok: bool) -> DataFrame:
        with self._loading:  # or another thread, which loads its last change, makes it again
            here = self.written.drop(name)
            if name in self.tables.catalog:
                self.tables.drop(name)
                return self._changed_rows(0)
        if not here and not missing_ok:
            self.tables.catalog.get(name)
        return self._changed_rows(0)

    def _copy_in_tasks(self, query: str, schema: Schema, copy: Copy) -> int:
        """Write the rows of a query; their number."""
        with staging_folder(copy) as staging:
            self.planning.check(lambda con: check_options(con, copy, schema, staging))
            written, _ = self.queries.run_for(query, CopyGoal(copy, staging))
            publish(copy, staging, written)
        return sum(item.rows for item in written)
