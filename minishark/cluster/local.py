"""A session's own cluster on this machine, of processes or of threads; it ends with the session.

Light: its processes start before the front end imports Arrow and all else.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minishark.cluster.folders import ClusterFolders, make_folders
from minishark.cluster.machine import node_memory
from minishark.cluster.runner_config import RUNNER, node_meter, runner_config
from minishark.cores import usable_cores
from minishark.errors import ClusterError, OptionError
from minishark.worker.paths import StorePaths
from sparrow_core import ClusterStartError, InProcessCluster, LocalCluster, NodeConfig, NodeStatus
from sparrow_core.machines.node_monitor import NodeMonitorConfig

if TYPE_CHECKING:
    from minishark.cluster.backend import Backend, Placement
    from minishark.worker.store import Store

_RESTARTS = 5  # in a row: some seconds, in which queries wait
_LOCALITY_WAIT_S = 30.0  # practically for ever, but where the preferred nodes are dead


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The shape of a cluster on this machine.

    Attributes:
        nodes: how many nodes; a node is a node monitor with executors and a storage folder.
        executors_per_node: executor processes per node; each runs one task at a time.
        schedulers: how many schedulers.
        in_process: run everything on threads of this process, for tests and debugging.
        memory_limit_bytes: what all nodes together may use; None for a share of the machine's.
    """

    nodes: int
    executors_per_node: int
    schedulers: int = 1
    in_process: bool = False
    memory_limit_bytes: int | None = None

    def check(self) -> None:
        """Raise OptionError for a number below one."""
        for name in ("nodes", "executors_per_node", "schedulers"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} must be a whole number, at least 1.")


def default_options() -> ClusterOptions:
    """One slot per core; two nodes where there are two cores, so that replicas have two homes."""
    cores = usable_cores()
    nodes = min(2, cores)
    return ClusterOptions(nodes, max(1, cores // nodes))


class OwnCluster:
    """A cluster, which runs from `await_start` on, and its folders, which all nodes share."""

    loses_files = False

    def __init__(self, options: ClusterOptions) -> None:
        """Start a cluster; `await_start` waits until it can be used.

        Raises:
            OptionError: the options make no sense.
            ResourceError: no folder can be made.
            ClusterError: it does not start, if it is `in_process`.
        """
        options.check()
        limit = options.memory_limit_bytes
        self._memory = node_memory(limit, options.nodes, options.executors_per_node)
        self.memory_limit_bytes = self._memory.limit_bytes * options.nodes
        self.task_bytes = self._memory.task_bytes
        self._pid = os.getpid()
        self.nodes = tuple(f"node-{i}" for i in range(options.nodes))
        self.total_slots = options.nodes * options.executors_per_node
        self._folders: ClusterFolders = make_folders()
        self.paths = StorePaths(self._folders.memory, self._folders.disk)
        self.scratch = self._folders.disk
        self._meter = node_meter(self.paths, self.store_name, self._memory)
        warning = self._folders.warning
        self.warnings: tuple[str, ...] = (warning,) if warning else ()
        try:
            self._sparrow = self._start(options)
        except BaseException:
            self._folders.remove()
            raise
        atexit.register(self.close)  # for programs that forget to

    def _start(self, options: ClusterOptions) -> LocalCluster | InProcessCluster:
        configs = [
            NodeConfig(
                name=node,
                executors=options.executors_per_node,
                slots=1,
                runner=RUNNER,
                runner_config=runner_config(
                    node, self.paths, self._memory, own_process=not options.in_process
                ),
                limits=NodeMonitorConfig(memory_bytes=self._memory.query_bytes),
                orphaned_folders=tuple(
                    map(str, dict.fromkeys((self.paths.memory, self.paths.disk)))
                ),
            )
            for node in self.nodes
        ]
        run_folder = Path(self._folders.disk) / "run"
        run_folder.mkdir(mode=0o700)
        if options.in_process:
            threads = InProcessCluster(configs, schedulers=options.schedulers)
            with _told():
                threads.start()
            return threads
        processes = LocalCluster(
            configs, schedulers=options.schedulers, run_dir=run_folder, restarts=_RESTARTS
        )
        processes.launch()
        return processes

    def await_start(self) -> None:
        """Wait until all nodes are there.

        Raises:
            ClusterError: it does not come up; nothing is left of it.
        """
        if not isinstance(self._sparrow, LocalCluster):
            return
        try:
            with _told():
                self._sparrow.await_start()
        except BaseException:
            self.close()
            raise

    @property
    def backend(self) -> Backend:
        """Where tasks are submitted."""
        return self._sparrow

    @property
    def store_name(self) -> str:
        """The holder of what the session itself writes into the store: the first node."""
        return self.nodes[0]

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        """How tasks are placed."""
        from minishark.cluster.backend import Placement  # noqa: PLC0415 - see above

        return Placement(policy, probe_ratio, self.nodes, wait_s=_LOCALITY_WAIT_S)

    def status(self) -> tuple[NodeStatus, ...]:
        """Each node with its processes."""
        return self._sparrow.nodes()

    def lost_nodes(self, nodes: Collection[str]) -> tuple[str, ...]:
        """None: all nodes share the folders, which are the session's."""
        del nodes
        return ()

    def homes(self) -> dict[str, str]:
        """All nodes: their folders outlive their processes."""
        return dict.fromkeys(self.nodes, str(self.paths.memory))

    def copy_file(self, file: str, source: str, target: str) -> bool:
        """Give a node a file of another node's; whether it has it now."""
        return self.paths.link(file, source, target)

    def store(self) -> Store:
        """The front end's view of the store, as if it were on the first node."""
        from minishark.worker.store import Store  # noqa: PLC0415 - see above

        return Store(self.paths, self.store_name, meter=self._meter)

    def folder(self, name: str) -> str:
        """Where, in each node's storage, a folder of the session's lies."""
        return name

    def make_folder(self, folder: str) -> None:
        """Make a folder of the store on every node."""
        self.paths.make(folder, self.nodes)

    def remove_folder(self, folder: str) -> None:
        """Delete a folder of the store on every node; tasks that still want to write to it fail."""
        self.paths.remove(folder, self.nodes)

    def close(self) -> None:
        """Stop all processes and remove all files; may be called twice."""
        if os.getpid() != self._pid:  # a copy of the process by fork: it is the parent's
            return
        self._sparrow.close()
        self._folders.remove()
        atexit.unregister(self.close)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """The scheduler's error as one for users."""
    try:
        yield
    except ClusterStartError as error:
        raise ClusterError(f"The cluster did not start: {error}") from error
