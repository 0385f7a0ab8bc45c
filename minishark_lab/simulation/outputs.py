"""Outputs of tasks that belong to simulated nodes: production's homes, holders and askers.

Of a holder, the files are those of its simulated disk; of an asker, messages take simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

from minishark.cluster import wire
from minishark.cluster.background import Background
from minishark.cluster.membership import Node
from minishark.cluster.outputs import FOLDER, HeldOutputs, HomeIndex, SharedOutputs, answered
from minishark_lab.simulation.disks import Disk
from minishark_lab.simulation.fibers import SimulatedClock
from sparrow_core.protocol.ids import NodeName

_TOLD_S = 0.002  # how long it takes until homes are told, about
_ENTRIES_MAX = 60  # few, so that homes forget

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class SimulatedHeld(HeldOutputs):
    """The files of outputs on a simulated disk."""

    disk: Disk

    def _touch(self, file: str) -> bool:
        return file in self.disk.files

    def evict(self, rng: Random) -> None:
        """Tables need room: some of the files go that nobody reads."""
        leased = self.leased
        for file in [file for file in self.disk.files if file.startswith(f"{FOLDER}/")]:
            if file.rpartition("/")[2] not in leased and rng.random() < 0.5:
                del self.disk.files[file]


@dataclass(slots=True)
class NodeOutputs:
    """What a node knows of outputs, and holds of them."""

    held: SimulatedHeld
    home: HomeIndex = field(default_factory=lambda: HomeIndex(entries_max=_ENTRIES_MAX))

    @classmethod
    def on(cls, disk: Disk) -> NodeOutputs:
        """Those of a node with this disk."""
        return cls(SimulatedHeld(roots=(), limit_bytes=0, disk=disk))

    def answered(self, request: wire.Request) -> wire.Reply | None:
        """A reply to a request about outputs."""
        return answered(request, self.home, self.held)


class Asker(Protocol):
    """A cluster as one session uses it."""

    store_name: str
    clock: SimulatedClock

    def told(self) -> tuple[Node, ...]:
        """Its nodes."""

    def travel(self, names: Sequence[str]) -> None:
        """Let the time pass that asking these nodes takes."""

    def outputs_of(self, name: NodeName) -> NodeOutputs | None:
        """The outputs of a node, if it answers."""


class _Soon(Background[T]):
    """What nobody waits for is on its way for a while, and arrives or does not."""

    def __init__(self, clock: SimulatedClock, handle: Callable[[Sequence[T]], None]) -> None:
        self._clock = clock
        self._handle = handle

    def put(self, item: T) -> None:
        def arrive() -> None:
            self._clock.sleep(_TOLD_S)
            self._handle([item])

        self._clock.thread(arrive, "outputs")

    def close(self, within_s: float) -> None:
        """It may arrive later."""


class SimulatedOutputs(SharedOutputs):
    """The outputs of all nodes, as one session finds and keeps them."""

    def __init__(self, cluster: Asker) -> None:
        self._session = cluster.store_name
        self._cluster = cluster
        self._nodes = lambda: [node.at for node in cluster.told() if not node.is_draining]
        self._background = _Soon(cluster.clock, self._send)

    def _ask(self, requests: Mapping[str, wire.Request]) -> Mapping[str, wire.Reply]:
        if not requests:
            return {}
        self._cluster.travel([*requests])
        replies = {}
        for name, request in requests.items():
            outputs = self._cluster.outputs_of(NodeName(name))
            reply = None if outputs is None else outputs.answered(request)
            if reply is not None:
                replies[name] = reply
        return replies
