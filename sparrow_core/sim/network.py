"""What a simulated network does to a message between processes: delays, losses, doubles."""

from __future__ import annotations

from random import Random

from msgspec import Struct


class Network(Struct, frozen=True):
    """A network without order.

    Attributes:
        delay_s: The least time of a message between processes.
        jitter_s: At most this much is added, uniformly; messages overtake each other.
        loss: Probability that a message is lost.
        duplication: Probability that it arrives twice.
    """

    delay_s: float = 0.0005
    jitter_s: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0

    def delays_s(self, rng: Random) -> tuple[float, ...]:
        """The delay of each copy that arrives: none, one or two."""
        if not (self.loss or self.duplication or self.jitter_s):
            return (self.delay_s,)
        if rng.random() < self.loss:
            return ()
        copies = 2 if rng.random() < self.duplication else 1
        return tuple(self.delay_s + rng.random() * self.jitter_s for _ in range(copies))
