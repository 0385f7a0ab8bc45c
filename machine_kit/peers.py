"""When others were heard: processes that may die without a word, and are missed after a while."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Peer = TypeVar("Peer", bound=Hashable)


class Peers(Generic[Peer]):
    """Those that are known, in the order in which they were heard first."""

    def __init__(self) -> None:
        self._heard_at: dict[Peer, float] = {}

    def heard(self, peer: Peer, now: float) -> None:
        """A sign of life; the peer is known from now on."""
        self._heard_at[peer] = now

    def expect(self, peer: Peer, now: float) -> None:
        """Wait for a sign of life from now on, unless the peer is known."""
        self._heard_at.setdefault(peer, now)

    def forget(self, peer: Peer) -> None:
        """The peer is gone, or nobody waits for it any more."""
        self._heard_at.pop(peer, None)

    def silent_s(self, peer: Peer, now: float) -> float:
        """For how long a peer has not been heard; infinite if it is not known."""
        return now - self._heard_at.get(peer, -math.inf)

    def silent(self, now: float, limit_s: float) -> list[Peer]:
        """Those that have not been heard for longer than that."""
        return [peer for peer, at in self._heard_at.items() if at < now - limit_s]

    def forgive(self, stall_s: float, now: float) -> None:
        """Our own process did not run for so long, and heard nobody: that was no silence."""
        if stall_s > 0:
            for peer, at in self._heard_at.items():
                self._heard_at[peer] = min(now, at + stall_s)

    def __contains__(self, peer: object) -> bool:
        return peer in self._heard_at

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self._heard_at))

    def __len__(self) -> int:
        return len(self._heard_at)
