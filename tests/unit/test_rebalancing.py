"""What moves to a node that joins, and when one may go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minishark.cluster.replicas import replica_locations
from minishark.model.catalog import Partition, Table, TableStatistics
from minishark.tables.rebalancing import Copy, DrainTracker, moves


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


def laid_out(partitions: int, replicas: int, nodes: str) -> Table:
    """A table as it is loaded over nodes."""
    return table(
        replicas, *("".join(replica_locations(nodes, i, replicas)) for i in range(partitions))
    )


@pytest.mark.parametrize(
    ("found", "nodes", "expected"),
    [
        (table(1, "a", "b", "a", "b"), "ab", []),
        (table(1, "a", "b", "a"), "abc", [(2, "a", "c", ("a",))]),
        (table(1, "a", "b"), "abc", []),  # fewer partitions than nodes: nothing is fair
        (table(2, "ab", "ba"), "abc", [(1, "b", "c", ("a",))]),
        (table(1, "a"), "abc", [(0, "a", "b", ()), (0, "a", "c", ())]),  # a small table
        (table(1, "x", "b", "x"), "abc", []),  # lost ones are not moved
        (table(1, "a"), "", []),
    ],
)
def test_moves(found: Table, nodes: str, expected: list[tuple[int, str, str, tuple[str]]]) -> None:
    """A node without its share gets it, and what is copied there leaves where it was."""
    assert [Copy(found, *each) for each in expected] == list(moves(found, tuple(nodes)))


@given(
    partitions=st.integers(1, 20),
    replicas=st.integers(1, 4),
    before=st.integers(1, 6),
    joining=st.integers(0, 3),
)
@example(partitions=4, replicas=4, before=5, joining=3)
def test_after_the_moves_a_table_lies_as_if_loaded_anew(
    partitions: int, replicas: int, before: int, joining: int
) -> None:
    """With as many replicas; and then nothing moves any more, as after loading."""
    names = "abcdefghi"
    old, nodes = names[:before], names[: before + joining]
    replicas = min(replicas, before)  # else copies come first that are no moves
    found = laid_out(partitions, replicas, old)
    assert partitions == 1 or () == moves(found, tuple(old))
    copies = moves(found, tuple(nodes))
    for copy in copies:
        held = found.partitions[copy.index].locations
        # Files are deleted after all copies: a source may have lost its place before.
        assert copy.source in copy.table.partitions[copy.index].locations
        assert copy.target not in held
        left = [node for node in held if node not in copy.leaves]
        found = found.with_locations(copy.index, (*left, copy.target))
    assert () == moves(found, tuple(nodes))
    wanted = len(nodes) if partitions == 1 else min(replicas, len(nodes))
    for partition in found.partitions:
        assert len(set(partition.locations)) >= replicas
        if copies:
            layout = replica_locations(nodes, partition.index, wanted)
            assert set(partition.locations) <= set(layout)
    counts = Counter(node for each in found.partitions for node in each.locations)
    # On a ring, partitions + replicas - 1 neighbours have something, however many nodes there are.
    if partitions * replicas >= 2 * len(nodes) and partitions + replicas > len(nodes):
        assert all(counts[node] for node in nodes)


def test_a_draining_node_goes_when_nothing_of_it_is_needed() -> None:
    """Not before its replicas are elsewhere, and what was open when it began has ended."""
    drains = DrainTracker()
    only_there = table(1, "x", "b")
    tables, nodes = [only_there], ("a", "b")
    assert () == drains.released(("x",), nodes, tables, ["q1", "q2"])
    tables = [only_there.with_locations(0, ("a",))]
    assert () == drains.released(("x",), nodes, tables, ["q2", "q3"])
    assert ("x",) == drains.released(("x",), nodes, tables, ["q3"])
    # It has come back, and drains again: what is open now may read from it.
    assert () == drains.released((), nodes, tables, ["q3"])
    assert () == drains.released(("x",), nodes, tables, ["q3"])


def test_if_all_nodes_drain_they_go() -> None:
    """Nothing can be saved."""
    assert ("x", "y") == DrainTracker().released(("x", "y"), (), [table(2, "xy")], ["q"])


def test_enough_replicas_elsewhere_are_enough() -> None:
    """A replica of a draining node that is one too many holds nobody up."""
    found = table(2, "abx", "ab")
    assert ("x",) == DrainTracker().released(("x",), ("a", "b"), [found], [])
    few = table(2, "ax", "ab")
    assert () == DrainTracker().released(("x",), ("a", "b"), [few], [])
    assert ("x",) == DrainTracker().released(("x",), ("a",), [few], [])


def test_a_moved_file_stays_as_long_as_somebody_may_read_it() -> None:
    """That is, whoever was there when it moved; and if it is moved back, it stays."""
    drains = DrainTracker()
    drains.give_up("t/0", "a", ["q1"])
    drains.give_up("t/1", "a", ["q1"])
    assert () == drains.superfluous(["q1", "q2"])
    drains.keep("t/1", "a")
    assert (("t/0", "a"),) == drains.superfluous(["q2"])
    assert () == drains.superfluous([])
