"""A baseline without messages beyond the reservations themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from sparrow_core.policy.early_binding import BoundPlacer
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.types import TaskSpec


class RoundRobinPlacer(BoundPlacer):
    """Round robin: a job's tasks are dealt evenly to nodes in random order, without probes.

    What random placement loses because tasks of one job meet on a node, this does not; what it
    still loses is due to the queues of other jobs, of which it knows nothing.
    """

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        """Start with no task."""
        super().__init__(rng, probe_ratio)
        self._dealt: Counter[NodeName] = Counter()

    def _choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        del task
        least = min(self._dealt[node] for node in candidates)
        node = self._rng.choice([node for node in candidates if self._dealt[node] == least])
        self._dealt[node] += 1
        return node
