"""Where data is stored, and which hosts are close to a task's input.

Within a host, every node maps every file. Between hosts, bytes travel over the network, so a task
prefers the hosts that store most of its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minishark.compiler.physical.plan import Share
from minishark.compiler.stages.stage import ReadMode
from minishark.worker.protocol import StoreLocation, TaskOutcome

# Hosts with at least this share of the maximum are preferred as well: of a shuffle's output all
# hosts store about as much, and tasks must not all go to the one with a few bytes more.
_CLOSE_SHARE = 0.75

Holding = tuple[Sequence[str], float]
"""A part of a task's input: the nodes that store it, and its size in bytes."""


def replica_locations(nodes: Sequence[str], partition: int, replicas: int) -> tuple[str, ...]:
    """The nodes that should store a partition.

    They follow each other, from one that depends only on the partition's number. So partitions of
    the same number are on the same nodes, and joins of tables partitioned alike are local.
    """
    return tuple(nodes[(partition + i) % len(nodes)] for i in range(min(replicas, len(nodes))))


def hosts_of(nodes: Sequence[str], stores: Sequence[StoreLocation]) -> Mapping[str, str]:
    """The host of each node; empty if all are on one host."""
    wanted = frozenset(nodes)
    hosts = {peer.name: peer.host for peer in stores if peer.name in wanted}
    return hosts if len(frozenset(hosts.values())) > 1 else {}


def near(holdings: Iterable[Holding], hosts: Mapping[str, str]) -> frozenset[str]:
    """All nodes of the hosts that store most of an input; none if no host stores any of it."""
    held: dict[str, float] = {}
    for locations, size in holdings:
        for host in dict.fromkeys(hosts[node] for node in locations if node in hosts):
            held[host] = held.get(host, 0.0) + size
    most = max(held.values(), default=0.0)
    if not most:
        return frozenset()
    least = _CLOSE_SHARE * most
    return frozenset(node for node, host in hosts.items() if held.get(host, 0.0) >= least)


def stage_holdings(
    outcomes: Sequence[TaskOutcome],
    nodes: Sequence[str],
    mode: ReadMode,
    index: int,
    share: Share | None = None,
) -> list[Holding]:
    """What a task reads of an earlier stage: where each part is stored, and its bytes."""
    share = share or Share(index, index + 1)
    found: list[Holding] = []
    for position, (outcome, node) in enumerate(zip(outcomes, nodes, strict=True)):
        size = float(outcome.nbytes)
        if mode is ReadMode.BUCKET:
            if not share.reads(position):
                continue
            read = outcome.bucket_range(share.first, share.last)
            size *= sum(part.rows for part in read) / max(1, outcome.rows)
        elif mode is ReadMode.OWN and position != index:
            continue
        found.append(((node,), size))
    return found
