"""What a cluster's nodes are doing, for those who look at it."""

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
        pid: its process; 0 if that is on another host.
        slots: how many tasks it runs at a time.
        memory_bytes: what it holds of this machine's memory, shared memory included; 0 if it is
            gone.
    """

    name: str
    pid: int
    slots: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as last heard of.

    Attributes:
        name: its name.
        pid: the process of its node monitor.
        alive: whether that process lives.
        executors: its executors.
        running: how many tasks run on it, of all sessions.
        queued: how many reservations wait on it.
        deaths: how often it or an executor of it died.
        last_death: how the last of them ended.
        stored_bytes: what its files take of shared memory; 0 if it is on another host.
        disk_bytes: what its files take of the disk, with what its executors spill; as above.
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
        """How many tasks it runs at a time."""
        return sum(executor.slots for executor in self.executors)

    @property
    def memory_bytes(self) -> int:
        """What its executors hold."""
        return sum(executor.memory_bytes for executor in self.executors)


def node_states(statuses: Sequence[NodeStatus], paths: StorePaths) -> tuple[NodeState, ...]:
    """Nodes as the cluster tells them, with what those of this host take of its memory and disk.

    Args:
        statuses: the nodes.
        paths: where the files of nodes are that have no folders of their own.
    """
    return tuple(_node(status, paths) for status in statuses)


def _node(status: NodeStatus, paths: StorePaths) -> NodeState:
    peer = store_of(status.name, status.attributes)
    is_here = peer is None or peer.host == this_host()
    if peer is not None:
        paths = StorePaths(Path(peer.memory), Path(peer.disk))
    on_disk = folder_bytes(paths.disk / status.name) if is_here else 0
    has_memory = is_here and paths.memory != paths.disk
    return NodeState(
        status.name,
        status.pid,
        status.alive,
        tuple(_executor(each, is_here=is_here) for each in status.executors),
        status.running,
        status.queued,
        status.deaths,
        status.last_death,
        folder_bytes(paths.memory / status.name) if has_memory else 0,
        on_disk,
    )


def _executor(status: ExecutorStatus, *, is_here: bool) -> ExecutorState:
    pid = status.pid if is_here else 0
    return ExecutorState(status.name, pid, status.slots, _memory(pid) if is_here else 0)


def _memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
