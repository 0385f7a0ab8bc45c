"""A connection to a cluster of `sparrow` processes.

    keys = read_keys(Path("own.key"), Path("allowed.keys"))
    with RemoteCluster(schedulers, listen="tcp://10.0.0.9:*", keys=keys) as cluster:
        cluster.submit(JobSpec(tasks), on_event)

When a scheduler falls silent, its jobs move to the next one in the list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from machine_kit.addresses import Address, address, endpoint_of
from machine_kit.keys import Keys
from sparrow_core.machines.client import ClientConfig
from sparrow_core.protocol.errors import ClusterClosed, ClusterStartError
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import Drain, GetMetrics, SetSchedulers
from sparrow_core.protocol.status import NodeStatus
from sparrow_core.protocol.types import NodeInfo
from sparrow_core.runtime.client_actor import Cluster
from sparrow_core.runtime.transport.folders import socket_folder
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver

_REPEAT_S = 0.5
_ANSWER_S = 5.0
_SILENCE_MAX_S = 3.0  # as long as schedulers give nodes


class RemoteCluster(Cluster):
    """Submits jobs to `sparrow scheduler` and `sparrow node-monitor` processes."""

    def __init__(
        self,
        schedulers: Sequence[Address],
        *,
        listen: str | None = None,
        keys: Keys | None = None,
        config: ClientConfig | None = None,
        audit_dir: Path | None = None,
    ) -> None:
        """Describe the connection; `start` opens it.

        Args:
            schedulers: Their addresses; jobs are submitted to them round robin.
            listen: Where to listen for results, over tcp. None for an ipc socket, if the
                schedulers are on this machine.
            keys: Needed for tcp.
            config: The client's limits.
            audit_dir: Folder for an audit log; None for no log.

        Raises:
            ClusterStartError: There is no scheduler in the list.
        """
        super().__init__(config or ClientConfig(), audit_dir)
        if not schedulers:
            raise ClusterStartError("there is no scheduler to submit to")
        self._schedulers = tuple(schedulers)
        self._listen = listen
        self._keys = keys
        self._folder = contextlib.ExitStack()
        self._incompatible: dict[str, int] = {}

    def start(self, timeout_s: float = 5.0) -> None:
        """Open the connection; returns when a scheduler has answered.

        Raises:
            ClusterStartError: None has, or they speak another version of the protocol.
            SparrowError: Cannot listen.
        """
        if self._closed or self._thread is not None:
            raise ClusterClosed("a connection can be opened once")
        listen = self._listen
        if listen is None:
            listen = f"ipc://{self._folder.enter_context(socket_folder())}/client.sock"
        driver = ZmqDriver(listen, self._keys, on_incompatible=self._on_incompatible)
        self._incompatible = driver.incompatible
        self._open(driver, self._schedulers)
        self._actor.silence_max_s = _SILENCE_MAX_S
        self._run()
        answered = False
        try:
            answered = self._await(lambda: bool(self._actor.known), timeout_s, self._problem)
        finally:
            if not answered:
                self.close()
        if not answered:
            text = "no scheduler answers: wrong address, not running, or it refuses our key"
            raise ClusterStartError(text)

    def _on_incompatible(self, peer: str, version: int) -> None:
        text = f"{peer} speaks protocol {version}"
        if {endpoint_of(scheduler) for scheduler in self._schedulers} <= self._incompatible.keys():
            self._actor.fail_all("protocol", text)

    def fail_all(self, message: str) -> None:
        """Fail all open jobs, with kind "protocol": the cluster has another version now.

        Raises:
            ClusterClosed: The connection is closed, or was not opened.
        """
        self.call_soon(lambda: self._actor.fail_all("protocol", message))

    def _problem(self) -> str | None:
        peers = [
            f"{peer} speaks protocol {version}" for peer, version in self._incompatible.items()
        ]
        return "; ".join(peers) or None

    def nodes(self) -> tuple[NodeStatus, ...]:
        """All nodes that a scheduler knows, by name."""
        return tuple(self._actor.status_of(name, 0, alive=True) for name in sorted(self._infos()))

    def schedulers(self, wait_s: float = 0.0) -> dict[Address, int | None]:
        """Number of nodes with executors that each scheduler knows; None if it is silent.

        Waits until each has been heard, for at most `wait_s`: `start` waits for one only.
        """
        self._await(lambda: self._actor.known.keys() >= set(self._schedulers), wait_s)
        with self._actor.changed:
            nodes = dict(self._actor.known)
        return {
            scheduler: sum(bool(info.executors) for info in nodes[scheduler].values())
            if scheduler in nodes
            else None
            for scheduler in self._schedulers
        }

    def set_schedulers(self, schedulers: Sequence[Address]) -> None:
        """Use these schedulers from now on; jobs at others move to them. Thread-safe.

        Raises:
            ClusterStartError: There is none in the list.
            ClusterClosed: The connection is closed, or was not opened.
        """
        if not schedulers:
            raise ClusterStartError("there is no scheduler to submit to")
        self._schedulers = tuple(schedulers)
        self.call_soon(self._use_schedulers)

    def _use_schedulers(self) -> None:
        self._actor.schedulers = list(self._schedulers)
        with self._actor.changed:
            for gone in self._actor.known.keys() - set(self._schedulers):
                del self._actor.known[gone]
        self._driver.post(self._client, SetSchedulers(self._schedulers))

    def _infos(self) -> dict[NodeName, NodeInfo]:
        with self._actor.changed:
            tables = tuple(self._actor.known.values())
        return {name: info for nodes in tables for name, info in nodes.items()}

    def drain(self, node: str, timeout_s: float = 5.0) -> bool:
        """Let a node finish what it runs, take nothing new, and end.

        Returns:
            True when a scheduler has seen it drain or leave; False if that has not happened
            in time, or the node is unknown.
        """
        name = NodeName(node)
        info = self._infos().get(name)
        if info is None:
            return False
        for _ in range(max(1, round(timeout_s / _REPEAT_S))):
            self._driver.post(info.monitor, Drain())
            if self._await(lambda: self._drains(name), _REPEAT_S):
                return True
        return False

    def _drains(self, name: NodeName) -> bool:
        info = self._infos().get(name)
        return info is None or info.draining

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """See `Cluster`; returns when a scheduler has them, from which they spread.

        Raises:
            ClusterStartError: No scheduler answers.
        """
        super().set_weights(weights)
        for _ in range(2):  # the second answer is to a request sent after the weights
            with self._actor.changed:
                self._actor.known.clear()
            if not self._await(lambda: bool(self._actor.known), _ANSWER_S):
                raise ClusterStartError("no scheduler answers")

    def metrics(self, timeout_s: float = 2.0) -> dict[str, str]:
        """Metrics of schedulers and nodes that answer in time, as text, by process."""
        infos = self._infos().values()
        endpoints = dict.fromkeys(
            endpoint_of(scheduler)
            for scheduler in (*self._schedulers, *(info.monitor for info in infos))
        )  # fmt: skip
        for endpoint in endpoints:
            self._driver.post(address(endpoint, "metrics"), GetMetrics(self._actor.address))
        self._await(lambda: len(self._actor.metrics) >= len(endpoints), timeout_s)
        with self._actor.changed:
            return dict(sorted(self._actor.metrics.items()))

    def _end(self) -> None:
        self._driver.close()
        self._folder.close()
