"""What a cluster's nodes are doing, for those who look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from minishark.cluster.node import peer_of, this_host
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
    """

    name: str
    pid: int
    alive: bool
    executors: tuple[ExecutorState, ...]
    running: int
    queued: int
    deaths: int = 0
    last_death: str = ""

    @property
    def slots(self) -> int:
        """How many tasks it runs at a time."""
        return sum(executor.slots for executor in self.executors)

    @property
    def memory_bytes(self) -> int:
        """What its executors hold."""
        return sum(executor.memory_bytes for executor in self.executors)


def node_states(statuses: Sequence[NodeStatus]) -> tuple[NodeState, ...]:
    """Nodes as the cluster tells them, with the memory of their processes."""
    return tuple(
        NodeState(
            status.name,
            status.pid,
            status.alive,
            tuple(_executor(each, is_here=_is_here(status)) for each in status.executors),
            status.running,
            status.queued,
            status.deaths,
            status.last_death,
        )
        for status in statuses
    )


def _is_here(status: NodeStatus) -> bool:
    peer = peer_of(status.name, status.attributes)
    return peer is None or peer.host == this_host()


def _executor(status: ExecutorStatus, *, is_here: bool) -> ExecutorState:
    pid = status.pid if is_here else 0
    return ExecutorState(status.name, pid, status.slots, _memory(pid) if is_here else 0)


def _memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
