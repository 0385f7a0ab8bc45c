"""Bugs that somebody could write, in recovery, replication, transactions and reuse, to be found.

Each function plants one into production code, until its test ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from minishark.cluster.outputs import HeldOutputs
from minishark.model.catalog import Catalog, CatalogView, Partition, Table
from minishark.query import names
from minishark.query.names import Leaves, named
from minishark.query.reuse import Reuse
from minishark.query.reused import ReusedOutputs
from minishark.query.stage_graph import StageGraph
from minishark.tables import memory_changes, memory_store, memory_transaction
from minishark.tables import tables as tables_module
from minishark.tables.cached import CachedTables
from minishark.tables.deltas import DeltaWriter
from minishark.tables.memory_changes import MemoryTable
from minishark.tables.memory_transaction import MemoryTransaction
from minishark.tables.replication import Replicator
from minishark.tables.stores import StoreContext
from minishark.tables.tables import Tables
from minishark.tables.transaction import SessionTransaction
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
        self: Tables,
        table: Table,
        index: int,
        found: Sequence[str],
        gone: Sequence[str],
        left: Sequence[str],
    ) -> bool:
        if not self.is_current(table):
            return False
        away = (*gone, *left)
        stored = [node for node in table.partitions[index].locations if node not in away]
        self.catalog.add(table.with_locations(index, tuple(dict.fromkeys((*stored, *found)))))
        return True

    patch.setattr(Tables, "_moved", moved)


def copies_of_older_versions_count(patch: pytest.MonkeyPatch) -> None:
    """A node counts as holder of a partition that has got more rows since it was copied there."""

    def moved(
        self: Tables,
        table: Table,
        index: int,
        found: Sequence[str],
        gone: Sequence[str],
        left: Sequence[str],
    ) -> bool:
        if not self.is_current(table):
            return False
        current = self.catalog.get(table.name)
        away = (*gone, *left)
        stored = [node for node in current.partitions[index].locations if node not in away]
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

    def lose(self: NodeMonitor, address: Any, executor: Any, reason: str, now: float) -> Any:
        return self._register(now)

    patch.setattr(NodeMonitor, "_lose", lose)


def dropped_tables_keep_their_files(patch: pytest.MonkeyPatch) -> None:
    """The folder of a table that was replaced is not removed."""

    def forget(self: Tables, folder: str) -> None:
        self._origins.pop(folder, None)
        self._homes.pop(folder, None)

    patch.setattr(Tables, "forget", forget)


def files_are_read_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A task that reads a file doesn't look whether it is what it was, and still is."""
    patch.setattr(Scans, "_check", lambda self: None)


def released_rows_stay(patch: pytest.MonkeyPatch) -> None:
    """Kept rows are not dropped when nobody holds them any more."""
    patch.setattr(CachedTables, "sweep", lambda self: None)


def transactions_undo_what_others_did(patch: pytest.MonkeyPatch) -> None:
    """COMMIT publishes its versions whatever others have changed since it began."""

    def before(self: MemoryTransaction, name: str, changed: Any) -> Table | None:
        return self.context.tables.catalog.find(name)

    patch.setattr(MemoryTransaction, "_before", before)
    patch.setattr(MemoryTransaction, "_after", lambda self, before, changed: changed.now)


def transactions_that_add_rows_drop_those_of_others(patch: pytest.MonkeyPatch) -> None:
    """Rows are added to the version that the transaction began with, not to the last one."""
    patch.setattr(MemoryTransaction, "_after", lambda self, before, changed: changed.now)


def transactions_read_what_others_commit(patch: pytest.MonkeyPatch) -> None:
    """Their queries see each table as it is now, unless they have changed it."""

    def at_once(self: Catalog) -> Catalog:
        return Catalog()

    def begin(context: StoreContext) -> MemoryTransaction:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(context.tables.catalog), "at_once", at_once)
            transaction = memory_transaction.begin(context)
        transaction.view = CatalogView(context.tables.catalog)
        return transaction

    patch.setattr(memory_store, "begin", begin)


def rollback_commits(patch: pytest.MonkeyPatch) -> None:
    """What a transaction has done is published at its end, however it ends."""
    patch.setattr(MemoryTransaction, "roll_back", MemoryTransaction.commit)


def errors_abort_nothing(patch: pytest.MonkeyPatch) -> None:
    """COMMIT after an error commits what was done before the error."""

    def aborted_by_errors(self: SessionTransaction) -> Any:
        return contextlib.nullcontext()

    patch.setattr(SessionTransaction, "aborted_by_errors", aborted_by_errors)


def tables_of_a_rollback_keep_their_files(patch: pytest.MonkeyPatch) -> None:
    """The folder of a table that a transaction has created stays if it is rolled back."""
    original = MemoryTransaction.roll_back

    def roll_back(self: MemoryTransaction) -> None:
        self._loads.clear()
        original(self)

    patch.setattr(MemoryTransaction, "roll_back", roll_back)


def stored_keys_are_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """An INSERT adds a row whose key another one has."""
    patch.setattr(MemoryTable, "holders", lambda self, keys: keys.values.slice(0, 0))


def replaced_rows_stay(patch: pytest.MonkeyPatch) -> None:
    """The row that an upsert has replaced is there, too."""
    original = memory_changes.without_rows

    def without_rows(table: Table, numbers: Any) -> Table:
        return table if table.keys else original(table, numbers)

    patch.setattr(memory_changes, "without_rows", without_rows)


def names_lack_versions_of_tables(patch: pytest.MonkeyPatch) -> None:
    """What was computed from a table counts for all of its versions."""

    def partition(self: Leaves, table: Table, partition: Partition) -> str:
        return named("partition", self.token, table.name, str(partition.index))

    patch.setattr(Leaves, "partition", partition)


def names_lack_versions_of_files(patch: pytest.MonkeyPatch) -> None:
    """What was computed from a file counts for whatever is there now."""
    patch.setattr(names, "_settled", lambda file, now_s: named(file.path))


def names_lack_deleted_rows(patch: pytest.MonkeyPatch) -> None:
    """What was computed from a partition counts after a DELETE."""
    original = Leaves.partition

    def partition(self: Leaves, table: Table, partition: Partition) -> str:
        deltas = tuple(dataclasses.replace(each, deleted=b"") for each in partition.deltas)
        return original(self, table, dataclasses.replace(partition, deleted=b"", deltas=deltas))

    patch.setattr(Leaves, "partition", partition)


def runs_of_what_varies_count_as_one(patch: pytest.MonkeyPatch) -> None:
    """What was computed from one run of a stage that varies is read beside what another put out."""
    original = ReusedOutputs._note

    def note(
        self: ReusedOutputs, stage: int, task: int, name: str | None, identity: str | None
    ) -> None:
        original(self, stage, task, name, name or identity)

    patch.setattr(ReusedOutputs, "_note", note)


def lost_outputs_are_found_again(patch: pytest.MonkeyPatch) -> None:
    """An output that is gone from its node counts as one that is there."""
    patch.setattr(Reuse, "lost", lambda self, files: None)
    patch.setattr(HeldOutputs, "lease", lambda self, session, files: tuple(files))


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
    transactions_undo_what_others_did,
    transactions_that_add_rows_drop_those_of_others,
    transactions_read_what_others_commit,
    rollback_commits,
    errors_abort_nothing,
    tables_of_a_rollback_keep_their_files,
    stored_keys_are_not_looked_for,
    replaced_rows_stay,
    names_lack_versions_of_tables,
    names_lack_versions_of_files,
    names_lack_deleted_rows,
    runs_of_what_varies_count_as_one,
    lost_outputs_are_found_again,
)
