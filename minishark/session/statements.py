"""How each kind of statement runs: on the cluster, in the catalog, or in the scratch database."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import duckdb
import pyarrow as pa

from minishark.compiler.sql.statements import (
    ParsedStatement,
    StatementKind,
    changes_reserved_setting,
    copied_query_and_target,
    executed_name_and_values,
    fill_parameters,
    is_shown,
    prepared_name_and_statement,
)
from minishark.compiler.sql.targets import (
    CreatedTable,
    created_table,
    drops_table,
    may_be_missing,
    written_target,
)
from minishark.dataframe import DataFrame
from minishark.dataframe.frame import local_frame, statement_frame
from minishark.errors import CatalogError, QueryError, UnsupportedError
from minishark.query.sinks import Layout
from minishark.session.runtime import Runtime, counted
from minishark.tables.cached import CACHED_PREFIX
from minishark.tables.store import survives_arrow


@dataclass(slots=True)
class Statements:
    """Runs statements where they can run.

    Attributes:
        runtime: what runs them.
    """

    runtime: Runtime
    _prepared: dict[str, str] = field(default_factory=dict)

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
        statements = self.runtime.planning.statements(text)
        if params is not None:
            if len(statements) > 1:
                raise QueryError("Parameters go with one statement; run the others without them.")
            filled = fill_parameters(statements[0].sql, params)
            statements = self.runtime.planning.statements(filled)
        for statement in statements[:-1]:
            self._statement(statement)
        if len(statements) > 1:  # those before it may change how it is parsed
            return self._statement(dataclasses.replace(statements[-1], parsed=None))
        return self._statement(statements[-1])

    def _statement(self, statement: ParsedStatement) -> DataFrame:
        sql, runtime = statement.sql, self.runtime
        match statement.kind:
            case StatementKind.QUERY:
                return self._query(sql, None, statement.parsed)
            case StatementKind.EXPLAIN:
                return self._query(sql, "analyze" if statement.analyze else "plan")
            case StatementKind.SHOW:
                return self._known(self._show(sql))
            case StatementKind.HERE:
                return self._known(runtime.query_in_front_end(sql))
            case StatementKind.OWN:
                return self._known(runtime.run_in_scratch(sql))
            case StatementKind.DEFINITION:
                runtime.define(sql)
            case StatementKind.SETTING:
                if changes_reserved_setting(sql):
                    raise UnsupportedError("minishark chooses this setting itself; see connect().")
                runtime.set(sql)
            case StatementKind.VARIABLE:
                runtime.set_variable(sql)
            case StatementKind.ENUM:
                runtime.create_enum(sql)
            case StatementKind.WRITE:
                return self._known(self._write(sql))
            case StatementKind.COPY_OUT:
                return self._known(self._copy(*copied_query_and_target(sql)))
            case StatementKind.PREPARE:
                name, prepared = prepared_name_and_statement(sql)
                self._prepared[name] = prepared
            case StatementKind.EXECUTE:
                name, values = executed_name_and_values(sql)
                return self.run(self._prepared_statement(name), values)
            case StatementKind.DEALLOCATE:
                name, _ = executed_name_and_values(sql)
                self._prepared_statement(name)
                del self._prepared[name]
            case _:
                assert_never(statement.kind)
        return self._known(counted(0))

    def _known(self, table: pa.Table) -> DataFrame:
        """The answer of a statement that has run already."""
        return local_frame(self.runtime, table)

    def _prepared_statement(self, name: str) -> str:
        if name not in self._prepared:
            raise QueryError(f"There is no prepared statement called {name}.")
        return self._prepared[name]

    # Queries

    def _query(
        self, sql: str, explain: str | None, parsed: duckdb.Statement | None = None
    ) -> DataFrame:
        runtime = self.runtime
        with runtime.up_to_date():
            if runtime.scratch.is_elsewhere:
                return self._query_in_scratch(sql, explain)
            try:
                bound = runtime.planning.bind(sql, parsed)
            except QueryError:
                if runtime.scratch.has_own:
                    with contextlib.suppress(QueryError, CatalogError):
                        return self._query_in_scratch(sql, explain)
                raise
            return statement_frame(runtime, sql, bound.schema, explain=explain)

    def _query_in_scratch(self, sql: str, explain: str | None) -> DataFrame:
        """A query of what only the scratch database has."""
        runtime = self.runtime
        if explain is None:
            return self._known(runtime.query_in_front_end(sql))
        plan = runtime.scratch.explain(
            sql, runtime.loaded_tables, runtime.tables.read, analyze=explain == "analyze"
        )
        return self._known(pa.table({"explain_value": [f"Runs in the front end\n{plan}"]}))

    def _show(self, sql: str) -> pa.Table:
        """Answer a statement about the catalog; the planning database's rows are made up."""
        runtime = self.runtime
        with runtime.up_to_date():
            if not is_shown(sql) and runtime.planning.tables_in(sql):
                return runtime.query_in_front_end(sql)
            names = [n for n in runtime.loaded_tables if not n.startswith(CACHED_PREFIX)]
            return runtime.scratch.catalog(sql, names, runtime.tables.read)

    # Statements that write

    def _write(self, sql: str) -> pa.Table:
        """A statement that changes tables; on the cluster where it can run there."""
        runtime, target = self.runtime, written_target(sql)
        if target is None or not target.is_main or runtime.scratch.is_elsewhere:
            return runtime.write(sql)
        created = created_table(sql)
        if created and self._can_create(target.name, created):
            runtime.store_query(target.name, created.query, Layout(replicas=2), replace=True)
            return counted(runtime.tables.catalog.get(target.name).rows)
        if drops_table(sql):
            runtime.drop_table(target.name, missing_ok=may_be_missing(sql))
            return counted(0)
        return runtime.write(sql)

    def _can_create(self, name: str, created: CreatedTable) -> bool:
        """Whether a CREATE TABLE AS can run on the cluster.

        The scratch database runs the others: tables that exist already, and those with columns
        that do not survive Arrow.
        """
        runtime = self.runtime
        with runtime.up_to_date():
            own = runtime.scratch.own_tables
            exists = name in runtime.tables.catalog or name.lower() in own
            if exists and not created.replaces:
                return False
            try:
                schema = runtime.planning.bind(created.query).schema
            except QueryError:  # perhaps it names what only the scratch database has
                return False
            return survives_arrow(schema)

    def _copy(self, query: str, target: str) -> pa.Table:
        """COPY ... TO; of a query, or of what another statement answers."""
        runtime = self.runtime
        (statement,) = runtime.planning.statements(query)
        if statement.kind is StatementKind.QUERY and not runtime.scratch.is_elsewhere:
            return runtime.copy(query, target)
        return runtime.scratch.copy(self.run(query).to_arrow(), target)
