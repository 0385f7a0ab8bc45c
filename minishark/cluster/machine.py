"""This machine: its memory for clusters, its processes, the settings of its executors."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from minishark.errors import OptionError
from minishark.worker.memory import (
    DEFAULT_SHARE,
    LIMIT_VARIABLE,
    NodeMemory,
    least_bytes,
    machine_bytes,
    parse_size,
)
from minishark.worker.paths import StorePaths
from minishark.worker.storage import StorageMeter
from sparrow_core.machines.node_monitor import NodeMonitorConfig

_STARTED_TOLERANCE_S = 1.0
_STACKS_BYTES = 256 << 20  # of threads to come, which use little of them


RUNNER = "minishark.cluster.executor:make_runner"


def default_limit_bytes() -> int:
    """The memory limit of a cluster that is given none."""
    # MINISHARK_MEMORY_LIMIT in the environment, else a share of the machine's or container's
    # memory.
    if named := os.environ.get(LIMIT_VARIABLE):
        return parse_size(named)
    return int(machine_bytes(psutil.virtual_memory().total) * DEFAULT_SHARE)


def node_memory(limit_bytes: int | None, nodes: int, executors: int) -> NodeMemory:
    if limit_bytes is None and not os.environ.get(LIMIT_VARIABLE):
        return NodeMemory(max(default_limit_bytes() // nodes, least_bytes(executors)), executors)
    total = limit_bytes or default_limit_bytes()
    least = least_bytes(executors) * nodes
    if total < least:
        raise OptionError(
            f"{nodes} node(s) with {executors} executor(s) each need a memory limit of at least "
            f"{math.ceil(least / (1 << 20))} MiB, not {total >> 20} MiB: raise memory_limit, or "
            "start fewer nodes or executors."
        )
    return NodeMemory(total // nodes, executors)


class Confinement:
    """Lets this process have no more memory of its own than all may that share it.

    What exceeds that gets a MemoryError, be it user code or DuckDB, before the kernel kills
    processes. Mapped files, so tables and shuffles, do not count.
    """

    # Not RLIMIT_AS, which counts mapped files; a control group needs rights that few have, and
    # kills. Of what is allocated, little may be used: 8 MiB for the stack of each thread, and what
    # allocators have given back to the system, but keep their addresses of.

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._found = resource.getrlimit(resource.RLIMIT_DATA)
        self.fit()

    def fit(self) -> None:
        """Allow what is left of the limit now, if anything; may be called from any thread."""
        if sys.platform != "linux":
            return  # it would not be enforced
        allocated, used = _own_bytes()
        allowed = allocated - used + self._limit_bytes + _STACKS_BYTES
        limits = [each for each in (allowed, *self._found) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), self._found[1]))


def _own_bytes() -> tuple[int, int]:
    """What counts for RLIMIT_DATA, and how much of that is in memory, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    found = {line[0]: int(line[1]) << 10 for line in lines if line[0] in ("VmData:", "RssAnon:")}
    return found.get("VmData:", 0), found.get("RssAnon:", 0)


def memory_of(pids: Iterable[int]) -> dict[int, int]:
    """The resident memory of processes in bytes, mapped shared memory included; of live ones."""
    resident = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            resident[pid] = int(psutil.Process(pid).memory_info().rss)
    return resident


def live_process(pid: int, started_s: float) -> psutil.Process | None:
    """The process, unless it is dead; pids are reused, so its start time must match, too."""
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - started_s) < _STARTED_TOLERANCE_S:
            return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (psutil.Error, ValueError):  # ValueError: a peer sent a number that is no pid
        pass
    return None


def runner_config(
    node: str,
    paths: StorePaths,
    memory: NodeMemory,
    *,
    own_process: bool = True,
    sharing_slots: int | None = None,
    host: str | None = None,
    keys: str | None = None,
) -> dict[str, str]:
    # `own_process` tells whether an executor is a process, which may exit to end a blocked task;
    # `sharing_slots` are those of all nodes that have their memory in common.
    # `host` is the id of the machine, if nodes do not share their folders.
    config = {
        "own_process": "yes" if own_process else None,
        "node": node,
        "memory": str(paths.memory),
        "disk": str(paths.disk),
        "memory_limit_bytes": str(memory.limit_bytes),
        "slots": str(memory.slots),
        "sharing_slots": None if sharing_slots is None else str(sharing_slots),
        "host": host,
        "keys": keys,
    }
    return {name: value for name, value in config.items() if value is not None}


def node_limits(memory: NodeMemory, *, release: str = "") -> NodeMonitorConfig:
    """Limits of a node, of a session's own cluster or another; `release`: of whom others must be.

    Nobody waits behind another's crowd of tasks.
    """
    return NodeMonitorConfig(policy="fair", memory_bytes=memory.query_bytes, release=release)


def node_meter(paths: StorePaths, node: str, memory: NodeMemory) -> StorageMeter:
    """The meter of a node's files in shared memory, which tells when they must go to disk."""
    return StorageMeter(paths.memory / node, memory.storage_bytes)
