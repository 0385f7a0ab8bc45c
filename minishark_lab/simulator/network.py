"""The simulated network: delay, loss and duplication of messages."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from msgspec import Struct


class Network(Struct, frozen=True):
    """A network that may reorder messages."""

    delay_s: float = 0.0005  # minimum delay between processes
    local_delay_s: float = 0.00005  # minimum delay between processes of a node
    jitter_s: float = 0.0  # maximum of the added uniform delay; messages may overtake each other
    loss: float = 0.0  # probability that a message is lost
    duplication: float = 0.0  # probability that it arrives twice

    def delays_s(self, rng: Random, *, local: bool = False) -> tuple[float, ...]:
        """The delays of all copies that arrive: zero, one or two."""
        delay_s = self.local_delay_s if local else self.delay_s
        if not (self.loss or self.duplication or self.jitter_s):
            return (delay_s,)
        if rng.random() < self.loss:
            return ()
        is_doubled = rng.random() < self.duplication
        first = delay_s + rng.random() * self.jitter_s
        return (first, delay_s + rng.random() * self.jitter_s) if is_doubled else (first,)


@lru_cache(4096)
def host_of(endpoint: str) -> str:
    """The host of a process: the node `n3` and its executor `n3-e7` are on one."""
    return endpoint.partition("-")[0]


def is_local(endpoint: str, other: str) -> bool:
    """Whether two processes are on one host."""
    return host_of(endpoint) == host_of(other)
