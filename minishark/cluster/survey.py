"""The state of a shared cluster, as its nodes report it, for `minishark cluster status`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from minishark.cluster.executor import load_keys
from minishark.cluster.joining import peer_session
from minishark.cluster.node import service_address, store_of
from minishark.cluster.wire import GetReport, Reply, Report, SessionReport
from minishark.worker.protocol import StoreLocation
from sparrow_core import NodeStatus, RemoteCluster

_REPORT_S = 5.0
_SCHEDULERS_S = 2.0
_POLL_S = 0.02


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


def survey(address: str, keys_folder: str | None) -> Survey:
    keys = load_keys(keys_folder)
    service = service_address(address, keys)
    with peer_session(service, keys, lambda _: True) as (welcome, connections, sparrow):
        _await_schedulers(sparrow)
        statuses = [
            (status, location)
            for status in sparrow.nodes()
            if (location := store_of(status.name, status.attributes)) is not None
        ]
        services = [location.service for _, location in statuses]
        replies = connections.call_all(services, GetReport(), _REPORT_S)
        schedulers = {str(name): count is not None for name, count in sparrow.schedulers().items()}
    nodes = tuple(
        _node(status, location, replies.get(location.service)) for status, location in statuses
    )
    return Survey(welcome.cluster, address, schedulers, nodes, _sessions(nodes))


def _node(status: NodeStatus, location: StoreLocation, reply: Reply | None) -> NodeSurvey:
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
    )


def _await_schedulers(sparrow: RemoteCluster) -> None:
    deadline = time.monotonic() + _SCHEDULERS_S
    while None in sparrow.schedulers().values() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


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
