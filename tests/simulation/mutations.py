"""Bugs of recovery and replication that somebody could write, for the simulator to find.

Each function plants one into production code, until its test ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from minishark.model.catalog import Partition, Table
from minishark.query.stage_graph import StageGraph
from minishark.tables import tables as tables_module
from minishark.tables.cached import CachedTables
from minishark.tables.deltas import DeltaWriter
from minishark.tables.replication import Replicator
from minishark.tables.tables import Tables
from minishark.worker.scans import Scans
from minishark_lab.simulation.attached import SimulatedAttached
from sparrow_core.machines.node_monitor import NodeMonitor


def lost_outputs_stay_lost(patch: pytest.MonkeyPatch) -> None:
    """An output of a stage that is lost isn't computed again."""
    patch.setattr(StageGraph, "lost", lambda self, files: ())


def readers_of_varying_stages_stay(patch: pytest.MonkeyPatch) -> None:
    """What has read rows that will differ when they are computed again is kept."""
    patch.setattr(StageGraph, "_retract", lambda self, missing, cancelled: False)


def replicas_count_before_they_are_written(patch: pytest.MonkeyPatch) -> None:
    """A replica is published whether or not its copy has succeeded."""
    original = SimulatedAttached.copy_file

    def copied(self: SimulatedAttached, file: str, source: str, target: str) -> bool:
        original(self, file, source, target)
        return True

    patch.setattr(SimulatedAttached, "copy_file", copied)


def older_versions_return(patch: pytest.MonkeyPatch) -> None:
    """When a replica has moved, the version of the table is published that was copied."""

    def moved(
        self: Tables, table: Table, index: int, found: Sequence[str], gone: Sequence[str]
    ) -> bool:
        if not self.is_current(table):
            return False
        stored = [node for node in table.partitions[index].locations if node not in gone]
        self.catalog.add(table.with_locations(index, tuple(dict.fromkeys((*stored, *found)))))
        return True

    patch.setattr(Tables, "_moved", moved)


def copies_of_older_versions_count(patch: pytest.MonkeyPatch) -> None:
    """A node counts as holder of a partition that has got more rows since it was copied there."""

    def moved(
        self: Tables, table: Table, index: int, found: Sequence[str], gone: Sequence[str]
    ) -> bool:
        if not self.is_current(table):
            return False
        current = self.catalog.get(table.name)
        stored = [node for node in current.partitions[index].locations if node not in gone]
        self.catalog.add(current.with_locations(index, tuple(dict.fromkeys((*stored, *found)))))
        return True

    patch.setattr(Tables, "_moved", moved)


def changes_undo_moves(patch: pytest.MonkeyPatch) -> None:
    """A change publishes the locations from before it began; replicas may have moved meanwhile."""
    patch.setattr(tables_module, "_relocated", lambda new, current, doubted: new)


def restarted_nodes_are_believed(patch: pytest.MonkeyPatch) -> None:
    """A node that came back empty still counts as a holder of what it had."""
    patch.setattr(Replicator, "_forget_restarted", lambda self: None)


def deleted_rows_come_back(patch: pytest.MonkeyPatch) -> None:
    """A partition that is restored has the rows again that were deleted from it."""
    original = DeltaWriter.with_same

    def with_same(self: DeltaWriter, table: Table, new: Partition, old: Partition) -> Partition:
        return original(self, table, dataclasses.replace(new, deleted=b""), old)

    patch.setattr(DeltaWriter, "with_same", with_same)


def added_rows_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    """A partition that is restored lacks the rows that were added to it."""

    def with_same(self: DeltaWriter, table: Table, new: Partition, old: Partition) -> Partition:
        return new

    patch.setattr(DeltaWriter, "with_same", with_same)


def tasks_die_with_their_executor(patch: pytest.MonkeyPatch) -> None:
    """A node doesn't tell of the tasks that a dead executor had."""

    def lose(self: NodeMonitor, address: Any, reason: str, now: float) -> Any:
        self._pool.remove(address)
        return self._register(now)

    patch.setattr(NodeMonitor, "_lose_executor", lose)


def dropped_tables_keep_their_files(patch: pytest.MonkeyPatch) -> None:
    """The folder of a table that was replaced is not removed."""

    def forget(self: Tables, folder: str) -> None:
        self._origins.pop(folder, None)
        self._homes.pop(folder, None)

    patch.setattr(Tables, "_forget", forget)


def files_are_read_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A task that reads a file doesn't look whether it is what it was, and still is."""
    patch.setattr(Scans, "_check", lambda self: None)


def released_rows_stay(patch: pytest.MonkeyPatch) -> None:
    """Kept rows are not dropped when nobody holds them any more."""
    patch.setattr(CachedTables, "sweep", lambda self: None)


MUTATIONS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    lost_outputs_stay_lost,
    readers_of_varying_stages_stay,
    replicas_count_before_they_are_written,
    older_versions_return,
    copies_of_older_versions_count,
    changes_undo_moves,
    restarted_nodes_are_believed,
    deleted_rows_come_back,
    added_rows_are_not_restored,
    tasks_die_with_their_executor,
    dropped_tables_keep_their_files,
    files_are_read_without_a_look,
    released_rows_stay,
)
