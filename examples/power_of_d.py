"""A placement policy of your own: power of d choices, with memory of where it was quiet.

    python examples/power_of_d.py                                      # simulated, beside others
    python -m minishark_lab.simulator --placement power_of_d:PowerOfD  # this folder on PYTHONPATH
    minishark.connect(placement="power_of_d:PowerOfD")                 # live

Each job probes d nodes per task for their load, as `batch` does. What is new is the memory: the
scheduler remembers the quietest nodes that its last jobs saw, and they compete with those that are
probed now. After Mitzenmacher, Prabhakar and Shah, *Load balancing with memory* (FOCS 2002).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from random import Random

from sparrow_core import BoundPlacer, NodeName, PlacedJob, Placement, Placer, TaskSpec
from sparrow_core.policy.sampling import reservation_count

REMEMBERED = 20  # nodes


class PowerOfD(Placement):
    """Power of d choices with memory: the least loaded of the probed and remembered nodes."""

    def __init__(self) -> None:
        self.loads: dict[NodeName, int] = {}  # as last heard; below 0: free slots

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        """Each job gets a placer of its own; all of them share the memory."""
        return _Choices(rng, job.probe_ratio, self.loads)

    def on_load(self, node: NodeName, load: int, now: float) -> None:
        """A probed node has answered."""
        self.loads[node] = load

    def on_asked(
        self, node: NodeName, job: PlacedJob, tasks: Sequence[TaskSpec], now: float
    ) -> None:
        """A node has free slots, which it is not given work for: worth remembering."""
        if not tasks:
            self.loads[node] = -1

    def on_node_lost(self, node: NodeName, now: float) -> None:
        """Forget the dead."""
        self.loads.pop(node, None)


class _Choices(BoundPlacer):
    """Binds each task of one job to the least loaded node that is known."""

    def __init__(self, rng: Random, probe_ratio: float, loads: dict[NodeName, int]) -> None:
        super().__init__(rng, probe_ratio)
        self._loads = loads

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        """The scheduler asks these nodes for their load, and places the tasks then."""
        count = min(len(nodes), reservation_count(len(tasks), self._probe_ratio))
        return self._rng.sample(nodes, count)

    def note_loads(self, loads: Mapping[NodeName, int]) -> None:
        """The probed are known exactly now; of the others, only those that had free slots count."""
        quiet = [node for node in self._loads if node not in loads and self._loads[node] < 0]
        kept = {node: self._loads[node] for node in quiet[-REMEMBERED:]}
        self._loads.clear()
        self._loads.update(kept | dict(loads))

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        """The candidates are alive, and the task may run there."""
        usable = dict.fromkeys(candidates)
        known = [node for node in self._loads if node in usable]
        node = min(known, key=self._loads.__getitem__) if known else self._rng.choice(candidates)
        self._loads[node] = self._loads.get(node, 0) + 1  # or all tasks would go there
        return node


def main() -> None:
    """Simulate 100 nodes of 4 slots at 80 % load, under this placement and others."""
    from minishark_lab.simulator.workload import Workload, percentile, response_times_s

    for placement in ("random", "batch", "power_of_d:PowerOfD", "sparrow"):
        workload = Workload(load=0.8, jobs=400, placement=placement)
        times_s = response_times_s(workload, nodes=100, slots=4, schedulers=2, seed=1)
        median_ms, p95_ms = (1000 * percentile(times_s, each) for each in (50, 95))
        line = f"{placement:22} median {median_ms:6.1f} ms   95th percentile {p95_ms:6.1f} ms\n"
        sys.stdout.write(line)


if __name__ == "__main__":
    main()
