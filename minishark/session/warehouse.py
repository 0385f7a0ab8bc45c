"""Statements over tables of the warehouse: what queries read there, and what others change.

Statements that are about other tables go on as before, with the planning database's names of the
warehouse's tables in them (`warehouse.names`). A statement that writes runs its queries on the
cluster, where tasks write files; then one commit makes them part of the table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import structs
from pyiceberg.table import Table as IcebergTable

from minishark.compiler.sql import statements as kinds
from minishark.errors import CatalogError, MinisharkError, QueryError, UnsupportedError
from minishark.expressions import Schema, quote
from minishark.query.sinks import CollectRows, Layout
from minishark.session.engine import Engine
from minishark.session.file_writer import counted
from minishark.session.named_tables import HIDDEN, NamedTables
from minishark.tables.store import table_schema
from minishark.warehouse import ddl, dml
from minishark.warehouse.catalog import MAIN, NAME, TableName, WarehouseCatalog
from minishark.warehouse.commits import append, committing, replace, replace_schema
from minishark.warehouse.names import At, parts, renamed, renamed_anywhere
from minishark.warehouse.sink import WriteTable, WrittenRows
from minishark.warehouse.source import (
    FixedSource,
    LocatedRows,
    WarehouseSource,
    as_it_is,
    remove_files,
)
from minishark.warehouse.types import duckdb_schema, iceberg_schema
from minishark.warehouse.vacuum import vacuum
from minishark.warehouse.writer import WriteRows

_NOT_OURS = ("memory", "temp", "system")
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
_NAMES = r'(?:"(?:[^"]|"")+"|[^\W\d]\w*)(?:\s*\.\s*(?:"(?:[^"]|"")+"|[^\W\d]\w*))*'
_SUMMARIZE = re.compile(rf"(\bSUMMARIZE\s+)(?!SELECT\b|FROM\b|WITH\b)({_NAMES})", re.IGNORECASE)
_DESCRIBED = re.compile(
    rf"(\b(?:DESCRIBE|DESC|SHOW|SHOW\s+TABLES\s+FROM)\s+)"
    rf"(?!(?:TABLES|SCHEMAS|DATABASES|ALL|SELECT|FROM|WITH)\b)({_NAMES})",
    re.IGNORECASE,
)
_DESCRIBED_QUERY = re.compile(r"\s*(?:DESCRIBE|DESC)\s+(?=(?:SELECT|FROM|WITH)\b)", re.IGNORECASE)
_SEVERAL = (
    "A transaction changes one table of the warehouse, or tables in memory: {} can't be part of "
    "this one, which has changed {}."
)


@dataclass(slots=True)
class _Transaction:
    """A transaction that was begun, and what it has done so far."""

    name: TableName | None = None  # the table of the warehouse that it changes
    iceberg: Any = None  # pyiceberg's transaction
    files: list[str] = field(default_factory=list)  # the data files that were written


@dataclass(slots=True)
class Warehouse:
    """The warehouse of a session."""

    engine: Engine  # runs queries
    named: NamedTables  # tables in memory
    catalog: WarehouseCatalog
    schema: str | None = None  # the schema that USE has chosen; None for the tables in memory
    _transaction: _Transaction | None = None
    _cached: dict[TableName, Any] = field(default_factory=dict)  # with their metadata when loaded
    _shown: dict[TableName, str | None] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # Names

    def resolved(self, path: Sequence[str]) -> TableName | None:
        """The table that a name means, if it is one of the warehouse; it may not exist."""
        match list(path):
            case [table]:
                return None if self.schema is None else TableName(self.schema, table)
            case [schema, table]:
                if schema.lower() == NAME:
                    return TableName(MAIN, table)
                if schema.lower() in (*_NOT_OURS, MAIN):
                    return None
                found = self.catalog.schema(schema)
                return None if found is None else TableName(found, table)
            case [catalog, schema, table] if catalog.lower() == NAME:
                return TableName(schema, table)
        return None

    def found(self, path: Sequence[str]) -> TableName | None:
        """The existing table of the warehouse that a name means; None if it means another."""
        name = self.resolved(path)
        if name is None:
            return None
        known = self.catalog.find(name.schema, name.table)
        if known is None and len(path) > 1:
            if path[0].lower() != NAME and self.engine.planning.has_relation(path[-1]):
                return None
            raise CatalogError(self._unknown(name))
        return known

    def _unknown(self, name: TableName) -> str:
        schema = self.catalog.schema(name.schema)
        if schema is None:
            known = ", ".join(self.catalog.schemas()) or "none"
            return f"The warehouse has no schema {name.schema!r}; its schemas are: {known}."
        known = ", ".join(table.table for table in self.catalog.tables(schema)) or "none"
        return f"There is no table {name}; the tables of that schema are: {known}."

    def renamed(self, sql: str) -> str:
        """A query with the planning database's names, under which its tables can be read now."""
        sql = _SUMMARIZE.sub(self._summarized, sql)  # its name has no place in the syntax tree
        try:
            return renamed(sql, self.engine.planning.syntax, self._registered)
        except QueryError:  # no SELECT, as PIVOT is none
            return renamed_anywhere(sql, self._registered)

    def _summarized(self, found: re.Match[str]) -> str:
        name = self._registered(parts(found[2]), None)
        return found[0] if name is None else f"{found[1]}{quote(name)}"

    def _registered(self, path: tuple[str, ...], at: At | None) -> str | None:
        try:
            name = self.found(path)
        except CatalogError:
            if len(path) > 1 and path[0].lower() == NAME:
                raise
            return None  # a struct's field, or DuckDB says that it is missing
        if name is None:
            return None
        sources = self.engine.planner.sources
        if at is None:
            if name in self._cached:
                self._reload(name)
            elif str(name) not in sources:
                sources.add(str(name), self._source(name))
            return str(name)
        number, moment = self._moment(at)
        version = f"{name}@{number if moment is None else moment.isoformat()}"
        if version not in sources:
            source = WarehouseSource(
                version, lambda: self.current(name), snapshot_id=number, timestamp=moment
            )
            sources.add(version, source)
        return version

    def _source(self, name: TableName) -> WarehouseSource:
        return WarehouseSource(str(name), lambda: self.current(name))

    def _moment(self, at: At) -> tuple[int | None, datetime | None]:
        """The snapshot, or the point in time, that an AT clause means."""
        kind = "BIGINT" if at.unit == "VERSION" else "TIMESTAMPTZ"
        with contextlib.closing(self.engine.planning.connection()) as con:
            try:
                (row,) = con.execute(
                    f"SELECT epoch_us(CAST(({at.expression}) AS TIMESTAMPTZ))"
                    if kind == "TIMESTAMPTZ"
                    else f"SELECT CAST(({at.expression}) AS BIGINT)"
                ).fetchall()
            except Exception as error:
                raise QueryError(f"AT ({at.unit} => {at.expression}): {error}") from error
        if row[0] is None:
            raise QueryError(f"AT ({at.unit} => ...) needs a value, not NULL.")
        if at.unit == "VERSION":
            return int(row[0]), None
        return None, datetime.fromtimestamp(row[0] / 1e6, UTC)

    def current(self, name: TableName) -> Any:
        """Pyiceberg's table as statements see it now: with what an open transaction has done."""
        open_ = self._transaction
        if open_ is not None and open_.name == name:
            table = self.catalog.load(name)
            return IcebergTable(
                (name.schema, name.table),
                open_.iceberg.table_metadata,
                table.metadata_location,
                table.io,
                table.catalog,
            )
        return self.catalog.load(name)

    def refresh(self) -> None:
        """Forget the tables that others have dropped, and load changed ones again to memory."""
        sources = self.engine.planner.sources
        for registered in sources.names:
            path = registered.partition("@")[0].split(".")
            if path[0] != NAME or len(path) < 3:
                continue
            name = TableName(".".join(path[1:-1]), path[-1])
            try:
                self.catalog.load(name)
            except CatalogError:
                with contextlib.suppress(KeyError):
                    sources.remove(registered)
        for name in list(self._cached):
            self._reload(name)

    # Statements

    def run(self, statement: kinds.ParsedStatement) -> pa.Table | kinds.ParsedStatement:
        """The answer to a statement about the warehouse, or the statement for all other rooms."""
        sql = statement.sql
        match statement:
            case kinds.Query():
                new = self.renamed(sql)
                return statement if new == sql else kinds.Query(new)
            case kinds.Explain():
                return structs.replace(statement, sql=self.renamed(sql))
            case kinds.FrontEndQuery() | kinds.SetVariable() | kinds.CreateEnum():
                return structs.replace(
                    statement, sql=renamed_anywhere(sql, self._registered)
                )
            case kinds.CopyTo(query=query):
                return structs.replace(statement, query=self.renamed(query))
            case kinds.Show():
                return self._show(statement)
            case kinds.Definition():
                return self._definition(statement)
            case kinds.FrontEndCommand():
                return self._command(statement)
            case kinds.Transaction(verb=verb):
                return self._transact(verb)
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
            return kinds.Definition(renamed_anywhere(sql, self._registered))
        text = dml.Text(sql)
        while text.offset < view.end():
            text.at += 1
        path = text.name()
        if len(path) > 1 and self.resolved(path) is not None:
            raise UnsupportedError(
                f"The warehouse has no views: create {path[-1]!r} in the session, without "
                f"{'.'.join(path[:-1])}."
            )
        text.until("AS")
        text.skip("AS")
        return kinds.Definition(sql[: text.offset] + self.renamed(sql[text.offset :]))

    def _command(self, statement: kinds.FrontEndCommand) -> pa.Table | kinds.ParsedStatement:
        sql = statement.sql
        if (found := _SCHEMA.fullmatch(sql)) is not None:
            path = parts(found[3])
            if path and path[0].lower() not in _NOT_OURS and len(path) <= 2:
                self._refuse_in_transaction("a schema")
                if len(path) == 2 and path[0].lower() != NAME:
                    return statement
                if found[1].upper() == "CREATE":
                    self.catalog.create_schema(path[-1], exists_ok=bool(found[2]))
                else:
                    cascade = (found[4] or "").strip().upper() == "CASCADE"
                    self._drop_schema(path[-1], missing_ok=bool(found[2]), cascade=cascade)
                return counted(0)
        elif (found := _USE.fullmatch(sql)) is not None:
            return self._use(statement, parts(found[1]))
        elif _FIRST.match(sql)[1].upper() == "COMMENT":  # type: ignore[index]
            path_ = ddl.comment_target(sql)
            name = self.found(path_) if path_ else None
            if name is not None:
                with self._changed(name) as transaction:
                    ddl.comment(transaction, sql)
                return counted(0)
        return statement

    def _use(
        self, statement: kinds.FrontEndCommand, path: tuple[str, ...]
    ) -> pa.Table | kinds.ParsedStatement:
        if path and path[0].lower() == NAME:
            wanted: str | None = path[1] if len(path) > 1 else MAIN
        elif len(path) == 1 and path[0].lower() not in (*_NOT_OURS, MAIN):
            wanted = path[0]
        else:
            wanted = None
        found = None if wanted is None else self.catalog.schema(wanted)
        if found is not None:
            self.schema = found
            return counted(0)
        if wanted is not None and path[0].lower() == NAME:
            known = ", ".join(self.catalog.schemas())
            raise CatalogError(f"The warehouse has no schema {wanted!r}; it has: {known}.")
        self.schema = None
        return statement

    def _drop_schema(self, schema: str, *, missing_ok: bool, cascade: bool) -> None:
        found = self.catalog.schema(schema)
        tables = self.catalog.tables(found) if found is not None and cascade else []
        for name in tables:
            self._forget(name)
        self.catalog.drop_schema(schema, missing_ok=missing_ok, cascade=cascade)
        if self.schema == found:
            self.schema = None

    # Statements that write

    def _write(self, statement: kinds.Write) -> pa.Table | kinds.ParsedStatement:
        sql = statement.sql
        first = _FIRST.match(sql)
        verb = first[1].upper() if first else ""
        if verb == "WITH":
            change = dml.parse_change(sql)
            name = self.found(change.target)
            if name is not None:
                return self._change(change, name)
        elif statement.target is not None:
            path = statement.target.path
            if verb == "CREATE":
                wanted = self.resolved(path)
                is_table = isinstance(statement, kinds.CreateTableAs) or "TABLE" in sql.upper()
                if wanted is not None and is_table and not _is_temporary(sql):
                    return self._create(ddl.parse_create(sql), wanted)
            else:
                missing_ok = isinstance(statement, kinds.DropTable) and statement.missing_ok
                name = self._target(path, missing_ok=missing_ok)
                if name is not None:
                    return self._write_to(statement, verb, name)
                if missing_ok and len(path) > 1 and self.resolved(path) is not None:
                    return counted(0)
        self._refuse_memory_write(statement)
        if isinstance(statement, kinds.CreateTableAs):
            query = self.renamed(statement.query)
            text = sql[: len(sql) - len(statement.query)] + query
            return structs.replace(statement, sql=text, query=query)
        new = renamed_anywhere(sql, self._registered)
        return structs.replace(statement, sql=new)

    def _target(self, path: Sequence[str], *, missing_ok: bool) -> TableName | None:
        """The table that a statement changes, if it is the warehouse's."""
        try:
            return self.found(path)
        except CatalogError:
            if missing_ok:
                return None
            raise

    def _write_to(self, statement: kinds.Write, verb: str, name: TableName) -> pa.Table:
        sql = statement.sql
        match verb:
            case "DROP":
                self._refuse_in_transaction(f"DROP TABLE {name}")
                self._forget(name)
                self.catalog.drop(name)
                return counted(0)
            case "ALTER":
                self._alter(sql, name)
                return counted(0)
            case "INSERT" | "DELETE" | "TRUNCATE" | "UPDATE" | "MERGE":
                return self._change(dml.parse_change(sql), name)
            case "COPY":
                raise UnsupportedError(f"Write INSERT INTO {name} FROM 'file' instead of COPY.")
        raise UnsupportedError(f"Tables of the warehouse have no {verb}.")

    def _alter(self, sql: str, name: TableName) -> None:
        with (
            contextlib.closing(self.engine.planning.connection()) as con,
            self._changed(name) as transaction,
        ):
            renamed_to = ddl.alter(transaction, sql, con)
        if renamed_to is not None:
            self._refuse_in_transaction(f"ALTER TABLE {name} RENAME")
            self._forget(name)
            to = self.resolved(renamed_to) if len(renamed_to) > 1 else None
            self.catalog.rename(name, to or TableName(name.schema, renamed_to[-1]))

    def _create(self, statement: ddl.CreateTable, wanted: TableName) -> pa.Table:
        self._refuse_in_transaction(f"CREATE TABLE {wanted}")
        engine, catalog = self.engine, self.catalog
        old = catalog.find(wanted.schema, wanted.table)
        if old is not None and not statement.replaces:
            if statement.exists_ok:
                return counted(0)
            raise CatalogError(f"There is a table called {old} already.")
        name = old or catalog.new_name(wanted.schema, wanted.table)
        query = self.renamed(statement.query) if statement.query else ""
        if query:
            with engine.up_to_date():
                found = ddl.Described(table_schema(engine.planning.bind(query).schema), ())
        else:
            with contextlib.closing(engine.planning.connection()) as con:
                found = ddl.described(con, statement.columns)
        schema = iceberg_schema(found.schema, found.required)
        spec = ddl.partition_spec(statement.partitions, schema)
        if old is not None:
            return self._replaced(old, schema, spec, query)
        transaction = catalog.new_table(name, schema, spec, statement.properties)
        location = transaction.table_metadata.location
        try:
            written = None
            if query:
                written = self._written(name, transaction, _typed(query, transaction))
                append(transaction, written.files, _write_id())
            with committing(name):
                transaction.commit_transaction()
        except BaseException:
            catalog.abandon(name, location)
            raise
        return counted(written.rows if written is not None else 0)

    def _replaced(self, name: TableName, schema: Any, spec: Any, query: str) -> pa.Table:
        """CREATE OR REPLACE: a new version of a table, with other columns and rows."""
        self._forget(name)
        with self._changed(name) as transaction:
            # The old files first: how they are partitioned says something about old columns.
            replace(transaction, [*_files(self._table(name)).values()], (), _write_id())
            replace_schema(transaction, schema, spec)
            written = None
            if query:
                written = self._written(name, transaction, _typed(query, transaction))
                append(transaction, written.files, _write_id())
        return counted(written.rows if written is not None else 0)

    # Changes of rows

    def _change(self, change: dml.Change, name: TableName) -> pa.Table:
        match change:
            case dml.Insert():
                return counted(self._insert(change, name))
            case dml.Delete():
                return counted(self._delete(change, name))
            case dml.Update():
                return counted(self._update(change, name))
            case dml.Merge():
                return counted(self._merge(change, name))

    def _insert(self, change: dml.Insert, name: TableName) -> int:
        with self._changed(name) as transaction:
            target = _target(name, transaction)
            names: list[str] = []
            if change.query:
                bound = self._bound(f"{change.ctes}{change.query}")
                names = [column.name for column in bound]
            sql = self.renamed(dml.inserted(change, target, names))
            written = self._written(name, transaction, sql)
            append(transaction, written.files, _write_id())
            return written.rows

    def _delete(self, change: dml.Delete, name: TableName) -> int:
        with self._changed(name) as transaction:
            table = self._table(name)
            files = _files(table)
            with self._located(name, table) as (located, of):
                if dml.is_volatile(change.condition):
                    matching = self._rows(dml.matching_files(_all(change), located))
                    counts = {}
                    affected = dict(matching)
                else:
                    counts = dict(self._rows(self.renamed(dml.matching_files(change, located))))
                    affected = counts
                whole = {p for p, n in counts.items() if n == files[p].record_count}
                left = frozenset(affected) - whole
                written = WrittenRows((), 0)
                if left:
                    with of(left) as some:
                        sql = self.renamed(dml.kept(change, _target(name, transaction), some))
                        written = self._written(name, transaction, sql)
                if affected:
                    replace(transaction, [files[p] for p in affected], written.files, _write_id())
                return sum(affected.values()) - (written.rows if not counts else 0)

    def _update(self, change: dml.Update, name: TableName) -> int:
        with self._changed(name) as transaction:
            table = self._table(name)
            files = _files(table)
            target = _target(name, transaction)
            for column, _ in change.values:
                target.position(column)
            with self._located(name, table) as (located, of):
                affected = frozenset(files)
                if not dml.is_volatile(change.condition):
                    rows = self._rows(self.renamed(dml.matching_files(change, located)))
                    affected = frozenset(path for path, _ in rows)
                if not affected:
                    return 0
                with of(affected) as some:
                    sql = self.renamed(dml.updated(change, target, some))
                    written = self._written(name, transaction, sql, counts=True)
                replace(transaction, [files[p] for p in affected], written.files, _write_id())
                return written.changed

    def _merge(self, change: dml.Merge, name: TableName) -> int:
        if dml.is_volatile(change.source, change.condition, *(c.condition for c in change.clauses)):
            raise UnsupportedError(
                "MERGE reads its source several times, so it takes no random(), uuid() or the "
                "like in it: store the source as a table first."
            )
        change = dataclasses.replace(change, source_names=self._names(change))
        with self._changed(name) as transaction:
            table = self._table(name)
            files = _files(table)
            target = _target(name, transaction)
            with self._located(name, table) as (located, of):
                rows = self._rows(self.renamed(dml.merged_files(change, located)))
                if any(changes > 1 for _, _, changes, _ in rows):
                    raise QueryError(
                        "MERGE INTO changes a row of the table more than once: several rows of "
                        "the source match it. Leave one of them in the source."
                    )
                affected = {path: int(n) for path, n, _, _ in rows}
                several = any(partners > 1 for _, _, _, partners in rows)
                written = WrittenRows((), 0)
                count = sum(affected.values())
                if affected:
                    with of(frozenset(affected)) as some:
                        sql = dml.merged(change, target, some, several=several)
                        written = self._written(name, transaction, self.renamed(sql), counts=True)
                added = WrittenRows((), 0)
                inserts = dml.merged_inserts(change, target, located)
                if inserts is not None:
                    added = self._written(name, transaction, self.renamed(inserts))
                new = (*written.files, *added.files)
                if affected:
                    replace(transaction, [files[p] for p in affected], new, _write_id())
                else:
                    append(transaction, new, _write_id())
                return count + added.rows

    def _table(self, name: TableName) -> Any:
        """Pyiceberg's table as it is now, which no other thread changes."""
        return as_it_is(self.current(name))

    def _bound(self, sql: str) -> Schema:
        with self.engine.up_to_date():
            return self.engine.planning.bind(self.renamed(sql)).schema

    def _names(self, change: dml.Merge) -> tuple[str, ...]:
        bound = self._bound(f"{change.ctes}SELECT * FROM {change.source}")
        return tuple(column.name for column in bound)

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.engine.up_to_date():
            answer, _ = self.engine.run(sql, CollectRows())
        return list(zip(*(column.to_pylist() for column in answer.columns), strict=True))

    def _written(
        self, name: TableName, transaction: Any, sql: str, *, counts: bool = False
    ) -> WrittenRows:
        """The rows of a query as data files; removed again if that fails."""
        metadata = transaction.table_metadata
        io = transaction._table.io  # noqa: SLF001 - a new table has it nowhere else
        write = WriteRows(
            table=str(name),
            location=metadata.properties.get("write.data.path", f"{metadata.location}/data"),
            schema=metadata.schema().model_dump_json(),
            spec=metadata.spec().model_dump_json(),
            write_id=_write_id(),
            properties=dict(metadata.properties),
            io={key: str(value) for key, value in io.properties.items()},
            counts=counts,
        )
        try:
            with self.engine.up_to_date():
                written, _ = self.engine.run(sql, WriteTable(write))
        except BaseException:
            remove_files(write.location, write.write_id)
            raise
        if self._transaction is not None:
            self._transaction.files += [file.file_path for file in written.files]
        return written

    @contextlib.contextmanager
    def _located(
        self, name: TableName, table: Any
    ) -> Iterator[tuple[str, Callable[[frozenset[str]], Any]]]:
        """A relation of a table's rows with their places, and one of some of its files."""
        snapshot = WarehouseSource(str(name), lambda: table).resolve()

        @contextlib.contextmanager
        def of(files: frozenset[str] | None) -> Iterator[str]:
            sources = self.engine.planner.sources
            source = FixedSource(str(name), LocatedRows(snapshot, files))
            registered = sources.add_unnamed(source).name
            try:
                yield quote(registered)
            finally:
                sources.remove(registered)

        with of(None) as located:
            yield located, of

    @contextlib.contextmanager
    def _changed(self, name: TableName) -> Iterator[Any]:
        """Pyiceberg's transaction for a change of a table, committed after the block."""
        open_ = self._transaction
        if open_ is not None:
            if open_.name is None:
                open_.name, open_.iceberg = name, self._begun(name)
            elif open_.name != name:
                raise UnsupportedError(_SEVERAL.format(name, open_.name))
            yield open_.iceberg
            return
        transaction = self._begun(name)
        yield transaction
        try:
            with committing(name):
                transaction.commit_transaction()
        finally:
            self.catalog.forget(name)

    def _begun(self, name: TableName) -> Any:
        table = self.catalog.load(name)
        copy = IcebergTable(
            (name.schema, name.table),
            table.metadata,
            table.metadata_location,
            table.io,
            table.catalog,
        )
        return copy.transaction()

    # Transactions

    def _transact(self, verb: str) -> pa.Table:
        with self._lock:
            open_ = self._transaction
            if verb == "BEGIN":
                if open_ is not None:
                    raise QueryError("There is a transaction already: COMMIT or ROLLBACK it.")
                self._transaction = _Transaction()
                return counted(0)
            if open_ is None:
                raise QueryError(f"There is no transaction to {verb.lower()}: BEGIN one.")
            self._transaction = None
            if open_.name is None:
                return counted(0)
            try:
                if verb == "COMMIT":
                    with committing(open_.name):
                        open_.iceberg.commit_transaction()
                else:
                    self._undo(open_)
            finally:
                self.catalog.forget(open_.name)
            return counted(0)

    def _undo(self, open_: _Transaction) -> None:
        assert open_.name is not None, "it has changed something"
        io = self.catalog.load(open_.name).io
        for path in open_.files:
            with contextlib.suppress(Exception):
                io.delete(path)

    def _refuse_in_transaction(self, what: str) -> None:
        if self._transaction is not None:
            raise UnsupportedError(f"{what} can't be part of a transaction: COMMIT first.")

    def _refuse_memory_write(self, statement: kinds.Write) -> None:
        open_ = self._transaction
        if open_ is not None:
            changed = open_.name or "nothing yet"
            target = statement.target.name if statement.target is not None else "a table in memory"
            raise UnsupportedError(_SEVERAL.format(target, changed))

    # Tables in memory

    def _cache(self, path: Sequence[str], *, caches: bool, missing_ok: bool) -> pa.Table:
        name = self._target(path, missing_ok=missing_ok)
        if name is None:
            if missing_ok:
                return counted(0)
            raise CatalogError(f"{'.'.join(path)} is no table of the warehouse.")
        with self._lock:
            if caches:
                self._refuse_in_transaction(f"CACHE TABLE {name}")
                self._reload(name)
                return counted(self.engine.tables.catalog.get(str(name)).rows)
            if name not in self._cached:
                if missing_ok:
                    return counted(0)
                raise CatalogError(f"Table {name} is not cached.")
            self._uncache(name)
        return counted(0)

    def cache(self, path: str) -> int:
        """Load a table into memory; its number of rows."""
        answer = self._cache(parts(path), caches=True, missing_ok=False)
        return int(answer.column(0)[0].as_py())

    def uncache(self, path: str) -> None:
        self._cache(parts(path), caches=False, missing_ok=False)

    def _reload(self, name: TableName) -> None:
        """Load a table into memory, unless its current version is there."""
        with self._lock:
            table = self.current(name)
            if self._cached.get(name) is table.metadata:
                return
            sources = self.engine.planner.sources
            held = f"{name} (loading)"
            sources.add(held, self._source(name))
            try:
                if str(name) in sources:
                    sources.remove(str(name))
                query = f"FROM {quote(held)}"
                self.named.store_query(str(name), query, Layout(replicas=2), replace=True)
                self._cached[name] = table.metadata
            except BaseException:
                self._cached.pop(name, None)
                raise
            finally:
                sources.remove(held)

    def _uncache(self, name: TableName) -> None:
        if self._cached.pop(name, None) is not None:
            self.named.drop(str(name), missing_ok=True)

    def _forget(self, name: TableName) -> None:
        """Drop what the session knows of a table that is dropped, renamed or replaced."""
        self._uncache(name)
        sources = self.engine.planner.sources
        for registered in sources.names:
            if registered == str(name) or registered.startswith(f"{name}@"):
                sources.remove(registered)

    # The catalog's tables

    def _show(self, statement: kinds.Show) -> pa.Table:
        """The answer of the scratch database, which knows the schemas and tables without rows."""
        sql = _DESCRIBED.sub(self._qualified, statement.sql)
        query = _DESCRIBED_QUERY.match(sql)
        if query is not None:
            with self.engine.up_to_date():
                return self.engine.planning.show(f"DESCRIBE {self.renamed(sql[query.end() :])}")
        if not statement.is_show:
            new = self.renamed(sql)
            if self.engine.planning.tables_in(new):  # it reads rows, too
                with self.engine.up_to_date():
                    return self.engine.query_in_front_end(new)
        with self._lock, self.engine.up_to_date():
            self._mirror()
            schemas = [f"{NAME}.{quote(self.schema or MAIN)}", "memory.main"]
            search = ",".join(schemas if self.schema else reversed(schemas))
            return self.engine.scratch.catalog(sql, HIDDEN, search)

    def _qualified(self, found: re.Match[str]) -> str:
        """A schema of the warehouse in a DESCRIBE or SHOW, as the scratch database knows it."""
        path = parts(found[2])
        schema = self.catalog.schema(path[0]) if path[0].lower() not in (*_NOT_OURS, MAIN) else None
        return found[0] if schema is None else f"{found[1]}{NAME}.{found[2]}"

    def _mirror(self) -> None:
        """Have the scratch database know the schemas and tables, without rows."""
        catalog, scratch = self.catalog, self.engine.scratch
        schemas = catalog.schemas()
        found: dict[TableName, Any] = {}
        for name in catalog.tables():
            with contextlib.suppress(MinisharkError):  # dropped meanwhile, or of an unknown type
                found[name] = catalog.load(name)
        commands = [f"ATTACH IF NOT EXISTS ':memory:' AS {NAME}"]
        commands += [f"CREATE SCHEMA IF NOT EXISTS {NAME}.{quote(s)}" for s in schemas]
        locations = {name: table.metadata_location for name, table in found.items()}
        for name in self._shown:
            if locations.get(name) != self._shown[name]:
                commands.append(f"DROP TABLE IF EXISTS {_quoted(name)}")
        for name, table in found.items():
            if self._shown.get(name) != locations[name]:
                with contextlib.suppress(UnsupportedError):
                    commands += _mirrored(name, table)
        old = {name.schema for name in self._shown} - set(schemas)
        commands += [f"DROP SCHEMA IF EXISTS {NAME}.{quote(s)} CASCADE" for s in old]

        def apply(con: Any) -> None:
            for command in commands:
                con.execute(command)

        scratch.change(apply)
        self._shown = locations

    # Files

    def _vacuum(self, path: Sequence[str]) -> pa.Table:
        self._refuse_in_transaction("VACUUM")
        name = self.found(path) if path else None
        if path and name is None:
            raise CatalogError(f"{'.'.join(path)} is no table of the warehouse.")
        names = [name] if name is not None else self.catalog.tables()
        removed = 0
        for each in names:
            with committing(each):
                removed += vacuum(self.catalog.load(each))
            self.catalog.forget(each)
        if name is None:
            removed += self.catalog.remove_unknown_folders()
        return counted(removed)

    def close(self) -> None:
        self.catalog.close()


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
        commands.append(f"COMMENT ON TABLE {_quoted(name)} IS {_text(table.properties['comment'])}")
    commands += [
        f"COMMENT ON COLUMN {_quoted(name)}.{quote(f.name)} IS {_text(f.doc)}"
        for f in schema.fields
        if f.doc
    ]
    return commands


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_temporary(sql: str) -> bool:
    return re.match(r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TEMP", sql, re.IGNORECASE) is not None


def _write_id() -> str:
    return secrets.token_hex(8)


def _target(name: TableName, transaction: Any) -> dml.Target:
    return dml.Target(str(name), duckdb_schema(transaction.table_metadata.schema()))


def _typed(query: str, transaction: Any) -> str:
    """The rows of a query in the types of the table that is made of them."""
    target = dml.Target("", duckdb_schema(transaction.table_metadata.schema()))
    names = [f"v{i}" for i in range(len(target.schema))]
    values = dict(enumerate(names))
    return f"SELECT {target.typed(values)} FROM ({query}) AS v({', '.join(names)})"


def _files(table: Any) -> Mapping[str, Any]:
    """The data files of a table by path, as pyiceberg describes them."""
    return {task.file.file_path: task.file for task in table.scan().plan_files()}


def _all(change: dml.Delete) -> dml.Delete:
    return dataclasses.replace(change, condition="", using="")
