"""Clusters to embed: of processes on this machine, or of threads in this process.

`LocalCluster` has a process for each node (its node monitor, perhaps schedulers) and for each
executor, over ipc. `InProcessCluster` has the same machines and runners in one process, over
memory; its executors are threads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import psutil

from machine_kit.addresses import Address, address, endpoint_of, name_of
from machine_kit.local_driver import LocalDriver
from machine_kit.logs import log_tail
from sparrow_core.machines.client import ClientConfig
from sparrow_core.machines.node_monitor import NodeMonitor
from sparrow_core.protocol.errors import ClusterClosed, ClusterStartError, SparrowError
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import AllNodesLost, Drain, NodeLost, SchedulerLost
from sparrow_core.protocol.status import NodeStatus
from sparrow_core.runtime.client_actor import Cluster
from sparrow_core.runtime.hosting import end_slots, host_executor, host_scheduler
from sparrow_core.runtime.runner import SlotThread
from sparrow_core.runtime.specs import NodeConfig, check_nodes
from sparrow_core.runtime.transport.child import Child, NodeSettings, end_children
from sparrow_core.runtime.transport.deaths import Respawns
from sparrow_core.runtime.transport.spawning import Template, interpreter, started
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver

_IPC_PATH_MAX = 100  # bytes; the limit of the kernel is 107
_END_S = 1.0
RECOVERY_S = ClientConfig().recovery_s
_SILENCE_MIN_S = 1.0  # long, because the death of a child process is seen at once
_LOG_TAIL_CHARS = 4000


class _OwnCluster(Cluster):
    """A cluster that this program starts and stops."""

    def __init__(
        self,
        nodes: Sequence[NodeConfig],
        schedulers: int,
        seed: int | None,
        audit_dir: Path | None,
        recovery_s: float,
    ) -> None:
        check_nodes(nodes, schedulers)
        config = ClientConfig(silence_min_s=_SILENCE_MIN_S, recovery_s=recovery_s)
        super().__init__(config, audit_dir)
        self._configs = tuple(nodes)
        self._scheduler_count = schedulers
        self._seed = seed

    def _await_nodes(self, timeout_s: float, problem: Callable[[], str | None]) -> None:
        """Wait until every scheduler knows every node with all its executors."""
        if not self._await(self._complete, timeout_s, problem):
            raise ClusterStartError(f"not all nodes registered in {timeout_s:g} s")

    def _complete(self) -> bool:
        reports = self._actor.known
        return len(reports) == self._scheduler_count and all(
            config.name in nodes
            and len(nodes[NodeName(config.name)].executors) == config.executor_count
            for nodes in reports.values()
            for config in self._configs
        )


class LocalCluster(_OwnCluster):
    """A cluster of processes on this machine."""

    _driver: ZmqDriver

    def __init__(
        self,
        nodes: Sequence[NodeConfig],
        *,
        schedulers: int = 1,
        run_dir: Path,
        seed: int | None = None,
        audit_dir: Path | None = None,
        restarts: int = 0,
        recovery_s: float = RECOVERY_S,
    ) -> None:
        """Describe a cluster; `start` starts it.

        Args:
            nodes: At least one.
            schedulers: How many; they run in the processes of the first nodes, round robin.
            run_dir: A folder of mode 0700 that the caller made, for sockets and logs.
            seed: Of random placement decisions; None for a fresh one.
            audit_dir: Folder for audit logs, one file per process; None for no logs.
            restarts: How often in a row a node that dies within three seconds is restarted.
            recovery_s: How long a job waits for a node and a scheduler before it fails.

        Raises:
            SparrowError: Bad names or numbers, or `run_dir` too long for ipc.
        """
        super().__init__(nodes, schedulers, seed, audit_dir, recovery_s)
        self._run_dir = Path(run_dir).absolute()
        self._children: dict[NodeName, Child] = {}
        self._template: Template | None = None
        self._dead: dict[NodeName, str] = {}  # how they died
        self._given_up: dict[NodeName, None] = {}
        self._last_deaths: dict[NodeName, str] = {}
        self._started = False
        self._restarts = restarts
        self._leaving: dict[NodeName, None] = {}  # nodes that drain: their ends are no deaths
        self._respawns = {NodeName(node.name): Respawns(restarts) for node in nodes}
        self._starts: Counter[NodeName] = Counter()  # also of nodes that have left
        homes = [nodes[number % len(nodes)].name for number in range(schedulers)]
        self._schedulers = tuple(
            address(self._endpoint(home), f"scheduler-{number}")
            for number, home in enumerate(homes)
        )
        longest = max(len(os.fsencode(self._socket(f"{node.name}-e99n99r9999"))) for node in nodes)
        if longest > _IPC_PATH_MAX:
            raise SparrowError(f"{self._run_dir}: too long a path for ipc sockets")

    def _socket(self, process: str) -> Path:
        return self._run_dir / f"{process}.sock"

    def _endpoint(self, process: str) -> str:
        return f"ipc://{self._socket(process)}"

    def _schedulers_of(self, node: str) -> list[Address]:
        return [
            scheduler
            for scheduler in self._schedulers
            if endpoint_of(scheduler) == self._endpoint(node)
        ]

    def start(self, timeout_s: float = 20.0) -> None:
        """Start all processes in parallel; returns when all are registered.

        Raises:
            ClusterStartError: A process died, or timeout; the message has the tails of the logs.
                No process is left running.
        """
        self.launch()
        self.await_start(timeout_s)

    def launch(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Start all processes without waiting for them; call `await_start` next.

        Args:
            meanwhile: Called while their template imports what they need.

        Raises:
            ClusterClosed: It was started before.
        """
        if self._closed or self._thread is not None:
            raise ClusterClosed("a cluster can be started once")
        try:
            self._open(ZmqDriver(self._endpoint("client")), self._schedulers)
            atexit.register(self.close)
            if len(self._configs) > 1:  # else the node imports what its executors need
                self._template = Template.held(self._modules())
                meanwhile()
            for config in self._configs:
                self._spawn(config)
            self._run()
        except BaseException:
            self.close()
            raise

    def _modules(self) -> tuple[str, ...]:
        groups = [group for config in self._configs for group in config.groups]
        return tuple(dict.fromkeys(group.runner.partition(":")[0] for group in groups))

    def await_start(self, timeout_s: float = 20.0) -> None:
        """Wait until all processes that were launched are registered.

        Raises:
            ClusterClosed: It was not launched, or is closed.
            ClusterStartError: A process died, or timeout; the message has the tails of the logs.
                No process is left running.
        """
        if self._closed or self._thread is None:
            raise ClusterClosed("the cluster was not launched, or is closed")
        try:
            self._await_all(timeout_s)
        except BaseException as error:
            tail = self._log_tail()
            self.close()
            if isinstance(error, ClusterStartError):
                raise ClusterStartError(f"{error}\n{tail}".rstrip()) from None
            raise

    def _await_all(self, timeout_s: float) -> None:
        self._await_nodes(timeout_s, self._start_problem)
        self._started = True  # from now on nodes that die are restarted
        if self._given_up:
            raise ClusterStartError(self._start_problem() or "a node died")

    def add_node(self, config: NodeConfig) -> None:
        """Start one more node; returns at once, `nodes` shows when it is up. Thread-safe.

        Raises:
            SparrowError: There is a node of that name, or it can't be a name.
            ClusterClosed: The cluster is closed, or was not started.
        """
        check_nodes((*self._configs, config), self._scheduler_count)
        self._configs = (*self._configs, config)
        self.call_soon(partial(self._add, NodeName(config.name)))

    def _add(self, name: NodeName) -> None:
        self._respawns[name] = Respawns(self._restarts)
        self._restart(name)

    def drain_node(self, node: str) -> None:
        """Have a node end when its tasks have; it takes no new ones. Thread-safe.

        Raises:
            SparrowError: There is no such node, or a scheduler runs there.
            ClusterClosed: The cluster is closed, or was not started.
        """
        name = NodeName(node)
        if all(config.name != name for config in self._configs):
            raise SparrowError(f"there is no node {node!r}")
        if self._schedulers_of(name):
            raise SparrowError(f"a scheduler runs on {node}, which therefore stays")
        self.call_soon(partial(self._drain, name))

    def _drain(self, name: NodeName) -> None:
        if name not in self._children:
            return
        self._leaving[name] = None
        if name in self._dead:  # and will not come back
            self._remove(name)
        else:
            self._driver.post(address(self._endpoint(name), f"monitor-{name}"), Drain())

    def _remove(self, name: NodeName) -> None:
        """A node that was drained has ended; another one may have its name."""
        del self._leaving[name], self._children[name], self._respawns[name]
        self._configs = tuple(config for config in self._configs if config.name != name)
        for table in (self._dead, self._last_deaths, self._given_up):
            table.pop(name, None)

    def failed_nodes(self) -> dict[str, str]:
        """The nodes that died too often to be restarted, each with how it died."""
        return {str(name): self._last_deaths.get(name, "") for name in tuple(self._given_up)}

    def _spawn(self, config: NodeConfig) -> None:
        name = NodeName(config.name)
        settings = NodeSettings(
            name=config.name,
            endpoint=self._endpoint(config.name),
            run_dir=str(self._run_dir),
            groups=config.groups,
            schedulers=self._schedulers,
            own_schedulers=tuple(map(name_of, self._schedulers_of(name))),
            client_endpoint=self._endpoint("client"),
            seed=self._seed,
            attributes=config.attributes,
            limits=config.limits,
            audit_dir=self._audit_dir,
            orphaned_folders=config.orphaned_folders,
            restarts=self._starts[name],
        )
        self._starts[name] += 1
        # Known from the start, even if Ctrl-C comes next: no variable keeps it alive unseen.
        log = self._run_dir / f"{name}.log"
        make = interpreter(log, new_session=True)
        if self._template is not None:
            make = self._template.making(log, new_session=True)
        self._children[name] = Child(settings, log, started(log, make))
        self._dead.pop(name, None)
        self._respawns[name].started(time.monotonic())
        self._driver.watch(self._children[name].alive_fd, lambda: self._on_node_death(name))

    def _restart(self, name: NodeName) -> None:
        config = next((config for config in self._configs if config.name == name), None)
        if config is None or (name in self._children and name not in self._dead):
            return  # drained before it could be restarted; there may be another by now
        try:
            self._spawn(config)
        except OSError as error:  # for instance no memory to fork: as if it had died at once
            self._dead[name] = self._last_deaths[name] = str(error)
            self._plan_restart(name)

    def _on_node_death(self, name: NodeName) -> None:
        """Tell the machines, which would else learn it by a timeout; restart the node."""
        child = self._children[name]
        self._driver.unwatch(child.alive_fd)
        self._dead[name] = self._last_deaths[name] = child.describe_exit()
        if child.exit_status() is None:
            child.kill()  # it closed its pipe: useless, even if it runs
        child.close()
        self._driver.forget(self._endpoint(name))
        if name in self._leaving:
            self._tell_of_death(name, returns=False)
            self._remove(name)
        else:
            self._plan_restart(name)

    def _plan_restart(self, name: NodeName) -> None:
        delay_s = self._respawns[name].died(time.monotonic()) if self._started else None
        if delay_s is None:
            self._given_up[name] = None
        else:
            self._driver.call(partial(self._restart, name), delay_s)
        self._tell_of_death(name, returns=delay_s is not None)

    def _tell_of_death(self, name: NodeName, *, returns: bool) -> None:
        how = f"{name} {self._dead[name]}"
        lost = [
            scheduler
            for scheduler in self._schedulers_of(name)
            if scheduler in self._actor.schedulers
        ]
        for scheduler in lost:
            if not returns:
                self._actor.schedulers.remove(scheduler)
            self._driver.post(self._client, SchedulerLost(scheduler, returns, how))
        with self._actor.changed:
            for scheduler in lost:
                self._actor.known.pop(scheduler, None)
            for nodes in self._actor.known.values():
                nodes.pop(name, None)  # its successor has executors when a scheduler says so
            self._actor.changed.notify_all()
        for scheduler in self._actor.schedulers:
            if scheduler not in lost:
                self._driver.post(scheduler, NodeLost(name, self._dead[name]))
        if len(self._given_up) == len(self._children):
            self._driver.post(self._client, AllNodesLost(how))

    def _start_problem(self) -> str | None:
        dead = [f"node {name} died ({how})" for name, how in self._dead.items()]
        return "; ".join(dead) or None

    def _log_tail(self) -> str:
        logs = sorted(self._run_dir.glob("*.log"))
        texts = [
            (log.name, log_tail(log.read_text(errors="replace"), _LOG_TAIL_CHARS)) for log in logs
        ]
        return "\n".join(f"{name}: {text}" for name, text in texts if text)

    def nodes(self) -> tuple[NodeStatus, ...]:
        """All nodes, in the order given; at most about a second old."""
        children = tuple(self._children.items())  # the IO thread may add or remove some
        return tuple(self._status(name, child.pid) for name, child in children)

    def _status(self, name: NodeName, pid: int) -> NodeStatus:
        """A node, its own deaths added to those of its executors."""
        status = self._actor.status_of(name, pid, alive=name not in self._dead)
        respawns, how = self._respawns.get(name), self._last_deaths.get(name, "")
        deaths = respawns.count if respawns else 0  # none if it has left meanwhile
        last = status.last_death or (f"{name}: {how}" if deaths else "")
        return msgspec.structs.replace(status, deaths=status.deaths + deaths, last_death=last)

    def _end(self) -> None:
        """Ask all processes to end, kill those that have not within a second, remove sockets."""
        descendants = self._descendants()
        for child in self._children.values():
            child.ask_to_end()
        registered = set(self._actor.pids)
        for process in descendants:
            # Still starting: it does not listen yet, and holds nothing.
            if process.pid not in registered:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        end_children(self._children.values(), _END_S)
        if self._template is not None:
            self._template.release()
            self._template = None
        timeout_s = _END_S if self._last_deaths else 0.1
        for process in psutil.wait_procs(descendants, timeout=timeout_s)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._driver.close()
        for socket in self._run_dir.glob("*.sock"):
            socket.unlink(missing_ok=True)
        atexit.unregister(self.close)  # last: after Ctrl-C above, the exit handler finishes

    def _descendants(self) -> list[psutil.Process]:
        """The executors' processes, including those of dead nodes."""
        processes = [
            process for process in map(self._process, self._actor.pids) if process is not None
        ]
        for child in self._children.values():
            try:
                processes += psutil.Process(child.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        return processes

    def _process(self, pid: int) -> psutil.Process | None:
        """The process with that pid, unless the pid has been reused by somebody else."""
        try:
            process = psutil.Process(pid)
            ours = str(self._run_dir) in " ".join(process.cmdline())
        except psutil.Error:
            return None
        return process if ours else None


class InProcessCluster(_OwnCluster):
    """The same machines in this process, executors as threads. For tests and debugging."""

    def __init__(
        self,
        nodes: Sequence[NodeConfig],
        *,
        schedulers: int = 1,
        run_dir: Path | None = None,
        seed: int | None = None,
        audit_dir: Path | None = None,
        recovery_s: float = RECOVERY_S,
    ) -> None:
        """Describe a cluster; `start` starts it. There are no sockets, so `run_dir` is unused."""
        super().__init__(nodes, schedulers, seed, audit_dir, recovery_s)
        self._slots: list[SlotThread] = []
        self._broken: list[str] = []

    def start(self, timeout_s: float = 20.0) -> None:
        """Start all threads; returns when all executors are registered.

        Raises:
            ClusterStartError: A runner could not be made.
        """
        if self._closed or self._thread is not None:
            raise ClusterClosed("a cluster can be started once")
        driver = LocalDriver("memory")
        names = [f"scheduler-{number}" for number in range(self._scheduler_count)]
        schedulers = tuple(map(driver.address, names))
        self._open(driver, schedulers)
        for name in names:
            host_scheduler(driver, name, self._seed)
        try:
            for config in self._configs:
                self._host_node(driver, config, schedulers)
            self._run()
            self._await_nodes(timeout_s, lambda: "\n".join(self._broken) or None)
        except BaseException as error:
            self.close()
            if isinstance(error, SparrowError):
                raise ClusterStartError(str(error)) from error
            raise

    def _host_node(
        self, driver: LocalDriver, config: NodeConfig, schedulers: Sequence[Address]
    ) -> None:
        name = NodeName(config.name)
        at = driver.address(f"monitor-{name}")
        monitor = NodeMonitor(
            name, at, schedulers, attributes=config.attributes, config=config.limits
        )
        driver.host(f"monitor-{name}", monitor)
        groups = [group for group in config.groups for _ in range(group.count)]
        for number, group in enumerate(groups):
            executor = f"{name}-e{number}"
            self._slots += host_executor(
                driver, executor, name, at, group, self._broken.append, slot_prefix=f"{executor}-"
            )

    def nodes(self) -> tuple[NodeStatus, ...]:
        """All nodes, in the order given; they are alive as long as the cluster."""
        names = [NodeName(config.name) for config in self._configs]
        if not self._opened:
            return tuple(
                NodeStatus(name=name, pid=os.getpid(), executors=(), alive=False) for name in names
            )
        alive = self._is_running()
        return tuple(self._actor.status_of(name, os.getpid(), alive=alive) for name in names)

    def _end(self) -> None:
        end_slots(self._slots, _END_S)
        self._driver.close()
