"""A scheduler's tables: nodes, open jobs, and what each node should hold of each job.

Bookkeeping only: nothing here sends a message or decides anything. Everything is indexed both
ways (by job and by node), so that the end of a job and the death of a node cost as many steps as
there is to undo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from machine_kit.addresses import Address
from machine_kit.peers import Peers
from sparrow_core.policy.placer import Placer
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.messages import SubmitJob
from sparrow_core.protocol.types import (
    Assignment,
    Claim,
    ExecutorInfo,
    JobOptions,
    NodeInfo,
    PlacementStep,
    RunningTask,
    StepKind,
    TaskKey,
    TaskSpec,
    claim_of,
)


@dataclass(slots=True)
class Held:
    """Reservations of a job that a node should hold; the last of them were sent `at`."""

    count: int
    at: float


class Trail:
    """The steps of a job's placement, for a job with `JobOptions.explain`."""

    def __init__(self, began_at: float) -> None:
        """Begin when the scheduler gets the job; steps are timed from then."""
        self.steps: list[PlacementStep] = []
        self._began_at = began_at

    def add(
        self, now: float, node: NodeName, what: StepKind, count: int, tasks: tuple[TaskId, ...] = ()
    ) -> None:
        self.steps.append(PlacementStep(now - self._began_at, node, what, count, tasks))

    def take(self) -> tuple[PlacementStep, ...]:
        """The steps since the last call."""
        steps, self.steps = self.steps, []
        return tuple(steps)


class Running(Struct, gc=False):
    """Where a task runs, and since when. A Struct without GC, because there is one per task.

    `job_id` is that of the submission under which the attempt began: another one's, if it was
    adopted.
    """

    node: NodeName
    attempt: int
    at: float
    job_id: JobId


@dataclass(slots=True, kw_only=True)
class Node:
    """A live node.

    Attributes:
        joined_at: When it was heard first.
        frameworks: Of all executors that it ever had: one that has died is being restarted.
        load: Queued reservations and running tasks, of all schedulers.
        longest: Of these tasks, those that run the longest.
        jobs: That may hold something there.
    """

    address: Address
    joined_at: float
    executors: tuple[ExecutorInfo, ...] = ()
    attributes: tuple[str, ...] = ()
    draining: bool = False
    load: tuple[int, int] = (0, 0)
    deaths: int = 0
    last_death: str = ""
    longest: tuple[RunningTask, ...] = ()
    frameworks: dict[str, None] = field(default_factory=dict)
    jobs: dict[JobId, None] = field(default_factory=dict)

    def suits(self, options: JobOptions) -> bool:
        """Whether a job may be placed on it."""
        return (
            options.framework in self.frameworks
            and not self.draining
            and all(attribute in self.attributes for attribute in options.requires)
        )


@dataclass(slots=True, kw_only=True)
class Job:
    """An open job: each of its tasks waits (in the placer), runs, or has finished.

    Attributes:
        served_at: When there last was an executor for it.
        stories: Of each task, a line per lost attempt.
        blame: Of each task, how much these tell against it.
        unwanted: Running tasks that were withdrawn: if they are lost, that is all right.
        abandoned: Those of the finished tasks that were lost too often, and how at last.
        reserved: What each node should hold.
        sent: How many reservations each node was sent.
        shared_on: Nodes that were sent the shared part.
        nodes: That may hold something of the job.
        cancelled_on: Nodes that were sent CancelReservations since their last reservation.
        refusals: By nodes with full queues.
        trail: If the job is to be explained.
    """

    submit: SubmitJob
    tasks: dict[TaskId, TaskSpec]
    placer: Placer
    served_at: float
    running: dict[TaskId, Running] = field(default_factory=dict)
    running_on: dict[NodeName, dict[TaskId, None]] = field(default_factory=dict)
    finished: dict[TaskId, None] = field(default_factory=dict)
    stories: dict[TaskId, list[str]] = field(default_factory=dict)
    blame: Counter[TaskId] = field(default_factory=Counter)
    unwanted: dict[TaskId, None] = field(default_factory=dict)
    abandoned: dict[TaskId, str] = field(default_factory=dict)
    reserved: dict[NodeName, Held] = field(default_factory=dict)
    sent: Counter[NodeName] = field(default_factory=Counter)
    shared_on: dict[NodeName, None] = field(default_factory=dict)
    nodes: dict[NodeName, None] = field(default_factory=dict)
    cancelled_on: dict[NodeName, None] = field(default_factory=dict)
    refusals: int = 0
    trail: Trail | None = None

    @property
    def job_id(self) -> JobId:
        return self.submit.job_id

    def adopted_on(self, node: NodeName) -> dict[TaskId, None]:
        """Tasks that run there since they were another scheduler's."""
        here = self.running_on.get(node, {})
        return {key: None for key in here if self.running[key].job_id != self.job_id}

    @property
    def claim(self) -> Claim:
        """What queue disciplines may know of the job at this moment."""
        options, placer = self.submit.options, self.placer
        return claim_of(self.submit.user, options, len(placer.waiting), levels=placer.wants_levels)

    @property
    def story(self) -> tuple[str, ...]:
        """All that went wrong with tasks of the job."""
        return tuple(line for lines in self.stories.values() for line in lines)


class Ledger:
    """The nodes and open jobs of a scheduler.

    Attributes:
        heard: The nodes, and when each was heard.
        clients: The same of the clients of open jobs, by job.
    """

    def __init__(self) -> None:
        self.nodes: dict[NodeName, Node] = {}
        self.jobs: dict[JobId, Job] = {}
        self.heard = Peers[NodeName]()
        self.clients = Peers[JobId]()
        # Submissions that an open job replaces: nodes still name adopted attempts by these.
        self._current: dict[JobId, JobId] = {}
        # Cached per framework and required attributes: placing a job would else visit all nodes.
        self._eligible: dict[tuple[str, tuple[str, ...]], list[NodeName]] = {}

    # --- jobs ----------------------------------------------------------------------------------

    def open(self, job: Job, now: float) -> None:
        self.jobs[job.job_id] = job
        self.clients.heard(job.job_id, now)
        self._current.update(dict.fromkeys(job.submit.replaces, job.job_id))

    def find(self, job_id: JobId) -> Job | None:
        """The open job of which this is the id, or that of a submission that it replaces."""
        return self.jobs.get(self._current.get(job_id, job_id))

    # --- nodes ---------------------------------------------------------------------------------

    def update_node(
        self, node: Node, executors: tuple[ExecutorInfo, ...],
        attributes: tuple[str, ...], draining: bool,
    ) -> bool:  # fmt: skip
        """Record a heartbeat; True if the node may have become eligible for other jobs."""
        frameworks = dict.fromkeys(executor.framework for executor in executors)
        new = frameworks.keys() - node.frameworks.keys()
        changed = bool(new) or (node.attributes, node.draining) != (attributes, draining)
        node.executors, node.attributes, node.draining = executors, attributes, draining
        # Kept when an executor dies: it is being restarted, and its jobs should wait for it.
        node.frameworks.update(frameworks)
        if changed:
            self.eligibility_changed()
        return changed

    def eligibility_changed(self) -> None:
        """Some node may be eligible for other jobs than before: forget cached answers."""
        self._eligible.clear()

    def remove_node(self, name: NodeName) -> None:
        """Forget a node on which nothing runs any more."""
        assert not any(self.running_on(name)), "its tasks must be moved first"
        del self.nodes[name]
        self.heard.forget(name)
        self.eligibility_changed()

    def eligible(self, options: JobOptions) -> list[NodeName]:
        """The nodes on which a job may be placed: attributes, framework, and not draining."""
        key = (options.framework, options.requires)
        if key not in self._eligible:
            self._eligible[key] = [name for name, node in self.nodes.items() if node.suits(options)]
        return self._eligible[key]

    def starting(self, options: JobOptions, since: float) -> list[NodeName]:
        """Nodes that have joined since then, and whose executors are still to come."""
        return [
            name
            for name, node in self.nodes.items()
            if node.joined_at >= since
            and not node.frameworks
            and not node.draining
            and all(attribute in node.attributes for attribute in options.requires)
        ]

    def is_empty(self) -> bool:
        """Whether no node that stays has, or had, an executor; one about to be removed drains."""
        return not any(node.frameworks and not node.draining for node in self.nodes.values())

    def node_infos(self) -> tuple[NodeInfo, ...]:
        return tuple(
            NodeInfo(
                name=name, monitor=node.address, executors=node.executors,
                attributes=node.attributes, draining=node.draining,
                queued=node.load[0], running=node.load[1],
                deaths=node.deaths, last_death=node.last_death, longest=node.longest,
            )
            for name, node in self.nodes.items()
        )  # fmt: skip

    # --- what a node has of a job --------------------------------------------------------------

    def link(self, job: Job, node: NodeName) -> None:
        """Remember that the node may hold something of the job."""
        job.nodes[node] = None
        self.nodes[node].jobs[job.job_id] = None

    def hold(self, job: Job, node: NodeName, count: int, now: float) -> None:
        """`count` more reservations are sent to the node."""
        # The time of the last one starts the grace period of all: heartbeats that cross with it
        # do not name it.
        held = job.reserved.setdefault(node, Held(0, now))
        held.count += count
        held.at = now
        job.sent[node] += count
        job.cancelled_on.pop(node, None)  # requests are answered again
        self.link(job, node)

    @staticmethod
    def consume(job: Job, node: NodeName, count: int) -> None:
        """The node has used up `count` of the reservations that it should hold."""
        held = job.reserved.get(node)
        if held is not None:
            held.count -= count
            if held.count <= 0:  # below 0: restored ones crossed with a request
                del job.reserved[node]

    def bind(
        self, job: Job, tasks: Iterable[TaskSpec], node: NodeName, now: float
    ) -> list[Assignment]:
        """The tasks run on the node from now on; returns them with their attempt numbers."""
        here = job.running_on.setdefault(node, {})
        assignments = []
        for task in tasks:
            task_id = task.task_id
            assert task_id not in job.running, "a task runs once at a time"
            # Numbered by lost attempts, so that late messages about those can be told apart.
            attempt = len(job.stories.get(task_id, ())) + 1
            job.running[task_id] = Running(node, attempt, now, job.job_id)
            here[task_id] = None
            assignments.append(Assignment(task_id, attempt, task.payload, task.memory_bytes))
        self.link(job, node)
        return assignments

    def adopt(self, job: Job, key: TaskKey, node: NodeName, now: float) -> None:
        """An attempt that began under another scheduler runs on the node."""
        assert key.task_id not in job.running, "a task runs once at a time"
        job.running[key.task_id] = Running(node, key.attempt, now, key.job_id)
        job.running_on.setdefault(node, {})[key.task_id] = None
        self.link(job, node)

    @staticmethod
    def unbind(job: Job, task_id: TaskId) -> None:
        """The task does not run any more; no effect if it does not run."""
        run = job.running.pop(task_id, None)
        if run is not None:
            del job.running_on[run.node][task_id]

    def running_on(self, name: NodeName) -> Iterator[tuple[Job, TaskId]]:
        """All tasks that run on a node; the caller may unbind tasks or end jobs meanwhile."""
        # Copies, because what the caller does with a task may end its job.
        for job_id in tuple(self.nodes[name].jobs):
            job = self.jobs.get(job_id)
            if job is not None:
                yield from ((job, task_id) for task_id in tuple(job.running_on.get(name, ())))

    def end(self, job: Job) -> dict[NodeName, Address]:
        """Forget the job; returns the live nodes that may hold something of it."""
        del self.jobs[job.job_id]
        self.clients.forget(job.job_id)
        for earlier in job.submit.replaces:
            self._current.pop(earlier, None)
        # Emptied, because a caller may still iterate over `running_on`.
        job.running.clear()
        job.running_on.clear()
        live = {name: self.nodes[name] for name in job.nodes if name in self.nodes}
        for node in live.values():
            node.jobs.pop(job.job_id, None)
        return {name: node.address for name, node in live.items()}

    def gauges(self) -> dict[str, float]:
        jobs = self.jobs.values()
        return {
            "nodes": len(self.nodes),
            "jobs": len(jobs),
            "waiting": sum(len(job.placer.waiting) for job in jobs),
            "running": sum(len(job.running) for job in jobs),
            "reservations": sum(held.count for job in jobs for held in job.reserved.values()),
        }

    def check(self) -> None:
        """Assert that each task is in one state, and covered if it waits; that indexes agree."""
        assert [*self.heard] == [*self.nodes]
        assert [*self.clients] == [*self.jobs]
        for job in self.jobs.values():
            states = [*job.placer.waiting, *job.running, *job.finished]
            assert sorted(states) == sorted(job.tasks)
            assert job.abandoned.keys() <= job.finished.keys()
            assert all(held.count > 0 for held in job.reserved.values())
            assert all(job.job_id in self.nodes[node].jobs for node in job.reserved)
            reserved: Mapping[NodeName, int] = {n: held.count for n, held in job.reserved.items()}
            assert job.placer.covered(reserved)
            placed = {(task_id, on) for on, here in job.running_on.items() for task_id in here}
            assert placed == {(task_id, run.node) for task_id, run in job.running.items()}
            assert all(job.job_id in self.nodes[run.node].jobs for run in job.running.values())
