"""A baseline without messages beyond the reservations themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from sparrow_core.policy.early_binding import BoundPlacer
from sparrow_core.policy.placer import PlacedJob, Placement, Placer
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.types import TaskSpec


class RoundRobinPlacement(Placement):
    """Round robin: a job's tasks are dealt evenly to nodes in random order, without probes.

    Unlike under random placement, tasks of a job do not collide; but like it, this ignores the
    queues of other jobs.
    """

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return RoundRobinPlacer(rng, job.probe_ratio)


class RoundRobinPlacer(BoundPlacer):
    """Binds each task to a node that has been dealt the fewest of the job's tasks."""

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        super().__init__(rng, probe_ratio)
        self._dealt: Counter[NodeName] = Counter()

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        least = min(self._dealt[node] for node in candidates)
        node = self._rng.choice([node for node in candidates if self._dealt[node] == least])
        self._dealt[node] += 1
        return node
