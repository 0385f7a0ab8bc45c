"""The stream of a session's events: a ring in memory, from which any number of readers take.

Who emits never waits for a reader: the ring keeps the newest events, up to a total weight, as plans
are a thousand times as large as what a task tells. A reader that comes too late learns how many it
has missed. Without readers, the ring is the recent past that a page which is opened later begins
with; so all but the newest events, which readers ask for again and again, are packed: into a tenth
of the memory, for about a microsecond each. Who emits the last event of a block packs it, which
takes a third of a millisecond, or some if the events are large plans.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

import msgspec

from minishark.model.events.kinds import AnyEvent

CAPACITY = 16_384
"""The total weight of the events that are kept: about as many kilobytes before they are packed."""

_BLOCKS = 64  # in the ring; the oldest goes as a whole
_LEVEL = 1  # others take twice the time, and leave 20 bytes of an event instead of 25


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


@dataclass(frozen=True, slots=True)
class _Block:
    """Events that follow one another, compressed; as they are if they can't be encoded."""

    count: int
    weight: int
    events: bytes | list[AnyEvent]


class EventStream:
    """The newest events of a session; safe to use from several threads."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._block_weight = max(1, capacity // _BLOCKS)
        self._blocks: deque[_Block] = deque()
        self._new: deque[AnyEvent] = deque()  # after those in blocks
        self._new_weight = 0
        self._weight = 0
        self._kept = 0
        self._count = 0
        self._lock = threading.Lock()

    def emit(self, event: AnyEvent) -> None:
        """Add an event; if the ring is full, the oldest ones go."""
        weight = event.weight
        with self._lock:
            self._new.append(event)
            self._new_weight += weight
            self._weight += weight
            self._count += 1
            self._kept += 1
            while self._weight > self._capacity and self._kept > 1:
                self._drop()
            if self._new_weight >= 2 * self._block_weight:
                self._pack()

    def _drop(self) -> None:
        if self._blocks:
            block = self._blocks.popleft()
            self._kept -= block.count
            self._weight -= block.weight
        else:
            weight = self._new.popleft().weight
            self._kept -= 1
            self._weight -= weight
            self._new_weight -= weight

    def _pack(self) -> None:
        """Make a block of the older half of the new events."""
        events, weight = [], 0
        while len(self._new) > 1 and weight < self._block_weight:
            events.append(self._new.popleft())
            weight += events[-1].weight
        if events:
            self._blocks.append(_Block(len(events), weight, _packed(events)))
            self._new_weight -= weight

    def since(self, number: int, limit: int = CAPACITY) -> Batch:
        """At most `limit` events after the one of that number, which is 0 at the beginning."""
        with self._lock:
            number = min(number, self._count)  # others may ask for what has not happened
            begin = self._count - self._kept
            first = max(number, begin)
            blocks, new = (*self._blocks,), (*self._new,)
        skipped = first - begin
        events = tuple(islice(_unpacked(blocks, new, skipped), limit))
        return Batch(events, first + len(events), first - number)


def _unpacked(
    blocks: tuple[_Block, ...], new: tuple[AnyEvent, ...], skipped: int
) -> Iterator[AnyEvent]:
    """All events but so many of the oldest; blocks are unpacked when their turn comes."""
    for block in blocks:
        if skipped < block.count:
            packed = block.events
            events = packed if isinstance(packed, list) else _decode()(zlib.decompress(packed))
            yield from events[skipped:]
        skipped = max(0, skipped - block.count)
    yield from new[skipped:]


_encode = msgspec.msgpack.Encoder().encode


@cache
def _decode() -> Callable[[bytes], list[AnyEvent]]:
    return msgspec.msgpack.Decoder(list[AnyEvent]).decode


def _packed(events: list[AnyEvent]) -> bytes | list[AnyEvent]:
    try:
        return zlib.compress(_encode(events), _LEVEL)
    except (UnicodeEncodeError, OverflowError):  # lone surrogates in a name of a user's
        return events
