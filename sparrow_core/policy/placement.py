"""The registry of placements. All that knows a placement by name derives from it.

A new one is a `Placer` and an entry here: validation, the options and help texts of `sparrow` and
`minishark`, `connect(placement=...)`, the simulator and docs/sparrow.md follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from sparrow_core.policy.early_binding import BatchPlacer, PerTaskPlacer, RandomPlacer
from sparrow_core.policy.late_binding import UnconstrainedPlacer
from sparrow_core.policy.placer import Placer
from sparrow_core.policy.round_robin import RoundRobinPlacer
from sparrow_core.protocol.errors import InvalidJob
from sparrow_core.protocol.types import TaskSpec

PLACEMENTS: Final[dict[str, type[Placer]]] = {
    "sparrow": UnconstrainedPlacer,
    "batch": BatchPlacer,
    "per_task": PerTaskPlacer,
    "random": RandomPlacer,
    "round_robin": RoundRobinPlacer,
}
DEFAULT_PLACEMENT: Final = "sparrow"
_PROBE_RATIO_MAX = 1000.0


def check_placement(placement: str, probe_ratio: float, tasks: Sequence[TaskSpec] = ()) -> None:
    """Raise InvalidJob if there can be no placer for a job."""
    # With a probe ratio below 1, tasks would be left without a reservation.
    if placement not in PLACEMENTS:
        raise InvalidJob(f"placement {placement!r} is none of {', '.join(PLACEMENTS)}")
    if not 1.0 <= probe_ratio <= _PROBE_RATIO_MAX:
        raise InvalidJob(f"probe ratio {probe_ratio} is not between 1 and {_PROBE_RATIO_MAX:g}")
    if len({task.task_id for task in tasks}) < len(tasks):
        raise InvalidJob("two tasks have the same id")


def make_placer(
    placement: str, rng: Random, probe_ratio: float, tasks: Sequence[TaskSpec]
) -> Placer:
    """The placer for a job; raises as `check_placement` does."""
    check_placement(placement, probe_ratio, tasks)
    return PLACEMENTS[placement].for_job(rng, probe_ratio, tasks)
