"""Baselines of Sparrow's papers that bind each task to a node when its job is placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from sparrow_core.policy import sampling as policy
from sparrow_core.policy.early_binding import BoundPlacer
from sparrow_core.policy.placer import PlacedJob, Placement, Placer, live_preferred
from sparrow_core.protocol.ids import NodeName, TaskId
from sparrow_core.protocol.types import TaskSpec


class PerTaskPlacement(Placement):
    """Per-task sampling: each task is bound to the least loaded of d probed nodes of its own."""

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return PerTaskPlacer(rng, job.probe_ratio)


class BatchPlacement(Placement):
    """Batch sampling without late binding: the m tasks go to the m least loaded of d*m nodes."""

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return BatchPlacer(rng, job.probe_ratio)


class BatchFillingPlacement(Placement):
    """Batch filling: each task to the least loaded of d*m nodes, counting those placed before."""

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return BatchFillingPlacer(rng, job.probe_ratio)


class RoundRobinPlacement(Placement):
    """Round robin: a job's tasks are dealt evenly to nodes in random order, without probes.

    Unlike under random placement, tasks of a job do not collide; but like it, this ignores the
    queues of other jobs.
    """

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return RoundRobinPlacer(rng, job.probe_ratio)


class PerTaskPlacer(BoundPlacer):
    """Binds each task to the least loaded of its own probed nodes, whatever other tasks do."""

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        super().__init__(rng, probe_ratio)
        self._probed: dict[TaskId, Sequence[NodeName]] = {}
        self._loads: dict[NodeName, int] = {}
        self._dealt: Counter[NodeName] = Counter()  # tasks of this job, by node

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        """All nodes that a task may go to."""
        alive = dict.fromkeys(nodes)
        preferred = [(task.task_id, live_preferred(task, alive)) for task in tasks]
        self._probed = self._sample(preferred, nodes)
        return tuple(dict.fromkeys(node for probed in self._probed.values() for node in probed))

    def _sample(
        self, tasks: Sequence[tuple[TaskId, Sequence[NodeName]]], nodes: Sequence[NodeName]
    ) -> dict[TaskId, Sequence[NodeName]]:
        """The nodes to probe for each task, given those that it prefers."""
        count = policy.reservation_count(1, self._probe_ratio)
        return {
            task_id: self._rng.sample(preferred or nodes, min(count, len(preferred or nodes)))
            for task_id, preferred in tasks
        }

    def note_loads(self, loads: Mapping[NodeName, int]) -> None:
        """Nodes that did not answer in time are not chosen unless none has."""
        self._loads = dict(loads)

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        probed = [node for node in self._probed.get(task.task_id, ()) if node in self._loads]
        usable = dict.fromkeys(candidates)
        choices = [node for node in probed if node in usable]
        if not choices:  # nobody answered in time, or this is a retry that avoids them
            return self._rng.choice(candidates)
        node = min(choices, key=self._rank)
        self._dealt[node] += 1
        return node

    def _rank(self, node: NodeName) -> tuple[int, int]:
        """The least is chosen."""
        return 0, self._loads[node]


class BatchPlacer(PerTaskPlacer):
    """Binds one task to each of the least loaded nodes that are probed for the whole job."""

    def _sample(
        self, tasks: Sequence[tuple[TaskId, Sequence[NodeName]]], nodes: Sequence[NodeName]
    ) -> dict[TaskId, Sequence[NodeName]]:
        # Only unconstrained tasks can share their probes.
        free = [task_id for task_id, preferred in tasks if not preferred]
        count = policy.reservation_count(len(free), self._probe_ratio)
        shared = self._rng.sample(nodes, min(count, len(nodes)))
        sampled = super()._sample([task for task in tasks if task[1]], nodes)
        return {**sampled, **dict.fromkeys(free, shared)}

    def _rank(self, node: NodeName) -> tuple[int, int]:
        # With fewer nodes than tasks, each has a task before one has a second.
        return self._dealt[node], self._loads[node]


class BatchFillingPlacer(BatchPlacer):
    """Binds each task to the probed node whose queue, with the tasks so far, is shortest."""

    def _rank(self, node: NodeName) -> tuple[int, int]:
        return 0, self._loads[node] + self._dealt[node]


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
