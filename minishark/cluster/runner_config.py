"""The configuration of executors; imports little, as it is needed before Arrow is imported."""

from __future__ import annotations

from minishark.worker.memory import NodeMemory
from minishark.worker.paths import StorePaths
from minishark.worker.storage import StorageMeter

RUNNER = "minishark.cluster.executor:make_runner"


def runner_config(
    node: str,
    paths: StorePaths,
    memory: NodeMemory,
    *,
    own_process: bool = True,
    host: str | None = None,
    keys: str | None = None,
) -> dict[str, str]:
    # `own_process` tells whether an executor is a process, which may exit to end a blocked task;
    # `host` is the id of the machine, if nodes do not share their folders.
    config = {
        "own_process": "yes" if own_process else None,
        "node": node,
        "memory": str(paths.memory),
        "disk": str(paths.disk),
        "memory_limit_bytes": str(memory.limit_bytes),
        "slots": str(memory.slots),
        "host": host,
        "keys": keys,
    }
    return {name: value for name, value in config.items() if value is not None}


def node_meter(paths: StorePaths, node: str, memory: NodeMemory) -> StorageMeter:
    """The meter of a node's files in shared memory, which tells when they must go to disk."""
    return StorageMeter(paths.memory / node, memory.storage_bytes)
