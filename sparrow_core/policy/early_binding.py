"""Placers that bind each task to a node when its job is placed; a baseline, at random."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Sequence
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


class RandomPlacer(BoundPlacer):
    """Binds each task to a random node."""

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        return self._rng.choice(candidates)
