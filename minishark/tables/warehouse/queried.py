"""Tables of the warehouse as the queries of a session know them: by which names, which versions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from minishark.errors import CatalogError, QueryError
from minishark.model.expressions import quote
from minishark.query.sinks import Layout
from minishark.tables.memory_store import MemoryStore
from minishark.tables.stores import StoreContext
from minishark.tables.warehouse.contract import (
    MAIN,
    NAME,
    CurrentRows,
    Moment,
    TableName,
    TableVersion,
)
from minishark.tables.warehouse.names import At, renamed, token_references
from minishark.tables.warehouse.shared import SharedWarehouse, WarehouseTransaction

NOT_OURS = ("memory", "temp", "system")
"""Databases that are not the warehouse."""


@dataclass(slots=True, kw_only=True)
class QueriedTables:
    """The tables of a warehouse, as a session's queries read them."""

    context: StoreContext
    named: MemoryStore  # tables in memory
    shared: SharedWarehouse
    schema: str | None = None  # the schema that USE has chosen; None for the tables in memory

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
                full_schema = self.shared.catalog.schema(schema)
                return None if full_schema is None else TableName(full_schema, table)
            case [catalog, schema, table] if catalog.lower() == NAME:
                return TableName(schema, table)
        return None

    def found(self, path: Sequence[str]) -> TableName | None:
        """The existing table of the warehouse that a name means; None if it means another."""
        name = self.resolved(path)
        if name is None:
            return None
        full_name = self.shared.catalog.find(name.schema, name.table)
        if full_name is None and len(path) > 1:
            if path[0].lower() != NAME and self.context.planning.has_relation(path[-1]):
                return None
            raise CatalogError(self._unknown(name))
        return full_name

    def _unknown(self, name: TableName) -> str:
        catalog = self.shared.catalog
        schema = catalog.schema(name.schema)
        if schema is None:
            names = ", ".join(catalog.schemas()) or "none"
            return f"The warehouse has no schema {name.schema!r}; its schemas are: {names}."
        names = ", ".join(table.table for table in catalog.tables(schema)) or "none"
        return f"There is no table {name}; the tables of that schema are: {names}."

    def renamed(self, sql: str) -> str:
        """A query with the planning database's names, under which its tables can be read now."""
        return renamed(sql, self.shared.references(sql), self.registered)

    def renamed_anywhere(self, sql: str) -> str:
        """As `renamed`, for any statement."""
        return renamed(sql, token_references(sql), self.registered)

    def registered(self, path: tuple[str, ...], at: At | None) -> str | None:
        """The planning database's name of a table; None if it is not the warehouse's."""
        try:
            name = self.found(path)
        except CatalogError:
            if len(path) > 1 and path[0].lower() == NAME:
                raise
            return None  # a struct's field, or DuckDB says that it is missing
        if name is None:
            return None
        if at is not None:
            moment = self._moment(at)
            return self._source(f"{name}@{moment}", name, moment)
        open_ = self.transaction
        if open_ is not None and open_.name == name:
            if not open_.source:  # as the transaction has left it, by a name that others lack
                source = CurrentRows(str(name), lambda: self.current(name))
                open_.source = self.context.sources.add_unnamed(source).name
            return open_.source
        if name in self.shared.cached:
            self.reload(name)
            return str(name)
        return self._source(str(name), name)

    def _source(self, registered: str, name: TableName, at: Moment | None = None) -> str:
        """Let queries read a table, or an earlier version, by this name."""
        if registered not in self.context.sources:
            source = CurrentRows(registered, lambda: self.load(name), at)
            self.context.sources.add(registered, source)
            self.shared.registered[registered] = name
        return registered

    def _moment(self, at: At) -> Moment:
        """What an AT clause means."""
        is_version = at.unit == "VERSION"
        value = f"CAST(({at.expression}) AS {'BIGINT' if is_version else 'TIMESTAMPTZ'})"
        with contextlib.closing(self.context.planning.connection()) as con:
            try:
                query = f"SELECT {value}" if is_version else f"SELECT epoch_us({value})"
                ((moment,),) = con.execute(query).fetchall()
            except Exception as error:
                raise QueryError(f"AT ({at.unit} => {at.expression}): {error}") from error
        if moment is None:
            raise QueryError(f"AT ({at.unit} => ...) needs a value, not NULL.")
        if is_version:
            return Moment(number=int(moment))
        return Moment(time=datetime.fromtimestamp(moment / 1e6, UTC))

    def load(self, name: TableName) -> TableVersion:
        return self.shared.catalog.load(name)

    def current(self, name: TableName) -> TableVersion:
        """A table as statements see it now: with what an open transaction has done."""
        open_ = self.transaction
        if open_ is not None and open_.name == name and open_.change is not None:
            return open_.change.version
        return self.load(name)

    def refresh(self) -> None:
        """Forget the tables that others have dropped, and load changed ones again to memory."""
        shared = self.shared
        version = shared.catalog.version()
        if version is not None and version == shared.refreshed:
            return
        for name in dict.fromkeys((*shared.registered.values(), *shared.cached)):
            try:
                self.load(name)
            except CatalogError:
                self.forget(name)
            else:
                if name in shared.cached:
                    self.reload(name)
        shared.refreshed = version

    def forget(self, name: TableName) -> None:
        """Forget a table that is dropped, renamed or replaced."""
        self.uncache(name)
        for registered, own in tuple(self.shared.registered.items()):
            if own == name:
                self._remove(registered)

    def _remove(self, registered: str) -> None:
        self.shared.registered.pop(registered, None)
        with contextlib.suppress(KeyError):  # another session has
            self.context.sources.remove(registered)

    # Tables in memory

    def reload(self, name: TableName) -> None:
        """Load a table into memory, unless its current version is there."""
        shared, held = self.shared, f"{name} (loading)"
        with shared.loading:
            try:
                table = self.load(name)
            except CatalogError:
                self.uncache(name)
                raise
            if shared.cached.get(name) is table:
                return
            self._source(held, name)
            try:
                self._remove(str(name))
                query = f"FROM {quote(held)}"
                self.named.store_query(str(name), query, Layout(replicas=2), replace=True)
                shared.cached[name] = table
            except BaseException:
                shared.cached.pop(name, None)
                raise
            finally:
                self._remove(held)

    def uncache(self, name: TableName) -> None:
        """Free the memory of a table."""
        if self.shared.cached.pop(name, None) is not None:
            self.named.drop(str(name), missing_ok=True)
