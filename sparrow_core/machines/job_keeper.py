"""A scheduler's dealings with jobs, from submission to the end; the machine is in `scheduler`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from msgspec import Struct

from sparrow_core.machines.ledger import Job, Ledger, Node, Trail
from sparrow_core.policy.placement import Placer, Reservations, make_placer
from sparrow_core.protocol.errors import InvalidJob, NoNodes, Unsatisfiable
from sparrow_core.protocol.ids import Address, JobId, NodeName, TaskId
from sparrow_core.protocol.machine import Envelope
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AssignTasks,
    CancelReservations,
    EndJob,
    EndJobs,
    GetShared,
    GetTasks,
    JobAborted,
    JobAccepted,
    JobPlaced,
    JobShared,
    JobStatus,
    NodeLoad,
    PingJob,
    ProbeLoad,
    ProbeTimer,
    RefuseReservations,
    RerunTasks,
    Reserve,
    SetWeights,
    SubmitJob,
    WidenTimer,
)
from sparrow_core.protocol.types import JobOptions, JobReport, TaskSpec

ENDED_MAX = 4096
_REFUSALS_A_NODE = 2  # before refused reservations are no longer sent to others at once


class SchedulerConfig(Struct, frozen=True):
    """Limits of a scheduler.

    Attributes:
        max_attempts: How often a task is tried before its job fails.
        tick_s: How often silence is looked for.
        node_timeout_s: A node silent for this long is dead.
        nodes_wait_s: How long a job waits for the first node.
        executors_wait_s: How long it waits for executors if all of them have died.
        settle_s: How long a new scheduler waits for more nodes before it calls a job unsatisfiable.
        lease_s: A job whose client is silent for this long is ended.
        grace_s: How long a message may be on its way before a heartbeat that contradicts it counts.
        probe_wait_s: How long nodes may take to tell their loads.
        jobs_max: Open jobs; more are refused.
        refusals_max: How often nodes with full queues may refuse a job before it fails.
        cancellation: Whether reservations are withdrawn when all tasks of a job are bound.
    """

    max_attempts: int = 4
    tick_s: float = 0.5
    node_timeout_s: float = 3.0
    nodes_wait_s: float = 5.0
    executors_wait_s: float = 15.0
    settle_s: float = 1.0
    lease_s: float = 10.0
    grace_s: float = 1.0
    probe_wait_s: float = 0.02
    jobs_max: int = 100_000
    refusals_max: int = 1000
    cancellation: bool = True


@dataclass(slots=True)
class _Probing:
    """A job that waits for the loads of the nodes in `awaited`."""

    submit: SubmitJob
    placer: Placer
    awaited: dict[NodeName, None]
    trail: Trail | None
    loads: dict[NodeName, int] = field(default_factory=dict)


class JobKeeper:
    """What a scheduler does for jobs; each method returns what is to be sent."""

    def __init__(
        self, address: Address, rng: Random, config: SchedulerConfig | None = None
    ) -> None:
        """Make a scheduler that knows no node yet; `rng` decides all placement."""
        self.address = address
        self._rng = rng
        self._config = config or SchedulerConfig()
        self._ledger = Ledger()
        self._parked: dict[JobId, tuple[SubmitJob, float]] = {}  # with deadline
        self._probing: dict[JobId, _Probing] = {}
        self._ended: OrderedDict[JobId, JobAborted | None] = OrderedDict()
        self._weights = SetWeights()
        self._generation = 0
        self._started_at: float | None = None
        self._ticked_at: float | None = None

    # --- jobs come -----------------------------------------------------------------------------

    def _on_submit_job(self, msg: SubmitJob, now: float) -> list[Envelope]:
        accepted = Envelope(msg.client, JobAccepted(msg.job_id))
        if self._has(msg.job_id):
            return [accepted]  # a repetition: our answer was late or lost
        if msg.job_id in self._ended:
            aborted = self._ended[msg.job_id]
            return [Envelope(msg.client, aborted)] if aborted else []
        if msg.version != PROTOCOL_VERSION:
            text = f"this scheduler speaks protocol {PROTOCOL_VERSION}, the client {msg.version}"
            return self._refuse(msg, "protocol", text)
        if len(self._ledger.jobs) + len(self._parked) >= self._config.jobs_max:
            text = f"this scheduler has {self._config.jobs_max} jobs already"
            return self._refuse(msg, "overloaded", text)
        out = [accepted, *self._replace(msg.replaces)]
        return [*out, *self._admit(msg, self._patience_until(now), now)]

    def _replace(self, job_ids: tuple[JobId, ...]) -> list[Envelope]:
        """Make all nodes forget submissions to schedulers that may be dead."""
        if not job_ids:
            return []
        return [Envelope(node.address, EndJobs(job_ids)) for node in self._ledger.nodes.values()]

    def _has(self, job_id: JobId) -> bool:
        return job_id in self._ledger.jobs or job_id in self._parked or job_id in self._probing

    def _patience_until(self, now: float) -> float:
        """Until when nodes that satisfy a job may still come."""
        if self._ledger.is_empty():
            return now + self._config.nodes_wait_s
        return (self._started_at or 0.0) + self._config.settle_s

    def _admit(self, msg: SubmitJob, deadline: float, now: float) -> list[Envelope]:
        """Probe for the job if its placement wants that, or place it at once."""
        try:
            placer = make_placer(msg.placement, self._rng, msg.probe_ratio, msg.tasks)
            nodes = self._eligible(msg.options)
            probes = placer.probes(msg.tasks, nodes)
            trail = Trail(now) if msg.options.explain else None
            if probes:
                return self._probe(_Probing(msg, placer, dict.fromkeys(probes), trail), now)
            return self._open(msg, placer, trail, nodes, now)
        except InvalidJob as error:
            return self._refuse(msg, "invalid", str(error))
        except (Unsatisfiable, NoNodes) as error:
            if now < deadline:
                self._parked[msg.job_id] = (msg, deadline)
                return []
            return self._refuse(msg, kind_of(error), str(error))

    def _eligible(self, options: JobOptions) -> Sequence[NodeName]:
        """The nodes on which a job may be placed.

        Raises:
            NoNodes: There is no node.
            Unsatisfiable: There are nodes, but none that the job may run on.
        """
        nodes = self._ledger.eligible(options)
        if nodes:
            return nodes
        if self._ledger.is_empty():
            raise NoNodes("no live node is left")
        needs = [*options.requires, *([f"framework {options.framework}"] * bool(options.framework))]
        raise Unsatisfiable(f"no live node has {' and '.join(needs) or 'what the job needs'}")

    def _probe(self, probing: _Probing, now: float) -> list[Envelope]:
        job_id = probing.submit.job_id
        self._probing[job_id] = probing
        probe = ProbeLoad(job_id, self.address)
        if probing.trail is not None:
            for node in probing.awaited:
                probing.trail.add(now, node, "probed", 1)
        out = [Envelope(self._ledger.nodes[node].address, probe) for node in probing.awaited]
        timer = Envelope(self.address, ProbeTimer(job_id), self._config.probe_wait_s)
        return [*out, timer]

    def _on_node_load(self, msg: NodeLoad, now: float) -> list[Envelope]:
        probing = self._probing.get(msg.job_id)
        if probing is None:
            return []  # too late
        probing.loads[msg.node] = msg.load
        if probing.trail is not None:
            probing.trail.add(now, msg.node, "told", msg.load)
        probing.awaited.pop(msg.node, None)
        return [] if probing.awaited else self._place_probed(msg.job_id, now)

    def _place_probed(self, job_id: JobId, now: float) -> list[Envelope]:
        probing = self._probing.pop(job_id, None)
        if probing is None:
            return []  # placed already, or over
        probing.placer.note_loads(probing.loads)
        try:
            nodes = self._eligible(probing.submit.options)
            return self._open(probing.submit, probing.placer, probing.trail, nodes, now)
        except (Unsatisfiable, NoNodes) as error:
            return self._refuse(probing.submit, kind_of(error), str(error))

    def _open(
        self,
        msg: SubmitJob,
        placer: Placer,
        trail: Trail | None,
        nodes: Sequence[NodeName],
        now: float,
    ) -> list[Envelope]:
        """Place all tasks; raises what `Placer.place` raises, and then the job is not open."""
        reservations = placer.place(msg.tasks, nodes)
        job = Job(msg, {task.task_id: task for task in msg.tasks}, placer, now, now, trail=trail)
        self._ledger.jobs[msg.job_id] = job
        return [*self._reserve(job, reservations, now), *self._widen_timers(job, msg.tasks)]

    def _refuse(self, msg: SubmitJob, kind: str, message: str) -> list[Envelope]:
        aborted = JobAborted(msg.job_id, kind, message)
        self._remember_ended(msg.job_id, aborted)
        return [Envelope(msg.client, aborted)]

    # --- reservations --------------------------------------------------------------------------

    def _reserve(self, job: Job, reservations: Reservations, now: float) -> list[Envelope]:
        out, claim = [], job.claim
        for name, count in reservations.items():
            self._ledger.hold(job, name, count, now)
            if job.trail is not None:
                job.trail.add(now, name, "reserved", count)
            msg = Reserve(job.job_id, self.address, count, claim)
            out.append(Envelope(self._ledger.nodes[name].address, msg))
        return out

    def _place(
        self, job: Job, tasks: tuple[TaskSpec, ...], avoid: tuple[NodeName, ...], now: float
    ) -> list[Envelope]:
        """Place tasks of an open job anew; the job fails if that cannot be done."""
        try:
            reservations = job.placer.place(tasks, self._eligible(job.submit.options), avoid)
        except (Unsatisfiable, NoNodes) as error:
            return self._abort(job, kind_of(error), str(error), job.story)
        return [*self._reserve(job, reservations, now), *self._widen_timers(job, tasks)]

    def _widen_timers(self, job: Job, tasks: Sequence[TaskSpec]) -> list[Envelope]:
        """Timers for the tasks that only wish for their preferred nodes, one per length of wait."""
        waits: dict[float, list[TaskId]] = {}
        for task in tasks:
            if task.wait_s is not None and task.preferred_nodes:
                waits.setdefault(task.wait_s, []).append(task.task_id)
        return [
            Envelope(self.address, WidenTimer(job.job_id, tuple(ids)), wait_s)
            for wait_s, ids in waits.items()
        ]

    def _on_widen_timer(self, msg: WidenTimer, now: float) -> list[Envelope]:
        job = self._ledger.jobs.get(msg.job_id)
        if job is None:
            return []
        nodes = self._ledger.eligible(job.submit.options)
        return self._reserve(job, job.placer.widen(msg.tasks, nodes), now) if nodes else []

    def _on_refuse_reservations(self, msg: RefuseReservations, now: float) -> list[Envelope]:
        job = self._ledger.jobs.get(msg.job_id)
        if job is None or msg.node not in job.reserved:
            return []
        job.refusals += 1
        if job.refusals > self._config.refusals_max:
            text = f"nodes with full queues refused it {job.refusals} times"
            return self._abort(job, "overloaded", text, job.story)
        count = min(msg.count, job.reserved[msg.node].count)
        nodes = self._ledger.eligible(job.submit.options)
        if job.refusals > _REFUSALS_A_NODE * len(nodes):
            return []  # all are full: the node's heartbeat makes us try it again
        moved = job.placer.refused(msg.node, count, nodes)
        if moved:
            self._ledger.consume(job, msg.node, count)
        return self._reserve(job, moved, now)  # or none: it is tried again, too

    def _cancel_reservations(self, job: Job) -> list[Envelope]:
        nodes = tuple(job.reserved)
        job.reserved.clear()
        if not self._config.cancellation:
            return []
        job.cancelled_on.update(dict.fromkeys(nodes))
        cancel = CancelReservations(job.job_id)
        return [Envelope(self._ledger.nodes[node].address, cancel) for node in nodes]

    def _abort_deserted(self, now: float) -> list[Envelope]:
        """End jobs whose tasks wait for executors that do not come back, at nodes or here."""
        out: list[Envelope] = []
        for job in tuple(self._ledger.jobs.values()):
            nodes = [self._ledger.nodes[n] for n in self._ledger.eligible(job.submit.options)]
            framework = job.submit.options.framework
            unfinished = job.placer.waiting or job.running
            if any(each.framework == framework for node in nodes for each in node.executors):
                job.served_at = now
            elif unfinished and now - job.served_at > self._config.executors_wait_s:
                deaths = "; ".join(node.last_death for node in nodes if node.last_death)
                text = f"no executor has come up for {self._config.executors_wait_s:g} s"
                out += self._abort(job, "no_nodes", f"{text}; {deaths or 'none died'}", job.story)
        return out

    # --- jobs go -------------------------------------------------------------------------------

    def _abort(
        self, job: Job, kind: str, message: str, story: tuple[str, ...] = ()
    ) -> list[Envelope]:
        aborted = JobAborted(job.job_id, kind, message, story)
        return [Envelope(job.submit.client, aborted), *self._end(job.job_id, aborted)]

    def _end(
        self, job_id: JobId, aborted: JobAborted | None, *, at_once: bool = True
    ) -> list[Envelope]:
        """Forget the job and tell its nodes, or let their heartbeats find out."""
        self._remember_ended(job_id, aborted)
        self._parked.pop(job_id, None)
        self._probing.pop(job_id, None)
        job = self._ledger.jobs.get(job_id)
        if job is None:
            return []
        nodes = self._ledger.end(job)
        if at_once:
            return [Envelope(address, EndJob(job_id)) for address in nodes.values()]
        return [Envelope(nodes[name], EndJob(job_id)) for name in job.reserved if name in nodes]

    def _remember_ended(self, job_id: JobId, aborted: JobAborted | None) -> None:
        self._ended[job_id] = aborted
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _on_ping_job(self, msg: PingJob, now: float) -> list[Envelope]:
        job = self._ledger.jobs.get(msg.job_id)
        if job is None:
            status = JobStatus(msg.job_id, self._has(msg.job_id), ())
        else:
            job.heard_at = now
            finished = tuple(task_id for task_id in msg.missing if task_id in job.finished)
            status = JobStatus(msg.job_id, True, finished)
        return [Envelope(msg.client, status)]

    # --- tasks ---------------------------------------------------------------------------------

    def _on_get_tasks(self, msg: GetTasks, now: float) -> list[Envelope]:
        out = self._on_reports(msg.reports, now)
        node = self._ledger.nodes.get(msg.node)
        if node is None:
            return out  # its heartbeat will tell us; the node asks again or gives up
        node.heard_at = now
        job = self._ledger.jobs.get(msg.job_id)
        if job is None:
            answer = AssignTasks(
                msg.job_id, self.address, self.address, msg.request, (), True, False
            )
            return [*out, Envelope(node.address, answer)]
        return [*out, *self._assign(job, msg, node, now)]

    def _assign(self, job: Job, msg: GetTasks, node: Node, now: float) -> list[Envelope]:
        if msg.node in job.cancelled_on and not job.placer.offers(msg.node):
            return []  # answered already
        tasks = job.placer.take(msg.node, msg.count)
        drained = not job.placer.offers(msg.node)
        self._ledger.consume(job, msg.node, len(tasks))
        if drained:
            job.reserved.pop(msg.node, None)
        has_shared = bool(job.submit.shared)
        out = []
        if tasks and has_shared and msg.node not in job.shared_on:
            job.shared_on[msg.node] = None
            out.append(self._share(job, node.address))
        assignments = tuple(self._ledger.bind(job, tasks, msg.node, now) if tasks else ())
        answer = AssignTasks(
            job.job_id, self.address, job.submit.client, msg.request,
            assignments, drained, has_shared, job.claim,
        )  # fmt: skip
        out.append(Envelope(node.address, answer))
        if job.trail is not None:
            bound = tuple(task.task_id for task in tasks)
            job.trail.add(now, msg.node, "asked", msg.count, bound)
        return out if job.placer.waiting else [*out, *self._all_bound(job)]

    def _all_bound(self, job: Job) -> list[Envelope]:
        """No task of the job waits any more: nodes drop its reservations."""
        out = self._cancel_reservations(job)
        if job.trail is not None and job.trail.steps:
            out.append(Envelope(job.submit.client, JobPlaced(job.job_id, job.trail.take())))
        return out

    def _on_get_shared(self, msg: GetShared) -> list[Envelope]:
        job = self._ledger.jobs.get(msg.job_id)
        return [self._share(job, msg.asker)] if job else []

    def _share(self, job: Job, to: Address) -> Envelope:
        return Envelope(to, JobShared(job.job_id, self.address, job.submit.shared))

    def _on_reports(self, reports: tuple[JobReport, ...], now: float) -> list[Envelope]:
        out: list[Envelope] = []
        for report in reports:
            job = self._ledger.jobs.get(report.job_id)
            if job is None:
                continue  # it is over
            out += self._finish(job, report.done)
            for loss in report.lost:
                run = job.running.get(loss.task_id)
                if run is None or run.attempt != loss.attempt:
                    continue  # told twice, or an attempt that had been given up
                out += self._lose(job, loss.task_id, f"/{loss.executor}", loss.reason, now)
        return out

    def _finish(self, job: Job, task_ids: Sequence[TaskId]) -> list[Envelope]:
        """Any attempt's success counts, also that of one which had been given up."""
        waiting = job.placer.waiting
        withdrawn = False
        for task_id in task_ids:
            if task_id in waiting:
                job.placer.withdraw(task_id)
                withdrawn = True
            elif task_id in job.tasks:
                self._ledger.unbind(job, task_id)
            else:
                continue  # nonsense
            job.finished[task_id] = None
        return self._all_bound(job) if withdrawn and not waiting else []

    def _lose(
        self, job: Job, task_id: TaskId, executor: str, reason: str, now: float
    ) -> list[Envelope]:
        """An attempt has failed; `executor` is where, after the node's name, if that is known."""
        node = job.running[task_id].node
        self._ledger.unbind(job, task_id)
        return self._try_again(job, task_id, f"{node}{executor}: {reason}", (node,), now)

    def _try_again(
        self, job: Job, task_id: TaskId, reason: str, avoid: tuple[NodeName, ...], now: float
    ) -> list[Envelope]:
        story = job.stories.setdefault(task_id, [])
        story.append(f"task {task_id} attempt {len(story) + 1}: {reason}")
        if len(story) >= self._config.max_attempts:
            message = f"task {task_id} was lost {len(story)} times; at last: {reason}"
            return self._abort(job, "task_lost", message, tuple(story))
        return self._place(job, (job.tasks[task_id],), avoid, now)

    def _on_rerun_tasks(self, msg: RerunTasks, now: float) -> list[Envelope]:
        out: list[Envelope] = []
        for task_id in msg.tasks:
            job = self._ledger.jobs.get(msg.job_id)
            if job is not None and task_id in job.finished:
                del job.finished[task_id]
                out += self._try_again(job, task_id, "its result never reached the client", (), now)
        return out


def kind_of(error: Unsatisfiable | NoNodes) -> str:
    """The kind of `JobFailed` that an error becomes."""
    return "unsatisfiable" if isinstance(error, Unsatisfiable) else "no_nodes"
