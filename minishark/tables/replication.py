"""Re-replication: partitions that lost replicas with their nodes are copied in the background.

When a node joins, replicas move to it; when one drains, they move away from it (`rebalancing`).

The target is the number of replicas that the user declared, or that of the live nodes if it is
smaller. Any live node that stores a partition is a source; the targets are the next nodes in the
order in which tables are laid out, so that tables partitioned alike stay on the same nodes.

A node that restarts under its old name has lost its files, and the catalog does not notice: its
locations name nodes. It is recognized by its new storage folder, and asked which files it has. So
is a node that was not known yet when a table was loaded: it may have stored a partition, and have
restarted since.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from minishark.cluster.backend import CALLS_FOLDER, Files
from minishark.cluster.replicas import missing_copies
from minishark.errors import MinisharkError, PartitionsLostError
from minishark.model.catalog import Table
from minishark.query.clock import SYSTEM_CLOCK, Clock, Events, Thread
from minishark.query.inputs import lost_partitions, partition_slices
from minishark.tables.rebalancing import Copy, DrainTracker, moves
from minishark.worker.protocol import FileSlice
from minishark.worker.store import InputMissingError, Store

COPIES_AT_ONCE = 2  # bound on concurrent copies, which compete with queries for disk and network

_LOOK_AGAIN_S = 0.25
# As long, at least, as a node may be cut off before no task runs there any more.
_APART_S = 3.0
_INTERVAL_S = 1.0
_LOOK_S = 0.2  # for nodes that have died: until their partitions are copied, the next may die, too


@dataclass(frozen=True, slots=True)
class Replicas:
    """The state of a table's replicas."""

    fewest: int  # the smallest number of live nodes that store a partition
    wanted: int  # the target: as declared, but at most one per live node
    healing: int  # the number of partitions below the target


def replicas(table: Table, nodes: Sequence[str], doubted: Collection[str] = ()) -> Replicas:
    """The state of a table's replicas, given the live nodes.

    Those that are `doubted` may have lost theirs (`doubtful`).
    """
    goal = min(table.replicas, len(nodes))
    sure = [node for node in nodes if node not in doubted]
    counts = [sum(node in sure for node in p.locations) for p in table.partitions]
    return Replicas(min(counts), goal, sum(count < goal for count in counts))


def doubtful(now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The nodes with another storage folder than before: they have started again, without files."""
    return {node: home for node, home in now.items() if before.get(node) != home}


def copies_needed(
    table: Table, nodes: Sequence[str], draining: Sequence[str] = ()
) -> tuple[Copy, ...]:
    """The copies that bring each partition to its target, given the live nodes that stay.

    Those that are draining are sources only.
    """
    return tuple(
        Copy(table, partition.index, source, target)
        for partition in table.partitions
        for source, target in missing_copies(
            partition.locations, partition.index, table.replicas, nodes, draining
        )
    )


@dataclass(slots=True, kw_only=True)
class Replicator:
    """A thread that keeps the number of replicas of tables at its target."""

    cluster: Files  # copies files
    tables: Callable[[], Iterable[Table]]  # gives all tables, with the last known locations
    homes: Callable[[Table], dict[str, str]]  # nodes' folders when it was loaded; updated here
    # Called when locations of a partition change: table, index, new nodes, nodes that have lost
    # their files, nodes that it has left. Returns whether they did: not if the table has changed
    # meanwhile.
    moved: Callable[[Table, int, Sequence[str], Sequence[str], Sequence[str]], bool]
    dropped: Callable[[str], None]  # called when a file was copied into a dropped table's folder
    clock: Clock = SYSTEM_CLOCK
    _drains: DrainTracker = field(default_factory=DrainTracker)
    _stopped: bool = False
    _stops: Events = field(init=False)  # wakes the thread
    _thread: Thread | None = None

    def __post_init__(self) -> None:
        self._stops = self.clock.events()

    def start(self) -> None:
        self._thread = self.clock.thread(self._run, "minishark-replicas")

    def stop(self) -> None:
        """Start no more copies; a copy in progress fails when the cluster is closed."""
        self._stopped = True
        self._stops.put(None)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        healed_s = self.clock.now_s()
        nodes: tuple[str, ...] = ()
        while not self._stopped:
            with contextlib.suppress(queue.Empty):
                self._stops.get(timeout=_LOOK_S)
                return
            # The cluster is closing, a node died meanwhile, or a disk is full: try again later.
            with contextlib.suppress(MinisharkError, OSError, RuntimeError):
                before, nodes = nodes, self.cluster.nodes
                if nodes == before and self.clock.now_s() < healed_s + _INTERVAL_S:
                    continue
                healed_s = self.clock.now_s()
                self.heal()

    def heal(self) -> None:
        self._forget_restarted()
        nodes, draining = self.cluster.nodes, self.cluster.draining
        needed = [copy for table in self.tables() for copy in copies_needed(table, nodes, draining)]
        if not needed:  # what is lost comes first
            needed = [copy for table in self.tables() for copy in moves(table, nodes)]
        if needed:
            self.clock.each(self._copy, needed, COPIES_AT_ONCE)
        self._release_drained()

    def _release_drained(self) -> None:
        """Delete replicas that have moved, and release draining nodes, when nobody needs them."""
        tables = tuple(self.tables())
        lasting = {self.cluster.folder(CALLS_FOLDER), *(table.folder for table in tables)}
        open_folders = [folder for folder in self.cluster.open_folders if folder not in lasting]
        for file, node in self._drains.superfluous(open_folders):
            self.cluster.remove_copy(file, node)
        draining = self.cluster.draining
        released = self._drains.released(draining, self.cluster.nodes, tables, open_folders)
        self.cluster.release(released)

    def _forget_restarted(self) -> None:
        """Remove restarted nodes from the locations of files that they no longer have."""
        now, store = self.cluster.homes(), self.cluster.store()
        for table in self.tables():
            before = self.homes(table)
            doubted = doubtful(now, before)
            for partition in table.partitions:
                # Restarted before or after this partition was copied there? Only the node knows.
                asked = [node for node in partition.locations if node in doubted]
                held = {node: holds(store, partition.files, node) for node in asked}
                for node in [node for node in asked if held[node] is None]:
                    del doubted[node]  # it is silent: the next round asks it again
                gone = [node for node in asked if held[node] is False]
                if gone and not self.moved(table, partition.index, (), gone, ()):
                    for node in gone:  # it was asked for former files: again in the next round
                        del doubted[node]
            before.update(doubted)

    def _copy(self, copy: Copy) -> None:
        if self._stopped:
            return
        partition = copy.table.partitions[copy.index]
        there = readable(self.cluster)
        gone = [node for node in partition.locations if node not in there]
        # The table may be dropped or replaced during the copy: `moved` checks for that.
        for file in partition.files:
            self._drains.keep(file, copy.target)
        files = partition.files
        is_whole = all(self.cluster.copy_file(f, copy.source, copy.target) for f in files)
        if is_whole and self.moved(copy.table, copy.index, (copy.target,), gone, copy.leaves):
            # Whoever begins after this plans with the new locations.
            for node in copy.leaves:
                for file in partition.files:
                    self._drains.give_up(file, node, self.cluster.open_folders)
        elif any(table.folder == copy.table.folder for table in self.tables()):
            # The partition has other files by now, or some did not arrive: what did is of no use.
            for file in partition.files:
                self._drains.give_up(file, copy.target, self.cluster.open_folders)
            # A source that found its copy damaged has removed it: others are asked then.
            if not is_whole and holds(self.cluster.store(), files, copy.source) is False:
                self.moved(copy.table, copy.index, (), (copy.source,), ())
        else:  # the table was dropped: copying has made its folder again
            self.dropped(copy.table.folder)


def readable(cluster: Files) -> frozenset[str]:
    """Where files are read: live nodes, also those that drain, and the session's own store."""
    return frozenset((*cluster.nodes, *cluster.draining, cluster.store_name))


def holds(store: Store, files: Sequence[str], node: str) -> bool | None:
    """Whether a node has all files; None if it does not answer. Reads their schemas only."""
    try:
        for file in files:
            store.read((FileSlice(file, (node,), 0, 0),))
    except InputMissingError as error:
        return None if error.is_silent else False
    except (OSError, pa.ArrowException):
        return False
    return True


def come_back(
    cluster: Files,
    table: Callable[[], Table | None],
    lost: PartitionsLostError,
    clock: Clock,
    check: Callable[[], None],
) -> None:
    """Wait for the files of a table while nodes may have them that do not answer.

    A node that is cut off or suspended keeps its files for a while, in which it counts as dead.
    Returns when each of the files can be read or is no longer part of the table.

    Args:
        cluster: where the table is stored.
        table: gives its current version; None if there is no such table any more.
        lost: says what was not found.
        clock: the session's.
        check: called while this waits; what it raises ends the wait.

    Raises:
        PartitionsLostError: as soon as no node can have some of them, of these; and of all after
            the cluster's `recovery_s`.
    """
    deadline = clock.now_s() + cluster.recovery_s
    waited = False
    while cluster.loses_files and (now := table()) is not None:
        check()
        slices = [item for part in now.partitions for item in partition_slices(part)]
        held = {item: _found(cluster, item) for item in slices if item.file in lost.files}
        if gone := lost_partitions(now, [item for item, has in held.items() if has is False]):
            raise PartitionsLostError(lost.table, gone.partitions, gone.files, lost.why)
        if None not in held.values():
            if not waited:  # the tasks that did not find them ran where nobody reaches who has them
                clock.sleep(_APART_S)
            return
        if clock.now_s() > deadline:
            break
        waited = True
        clock.sleep(_LOOK_AGAIN_S)
    raise lost


def _found(cluster: Files, item: FileSlice) -> bool | None:
    """Whether the session can read a file; None if who may have it does not answer."""
    alive, store = {cluster.store_name, *cluster.homes()}, cluster.store()
    is_doubtful = False
    for node in item.locations:
        has = holds(store, (item.file,), node) if node in alive else None
        if has:
            return True
        is_doubtful |= has is None and cluster.may_return(node)
    return None if is_doubtful else False
