"""Tables that only the scratch database can hold: temporary ones, those of other schemas."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from minishark.compiler.sql.statements import Comment, CreateTable, CreateTableAs, Write
from minishark.errors import QueryError, UnsupportedError
from minishark.query.sinks import CollectRows
from minishark.tables.memory_transaction import NOT_IN_TRANSACTION, in_memory
from minishark.tables.store import survives_arrow
from minishark.tables.stores import StoreContext, TableStore, counted


@dataclass(frozen=True, slots=True)
class TemporaryTables(TableStore):
    """Tables that other sessions lack."""

    context: StoreContext

    def owns(self, statement: Write | Comment) -> bool:
        target, scratch = statement.target, self.context.scratch
        if target is None:
            return False
        if isinstance(statement, CreateTable):
            return statement.is_temporary and scratch.is_apart
        *schema, name = [part.lower() for part in target.path]
        return name in scratch.temporary and schema in ([], ["temp"], ["temp", "main"])

    def write(self, statement: Write | Comment) -> pa.Table:
        context, target = self.context, statement.target
        assert target is not None, "it is one of these tables"
        if in_memory(context.transaction) is not None:
            raise UnsupportedError(NOT_IN_TRANSACTION)
        with context.up_to_date():
            if isinstance(statement, CreateTableAs):
                rows = self._rows(statement.query)
                if rows is not None:
                    create = "CREATE OR REPLACE" if statement.replaces else "CREATE"
                    context.scratch.put_temporary(create, target.name, rows)
                    return counted(rows.num_rows)
            if isinstance(statement, CreateTable):
                return context.scratch.put_temporary(statement.sql, target.name, None)
            context.compute(context.planning.tables_in(statement.sql))
            return context.scratch.run_temporary(statement.sql)

    def _rows(self, query: str) -> pa.Table | None:
        """A query's rows in all their types; None if only the scratch database can compute them."""
        context = self.context
        if context.scratch.is_elsewhere or context.scratch.names_temporary(query):
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

    def owns(self, statement: Write | Comment) -> bool:
        return True

    def write(self, statement: Write | Comment) -> pa.Table:
        return self.execute(statement.sql)

    def execute(self, sql: str, *, comments: bool = False) -> pa.Table:
        """Run a statement about what only the scratch database has: schemas, sequences, ...

        One that `comments` may be about a table of the cluster, too.
        """
        context = self.context
        context.check_open()
        if in_memory(context.transaction) is not None:
            raise UnsupportedError(NOT_IN_TRANSACTION)
        with context.up_to_date():
            context.compute(context.planning.tables_in(sql))
            return context.scratch.run(sql, comments=comments)
