"""A simulated cluster as one session uses it: the counterpart of `cluster/attached.py`.

Requests to the services of nodes take simulated time, more where nobody answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from minishark.cluster.membership import Ask, Change, Members, Node
from minishark.cluster.outputs import SharedOutputs
from minishark.worker.protocol import StoreLocation
from minishark_lab.simulation.backend import RECOVERY_S, SimulatedBackend
from minishark_lab.simulation.disks import Disk, SimulatedStore
from minishark_lab.simulation.fibers import SimulatedClock
from minishark_lab.simulation.hosts import Hosts, Service, store_of
from minishark_lab.simulation.outputs import NodeOutputs, SimulatedOutputs
from sparrow_core.protocol.ids import NodeName

_ANSWER_S = 0.001
_CALL_S = 2.0  # how long a request waits for nodes that are silent
_KEEP_EVERY_S = 1.0


class SimulatedAttached(Members):
    """What a session asks of a cluster; `cluster.contract` documents the methods."""

    memory_limit_bytes = 1 << 30  # of the engine's databases
    scratch = Path("/nonexistent")  # nothing is simulated that needs a disk here
    warnings = ()

    address = "simulated"

    def __init__(self, hosts: Hosts, endpoint: str, clock: SimulatedClock) -> None:
        super().__init__(f"session-{endpoint}", RECOVERY_S, now_s=clock.now_s, sleep=clock.sleep)
        self.endpoint, self.clock = endpoint, clock
        self._hosts = hosts
        self.disk = Disk(home=self.store_name, endpoint=endpoint, since_s=hosts.world.now)
        hosts.disks.by_name[self.store_name] = self.disk
        hosts.fronts[self.store_name] = endpoint
        self.backend = SimulatedBackend(hosts, endpoint)
        self.is_open = True

    def told(self) -> tuple[Node, ...]:
        tables = self.backend.actor.known.values()
        infos = {name: info for nodes in tables for name, info in nodes.items()}
        return tuple(
            Node(store_of(name, info.attributes), info.draining, info.running > 0)
            for name, info in sorted(infos.items())
        )

    @property
    def total_slots(self) -> int:
        return self._hosts.slots * len(self.told())

    @property
    def cores(self) -> int:
        return self.total_slots

    def shared_tables(self) -> None:
        """Nothing here outlives sessions."""

    def own_stores(self) -> tuple[StoreLocation, ...]:
        return ()  # tasks know all

    def check_awaited(self, since_s: float) -> None:
        """Nobody refuses it, and none waits when it ends."""

    def refuses(self, node: Node) -> bool:
        world = self._hosts.world
        is_cut = world.is_cut(self.endpoint, node.name) or world.is_cut(node.name, self.endpoint)
        service = self._hosts.services.get(NodeName(node.name))
        return not is_cut and (service is None or service.disk.home != node.home)

    # Requests to services

    def travel(self, names: Sequence[str]) -> None:
        """Let the time pass that asking these nodes takes."""
        if not names:
            return
        answer = all(self._hosts.disks.reachable(self.endpoint, name) for name in names)
        self.clock.sleep(_ANSWER_S if answer else _CALL_S)

    def _service(self, node: Node) -> Service | None:
        """The service of a node, of this incarnation, if it answers."""
        if self._hosts.disks.reachable(self.endpoint, node.name) is None:
            return None
        service = self._hosts.services.get(NodeName(node.name))
        return None if service is None or service.disk.home != node.home else service

    def ask(self, asked: Ask) -> Collection[Node]:
        self.travel([node.name for node in asked.nodes])
        services = [(node, self._service(node)) for node in asked.nodes]
        answered = [node for node, service in services if service is not None]
        self.membership.heard(asked, answered)
        for _, service in services:
            if service is not None:
                service.take(self.store_name, asked.request, self._hosts.world.now)
        return answered

    def outputs_of(self, name: NodeName) -> NodeOutputs | None:
        """The outputs of a node, if it answers."""
        if self._hosts.disks.reachable(self.endpoint, name) is None:
            return None
        service = self._hosts.services.get(name)
        return None if service is None else service.outputs

    def shared_outputs(self) -> SharedOutputs:
        return SimulatedOutputs(self)

    def change_own(self, request: Change) -> None:
        self.disk.change(request)

    def transfer(self, file: str, source: Node, target: Node) -> bool:
        self.clock.sleep(self._hosts.world.rng.expovariate(1 / self._hosts.copy_s))
        giver = self._hosts.disks.reachable(target.name, source.name)
        taker = self._service(target)
        if giver is None or taker is None or taker.disk.is_full or file not in giver.files:
            return False
        if file.rpartition("/")[0] not in taker.disk.folders:
            return False
        taker.disk.files[file] = giver.files[file]
        return True

    def store(self) -> SimulatedStore:
        return SimulatedStore(self._hosts.disks, self.store_name, self.endpoint, self.travel)

    # The session's life

    def keep_alive(self) -> None:
        """Send heartbeats while the session is open."""
        while self.is_open:
            self.clock.sleep(_KEEP_EVERY_S)
            self.ask(self.membership.beat(self.told(), self.now_s()))
            self.make_missing_folders()

    def close(self) -> None:
        """End the session; its files go."""
        self.is_open = False
        self.ask(self.membership.end(self.store_name, self.told()))
        self.forget()

    def forget(self) -> None:
        """The session's process is gone with its files."""
        self._hosts.fronts.pop(self.store_name, None)
        self._hosts.disks.by_name.pop(self.store_name, None)

    def __getattr__(self, name: str) -> Any:
        message = f"the simulated cluster has no {name}: nothing that is simulated asks for it"
        raise AttributeError(message)
