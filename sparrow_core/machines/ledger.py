"""What a scheduler knows: nodes, open jobs, and which node should have what of which job.

Bookkeeping only: nothing here sends a message or decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from sparrow_core.policy.placement import Placer
from sparrow_core.protocol.ids import Address, JobId, NodeName, TaskId
from sparrow_core.protocol.messages import SubmitJob
from sparrow_core.protocol.types import (
    Assignment,
    Claim,
    ExecutorInfo,
    JobOptions,
    NodeInfo,
    PlacementStep,
    StepKind,
    TaskSpec,
)


@dataclass(slots=True)
class Held:
    """Reservations of a job that a node should hold; `at` is when the last were sent."""

    count: int
    at: float


class Trail:
    """The steps of a job's placement, for a job that is to be explained."""

    def __init__(self, began_at: float) -> None:
        """Begin, when the scheduler had the job."""
        self.steps: list[PlacementStep] = []
        self._began_at = began_at

    def add(
        self, now: float, node: NodeName, what: StepKind, count: int, tasks: tuple[TaskId, ...] = ()
    ) -> None:
        """Note a step that is taken now."""
        self.steps.append(PlacementStep(now - self._began_at, node, what, count, tasks))

    def take(self) -> tuple[PlacementStep, ...]:
        """The steps since they were last taken."""
        steps, self.steps = self.steps, []
        return tuple(steps)


class Running(Struct, gc=False):
    """Where a task runs, since when. One is made for each task, so it is cheap."""

    node: NodeName
    attempt: int
    at: float


@dataclass(slots=True)
class Node:
    """A live node; `frameworks` are those of all executors that it ever had."""

    address: Address
    heard_at: float
    executors: tuple[ExecutorInfo, ...] = ()
    attributes: tuple[str, ...] = ()
    draining: bool = False
    load: tuple[int, int] = (0, 0)
    deaths: int = 0
    last_death: str = ""
    frameworks: dict[str, None] = field(default_factory=dict)
    jobs: dict[JobId, None] = field(default_factory=dict)  # that may hold something there


def _info(name: NodeName, node: Node) -> NodeInfo:
    return NodeInfo(
        name, node.executors, node.attributes, node.draining, *node.load, node.address,
        node.deaths, node.last_death,
    )  # fmt: skip


@dataclass(slots=True)
class Job:
    """An open job: its tasks wait (in the placer), run, or have finished.

    `served_at` is when there last was an executor for it.
    """

    submit: SubmitJob
    tasks: dict[TaskId, TaskSpec]
    placer: Placer
    heard_at: float
    served_at: float
    running: dict[TaskId, Running] = field(default_factory=dict)
    running_on: dict[NodeName, dict[TaskId, None]] = field(default_factory=dict)
    finished: dict[TaskId, None] = field(default_factory=dict)
    stories: dict[TaskId, list[str]] = field(default_factory=dict)  # one entry per lost attempt
    reserved: dict[NodeName, Held] = field(default_factory=dict)
    shared_on: dict[NodeName, None] = field(default_factory=dict)
    nodes: dict[NodeName, None] = field(default_factory=dict)  # that may hold something of it
    cancelled_on: dict[NodeName, None] = field(default_factory=dict)  # told: nothing for you
    refusals: int = 0
    trail: Trail | None = None

    @property
    def job_id(self) -> JobId:
        """Of the submission."""
        return self.submit.job_id

    @property
    def claim(self) -> Claim:
        """What queue disciplines may know of the job now."""
        options = self.submit.options
        return Claim(
            self.submit.user, options.framework, options.priority, options.task_s,
            len(self.placer.waiting),
        )  # fmt: skip

    @property
    def story(self) -> tuple[str, ...]:
        """All that went wrong with tasks of the job."""
        return tuple(line for lines in self.stories.values() for line in lines)


class Ledger:
    """The nodes and open jobs of a scheduler, with indexes both ways."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.nodes: dict[NodeName, Node] = {}
        self.jobs: dict[JobId, Job] = {}
        self._eligible: dict[tuple[str, tuple[str, ...]], list[NodeName]] = {}

    # --- nodes ---------------------------------------------------------------------------------

    def update_node(
        self, node: Node, executors: tuple[ExecutorInfo, ...],
        attributes: tuple[str, ...], draining: bool,
    ) -> bool:  # fmt: skip
        """Note what a heartbeat says; True if that may make the node eligible for more jobs."""
        frameworks = dict.fromkeys(executor.framework for executor in executors)
        new = frameworks.keys() - node.frameworks.keys()
        changed = bool(new) or (node.attributes, node.draining) != (attributes, draining)
        node.executors, node.attributes, node.draining = executors, attributes, draining
        node.frameworks.update(frameworks)
        if changed:
            self.eligibility_changed()
        return changed

    def eligibility_changed(self) -> None:
        """Some node may be eligible for other jobs than before."""
        self._eligible.clear()

    def remove_node(self, name: NodeName) -> None:
        """The node is gone."""
        assert not any(self.running_on(name))
        del self.nodes[name]
        self.eligibility_changed()

    def eligible(self, options: JobOptions) -> list[NodeName]:
        """The nodes on which a job may be placed: attributes, framework, and not draining."""
        key = (options.framework, options.requires)
        if key not in self._eligible:
            self._eligible[key] = [
                name
                for name, node in self.nodes.items()
                if options.framework in node.frameworks
                and not node.draining
                and all(attribute in node.attributes for attribute in options.requires)
            ]
        return self._eligible[key]

    def is_empty(self) -> bool:
        """Whether no node has, or had, an executor."""
        return not any(node.frameworks for node in self.nodes.values())

    def node_infos(self) -> tuple[NodeInfo, ...]:
        """All live nodes."""
        return tuple(_info(name, node) for name, node in self.nodes.items())

    # --- what a node has of a job --------------------------------------------------------------

    def tie(self, job: Job, node: NodeName) -> None:
        """Remember that the node may hold something of the job."""
        job.nodes[node] = None
        self.nodes[node].jobs[job.job_id] = None

    def hold(self, job: Job, node: NodeName, count: int, now: float) -> None:
        """The node is sent `count` more reservations."""
        held = job.reserved.setdefault(node, Held(0, now))
        held.count += count
        held.at = now
        job.cancelled_on.pop(node, None)
        self.tie(job, node)

    @staticmethod
    def consume(job: Job, node: NodeName, count: int) -> None:
        """The node has `count` reservations less, of those that we know."""
        held = job.reserved.get(node)
        if held is not None:
            held.count -= count
            if held.count <= 0:
                del job.reserved[node]

    def bind(
        self, job: Job, tasks: Iterable[TaskSpec], node: NodeName, now: float
    ) -> list[Assignment]:
        """The tasks run on the node from now on; as which attempts."""
        here = job.running_on.setdefault(node, {})
        assignments = []
        for task in tasks:
            task_id = task.task_id
            attempt = len(job.stories.get(task_id, ())) + 1
            job.running[task_id] = Running(node, attempt, now)
            here[task_id] = None
            assignments.append(Assignment(task_id, attempt, task.payload, task.memory_bytes))
        self.tie(job, node)
        return assignments

    @staticmethod
    def unbind(job: Job, task_id: TaskId) -> None:
        """The task runs no more."""
        run = job.running.pop(task_id, None)
        if run is not None:
            del job.running_on[run.node][task_id]

    def running_on(self, name: NodeName) -> Iterator[tuple[Job, TaskId]]:
        """All tasks that run on a node; they may be unbound meanwhile."""
        for job_id in tuple(self.nodes[name].jobs):
            job = self.jobs.get(job_id)
            if job is not None:
                yield from ((job, task_id) for task_id in tuple(job.running_on.get(name, ())))

    def end(self, job: Job) -> dict[NodeName, Address]:
        """Forget the job; the nodes that may hold something of it."""
        del self.jobs[job.job_id]
        job.running.clear()
        job.running_on.clear()
        live = {name: self.nodes[name] for name in job.nodes if name in self.nodes}
        for node in live.values():
            node.jobs.pop(job.job_id, None)
        return {name: node.address for name, node in live.items()}

    def gauges(self) -> dict[str, float]:
        """How much there is of what."""
        jobs = self.jobs.values()
        return {
            "nodes": len(self.nodes),
            "jobs": len(jobs),
            "waiting": sum(len(job.placer.waiting) for job in jobs),
            "running": sum(len(job.running) for job in jobs),
            "reservations": sum(held.count for job in jobs for held in job.reserved.values()),
        }

    def check(self) -> None:
        """Assert that each task is in one state and covered if it waits; and the indexes."""
        for job in self.jobs.values():
            states = [*job.placer.waiting, *job.running, *job.finished]
            assert sorted(states) == sorted(job.tasks)
            assert all(held.count > 0 for held in job.reserved.values())
            assert all(job.job_id in self.nodes[node].jobs for node in job.reserved)
            reserved: Mapping[NodeName, int] = {n: held.count for n, held in job.reserved.items()}
            assert job.placer.covered(reserved)
            placed = {(task_id, on) for on, here in job.running_on.items() for task_id in here}
            assert placed == {(task_id, run.node) for task_id, run in job.running.items()}
            assert all(job.job_id in self.nodes[run.node].jobs for run in job.running.values())
