"""The stream of a session's events: a ring in memory, from which any number of readers take.

Who emits never waits for a reader: the ring keeps the newest events, up to a total weight, as plans
are a thousand times as large as what a task tells. A reader that comes too
late learns how many it has missed. Without readers, the ring is the recent past that a page which
is opened later begins with.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice

from minishark.events.kinds import AnyEvent

CAPACITY = 16_384
"""The total weight of the events that are kept: about as many kilobytes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that follow one another.

    Attributes:
        events: the events, in order.
        last: the number of the last one; where the next batch begins.
        dropped: how many before them are lost.
    """

    events: tuple[AnyEvent, ...]
    last: int
    dropped: int = 0


class EventStream:
    """The newest events of a session; safe to use from several threads."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._ring: deque[AnyEvent] = deque()
        self._capacity = capacity
        self._weight = 0
        self._count = 0
        self._lock = threading.Lock()

    def emit(self, event: AnyEvent) -> None:
        """Add an event; if the ring is full, the oldest ones go."""
        weight = event.weight
        with self._lock:
            self._ring.append(event)
            self._count += 1
            self._weight += weight
            while self._weight > self._capacity and len(self._ring) > 1:
                self._weight -= self._ring.popleft().weight

    def since(self, number: int, limit: int = CAPACITY) -> Batch:
        """At most `limit` events after the one of that number, which is 0 at the beginning."""
        with self._lock:
            first = max(number, self._count - len(self._ring))
            new = self._count - first
            size = min(new, limit)
            found = list(islice(reversed(self._ring), new - size, new))
        return Batch(tuple(reversed(found)), first + size, first - number)
