"""What a cluster holds and does, as its nodes tell it, for people and as JSON."""

from __future__ import annotations

import time

import msgspec

from minishark.cluster.executor import load_keys
from minishark.cluster.joining import visit
from minishark.cluster.node import service_address, store_of
from minishark.cluster.wire import GetReport, Report, SessionReport
from sparrow_core import RemoteCluster

_REPORT_S = 5.0
_SCHEDULERS_S = 2.0
_POLL_S = 0.02


class NodeSurvey(msgspec.Struct, frozen=True):
    """A node: its processes, what runs and waits on it, its host's memory, what it holds.

    Attributes:
        name: its name.
        host: what shares its files and processes.
        service: its address.
        pid: the node's process; None if it did not answer.
        executors: the processes of its executors.
        slots: how many tasks it runs at a time.
        running: tasks, of all sessions.
        queued: reservations, of all sessions.
        memory_free_bytes: of its host.
        memory_total_bytes: of its host.
        shared_memory_free_bytes: where it keeps files.
        sessions: what it holds for each session.
    """

    name: str
    host: str
    service: str
    pid: int | None
    executors: tuple[int, ...]
    slots: int
    running: int
    queued: int
    memory_free_bytes: int
    memory_total_bytes: int
    shared_memory_free_bytes: int
    sessions: tuple[SessionReport, ...]


class SessionSurvey(msgspec.Struct, frozen=True):
    """A session: whose it is, and what all nodes together hold for it, replicas included."""

    name: str
    user: str
    pid: int
    host: str
    files: int
    bytes: int


class Survey(msgspec.Struct, frozen=True):
    """A cluster at one moment."""

    cluster: str
    address: str
    schedulers: dict[str, bool]
    nodes: tuple[NodeSurvey, ...]
    sessions: tuple[SessionSurvey, ...]


def survey(address: str, keys_folder: str | None) -> Survey:
    """Ask all nodes of a cluster.

    Raises:
        ClusterError: nobody answers.
    """
    keys = load_keys(keys_folder)
    service = service_address(address, keys)
    with visit(service, keys, lambda _: True) as (welcome, connections, sparrow):
        _await_schedulers(sparrow)
        statuses = sparrow.nodes()
        stores = {status.name: store_of(status.name, status.attributes) for status in statuses}
        services = [peer.service for peer in stores.values() if peer is not None]
        replies = connections.call_all(services, GetReport(), _REPORT_S)
        nodes = []
        for status in statuses:
            peer = stores[status.name]
            if peer is None:
                continue
            reply = replies.get(peer.service)
            report = reply if isinstance(reply, Report) else Report(peer, 0, (), 0, 0, 0)
            nodes.append(
                NodeSurvey(
                    status.name,
                    peer.host,
                    peer.service,
                    report.pid or None,
                    tuple(executor.pid for executor in status.executors),
                    sum(executor.slots for executor in status.executors),
                    status.running,
                    status.queued,
                    report.memory_free,
                    report.memory_total,
                    report.shared_memory_free,
                    report.sessions,
                )
            )
        schedulers = {str(name): count is not None for name, count in sparrow.schedulers().items()}
    return Survey(welcome.cluster, address, schedulers, tuple(nodes), _sessions(nodes))


def _await_schedulers(sparrow: RemoteCluster) -> None:
    """One has answered; the others get a moment."""
    deadline = time.monotonic() + _SCHEDULERS_S
    while None in sparrow.schedulers().values() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _sessions(nodes: list[NodeSurvey]) -> tuple[SessionSurvey, ...]:
    """The sessions of all nodes, each once."""
    found: dict[str, SessionSurvey] = {}
    for report in (report for node in nodes for report in node.sessions):
        before = found.get(report.session)
        files, size = (before.files, before.bytes) if before else (0, 0)
        found[report.session] = SessionSurvey(
            report.session,
            report.user,
            report.pid,
            report.host,
            files + report.files,
            size + report.bytes,
        )
    return tuple(found.values())
