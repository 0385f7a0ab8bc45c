"""The state of nodes: as a session sees its own, and as `minishark cluster status` asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from machine_kit.keys import Keys
from minishark.cluster.attributes import store_of
from minishark.cluster.connections import Connections
from minishark.cluster.joining import peer_session
from minishark.cluster.keys import load_keys
from minishark.cluster.machine import memory_of
from minishark.cluster.node import service_address, this_host
from minishark.cluster.running import running_task
from minishark.cluster.wire import (
    Done,
    DrainNode,
    GetReport,
    GetUsage,
    Reply,
    Report,
    SessionReport,
    Usage,
)
from minishark.errors import ClusterError
from minishark.events import kinds
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from minishark.worker.storage import folder_bytes
from sparrow_core import NodeStatus

_REPORT_S = 5.0
_SCHEDULERS_S = 2.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ExecutorState:
    """An executor process.

    Attributes:
        name: its name in the cluster, such as "node-0-e1".
        pid: its process; 0 if on another host.
        memory_bytes: resident memory, mapped shared memory included; 0 if dead or not known.
    """

    name: str
    pid: int
    slots: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node, as it last reported.

    Attributes:
        pid: the process of its node monitor.
        alive: whether that process is alive.
        running: running tasks, of all sessions.
        queued: queued reservations, of all sessions.
        deaths: how often the node monitor or an executor died.
        last_death: how the last of them died.
        stored_bytes: size of its files in shared memory; 0 if not known.
        disk_bytes: size of its files on disk, spilled data included; 0 if not known.
        draining: whether it takes no new tasks, and leaves.
        tasks: those of this session that have run for a second and run still, at most 50.
    """

    name: str
    pid: int
    alive: bool
    executors: tuple[ExecutorState, ...]
    running: int
    queued: int
    deaths: int = 0
    last_death: str = ""
    stored_bytes: int = 0
    disk_bytes: int = 0
    draining: bool = False
    # They change with time, which is no change of the node's state.
    tasks: tuple[kinds.RunningTask, ...] = field(default=(), compare=False)

    @property
    def slots(self) -> int:
        return sum(executor.slots for executor in self.executors)

    @property
    def memory_bytes(self) -> int:
        return sum(executor.memory_bytes for executor in self.executors)


def node_states(
    statuses: Sequence[NodeStatus], paths: StorePaths, usages: Mapping[str, Usage]
) -> tuple[NodeState, ...]:
    """The states of nodes.

    Args:
        statuses: as Sparrow knows them.
        paths: the folders of nodes without folders of their own.
        usages: what nodes on other hosts have told of themselves, by name.
    """
    return tuple(_node(status, paths, usages.get(status.name)) for status in statuses)


def node_usages(
    connections: Connections, statuses: Sequence[NodeStatus], timeout_s: float
) -> dict[str, Usage]:
    """What nodes on other hosts use, as they tell it themselves; of those that answer in time."""
    stores = (store_of(status.name, status.attributes) for status in statuses)
    services = {
        store.service: store.name for store in stores if store and store.host != this_host()
    }
    if not services:
        return {}
    replies = connections.call_all(tuple(services), GetUsage(), timeout_s)
    return {services[each]: reply for each, reply in replies.items() if isinstance(reply, Usage)}


def _node(status: NodeStatus, paths: StorePaths, usage: Usage | None) -> NodeState:
    location = store_of(status.name, status.attributes)
    is_here = location is None or location.host == this_host()
    if location is not None:
        paths = StorePaths(Path(location.memory), Path(location.disk))
    if is_here:
        usage = _own_usage(status, paths)
    memory = usage.memory if usage else {}
    return NodeState(
        name=status.name,
        pid=status.pid,
        alive=status.alive,
        executors=tuple(
            ExecutorState(
                each.name, each.pid if is_here else 0, each.slots, memory.get(each.pid, 0)
            )
            for each in status.executors
        ),
        running=status.running,
        queued=status.queued,
        deaths=status.deaths,
        last_death=status.last_death,
        stored_bytes=usage.stored if usage else 0,
        disk_bytes=usage.disk if usage else 0,
        draining=status.draining,
        tasks=tuple(running_task(each, time.time() - each.for_s) for each in status.longest),
    )


def node_changes(
    before: Mapping[str, NodeState], found: Mapping[str, NodeState], now: float
) -> Iterator[kinds.AnyEvent]:
    """What has changed between two looks at the nodes, by name, as events."""
    for name, node in found.items():
        known = before.get(name)
        if node == known:
            continue
        yield _report(node, now)
        if known is not None and node.deaths > known.deaths:
            yield kinds.NodeDied(at=now, node=name, reason=node.last_death)
    for name in before.keys() - found.keys():
        yield kinds.NodeLeft(at=now, node=name)


def _report(node: NodeState, now: float) -> kinds.NodeReport:
    return kinds.NodeReport(
        at=now,
        node=node.name,
        alive=node.alive,
        draining=node.draining,
        executors=tuple(
            kinds.ExecutorReport(each.name, each.pid, each.slots, each.memory_bytes)
            for each in node.executors
        ),
        running=node.running,
        queued=node.queued,
        stored_bytes=node.stored_bytes,
        disk_bytes=node.disk_bytes,
        deaths=node.deaths,
        last_death=node.last_death,
    )


def _own_usage(status: NodeStatus, paths: StorePaths) -> Usage:
    """What a node on this host uses."""
    has_memory = paths.memory != paths.disk
    return Usage(
        memory=memory_of(executor.pid for executor in status.executors),
        stored=folder_bytes(paths.memory / status.name) if has_memory else 0,
        disk=folder_bytes(paths.disk / status.name),
    )


class NodeSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A node: its processes and tasks, its host's memory, its stored files."""

    name: str
    host: str  # the id of its machine or container
    service: str
    pid: int | None  # the node's process; None if it did not answer
    executors: tuple[int, ...]  # the processes of its executors
    slots: int
    running: int  # running tasks, of all sessions
    queued: int  # queued reservations, of all sessions
    memory_free_bytes: int  # of its host, as are the two below
    memory_total_bytes: int
    shared_memory_free_bytes: int
    sessions: tuple[SessionReport, ...]  # its stored files, by session
    draining: bool = False  # it takes no new tasks, and leaves


class SessionSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A session: its user and process, and its files on all nodes, replicas included."""

    name: str
    user: str
    pid: int
    host: str
    files: int
    bytes: int


class Survey(msgspec.Struct, frozen=True):
    """A snapshot of a cluster; `schedulers` maps each address to whether it answers."""

    cluster: str
    address: str
    schedulers: dict[str, bool]
    nodes: tuple[NodeSurvey, ...]
    sessions: tuple[SessionSurvey, ...]


def survey(address: str, keys_folder: str | Keys | None) -> Survey:
    keys = load_keys(keys_folder)
    service = service_address(address, keys)
    with peer_session(service, keys, lambda _: True) as (welcome, connections, sparrow):
        deadline = time.monotonic() + _SCHEDULERS_S
        while None in sparrow.schedulers().values() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        statuses = [
            (status, location)
            for status in sparrow.nodes()
            if (location := store_of(status.name, status.attributes)) is not None
        ]
        services = [location.service for _, location in statuses]
        replies = connections.call_all(services, GetReport(), _REPORT_S)
        schedulers = {str(name): count is not None for name, count in sparrow.schedulers().items()}
    nodes = tuple(
        _surveyed(status, location, replies.get(location.service)) for status, location in statuses
    )
    return Survey(welcome.cluster, address, schedulers, nodes, _sessions(nodes))


def _surveyed(status: NodeStatus, location: StoreLocation, reply: Reply | None) -> NodeSurvey:
    report = reply if isinstance(reply, Report) else None
    return NodeSurvey(
        name=status.name,
        host=location.host,
        service=location.service,
        pid=report.pid if report else None,
        executors=tuple(executor.pid for executor in status.executors),
        slots=sum(executor.slots for executor in status.executors),
        running=status.running,
        queued=status.queued,
        memory_free_bytes=report.memory_free if report else 0,
        memory_total_bytes=report.memory_total if report else 0,
        shared_memory_free_bytes=report.shared_memory_free if report else 0,
        sessions=report.sessions if report else (),
        draining=status.draining,
    )


def drain_node(address: str, keys_folder: str | Keys | None, name: str, wait_s: float) -> bool:
    """Drain a node of a cluster, and wait at most so long for it to leave; whether it has.

    Raises:
        ClusterError: there is no such node, or it does not answer.
    """
    keys = load_keys(keys_folder)
    service = service_address(address, keys)
    with peer_session(service, keys, bool) as (_, connections, sparrow):
        known = {status.name: status for status in sparrow.nodes()}
        found = store_of(name, known[name].attributes) if name in known else None
        if found is None:
            names = ", ".join(known) or "none"
            raise ClusterError(f"The cluster has no node called {name!r}; its nodes are {names}.")
        replies = connections.call_all([found.service], DrainNode(), _REPORT_S)
        if not isinstance(replies.get(found.service), Done):
            raise ClusterError(f"Node {name} does not answer.")
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            # The last of the schedulers may leave with it: then nobody knows of nodes any more.
            if all(status.name != name for status in sparrow.nodes()):
                return True
            time.sleep(_POLL_S)
    return False


def _sessions(nodes: Sequence[NodeSurvey]) -> tuple[SessionSurvey, ...]:
    """The sessions of all nodes, each once, with the sums of their files."""
    found: dict[str, SessionSurvey] = {}
    for report in (report for node in nodes for report in node.sessions):
        before = found.get(report.session)
        files, size = (before.files, before.bytes) if before else (0, 0)
        found[report.session] = SessionSurvey(
            name=report.session,
            user=report.user,
            pid=report.pid,
            host=report.host,
            files=files + report.files,
            bytes=size + report.bytes,
        )
    return tuple(found.values())
