"""Which faults are injected, and when. Pure: the same seed gives the same faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from minishark.errors import OptionError

KINDS = (
    "executor-kill",
    "executor-stop",
    "node-kill",
    "node-stop",
    "head-kill",
    "head-stop",
    "session-kill",
)
"""Victims are an executor, a node without a scheduler, a head (a node with one), or the program of
another session. A kill is SIGKILL; a stop is SIGSTOP, then SIGCONT after a while."""

_STOP_MIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Fault:
    """A scheduled fault."""

    at_s: float  # seconds from the start
    kind: str  # one of KINDS
    draw: float  # from 0 to 1; selects one of the possible victims
    stopped_s: float  # how long the process is stopped; 0 for a kill

    @property
    def role(self) -> str:
        """Kind of victim: "executor", "node", "head" or "session"."""
        return self.kind.partition("-")[0]


def plan_faults(
    seed: int, count: int, seconds: float, kinds: Sequence[str], stop_max_s: float
) -> tuple[Fault, ...]:
    """Faults at random times within `seconds`, in order; all kinds have equal probability."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise OptionError(f"Unknown kinds of faults {unknown}; choose from {', '.join(KINDS)}.")
    if count < 1 or seconds <= 0 or stop_max_s < _STOP_MIN_S:
        raise OptionError(f"Set faults and seconds above 0, and stop_max_s to {_STOP_MIN_S}.")
    rng = Random(f"chaos {seed}")
    times = sorted(rng.uniform(0, seconds) for _ in range(count))
    return tuple(_fault(rng, at_s, rng.choice(list(kinds)), stop_max_s) for at_s in times)


def _fault(rng: Random, at_s: float, kind: str, stop_max_s: float) -> Fault:
    draw, stopped_s = rng.random(), rng.uniform(_STOP_MIN_S, stop_max_s)
    return Fault(at_s, kind, draw, stopped_s if kind.endswith("-stop") else 0.0)
