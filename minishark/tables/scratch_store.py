"""Tables that only the scratch database can hold: temporary ones, those of other schemas."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pyarrow as pa

from minishark.compiler.hints import UNNAMED_SOURCE
from minishark.compiler.sql import change_queries as queries
from minishark.compiler.sql.changes import Insert
from minishark.compiler.sql.statements import (
    ChangeRows,
    Comment,
    CreateTable,
    CreateTableAs,
    FrontEndCommand,
    ParsedStatement,
    Show,
    Write,
)
from minishark.errors import QueryError, UnsupportedError
from minishark.model.expressions import quote
from minishark.query.sinks import CollectRows
from minishark.tables.cached import CACHED_PREFIX
from minishark.tables.changes import ON_ALL_ROWS
from minishark.tables.memory_transaction import NOT_IN_TRANSACTION, in_memory
from minishark.tables.scratch_database import NO_CATALOG, ROWS
from minishark.tables.shared_tables import PREFIX
from minishark.tables.store import survives_arrow
from minishark.tables.stores import Explained, StoreContext, TableStore, counted

HIDDEN = (CACHED_PREFIX, UNNAMED_SOURCE, "warehouse.", PREFIX)
"""How the names of tables start that no user has named."""


@dataclass(frozen=True, slots=True)
class TemporaryTables(TableStore):
    """Tables that other sessions lack."""

    context: StoreContext

    def run(self, statement: ParsedStatement) -> pa.Table | ParsedStatement:
        if not isinstance(statement, Write | Comment) or statement.target is None:
            return statement
        context, target = self.context, statement.target
        scratch = context.scratch
        *schema, name = [part.lower() for part in target.path]
        if isinstance(statement, CreateTable):
            is_its = statement.is_temporary and scratch.is_apart
        else:
            is_its = name in scratch.temporary and schema in ([], ["temp"], ["temp", "main"])
        if not is_its:
            return statement
        if in_memory(context.transaction) is not None:
            raise UnsupportedError(NOT_IN_TRANSACTION)
        with context.up_to_date():
            if scratch.reads_catalog(statement.sql):
                sql, rows = of_catalog(context, statement)
                if isinstance(statement, CreateTable):
                    return scratch.put_temporary(sql, target.name, rows)
                return scratch.run_temporary(sql, rows)
            if isinstance(statement, CreateTableAs):
                rows = self._rows(statement.query)
                if rows is not None:
                    create = "CREATE OR REPLACE" if statement.replaces else "CREATE"
                    create += f" TEMP TABLE {quote(target.name)} AS FROM {quote(ROWS)}"
                    scratch.put_temporary(create, target.name, rows)
                    return counted(rows.num_rows)
            if isinstance(statement, CreateTable):
                return scratch.put_temporary(statement.sql, target.name, None)
            context.compute(context.planning.tables_in(statement.sql))
            return scratch.run_temporary(statement.sql)

    def explain(self, statement: Explained) -> str | Explained:
        target = statement.target
        if isinstance(statement, CreateTableAs):
            is_its = statement.is_temporary and self.context.scratch.is_apart
        else:
            is_its = target is not None and target.name.lower() in self.context.scratch.temporary
        return _explained(self.context, statement, "a temporary table") if is_its else statement

    def _rows(self, query: str) -> pa.Table | None:
        """A query's rows in all their types; None if only the scratch database can compute them."""
        context = self.context
        if context.scratch.is_alone(query):
            return None
        try:
            schema = context.bind(query)
        except QueryError:
            return None
        if not survives_arrow(schema):
            return None
        return context.run(query, CollectRows(lossless=True))


@dataclass(frozen=True, slots=True)
class ScratchTables(TableStore):
    """Whatever no other store has: tables of other schemas and attached databases."""

    context: StoreContext

    def run(self, statement: ParsedStatement) -> pa.Table | ParsedStatement:
        if isinstance(statement, Write) and self.context.scratch.reads_catalog(statement.sql):
            with self.context.up_to_date():
                sql, rows = of_catalog(self.context, statement)
            return self.execute(sql, rows=rows)
        if isinstance(statement, Write | FrontEndCommand):
            return self.execute(statement.sql)
        return self.show(statement) if isinstance(statement, Show) else statement

    def explain(self, statement: Explained) -> str:
        return _explained(self.context, statement, "what only the session's own database has")

    def show(self, statement: Show, search: str = "") -> pa.Table:
        """Answer a statement about the catalog; the planning database's rows are made up.

        `search` is the schema in which names are looked up first, if not the cluster's tables'.
        """
        context, sql = self.context, statement.sql
        with context.up_to_date():
            tables = () if statement.is_show else context.planning.tables_in(sql)
            context.compute(tables)
            if tables and not context.scratch.reads_catalog(sql):
                return context.scratch.query(sql)
            return context.scratch.catalog(sql, search)

    def execute(
        self, sql: str, *, comments: bool = False, rows: pa.Table | None = None
    ) -> pa.Table:
        """Run a statement about what only the scratch database has: schemas, sequences, ...

        One that `comments` may be about a table of the cluster, too. It may read `rows` as `ROWS`.
        """
        context = self.context
        context.check_open()
        if in_memory(context.transaction) is not None:
            raise UnsupportedError(NOT_IN_TRANSACTION)
        writing = context.writing if context.scratch.takes_tables(sql) else contextlib.nullcontext()
        with writing, context.up_to_date():
            context.compute(context.planning.tables_in(sql))
            return context.scratch.run(sql, comments=comments, rows=rows)


def _explained(context: StoreContext, statement: Explained, title: str) -> str:
    if statement.target is None:  # checked when it runs: until then, its tables are views
        return f"Changes tables within WITH. {ON_ALL_ROWS}"
    context.scratch.explain(statement.sql, analyze=False)  # raises what is wrong with it
    return f"Concerns {title}. The session's own DuckDB runs it."


def of_catalog(context: StoreContext, statement: Write | Comment) -> tuple[str, pa.Table]:
    """A statement that writes `ROWS`, and these: what its query gives, which reads the catalog.

    Raises:
        UnsupportedError: it is no CREATE TABLE AS, nor an INSERT whose query alone reads that.
    """
    scratch = context.scratch
    match statement:
        case CreateTableAs(target=target) if target is not None:
            create = statement.sql.removesuffix(statement.query)
            rows = scratch.created_of_catalog(statement.sql, target)
            return f"{create}FROM {quote(ROWS)}", rows
        case ChangeRows(change=Insert() as change) if change.query and not scratch.reads_catalog(
            change.clauses
        ):
            rows = context.run(f"{change.ctes}{change.query}", CollectRows(lossless=True))
            return queries.of_rows(change, change.target, quote(ROWS)), rows
    raise UnsupportedError(NO_CATALOG)
