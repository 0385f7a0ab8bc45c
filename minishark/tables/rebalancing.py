"""Where replicas move when nodes join, and when a draining node may go. Pure functions and state.

A node that joins has no partitions, so no task prefers it. A table of which some node holds less
than half of its fair share is laid out again, as loading would lay it out over the nodes that there
are now: tables partitioned alike, loaded before or after, lie on the same nodes again. The cost is
that most partitions of such a table move once, in the background.

What moves is copied first, then its new location is published, and the old file is deleted when
nobody who may have planned with it is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from minishark.cluster.replicas import lacks_replicas, replica_locations
from minishark.model.catalog import Table


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a partition from node to node.

    Attributes:
        table: The table.
        index: The partition's.
        source: A live node that stores it.
        target: A node that does not.
        leaves: Nodes whose replicas are to be deleted afterwards: the partition moves.
    """

    table: Table
    index: int
    source: str
    target: str
    leaves: tuple[str, ...] = ()


def moves(table: Table, nodes: Sequence[str]) -> tuple[Copy, ...]:
    """What moves so that all nodes have their share; for a table that lacks no replica.

    Args:
        table: With the last known locations.
        nodes: The live nodes that stay, in order.
    """
    replicas = _wanted(table, nodes)
    if not _is_lopsided(table, nodes, replicas):
        return ()
    copies = []
    for partition in table.partitions:
        held = [node for node in partition.locations if node in nodes]
        layout = replica_locations(nodes, partition.index, replicas)
        lacking = [node for node in layout if node not in held]
        surplus = [node for node in held if node not in layout]
        for number, target in enumerate(lacking if held else ()):
            last = number + 1 == len(lacking)
            leaves = surplus[number:] if last else surplus[number : number + 1]
            copies.append(Copy(table, partition.index, held[0], target, tuple(leaves)))
    return tuple(copies)


def _wanted(table: Table, nodes: Sequence[str]) -> int:
    """How many nodes shall store each partition; all store a single one."""
    return len(nodes) if len(table.partitions) == 1 else min(table.replicas, len(nodes))


def _is_lopsided(table: Table, nodes: Sequence[str], replicas: int) -> bool:
    if not nodes:
        return False
    fair = len(table.partitions) * replicas / len(nodes)
    counts = Counter(node for partition in table.partitions for node in partition.locations)
    return fair >= 1 and min(counts[node] for node in nodes) < max(1.0, fair / 2)


@dataclass(slots=True)
class DrainTracker:
    """What a session still reads from nodes that leave, and from where replicas have moved.

    Queries, loads and programs have folders while they are open. What they read was chosen when
    they began; so a node or a replica is needed until all folders are gone that were open when it
    was given up.
    """

    _nodes: dict[str, frozenset[str]] = field(default_factory=dict)
    _files: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def give_up(self, file: str, node: str, open_folders: Collection[str]) -> None:
        """A node's replica of a file has moved."""
        self._files[file, node] = frozenset(open_folders)

    def superfluous(self, open_folders: Collection[str]) -> tuple[tuple[str, str], ...]:
        """Files, each with its node, that nobody reads any more; forgets them."""
        done = tuple(file for file, then in self._files.items() if then.isdisjoint(open_folders))
        for file in done:
            del self._files[file]
        return done

    def keep(self, file: str, node: str) -> None:
        """The replica is wanted again."""
        self._files.pop((file, node), None)

    def released(
        self,
        draining: Sequence[str],
        nodes: Sequence[str],
        tables: Iterable[Table],
        open_folders: Collection[str],
    ) -> tuple[str, ...]:
        """The draining nodes of which nothing is needed any more.

        Args:
            draining: All of them.
            nodes: The live nodes that stay. If there are none, nothing can be saved.
            tables: With the last known locations.
            open_folders: Of what is open now, without tables that are complete.
        """
        for gone in self._nodes.keys() - set(draining):
            del self._nodes[gone]
        for node in draining:
            self._nodes.setdefault(node, frozenset(open_folders))
        if not nodes:
            return tuple(draining)
        if any(_lacks_replicas(table, nodes, draining) for table in tables):
            return ()
        return tuple(node for node in draining if self._nodes[node].isdisjoint(open_folders))


def _lacks_replicas(table: Table, nodes: Sequence[str], draining: Sequence[str]) -> bool:
    """Whether a draining node has a replica that another one should have first."""
    return any(
        any(node in draining for node in partition.locations)
        and lacks_replicas(partition.locations, table.replicas, nodes)
        for partition in table.partitions
    )
