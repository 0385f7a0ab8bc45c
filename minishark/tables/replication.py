"""Replicas of tables that died with their nodes are made again, in the background.

How many replicas a table has is what its user declared, as far as there are nodes. Whoever lives
and has a partition is the source, and the next nodes in the order in which tables are laid out get
copies, a few at a time. A node that was started anew under its old name has nothing of before;
since when it is there nobody knows, so it is asked what it has.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import zmq

from minishark.catalog import Table
from minishark.cluster.backend import Cluster
from minishark.errors import MinisharkError
from minishark.query.locality import replica_locations
from minishark.worker.protocol import FileSlice
from minishark.worker.store import InputMissingError, Store

COPIES_AT_ONCE = 2
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Copy:
    """A partition that a node is to get from another.

    Attributes:
        table: the table.
        index: which of its partitions.
        source: a node that has it.
        target: the node that is to have it, too.
    """

    table: Table
    index: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Replicas:
    """How a table's replicas are.

    Attributes:
        fewest: how many living nodes hold the partition that the fewest hold.
        wanted: how many there shall be, with the nodes that there are.
        healing: how many partitions have fewer.
    """

    fewest: int
    wanted: int
    healing: int


def replicas(table: Table, nodes: Sequence[str]) -> Replicas:
    """How a table's replicas are, if these nodes live."""
    wanted = min(table.replicas, len(nodes))
    counts = [sum(node in nodes for node in p.locations) for p in table.partitions]
    return Replicas(min(counts), wanted, sum(count < wanted for count in counts))


def copies_needed(table: Table, nodes: Sequence[str]) -> tuple[Copy, ...]:
    """What must be copied so that each partition lies on as many of these nodes as it shall.

    A partition that none of them has can't be copied.
    """
    found = []
    for partition in table.partitions:
        living = [node for node in partition.locations if node in nodes]
        order = replica_locations(nodes, partition.index, len(nodes)) if nodes else ()
        targets = [node for node in order if node not in living]
        lacking = max(0, min(table.replicas, len(nodes)) - len(living))
        if living:
            found += [Copy(table, partition.index, living[0], t) for t in targets[:lacking]]
    return tuple(found)


@dataclass(slots=True, kw_only=True)
class Replicator:
    """Keeps the replicas of tables at what they shall be.

    Attributes:
        cluster: where they are.
        tables: all tables, with their holders as last known.
        homes: the folders of nodes when a table was begun, by name; those that the healer finds
            take their places.
        moved: hears that other nodes hold a partition of a table now: which do, which no longer.
    """

    cluster: Cluster
    tables: Callable[[], Iterable[Table]]
    homes: Callable[[Table], dict[str, str]]
    moved: Callable[[Table, int, Sequence[str], Sequence[str]], None]
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look after them."""
        self._thread = threading.Thread(target=self._run, name="minishark-heal", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; what is under way fails when the cluster is closed."""
        self._stopped.set()

    def join(self) -> None:
        """Wait until nothing is under way."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            # The cluster is about to close, or something is short: it is looked at again.
            with contextlib.suppress(MinisharkError, OSError, RuntimeError, zmq.ZMQError):
                self.heal()

    def heal(self) -> None:
        """Look once, and make the copies that are needed."""
        self._forget_restarted()
        nodes = self.cluster.nodes
        needed = [copy for table in self.tables() for copy in copies_needed(table, nodes)]
        if needed:
            with ThreadPoolExecutor(COPIES_AT_ONCE, "minishark-copy") as pool:
                list(pool.map(self._copy, needed))

    def _forget_restarted(self) -> None:
        """Nodes whose folders are others than before hold only what they were given since."""
        now, store = self.cluster.homes(), self.cluster.store()
        for table in self.tables():
            met = self.homes(table)
            fresh = [node for node, home in now.items() if met.get(node, home) != home]
            for partition in table.partitions:
                asked = [node for node in partition.locations if node in fresh]
                gone = [node for node in asked if not _has(store, partition.file, node)]
                if gone:
                    self.moved(table, partition.index, (), gone)
            met.update(now)

    def _copy(self, copy: Copy) -> None:
        if self._stopped.is_set():
            return
        partition = copy.table.partitions[copy.index]
        nodes = self.cluster.nodes
        gone = [node for node in partition.locations if node not in nodes]
        if self.cluster.copy_file(partition.file, copy.source, copy.target):
            self.moved(copy.table, copy.index, (copy.target,), gone)


def _has(store: Store, file: str, node: str) -> bool:
    """Whether a node has a file: its columns can be read there."""
    try:
        store.read((FileSlice(file, (node,), 0, 0),))
    except (InputMissingError, OSError, pa.ArrowException):
        return False
    return True
