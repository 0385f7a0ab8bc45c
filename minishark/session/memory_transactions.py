"""Transactions over tables in memory: BEGIN, COMMIT, ROLLBACK.

A transaction reads the versions that tables had when it began, and its own later ones, which nobody
else sees. COMMIT publishes these at once. If another session has changed one of the tables since,
COMMIT fails and undoes everything, unless the transaction has only added rows to it: these are
added to the version of the other session.

Tables that were created since it began are read as they are, as are rows that `persist` keeps.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from minishark.catalog import CatalogView, Table
from minishark.errors import ConflictError
from minishark.tables.changed_statistics import changed_statistics
from minishark.tables.deltas import changed_files

if TYPE_CHECKING:
    from minishark.session.engine import Engine
    from minishark.session.scope import Scope

NOT_IN_TRANSACTION = (
    "A transaction over tables in memory takes queries, and INSERT, UPDATE, DELETE, MERGE and "
    "TRUNCATE that write only what changes (docs/sql.md): COMMIT or ROLLBACK before other "
    "statements."
)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Rows that a statement has added, and their partitions' numbers."""

    rows: pa.Table
    buckets: pa.Array


@dataclass(slots=True)
class _Changed:
    """A table that a transaction has changed."""

    began: Table  # as it was committed before
    now: Table
    added: list[AddedRows] | None  # all that was done; None if rows were deleted, too


@dataclass(slots=True)
class MemoryTransaction:
    """A transaction of one session; made by `begin`."""

    engine: Engine
    view: CatalogView  # what its statements read
    folder: str  # open as long as it is: files of the versions that it reads stay
    _changed: dict[str, _Changed] = field(default_factory=dict)
    _written: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a statement changes tables in memory, and while the transaction ends."""
        return self.engine.writing

    def change(self, old: Table, new: Table, added: AddedRows | None) -> None:
        """A statement has made a new version of a table, `added` being all that it did."""
        known = self._changed.setdefault(old.name.lower(), _Changed(old, old, []))
        self._written.update(changed_files(new, old))
        known.now = new
        if added is None or known.added is None:
            known.added = None
        else:
            known.added.append(added)
        self.view.add(new)

    def commit(self) -> None:
        """Publish all changes.

        Raises:
            ConflictError: a table was changed meanwhile; nothing is published.
        """
        self._end()
        tables = self.engine.tables
        try:
            changes = [(self._before(each), each) for each in self._changed.values()]
            versions = [(old, self._after(old, each)) for old, each in changes]
            tables.changed(*versions)
            for old, _ in versions:
                self.engine.merger.look(old.name)
        except BaseException:
            tables.retire(self._written)
            tables.sweep()
            raise
        kept = {file for _, new in versions for part in new.partitions for file in part.files}
        tables.retire({file: nodes for file, nodes in self._written.items() if file not in kept})
        tables.sweep()

    def _before(self, changed: _Changed) -> Table:
        """The version that the transaction's one follows."""
        name = changed.began.name
        current = self.engine.tables.catalog.find(name)
        if current is not None and current.same_rows(changed.began):
            return current
        same = current is not None and current.folder == changed.began.folder
        if current is None or not same or changed.added is None:
            raise ConflictError(
                f"Table {name} was changed by another session since the transaction began: "
                "nothing is committed. Run the transaction again."
            )
        return current

    def _after(self, before: Table, changed: _Changed) -> Table:
        if before.same_rows(changed.began):
            return changed.now
        assert changed.added is not None, "it would be a conflict"
        new = before
        for each in changed.added:
            new = with_rows(self.engine, new, each)
        self._written.update(changed_files(new, before))
        return new

    def roll_back(self) -> None:
        """Undo all changes."""
        self._end()
        self.engine.tables.retire(self._written)
        self.engine.tables.sweep()

    def _end(self) -> None:
        self.engine.cluster.remove_folder(self.folder)


def in_memory(scope: Scope) -> MemoryTransaction | None:
    """A session's transaction, if it is over tables in memory."""
    store = scope.transaction.store
    return store if isinstance(store, MemoryTransaction) else None


def begin(engine: Engine, scope: Scope) -> MemoryTransaction:
    """A transaction of a session, whose queries read what there is now."""
    folder = engine.cluster.folder(f"transactions/{next(_numbers)}")
    with engine.up_to_date(scope):
        engine.cluster.make_folder(folder)
        tables = [t for t in engine.tables.catalog.at_once() if t.name not in engine.cached]
        view = CatalogView(engine.tables.catalog, tables)
        return MemoryTransaction(engine, view, folder)


def with_rows(engine: Engine, table: Table, added: AddedRows) -> Table:
    """The next version of a table, with rows added."""
    buckets = added.buckets if table.is_hashed else None
    new = engine.tables.deltas.with_rows(table, added.rows, buckets)
    return measured(new, table, added.rows)


def measured(new: Table, old: Table, added: pa.Table | None) -> Table:
    """A version of a table with its statistics, given the one before."""
    found = changed_statistics(old.statistics, old.schema, added, new.rows, new.bytes)
    return replace(new, statistics=found)
