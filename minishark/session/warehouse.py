"""Statements of a session with a warehouse: what queries read there, and what others change.

Statements that are about other tables go on as before, with the planning database's names of the
warehouse's tables in them (`warehouse.names`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec import structs

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.tokens import Cursor
from minishark.errors import CatalogError, MinisharkError, UnsupportedError
from minishark.expressions import quote, quote_text
from minishark.session.file_writer import counted
from minishark.session.named_tables import HIDDEN
from minishark.session.warehouse_tables import NOT_OURS, WarehouseTables
from minishark.session.warehouse_writes import WarehouseWrites
from minishark.tables.warehouse import ddl, dml
from minishark.tables.warehouse.catalog import MAIN, NAME, TableName
from minishark.tables.warehouse.commits import committing
from minishark.tables.warehouse.names import NAMES, parts, renamed_anywhere
from minishark.tables.warehouse.types import duckdb_schema
from minishark.tables.warehouse.vacuum import vacuum

_FIRST = re.compile(r"\s*(\w+)")
_VIEW = re.compile(
    r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMP(?:ORARY)?\s+)?(?:RECURSIVE\s+)?VIEW\s+"
    r"(?:IF\s+NOT\s+EXISTS\s+)?",
    re.IGNORECASE,
)
_SCHEMA = re.compile(
    r"\s*(CREATE|DROP)\s+SCHEMA\s+(IF\s+(?:NOT\s+)?EXISTS\s+)?(.*?)(\s+CASCADE|\s+RESTRICT)?\s*",
    re.IGNORECASE | re.DOTALL,
)
_USE = re.compile(r"\s*USE\s+(.*?)\s*", re.IGNORECASE | re.DOTALL)
_DESCRIBED = re.compile(
    r"(\b(?:DESCRIBE|DESC|SHOW|SHOW\s+TABLES\s+FROM)\s+)"
    rf"(?!(?:TABLES|SCHEMAS|DATABASES|ALL|SELECT|FROM|WITH)\b)({NAMES})",
    re.IGNORECASE,
)
_DESCRIBED_QUERY = re.compile(r"\s*(?:DESCRIBE|DESC)\s+(?=(?:SELECT|FROM|WITH)\b)", re.IGNORECASE)


@dataclass(slots=True)
class Warehouse:
    """Runs the statements of a session with a warehouse, or hands them on."""

    tables: WarehouseTables
    writes: WarehouseWrites

    # Statements

    def run(self, statement: kinds.ParsedStatement) -> pa.Table | kinds.ParsedStatement:
        """The answer to a statement about the warehouse, or the statement for all other rooms."""
        sql = statement.sql
        match statement:
            case kinds.Query():
                new = self.tables.renamed(sql)
                return statement if new == sql else kinds.Query(new)
            case kinds.Explain():
                return structs.replace(statement, sql=self.tables.renamed(sql))
            case kinds.FrontEndQuery() | kinds.SetVariable() | kinds.CreateEnum():
                return structs.replace(statement, sql=renamed_anywhere(sql, self.tables.registered))
            case kinds.CopyTo(query=query):
                return structs.replace(statement, query=self.tables.renamed(query))
            case kinds.Show():
                return self._show(statement)
            case kinds.Definition():
                return self._definition(statement)
            case kinds.FrontEndCommand():
                return self._command(statement)
            case kinds.Vacuum(path=path):
                return self._vacuum(path)
            case kinds.CacheTable(path=path, caches=caches, missing_ok=missing_ok):
                return self._cache(path, caches=caches, missing_ok=missing_ok)
            case kinds.Write():
                return self._write(statement)
            case _:
                return statement

    def _definition(self, statement: kinds.Definition) -> kinds.ParsedStatement:
        sql = statement.sql
        view = _VIEW.match(sql)
        if view is None:
            return structs.replace(statement, sql=renamed_anywhere(sql, self.tables.registered))
        text = Cursor(sql)
        while text.offset < view.end():
            text.take()
        path = text.name()
        if len(path) > 1 and self.tables.resolved(path) is not None:
            raise UnsupportedError(
                f"The warehouse has no views: create {path[-1]!r} in the session, without "
                f"{'.'.join(path[:-1])}."
            )
        text.until("AS")
        text.skip("AS")
        new = sql[: text.offset] + self.tables.renamed(sql[text.offset :])
        return structs.replace(statement, sql=new)

    def _command(self, statement: kinds.FrontEndCommand) -> pa.Table | kinds.ParsedStatement:
        sql = statement.sql
        if (found := _SCHEMA.fullmatch(sql)) is not None:
            path = parts(found[3])
            if path and path[0].lower() not in NOT_OURS and len(path) <= 2:
                self.writes.refuse_in_transaction("a schema")
                if len(path) == 2 and path[0].lower() != NAME:
                    return statement
                if found[1].upper() == "CREATE":
                    self.tables.catalog.create_schema(path[-1], exists_ok=bool(found[2]))
                else:
                    cascade = (found[4] or "").strip().upper() == "CASCADE"
                    self._drop_schema(path[-1], missing_ok=bool(found[2]), cascade=cascade)
                return counted(0)
        elif (found := _USE.fullmatch(sql)) is not None:
            return self._use(statement, parts(found[1]))
        elif _FIRST.match(sql)[1].upper() == "COMMENT":  # type: ignore[index]
            path_ = ddl.comment_target(sql)
            name = self.tables.found(path_) if path_ else None
            if name is not None:
                with self.writes.changed(name) as transaction:
                    ddl.comment(transaction, sql)
                return counted(0)
        return statement

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

    def _write(self, statement: kinds.Write) -> pa.Table | kinds.ParsedStatement:
        sql = statement.sql
        first = _FIRST.match(sql)
        verb = first[1].upper() if first else ""
        if verb == "WITH":
            name = self.tables.found(dml.parse_change(sql).target)
            if name is not None:
                return self.writes.write_to(statement, "WITH", name)
        elif statement.target is not None:
            path = statement.target.path
            if verb == "CREATE":
                wanted = self.tables.resolved(path)
                is_table = isinstance(statement, kinds.CreateTableAs) or "TABLE" in sql.upper()
                if wanted is not None and not is_table and len(path) > 1:
                    raise UnsupportedError("Tables of the warehouse have no indexes.")
                if wanted is not None and is_table and not _is_temporary(sql):
                    return self.writes.create(ddl.parse_create(sql), wanted)
            else:
                missing_ok = isinstance(statement, kinds.DropTable) and statement.missing_ok
                name = self._target(path, missing_ok=missing_ok)
                if name is not None:
                    return self.writes.write_to(statement, verb, name)
                if missing_ok and len(path) > 1 and self.tables.resolved(path) is not None:
                    return counted(0)
        self.writes.refuse_memory_write(statement)
        if isinstance(statement, kinds.CreateTableAs):
            query = self.tables.renamed(statement.query)
            text = sql[: len(sql) - len(statement.query)] + query
            return structs.replace(statement, sql=text, query=query)
        new = renamed_anywhere(sql, self.tables.registered)
        return structs.replace(statement, sql=new)

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
        statement = ddl.CreateTable(
            target=path, replaces=replace, exists_ok=False, columns="", query=query
        )
        self.writes.create(statement, wanted)

    def insert(self, name: str, query: str) -> bool:
        """Add the rows of a query to a table; False if it is not the warehouse's."""
        path = parts(name)
        found = self.tables.found(path)
        if found is None:
            return False
        change = dml.Insert(target=path, columns=None, by_name=False, query=query)
        self.writes.change(change, found)
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
        snapshot = None if found is None else self.tables.current(found).current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return None
        totals = [snapshot.summary[key] for key in ("total-records", "total-files-size")]
        return None if None in totals else (int(totals[0] or 0), int(totals[1] or 0))

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
                return counted(self.tables.engine.tables.catalog.get(str(name)).rows)
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
        sql = _DESCRIBED.sub(self._qualified, statement.sql)
        query = _DESCRIBED_QUERY.match(sql)
        if query is not None:
            with self._up_to_date():
                return self.tables.scope.planning.show(
                    f"DESCRIBE {self.tables.renamed(sql[query.end() :])}"
                )
        if not statement.is_show:
            new = self.tables.renamed(sql)
            if self.tables.scope.planning.tables_in(new):  # it reads rows, too
                with self._up_to_date():
                    return self.tables.engine.query_in_front_end(new, self.tables.scope)
        with self.tables.shared.showing, self._up_to_date():
            self._mirror()
            schema = self.tables.schema
            search = "" if schema is None else f"{NAME}.{quote(schema)}"
            return self.tables.scope.scratch.catalog(sql, HIDDEN, search)

    def _qualified(self, found: re.Match[str]) -> str:
        """A schema of the warehouse in a DESCRIBE or SHOW, as the scratch database knows it."""
        path = parts(found[2])
        schema = (
            self.tables.catalog.schema(path[0])
            if path[0].lower() not in (*NOT_OURS, MAIN)
            else None
        )
        return found[0] if schema is None else f"{found[1]}{NAME}.{found[2]}"

    def _up_to_date(self) -> AbstractContextManager[None]:
        return self.tables.engine.up_to_date(self.tables.scope)

    def _mirror(self) -> None:
        """Have the scratch database know the schemas and tables, without rows."""
        catalog, shown = self.tables.catalog, self.tables.shared.shown
        schemas = catalog.schemas()
        found: dict[TableName, Any] = {}
        for name in catalog.tables():
            with contextlib.suppress(MinisharkError):  # dropped meanwhile, or of an unknown type
                found[name] = catalog.load(name)
        commands = [f"ATTACH IF NOT EXISTS ':memory:' AS {NAME}"]
        commands += [f"CREATE SCHEMA IF NOT EXISTS {NAME}.{quote(s)}" for s in schemas]
        locations = {name: table.metadata_location for name, table in found.items()}
        for name in shown:
            if locations.get(name) != shown[name]:
                commands.append(f"DROP TABLE IF EXISTS {_quoted(name)}")
        for name, table in found.items():
            if shown.get(name) != locations[name]:
                with contextlib.suppress(UnsupportedError):
                    commands += _mirrored(name, table)
        old = {name.schema for name in shown} - set(schemas)
        commands += [f"DROP SCHEMA IF EXISTS {NAME}.{quote(s)} CASCADE" for s in old]

        def apply(con: Any) -> None:
            for command in commands:
                con.execute(command)

        self.tables.engine.scratch.change(apply)
        shown.clear()
        shown.update(locations)

    # Files

    def _vacuum(self, path: Sequence[str]) -> pa.Table:
        self.writes.refuse_in_transaction("VACUUM")
        name = self.tables.found(path) if path else None
        if path and name is None:
            raise CatalogError(f"{'.'.join(path)} is no table of the warehouse.")
        names = [name] if name is not None else self.tables.catalog.tables()
        removed = 0
        for each in names:
            with committing(each):
                removed += vacuum(self.tables.catalog.load(each))
            self.tables.catalog.forget(each)
        if name is None:
            removed += self.tables.catalog.remove_unknown_folders()
        return counted(removed)

    def close(self) -> None:
        self.tables.catalog.close()


def _quoted(name: TableName) -> str:
    return f"{NAME}.{quote(name.schema)}.{quote(name.table)}"


def _mirrored(name: TableName, table: Any) -> list[str]:
    """SQL for a table of a name and columns like another's."""
    schema = table.schema()
    columns = [
        f"{quote(c.name)} {c.type}{' NOT NULL' if f.required else ''}"
        for c, f in zip(duckdb_schema(schema), schema.fields, strict=True)
    ]
    commands = [f"CREATE TABLE {_quoted(name)} ({', '.join(columns)})"]
    if table.properties.get("comment"):
        commands.append(
            f"COMMENT ON TABLE {_quoted(name)} IS {quote_text(table.properties['comment'])}"
        )
    commands += [
        f"COMMENT ON COLUMN {_quoted(name)}.{quote(f.name)} IS {quote_text(f.doc)}"
        for f in schema.fields
        if f.doc
    ]
    return commands


def _is_temporary(sql: str) -> bool:
    return re.match(r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TEMP", sql, re.IGNORECASE) is not None
