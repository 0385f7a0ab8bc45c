"""Signals at a worker: those that it knows, and how workers hear of those that they missed.

The worker of the single partition computes signals and tells all members; if they are many, some of
them pass it on to the others. One that was no member then waits for a while, and asks; from then on
it is a listener, who is told like a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from canary_core import values
from canary_core.machines.links import Links
from canary_core.protocol.messages import SignalsKnown
from canary_core.stages import UNTOLD, Stage
from canary_core.tree import share_of
from canary_core.values import Frames
from machine_kit.addresses import Address

ASK_S = 0.25  # how long a driver waits for a signal before it asks


class Signals:
    """What a worker knows of an epoch's signals.

    Attributes:
        values: By stage; shared with the worker's copy of the driver.
        listeners: Workers that have asked.
    """

    def __init__(self, address: Address, links: Links) -> None:
        self.values: dict[int, Any] = {}
        self.listeners: dict[Address, None] = {}
        self._address = address
        self._links = links
        self._waiting_since: float | None = None

    def before(self, stage: int) -> dict[int, Any]:
        """The signals of the stages before this one."""
        return {signal: value for signal, value in self.values.items() if signal < stage}

    def tell(self, stage: Stage, value: Any, members: Iterable[Address]) -> None:
        """Take the value of a signal that was computed here, and tell all others."""
        self.values[stage.index] = value
        frames = values.dumps_inside([value])
        body = SignalsKnown((stage.index,), stage.digest, len(frames))
        others = {**dict.fromkeys(members), **self.listeners}
        self._pass_on(body, frames, [worker for worker in others if worker != self._address])

    def learn(self, body: SignalsKnown, frames: Frames) -> None:
        """Take what another worker tells, and pass it on."""
        self.values.update(zip(body.stages, values.loads(frames), strict=True))
        self._pass_on(body, frames, body.others)

    def _pass_on(self, body: SignalsKnown, frames: Frames, others: Sequence[Address]) -> None:
        """Tell others, with their help if they are many; one that is not reached will ask."""
        width = share_of(len(others))
        for first in range(0, len(others), width):
            further = tuple(others[first + 1 : first + width])
            self._links.post(others[first], structs.replace(body, others=further), frames)

    def is_overdue(self, waiting: int, now: float) -> bool:
        """Whether to ask for the signal that the driver waits for (-1: none), now."""
        if waiting < 0 or waiting in self.values:
            self._waiting_since = None
        elif self._waiting_since is None:
            # One that joins has missed all signals so far: it asks with the next tick.
            self._waiting_since = now if self.values else now - ASK_S
        elif now - self._waiting_since >= ASK_S:
            self._waiting_since = now
            return True
        return False

    def answer(self, asker: Address, stage: int) -> None:
        """Tell what is known from a stage on, and what will be."""
        self.listeners[asker] = None
        told = {signal: value for signal, value in sorted(self.values.items()) if signal >= stage}
        if told:
            frames = values.dumps_inside(list(told.values()))
            self._links.post(asker, SignalsKnown(tuple(told), UNTOLD, len(frames)), frames)
