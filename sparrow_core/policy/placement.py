"""Placers: which tasks of one job wait, and which of them a node that asks is given.

A placer is made for each job and owns the job's *waiting* tasks; a task leaves it when a node
takes it (late binding) and comes back by `place` if its attempt is lost. Every method that returns
reservations means "send these, in addition".

Invariant, which makes hanging impossible: a node that holds a reservation and asks is given a task
whenever one may run there, and each waiting task is at the front of the list of a node that holds
at least as many reservations as there are tasks in front.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

from sparrow_core.policy import sampling as policy
from sparrow_core.protocol.errors import InvalidJob, NoNodes, Unsatisfiable
from sparrow_core.protocol.ids import NodeName, TaskId
from sparrow_core.protocol.types import TaskSpec

Reservations = Mapping[NodeName, int]


class Placer(ABC):
    """The waiting tasks of one job."""

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        """Start with no task; `rng` decides where reservations go."""
        self.waiting: OrderedDict[TaskId, TaskSpec] = OrderedDict()
        self._rng = rng
        self._probe_ratio = probe_ratio

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        """Nodes whose load is to be known before these tasks are placed. Raises as `place` does."""
        del tasks, nodes  # late binding needs no load
        return ()

    def note_loads(self, loads: Mapping[NodeName, int]) -> None:
        """The loads of the probed nodes that answered in time."""
        del loads  # late binding needs none

    def place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName] = ()
    ) -> Reservations:
        """Let tasks wait, and reserve for them on live `nodes`, others than `avoid` if possible.

        Raises:
            NoNodes: There is no live node.
            Unsatisfiable: A task must run on nodes that are not alive.
        """
        if not nodes:
            raise NoNodes("no live node is left")
        reservations = self._place(tasks, nodes, avoid)
        self.waiting.update((task.task_id, task) for task in tasks)
        return reservations

    def widen(self, tasks: Sequence[TaskId], nodes: Sequence[NodeName]) -> Reservations:
        """These tasks, as far as they wait, may run anywhere from now on."""
        del tasks, nodes  # they may already, or are bound
        return {}

    def node_joined(self, node: NodeName, nodes: int) -> Reservations:
        """There is one more node, of now `nodes`, on which tasks that wait may run."""
        del node, nodes  # tasks that are bound stay where they are
        return {}

    def refused(self, node: NodeName, count: int, nodes: Sequence[NodeName]) -> Reservations:
        """A node's queue was too full for `count` reservations: reserve elsewhere.

        Nothing, if only that node will do; the scheduler then tries it again.
        """
        del node, count, nodes
        return {}

    def withdraw(self, task_id: TaskId) -> None:
        """The task needs no placing any more."""
        self.waiting.pop(task_id, None)

    @abstractmethod
    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations: ...

    @abstractmethod
    def take(self, node: NodeName, count: int) -> list[TaskSpec]:
        """Bind up to `count` waiting tasks to the node that asks."""

    @abstractmethod
    def offers(self, node: NodeName) -> bool:
        """True if a waiting task could be bound to the node now."""

    @abstractmethod
    def node_lost(self, node: NodeName, held: int, nodes: Sequence[NodeName]) -> Reservations:
        """The node died with `held` reservations: reserve elsewhere. Raises as `place` does."""

    @abstractmethod
    def covered(self, reserved: Reservations) -> bool:
        """True if these outstanding reservations suffice to place every waiting task."""


class UnconstrainedPlacer(Placer):
    """Batch sampling: any node may take any task, the first that asks takes the oldest."""

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        count = policy.reservation_count(len(tasks), self._probe_ratio)
        return policy.spread_reservations(self._rng, policy.without(nodes, avoid), count)

    def take(self, node: NodeName, count: int) -> list[TaskSpec]:
        """Bind the oldest waiting tasks."""
        del node  # any will do
        return _pop_first(self.waiting, count)

    def offers(self, node: NodeName) -> bool:
        """Any waiting task will do, on any node."""
        del node
        return bool(self.waiting)

    def node_lost(self, node: NodeName, held: int, nodes: Sequence[NodeName]) -> Reservations:
        """Move the node's reservations to other nodes."""
        del node
        return _move(self._rng, self.waiting, held, nodes)

    def node_joined(self, node: NodeName, nodes: int) -> Reservations:
        """The node's part of the reservations, as if the waiting tasks were placed now."""
        return _part(node, policy.reservation_count(len(self.waiting), self._probe_ratio), nodes)

    def refused(self, node: NodeName, count: int, nodes: Sequence[NodeName]) -> Reservations:
        """Move the reservations to other nodes, if there are any."""
        others = [other for other in nodes if other != node]
        return _move(self._rng, self.waiting, count, others) if others else {}

    def covered(self, reserved: Reservations) -> bool:
        """One reservation for each waiting task, anywhere."""
        return sum(reserved.values()) >= len(self.waiting)


class ConstrainedPlacer(Placer):
    """Per-task sampling that shares what it learns across the tasks of the job.

    A node's list has in front the tasks that reserved there, then those that merely could run
    there. A node that asks takes from its list first, then from the pool of the job's
    unconstrained tasks.
    """

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        """Start with no task."""
        super().__init__(rng, probe_ratio)
        self._lists: dict[NodeName, deque[TaskId]] = {}
        self._reserved_on: dict[TaskId, list[NodeName]] = {}
        self._pool: OrderedDict[TaskId, TaskSpec] = OrderedDict()

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        alive = dict.fromkeys(nodes)
        candidates = {task.task_id: policy.without(_alive(task, alive), avoid) for task in tasks}
        constrained = [task for task in tasks if candidates[task.task_id]]
        reservations: Counter[NodeName] = Counter()
        for task in tasks:
            self._unlist(task)
        for task in self._rng.sample(constrained, len(constrained)):
            chosen, rest = policy.choose_preferred(
                self._rng, candidates[task.task_id], self._probe_ratio
            )
            self._reserve(task.task_id, chosen, reservations)
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
        while len(taken) < count and (own := self._first_of(node)) is not None:
            self._lists[node].popleft()
            self._pool.pop(own, None)
            taken.append(self.waiting.pop(own))
        pooled = _pop_first(self._pool, count - len(taken))
        return taken + [self.waiting.pop(task.task_id) for task in pooled]

    def _first_of(self, node: NodeName) -> TaskId | None:
        """The first task of the node's list that still waits; drops the others before it."""
        listed = self._lists.get(node)
        while listed and listed[0] not in self.waiting:
            listed.popleft()
        return listed[0] if listed else None

    def withdraw(self, task_id: TaskId) -> None:
        """The task needs no placing any more."""
        super().withdraw(task_id)
        self._pool.pop(task_id, None)

    def offers(self, node: NodeName) -> bool:
        """A task that may run on the node waits."""
        return bool(self._pool) or self._first_of(node) is not None

    def node_lost(self, node: NodeName, held: int, nodes: Sequence[NodeName]) -> Reservations:
        """Reserve on another preferred node for each task that had reserved on the dead one."""
        listed = dict.fromkeys(self._lists.pop(node, ()))
        tasks = [self.waiting[task_id] for task_id in listed if task_id in self.waiting]
        alive = dict.fromkeys(nodes)
        choices = {task.task_id: _alive(task, alive) for task in tasks}
        reservations: Counter[NodeName] = Counter()
        for task_id, candidates in choices.items():
            reserved_on = self._reserved_on[task_id]
            if node in reserved_on:
                reserved_on.remove(node)
                fresh = [other for other in candidates if other not in reserved_on]
                self._reserve(task_id, fresh and [self._rng.choice(fresh)], reservations)
        reservations.update(_move(self._rng, self._pool, held, nodes))
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


class BoundPlacer(Placer):
    """The baselines: each task is bound to one node as soon as it is placed."""

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        """Start with no task."""
        super().__init__(rng, probe_ratio)
        self._bound: dict[NodeName, OrderedDict[TaskId, TaskSpec]] = {}

    @abstractmethod
    def _choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName: ...

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        alive = dict.fromkeys(nodes)
        choices = [_alive(task, alive) or nodes for task in tasks]
        reservations: Counter[NodeName] = Counter()
        for task, candidates in zip(tasks, choices, strict=True):
            node = self._choose(task, policy.without(candidates, avoid))
            self._bound.setdefault(node, OrderedDict())[task.task_id] = task
            reservations[node] += 1
        return reservations

    def take(self, node: NodeName, count: int) -> list[TaskSpec]:
        """Hand over the oldest tasks that are bound to the node."""
        taken = _pop_first(self._bound.get(node, OrderedDict()), count)
        for task in taken:
            del self.waiting[task.task_id]
        return taken

    def withdraw(self, task_id: TaskId) -> None:
        """The task needs no placing any more."""
        super().withdraw(task_id)
        for bound in self._bound.values():
            bound.pop(task_id, None)

    def offers(self, node: NodeName) -> bool:
        """A task is bound to the node and waits."""
        return bool(self._bound.get(node))

    def node_lost(self, node: NodeName, held: int, nodes: Sequence[NodeName]) -> Reservations:
        """Bind the node's tasks to other nodes."""
        del held  # as many as tasks bound to the node
        bound = self._bound.pop(node, OrderedDict())
        return self.place(tuple(bound.values()), nodes) if bound else {}

    def covered(self, reserved: Reservations) -> bool:
        """Each node holds a reservation for each task that is bound to it."""
        return all(reserved.get(node, 0) >= len(bound) for node, bound in self._bound.items())


class RandomPlacer(BoundPlacer):
    """Each task on one uniformly random node."""

    def _choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        del task
        return self._rng.choice(candidates)


class PerTaskPlacer(BoundPlacer):
    """The power of d choices: each task goes to the least loaded of d probed nodes of its own."""

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        """Start with no task and no load known."""
        super().__init__(rng, probe_ratio)
        self._probed: dict[TaskId, Sequence[NodeName]] = {}
        self._loads: dict[NodeName, int] = {}

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        """All nodes that a task may go to."""
        alive = dict.fromkeys(nodes)
        self._probed = self._sample([(task.task_id, _alive(task, alive)) for task in tasks], nodes)
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
        """A node that did not answer in time is taken for the most loaded."""
        self._loads = dict(loads)

    def _choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        probed = [node for node in self._probed.get(task.task_id, ()) if node in self._loads]
        usable = dict.fromkeys(candidates)
        choices = [node for node in probed if node in usable]
        if not choices:
            return self._rng.choice(candidates)
        node = min(choices, key=self._loads.__getitem__)
        self._loads[node] += 1
        return node


class BatchPlacer(PerTaskPlacer):
    """Batch sampling by queue length: the tasks of a job share the d*m nodes that are probed."""

    def _sample(
        self, tasks: Sequence[tuple[TaskId, Sequence[NodeName]]], nodes: Sequence[NodeName]
    ) -> dict[TaskId, Sequence[NodeName]]:
        free = [task_id for task_id, preferred in tasks if not preferred]
        count = policy.reservation_count(len(free), self._probe_ratio)
        shared = self._rng.sample(nodes, min(count, len(nodes)))
        own = super()._sample([each for each in tasks if each[1]], nodes)
        return {**own, **dict.fromkeys(free, shared)}


def _pop_first(tasks: OrderedDict[TaskId, TaskSpec], count: int) -> list[TaskSpec]:
    """An OrderedDict, because a plain dict takes long to find its first after many pops."""
    popped: list[TaskSpec] = []
    while tasks and len(popped) < count:
        popped.append(tasks.popitem(last=False)[1])
    return popped


def _alive(task: TaskSpec, alive: Mapping[NodeName, None]) -> Sequence[NodeName]:
    """The live nodes that the task prefers; none means that any node will do."""
    preferred = dict.fromkeys(map(NodeName, task.preferred_nodes))
    nodes = [node for node in preferred if node in alive]
    if preferred and not nodes and task.wait_s is None:
        wanted = ", ".join(preferred)
        raise Unsatisfiable(f"task {task.task_id} may run only on {wanted}: unknown or dead")
    return nodes


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


def _sparrow(rng: Random, probe_ratio: float, tasks: Sequence[TaskSpec]) -> Placer:
    constrained = any(task.preferred_nodes for task in tasks)
    return (ConstrainedPlacer if constrained else UnconstrainedPlacer)(rng, probe_ratio)


PLACEMENTS: dict[str, Callable[[Random, float, Sequence[TaskSpec]], Placer]] = {
    "sparrow": _sparrow,
    "batch": lambda rng, probe_ratio, _: BatchPlacer(rng, probe_ratio),
    "per_task": lambda rng, probe_ratio, _: PerTaskPlacer(rng, probe_ratio),
    "random": lambda rng, probe_ratio, _: RandomPlacer(rng, probe_ratio),
}


def check_placement(placement: str, probe_ratio: float, tasks: Sequence[TaskSpec]) -> None:
    """See whether there can be a placer for a job.

    Raises:
        InvalidJob: Unknown placement, probe ratio below 1 (tasks would be left without a
            reservation), or two tasks of one id.
    """
    if placement not in PLACEMENTS:
        raise InvalidJob(f"placement {placement!r} is none of {', '.join(PLACEMENTS)}")
    if not 1.0 <= probe_ratio <= 1000.0:
        raise InvalidJob(f"probe ratio {probe_ratio} is not between 1 and 1000")
    if len({task.task_id for task in tasks}) < len(tasks):
        raise InvalidJob("two tasks have the same id")


def make_placer(
    placement: str, rng: Random, probe_ratio: float, tasks: Sequence[TaskSpec]
) -> Placer:
    """The placer for a job.

    Raises:
        InvalidJob: As `check_placement` does.
    """
    check_placement(placement, probe_ratio, tasks)
    return PLACEMENTS[placement](rng, probe_ratio, tasks)
