"""The scheduler: places tasks by reservations and late binding (Sparrow, SOSP'13, section 3).

A job's tasks are each in one of three states:

    waiting (in the job's placer) ──GetTasks──▶ running (on a node) ──report──▶ finished
          ▲                                          │
          └── lost: reported, or node dead, or its heartbeat does not know the task;
              at most `max_attempts` attempts

A scheduler keeps nothing that cannot be learned again: nodes from their heartbeats, jobs from their
clients (which resubmit what is unfinished). What the network loses is found by comparing with a
node's heartbeat, after `grace_s`. A job whose client is silent for `lease_s` is ended. Bounds: jobs
and their reservations are bounded by what clients submit; ended ids by `_ENDED_MAX`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, assert_never

from msgspec import Struct

from sparrow_core.errors import InvalidJob, NoNodes, Unsatisfiable
from sparrow_core.ids import Address, JobId, NodeName, TaskId
from sparrow_core.machine import Envelope
from sparrow_core.messages import (
    PROTOCOL_VERSION,
    Assignment,
    AssignTasks,
    CancelReservations,
    EndJob,
    ExecutorInfo,
    GetNodes,
    GetShared,
    GetTasks,
    JobAborted,
    JobAccepted,
    JobShared,
    JobStatus,
    KnownNodes,
    NodeInfo,
    NodeLost,
    NodeRefused,
    PingJob,
    RegisterNode,
    ReportTasks,
    RerunTasks,
    Reserve,
    SchedulerIn,
    SubmitJob,
    TaskKey,
    TaskReport,
    TaskSpec,
    Tick,
)
from sparrow_core.placement import Placer, make_placer

_ENDED_MAX = 4096


class SchedulerConfig(Struct, frozen=True):
    """Limits of a scheduler.

    Attributes:
        max_attempts: How often a task is tried before its job fails.
        tick_s: How often silence is looked for.
        node_timeout_s: A node silent for this long is dead.
        nodes_wait_s: How long a job waits for the first node.
        lease_s: A job whose client is silent for this long is ended.
        grace_s: How long a message may be on its way before a heartbeat that contradicts it counts.
    """

    max_attempts: int = 4
    tick_s: float = 0.5
    node_timeout_s: float = 3.0
    nodes_wait_s: float = 5.0
    lease_s: float = 10.0
    grace_s: float = 1.0


@dataclass(slots=True)
class _Held:
    """Reservations of a job that a node should hold; `at` is when the last were sent."""

    count: int
    at: float


@dataclass(slots=True)
class _Running:
    node: NodeName
    attempt: int
    at: float


@dataclass(slots=True)
class _Node:
    address: Address
    executors: tuple[ExecutorInfo, ...]
    heard_at: float
    running: dict[TaskKey, None] = field(default_factory=dict)
    jobs: dict[JobId, None] = field(default_factory=dict)  # that may hold something there


@dataclass(slots=True)
class _Job:
    submit: SubmitJob
    tasks: dict[TaskId, TaskSpec]
    placer: Placer
    heard_at: float
    running: dict[TaskId, _Running] = field(default_factory=dict)
    finished: dict[TaskId, None] = field(default_factory=dict)
    stories: dict[TaskId, list[str]] = field(default_factory=dict)  # one entry per lost attempt
    reserved: dict[NodeName, _Held] = field(default_factory=dict)
    shared_on: dict[NodeName, None] = field(default_factory=dict)
    nodes: dict[NodeName, None] = field(default_factory=dict)  # that may hold something of it

    @property
    def job_id(self) -> JobId:
        return self.submit.job_id


class Scheduler:
    """One of any number of independent schedulers of a cluster."""

    inputs: ClassVar[Any] = SchedulerIn

    def __init__(
        self, address: Address, rng: Random, config: SchedulerConfig | None = None
    ) -> None:
        """Make a scheduler that knows no node yet; `rng` decides all placement."""
        self.address = address
        self._rng = rng
        self._config = config or SchedulerConfig()
        self._nodes: dict[NodeName, _Node] = {}
        self._node_names: list[NodeName] = []
        self._jobs: dict[JobId, _Job] = {}
        self._parked: dict[JobId, tuple[SubmitJob, float]] = {}  # no node yet; with deadline
        self._ended: OrderedDict[JobId, JobAborted | None] = OrderedDict()
        self._generation = 0
        self._ticked_at: float | None = None

    def on_message(self, msg: SchedulerIn, now: float) -> list[Envelope]:
        """Take one message; see the module docstring."""
        match msg:
            case GetTasks():
                return self._on_get_tasks(msg, now)
            case ReportTasks():
                return self._on_reports(msg.reports, now)
            case SubmitJob():
                return self._on_submit_job(msg, now)
            case EndJob():
                return self._end(msg.job_id, None)
            case RegisterNode():
                return self._on_register_node(msg, now)
            case PingJob():
                return self._on_ping_job(msg, now)
            case RerunTasks():
                return self._on_rerun_tasks(msg, now)
            case GetShared():
                return self._on_get_shared(msg)
            case GetNodes():
                return [Envelope(msg.client, KnownNodes(self.address, self._node_infos()))]
            case NodeLost():
                return self._node_lost(msg.node, msg.reason, now)
            case Tick():
                return self._on_tick(msg, now)
            case _:
                assert_never(msg)

    # --- jobs ----------------------------------------------------------------------------------

    def _on_submit_job(self, msg: SubmitJob, now: float) -> list[Envelope]:
        accepted = Envelope(msg.client, JobAccepted(msg.job_id))
        if msg.job_id in self._jobs or msg.job_id in self._parked:
            return [accepted]  # a repetition: our answer was late or lost
        if msg.job_id in self._ended:
            aborted = self._ended[msg.job_id]
            return [Envelope(msg.client, aborted)] if aborted else []
        if msg.version != PROTOCOL_VERSION:
            text = f"this scheduler speaks protocol {PROTOCOL_VERSION}, the client {msg.version}"
            return self._refuse(msg, "protocol", text)
        if not self._nodes:
            self._parked[msg.job_id] = (msg, now + self._config.nodes_wait_s)
            return [accepted]
        return [accepted, *self._admit(msg, now)]

    def _admit(self, msg: SubmitJob, now: float) -> list[Envelope]:
        try:
            placer = make_placer(msg.placement, self._rng, msg.probe_ratio, msg.tasks)
        except InvalidJob as error:
            return self._refuse(msg, "invalid", str(error))
        job = _Job(msg, {task.task_id: task for task in msg.tasks}, placer, now)
        self._jobs[msg.job_id] = job
        return self._place(job, msg.tasks, (), now)

    def _refuse(self, msg: SubmitJob, kind: str, message: str) -> list[Envelope]:
        aborted = JobAborted(msg.job_id, kind, message)
        self._remember_ended(msg.job_id, aborted)
        return [Envelope(msg.client, aborted)]

    def _place(
        self, job: _Job, tasks: Iterable[TaskSpec], avoid: tuple[NodeName, ...], now: float
    ) -> list[Envelope]:
        try:
            reservations = job.placer.place(tuple(tasks), self._node_names, avoid)
        except (Unsatisfiable, NoNodes) as error:
            return self._abort_unplaceable(job, error)
        return self._reserve(job, reservations, now)

    def _reserve(
        self, job: _Job, reservations: Mapping[NodeName, int], now: float
    ) -> list[Envelope]:
        out = []
        for name, count in reservations.items():
            node = self._nodes[name]
            held = job.reserved.setdefault(name, _Held(0, now))
            held.count += count
            held.at = now
            self._tie(job, name)
            out.append(Envelope(node.address, Reserve(job.job_id, self.address, count)))
        return out

    def _tie(self, job: _Job, node: NodeName) -> None:
        """Remember that the node may hold something of the job."""
        job.nodes[node] = None
        self._nodes[node].jobs[job.job_id] = None

    def _abort_unplaceable(self, job: _Job, error: Unsatisfiable | NoNodes) -> list[Envelope]:
        kind = "unsatisfiable" if isinstance(error, Unsatisfiable) else "no_nodes"
        story = tuple(line for lines in job.stories.values() for line in lines)
        return self._abort(job, kind, str(error), story)

    def _abort(
        self, job: _Job, kind: str, message: str, story: tuple[str, ...] = ()
    ) -> list[Envelope]:
        aborted = JobAborted(job.job_id, kind, message, story)
        return [Envelope(job.submit.client, aborted), *self._end(job.job_id, aborted)]

    def _end(self, job_id: JobId, aborted: JobAborted | None) -> list[Envelope]:
        self._remember_ended(job_id, aborted)
        self._parked.pop(job_id, None)
        job = self._jobs.pop(job_id, None)
        if job is None:
            return []
        for task_id, run in job.running.items():
            self._nodes[run.node].running.pop(TaskKey(job_id, task_id, run.attempt))
        out = []
        for name in job.nodes:
            node = self._nodes.get(name)
            if node is not None and job_id in node.jobs:
                del node.jobs[job_id]
                out.append(Envelope(node.address, EndJob(job_id)))
        return out

    def _remember_ended(self, job_id: JobId, aborted: JobAborted | None) -> None:
        self._ended[job_id] = aborted
        if len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)

    def _on_ping_job(self, msg: PingJob, now: float) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        if job is None:
            status = JobStatus(msg.job_id, msg.job_id in self._parked, ())
        else:
            job.heard_at = now
            finished = tuple(task_id for task_id in msg.missing if task_id in job.finished)
            status = JobStatus(msg.job_id, True, finished)
        return [Envelope(msg.client, status)]

    def _on_rerun_tasks(self, msg: RerunTasks, now: float) -> list[Envelope]:
        out: list[Envelope] = []
        for task_id in msg.tasks:
            job = self._jobs.get(msg.job_id)
            if job is not None and task_id in job.finished:
                del job.finished[task_id]
                out += self._try_again(job, task_id, "its result never reached the client", (), now)
        return out

    def _on_get_shared(self, msg: GetShared) -> list[Envelope]:
        job = self._jobs.get(msg.job_id)
        return [self._share(job, msg.asker)] if job else []

    def _share(self, job: _Job, to: Address) -> Envelope:
        return Envelope(to, JobShared(job.job_id, self.address, job.submit.shared))

    # --- tasks ---------------------------------------------------------------------------------

    def _on_get_tasks(self, msg: GetTasks, now: float) -> list[Envelope]:
        out = self._on_reports(msg.reports, now)
        node = self._nodes.get(msg.node)
        if node is None:
            return out  # its heartbeat will tell us; the node asks again or gives up
        node.heard_at = now
        job = self._jobs.get(msg.job_id)
        if job is None:
            answer = AssignTasks(
                msg.job_id, self.address, self.address, msg.request, (), True, False
            )
            return [*out, Envelope(node.address, answer)]
        return [*out, *self._assign(job, msg, node, now)]

    def _assign(self, job: _Job, msg: GetTasks, node: _Node, now: float) -> list[Envelope]:
        tasks = job.placer.take(msg.node, msg.count)
        drained = not job.placer.offers(msg.node)
        self._consume(job, msg.node, len(tasks), drained)
        has_shared = bool(job.submit.shared)
        out = []
        if tasks and has_shared and msg.node not in job.shared_on:
            job.shared_on[msg.node] = None
            out.append(self._share(job, node.address))
        assignments = tuple(self._bind(job, task, msg.node, now) for task in tasks)
        answer = AssignTasks(
            job.job_id, self.address, job.submit.client, msg.request,
            assignments, drained, has_shared,
        )  # fmt: skip
        out.append(Envelope(node.address, answer))
        if not job.placer.waiting:
            out += self._cancel_reservations(job)
        return out

    @staticmethod
    def _consume(job: _Job, node: NodeName, count: int, drained: bool) -> None:
        held = job.reserved.get(node)
        if held is not None:
            held.count -= count
            if drained or held.count <= 0:
                del job.reserved[node]

    def _bind(self, job: _Job, task: TaskSpec, node: NodeName, now: float) -> Assignment:
        attempt = len(job.stories.get(task.task_id, ())) + 1
        job.running[task.task_id] = _Running(node, attempt, now)
        self._nodes[node].running[TaskKey(job.job_id, task.task_id, attempt)] = None
        self._tie(job, node)
        return Assignment(task.task_id, attempt, task.payload)

    def _cancel_reservations(self, job: _Job) -> list[Envelope]:
        nodes = tuple(job.reserved)
        job.reserved.clear()
        cancel = CancelReservations(job.job_id)
        return [Envelope(self._nodes[node].address, cancel) for node in nodes]

    def _on_reports(self, reports: tuple[TaskReport, ...], now: float) -> list[Envelope]:
        out: list[Envelope] = []
        for report in reports:
            job = self._jobs.get(report.key.job_id)
            if job is None or report.key.task_id not in job.tasks:
                continue  # the job is over
            if report.lost is None:
                out += self._finish(job, report.key.task_id)
            else:
                out += self._lose(job, report.key, report.executor, report.lost, now)
        return out

    def _finish(self, job: _Job, task_id: TaskId) -> list[Envelope]:
        """Any attempt's success counts, also that of one which had been given up."""
        self._unbind(job, task_id)
        job.finished[task_id] = None
        if task_id not in job.placer.waiting:
            return []
        job.placer.withdraw(task_id)
        return [] if job.placer.waiting else self._cancel_reservations(job)

    def _unbind(self, job: _Job, task_id: TaskId) -> NodeName | None:
        run = job.running.pop(task_id, None)
        if run is None:
            return None
        self._nodes[run.node].running.pop(TaskKey(job.job_id, task_id, run.attempt))
        return run.node

    def _lose(
        self, job: _Job, key: TaskKey, executor: str, reason: str, now: float
    ) -> list[Envelope]:
        run = job.running.get(key.task_id)
        if run is None or run.attempt != key.attempt:
            return []  # told twice, or an attempt that had been given up
        self._unbind(job, key.task_id)
        where = f"{run.node}/{executor}" if executor else run.node
        return self._try_again(job, key.task_id, f"{where}: {reason}", (run.node,), now)

    def _try_again(
        self, job: _Job, task_id: TaskId, reason: str, avoid: tuple[NodeName, ...], now: float
    ) -> list[Envelope]:
        story = job.stories.setdefault(task_id, [])
        story.append(f"task {task_id} attempt {len(story) + 1}: {reason}")
        if len(story) >= self._config.max_attempts:
            message = f"task {task_id} was lost {len(story)} times; at last: {reason}"
            return self._abort(job, "task_lost", message, tuple(story))
        return self._place(job, (job.tasks[task_id],), avoid, now)

    # --- nodes ---------------------------------------------------------------------------------

    def _on_register_node(self, msg: RegisterNode, now: float) -> list[Envelope]:
        if msg.version != PROTOCOL_VERSION:
            text = f"this scheduler speaks protocol {PROTOCOL_VERSION}, the node {msg.version}"
            return [Envelope(msg.address, NodeRefused(text))]
        out: list[Envelope] = []
        node = self._nodes.get(msg.name)
        if node is not None and node.address != msg.address:
            out += self._node_lost(msg.name, "the node was started anew", now)
            node = None
        if node is None:
            node = self._nodes[msg.name] = _Node(msg.address, msg.executors, now)
            self._node_names.append(msg.name)
            out += self._admit_parked(now)
        node.heard_at = now
        node.executors = msg.executors
        return [*out, *self._reconcile(node, msg, now)]

    def _admit_parked(self, now: float) -> list[Envelope]:
        parked, self._parked = self._parked, {}
        return [out for msg, _ in parked.values() for out in self._admit(msg, now)]

    def _reconcile(self, node: _Node, msg: RegisterNode, now: float) -> list[Envelope]:
        """Make up for lost messages: compare what the node has with what it should have."""
        held = {job.job_id: job.reservations for job in msg.held}
        over = [job_id for job_id in held if job_id not in self._jobs]
        out = [Envelope(node.address, EndJob(job_id)) for job_id in over]
        for job_id in tuple(node.jobs):
            out += self._reconcile_held(job_id, msg.name, held.get(job_id, 0), now)
        running = dict.fromkeys(msg.running)
        for key in tuple(node.running):
            job = self._jobs.get(key.job_id)
            if key in running or job is None or key.task_id not in job.running:
                continue
            if job.running[key.task_id].at <= now - self._config.grace_s:
                out += self._lose(job, key, "", "the node does not know of it", now)
        return out

    def _reconcile_held(
        self, job_id: JobId, name: NodeName, count: int, now: float
    ) -> list[Envelope]:
        job = self._jobs.get(job_id)
        if job is None:
            return []  # ended while this heartbeat was handled
        should = job.reserved.get(name)
        if should is None:
            surplus = count > 0 and not job.placer.offers(name)
            address = self._nodes[name].address
            return [Envelope(address, CancelReservations(job_id))] if surplus else []
        if count >= should.count or should.at > now - self._config.grace_s:
            return []
        missing = should.count - count
        should.count = count
        return self._reserve(job, {name: missing}, now)

    def _node_lost(self, name: NodeName, reason: str, now: float) -> list[Envelope]:
        node = self._nodes.get(name)
        if node is None:
            return []
        self._node_names.remove(name)
        out: list[Envelope] = []
        for key in tuple(node.running):
            job = self._jobs.get(key.job_id)
            if job is not None:
                out += self._lose(job, key, "", f"node lost ({reason})", now)
        for job_id in tuple(node.jobs):
            job = self._jobs.get(job_id)
            if job is not None:
                out += self._move_reservations(job, name, now)
        assert not node.running
        del self._nodes[name]
        return out

    def _move_reservations(self, job: _Job, name: NodeName, now: float) -> list[Envelope]:
        job.shared_on.pop(name, None)
        held = job.reserved.pop(name, None)
        try:
            reservations = job.placer.node_lost(name, held.count if held else 0, self._node_names)
        except (Unsatisfiable, NoNodes) as error:
            return self._abort_unplaceable(job, error)
        return self._reserve(job, reservations, now)

    def _node_infos(self) -> tuple[NodeInfo, ...]:
        return tuple(NodeInfo(name, node.executors) for name, node in self._nodes.items())

    # --- time ----------------------------------------------------------------------------------

    def _on_tick(self, msg: Tick, now: float) -> list[Envelope]:
        if msg.generation != self._generation:
            return []  # a doubled timer
        self._generation += 1
        config = self._config
        self._forgive_stall(now)
        out = [Envelope(self.address, Tick(self._generation), config.tick_s)]
        for name, node in tuple(self._nodes.items()):
            if node.heard_at < now - config.node_timeout_s:
                out += self._node_lost(name, f"silent for {config.node_timeout_s:g} s", now)
        for msg_parked, deadline in tuple(self._parked.values()):
            if deadline <= now:
                del self._parked[msg_parked.job_id]
                text = f"no node registered within {config.nodes_wait_s:g} s"
                out += self._refuse(msg_parked, "no_nodes", text)
        for job in tuple(self._jobs.values()):
            if job.heard_at < now - config.lease_s:
                out += self._end(job.job_id, None)
        return out

    def _forgive_stall(self, now: float) -> None:
        """Time in which this scheduler did not run itself is nobody else's silence."""
        last = self._ticked_at if self._ticked_at is not None else now
        stall_s = now - last - self._config.tick_s
        self._ticked_at = now
        if stall_s > self._config.tick_s:
            for node in self._nodes.values():
                node.heard_at = min(now, node.heard_at + stall_s)
            for job in self._jobs.values():
                job.heard_at = min(now, job.heard_at + stall_s)

    def check(self) -> None:
        """Assert that each task is in one state and covered if it waits; and the indexes."""
        assert sorted(self._node_names) == sorted(self._nodes)
        running: dict[TaskKey, NodeName] = {}
        for job in self._jobs.values():
            states = [*job.placer.waiting, *job.running, *job.finished]
            assert sorted(states) == sorted(job.tasks)
            assert all(held.count > 0 for held in job.reserved.values())
            assert all(job.job_id in self._nodes[node].jobs for node in job.reserved)
            assert job.placer.covered({node: h.count for node, h in job.reserved.items()})
            for task_id, run in job.running.items():
                running[TaskKey(job.job_id, task_id, run.attempt)] = run.node
                assert run.attempt <= self._config.max_attempts
        for name, node in self._nodes.items():
            assert all(running.pop(key) == name for key in node.running)
        assert not running
        assert len(self._ended) <= _ENDED_MAX
