"""What this machine has for a cluster on it, and what its user allows."""

from __future__ import annotations

import math
import os

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


def default_limit_bytes() -> int:
    """The memory that a cluster uses which is told nothing else.

    MINISHARK_MEMORY_LIMIT in the environment says it; else it is a share of the machine's, or of
    the container's.

    Raises:
        OptionError: the variable holds no amount of memory.
    """
    if named := os.environ.get(LIMIT_VARIABLE):
        return parse_size(named)
    return int(machine_bytes(psutil.virtual_memory().total) * DEFAULT_SHARE)


def node_memory(limit_bytes: int | None, nodes: int, executors: int) -> NodeMemory:
    """The memory of each of some nodes on this machine.

    Args:
        limit_bytes: what they may use together; None for the default.
        nodes: how many.
        executors: of each.

    Raises:
        OptionError: the limit is too low for so many.
    """
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
