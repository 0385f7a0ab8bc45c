"""What is copied so that tables keep their replicas."""

from __future__ import annotations

import errno
import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from minishark.cluster.contract import Cluster
from minishark.model.catalog import Partition, Table, TableStatistics
from minishark.tables import replication
from minishark.tables.rebalancing import Copy
from minishark.tables.replication import (
    Replicas,
    Replicator,
    copies_needed,
    doubtful,
    replicas,
)
from minishark.worker.paths import StorePaths
from minishark.worker.store import InputMissingError, Store


def table(replicas: int, *held: str) -> Table:
    """A table whose partitions have holders (one letter each)."""
    partitions = tuple(
        Partition(index=i, file=f"t/{i}", locations=tuple(nodes), rows=1, bytes=8)
        for i, nodes in enumerate(held)
    )
    return Table(
        name="t",
        schema=(),
        partitions=partitions,
        partition_by=(),
        statistics=TableStatistics(1, 1, ()),
        replicas=replicas,
    )


@pytest.mark.parametrize(
    ("found", "nodes", "expected"),
    [
        (table(2, "ab", "bc", "ca"), "abc", []),
        (table(2, "ab", "bc", "ca"), "ab", [(1, "b", "a"), (2, "a", "b")]),
        (table(2, "ab", "bc"), "b", []),
        (table(2, "ab", "cd"), "ab", []),
        (table(3, "a", "b"), "abc", [(0, "a", "b"), (0, "a", "c"), (1, "b", "c"), (1, "b", "a")]),
        (table(1, "a"), "abc", []),
        (table(2, "a"), "", []),
        (table(2, "ax", "xy", "ab"), "ab", [(0, "a", "b"), (1, "x", "b"), (1, "x", "a")]),
    ],
)
def test_copies(found: Table, nodes: str, expected: list[tuple[int, str, str]]) -> None:
    """Each partition gets as many holders as it shall have, from one that lives, in ring order.

    If only a node that drains (x) has it, from there.
    """
    copies = [Copy(found, *each) for each in expected]
    assert copies == list(copies_needed(found, tuple(nodes), ("x",)))


def test_replicas_are_told_by_the_worst_partition() -> None:
    """There can't be more than nodes; what is lost altogether counts, too."""
    found = table(2, "ab", "bc", "cd")
    assert Replicas(2, 2, 0) == replicas(found, tuple("abcd"))
    assert Replicas(1, 2, 2) == replicas(found, tuple("abd"))
    assert Replicas(0, 2, 2) == replicas(found, tuple("ab"))
    assert Replicas(0, 1, 2) == replicas(found, tuple("a"))
    started_again = doubtful({"a": "1", "b": "2", "c": "4"}, {"a": "1", "b": "2", "c": "3"})
    assert Replicas(1, 2, 2) == replicas(found, tuple("abcd"), started_again), "empty, perhaps"


@dataclass
class Nodes:
    """A cluster of two nodes, of which b is what it was when the healer last looked, or not."""

    paths: StorePaths
    home_of_b: str = "old"
    nodes: tuple[str, ...] = ("a", "b")
    draining: tuple[str, ...] = ()
    open_folders: tuple[str, ...] = ()

    def folder(self, name: str) -> str:
        """The path of a folder of the session."""
        return name

    def release(self, nodes: tuple[str, ...]) -> None:
        """No node drains."""
        assert not nodes

    def homes(self) -> dict[str, str]:
        """The folders of the nodes."""
        return {"a": "old", "b": self.home_of_b}

    def store(self) -> Store:
        """A view of their files."""
        return Store(self.paths, "a")


def test_a_restarted_node_keeps_what_it_was_given_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table that was loaded while it came back it has a part, and is asked which."""
    paths = StorePaths(tmp_path, tmp_path)
    paths.make("t", ("a", "b"))
    columns = pa.schema([("x", pa.int64())])
    Store(paths, "b").write("t/1", columns, [[]])
    cluster = Nodes(paths)
    homes = {"t": cluster.homes()}
    moved: list[tuple[int, list[str], list[str]]] = []
    replicator = Replicator(
        cluster=cast("Cluster", cluster),
        tables=lambda: [table(2, "ab", "ab")],
        homes=lambda found: homes[found.folder],
        moved=lambda _, index, found, gone, __: (
            moved.append((index, list(found), list(gone))) is None
        ),
        dropped=lambda _: None,
    )
    replicator.heal()
    assert [] == moved
    cluster.home_of_b = "new"
    with monkeypatch.context() as patch:
        patch.setattr(Store, "read", _silent)
        replicator.heal()
    assert [] == moved  # nobody knows yet: it is asked again
    replicator.heal()
    assert [(0, [], ["b"])] == moved
    replicator.heal()
    assert [(0, [], ["b"])] == moved
    del homes["t"]["b"]  # it was not known when the table was loaded, and may have restarted since
    replicator.heal()
    assert 2 * [(0, [], ["b"])] == moved


def _silent(*_: object) -> None:
    message = "b does not answer"
    raise InputMissingError(message, is_silent=True)


def test_errors_do_not_end_the_replicator() -> None:
    """It looks again, whatever went wrong, also when it asked for the nodes."""
    looks: list[None] = []
    again = threading.Event()

    class Failing:
        @property
        def nodes(self) -> tuple[str, ...]:
            looks.append(None)
            if len(looks) > 1:
                again.set()
            raise OSError(errno.ENOSPC, "no space")

    replicator = Replicator(
        cluster=cast("Cluster", Failing()),
        tables=lambda: (),
        homes=lambda _: {},
        moved=lambda *_: False,
        dropped=lambda _: None,
    )
    replicator.start()
    assert again.wait(30)
    replicator.stop()
    replicator.join()


def test_what_a_node_held_is_copied_as_soon_as_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it is next looked at everything: meanwhile another node may end, too."""
    monkeypatch.setattr(replication, "_INTERVAL_S", math.inf)
    monkeypatch.setattr(replication, "_LOOK_S", 0.001)
    cluster = Nodes(StorePaths(tmp_path, tmp_path), nodes=("a", "b", "c"))
    healed: list[tuple[str, ...]] = []
    changed = threading.Semaphore(0)

    class Noted(Replicator):
        def heal(self) -> None:
            healed.append(self.cluster.nodes)
            changed.release()

    replicator = Noted(
        cluster=cast("Cluster", cluster),
        tables=lambda: (),
        homes=lambda _: {},
        moved=lambda *_: False,
        dropped=lambda _: None,
    )
    replicator.start()
    for nodes in ("abc", "ab", "abd"):
        cluster.nodes = tuple(nodes)
        assert changed.acquire(timeout=30)
    replicator.stop()
    replicator.join()
    assert [tuple("abc"), tuple("ab"), tuple("abd")] == healed


def test_other_holders_change_nothing_else() -> None:
    """A table with other holders is the same load."""
    found = table(2, "ab", "bc")
    moved = found.with_locations(1, ("a", "b"))
    assert (("a", "b"), ("a", "b")) == tuple(p.locations for p in moved.partitions)
    assert (found.folder, found.partitions[0]) == (moved.folder, moved.partitions[0])
