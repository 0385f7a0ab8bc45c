"""The scheduler: places tasks by reservations and late binding (Sparrow, SOSP'13, section 3).

A job's tasks are each in one of three states:

    waiting (in the job's placer) ──GetTasks──▶ running (on a node) ──report──▶ finished
          ▲                                          │
          └── lost: reported, or node dead, or its heartbeat does not know the task;
              at most `max_attempts` attempts

A placement that needs loads (batch and per-task sampling) probes nodes first; a job that no known
node can run is parked if nodes may still come: before the first has, or while this scheduler is so
young that it cannot have heard of all.

A scheduler keeps nothing that cannot be learned again: nodes from their heartbeats, jobs from their
clients (which resubmit what is unfinished). What the network loses is found by comparing with a
node's heartbeat, after `grace_s`. A job whose client is silent for `lease_s` is ended. Bounds: jobs
by `jobs_max`, their reservations by what clients submit; ended ids by `ENDED_MAX`.
"""

from __future__ import annotations

from typing import Any, ClassVar, assert_never

from sparrow_core.machines.job_keeper import ENDED_MAX, JobKeeper, SchedulerConfig, kind_of
from sparrow_core.machines.ledger import Job, Node
from sparrow_core.protocol.errors import NoNodes, Unsatisfiable
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.machine import Envelope
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    CancelReservations,
    EndJob,
    EndJobs,
    GetNodes,
    GetShared,
    GetTasks,
    KnownNodes,
    NodeLeft,
    NodeLoad,
    NodeLost,
    NodeRefused,
    Ping,
    PingJob,
    Pong,
    ProbeTimer,
    RefuseReservations,
    RegisterNode,
    ReportTasks,
    RerunTasks,
    SchedulerIn,
    SetWeights,
    SubmitJob,
    Tick,
    WidenTimer,
)
from sparrow_core.protocol.types import TaskKey

__all__ = ["Scheduler", "SchedulerConfig"]


class Scheduler(JobKeeper):
    """One of any number of independent schedulers of a cluster."""

    inputs: ClassVar[Any] = SchedulerIn

    def on_message(self, msg: SchedulerIn, now: float) -> list[Envelope]:
        """Take one message; see the module docstring."""
        if self._started_at is None:
            self._started_at = now
        match msg:
            case GetTasks():
                return self._on_get_tasks(msg, now)
            case ReportTasks():
                return self._on_reports(msg.reports, now)
            case SubmitJob():
                return self._on_submit_job(msg, now)
            case EndJob():
                return self._end(msg.job_id, None, at_once=not msg.finished)
            case RegisterNode():
                return self._on_register_node(msg, now)
            case Ping():
                return [Envelope(msg.client, Pong(self.address))]
            case PingJob():
                return self._on_ping_job(msg, now)
            case NodeLoad():
                return self._on_node_load(msg, now)
            case ProbeTimer():
                return self._place_probed(msg.job_id, now)
            case WidenTimer():
                return self._on_widen_timer(msg, now)
            case RefuseReservations():
                return self._on_refuse_reservations(msg, now)
            case RerunTasks():
                return self._on_rerun_tasks(msg, now)
            case GetShared():
                return self._on_get_shared(msg)
            case SetWeights():
                return self._on_set_weights(msg)
            case GetNodes():
                known = KnownNodes(self.address, self._ledger.node_infos())
                return [Envelope(msg.client, known)]
            case NodeLeft():
                return self._node_lost(msg.name, "it has drained", now)
            case NodeLost():
                return self._node_lost(msg.node, msg.reason, now)
            case Tick():
                return self._on_tick(msg, now)
            case _:
                assert_never(msg)

    # --- nodes ---------------------------------------------------------------------------------

    def _on_register_node(self, msg: RegisterNode, now: float) -> list[Envelope]:
        if msg.version != PROTOCOL_VERSION:
            text = f"this scheduler speaks protocol {PROTOCOL_VERSION}, the node {msg.version}"
            return [Envelope(msg.address, NodeRefused(text))]
        out: list[Envelope] = []
        nodes = self._ledger.nodes
        if msg.name in nodes and nodes[msg.name].address != msg.address:
            out += self._node_lost(msg.name, "the node was started anew", now)
        node = nodes.setdefault(msg.name, Node(msg.address, now))
        node.heard_at = now
        node.load = msg.load
        node.deaths, node.last_death = msg.deaths, msg.last_death
        if self._ledger.update_node(node, msg.executors, msg.attributes, msg.draining):
            out += self._offer(msg.name, now)
            out += self._admit_parked(now)
        out += self._on_reports(msg.reports, now)
        return [*out, *self._compare_weights(msg), *self._reconcile(node, msg, now)]

    def _offer(self, name: NodeName, now: float) -> list[Envelope]:
        """Let open jobs use a node that has joined while they wait."""
        out: list[Envelope] = []
        for job in self._ledger.jobs.values():
            nodes = self._ledger.eligible(job.submit.options)
            if job.placer.waiting and name in nodes and name not in job.reserved:
                out += self._reserve(job, job.placer.node_joined(name, len(nodes)), now)
        return out

    def _admit_parked(self, now: float) -> list[Envelope]:
        parked, self._parked = self._parked, {}
        return [out for msg, until in parked.values() for out in self._admit(msg, until, now)]

    def _on_set_weights(self, msg: SetWeights) -> list[Envelope]:
        if msg.version <= self._weights.version:
            return []
        self._weights = msg
        return [Envelope(node.address, msg) for node in self._ledger.nodes.values()]

    def _compare_weights(self, msg: RegisterNode) -> list[Envelope]:
        """Whoever knows newer weights tells the other: a restarted scheduler learns them again."""
        if msg.weights.version < self._weights.version:
            return [Envelope(msg.address, self._weights)]
        return self._on_set_weights(msg.weights)

    def _reconcile(self, node: Node, msg: RegisterNode, now: float) -> list[Envelope]:
        """Make up for lost messages: compare what the node has with what it should have."""
        held = {job.job_id: job.reservations for job in msg.held}
        over = tuple(job_id for job_id in held if job_id not in self._ledger.jobs)
        out = [Envelope(node.address, EndJobs(over))] if over else []
        for job_id in tuple(node.jobs):
            out += self._reconcile_held(job_id, msg.name, held.get(job_id, 0), now)
        running = dict.fromkeys(msg.running)
        late = now - self._config.grace_s
        for job, task_id in self._ledger.running_on(msg.name):
            run = job.running.get(task_id)
            if run is None or run.at > late:
                continue
            if TaskKey(job.job_id, task_id, run.attempt) not in running:
                out += self._lose(job, task_id, "", "the node does not know of it", now)
        return out

    def _reconcile_held(
        self, job_id: JobId, name: NodeName, count: int, now: float
    ) -> list[Envelope]:
        job = self._ledger.jobs.get(job_id)
        if job is None:
            return []  # ended while this heartbeat was handled
        should = job.reserved.get(name)
        if should is None:
            if count == 0 or job.placer.offers(name):
                return []
            job.cancelled_on[name] = None
            return [Envelope(self._ledger.nodes[name].address, CancelReservations(job_id))]
        if count >= should.count or should.at > now - self._config.grace_s:
            return []
        missing = should.count - count
        should.count = count
        return self._reserve(job, {name: missing}, now)

    def _node_lost(self, name: NodeName, reason: str, now: float) -> list[Envelope]:
        node = self._ledger.nodes.get(name)
        if node is None:
            return []
        node.draining = True  # nothing more goes there
        self._ledger.eligibility_changed()
        out: list[Envelope] = []
        for running, task_id in self._ledger.running_on(name):
            if task_id in running.running:
                out += self._lose(running, task_id, "", f"node lost ({reason})", now)
        for job_id in tuple(node.jobs):
            job = self._ledger.jobs.get(job_id)
            if job is not None:
                out += self._move_reservations(job, name, now)
        self._ledger.remove_node(name)
        return out

    def _move_reservations(self, job: Job, name: NodeName, now: float) -> list[Envelope]:
        job.shared_on.pop(name, None)
        held = job.reserved.pop(name, None)
        nodes = self._ledger.eligible(job.submit.options)
        try:
            reservations = job.placer.node_lost(name, held.count if held else 0, nodes)
        except (Unsatisfiable, NoNodes) as error:
            return self._abort(job, kind_of(error), str(error), job.story)
        return self._reserve(job, reservations, now)

    # --- time ----------------------------------------------------------------------------------

    def _on_tick(self, msg: Tick, now: float) -> list[Envelope]:
        if msg.generation != self._generation:
            return []  # a doubled timer
        self._generation += 1
        config = self._config
        self._forgive_stall(now)
        out = [Envelope(self.address, Tick(self._generation), config.tick_s)]
        for name, node in tuple(self._ledger.nodes.items()):
            if node.heard_at < now - config.node_timeout_s:
                out += self._node_lost(name, f"silent for {config.node_timeout_s:g} s", now)
        if any(deadline <= now for _, deadline in self._parked.values()):
            out += self._admit_parked(now)
        for job in tuple(self._ledger.jobs.values()):
            if job.heard_at < now - config.lease_s:
                out += self._end(job.job_id, None)
        return [*out, *self._abort_deserted(now)]

    def _forgive_stall(self, now: float) -> None:
        """Time in which this scheduler did not run itself is nobody else's silence."""
        last = self._ticked_at if self._ticked_at is not None else now
        stall_s = now - last - self._config.tick_s
        self._ticked_at = now
        if stall_s > self._config.tick_s:
            for node in self._ledger.nodes.values():
                node.heard_at = min(now, node.heard_at + stall_s)
            for job in self._ledger.jobs.values():
                job.heard_at = min(now, job.heard_at + stall_s)

    def gauges(self) -> dict[str, float]:
        """How much there is of what."""
        waiting = {"parked": len(self._parked), "probing": len(self._probing)}
        return {**self._ledger.gauges(), **waiting}

    def check(self) -> None:
        """Assert the ledger's invariants, and that each job is in one place."""
        self._ledger.check()
        jobs = [*self._ledger.jobs, *self._parked, *self._probing]
        assert len(dict.fromkeys(jobs)) == len(jobs)
        for job in self._ledger.jobs.values():
            assert all(run.attempt <= self._config.max_attempts for run in job.running.values())
        assert len(self._ended) <= ENDED_MAX
