"""Baselines that bind each task to a node when its job is placed."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from random import Random

from sparrow_core.policy import sampling as policy
from sparrow_core.policy.placer import (
    PlacedJob,
    Placement,
    Placer,
    Reservations,
    live_preferred,
    pop_first,
)
from sparrow_core.protocol.ids import NodeName, TaskId
from sparrow_core.protocol.types import TaskSpec


class BoundPlacer(Placer):
    """Each task is bound to one node as soon as it is placed; subclasses choose the node."""

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        super().__init__(rng, probe_ratio)
        # A reservation on a node stands for one of its bound tasks, whichever is oldest.
        self._bound: dict[NodeName, OrderedDict[TaskId, TaskSpec]] = {}

    @abstractmethod
    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        """The node for a task; the candidates are alive and satisfy what it prefers."""

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        alive = dict.fromkeys(nodes)
        # All choices before any task is bound: an Unsatisfiable must leave nothing behind.
        choices = [live_preferred(task, alive) or nodes for task in tasks]
        reservations: Counter[NodeName] = Counter()
        for task, candidates in zip(tasks, choices, strict=True):
            node = self.choose(task, policy.without(candidates, avoid))
            self._bound.setdefault(node, OrderedDict())[task.task_id] = task
            reservations[node] += 1
        return reservations

    def take(self, node: NodeName, count: int) -> list[TaskSpec]:
        taken = pop_first(self._bound.get(node, OrderedDict()), count)
        for task in taken:
            del self.waiting[task.task_id]
        return taken

    def withdraw(self, task_id: TaskId) -> None:
        super().withdraw(task_id)
        for bound in self._bound.values():
            bound.pop(task_id, None)

    def offers(self, node: NodeName) -> bool:
        return bool(self._bound.get(node))

    def node_lost(self, node: NodeName, held: int, nodes: Sequence[NodeName]) -> Reservations:
        # `held` is the number of tasks that are bound to the node.
        bound = self._bound.pop(node, OrderedDict())
        return self.place(tuple(bound.values()), nodes) if bound else {}

    def covered(self, reserved: Reservations) -> bool:
        """Each node holds a reservation for each task that is bound to it."""
        return all(reserved.get(node, 0) >= len(bound) for node, bound in self._bound.items())


class RandomPlacement(Placement):
    """Random: each task is bound to a uniformly random node."""

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return RandomPlacer(rng, job.probe_ratio)


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


class RandomPlacer(BoundPlacer):
    """Binds each task to a random node."""

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        return self._rng.choice(candidates)


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
