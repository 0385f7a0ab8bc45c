"""Sampling of nodes for reservations, and batch sizes; pure functions.

Sparrow (SOSP'13, section 3): batch sampling puts d*m reservations for the m tasks of a job on
random nodes; per-task sampling, for tasks with placement constraints, puts d reservations for each
on nodes that satisfy it.
"""

import math
from collections.abc import Collection, Sequence
from random import Random

from sparrow_core.protocol.ids import NodeName

_ROUNDING = 1e-9
_BRISK_S = 0.001  # about a round trip: tasks that are longer gain nothing from being fetched ahead
BATCH_S = 0.0001  # about the time to wake a thread
REPORT_S = 0.0003  # in which outcomes are collected while further tasks wait
AHEAD_MAX = 64
_SMOOTHING = 0.1


def smoothed(mean_s: float | None, latest_s: float) -> float:
    """The running mean of a job's task times; `mean_s` is None before the first."""
    return latest_s if mean_s is None else mean_s + _SMOOTHING * (latest_s - mean_s)


def expected_s(task_s: float) -> float | None:
    """The mean to start from, before a task has ended: an estimate, if it is below a round trip."""
    return task_s if task_s <= _BRISK_S else None


def batch_size(mean_s: float | None) -> int:
    """Tasks that a slot is woken up for: as many as take `BATCH_S` together."""
    return max(1, int(BATCH_S / mean_s)) if mean_s else 1


def tasks_ahead(mean_s: float | None) -> int:
    """How many tasks a slot may have beyond the running one.

    With tasks much shorter than a round trip, slots would mostly wait for messages. So as many are
    fetched ahead as take a millisecond together. For longer tasks, or unknown task times, none:
    they are bound late.
    """
    if mean_s is None or mean_s > _BRISK_S:
        return 0
    return min(AHEAD_MAX, int(_BRISK_S / max(mean_s, _BRISK_S / AHEAD_MAX)))


def reservation_count(tasks: int, probe_ratio: float) -> int:
    """ceil(d * m), up to rounding errors (1.1 * 10 is 11)."""
    return math.ceil(tasks * probe_ratio - _ROUNDING)


def spread_reservations(rng: Random, nodes: Sequence[NodeName], count: int) -> dict[NodeName, int]:
    """Spread `count` reservations evenly over random nodes: one each, or the mean, up or down."""
    # The paper assumes more nodes than reservations; small clusters need several on each.
    if count <= len(nodes):
        return dict.fromkeys(rng.sample(nodes, count), 1)
    share, more = divmod(count, len(nodes))
    return {node: share + (rank < more) for rank, node in enumerate(rng.sample(nodes, len(nodes)))}


def choose_preferred(
    rng: Random, candidates: Sequence[NodeName], probe_ratio: float
) -> tuple[list[NodeName], list[NodeName]]:
    """Split a task's candidates into up to ceil(d) random ones to reserve on, and the rest."""
    shuffled = rng.sample(candidates, len(candidates))
    count = reservation_count(1, probe_ratio)
    return shuffled[:count], shuffled[count:]


def without(nodes: Sequence[NodeName], avoid: Collection[NodeName]) -> Sequence[NodeName]:
    """The nodes except those to avoid, or all nodes if none would remain."""
    if not avoid:
        return nodes
    return [node for node in nodes if node not in avoid] or nodes
