"""The simulated network: delay, loss and duplication of messages."""

from __future__ import annotations

from random import Random

from msgspec import Struct


class Network(Struct, frozen=True):
    """A network that may reorder messages.

    Attributes:
        delay_s: Minimum delay between processes.
        local_delay_s: Minimum delay between processes of a node.
        jitter_s: Maximum of the added uniform delay; messages may overtake each other.
        loss: Probability that a message is lost.
        duplication: Probability that it arrives twice.
    """

    delay_s: float = 0.0005
    local_delay_s: float = 0.00005
    jitter_s: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0

    def delays_s(self, rng: Random, *, local: bool = False) -> tuple[float, ...]:
        """The delays of all copies that arrive: zero, one or two."""
        delay_s = self.local_delay_s if local else self.delay_s
        if not (self.loss or self.duplication or self.jitter_s):
            return (delay_s,)
        if rng.random() < self.loss:
            return ()
        copies = 2 if rng.random() < self.duplication else 1
        return tuple(delay_s + rng.random() * self.jitter_s for _ in range(copies))


def is_local(endpoint: str, other: str) -> bool:
    """Whether two processes are on one node: `n3` and its executor `n3-e7` are."""
    return endpoint.partition("-")[0] == other.partition("-")[0]
