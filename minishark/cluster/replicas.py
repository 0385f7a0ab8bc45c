"""Which nodes store the replicas of a partition, and which ones are to. Pure.

Tables of sessions and tables of the cluster are laid out, copied and kept alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

CALLS_REPLICAS = 2  # of what calls of functions have made, which later queries may take


def replica_locations(nodes: Sequence[str], partition: int, replicas: int) -> tuple[str, ...]:
    # They follow each other, from one that depends only on the partition's number. So partitions of
    # the same number are on the same nodes, and joins of tables partitioned alike are local.
    return tuple(nodes[(partition + i) % len(nodes)] for i in range(min(replicas, len(nodes))))


def lacks_replicas(holders: Collection[str], replicas: int, staying: Collection[str]) -> bool:
    """Whether too few of the nodes that stay hold a partition; each can hold one replica."""
    return sum(node in staying for node in holders) < min(replicas, len(staying))


def missing_copies(
    holders: Sequence[str],
    partition: int,
    replicas: int,
    staying: Sequence[str],
    draining: Collection[str],
) -> list[tuple[str, str]]:
    """The copies that bring a partition to its number of replicas, each from a node to another.

    Args:
        holders: the nodes that hold it, as far as they are live.
        partition: its number.
        replicas: how many its table is to have.
        staying: the live nodes that take replicas, in order.
        draining: live nodes that take none, from which it can be copied.
    """
    held = [node for node in holders if node in staying]
    sources = held or [node for node in holders if node in draining]
    if not sources:
        return []  # lost: only loading or computing the table again helps, when a query asks
    layout = replica_locations(staying, partition, len(staying))
    targets = [node for node in layout if node not in held]
    lacking = max(0, min(replicas, len(staying)) - len(held))
    return [(sources[0], target) for target in targets[:lacking]]
