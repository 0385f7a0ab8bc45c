"""Tables of the warehouse as queries know them: their names, their versions, those in memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial

from minishark.errors import CatalogError, ConflictError, QueryError
from minishark.model.catalog import Catalog as MemoryCatalog
from minishark.model.expressions import quote
from minishark.query.sinks import Layout
from minishark.query.sources import SourceTables
from minishark.tables.memory_store import MemoryStore
from minishark.tables.stores import StoreContext
from minishark.tables.warehouse.contract import (
    MAIN,
    NAME,
    Catalog,
    CurrentRows,
    Moment,
    TableChange,
    TableName,
    TableVersion,
)
from minishark.tables.warehouse.names import (
    At,
    References,
    Syntax,
    references,
    registered_table,
    renamed,
    token_references,
)

NOT_OURS = ("memory", "temp", "system")
"""Databases that are not the warehouse."""

_TEXTS_MAX = 256  # queries of which is known where they name tables


@dataclass(slots=True, kw_only=True)
class WarehouseTransaction:
    """A transaction over a table of the warehouse, and what it has done so far."""

    sources: SourceTables  # what queries read
    name: TableName | None = None  # the table of the warehouse that it changes
    change: TableChange | None = None  # of that table
    source: str = ""  # the planning database's name of the table as it is in the transaction
    # Whether, as long as it has changed nothing, what no transaction can hold is committed at once.
    is_lazy: bool = False
    lock: AbstractContextManager[object] = field(default_factory=threading.RLock)
    view: MemoryCatalog | None = None  # tables in memory are as they are

    @property
    def refuses(self) -> bool:
        """Whether what no transaction can hold is refused now."""
        return not self.is_lazy or self.name is not None

    def commit(self) -> None:
        """Make its changes the table's next version.

        Raises:
            ConflictError: another writer has changed the table; nothing is committed.
        """
        self._end()
        if self.change is not None:
            committed_or_undone(self.change)

    def roll_back(self) -> None:
        """Remove the files that it has written."""
        self._end()
        if self.change is not None:
            self.change.roll_back()

    def _end(self) -> None:
        if self.source:
            self.sources.remove(self.source)


def committed_or_undone(change: TableChange) -> None:
    """Commit a change, or remove its files if that certainly changes nothing."""
    try:
        change.commit()
    except (ConflictError, CatalogError):
        change.roll_back()
        raise


@dataclass(slots=True, kw_only=True)
class SharedWarehouse:
    """What sessions share of a warehouse."""

    catalog: Catalog
    references: Callable[[str], References]  # where a text names tables
    # Tables in memory, with their version when they were loaded.
    cached: dict[TableName, TableVersion] = field(default_factory=dict)
    refreshed: int | None = None  # the catalog's version when it was looked at
    # The versions that the scratch database's empty tables of these names look like.
    shown: dict[TableName, TableVersion] = field(default_factory=dict)
    loading: threading.RLock = field(default_factory=threading.RLock)
    showing: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, catalog: Catalog, syntax: Syntax) -> SharedWarehouse:
        known = lru_cache(_TEXTS_MAX)(partial(references, syntax=syntax))
        return cls(catalog=catalog, references=known)


@dataclass(slots=True, kw_only=True)
class WarehouseTables:
    """The tables of a warehouse, as a session sees them."""

    context: StoreContext
    named: MemoryStore  # tables in memory
    shared: SharedWarehouse
    schema: str | None = None  # the schema that USE has chosen; None for the tables in memory

    @property
    def catalog(self) -> Catalog:
        return self.shared.catalog

    @property
    def cached(self) -> dict[TableName, TableVersion]:
        """The tables in memory, with their version when they were loaded."""
        return self.shared.cached

    @property
    def transaction(self) -> WarehouseTransaction | None:
        """The session's transaction, if it is over a table of the warehouse."""
        store = self.context.transaction.store
        return store if isinstance(store, WarehouseTransaction) else None

    # Names

    def resolved(self, path: Sequence[str]) -> TableName | None:
        """The table that a name means, if it is one of the warehouse; it may not exist."""
        match list(path):
            case [table]:
                return None if self.schema is None else TableName(self.schema, table)
            case [schema, table]:
                if schema.lower() == NAME:
                    return TableName(MAIN, table)
                if schema.lower() in (*NOT_OURS, MAIN):
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
            if path[0].lower() != NAME and self.context.planning.has_relation(path[-1]):
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
        return renamed(sql, self.shared.references(sql), self.registered)

    def renamed_anywhere(self, sql: str) -> str:
        """As `renamed`, for any statement."""
        return renamed(sql, token_references(sql), self.registered)

    def registered(self, path: tuple[str, ...], at: At | None) -> str | None:
        try:
            name = self.found(path)
        except CatalogError:
            if len(path) > 1 and path[0].lower() == NAME:
                raise
            return None  # a struct's field, or DuckDB says that it is missing
        if name is None:
            return None
        sources = self.context.sources
        if at is None:
            open_ = self.transaction
            if open_ is not None and open_.name == name:
                return self._staged(open_, name)
            if name in self.cached:
                self.reload(name)
            elif str(name) not in sources:
                sources.add(str(name), self._source(name))
            return str(name)
        moment = self._moment(at)
        version = f"{name}@{moment}"
        if version not in sources:
            sources.add(version, CurrentRows(version, lambda: self.catalog.load(name), moment))
        return version

    def _source(self, name: TableName) -> CurrentRows:
        return CurrentRows(str(name), lambda: self.catalog.load(name))

    def _staged(self, open_: WarehouseTransaction, name: TableName) -> str:
        """A name for the table as this session's transaction has left it, which others lack."""
        if not open_.source:
            source = CurrentRows(str(name), lambda: self.current(name))
            open_.source = self.context.sources.add_unnamed(source).name
        return open_.source

    def _moment(self, at: At) -> Moment:
        """What an AT clause means."""
        kind = "BIGINT" if at.unit == "VERSION" else "TIMESTAMPTZ"
        with contextlib.closing(self.context.planning.connection()) as con:
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
            return Moment(number=int(row[0]))
        return Moment(time=datetime.fromtimestamp(row[0] / 1e6, UTC))

    def current(self, name: TableName) -> TableVersion:
        """A table as statements see it now: with what an open transaction has done."""
        open_ = self.transaction
        if open_ is not None and open_.name == name and open_.change is not None:
            return open_.change.version
        return self.catalog.load(name)

    def refresh(self) -> None:
        """Forget the tables that others have dropped, and load changed ones again to memory."""
        version = self.catalog.version()
        if version is not None and version == self.shared.refreshed:
            return
        sources = self.context.sources
        for registered in sources.names:
            found = registered_table(registered)
            if found is None:
                continue
            name = TableName(*found)
            try:
                self.catalog.load(name)
            except CatalogError:
                with contextlib.suppress(KeyError):
                    sources.remove(registered)
        for name in list(self.cached):
            try:
                self.catalog.load(name)
            except CatalogError:
                self.uncache(name)
            else:
                self.reload(name)
        self.shared.refreshed = version

    # Tables in memory

    def reload(self, name: TableName) -> None:
        """Load a table into memory, unless its current version is there."""
        with self.shared.loading:
            try:
                table = self.catalog.load(name)
            except CatalogError:
                self.uncache(name)
                raise
            if self.cached.get(name) is table:
                return
            sources = self.context.sources
            held = f"{name} (loading)"
            sources.add(held, self._source(name))
            try:
                if str(name) in sources:
                    sources.remove(str(name))
                query = f"FROM {quote(held)}"
                self.named.store_query(str(name), query, Layout(replicas=2), replace=True)
                self.cached[name] = table
            except BaseException:
                self.cached.pop(name, None)
                raise
            finally:
                sources.remove(held)

    def uncache(self, name: TableName) -> None:
        if self.cached.pop(name, None) is not None:
            self.named.drop(str(name), missing_ok=True)

    def forget(self, name: TableName) -> None:
        """Drop what the session knows of a table that is dropped, renamed or replaced."""
        self.uncache(name)
        sources = self.context.sources
        for registered in sources.names:
            if registered == str(name) or registered.startswith(f"{name}@"):
                sources.remove(registered)
