"""What this machine has for a cluster on it, and what its user allows."""

from __future__ import annotations

import os

import psutil

from minishark.execution.memory import (
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
    memory = NodeMemory((limit_bytes or default_limit_bytes()) // nodes, executors)
    memory.check()
    return memory
