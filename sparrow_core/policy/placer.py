"""The contract of placers: which tasks of a job wait, and which of them a node that asks is given.

Each job has a placer of its own, which owns the job's *waiting* tasks: a task leaves it when a
node takes it and comes back by `place` if its attempt is lost. Every method that returns
reservations means "send these, in addition".

Invariant (`covered`), without which jobs could hang: a node that holds a reservation and asks is
given a task whenever one may run there, and the outstanding reservations suffice for all waiting
tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from random import Random

from sparrow_core.protocol.errors import NoNodes, Unsatisfiable
from sparrow_core.protocol.ids import NodeName, TaskId
from sparrow_core.protocol.types import TaskSpec

Reservations = Mapping[NodeName, int]


class Placer(ABC):
    """The waiting tasks of one job, and where reservations for them go."""

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        self.waiting: OrderedDict[TaskId, TaskSpec] = OrderedDict()
        self._rng = rng
        self._probe_ratio = probe_ratio

    @classmethod
    def for_job(cls, rng: Random, probe_ratio: float, tasks: Sequence[TaskSpec]) -> Placer:
        """The placer for a job with these tasks; none of them is placed yet."""
        del tasks  # most placers suit any
        return cls(rng, probe_ratio)

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        """Nodes to ask for their load before these tasks are placed. Raises as `place` does."""
        return ()  # late binding needs no load

    def note_loads(self, loads: Mapping[NodeName, int]) -> None:
        """The loads of the probed nodes that answered in time."""
        del loads

    def place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName] = ()
    ) -> Reservations:
        """Add waiting tasks, and reserve for them on live `nodes`, not on `avoid` if possible.

        NoNodes if there is none; Unsatisfiable if a task must run on nodes that are not alive.
        """
        if not nodes:
            raise NoNodes("no live node is left")
        reservations = self._place(tasks, nodes, avoid)
        self.waiting.update((task.task_id, task) for task in tasks)
        return reservations

    def widen(self, tasks: Sequence[TaskId], nodes: Sequence[NodeName]) -> Reservations:
        """Those of the tasks that still wait may run on any node from now on."""
        return {}  # they may already, or are bound to nodes

    def node_joined(self, node: NodeName, nodes: int) -> Reservations:
        """A node has joined; there are `nodes` of them now on which waiting tasks may run."""
        return {}  # bound tasks stay where they are

    def refused(self, node: NodeName, count: int, nodes: Sequence[NodeName]) -> Reservations:
        """A node's queue was too full for `count` reservations: reserve elsewhere.

        Returns nothing if only that node will do; the scheduler then tries it again.
        """
        return {}

    def withdraw(self, task_id: TaskId) -> None:
        """The task does not wait any more: a result of an earlier attempt has come."""
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


def pop_first(tasks: OrderedDict[TaskId, TaskSpec], count: int) -> list[TaskSpec]:
    """Remove up to `count` tasks, oldest first."""
    # An OrderedDict, because finding the first key of a plain dict is slow after many pops.
    popped: list[TaskSpec] = []
    while tasks and len(popped) < count:
        popped.append(tasks.popitem(last=False)[1])
    return popped


def live_preferred(task: TaskSpec, alive: Mapping[NodeName, None]) -> Sequence[NodeName]:
    """The live nodes that the task prefers; none means that any node will do.

    Unsatisfiable if the preference is a hard constraint, and none of the nodes is alive.
    """
    preferred = dict.fromkeys(map(NodeName, task.preferred_nodes))
    nodes = [node for node in preferred if node in alive]
    if preferred and not nodes and task.wait_s is None:
        wanted = ", ".join(preferred)
        raise Unsatisfiable(f"task {task.task_id} may run only on {wanted}: unknown or dead")
    return nodes
