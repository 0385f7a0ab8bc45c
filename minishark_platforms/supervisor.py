"""Which nodes are to be launched, and when again: a state machine without IO.

A cluster on a platform consists of *places*, each of which is to have one live node. Places of
workers have executors; places of heads have a scheduler only. No two workers share a machine.

    absent ──Launch──▶ asked ──Placed──▶ placed ──Start──▶ starting ──Started──▶ running
      ▲                  └──────────────────┴──────────────────┴──────────────────┘
      └───────────────────────────────── Ended (after a pause that grows)

Nobody waits for all: a node starts as soon as the addresses of the heads are known, and the others
join when the platform has a machine for them. A node that comes again has a new name, since files
of the old one are gone; a head comes again at its old address if its machine allows that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

HEAD = "head"
WORKER = "node"
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 30.0
BRIEF_PAUSE_S = 2.0  # at most, for a node that has listened: replicas wait for the next one
_STABLE_S = 60.0  # a node that has run for this long starts again without a pause


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the platform for a machine. It answers with `Placed` when there is one, or `Ended`.

    Attributes:
        name: of the node to come.
        head: whether it is to have a scheduler only, and needs no cores.
        avoid: machines that must not be taken.
        before: the address that this head had, which it should have again if that is possible.
    """

    name: str
    head: bool
    avoid: frozenset[str] = frozenset()
    before: str = ""


class Start(msgspec.Struct, frozen=True):
    """Start the node on its machine: `Started`, or `Ended` if it does not start."""

    name: str
    heads: tuple[str, ...]


class End(msgspec.Struct, frozen=True):
    """End what was launched under this name, whatever its state; nothing is answered."""

    name: str


Command = Launch | Start | End


class Placed(msgspec.Struct, frozen=True):
    """There is a machine; a head is going to listen at `address`, as in `tcp://10.0.0.1:7077`."""

    name: str
    machine: str
    address: str = ""


class Started(msgspec.Struct, frozen=True):
    """The node listens, at the address of its service."""

    name: str
    service: str


class Ended(msgspec.Struct, frozen=True):
    """What was launched under this name is gone; `how` is a sentence.

    A node that has `left` was drained, and none is to take its place.
    """

    name: str
    how: str
    left: bool = False


Event = Placed | Started | Ended


@dataclass(slots=True, kw_only=True)
class _Place:
    head: bool
    name: str = ""  # of the node that is launched or runs; empty for none
    machine: str = ""
    address: str = ""
    service: str = ""
    began: bool = False  # whether it was told to start
    not_before: float = 0.0
    pause_s: float = 0.0
    since: float = 0.0
    retired: bool = False


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Keeps a number of nodes alive; times are seconds on any clock that does not go back."""

    nodes: int
    heads: int = 1
    deaths: int = 0  # how many nodes have ended that were not told to
    last_death: str = ""  # how the last of them did
    _places: list[_Place] = field(default_factory=list)
    _launched: int = 0

    def __post_init__(self) -> None:
        self._places = [_Place(head=True) for _ in range(self.heads)]
        self._places += [_Place(head=False) for _ in range(self.nodes)]

    @property
    def head_addresses(self) -> tuple[str, ...]:
        """The addresses of the heads, without keys; empty until all of them are known."""
        addresses = tuple(place.address for place in self._places if place.head)
        return addresses if all(addresses) else ()

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the workers that run."""
        return tuple(place.name for place in self._workers() if place.service)

    @property
    def on_their_way(self) -> int:
        """How many workers have a machine, but do not listen yet."""
        return sum(bool(place.machine) and not place.service for place in self._workers())

    @property
    def wanted(self) -> int:
        """How many workers there are to be; those that drain count until they have left."""
        return sum(1 for _ in self._workers())

    @property
    def missing(self) -> int:
        """How many workers do not run."""
        return sum(not place.service for place in self._workers())

    def machine_of(self, name: str) -> str:
        """The machine of a node that has one; else empty."""
        return next((place.machine for place in self._places if place.name == name), "")

    def _workers(self) -> Iterable[_Place]:
        return (place for place in self._places if not place.head and not place.retired)

    def due(self, now: float) -> list[Command]:
        """What is to be launched now; to be asked every half second or so."""
        vacant = (place for place in self._places if not place.name and not place.retired)
        return [self._launch(place, now) for place in vacant if now >= place.not_before]

    def _launch(self, place: _Place, now: float) -> Launch:
        kind = HEAD if place.head else WORKER
        place.name = f"{kind}-{self._launched}"
        self._launched += 1
        place.since = now
        taken = {other.machine for other in self._workers() if other.machine}
        place.machine = ""
        avoid = frozenset() if place.head else frozenset(taken)
        return Launch(name=place.name, head=place.head, avoid=avoid, before=place.address)

    def on(self, event: Event, now: float) -> list[Command]:
        """What is to be done about an event; of nodes that are no longer wanted, it is ended."""
        place = next((place for place in self._places if place.name == event.name), None)
        if place is None:
            return [] if isinstance(event, Ended) else [End(event.name)]
        match event:
            case Placed():
                return self._placed(place, event, now)
            case Started():
                place.service, place.since = event.service, now
                return []
            case Ended():
                place.retired |= event.left
                if not place.retired:
                    self.deaths += 1
                    self.last_death = event.how
                self._vacate(place, now)
                return []

    def _placed(self, place: _Place, event: Placed, now: float) -> list[Command]:
        others = [other for other in self._workers() if other is not place]
        if not place.head and any(other.machine == event.machine for other in others):
            self._vacate(place, now)  # the platform placed two launches at the same time
            return [End(event.name)]
        place.machine, place.address = event.machine, event.address
        heads = self.head_addresses
        if not heads:
            return []
        begin = [
            ready for ready in self._places if ready.machine and ready.name and not ready.began
        ]
        for ready in begin:
            ready.began = True
        return [Start(ready.name, heads) for ready in begin]

    def _vacate(self, place: _Place, now: float) -> None:
        stable = bool(place.service) and now - place.since >= _STABLE_S
        longest = BRIEF_PAUSE_S if place.service else LAST_PAUSE_S
        grown = min(longest, max(FIRST_PAUSE_S, 2 * place.pause_s))
        place.pause_s = 0.0 if stable else grown
        place.not_before = now + place.pause_s
        place.name, place.service, place.began = "", "", False
        if not place.head:
            place.machine = ""

    # A cluster that grows and shrinks

    def grow(self) -> None:
        """Want one worker more."""
        self._places.append(_Place(head=False))
