"""The state of nodes: as a session sees its own, and as `minishark cluster status` asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from machine_kit.keys import Keys
from minishark.cluster.attributes import store_of
from minishark.cluster.connections import Connections
from minishark.cluster.endpoints import this_host
from minishark.cluster.joining import peer_session
from minishark.cluster.machine import memory_of
from minishark.cluster.wire import Done, DrainNode, GetUsage, Usage
from minishark.errors import ClusterError
from minishark.model.events import kinds
from minishark.model.events.kinds import NodeReport, NodeUsage, SessionUsage
from minishark.worker.paths import StorePaths
from minishark.worker.storage import folder_bytes
from sparrow_core import NodeStatus

_REPORT_S = 5.0
_SCHEDULERS_S = 2.0
_POLL_S = 0.02

NOWHERE = StorePaths(Path("/nonexistent"), Path("/nonexistent"))
"""Folders of nodes that have their own."""


def node_usages(
    connections: Connections, statuses: Sequence[NodeStatus], timeout_s: float
) -> dict[str, NodeUsage]:
    """What nodes use, by name, as they tell it themselves; of those that answer in time."""
    stores = (store_of(status) for status in statuses)
    names = {store.service: store.name for store in stores if store is not None}
    if not names:
        return {}
    replies = connections.call_all(tuple(names), GetUsage(), timeout_s)
    return {
        names[service]: reply.usage
        for service, reply in replies.items()
        if isinstance(reply, Usage)
    }


def usages_elsewhere(
    connections: Connections, statuses: Sequence[NodeStatus], timeout_s: float
) -> dict[str, NodeUsage]:
    """The same of nodes on other hosts; what those on this one use can be seen from here."""
    return node_usages(
        connections, [status for status in statuses if not _is_here(status)], timeout_s
    )


def node_reports(
    statuses: Sequence[NodeStatus], paths: StorePaths, usages: Mapping[str, NodeUsage]
) -> tuple[NodeReport, ...]:
    """The nodes with what they use.

    Args:
        statuses: as Sparrow knows them.
        paths: the folders of nodes without folders of their own.
        usages: what nodes have told of themselves, by name.
    """
    now = time.time()
    return tuple(
        NodeReport(at=now, usage=_usage(status, paths, usages), **structs.asdict(status))
        for status in statuses
    )


def _usage(status: NodeStatus, paths: StorePaths, usages: Mapping[str, NodeUsage]) -> NodeUsage:
    if status.name in usages:
        return usages[status.name]
    if not _is_here(status):
        return NodeUsage()
    store = store_of(status)
    if store is not None:
        paths = StorePaths(Path(store.memory), Path(store.disk))
    has_memory = paths.memory != paths.disk
    return NodeUsage(
        memory=memory_of(executor.pid for executor in status.executors),
        stored_bytes=folder_bytes(paths.memory / status.name) if has_memory else 0,
        disk_bytes=folder_bytes(paths.disk / status.name),
    )


def _is_here(status: NodeStatus) -> bool:
    store = store_of(status)
    return store is None or store.host == this_host()


def node_changes(
    before: Mapping[str, NodeReport], reports: Mapping[str, NodeReport], now: float
) -> Iterator[kinds.AnyEvent]:
    """What has changed between two looks at the nodes, by name, as events."""
    for name, report in reports.items():
        last, told = before.get(name), _told(report)
        if last is not None and told == _told(last):
            continue
        yield structs.replace(told, at=now)
        if last is not None and report.deaths > last.deaths:
            yield kinds.NodeDied(at=now, node=name, reason=report.last_death)
    for name in before.keys() - reports.keys():
        yield kinds.NodeLeft(at=now, node=name)


def _told(report: NodeReport) -> NodeReport:
    """What an event tells of a node: not what changes all the time, nor what others tell."""
    usage = NodeUsage(
        memory=report.usage.memory,
        stored_bytes=report.usage.stored_bytes,
        disk_bytes=report.usage.disk_bytes,
    )
    return structs.replace(report, at=0.0, attributes=(), longest=(), usage=usage)


class Survey(msgspec.Struct, frozen=True):
    """A snapshot of a cluster; `schedulers` maps each address to whether it answers."""

    cluster: str
    address: str
    schedulers: dict[str, bool]
    nodes: tuple[NodeReport, ...]
    sessions: tuple[SessionUsage, ...]


def survey(address: str, keys_folder: str | Keys | None) -> Survey:
    with peer_session(address, keys_folder, lambda _: True) as (welcome, connections, sparrow):
        deadline = time.monotonic() + _SCHEDULERS_S
        while None in sparrow.schedulers().values() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        statuses = [node for node in sparrow.nodes() if store_of(node)]
        usages = node_usages(connections, statuses, _REPORT_S)
        schedulers = {str(name): count is not None for name, count in sparrow.schedulers().items()}
    nodes = node_reports(statuses, NOWHERE, usages)
    return Survey(welcome.cluster, address, schedulers, nodes, _sessions(nodes))


def drain_node(address: str, keys_folder: str | Keys | None, name: str, wait_s: float) -> bool:
    """Drain a node of a cluster, and wait at most so long for it to leave; whether it has.

    Raises:
        ClusterError: there is no such node, or it does not answer.
    """
    with peer_session(address, keys_folder) as (_, connections, sparrow):
        statuses = {status.name: status for status in sparrow.nodes()}
        store = store_of(statuses[name]) if name in statuses else None
        if store is None:
            names = ", ".join(statuses) or "none"
            raise ClusterError(f"The cluster has no node called {name!r}; its nodes are {names}.")
        replies = connections.call_all([store.service], DrainNode(), _REPORT_S)
        if not isinstance(replies.get(store.service), Done):
            raise ClusterError(f"Node {name} does not answer.")
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            # The last of the schedulers may leave with it: then nobody knows of nodes any more.
            if all(status.name != name for status in sparrow.nodes()):
                return True
            time.sleep(_POLL_S)
    return False


def _sessions(nodes: Sequence[NodeReport]) -> tuple[SessionUsage, ...]:
    """The sessions of all nodes, each once, with the sums of their files."""
    by_name: dict[str, SessionUsage] = {}
    for usage in (usage for node in nodes for usage in node.usage.sessions):
        before = by_name.get(usage.name)
        by_name[usage.name] = structs.replace(
            usage,
            files=usage.files + (before.files if before else 0),
            bytes=usage.bytes + (before.bytes if before else 0),
        )
    return tuple(by_name.values())
