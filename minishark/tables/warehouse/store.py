"""The warehouse as a store of tables: runs the statements about it, or hands them on.

Statements that are about other tables go on with the planning database's names of the warehouse's
tables in them (`warehouse.names`). Those that write run their queries on the cluster, where tasks
write files; then one commit makes these part of the table. In a transaction, it waits for COMMIT.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import structs

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.changes import NewTable, parse_change
from minishark.compiler.sql.times import at_moment
from minishark.compiler.sql.tokens import Edit, edited
from minishark.errors import AlreadyExistsError, CatalogError, MinisharkError, UnsupportedError
from minishark.model.expressions import declared, quote, quote_text
from minishark.query.sinks import CollectRows
from minishark.tables.cached import CachedRows
from minishark.tables.changes import Changes, NotHereError
from minishark.tables.memory_store import MemoryStore
from minishark.tables.scratch_store import ScratchTables
from minishark.tables.store import table_schema
from minishark.tables.stores import (
    Explained,
    GivenRows,
    SelectedRows,
    StoreContext,
    TableStore,
    counted,
)
from minishark.tables.warehouse import ddl
from minishark.tables.warehouse.changed_table import WarehouseTable
from minishark.tables.warehouse.contract import (
    MAIN,
    NAME,
    Described,
    TableChange,
    TableName,
    TableVersion,
)
from minishark.tables.warehouse.names import names_after, parts
from minishark.tables.warehouse.queried import NOT_OURS, QueriedTables
from minishark.tables.warehouse.shared import (
    SharedWarehouse,
    WarehouseTransaction,
    committed_or_undone,
)

_LISTED = ("TABLES", "SCHEMAS", "DATABASES", "ALL")  # what SHOW lists
_SEVERAL = (
    "A transaction changes one table of the warehouse: {} can't be part of this one, which has "
    "changed {}."
)


class Warehouse(TableStore):
    """The tables of a warehouse, for a session."""

    __slots__ = ("catalog", "context", "elsewhere", "refresh", "shared", "tables")

    def __init__(
        self,
        context: StoreContext,
        shared: SharedWarehouse,
        named: MemoryStore,
        elsewhere: ScratchTables,
    ) -> None:
        """A session's, with its tables in memory, and what answers statements about the catalog."""
        self.context, self.shared, self.elsewhere = context, shared, elsewhere
        self.catalog = shared.catalog
        self.tables = QueriedTables(context=context, named=named, shared=shared)
        self.refresh = self.tables.refresh

    def run(self, statement: kinds.ParsedStatement) -> pa.Table | kinds.ParsedStatement:
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
            case kinds.CreateSchema(path=path) | kinds.DropSchema(path=path):
                return self._change_schema(statement, path)
            case kinds.Use(path=path):
                return self._use(statement, path)
            case kinds.Vacuum(path=path):
                return self._vacuum(path)
            case kinds.CacheTable(path=path, caches=caches, missing_ok=missing_ok):
                return counted(self._cache(path, caches=caches, missing_ok=missing_ok))
            case kinds.Write() | kinds.Comment():
                return self._write(statement)
            case _:
                return statement

    def _elsewhere(self, statement: kinds.ParsedStatement) -> kinds.ParsedStatement:
        """A statement for other stores, with their names of the warehouse's tables."""
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
        if self._has_place(statement.path):
            raise UnsupportedError(
                f"The warehouse has no views: create {statement.name!r} in the session, without "
                f"{'.'.join(statement.path[:-1])}."
            )
        return self._with_query(statement)

    # Schemas

    def _change_schema(
        self, statement: kinds.CreateSchema | kinds.DropSchema, path: tuple[str, ...]
    ) -> pa.Table | kinds.ParsedStatement:
        is_ours = path[:1] != () and path[0].lower() not in NOT_OURS
        if not is_ours or not (len(path) == 1 or (len(path) == 2 and path[0].lower() == NAME)):
            return statement
        self._refuse_in_transaction("a schema")
        catalog, schema = self.catalog, path[-1]
        if isinstance(statement, kinds.CreateSchema):
            catalog.create_schema(schema, exists_ok=statement.exists_ok)
            return counted(0)
        full_schema = catalog.schema(schema)
        if full_schema is not None and statement.cascade:
            for name in catalog.tables(full_schema):
                self.tables.forget(name)
        catalog.drop_schema(schema, missing_ok=statement.missing_ok, cascade=statement.cascade)
        if self.tables.schema == full_schema:
            self.tables.schema = None
        return counted(0)

    def _use(self, statement: kinds.Use, path: tuple[str, ...]) -> pa.Table | kinds.Use:
        is_surely_ours = path[:1] != () and path[0].lower() == NAME
        if is_surely_ours:
            schema: str | None = path[1] if len(path) > 1 else MAIN
        else:
            is_ours = len(path) == 1 and path[0].lower() not in (*NOT_OURS, MAIN)
            schema = path[0] if is_ours else None
        full_schema = None if schema is None else self.catalog.schema(schema)
        if is_surely_ours and full_schema is None:
            schemas = ", ".join(self.catalog.schemas())
            raise CatalogError(f"The warehouse has no schema {schema!r}; it has: {schemas}.")
        self.tables.schema = full_schema
        return statement if full_schema is None else counted(0)

    # Statements that write

    def _write(self, statement: kinds.Write | kinds.Comment) -> pa.Table | kinds.ParsedStatement:
        path = statement.target.path if statement.target is not None else ()
        if isinstance(statement, kinds.CreateTable):
            full_name = None if statement.is_temporary else self.tables.resolved(path)
            return (
                self._handed_on(statement)
                if full_name is None
                else self._create(statement.table, full_name)
            )
        has_place = self._has_place(path)
        if isinstance(statement, kinds.CreateIndex):
            if has_place:
                raise UnsupportedError("Tables of the warehouse have no indexes.")
            return self._handed_on(statement)
        is_optional = isinstance(statement, kinds.DropTable) and statement.missing_ok
        name = self._found(path, missing_ok=is_optional)
        if name is None:
            return counted(0) if is_optional and has_place else self._handed_on(statement)
        match statement:
            case kinds.Comment():
                with self._changed(name) as change:
                    ddl.comment(change, statement)
            case kinds.DropTable():
                self._refuse_in_transaction(f"DROP TABLE {name}")
                self.tables.forget(name)
                self.catalog.drop(name)
            case kinds.AlterTable(sql=sql):
                self._alter(sql, name)
            case kinds.ChangeRows(sql=sql):
                now = self.context.transaction.began() or datetime.now(UTC)
                return self._change(at_moment(sql, now), name)
            case _:
                raise UnsupportedError(f"Write INSERT INTO {name} FROM 'file' instead of COPY.")
        return counted(0)

    def _has_place(self, path: Sequence[str]) -> bool:
        """Whether a name with a schema means a table of the warehouse, which may not exist."""
        return len(path) > 1 and self.tables.resolved(path) is not None

    def _found(self, path: Sequence[str], *, missing_ok: bool) -> TableName | None:
        """The table that a name means, if it is the warehouse's."""
        try:
            return self.tables.found(path)
        except CatalogError:
            if missing_ok:
                return None
            raise

    def _handed_on(self, statement: kinds.Write | kinds.Comment) -> kinds.ParsedStatement:
        """A statement about a table of other stores."""
        if isinstance(statement, kinds.Comment):
            return statement
        open_ = self.tables.transaction
        if open_ is not None and open_.refuses:
            target = statement.target.name if statement.target is not None else "a table in memory"
            raise UnsupportedError(_SEVERAL.format(target, open_.name or "nothing yet"))
        if isinstance(statement, kinds.CreateTableAs):
            return self._with_query(statement)
        return self._elsewhere(statement)

    def _alter(self, sql: str, name: TableName) -> None:
        with (
            contextlib.closing(self.context.planning.connection()) as con,
            self._changed(name) as change,
        ):
            renamed_to = ddl.alter(change, sql, con)
        if renamed_to is not None:
            self._refuse_in_transaction(f"ALTER TABLE {name} RENAME")
            self.tables.forget(name)
            to = self.tables.resolved(renamed_to) if len(renamed_to) > 1 else None
            self.catalog.rename(name, to or TableName(name.schema, renamed_to[-1]))

    def _create(self, statement: NewTable, asked: TableName) -> pa.Table:
        ddl.supported(statement)
        self._refuse_in_transaction(f"CREATE TABLE {asked}")
        context, catalog = self.context, self.catalog
        old = catalog.find(asked.schema, asked.table)
        if old is not None and not statement.replaces:
            if statement.exists_ok:
                return counted(0)
            raise AlreadyExistsError(f"There is a table called {old} already.")
        name = old or TableName(catalog.existing_schema(asked.schema), asked.table)
        query = self.tables.renamed(statement.query) if statement.query else ""
        held = self._of_catalog(query)
        if held is not None:
            query = f"FROM {quote(held.name)}"
        if query:
            with context.up_to_date():
                columns = Described(table_schema(context.planning.bind(query).schema))
        else:
            with contextlib.closing(context.planning.connection()) as con:
                columns = ddl.described(con, statement.columns)
        partitions = ddl.parsed_partitions(statement.partitions, columns.schema)
        if old is None:
            new = catalog.create(name, columns, partitions, statement.properties)
            with _committed(new):
                return counted(self._table(name, new).filled(query) if query else 0)
        with self._changed(name) as change:
            change.redefine(columns, partitions)
            rows = self._table(name, change).filled(query) if query else 0
        self.tables.forget(name)  # only now: the query may read the table that it replaces
        return counted(rows)

    def _of_catalog(self, query: str) -> CachedRows | None:
        """The rows of a query that reads the catalog, which no task can; None for others."""
        context = self.context
        if not context.scratch.reads_catalog(query):
            return None
        with context.up_to_date():
            rows = context.run(query, CollectRows(lossless=True))
        return context.cached.load(rows, None, context.observed)

    def _change(self, sql: str, name: TableName) -> pa.Table:
        """Run an INSERT, DELETE, UPDATE or MERGE on a table."""
        parsed, context = parse_change(sql), self.context
        assert parsed is not None, "it is one of these"
        with self._changed(name) as change, context.up_to_date():
            table = self._table(name, change)
            try:
                return self._changes(table).apply(sql, parsed, table)
            except NotHereError as error:
                raise error.error from error

    def _changes(self, table: WarehouseTable) -> Changes:
        return Changes.of(self.context, table.run, table.bind)

    def explain(self, statement: Explained) -> str | kinds.ParsedStatement:
        path, context = () if statement.target is None else statement.target.path, self.context
        if isinstance(statement, kinds.CreateTableAs):
            full_name = None if statement.is_temporary else self.tables.resolved(path)
            if full_name is None:
                return self._handed_on(statement)
            stages = context.explain(self.tables.renamed(statement.query), None)
            return f"Concerns {full_name} in the warehouse. Tasks store the rows.\n{stages}"
        name = self._found(path, missing_ok=False)
        if name is None:
            return self._handed_on(statement)
        sql = at_moment(statement.sql, context.transaction.began() or datetime.now(UTC))
        parsed, open_ = parse_change(sql), self.tables.transaction
        assert parsed is not None, "it is one of these"
        change = None if open_ is None or open_.name != name else open_.change
        table = self._table(name, change or self.catalog.change(name))
        try:
            told = self._changes(table).explain(
                sql,
                parsed,
                table,
                lambda query, catalog: context.explain(table.renamed(query), catalog),
            )
        except NotHereError as error:
            raise error.error from error
        return f"Concerns {name} in the warehouse. {told}"

    def _table(self, name: TableName, change: TableChange) -> WarehouseTable:
        return WarehouseTable(name, change, self.context, self.tables.registered)

    # Transactions

    def begin(self, *, is_lazy: bool) -> bool:
        self.context.transaction.begin(
            lambda: WarehouseTransaction(sources=self.context.sources, is_lazy=is_lazy)
        )
        return True

    @contextlib.contextmanager
    def _changed(self, name: TableName) -> Iterator[TableChange]:
        """A change of a table, committed after the block; in a transaction, that waits."""
        open_ = self.tables.transaction
        if open_ is None:
            with _committed(self.catalog.change(name)) as change:
                yield change
            return
        if open_.change is None:
            open_.name, open_.change = name, self.catalog.change(name)
        elif open_.name != name:
            raise UnsupportedError(_SEVERAL.format(name, open_.name))
        yield open_.change

    def _refuse_in_transaction(self, statement: str) -> None:
        open_ = self.tables.transaction
        if open_ is not None and open_.refuses:
            raise UnsupportedError(f"{statement} can't be part of a transaction: COMMIT first.")

    # What Python calls

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.catalog.tables()]

    def written(self, name: str) -> str | None:
        path = parts(name)
        return None if self.tables.found(path) is None else ".".join(map(quote, path))

    def relation(self, name: str) -> str | None:
        return self.tables.registered(parts(name), None)

    def size(self, name: str) -> tuple[int, int] | None:
        full_name = self.tables.found(parts(name))
        return None if full_name is None else self.tables.current(full_name).size

    def create(self, name: str, given: GivenRows) -> bool:
        path, held = parts(name), None
        resolved = self.tables.resolved(path) if ".".join(path) == name else None
        if resolved is None:
            return False
        rows = given.rows
        if not isinstance(rows, SelectedRows):
            held = self.context.cached.load(rows, None, self.context.observed)
            rows = SelectedRows(f"FROM {quote(held.name)}")
        try:
            table = NewTable(
                target=path, replaces=given.replace, exists_ok=False, columns="", query=rows.sql
            )
            self._create(table, resolved)
        finally:
            if held is not None:
                self.context.cached.forget(held.name)
        return True

    # Tables in memory

    def _cache(self, path: Sequence[str], *, caches: bool, missing_ok: bool) -> int:
        """Load a table into memory, or free that; its number of rows."""
        name = self._found(path, missing_ok=missing_ok)
        if name is None:
            if missing_ok:
                return 0
            raise CatalogError(f"{'.'.join(path)} is no table of the warehouse.")
        with self.shared.loading:
            if caches:
                self._refuse_in_transaction(f"CACHE TABLE {name}")
                self.tables.reload(name)
                return self.context.tables.catalog.get(str(name)).rows
            if name not in self.shared.cached and not missing_ok:
                raise CatalogError(f"Table {name} is not cached.")
            self.tables.uncache(name)
        return 0

    def clear_cache(self) -> int:
        with self.shared.loading:
            names = tuple(self.shared.cached)
            for name in names:
                self.tables.uncache(name)
            return len(names)

    # The catalog's tables

    def _show(self, statement: kinds.Show) -> pa.Table | kinds.ParsedStatement:
        """The answer of the scratch database, which knows the schemas and tables without rows."""
        context = self.context
        if statement.query:
            with context.up_to_date():
                return context.planning.show(f"DESCRIBE {self.tables.renamed(statement.query)}")
        sql = edited(statement.sql, self._qualified(statement.sql))
        if not statement.is_show:
            new = self.tables.renamed(sql)
            if context.planning.tables_in(new):  # it reads rows, too
                return kinds.rewritten(statement, new)
        schema = self.tables.schema
        search = "" if schema is None else f"{NAME}.{quote(schema)}"
        return self.elsewhere.show(structs.replace(statement, sql=sql), search)

    def _qualified(self, sql: str) -> Iterator[Edit]:
        """Schemas of the warehouse in DESCRIBE and SHOW, as the scratch database knows them."""
        for name in names_after(sql, "DESCRIBE", "DESC", "SHOW", "SHOW TABLES FROM"):
            is_ours = name.key[0] not in (*NOT_OURS, MAIN) and name.path[0].upper() not in _LISTED
            if is_ours and self.catalog.schema(name.path[0]) is not None:
                yield Edit(name.first, name.first, f"{NAME}.")

    @contextlib.contextmanager
    def mirrored(self) -> Iterator[None]:
        """A block in which the scratch database knows the schemas and tables, without rows."""
        with self.shared.showing:
            self._mirror()
            yield

    def _mirror(self) -> None:
        catalog, shown = self.catalog, self.shared.shown
        schemas = catalog.schemas()
        loaded: dict[TableName, TableVersion] = {}
        for name in catalog.tables():
            with contextlib.suppress(MinisharkError):  # dropped meanwhile, or of an unknown type
                loaded[name] = catalog.load(name)
        commands = [f"ATTACH IF NOT EXISTS ':memory:' AS {NAME}"]
        commands += [f"CREATE SCHEMA IF NOT EXISTS {NAME}.{quote(s)}" for s in schemas]
        for name in shown:
            if loaded.get(name) is not shown[name]:
                commands.append(f"DROP TABLE IF EXISTS {_quoted(name)}")
        for name, table in loaded.items():
            if shown.get(name) is not table:
                with contextlib.suppress(UnsupportedError):
                    commands += _mirrored(name, table)
        old = {name.schema for name in shown} - set(schemas)
        commands += [f"DROP SCHEMA IF EXISTS {NAME}.{quote(s)} CASCADE" for s in old]

        def apply(con: Any) -> None:
            for command in commands:
                con.execute(command)

        self.context.scratch.change(apply)
        shown.clear()
        shown.update(loaded)

    # Files

    def _vacuum(self, path: Sequence[str]) -> pa.Table:
        self._refuse_in_transaction("VACUUM")
        name = self.tables.found(path) if path else None
        if path and name is None:
            raise CatalogError(f"{'.'.join(path)} is no table of the warehouse.")
        return counted(self.catalog.vacuum(name))


@contextlib.contextmanager
def _committed(change: TableChange) -> Iterator[TableChange]:
    """A block whose change is committed after it, or undone if it fails."""
    try:
        yield change
    except BaseException:
        change.roll_back()
        raise
    committed_or_undone(change)


def _quoted(name: TableName) -> str:
    return f"{NAME}.{quote(name.schema)}.{quote(name.table)}"


def _mirrored(name: TableName, table: TableVersion) -> list[str]:
    """SQL for a table of a name and columns like another's."""
    required, comments = table.required, table.comments
    commands = [f"CREATE TABLE {_quoted(name)} ({declared(table.columns, required)})"]
    for column, text in comments.items():
        place = f"COLUMN {_quoted(name)}.{quote(column)}" if column else f"TABLE {_quoted(name)}"
        commands.append(f"COMMENT ON {place} IS {quote_text(text)}")
    return commands
