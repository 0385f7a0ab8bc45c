"""Transactions over tables in memory: BEGIN, COMMIT, ROLLBACK.

A transaction reads the versions that tables had when it began, and its own later ones, which nobody
else sees, nor the tables and views that it creates, nor that it has dropped some. COMMIT publishes
all this at once. If another session has changed one of the tables since, or has created something
of the same name, COMMIT fails and undoes everything, unless the transaction has only added rows to
a table: these are added to the version of the other session.

Three places know what a transaction has done: the view of the catalog that its statements read, the
session's connection to the planning database, and, for views, that to the scratch database.

Rows that `persist` keeps are read as they are. A table that was lost with its nodes and loaded
again from its source has the same rows in another place: the transaction goes on there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from minishark.cluster.backend import TRANSACTIONS_FOLDER
from minishark.errors import ConflictError
from minishark.model.catalog import CatalogView, Table
from minishark.tables.changed_statistics import changed_statistics
from minishark.tables.deltas import changed_files
from minishark.tables.stores import StoreContext
from minishark.tables.tables import Tables
from minishark.tables.transaction import SessionTransaction

NOT_IN_TRANSACTION = (
    "A transaction over tables in memory takes queries, statements that change, create or drop "
    "tables whose columns, rows, defaults and keys are all that there is to know of them, and "
    "CREATE and DROP VIEW (docs/sql.md): COMMIT or ROLLBACK before other statements."
)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Rows that a statement has added, and their partitions' numbers."""

    rows: pa.Table
    buckets: pa.Array


@dataclass(slots=True)
class _Changed:
    """A table that a transaction has changed, created or dropped."""

    began: Table | None  # as it was committed before, if it was
    now: Table | None  # None if it was dropped
    added: list[AddedRows] | None  # all that was done; None if it was more than to add rows

    @property
    def is_version(self) -> bool:
        """Whether it is another version of what was committed before."""
        began, now = self.began, self.now
        return began is not None and now is not None and now.folder == began.folder


@dataclass(frozen=True, slots=True)
class Defined:
    """A view that a transaction has created, replaced or dropped."""

    name: str
    before: str | None  # what had defined it last, for all sessions
    publish: Callable[[], None]  # tells other sessions
    undo: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class MemoryTransaction:
    """A transaction of one session; made by `begin`."""

    context: StoreContext
    view: CatalogView  # what its statements read
    folder: str  # open as long as it is: files of the versions that it reads stay
    _changed: dict[str, _Changed] = field(default_factory=dict)
    _written: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _loads: dict[str, None] = field(default_factory=dict)  # the folders of tables that it created
    _defined: list[Defined] = field(default_factory=list)

    changed_source = None  # it changes no source

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a statement changes tables in memory, and while the transaction ends."""
        return self.context.writing

    def change(self, old: Table, new: Table, added: AddedRows | None) -> None:
        """A statement has made a new version of a table, `added` being all that it did."""
        changed = self._named(old.name)
        self._written.update(changed_files(new, old))
        changed.now = new
        if added is None or changed.added is None:
            changed.added = None
        else:
            changed.added.append(added)
        self.view.add(new)
        if new.folder in self._loads:
            self._written.update(changed_files(old, new))
            self.context.planning.update_uncommitted(new)
        elif self.context.tables.is_current(old):
            # Everybody plans with it, which costs nobody an answer, also if it is undone: it must
            # not lack the first NULLs of the transaction's own rows.
            self.context.planning.update_table(new)

    def put(self, table: Table) -> None:
        """A statement has created a table, perhaps in the place of one of that name."""
        changed = self._named(table.name)
        changed.now, changed.added = table, None
        self._loads[table.folder] = None
        self.view.decide(table.name, table)
        self.context.planning.put_uncommitted(table)

    def drop(self, name: str) -> None:
        """A statement has dropped a table, or renamed it."""
        changed = self._named(name)
        changed.now = changed.added = None
        self.view.decide(name, None)
        self.context.planning.drop_uncommitted(name)

    def follow(self, name: str) -> None:
        """Read a table that was lost, and loaded again, where it is now.

        Raises:
            ConflictError: the rows are not those that the transaction has read.
        """
        began, current = self.view.find(name), self.context.tables.catalog.find(name)
        if began is None or current is None or current.same_rows(began):
            return
        content = self.context.tables.content
        if name.lower() in self._changed or content(current) != content(began):
            raise ConflictError(
                f"Table {name} was lost with its nodes, and not all that the transaction has read "
                "of it is there again. Run the transaction again."
            )
        self.view.add(current)

    def _named(self, name: str) -> _Changed:
        before = self.view.find(name)
        return self._changed.setdefault(name.lower(), _Changed(before, before, []))

    def define(self, view: Defined) -> None:
        """A statement has created, replaced or dropped a view."""
        self._defined.append(view)

    def commit(self) -> None:
        """Publish all changes.

        Raises:
            ConflictError: a table or view was changed meanwhile; nothing is published.
        """
        tables, kept = self.context.tables, list[Table]()
        try:
            with self.context.up_to_date():
                versions, created = self._publish()
                kept = [*created, *(new for _, new in versions)]
                self.context.scratch.end()
                while self._defined:
                    self._defined.pop(0).publish()
        finally:
            self._end(kept)
        for table in kept:
            if (current := tables.catalog.find(table.name)) is not None:
                self.context.merger.look(current)

    def _publish(self) -> tuple[list[tuple[Table, Table]], list[Table]]:
        """Publish all changes: the new versions with those before, and tables that are new."""
        versions = list[tuple[Table, Table]]()
        created, dropped = list[Table](), list[Table]()
        for name, changed in self._changed.items():
            before = self._before(name, changed)
            if before is not None and changed.is_version:
                versions.append((before, self._after(before, changed)))
                continue
            created += [] if changed.now is None else [changed.now]
            dropped += [] if before is None else [before]
        for view in self._defined:
            if self.context.scratch.defined_by(view.name) != view.before:
                raise _conflict(f"View {view.name}")
        planned = self.context.planning.committing()
        self.context.tables.changed(*versions, created=created, dropped=dropped, planned=planned)
        return versions, created

    def _before(self, name: str, changed: _Changed) -> Table | None:
        """The version that the transaction's one follows; None if there is to be none."""
        current, began = self.context.tables.catalog.find(name), changed.began
        if began is None:
            scratch = self.context.scratch
            is_new = current is None and name not in self.context.sources
            if changed.now is None or (is_new and name not in scratch.own_tables):
                return None
        elif current is not None and not self.context.scratch.must_keep(name):
            is_alike = current.folder == began.folder and current.schema == began.schema
            adds = changed.added is not None and is_alike
            if adds or current.same_rows(began):
                return current
        raise _conflict(f"Table {name}")

    def _after(self, before: Table, changed: _Changed) -> Table:
        assert changed.began is not None, "it is a version of it"
        assert changed.now is not None, "it is a version"
        if before.same_rows(changed.began):
            return changed.now
        assert changed.added is not None, "it would be a conflict"
        new = before
        for rows in changed.added:
            new = measured(with_rows(self.context.tables, new, rows), new, rows)
        self._written.update(changed_files(new, before))
        return new

    def roll_back(self) -> None:
        """Undo all changes."""
        self._end([])

    def _end(self, kept: Sequence[Table]) -> None:
        """Free the files that no published table has."""
        tables = self.context.tables
        tables.cluster.remove_folder(self.folder)
        self.context.scratch.end()
        self.context.planning.roll_back()
        for view in reversed(self._defined):
            view.undo()
        unused = self._loads.keys() - {table.folder for table in kept}
        for folder in unused:
            tables.forget(folder)
        files = {file for table in kept for file in table.homes}
        tables.retire(
            {
                file: nodes
                for file, nodes in self._written.items()
                if file not in files and file.rpartition("/")[0] not in unused
            }
        )
        tables.sweep()


def _conflict(name: str) -> ConflictError:
    return ConflictError(
        f"{name} was changed by another session since the transaction began: nothing is committed. "
        "Run the transaction again."
    )


def in_memory(transaction: SessionTransaction) -> MemoryTransaction | None:
    """A session's transaction, if it is over tables in memory."""
    store = transaction.store
    return store if isinstance(store, MemoryTransaction) else None


def begin(context: StoreContext) -> MemoryTransaction:
    """A transaction of a session, whose queries read what there is now."""
    tables = context.tables
    folder = tables.cluster.folder(f"{TRANSACTIONS_FOLDER}/{next(_numbers)}")
    with context.up_to_date():
        tables.cluster.make_folder(folder)

        def current() -> list[Table]:
            return [table for table in tables.catalog.at_once() if table.name not in context.cached]

        now = current()
        view = CatalogView(tables.catalog, now, shows=context.cached.__contains__)
        context.planning.begin(now, current)
        context.scratch.begin()
        return MemoryTransaction(context=context, view=view, folder=folder)


def with_rows(tables: Tables, table: Table, added: AddedRows) -> Table:
    """The next version of a table, with rows added; it is to be `measured`."""
    buckets = added.buckets if table.is_hashed else None
    return tables.deltas.with_rows(table, added.rows, buckets)


def measured(new: Table, old: Table, added: AddedRows | None) -> Table:
    """A version of a table with its statistics, given those of the one before."""
    rows = None if added is None else added.rows
    statistics = changed_statistics(old.statistics, old.schema, rows, new.rows, new.bytes)
    return replace(new, statistics=statistics)
