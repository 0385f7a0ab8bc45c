"""The state of a session's nodes: processes, running tasks, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from minishark.cluster.node import store_of, this_host
from minishark.worker.paths import StorePaths
from minishark.worker.storage import folder_bytes
from sparrow_core import ExecutorStatus, NodeStatus


@dataclass(frozen=True, slots=True)
class ExecutorState:
    """An executor process.

    Attributes:
        name: its name in the cluster, such as "node-0-e1".
        pid: its process; 0 if on another host.
        memory_bytes: resident memory, mapped shared memory included; 0 if dead or on another host.
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
        stored_bytes: size of its files in shared memory; 0 if on another host.
        disk_bytes: size of its files on disk, spilled data included; 0 if on another host.
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

    @property
    def slots(self) -> int:
        return sum(executor.slots for executor in self.executors)

    @property
    def memory_bytes(self) -> int:
        return sum(executor.memory_bytes for executor in self.executors)


def node_states(statuses: Sequence[NodeStatus], paths: StorePaths) -> tuple[NodeState, ...]:
    # `paths` are the folders of nodes without folders of their own.
    return tuple(_node(status, paths) for status in statuses)


def _node(status: NodeStatus, paths: StorePaths) -> NodeState:
    location = store_of(status.name, status.attributes)
    is_here = location is None or location.host == this_host()
    if location is not None:
        paths = StorePaths(Path(location.memory), Path(location.disk))
    has_memory = is_here and paths.memory != paths.disk
    return NodeState(
        name=status.name,
        pid=status.pid,
        alive=status.alive,
        executors=tuple(_executor(each, is_here=is_here) for each in status.executors),
        running=status.running,
        queued=status.queued,
        deaths=status.deaths,
        last_death=status.last_death,
        stored_bytes=folder_bytes(paths.memory / status.name) if has_memory else 0,
        disk_bytes=folder_bytes(paths.disk / status.name) if is_here else 0,
    )


def _executor(status: ExecutorStatus, *, is_here: bool) -> ExecutorState:
    pid = status.pid if is_here else 0
    return ExecutorState(status.name, pid, status.slots, _memory(pid) if is_here else 0)


def _memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
