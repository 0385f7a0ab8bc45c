"""Statements of a session with a warehouse: what queries read there, and what others change.

Statements that are about other tables go on as before, with the planning database's names of the
warehouse's tables in them (`warehouse.names`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec import structs

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.changes import NewTable
from minishark.compiler.sql.tokens import Edit, edited
from minishark.errors import CatalogError, MinisharkError, UnsupportedError
from minishark.expressions import quote, quote_text
from minishark.tables.memory_store import HIDDEN
from minishark.tables.stores import TableStore, counted
from minishark.tables.warehouse import ddl
from minishark.tables.warehouse.contract import MAIN, NAME, TableName, TableVersion
from minishark.tables.warehouse.names import names_after, parts
from minishark.tables.warehouse.tables import NOT_OURS, WarehouseTables
from minishark.tables.warehouse.writes import WarehouseWrites

_LISTED = ("TABLES", "SCHEMAS", "DATABASES", "ALL")  # what SHOW lists


@dataclass(slots=True)
class Warehouse(TableStore):
    """Runs the statements of a session with a warehouse, or hands them on."""

    tables: WarehouseTables
    writes: WarehouseWrites

    # Statements

    def run(self, statement: kinds.ParsedStatement) -> pa.Table | kinds.ParsedStatement:
        """The answer to a statement about the warehouse, or the statement for all other rooms."""
        match statement:
            case kinds.Query() | kinds.Explain():
                return kinds.rewritten(statement, self.tables.renamed(statement.sql))
            case kinds.FrontEndQuery() | kinds.SetVariable() | kinds.CreateEnum():
                return self._elsewhere(statement)
            case kinds.CopyTo(query=query):
                return structs.replace(statement, query=self.tables.renamed(query))
            case kinds.Show():
                return self._show(statement)
            case kinds.Definition():
                return self._definition(statement)
            case kinds.FrontEndCommand() if not isinstance(statement, kinds.Comment):
                return self._command(statement)
            case kinds.Vacuum(path=path):
                return self._vacuum(path)
            case kinds.CacheTable(path=path, caches=caches, missing_ok=missing_ok):
                return self._cache(path, caches=caches, missing_ok=missing_ok)
            case _:
                return statement

    def _elsewhere(self, statement: kinds.ParsedStatement) -> kinds.ParsedStatement:
        """A statement for other rooms, with the names by which they know the warehouse's tables."""
        return kinds.rewritten(statement, self.tables.renamed_anywhere(statement.sql))

    def _with_query(
        self, statement: kinds.Definition | kinds.CreateTableAs
    ) -> kinds.ParsedStatement:
        """A statement that ends with a query."""
        begin = statement.sql.removesuffix(statement.query)
        return kinds.rewritten(statement, begin + self.tables.renamed(statement.query))

    def _definition(self, statement: kinds.Definition) -> kinds.ParsedStatement:
        if not statement.query:
            return self._elsewhere(statement)
        path = statement.path
        if len(path) > 1 and self.tables.resolved(path) is not None:
            raise UnsupportedError(
                f"The warehouse has no views: create {path[-1]!r} in the session, without "
                f"{'.'.join(path[:-1])}."
            )
        return self._with_query(statement)

    def _command(self, statement: kinds.FrontEndCommand) -> pa.Table | kinds.ParsedStatement:
        match statement:
            case kinds.CreateSchema(path=path) | kinds.DropSchema(path=path):
                if self._is_schema(path):
                    self.writes.refuse_in_transaction("a schema")
                    self._change_schema(statement, path[-1])
                    return counted(0)
            case kinds.Use(path=path):
                return self._use(statement, path)
        return statement

    def _is_schema(self, path: tuple[str, ...]) -> bool:
        """Whether a schema of that name is, or would be, the warehouse's."""
        is_ours = path[:1] != () and path[0].lower() not in NOT_OURS
        return is_ours and (len(path) == 1 or (len(path) == 2 and path[0].lower() == NAME))

    def _change_schema(self, statement: kinds.CreateSchema | kinds.DropSchema, schema: str) -> None:
        match statement:
            case kinds.CreateSchema(exists_ok=exists_ok):
                self.tables.catalog.create_schema(schema, exists_ok=exists_ok)
            case kinds.DropSchema(missing_ok=missing_ok, cascade=cascade):
                self._drop_schema(schema, missing_ok=missing_ok, cascade=cascade)

    def _use(
        self, statement: kinds.FrontEndCommand, path: tuple[str, ...]
    ) -> pa.Table | kinds.ParsedStatement:
        if path and path[0].lower() == NAME:
            wanted: str | None = path[1] if len(path) > 1 else MAIN
        elif len(path) == 1 and path[0].lower() not in (*NOT_OURS, MAIN):
            wanted = path[0]
        else:
            wanted = None
        found = None if wanted is None else self.tables.catalog.schema(wanted)
        if found is not None:
            self.tables.schema = found
            return counted(0)
        if wanted is not None and path[0].lower() == NAME:
            known = ", ".join(self.tables.catalog.schemas())
            raise CatalogError(f"The warehouse has no schema {wanted!r}; it has: {known}.")
        self.tables.schema = None
        return statement

    def _drop_schema(self, schema: str, *, missing_ok: bool, cascade: bool) -> None:
        found = self.tables.catalog.schema(schema)
        tables = self.tables.catalog.tables(found) if found is not None and cascade else []
        for name in tables:
            self.tables.forget(name)
        self.tables.catalog.drop_schema(schema, missing_ok=missing_ok, cascade=cascade)
        if self.tables.schema == found:
            self.tables.schema = None

    # Statements that write

    def owns(self, statement: kinds.Write | kinds.Comment) -> bool:
        path = statement.target.path if statement.target is not None else ()
        match statement:
            case kinds.CreateTable(is_temporary=is_temporary):
                return not is_temporary and self.tables.resolved(path) is not None
            case kinds.CreateIndex():
                return self._has_place(path)
            case kinds.DropTable(missing_ok=True) if path:
                return self._target(path, missing_ok=True) is not None or self._has_place(path)
        return bool(path) and self.tables.found(path) is not None

    def _has_place(self, path: Sequence[str]) -> bool:
        """Whether a name with a schema means a table of the warehouse, which may not exist."""
        return len(path) > 1 and self.tables.resolved(path) is not None

    def write(self, statement: kinds.Write | kinds.Comment) -> pa.Table:
        assert statement.target is not None, "it is one of these tables"
        path = statement.target.path
        match statement:
            case kinds.CreateTable(table=table):
                wanted = self.tables.resolved(path)
                assert wanted is not None, "it has a place here"
                return self.writes.create(table, wanted)
            case kinds.CreateIndex():
                raise UnsupportedError("Tables of the warehouse have no indexes.")
        is_optional = isinstance(statement, kinds.DropTable) and statement.missing_ok
        name = self._target(path, missing_ok=is_optional)
        if name is None:
            return counted(0)
        if isinstance(statement, kinds.Comment):
            with self.writes.changed(name) as change:
                ddl.comment(change, statement)
            return counted(0)
        return self.writes.write_to(statement, name)

    def handed_on(self, statement: kinds.Write | kinds.Comment) -> kinds.Write | kinds.Comment:
        if isinstance(statement, kinds.Comment):
            return statement
        self.writes.refuse_memory_write(statement)
        new = (
            self._with_query(statement)
            if isinstance(statement, kinds.CreateTableAs)
            else self._elsewhere(statement)
        )
        assert isinstance(new, kinds.Write), "only names are others"
        return new

    def _target(self, path: Sequence[str], *, missing_ok: bool) -> TableName | None:
        """The table that a statement changes, if it is the warehouse's."""
        try:
            return self.tables.found(path)
        except CatalogError:
            if missing_ok:
                return None
            raise

    # What Python calls

    def begin(self, *, is_lazy: bool = False) -> None:
        """Begin a transaction; a lazy one lets pass what it can't hold until it has a change."""
        self.writes.begin(is_lazy=is_lazy)

    @property
    def names(self) -> list[str]:
        """The tables, as SQL names them."""
        return [str(name) for name in self.tables.catalog.tables()]

    def registered(self, name: str) -> str | None:
        """The planning database's name of a table; None if it is not the warehouse's."""
        return self.tables.registered(parts(name), None)

    def has_place_for(self, name: str) -> bool:
        """Whether a new table of that name belongs into the warehouse."""
        path = parts(name)
        return ".".join(path) == name and self.tables.resolved(path) is not None

    def create_table(self, name: str, query: str, *, replace: bool) -> None:
        """Create a table with the rows of a query."""
        path = parts(name)
        wanted = self.tables.resolved(path)
        assert wanted is not None, "there is a place for it"
        table = NewTable(target=path, replaces=replace, exists_ok=False, columns="", query=query)
        self.writes.create(table, wanted)

    def insert(self, name: str, query: str) -> bool:
        """Add the rows of a query to a table; False if it is not the warehouse's."""
        found = self.tables.found(parts(name))
        if found is None:
            return False
        self.writes.change(f"INSERT INTO {name} {query}", found)
        return True

    def drop_table(self, name: str) -> bool:
        """Drop a table; False if it is not the warehouse's."""
        found = self.tables.found(parts(name))
        if found is None:
            return False
        self.writes.drop(found)
        return True

    def size(self, name: str) -> tuple[int, int] | None:
        """The rows and stored bytes of a table, as far as they are known without reading it."""
        found = self.tables.found(parts(name))
        return None if found is None else self.tables.current(found).size

    # Tables in memory

    def _cache(self, path: Sequence[str], *, caches: bool, missing_ok: bool) -> pa.Table:
        name = self._target(path, missing_ok=missing_ok)
        if name is None:
            if missing_ok:
                return counted(0)
            raise CatalogError(f"{'.'.join(path)} is no table of the warehouse.")
        with self.tables.shared.loading:
            if caches:
                self.writes.refuse_in_transaction(f"CACHE TABLE {name}")
                self.tables.reload(name)
                return counted(self.tables.context.tables.catalog.get(str(name)).rows)
            if name not in self.tables.cached:
                if missing_ok:
                    return counted(0)
                raise CatalogError(f"Table {name} is not cached.")
            self.tables.uncache(name)
        return counted(0)

    def cache(self, path: str) -> int:
        """Load a table into memory; its number of rows."""
        answer = self._cache(parts(path), caches=True, missing_ok=False)
        return int(answer.column(0)[0].as_py())

    def uncache(self, path: str) -> None:
        self._cache(parts(path), caches=False, missing_ok=False)

    # The catalog's tables

    def _show(self, statement: kinds.Show) -> pa.Table:
        """The answer of the scratch database, which knows the schemas and tables without rows."""
        if statement.query:
            with self._up_to_date():
                query = self.tables.renamed(statement.query)
                return self.tables.context.planning.show(f"DESCRIBE {query}")
        context = self.tables.context
        sql = edited(statement.sql, self._qualified(statement.sql))
        if not statement.is_show:
            new = self.tables.renamed(sql)
            if context.planning.tables_in(new):  # it reads rows, too
                with self._up_to_date():
                    context.compute(context.planning.tables_in(new))
                    return context.scratch.query(new)
        with self.tables.shared.showing, self._up_to_date():
            self._mirror()
            schema = self.tables.schema
            search = "" if schema is None else f"{NAME}.{quote(schema)}"
            return self.tables.context.scratch.catalog(sql, HIDDEN, search)

    def _qualified(self, sql: str) -> Iterator[Edit]:
        """Schemas of the warehouse in DESCRIBE and SHOW, as the scratch database knows them."""
        for name in names_after(sql, "DESCRIBE", "DESC", "SHOW", "SHOW TABLES FROM"):
            is_ours = name.key[0] not in (*NOT_OURS, MAIN) and name.path[0].upper() not in _LISTED
            if is_ours and self.tables.catalog.schema(name.path[0]) is not None:
                yield Edit(name.first, name.first, f"{NAME}.")

    def _up_to_date(self) -> AbstractContextManager[None]:
        return self.tables.context.up_to_date()

    def _mirror(self) -> None:
        """Have the scratch database know the schemas and tables, without rows."""
        catalog, shown = self.tables.catalog, self.tables.shared.shown
        schemas = catalog.schemas()
        found: dict[TableName, TableVersion] = {}
        for name in catalog.tables():
            with contextlib.suppress(MinisharkError):  # dropped meanwhile, or of an unknown type
                found[name] = catalog.load(name)
        commands = [f"ATTACH IF NOT EXISTS ':memory:' AS {NAME}"]
        commands += [f"CREATE SCHEMA IF NOT EXISTS {NAME}.{quote(s)}" for s in schemas]
        for name in shown:
            if found.get(name) is not shown[name]:
                commands.append(f"DROP TABLE IF EXISTS {_quoted(name)}")
        for name, table in found.items():
            if shown.get(name) is not table:
                with contextlib.suppress(UnsupportedError):
                    commands += _mirrored(name, table)
        old = {name.schema for name in shown} - set(schemas)
        commands += [f"DROP SCHEMA IF EXISTS {NAME}.{quote(s)} CASCADE" for s in old]

        def apply(con: Any) -> None:
            for command in commands:
                con.execute(command)

        self.tables.context.scratch.change(apply)
        shown.clear()
        shown.update(found)

    # Files

    def _vacuum(self, path: Sequence[str]) -> pa.Table:
        self.writes.refuse_in_transaction("VACUUM")
        name = self.tables.found(path) if path else None
        if path and name is None:
            raise CatalogError(f"{'.'.join(path)} is no table of the warehouse.")
        return counted(self.tables.catalog.vacuum(name))

    def close(self) -> None:
        self.tables.catalog.close()


def _quoted(name: TableName) -> str:
    return f"{NAME}.{quote(name.schema)}.{quote(name.table)}"


def _mirrored(name: TableName, table: TableVersion) -> list[str]:
    """SQL for a table of a name and columns like another's."""
    required, comments = table.required, table.comments
    columns = [
        f"{quote(column.name)} {column.type}{' NOT NULL' if column.name in required else ''}"
        for column in table.columns
    ]
    commands = [f"CREATE TABLE {_quoted(name)} ({', '.join(columns)})"]
    for column, text in comments.items():
        what = f"COLUMN {_quoted(name)}.{quote(column)}" if column else f"TABLE {_quoted(name)}"
        commands.append(f"COMMENT ON {what} IS {quote_text(text)}")
    return commands
