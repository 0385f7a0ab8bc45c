"""Balancers: which partitions should move, by what workers report of a period.

A balancer is a pure function. `BALANCERS` is the registry; a new one is a function and its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from machine_kit.addresses import Address

Key = tuple[int, int]
GAIN_MIN = 0.1  # of the busiest worker's time; a smaller gain is not worth a move
BUSY_MIN = 0.2  # of the period: a worker that mostly waits slows nobody down
MOVES_MAX = 4  # from a worker at a time: what follows is seen before more moves


class WorkerLoad(Struct, frozen=True):
    """What a worker did in a period.

    Attributes:
        worker: Its address.
        busy_s: Time spent in tasks, by partition.
        span_s: The length of the period.
    """

    worker: Address
    busy_s: dict[Key, float]
    span_s: float

    @property
    def total_s(self) -> float:
        return sum(self.busy_s.values())


class PlannedMove(Struct, frozen=True):
    """A partition that shall go to another worker."""

    key: Key
    to: Address


Balancer = Callable[[Sequence[WorkerLoad]], list[PlannedMove]]


def keep(loads: Sequence[WorkerLoad]) -> list[PlannedMove]:
    """Move nothing."""
    del loads
    return []


def straggler(loads: Sequence[WorkerLoad]) -> list[PlannedMove]:
    """Take partitions from the busiest worker, as long as that shortens the longest busy time.

    In a program with barriers all wait for the worker that is busy longest. A partition's time at
    another worker is its time here by the ratio of the two workers' mean times: so a worker on a
    slow core loses partitions, and one that has just joined gets some.
    """
    if len(loads) < 2:
        return []
    busiest = max(loads, key=lambda load: load.total_s)
    if busiest.total_s < BUSY_MIN * busiest.span_s:
        return []
    means = {load.worker: _mean_s(load, busiest) for load in loads}
    totals = {load.worker: load.total_s for load in loads}
    moves: list[PlannedMove] = []
    for key, busy_s in sorted(busiest.busy_s.items(), key=lambda item: (-item[1], item[0])):
        if len(moves) == MOVES_MAX:
            break
        best = min(
            (total for total in totals if total != busiest.worker),
            key=lambda worker: totals[worker] + busy_s * _ratio(means, worker, busiest.worker),
        )
        after = totals[best] + busy_s * _ratio(means, best, busiest.worker)
        here = totals[busiest.worker]
        # Whoever is the longest after the move must be so for a good deal less time than now.
        if max(after, here - busy_s) < (1 - GAIN_MIN) * here:
            totals[best], totals[busiest.worker] = after, here - busy_s
            moves.append(PlannedMove(key, best))
    return moves


def even(loads: Sequence[WorkerLoad]) -> list[PlannedMove]:
    """The same number of partitions at each worker, whatever they cost."""
    if not loads:
        return []
    counts = {load.worker: len(load.busy_s) for load in loads}
    moves: list[PlannedMove] = []
    for load in loads:
        keys = sorted(load.busy_s, reverse=True)
        while keys and counts[load.worker] > min(counts.values()) + 1:
            least = min(counts, key=lambda worker: counts[worker])
            moves.append(PlannedMove(keys.pop(0), least))
            counts[load.worker] -= 1
            counts[least] += 1
    return moves


def _mean_s(load: WorkerLoad, other: WorkerLoad) -> float:
    """A worker's mean time for a partition; another's if it has none to judge by."""
    times = [busy_s for busy_s in load.busy_s.values() if busy_s > 0]
    if not times:
        return _mean_s(other, other) if load is not other else 1.0
    return sum(times) / len(times)


def _ratio(means: dict[Address, float], worker: Address, busiest: Address) -> float:
    return means[worker] / means[busiest]


BALANCERS: dict[str, Balancer] = {"straggler": straggler, "even": even, "none": keep}
