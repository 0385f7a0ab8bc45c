"""The configuration of executors; imports little, as it is needed before Arrow is imported."""

from __future__ import annotations

from pathlib import Path

from minishark.worker.memory import NodeMemory
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from minishark.worker.storage import StorageMeter

RUNNER = "minishark.cluster.executor:make_runner"


def runner_config(
    node: str, paths: StorePaths, memory: NodeMemory, *, own_process: bool
) -> dict[str, str]:
    """Configure the executors of a node.

    Args:
        node: its name.
        paths: its folders.
        memory: its memory limits.
        own_process: whether an executor is a process, which may exit to end a blocked task.
    """
    return {
        "own_process": "yes" if own_process else "",
        "node": node,
        "memory": str(paths.memory),
        "disk": str(paths.disk),
        "memory_limit_bytes": str(memory.limit_bytes),
        "slots": str(memory.slots),
    }


def shared_runner_config(
    node: StoreLocation, memory: NodeMemory, keys_folder: str | None
) -> dict[str, str]:
    """Configure the executors of a node with folders of its own."""
    paths = StorePaths(Path(node.memory), Path(node.disk))
    config = runner_config(node.name, paths, memory, own_process=True)
    config |= {"host": node.host}
    return config | ({"keys": keys_folder} if keys_folder is not None else {})


def node_meter(paths: StorePaths, node: str, memory: NodeMemory) -> StorageMeter:
    """The meter of a node's files in shared memory, which tells when they must go to disk."""
    return StorageMeter(paths.memory / node, memory.storage_bytes)
