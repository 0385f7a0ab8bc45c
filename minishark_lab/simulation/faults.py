"""What goes wrong in a history. Each fault ends; who was killed comes back, with an empty disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random

from machine_kit.addresses import endpoint_of
from minishark.cluster.outputs import FOLDER
from minishark_lab.simulation.disks import Disk, File
from minishark_lab.simulation.hosts import Hosts
from minishark_lab.simulation.script import Fault
from minishark_lab.simulator.world import World
from sparrow_core.protocol.ids import NodeName

_NODES_MAX = 7
_LOOK_S = 0.001
_EVICT_S = 0.05
_LOST_WHEN_READ_MAX = 8  # files by one fault; a query has as many tries again, and more
_LOST_WHEN_READ = 0.5  # the chance that an output is lost when a task reads it
_LOST_AT_ONCE = 0.15  # the chance that an output is lost at one of these moments


@dataclass(slots=True, kw_only=True)
class Faults:
    """Injects faults into a world."""

    world: World
    hosts: Hosts
    fronts: Sequence[str]  # the processes of sessions
    kill_session: Callable[[str], None]  # that of this process
    restart_session: Callable[[str], None]  # the same, and another one goes on
    injected: int = 0
    spans: list[tuple[str, float, float]] = field(default_factory=list)  # kinds, begins, ends
    lost: set[str] = field(default_factory=set)  # files that vanished from a disk
    destroyed: set[str] = field(default_factory=set)  # files that vanished somewhere, in any way
    ends_s: float = 0.0  # when the last one has ended
    _joined: int = 0

    def plan(self, faults: Sequence[Fault]) -> None:
        """Inject faults when it is time."""
        for fault in faults:
            self.ends_s = max(self.ends_s, fault.at_s + fault.for_s)
            self.world.call(fault.at_s, lambda fault=fault: self._inject(fault))  # type: ignore[misc]

    def _inject(self, fault: Fault) -> None:
        until_s = self.world.now + fault.for_s
        getattr(self, f"_{fault.kind}")(fault.target, until_s)
        self.injected += 1
        self.spans.append((fault.kind, self.world.now, until_s))

    def within(self, kinds: Collection[str], first_s: float, last_s: float) -> bool:
        """Whether one of these kinds was there at some moment from one time to another."""
        return any(
            kind in kinds and begin_s <= last_s and first_s <= end_s
            for kind, begin_s, end_s in self.spans
        )

    def _node(self, target: int) -> NodeName | None:
        alive = self.hosts.alive
        return alive[target % len(alive)] if alive else None

    def _kill_executor(self, target: int, until_s: float) -> None:
        if (node := self._node(target)) is not None:
            self.hosts.kill_executor(node)

    def _kill_node(self, target: int, until_s: float) -> None:
        if (node := self._node(target)) is not None:
            self.destroyed.update(self.hosts.services[node].disk.files)
            self.hosts.kill_node(node)
            self.world.call(until_s, lambda: self._start(node))

    def _start(self, node: NodeName) -> None:
        if node not in self.hosts.alive:
            self.hosts.start_node(node)

    def _kill_nodes(self, target: int, until_s: float) -> None:
        """Two at once, or all."""
        for _ in range(2 if target % 4 else len(self.hosts.alive)):
            self._kill_node(target, until_s)

    def _kill_scheduler(self, target: int, until_s: float) -> None:
        at = self.hosts.schedulers[target % len(self.hosts.schedulers)]
        if at in self.world.machines:
            self.world.kill(endpoint_of(at))
            self.world.call(until_s, lambda: self.hosts.start_scheduler(at))

    def _stop_executor(self, target: int, until_s: float) -> None:
        if (node := self._node(target)) is not None:
            self.hosts.freeze_executor(node, until_s)

    def _stop_node(self, target: int, until_s: float) -> None:
        if (node := self._node(target)) is not None:
            self.world.freeze(node, until_s)
            self.hosts.freeze_executor(node, until_s)

    def _stop_front(self, target: int, until_s: float) -> None:
        self.world.freeze(self.fronts[target % len(self.fronts)], until_s)

    def _kill_front(self, target: int, until_s: float) -> None:
        """A session's process dies, unless it is the last one."""
        live = [front for front in self.fronts if front in self.hosts.fronts.values()]
        if len(live) > 1:
            self.kill_session(live[target % len(live)])

    def _restart_front(self, target: int, until_s: float) -> None:
        """A session's process dies, and is started again: it asks the same."""
        live = [front for front in self.fronts if front in self.hosts.fronts.values()]
        if live:
            self.restart_session(live[target % len(live)])

    def _evict(self, target: int, until_s: float) -> None:
        """A node needs the room of outputs, again and again."""
        if (node := self._node(target)) is None:
            return
        service, rng = self.hosts.services[node], Random(target)

        def look() -> None:
            service.outputs.held.evict(rng)
            if self.world.now < until_s:
                self.world.call(self.world.now + _EVICT_S, look)

        look()

    def _stop_scheduler(self, target: int, until_s: float) -> None:
        schedulers = self.hosts.schedulers
        self.world.freeze(endpoint_of(schedulers[target % len(schedulers)]), until_s)

    def _some(self, target: int) -> list[str]:
        """Some hosts, at least one and not all."""
        schedulers = [endpoint_of(each) for each in self.hosts.schedulers]
        every = [*self.hosts.alive, *schedulers, *self.fronts]
        chosen = [host for i, host in enumerate(every) if target >> i & 1]
        return chosen if 0 < len(chosen) < len(every) else every[:1]

    def _cut_off(self, target: int, until_s: float) -> None:
        self.world.cut_off(self._some(target), until_s)

    def _cut_one_way(self, target: int, until_s: float) -> None:
        self.world.cut_off(self._some(target), until_s, one_way=True)

    def _separate(self, target: int, until_s: float) -> None:
        every = [*self.hosts.alive, *self.fronts]
        if len(every) > 1:
            first = target % len(every)
            self.world.separate(every[first], every[first - 1], until_s)

    def _full_disk(self, target: int, until_s: float) -> None:
        if (node := self._node(target)) is not None:
            disk = self.hosts.services[node].disk
            disk.is_full = True
            self.world.call(until_s, lambda: setattr(disk, "is_full", False))

    def _lost_file(self, target: int, until_s: float) -> None:
        """A file vanishes from a disk that had it."""
        if (node := self._node(target)) is not None:
            files = self.hosts.services[node].disk.files
            if files:
                self._lose(files, [*files][target % len(files)])

    def _lose(self, files: dict[str, File], name: str) -> None:
        if files.pop(name, None) is not None:
            self.lost.add(name)
            self.destroyed.add(name)

    def _lost_output(self, target: int, until_s: float) -> None:
        """At some moment at which a query has outputs, one of them vanishes.

        Or when a task has just read it, which others still have to read.
        """
        chance = Random(target)
        if target % 2:
            self._lost_when_read(chance, until_s)
            return

        def look() -> None:
            outputs = [
                (service.disk.files, name)
                for service in self.hosts.services.values()
                for name in service.disk.files
                if _is_output(name)
            ]
            if outputs and chance.random() < _LOST_AT_ONCE:
                self._lose(*chance.choice(outputs))
            elif self.world.now < until_s:
                self.world.call(self.world.now + _LOOK_S, look)

        look()

    def _lost_when_read(self, chance: Random, until_s: float) -> None:
        watchers, lost = self.hosts.disks.on_read, set[str]()

        def look(disk: Disk, name: str) -> None:
            if self.world.now > until_s or len(lost) == _LOST_WHEN_READ_MAX:
                watchers.remove(look)
            elif _is_output(name) and chance.random() < _LOST_WHEN_READ:
                lost.add(name)
                self.world.call(self.world.now, lambda: self._lose(disk.files, name))

        watchers.append(look)

    def _drain(self, target: int, until_s: float) -> None:
        staying = [name for name, each in self.hosts.services.items() if not each.is_draining]
        if len(staying) > 1:  # somebody has to stay, as nobody starts those again that have left
            self.hosts.drain_node(staying[target % len(staying)])

    def _join(self, target: int, until_s: float) -> None:
        if len(self.hosts.alive) < _NODES_MAX:
            self._joined += 1
            self.hosts.start_node(NodeName(f"j{self._joined}"))

    def _drift(self, target: int, until_s: float) -> None:
        """A host's clock runs up to a fifth slower or faster."""
        every = [*self.hosts.alive, *self.fronts]
        host, rate = every[target % len(every)], 0.8 + target % 41 / 100
        self.world.drift(host, rate)
        self.world.call(until_s, lambda: self.world.drift(host, 1.0))

    def mend(self, nodes: Sequence[NodeName]) -> None:
        """All faults are over: who is still away comes back."""
        for node in nodes:
            self._start(node)
        for at in self.hosts.schedulers:
            if at not in self.world.machines:
                self.hosts.start_scheduler(at)


def _is_output(name: str) -> bool:
    """Whether a file is what a task of a query has put out."""
    return "/queries/" in name or f"{FOLDER}/" in name
