"""The contract of placement policies, built-in ones and plug-ins alike (docs/policies.md).

A `Placement` is a scheduler's: it makes a placer for each job, and may remember what the scheduler
sees. A `Placer` is a job's: it says which tasks wait, and which of them a node that asks is given.
It owns the job's *waiting* tasks: a task leaves it when a node takes it and comes back by `place`
if its attempt is lost. Every method that returns reservations means "send these, in addition".

Invariant (`covered`), without which jobs could hang: a node that holds a reservation and asks is
given a task whenever one may run there, and the outstanding reservations suffice for all waiting
tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

from sparrow_core.protocol.errors import NoNodes, Unsatisfiable
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.types import JobOptions, NodeLevel, TaskSpec

Reservations = Mapping[NodeName, int]


class PlacedJob(Protocol):
    """What placements see of a job."""

    @property
    def job_id(self) -> JobId: ...
    @property
    def user(self) -> str: ...
    @property
    def tasks(self) -> tuple[TaskSpec, ...]: ...
    @property
    def probe_ratio(self) -> float: ...
    @property
    def options(self) -> JobOptions: ...


class Watcher:
    """What a placement may override to learn what its scheduler sees, of jobs of any placement.

    `now` is in seconds, on a clock that only goes forward. The methods run in the scheduler's
    loop: they must be fast, and must not block.
    """

    def on_job(self, job: PlacedJob, now: float) -> None:
        """A job has come; its placer is asked for next if it is under this placement."""

    def on_reserved(self, job: PlacedJob, reservations: Reservations, now: float) -> None:
        """Reservations were sent."""

    def on_load(self, node: NodeName, load: int, now: float) -> None:
        """A probed node answered: its queue length, or minus its free slots; perhaps too late."""

    def on_asked(
        self, node: NodeName, job: PlacedJob, tasks: Sequence[TaskSpec], now: float
    ) -> None:
        """A node had free slots and asked for tasks of the job; it was given these, if any."""

    def on_finished(self, node: NodeName, job: PlacedJob, took_s: float, now: float) -> None:
        """A task has finished `took_s` after it was bound to the node.

        Nodes report that with their next request or heartbeat, which may be later.
        """

    def on_heartbeat(
        self, node: NodeName, load: int, running: Mapping[JobId, float], now: float
    ) -> None:
        """A node has this many reservations and running tasks, of any scheduler.

        `running` has the jobs (of any scheduler) of the tasks that have run longer than the
        interval of heartbeats, each with its longest time in seconds.
        """

    def on_node_lost(self, node: NodeName, now: float) -> None:
        """A node has left, or died."""

    def on_level(self, node: NodeName, level: NodeLevel, now: float) -> None:
        """A node has told its level, because a placer `wants_levels`.

        With a request for tasks, and before `on_asked`: as if the slots that it asks for were still
        free. Or when it has fallen idle.
        """

    def notes(self, peers: int, now: float) -> bytes:
        """What to tell the same placement of the `peers` other schedulers now; b"" for nothing.

        Asked whenever the scheduler has reserved, or has heard from a node, and every half second:
        a placement that always has something to tell costs more messages than it saves.
        """
        return b""

    def on_notes(self, notes: bytes, now: float) -> None:
        """What the same placement of another scheduler tells: perhaps late, twice, or never."""


HOOKS = tuple(name for name in vars(Watcher) if name.startswith("on_"))
"""What a scheduler tells placements."""


class Placement(Watcher, ABC):
    """A placement policy of one scheduler: makes a placer for each job, and may remember.

    A scheduler makes one object of each placement when a job first names it, and keeps it: what it
    remembers lasts from job to job, and the methods `on_...` tell it what the scheduler sees from
    then on. Each scheduler has its own; they may tell each other something (`notes`).
    """

    @abstractmethod
    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        """The placer of a job of which no task is placed yet; all that is random is from `rng`."""


class Placer(ABC):
    """The waiting tasks of one job, and where reservations for them go."""

    # Whether the tasks are placed only when the probed nodes have answered, or `probe_wait_s` has
    # passed. Otherwise, they are placed at once, and the answers are for `Placement.on_load`.
    waits_for_loads = True
    # Whether nodes tell their levels (`Watcher.on_level`): a message more whenever one falls idle
    # after a task of the job.
    wants_levels = False
    # Whether the job reserves on a node of which its scheduler hears that it has fallen idle, if it
    # is the oldest that waits: in place of stealing, for which nodes would ask each other.
    uses_idle = False

    def __init__(self, rng: Random, probe_ratio: float) -> None:
        self.waiting: OrderedDict[TaskId, TaskSpec] = OrderedDict()
        self._rng = rng
        self._probe_ratio = probe_ratio

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        """Nodes to ask for their load when these tasks are placed. Raises as `place` does."""
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
