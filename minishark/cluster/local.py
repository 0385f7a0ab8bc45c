"""A session's own cluster on this machine, of processes or threads; it ends with the session.

Imports little: its processes start while the front end still imports Arrow and DuckDB.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minishark.cluster.folders import ClusterFolders, make_folders
from minishark.cluster.machine import RUNNER, node_limits, node_memory, node_meter, runner_config
from minishark.cluster.scaling import Autoscaler, Load, ScalingOptions, load_of
from minishark.errors import ClusterError, DataError, OptionError
from minishark.worker.cores import usable_cores
from minishark.worker.paths import StorePaths
from sparrow_core import (
    ClusterStartError,
    InProcessCluster,
    LocalCluster,
    NodeConfig,
    NodeStatus,
    SparrowError,
)

if TYPE_CHECKING:
    from canary_core.runtime.mailbox import Mailbox
    from minishark.cluster.backend import Backend, Placement
    from minishark.cluster.jobs.client import JobsClient
    from minishark.model.events.kinds import NodeUsage
    from minishark.worker.store import Store

NO_JOBS = (
    "Jobs outlive sessions, and this session's cluster ends with it: start one with `minishark "
    "cluster start`, and connect to it by its name."
)
RECOVERY_S = 30.0
"""How long a statement waits for a node and a scheduler, unless the session says otherwise."""

_RESTARTS = 5  # of a process in a row: some seconds, in which queries wait
_LOCALITY_WAIT_S = 30.0  # until a task may run elsewhere, unless its preferred nodes are dead


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The shape of a cluster on this machine."""

    nodes: int  # number of nodes; a node is a node monitor with executors and a storage folder
    executors_per_node: int  # executor processes per node; each runs one task at a time
    schedulers: int = 1
    in_process: bool = False  # run everything on threads of this process, for tests and debugging
    memory_limit_bytes: int | None = None  # of all nodes; None for a share of the machine's
    scaling: ScalingOptions | None = None  # None: as many nodes as at the start
    audit: Path | None = None  # folder for Sparrow's audit logs; None for none
    recovery_timeout_s: float = RECOVERY_S

    def check(self) -> None:
        if self.scaling is not None:
            self.scaling.check()
            if self.in_process:
                raise OptionError("Threads can't come and go: max_nodes does not go with them.")
        if self.audit is not None:
            try:  # here, because processes that can't write would not start
                self.audit.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.audit):
                    pass
            except OSError as error:
                raise DataError(f"Can't write audit logs to {self.audit}: {error}.") from error

    @property
    def most_nodes(self) -> int:
        return self.nodes if self.scaling is None else self.scaling.max_nodes


class OwnCluster:
    """A cluster on this machine, whose nodes share the session's folders; see `Cluster`."""

    loses_files = False
    has_jobs = False
    address = ""

    def __init__(
        self, options: ClusterOptions, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Start it; `meanwhile` is called while its processes import what they need."""
        options.check()
        limit = options.memory_limit_bytes
        self._memory = node_memory(limit, options.most_nodes, options.executors_per_node)
        self.memory_limit_bytes = self._memory.limit_bytes * options.most_nodes
        self.task_bytes = self._memory.task_bytes
        self._pid = os.getpid()
        self._options = options
        self._names = tuple(f"node-{i}" for i in range(options.most_nodes))
        self._nodes = self._names[: options.nodes]  # those that stay, as far as is known
        self._starting: dict[str, None] = {}
        self._changing = threading.Lock()  # guards the two above
        self.store_name = self._nodes[0]  # where files go that the session itself writes
        self.elastic = options.scaling is not None
        self.recovery_s = options.recovery_timeout_s
        self.most_slots = options.most_nodes * options.executors_per_node
        self._made: set[str] = set()  # folders that were not removed
        self._scaler: Autoscaler | None = None
        self._folders: ClusterFolders = make_folders()
        try:  # at once: Ctrl-C may come at any time
            self.paths = StorePaths(self._folders.memory, self._folders.disk)
            self.scratch = self._folders.disk
            self._meter = node_meter(self.paths, self.store_name, self._memory)
            warning = self._folders.warning
            self.warnings: tuple[str, ...] = (warning,) if warning else ()
            self._sparrow = self._described(options)
            self.backend: Backend = self._sparrow
            self._launch(meanwhile)
        except BaseException:
            self._folders.remove()
            raise

    def _described(self, options: ClusterOptions) -> LocalCluster | InProcessCluster:
        configs = [self._config(node) for node in self._nodes]
        run_folder = self._folders.disk / "run"
        run_folder.mkdir(mode=0o700)
        if options.in_process:
            return InProcessCluster(
                configs,
                schedulers=options.schedulers,
                audit_dir=options.audit,
                recovery_s=options.recovery_timeout_s,
            )
        return LocalCluster(
            configs, schedulers=options.schedulers, run_dir=run_folder, restarts=_RESTARTS,
            audit_dir=options.audit, recovery_s=options.recovery_timeout_s,
        )  # fmt: skip

    def _launch(self, meanwhile: Callable[[], object]) -> None:
        try:
            if isinstance(self._sparrow, LocalCluster):
                self._sparrow.launch(meanwhile)
            else:
                with _translated_errors():
                    self._sparrow.start()
            atexit.register(self.close)  # for programs that forget to
        except BaseException:
            self._sparrow.close()  # before its folders go
            raise

    def _config(self, node: str) -> NodeConfig:
        folders = dict.fromkeys((str(self.paths.memory), str(self.paths.disk)))
        own_process = not self._options.in_process
        return NodeConfig(
            name=node,
            executors=self._options.executors_per_node,
            slots=1,
            runner=RUNNER,
            runner_config=runner_config(
                node,
                self.paths,
                self._memory,
                own_process=own_process,
                sharing_slots=self.most_slots,
            ),
            limits=node_limits(self._memory),
            orphaned_folders=tuple(folders),
        )

    def await_start(self) -> None:
        """Wait until all nodes are up; cleans up and raises a ClusterError if they do not start."""
        if not isinstance(self._sparrow, LocalCluster):
            return
        try:
            with _translated_errors():
                self._sparrow.await_start()
        except BaseException:
            self.close()
            raise
        if (scaling := self._options.scaling) is not None:
            self._scaler = Autoscaler(options=scaling, fleet=self)
            self._scaler.start()

    # Nodes that come and go

    @property
    def nodes(self) -> tuple[str, ...]:
        if self._starting:
            self._welcome()
        return self._nodes

    @property
    def total_slots(self) -> int:
        return len(self.nodes) * self._options.executors_per_node

    @property
    def cores(self) -> int:
        return min(self.total_slots, usable_cores())

    def start_node(self) -> None:
        if not self.elastic or not isinstance(self._sparrow, LocalCluster):
            raise OptionError("The cluster has a fixed number of nodes: connect with max_nodes.")
        with self._changing:
            present = {*self._starting, *(status.name for status in self._sparrow.nodes())}
            free = [name for name in self._names if name not in present]
            if not free:
                raise OptionError(f"There are {len(self._names)} nodes, which is max_nodes.")
            with _translated_errors():
                self._sparrow.add_node(self._config(free[0]))
            self._starting[free[0]] = None

    def _welcome(self) -> None:
        """Nodes that were started and are up store files from now on."""
        assert isinstance(self._sparrow, LocalCluster)
        with self._changing:
            up = {node.name for node in self._sparrow.nodes() if node.executors}
            failed = self._sparrow.failed_nodes()
            for name in list(self._starting):
                if name in failed:
                    del self._starting[name]
                elif name in up:
                    del self._starting[name]
                    self._nodes = (*self._nodes, name)
                    for folder in frozenset(self._made):
                        self.paths.make(folder, (name,))
                        if folder not in self._made:  # removed concurrently
                            self.paths.remove(folder, (name,))

    def drain(self, node: str) -> None:
        if not isinstance(self._sparrow, LocalCluster):
            raise OptionError("Threads can't be drained.")
        if self._starting:
            self._welcome()
        with self._changing, _translated_errors():
            if node not in self._nodes:
                names = ", ".join(self._nodes)
                raise OptionError(f"There is no node {node!r} to drain; the nodes are {names}.")
            self._sparrow.drain_node(node)
            self._nodes = tuple(name for name in self._nodes if name != node)

    def load(self) -> Load:
        if self._starting:
            self._welcome()
        kept = frozenset(self._names[: self._options.schedulers])
        return load_of(self._sparrow.nodes(), len(self._starting), kept)

    @property
    def schedulers(self) -> tuple[str, ...]:
        return self._sparrow.live_schedulers

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        from minishark.cluster.backend import Placement  # noqa: PLC0415 - see above

        return Placement(
            policy=policy, probe_ratio=probe_ratio, nodes=self.nodes, wait_s=_LOCALITY_WAIT_S
        )

    def share_events(self, answer: Callable[[Any], Any]) -> None:
        """Nobody else knows of this cluster."""

    def jobs(self) -> JobsClient:
        raise ClusterError(NO_JOBS)

    def usage(self, nodes: Sequence[NodeStatus]) -> Mapping[str, NodeUsage]:
        """None is on another host."""
        del nodes
        return {}

    def status(self) -> tuple[NodeStatus, ...]:
        return self._sparrow.nodes()

    def lost_nodes(self, nodes: Collection[str]) -> tuple[str, ...]:
        """None: the files outlive the nodes' processes."""
        del nodes
        return ()

    @property
    def draining(self) -> tuple[str, ...]:
        """Those that left, too: their files stay."""
        return tuple(name for name in self._names if name not in self._nodes)

    @property
    def open_folders(self) -> frozenset[str]:
        return frozenset(self._made)

    def release(self, nodes: Collection[str]) -> None:
        """Nodes that leave take no file with them."""

    def keep_nodes(self, needed: Callable[[], frozenset[str]]) -> None:
        """Nodes that leave take no file with them."""

    def remove_copy(self, file: str, node: str) -> None:
        self.paths.remove_file(file, node)

    def may_return(self, node: str) -> bool:
        """It does not matter: the files outlive the nodes' processes."""
        del node
        return False

    def homes(self) -> dict[str, str]:
        """All nodes, with the folder that they share."""
        return dict.fromkeys(self.nodes, str(self.paths.memory))

    def copy_file(self, file: str, source: str, target: str) -> bool:
        return self.paths.link(file, source, target)

    def store(self) -> Store:
        """The session's view of the store, as if it were on the first node."""
        from minishark.worker.store import Store  # noqa: PLC0415 - see above

        return Store(self.paths, self.store_name, meter=self._meter)

    def shared_outputs(self) -> None:
        """It has no other session."""

    def shared_tables(self) -> None:
        """Nothing outlives the session."""

    def folder(self, name: str) -> str:
        return name

    def make_folder(self, *folders: str) -> None:
        self._made.update(folders)
        for folder in folders:
            self.paths.make(folder, self._nodes)

    def remove_folder(self, *folders: str) -> None:
        self._made.difference_update(folders)
        for folder in folders:
            self.paths.remove(folder, self._names)

    def mailbox(self, name: str) -> Mailbox:
        from canary_core.runtime.mailbox import Mailbox  # noqa: PLC0415 - see above

        return Mailbox(self.scratch / f"{name}.sock")

    def close(self) -> None:
        if os.getpid() != self._pid:  # after fork(), the parent owns it
            return
        if self._scaler is not None:
            self._scaler.stop()
        self._sparrow.close()
        self._folders.remove()
        atexit.unregister(self.close)


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except ClusterStartError as error:
        raise ClusterError(f"The cluster did not start: {error}") from error
    except SparrowError as error:
        raise ClusterError(f"The cluster can't do that: {error}.") from error
