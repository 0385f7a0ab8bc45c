"""Sparrow's placement: reservations without tasks, which are bound when a slot is free.

SOSP'13, section 3.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
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
from sparrow_core.protocol.errors import NoNodes
from sparrow_core.protocol.ids import NodeName, TaskId
from sparrow_core.protocol.types import TaskSpec


class LateBinding(Placement):
    """Late binding: the job's tasks share d*m reservations, a free slot takes the oldest task.

    The paper's batch sampling with late binding. Tasks with preferred nodes reserve on those
    only.
    """

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return late_binding_placer(job, rng, job.probe_ratio)


def late_binding_placer(job: PlacedJob, rng: Random, probe_ratio: float) -> Placer:
    """A placer that binds the job's tasks late, with the probe ratio that a placement chooses."""
    constrained = any(task.preferred_nodes for task in job.tasks)
    return (ConstrainedPlacer if constrained else UnconstrainedPlacer)(rng, probe_ratio)


class UnconstrainedPlacer(Placer):
    """Late binding without constraints: any reservation serves any of the tasks."""

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        count = policy.reservation_count(len(tasks), self._probe_ratio)
        return policy.spread_reservations(self._rng, policy.without(nodes, avoid), count)

    def take(self, node: NodeName, count: int) -> list[TaskSpec]:
        return pop_first(self.waiting, count)  # any node will do

    def offers(self, node: NodeName) -> bool:
        return bool(self.waiting)

    def node_lost(self, node: NodeName, held: int, nodes: Sequence[NodeName]) -> Reservations:
        return _move(self._rng, self.waiting, held, nodes)

    def node_joined(self, node: NodeName, nodes: int) -> Reservations:
        """The node's part of the reservations, as if the waiting tasks were placed now."""
        return _part(node, policy.reservation_count(len(self.waiting), self._probe_ratio), nodes)

    def refused(self, node: NodeName, count: int, nodes: Sequence[NodeName]) -> Reservations:
        others = [other for other in nodes if other != node]
        return _move(self._rng, self.waiting, count, others) if others else {}

    def covered(self, reserved: Reservations) -> bool:
        """One reservation for each waiting task, anywhere."""
        return sum(reserved.values()) >= len(self.waiting)


class ConstrainedPlacer(Placer):
    """Late binding with constraints: reservations per task, on nodes that it may run on.

    A reservation is not for one task, though: what the job has on a node serves any of its tasks
    that may run there. Each node has a list, in front the tasks that reserved there, behind them
    those that merely may run there. A node that asks takes from its list first, then from the
    pool of the job's unconstrained tasks.
    """

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        super().__init__(rng, probe_ratio)
        self._lists: dict[NodeName, deque[TaskId]] = {}
        self._reserved_on: dict[TaskId, list[NodeName]] = {}
        self._pool: OrderedDict[TaskId, TaskSpec] = OrderedDict()

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        alive = dict.fromkeys(nodes)
        # Decided for all tasks before any is listed: an Unsatisfiable must leave nothing behind.
        candidates = {
            task.task_id: policy.without(live_preferred(task, alive), avoid) for task in tasks
        }
        constrained = [task for task in tasks if candidates[task.task_id]]
        reservations: Counter[NodeName] = Counter()
        for task in tasks:
            self._unlist(task)
        # In random order, or the first tasks of every job would be in front everywhere.
        for task in self._rng.sample(constrained, len(constrained)):
            chosen, rest = policy.choose_preferred(
                self._rng, candidates[task.task_id], self._probe_ratio
            )
            self._reserve(task.task_id, chosen, reservations)
            # Behind the tasks that reserved there: if a slot is free and none of these waits,
            # the reservation is of use all the same.
            for node in rest:
                self._lists.setdefault(node, deque()).append(task.task_id)
        pool = [task for task in tasks if not candidates[task.task_id]]
        reservations.update(self._add_to_pool(pool, policy.without(nodes, avoid)))
        return reservations

    def _add_to_pool(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Reservations:
        """Let any node take these tasks."""
        if not tasks:
            return {}
        if not nodes:
            raise NoNodes("no live node is left")
        self._pool.update((task.task_id, task) for task in tasks)
        count = policy.reservation_count(len(tasks), self._probe_ratio)
        return policy.spread_reservations(self._rng, nodes, count)

    def widen(self, tasks: Sequence[TaskId], nodes: Sequence[NodeName]) -> Reservations:
        """Reserve for them like for unconstrained tasks, in addition."""
        late = [self.waiting[task_id] for task_id in tasks if task_id in self.waiting]
        return self._add_to_pool([task for task in late if task.task_id not in self._pool], nodes)

    def _reserve(
        self, task_id: TaskId, chosen: Sequence[NodeName], reservations: Counter[NodeName]
    ) -> None:
        for node in chosen:
            self._lists.setdefault(node, deque()).appendleft(task_id)
            self._reserved_on.setdefault(task_id, []).append(node)
            reservations[node] += 1

    def _unlist(self, task: TaskSpec) -> None:
        """Forget the places of an earlier attempt, so that the task can avoid them."""
        if self._reserved_on.pop(task.task_id, None) is not None:
            for node in map(NodeName, task.preferred_nodes):
                listed = self._lists.get(node, ())
                self._lists[node] = deque(other for other in listed if other != task.task_id)

    def take(self, node: NodeName, count: int) -> list[TaskSpec]:
        """Bind tasks that prefer the node, then unconstrained ones."""
        taken: list[TaskSpec] = []
        while len(taken) < count and (task_id := self._first_of(node)) is not None:
            self._lists[node].popleft()
            self._pool.pop(task_id, None)  # in both since it was widened
            taken.append(self.waiting.pop(task_id))
        pooled = pop_first(self._pool, count - len(taken))
        return taken + [self.waiting.pop(task.task_id) for task in pooled]

    def _first_of(self, node: NodeName) -> TaskId | None:
        """The first task of the node's list that still waits; drops the others before it."""
        listed = self._lists.get(node)
        # A task is on several lists, and removed from the others only now: bound tasks would
        # else have to be searched on each.
        while listed and listed[0] not in self.waiting:
            listed.popleft()
        return listed[0] if listed else None

    def withdraw(self, task_id: TaskId) -> None:
        super().withdraw(task_id)
        self._pool.pop(task_id, None)

    def offers(self, node: NodeName) -> bool:
        return bool(self._pool) or self._first_of(node) is not None

    def node_lost(self, node: NodeName, held: int, nodes: Sequence[NodeName]) -> Reservations:
        """Reserve on another preferred node for each task that had reserved on the dead one."""
        listed = dict.fromkeys(self._lists.pop(node, ()))
        tasks = [self.waiting[task_id] for task_id in listed if task_id in self.waiting]
        alive = dict.fromkeys(nodes)
        choices = {task.task_id: live_preferred(task, alive) for task in tasks}
        reservations: Counter[NodeName] = Counter()
        for task_id, candidates in choices.items():
            reserved_on = self._reserved_on[task_id]
            if node in reserved_on:  # else it was merely listed there
                reserved_on.remove(node)
                fresh = [other for other in candidates if other not in reserved_on]
                self._reserve(task_id, fresh and [self._rng.choice(fresh)], reservations)
        reservations.update(_move(self._rng, self._pool, held, nodes))
        # Soft constraints: none of their nodes is alive, so any node will do.
        homeless = [task for task in tasks if not choices[task.task_id]]
        reservations.update(self.widen([task.task_id for task in homeless], nodes))
        return reservations

    def node_joined(self, node: NodeName, nodes: int) -> Reservations:
        """Its part of the pool's reservations, and one for each task that prefers it."""
        listed = dict.fromkeys(self._lists.get(node, ()))
        late = [
            task_id
            for task_id, task in self.waiting.items()
            if node in task.preferred_nodes and task_id not in listed
        ]
        self._lists.setdefault(node, deque()).extend(late)
        for task_id in late:
            self._reserved_on.setdefault(task_id, []).append(node)
        pooled = policy.reservation_count(len(self._pool), self._probe_ratio)
        return +(Counter({node: len(late)}) + Counter(_part(node, pooled, nodes)))

    def covered(self, reserved: Reservations) -> bool:
        """As many reservations on a node as tasks that count on it, and enough in total."""
        fronts: Counter[NodeName] = Counter()
        for task_id in self.waiting:
            fronts.update(self._reserved_on.get(task_id, ()))
        return sum(reserved.values()) >= len(self.waiting) and all(
            reserved.get(node, 0) >= count for node, count in fronts.items()
        )


def _part(node: NodeName, reservations: int, nodes: int) -> dict[NodeName, int]:
    """One node's part of reservations that are spread over all."""
    return {node: -(-reservations // nodes)} if reservations else {}


def _move(
    rng: Random, waiting: Mapping[TaskId, TaskSpec], held: int, nodes: Sequence[NodeName]
) -> Reservations:
    if not waiting or not held:
        return {}
    if not nodes:
        raise NoNodes("no live node is left")
    return policy.spread_reservations(rng, nodes, held)
