"""Simulated nodes: Sparrow's machines, executors that run `work`, a disk, and a service for both.

The service does what `cluster/node_service.py` does with files and sockets: it makes and removes
the folders of sessions, gives each a lease, and lets a node that drains leave when all sessions
have released it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import lru_cache

from machine_kit.addresses import Address, endpoint_of
from minishark.cluster import wire
from minishark.cluster.membership import Keep, Request
from minishark.cluster.node_service import CUT_OFF_MAX_S, LEASE_S
from minishark.cluster.outputs import FOLDER
from minishark.worker.protocol import StoreLocation
from minishark_lab.simulation.disks import Disk, Disks
from minishark_lab.simulation.executor import SimulatedSlot
from minishark_lab.simulation.outputs import NodeOutputs
from minishark_lab.simulator.cluster import SimulatedCluster
from minishark_lab.simulator.world import World
from sparrow_core.machines.node_monitor import NodeMonitor
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import Drain

_TIDY_S = 1.0
_DRAIN_MAX_S = 300.0
_HOME = "home="


@dataclass(slots=True)
class _Session:
    """What a node knows of a session."""

    heard_s: float
    released: frozenset[str] = frozenset()


@dataclass(slots=True)
class Service:
    """The service of one incarnation of a node."""

    name: NodeName
    disk: Disk
    drain_until_s: float | None = None
    sessions: dict[str, _Session] = field(default_factory=dict)
    outputs: NodeOutputs = field(init=False)

    def __post_init__(self) -> None:
        self.outputs = NodeOutputs.on(self.disk)
        self.disk.folders[FOLDER] = None

    @property
    def is_draining(self) -> bool:
        """Whether it is to leave."""
        return self.drain_until_s is not None

    def take(self, session: str, request: Request, now: float) -> None:
        """Do what a session asks for."""
        match request:
            case wire.MakeFolder() | wire.RemoveFolder() | wire.RemoveFile():
                if isinstance(request, wire.MakeFolder):
                    self.sessions.setdefault(session, _Session(now))
                self.disk.change(request)
            case Keep(released):  # it needs nothing more of the nodes that it released
                self.sessions[session] = _Session(now, frozenset(released))
            case _:
                self.end(session)

    def end(self, session: str) -> None:
        """Remove the files of a session."""
        self.sessions.pop(session, None)
        self.outputs.held.end(session)
        self.disk.change(wire.RemoveFolder(session))


class Hosts(SimulatedCluster):
    """All nodes and schedulers."""

    def __init__(
        self,
        world: World,
        disks: Disks,
        *,
        nodes: int,
        schedulers: int,
        slots: int,
        copy_s: float = 0.05,
    ) -> None:
        self.disks = disks
        self.copy_s = copy_s  # mean time of copying a file from one node to another
        self.services: dict[NodeName, Service] = {}
        self.fronts: dict[str, str] = {}  # endpoints of live sessions, by name
        self.left: list[tuple[float, frozenset[str]]] = []  # when drained nodes went, and with what
        self._files = itertools.count()
        self._homes = itertools.count()
        super().__init__(
            world,
            nodes=nodes,
            slots=slots,
            schedulers=schedulers,
            attributes=lambda name: (f"{_HOME}{self.services[name].disk.home}",),
            slot=self._worker,
        )

    def _worker(self, slot: Address, executor: Address, name: NodeName) -> SimulatedSlot:
        return SimulatedSlot(
            address=slot,
            executor=executor,
            node=name,
            disks=self.disks,
            rng=self.world.rng,
            files=self._files,
        )

    def start_node(self, name: NodeName) -> None:
        """Start a node, or a dead one again: with an empty disk."""
        disk = Disk(home=f"{name}.{next(self._homes)}", endpoint=name, since_s=self.world.now)
        self.disks.by_name[name] = disk
        service = self.services[name] = Service(name, disk)
        super().start_node(name)
        self.world.call(self.world.now + _TIDY_S, lambda: self._tidy(service))

    def kill_node(self, name: NodeName) -> None:
        super().kill_node(name)
        self.disks.by_name.pop(name, None)
        self.services.pop(name, None)

    @property
    def alive(self) -> list[NodeName]:
        """The nodes that run."""
        return list(self.services)

    def executors_of(self, name: NodeName) -> list[str]:
        """The processes of a node's executors."""
        return [endpoint_of(each) for each in self._executors[name]]

    def drain_node(self, name: NodeName) -> None:
        """Begin to drain: the node leaves when no session needs it any more."""
        service = self.services[name]
        if not service.is_draining:
            service.drain_until_s = self.world.now + _DRAIN_MAX_S
            self.world.post(self.monitor_of(name), Drain(hold=True))

    def _tidy(self, service: Service) -> None:
        """What a node's service does each second while it lives."""
        world, name = self.world, service.name
        if self.services.get(name) is not service:
            return
        world.call(max(world.now + _TIDY_S, world.frozen_until(name)), lambda: self._tidy(service))
        if world.frozen_until(name) > world.now:
            return
        for folder in service.disk.folders:  # made by late tasks: their sessions get a lease, too
            if folder != FOLDER:
                service.sessions.setdefault(folder.partition("/")[0], _Session(world.now))
        for session, known in list(service.sessions.items()):
            if not self._is_alive(session, known, name):
                service.end(session)
        if service.drain_until_s is None:
            return
        monitor = world.machines.get(self.monitor_of(name))
        assert isinstance(monitor, NodeMonitor)
        if world.now > service.drain_until_s or monitor.has_left:
            self.left.append((world.now, frozenset(service.disk.files)))
            self.kill_node(name)
        elif all(name in each.released for each in service.sessions.values()):
            world.post(self.monitor_of(name), Drain())

    def _is_alive(self, session: str, known: _Session, node: NodeName) -> bool:
        silent_s = self.world.now - known.heard_s
        if silent_s < LEASE_S:
            return True
        endpoint = self.fronts.get(session)
        return endpoint is not None and silent_s < CUT_OFF_MAX_S


@lru_cache(4096)
def store_of(name: str, attributes: tuple[str, ...]) -> StoreLocation:
    """Where the incarnation of a node with these attributes has its files."""
    home = next(each.removeprefix(_HOME) for each in attributes if each.startswith(_HOME))
    return StoreLocation(name, name, home, home, name)
