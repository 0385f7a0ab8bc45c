"""The schema `shared`: tables that belong to the cluster, as a store for a session.

It puts the planning database's names into statements (`warehouse.names`). What these then do to
tables in memory they do to these, too: `MemoryStore` runs them, and `Tables` commits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import pyarrow as pa
from msgspec import structs

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.tokens import Edit, edited, names_in, sql_tokens
from minishark.errors import AlreadyExistsError, CatalogError, ClusterError, UnsupportedError
from minishark.model.catalog import Table
from minishark.model.expressions import quote
from minishark.tables.memory_store import MemoryStore
from minishark.tables.shared_tables import PREFIX, SCHEMA, is_shared
from minishark.tables.stores import Explained, GivenRows, StoreContext, TableStore, counted
from minishark.tables.warehouse.names import (
    At,
    change_in_scratch,
    names_after,
    parts,
    references,
    renamed,
    token_references,
)

_TEXTS_MAX = 256  # queries of which is known where they name tables


def shared_name(name: str) -> str:
    """A table of the cluster as SQL calls it, by its name there."""
    return name if is_shared(name) else f"{SCHEMA}.{quote(name)}"


class SharedStore(TableStore):
    """The tables that belong to the cluster of a session."""

    __slots__ = ("_references", "context", "named")

    def __init__(self, context: StoreContext, named: MemoryStore) -> None:
        """For a session, whose tables in memory run the statements."""
        self.context, self.named = context, named
        syntax = context.planning.syntax
        self._references = lru_cache(_TEXTS_MAX)(partial(references, syntax=syntax))

    def refresh(self) -> None:
        """Know what other sessions have done, if this one has named such tables."""
        if self._is_named():
            self.context.tables.read_shared()

    def _is_named(self) -> bool:
        shared = self.context.tables.shared
        return shared is not None and shared.is_named

    def begin(self, *, is_lazy: bool) -> bool:
        """Transactions are another store's, over the tables that there are now."""
        del is_lazy
        self._look()
        return False

    def _look(self) -> None:
        """Know the tables there are, where nothing depends on whether there are any."""
        try:
            self.context.tables.read_shared()
        except ClusterError:  # a node is silent: sessions without such tables need not wait
            if self._is_named():
                raise

    # Names

    def _named(self, path: Sequence[str]) -> str | None:
        """What the planning database calls a table; None if it is not of the cluster."""
        match list(path):
            case [table] if is_shared(table):
                return table
            case [schema, table] if schema.lower() == SCHEMA:
                return f"{PREFIX}{table}"
        return None

    def _resolved(self, path: tuple[str, ...], at: At | None) -> str | None:
        """The same of a table that a query reads, which must exist."""
        name = self._named(path)
        if name is None:
            return None
        if at is not None:
            raise UnsupportedError("Only the last version of a shared table is kept: no AT.")
        table = self._found(name)
        if table is None:
            raise CatalogError(self._unknown(name))
        return table.name

    def _found(self, name: str) -> Table | None:
        """A table; its version need not be the last one, which `refresh` reads from now on."""
        tables = self.context.tables
        table = self.context.catalog.find(name)
        if table is None or not self._is_named():
            tables.read_shared()
            table = self.context.catalog.find(name)
        if tables.shared is not None:
            tables.shared.is_named = True
        return table

    def _unknown(self, name: str) -> str:
        names = ", ".join(self._names()) or "none"
        return f"There is no table {name}; the shared tables are: {names}."

    def _names(self) -> list[str]:
        return sorted(table.name for table in self.context.catalog if is_shared(table.name))

    def _query(self, sql: str) -> str:
        return renamed(sql, self._references(sql), self._resolved)

    def _anywhere(self, sql: str) -> str:
        return renamed(sql, token_references(sql), self._resolved)

    # Statements

    def run(self, statement: kinds.ParsedStatement) -> pa.Table | kinds.ParsedStatement:
        if SCHEMA not in statement.sql.lower():
            return statement
        match statement:
            case kinds.Query() | kinds.Explain():
                return kinds.rewritten(statement, self._query(statement.sql))
            case kinds.FrontEndQuery() | kinds.SetVariable() | kinds.CreateEnum():
                return kinds.rewritten(statement, self._anywhere(statement.sql))
            case kinds.CopyTo(query=query):
                return structs.replace(statement, query=self._query(query))
            case kinds.Show():
                return self._show(statement)
            case kinds.Definition(query=query) if query:
                begin = statement.sql.removesuffix(query)
                if self._named(statement.path) is not None:
                    raise UnsupportedError("Views belong to sessions: create it without a schema.")
                return kinds.rewritten(statement, begin + self._query(query))
            case kinds.CreateSchema(path=(schema,)) if schema.lower() == SCHEMA:
                if not statement.exists_ok:
                    raise AlreadyExistsError(f"The schema {SCHEMA} is always there.")
                return counted(0)
            case kinds.DropSchema(path=(schema,)) | kinds.Use(path=(schema,)) if (
                schema.lower() == SCHEMA
            ):
                raise UnsupportedError(f"The schema {SCHEMA} can't be dropped, nor be the default.")
            case kinds.Write() | kinds.Comment():
                return self._write(statement)
            case _:
                return statement

    def explain(self, statement: Explained) -> str | Explained:
        if SCHEMA not in statement.sql.lower():
            return statement
        again, is_its = self._renamed(statement)
        assert isinstance(again, kinds.ChangeRows | kinds.CreateTableAs), "it is as it was"
        return self.named.explain(again) if is_its else again

    def _write(self, statement: kinds.Write | kinds.Comment) -> pa.Table | kinds.ParsedStatement:
        again, is_its = self._renamed(statement)
        return self.named.run(again) if is_its and again != statement else again

    def _renamed(
        self, statement: kinds.Write | kinds.Comment
    ) -> tuple[kinds.ParsedStatement, bool]:
        """A statement in the planning database's names; whether it is about a shared table."""
        target = statement.target
        name = None if target is None else self._named(target.path)
        if target is None or name is None:
            return kinds.rewritten(statement, self._reading(statement)), False
        if isinstance(statement, kinds.AlterTable) and statement.renamed:
            raise UnsupportedError(
                f"{target.name} keeps its name: CREATE TABLE ... AS FROM it, and DROP TABLE it."
            )
        if isinstance(statement, kinds.CreateIndex | kinds.CopyFrom):
            raise UnsupportedError("Shared tables have no indexes, and take rows by INSERT.")
        table = self._found(name)
        if table is None and not isinstance(statement, kinds.CreateTable | kinds.DropTable):
            raise CatalogError(self._unknown(name))
        name = name if table is None else table.name
        if isinstance(statement, kinds.ChangeRows):
            sql = change_in_scratch(statement.sql, name, self._resolved)
        else:
            sql = self._with_name(statement, target.path, name)
        return kinds.rewritten(statement, sql), True

    def _reading(self, statement: kinds.Write | kinds.Comment) -> str:
        """A statement about a table of another store, which may read shared ones."""
        if isinstance(statement, kinds.CreateTableAs):
            begin = statement.sql.removesuffix(statement.query)
            return begin + self._query(statement.query)
        return (
            statement.sql if isinstance(statement, kinds.Comment) else self._anywhere(statement.sql)
        )

    def _with_name(
        self, statement: kinds.Write | kinds.Comment, path: tuple[str, ...], name: str
    ) -> str:
        """A statement with the planning database's name of the table that it is about."""
        query = statement.query if isinstance(statement, kinds.CreateTableAs) else ""
        begin = statement.sql.removesuffix(query) if query else statement.sql
        places = [named for named in names_in(sql_tokens(begin)) if named.path[: len(path)] == path]
        first = places[0]
        rest = "".join(f".{quote(part)}" for part in first.path[len(path) :])
        sql = edited(begin, [Edit(first.first, first.last, f"{quote(name)}{rest}")])
        return sql + (self._query(query) if query else "")

    def _show(self, statement: kinds.Show) -> pa.Table | kinds.ParsedStatement:
        """SHOW TABLES FROM shared; DESCRIBE of one of its tables, or of a query."""
        planning = self.context.planning
        if statement.query:
            query = self._query(statement.query)
            with self.context.up_to_date():
                return planning.show(f"DESCRIBE {query}")
        for name in names_after(statement.sql, "SHOW TABLES FROM", "SHOW TABLES IN"):
            if name.key == (SCHEMA,):
                names = [table.removeprefix(PREFIX) for table in self.names]
                return pa.table({"name": pa.array(names, pa.string())})
        for name in names_after(statement.sql, "DESCRIBE", "DESC", "SHOW"):
            relation = self._resolved(name.path, None)
            if relation is not None:
                with self.context.up_to_date():
                    return planning.show(f"DESCRIBE {quote(relation)}")
        return kinds.rewritten(statement, self._anywhere(statement.sql))

    # What Python calls

    @property
    def names(self) -> list[str]:
        self._look()
        return self._names()

    def written(self, name: str) -> str | None:
        return None if self._named(parts(name)) is None else ".".join(map(quote, parts(name)))

    def relation(self, name: str) -> str | None:
        if self._named(parts(name)) is None:
            return None
        return self._resolved(parts(name), None)

    def size(self, name: str) -> tuple[int, int] | None:
        relation = self.relation(name)
        if relation is None:
            return None
        table = self.context.catalog.get(relation)
        return table.rows, table.bytes

    def create(self, name: str, given: GivenRows) -> bool:
        full_name = self._named(parts(name))
        if full_name is None:
            return False
        table = self._found(full_name)
        full_name = full_name if table is None else table.name
        return self.named.create(full_name, given)
