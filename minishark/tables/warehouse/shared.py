"""What the sessions over a warehouse share, and a transaction of one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache, partial

from minishark.errors import CatalogError, ConflictError
from minishark.model.catalog import Catalog as MemoryCatalog
from minishark.query.sources import SourceTables
from minishark.tables.warehouse.contract import Catalog, TableChange, TableName, TableVersion
from minishark.tables.warehouse.names import References, Syntax, references

_TEXTS_MAX = 256  # queries of which is known where they name tables


@dataclass(slots=True, kw_only=True)
class SharedWarehouse:
    """What sessions share of a warehouse."""

    catalog: Catalog
    references: Callable[[str], References]  # where a text names tables
    registered: dict[str, TableName] = field(default_factory=dict)  # by what queries read for them
    # Tables in memory, with their version when they were loaded.
    cached: dict[TableName, TableVersion] = field(default_factory=dict)
    refreshed: int | None = None  # the catalog's version when it was looked at
    # The versions that the scratch database's empty tables of these names look like.
    shown: dict[TableName, TableVersion] = field(default_factory=dict)
    loading: threading.RLock = field(default_factory=threading.RLock)
    showing: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, catalog: Catalog, syntax: Syntax) -> SharedWarehouse:
        remembered = lru_cache(_TEXTS_MAX)(partial(references, syntax=syntax))
        return cls(catalog=catalog, references=remembered)


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
    def changed_source(self) -> str | None:
        """The table that it has changed, by the name by which others read it, and views."""
        return None if self.change is None else str(self.name).lower()

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
