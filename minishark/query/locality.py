"""Near which nodes a task's input lies, where nodes are on several hosts.

Within a host every node reads every file by path. Between hosts bytes travel, so a task prefers
the hosts that hold most of what it reads; but hosts that hold about as much as each other, as they
do of a shuffle's output, are alike, so that work is spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minishark.compiler.stages.stage import ReadMode
from minishark.worker.protocol import StoreLocation, TaskOutcome

_ALIKE = 0.75

Holding = tuple[Sequence[str], float]
"""The nodes that hold a part of a task's input, and its bytes."""


def replica_locations(nodes: Sequence[str], partition: int, replicas: int) -> tuple[str, ...]:
    """The nodes that are to hold a partition.

    Neighbours, from a first one that depends on the partition's number only: so partitions of the
    same number lie on the same nodes, whatever their table.
    """
    return tuple(nodes[(partition + i) % len(nodes)] for i in range(min(replicas, len(nodes))))


def hosts_of(nodes: Sequence[str], stores: Sequence[StoreLocation]) -> Mapping[str, str]:
    """The host of each node; none if they are all on one."""
    wanted = frozenset(nodes)
    hosts = {peer.name: peer.host for peer in stores if peer.name in wanted}
    return hosts if len(frozenset(hosts.values())) > 1 else {}


def near(holdings: Iterable[Holding], hosts: Mapping[str, str]) -> frozenset[str]:
    """All nodes of the hosts that hold most of some input; none if that says nothing."""
    held: dict[str, float] = {}
    for locations, size in holdings:
        for host in dict.fromkeys(hosts[node] for node in locations if node in hosts):
            held[host] = held.get(host, 0.0) + size
    most = max(held.values(), default=0.0)
    if not most:
        return frozenset()
    return frozenset(node for node, host in hosts.items() if held.get(host, 0.0) >= _ALIKE * most)


def stage_holdings(
    outcomes: Sequence[TaskOutcome], nodes: Sequence[str], mode: ReadMode, index: int
) -> list[Holding]:
    """What a task reads of an earlier stage, and where it lies."""
    found: list[Holding] = []
    for position, (outcome, node) in enumerate(zip(outcomes, nodes, strict=True)):
        size = float(outcome.nbytes)
        if mode is ReadMode.BUCKET:
            size *= sum(part.rows for part in outcome.bucket(index)) / max(1, outcome.rows)
        elif mode is ReadMode.OWN and position != index:
            continue
        found.append(((node,), size))
    return found
