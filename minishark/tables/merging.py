"""Stores partitions again whose deltas have grown, in the background.

What a task has made of a partition as it was is published if that is still part of the partition:
deltas that were added meanwhile stay. If rows were deleted from what was read, the work is lost,
and done again after the next change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from minishark.errors import MinisharkError
from minishark.model.catalog import Partition, Table
from minishark.query.clock import Thread
from minishark.tables.deltas import rebased, settled, should_merge
from minishark.tables.replication import holds
from minishark.tables.tables import Tables


@dataclass(slots=True, kw_only=True)
class Merger:
    """A thread that merges, while there is something to merge."""

    tables: Tables
    writing: AbstractContextManager[Any]  # held while versions are published
    is_open: Callable[[], bool]  # whether the session is
    _wanted: dict[str, None] = field(default_factory=dict)  # names of tables
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: Thread | None = None

    def look(self, table: Table) -> None:
        """A table has this version now: merge its partitions if it is time."""
        if not self._worn(table):
            return
        with self._lock:
            self._wanted[table.name] = None
            if self._thread is None:
                self._thread = self.tables.clock.thread(self._run, "minishark-merge")

    def _run(self) -> None:
        while True:
            with self._lock:
                name = next(iter(self._wanted), None)
                if name is None or not self.is_open():
                    self._thread = None
                    return
                del self._wanted[name]
            # The session is closing, memory is full, or replicas are lost: queries will say so.
            with contextlib.suppress(MinisharkError, OSError, RuntimeError):
                self.merge(name)

    def merge(self, name: str) -> None:
        """Merge the partitions of a table that are worn."""
        tables = self.tables
        table = tables.catalog.get(name)
        worn = self._worn(table)
        if not worn:
            return
        stored = tables.stored_again(table, worn)
        homes = tables.cluster.homes()
        merged = self._where_all_is(table, worn, stored)
        with self.writing:
            current = tables.catalog.find(name)
            if current is None or current.folder != table.folder:
                return  # it was dropped or replaced meanwhile
            is_known = tables.cluster.homes() == homes  # else nodes may be empty since they told
            new = rebased(current, worn, merged) if is_known else None
            if new is not None:
                tables.changed((current, new))
            used = {part.file for part in (new or current).partitions}
            tables.retire({part.file: part.locations for part in stored if part.file not in used})

    def _worn(self, table: Table) -> list[Partition]:
        """The partitions to merge, without the deltas that stay."""
        sizes = self.tables.sizes
        return [settled(part, sizes) for part in table.partitions if should_merge(part, sizes)]

    def _where_all_is(
        self, table: Table, read: Sequence[Partition], merged: Sequence[Partition]
    ) -> list[Partition]:
        """Merged partitions, on the nodes only that have them and the deltas added meanwhile.

        A node may have come back empty without the session's knowing so far, before it stored a
        merged partition, or after: it would be forgotten as a holder of both.
        """
        current = self.tables.catalog.find(table.name)
        if current is None or current.folder != table.folder:
            return [*merged]
        store, partitions = self.tables.cluster.store(), []
        for old, new in zip(read, merged, strict=True):
            later = [d.file for d in current.partitions[old.index].deltas[len(old.deltas) :]]
            nodes = tuple(n for n in new.locations if holds(store, [new.file, *later], n))
            partitions.append(dataclasses.replace(new, locations=nodes))
        return partitions

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, which ends when the cluster does."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
