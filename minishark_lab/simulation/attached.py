"""A simulated cluster as one session uses it: the counterpart of `cluster/attached.py`.

Which nodes there are, a session learns as in production, from what schedulers tell Sparrow's client
actor. Requests to the services of nodes take simulated time, more where nobody answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from machine_kit.addresses import address
from minishark.cluster.backend import Backend, Placement
from minishark.cluster.job_events import JobEvent
from minishark.cluster.joining import client_config
from minishark.cluster.membership import LastSeen, NodeFolders, awaited, placed_on
from minishark_lab.simulation.disks import Disk, SimulatedStore
from minishark_lab.simulation.fibers import SimulatedClock
from minishark_lab.simulation.hosts import Hosts, Service, home_of
from sparrow_core import JobId, JobSpec, TaskId
from sparrow_core.machines.client import Client
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import CancelJob, WithdrawTasks
from sparrow_core.protocol.types import NodeInfo
from sparrow_core.runtime.client_actor import ClientActor
from sparrow_core.runtime.specs import start_of

_ANSWER_S = 0.001
_CALL_S = 2.0  # how long a request waits for nodes that are silent
_KEEP_EVERY_S = 1.0
_POLL_S = 0.5
_SILENCE_MAX_S = 5.0
RECOVERY_S = 15.0  # half as long as by default: a history has more waits that end so


class SimulatedBackend(Backend):
    """Sparrow's client machine and its actor, in a session's process."""

    def __init__(self, hosts: Hosts, endpoint: str) -> None:
        self._world = hosts.world
        self._ids = itertools.count(1)
        self._endpoint = endpoint
        self.client = address(endpoint, "client")
        sink = address(endpoint, "sink")
        self.actor = ClientActor(sink, self.client, hosts.schedulers)
        self.actor.ticks.interval_s = _POLL_S
        self.actor.silence_max_s = _SILENCE_MAX_S
        self.machine = Client(self.client, sink, hosts.schedulers, client_config(RECOVERY_S))
        self._world.host(sink, self.actor)
        self._world.host(self.client, self.machine)

    def submit(self, job: JobSpec, on_event: Callable[[JobEvent], None]) -> JobId:
        job_id = JobId(f"{self._endpoint}.{next(self._ids)}")
        self.actor.expect(job_id, on_event, job.tag)
        self._world.post(self.client, start_of(job, job_id))
        return job_id

    def cancel(self, job_id: JobId) -> None:
        self._world.post(self.client, CancelJob(job_id))

    def withdraw(self, job_id: JobId, tasks: Sequence[TaskId], *, stop: bool) -> None:
        self._world.post(self.client, WithdrawTasks(job_id, tuple(tasks), stop))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._world.call(self._world.now, callback)


class SimulatedAttached:
    """What a session asks of a cluster; `cluster.backend.Cluster` documents the methods."""

    loses_files = True
    elastic = True
    recovery_s = RECOVERY_S

    def __init__(self, hosts: Hosts, endpoint: str, clock: SimulatedClock) -> None:
        self.store_name = f"session-{endpoint}"
        self.endpoint = endpoint
        self.clock = clock
        self._hosts = hosts
        self.disk = Disk(home=self.store_name, endpoint=endpoint, since_s=hosts.world.now)
        hosts.disks.by_name[self.store_name] = self.disk
        hosts.fronts[self.store_name] = endpoint
        self.backend = SimulatedBackend(hosts, endpoint)
        self._node_folders = NodeFolders()
        self._silent: dict[str, None] = {}
        self._last_seen = LastSeen[str]()  # their homes
        self._released: tuple[str, ...] = ()
        self.is_open = True

    # Nodes

    def _infos(self) -> dict[NodeName, NodeInfo]:
        tables = self.backend.actor.known.values()
        found = {name: info for nodes in tables for name, info in nodes.items()}
        return dict(sorted(found.items()))

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for name, info in self._infos().items() if not info.draining)

    @property
    def draining(self) -> tuple[str, ...]:
        return tuple(name for name, info in self._infos().items() if info.draining)

    @property
    def open_folders(self) -> frozenset[str]:
        return frozenset(self._node_folders.made)

    def homes(self) -> dict[str, str]:
        return {name: home_of(info.attributes) for name, info in self._infos().items()}

    def may_return(self, node: str) -> bool:
        self._meet()
        met, service = self._last_seen.last(node), self._hosts.services.get(NodeName(node))
        if met is None:
            return False
        if service is not None and service.disk.home == met:
            return True
        world = self._hosts.world  # nobody says that its process has ended
        return world.is_cut(self.endpoint, node) or world.is_cut(node, self.endpoint)

    def _meet(self) -> None:
        self._last_seen.note(self.homes(), self.clock.now_s())

    def lost_nodes(self, nodes: Collection[str]) -> tuple[str, ...]:
        live = self._infos()
        if not live:
            return ()
        return tuple(node for node in nodes if node not in live and node != self.store_name)

    def release(self, nodes: Collection[str]) -> None:
        infos = self._infos()
        busy = {name for name, info in infos.items() if info.running}
        if self.nodes:
            nodes = [node for node in nodes if node not in busy]
        self._released = tuple(nodes)

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        awaited(
            self._infos,
            self.recovery_s,
            now_s=self.clock.now_s,
            sleep=self.clock.sleep,
            check=lambda: None,
        )
        return placed_on(self.nodes, policy=policy, probe_ratio=probe_ratio, user=self.store_name)

    # Requests to services

    def _service(self, name: str, home: str = "") -> Service | None:
        """The service of a node, of this incarnation, if it answers."""
        if self._hosts.disks.reachable(self.endpoint, name) is None:
            return None
        service = self._hosts.services.get(NodeName(name))
        return None if service is None or home not in ("", service.disk.home) else service

    def travel(self, names: Sequence[str]) -> None:
        """Let the time pass that asking these nodes takes."""
        answer = all(self._hosts.disks.reachable(self.endpoint, name) for name in names)
        self.clock.sleep(_ANSWER_S if answer else _CALL_S)

    def _ask(self, names: Sequence[str], request: Callable[[Service], object]) -> list[str]:
        """Those of the nodes that answer a request."""
        homes = self.homes()
        asked = [name for name in names if name not in self._silent and name in homes]
        self.travel(asked)
        answered = []
        for name in asked:
            service = self._service(name, homes[name])
            if service is None:
                self._silent[name] = None
            else:
                request(service)
                answered.append(name)
        return answered

    def folder(self, name: str) -> str:
        return f"{self.store_name}/{name}"

    def make_folder(self, *folders: str) -> None:
        self.disk.folders.update(dict.fromkeys(folders))
        self._node_folders.make(folders)
        homes = self.homes()
        if self._node_folders.are_at(homes.values(), folders):
            return
        made = partial(self._make, folders)
        for name in self._ask(tuple(homes), made):
            self._node_folders.made_at(homes[name], folders)

    def _make(self, folders: Sequence[str], service: Service) -> None:
        service.make(self.store_name, folders, self._hosts.world.now)

    def remove_folder(self, *folders: str) -> None:
        for folder in folders:
            self.disk.remove_folder(folder)
        homes = self.homes()
        self._node_folders.remove(folders, homes.values())
        answered = self._ask(tuple(homes), partial(_remove, folders))
        self._node_folders.removed_at([homes[name] for name in answered], folders)

    def copy_file(self, file: str, source: str, target: str) -> bool:
        homes = self.homes()
        if source not in homes or target not in homes:
            return False
        self.travel((target,))
        service = self._service(target)
        if service is None:
            return False
        self._make((file.rpartition("/")[0],), service)
        self.clock.sleep(self._hosts.world.rng.expovariate(1 / self._hosts.copy_s))
        giver = self._hosts.disks.reachable(target, source)
        taker = self._service(target)
        if giver is None or taker is None or taker.disk.is_full or file not in giver.files:
            return False
        if file.rpartition("/")[0] not in taker.disk.folders:
            return False
        taker.disk.files[file] = giver.files[file]
        return True

    def remove_copy(self, file: str, node: str) -> None:
        if node == self.store_name:
            self.disk.files.pop(file, None)
        elif node in self.homes():
            self.travel((node,))
            if (service := self._service(node)) is not None:
                service.disk.files.pop(file, None)

    def store(self) -> SimulatedStore:
        return SimulatedStore(self._hosts.disks, self.store_name, self.endpoint, self.travel)

    # The session's life

    def keep_alive(self) -> None:
        """Send heartbeats while the session is open."""
        while self.is_open:
            self.clock.sleep(_KEEP_EVERY_S)
            self._silent.clear()
            self._meet()
            self._node_folders.forget_others(self._last_seen.places)
            released, now = self._released, self._hosts.world.now
            self._ask(tuple(self.homes()), partial(self._keep, released, now))
            self._make_missing_folders()

    def _keep(self, released: Sequence[str], now: float, service: Service) -> None:
        service.keep(self.store_name, released, now)

    def _make_missing_folders(self) -> None:
        for name, home in self.homes().items():
            self._make_missing_folders_at(name, home)

    def _make_missing_folders_at(self, name: str, home: str) -> None:
        self._node_folders.complete(
            home,
            lambda folder: bool(self._ask((name,), partial(self._make, (folder,)))),
            lambda some: bool(self._ask((name,), partial(_remove, some))),
        )

    def close(self) -> None:
        """End the session; its files go."""
        self.is_open = False
        self._ask(tuple(self.homes()), lambda service: service.end(self.store_name))
        self.forget()

    def forget(self) -> None:
        """The session's process is gone with its files."""
        self._hosts.fronts.pop(self.store_name, None)
        self._hosts.disks.by_name.pop(self.store_name, None)

    def __getattr__(self, name: str) -> Any:
        message = f"the simulated cluster has no {name}: nothing that is simulated asks for it"
        raise AttributeError(message)


def _remove(folders: Sequence[str], service: Service) -> None:
    for folder in folders:
        service.disk.remove_folder(folder)
