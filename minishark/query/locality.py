"""Where data is stored, and which hosts are close to a task's input.

Within a host, every node maps every file. Between hosts, bytes travel over the network, so a task
prefers the hosts that store most of its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minishark.worker.protocol import StoreLocation, TaskOutcome

# Hosts with at least this share of the maximum are preferred as well: of a shuffle's output all
# hosts store about as much, and tasks must not all go to the one with a few bytes more.
CLOSE_SHARE = 0.75

Holding = tuple[Sequence[str], float]
"""A part of a task's input: the nodes that store it, and its size in bytes."""


def hosts_of(nodes: Sequence[str], stores: Sequence[StoreLocation]) -> Mapping[str, str]:
    names = frozenset(nodes)
    hosts = {peer.name: peer.host for peer in stores if peer.name in names}
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
    least = CLOSE_SHARE * most
    return frozenset(node for node, host in hosts.items() if held.get(host, 0.0) >= least)


def stage_holdings(
    outcomes: Sequence[TaskOutcome], nodes: Sequence[str], buckets: range | None
) -> list[Holding]:
    """What a task reads of an earlier stage, these buckets or all: where it is, and its bytes."""
    holdings: list[Holding] = []
    for outcome, node in zip(outcomes, nodes, strict=True):
        if outcome.inline is not None:
            continue  # it goes wherever the task goes
        size = float(outcome.figures.bytes)
        if buckets is not None:
            rows = sum(run.rows for run in outcome.bucket_runs(buckets))
            size *= rows / max(1, outcome.figures.rows)
        holdings.append(((node,), size))
    return holdings
