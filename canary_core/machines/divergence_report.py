"""Where copies of the driver have taken different ways.

A digest that differs says that they have, not where. So all workers tell the last stages that they
recorded, and the first at which they differ is named. If there is none, it was forgotten already,
or the suspicion came from a worker that is gone; after some such reports the program ends anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from canary_core.protocol.messages import Call, Failure, Trail
from machine_kit.addresses import Address

TRAIL_WAIT_S = 2.0  # for all workers to answer
SUSPICIONS_MAX = 5


class DivergenceReport:
    """The controller's question to all workers; one at a time."""

    def __init__(self) -> None:
        self._trails: dict[Address, Trail] | None = None
        self._since = 0.0
        self._closed = 0

    @property
    def is_open(self) -> bool:
        """Whether answers are on their way."""
        return self._trails is not None

    def open(self, now: float) -> bool:
        """Begin to ask; False if answers are on their way already."""
        if self._trails is not None:
            return False
        self._trails, self._since = {}, now
        return True

    def drop(self) -> None:
        """Forget the question: an epoch has begun."""
        self._trails = None

    def answer(self, worker: Address, trail: Trail) -> None:
        """A worker tells its stages."""
        if self._trails is not None:
            self._trails[worker] = trail

    def is_answered(self, workers: Collection[Address], now: float) -> bool:
        """Whether all have answered, or have had the time to."""
        if self._trails is None:
            return False
        return self._trails.keys() >= set(workers) or now - self._since > TRAIL_WAIT_S

    def close(self) -> Failure | None:
        """What the answers say: why the program ends, or None if it may go on."""
        trails, self._trails = self._trails or {}, None
        self._closed += 1
        stage, calls = first_difference(trails)
        if calls:
            message = (
                f"copies of the driver took different ways at stage {stage}: {_told(calls)}. A"
                " driver may depend on its signals only: no clock, no random numbers, no order of"
                " sets"
            )
        elif self._closed >= SUSPICIONS_MAX:
            message = "copies of the driver took different ways; the stage is not known any more"
        else:
            return None
        return Failure(error="ProgramDiverged", message=message, stage=stage, calls=calls)


def first_difference(trails: Mapping[Address, Trail]) -> tuple[int, dict[str, str]]:
    """The first stage at which workers' records differ, and what each called there."""
    by_stage: dict[int, dict[Address, Call]] = {}
    for worker, trail in trails.items():
        for call in trail.calls:
            by_stage.setdefault(call.stage, {})[worker] = call
    for stage, calls in sorted(by_stage.items()):
        if len({call.digest for call in calls.values()}) > 1:
            return stage, {str(worker): call.call for worker, call in calls.items()}
    return -1, {}


def _told(calls: Mapping[str, str]) -> str:
    """The calls that differ, without the addresses of workers, which tell users nothing."""
    first, *others = dict.fromkeys(calls.values())
    if not others:
        return f"all called {first}, but with other operands, or another function or closure"
    return "; ".join([f"one called {first}", *[f"another {call}" for call in others]])
