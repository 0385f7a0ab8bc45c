"""The scheduler: batch sampling and late binding (Sparrow, SOSP'13, section 3).

A cluster has any number of schedulers. Each places the jobs of its own clients by putting
reservations into the queues of node monitors. They need not know of each other; nodes say in
heartbeats which there are, for placements that tell each other what is on nodes (Notes).

Life of a job in a scheduler (a job id is in exactly one of these tables):

                       no node fits yet    ┌────────┐  deadline passed
                    ┌─────────────────────▶│ parked │──────────────────────────┐
                    │                      └───┬────┘                          │
                    │        a node registers, │ or the deadline passes        │
    SubmitJob ──▶ admit ◀──────────────────────┘                               │
                    │                      ┌─────────┐ no node fits any more   │
                    ├─────────────────────▶│ probing │────────────────────────▶│
                    │ placement wants      └───┬─────┘                         │
                    │ the nodes' loads         │ all NodeLoads, or ProbeTimer  ▼
                    │                          ▼                           ┌───────┐
                    └─────────────────────▶┌──────┐ EndJob, lease over, ──▶│ ended │
                          else             │ open │ attempts exhausted ... └───────┘
                                           └──────┘

Life of a task of an open job (`Ledger.check` asserts that it is in exactly one state):

    waiting (in the job's placer) ──GetTasks──▶ running (on a node) ──JobReport──▶ finished
       ▲         (WithdrawTasks: finished at once)  │                                  │
       └── lost: reported, its node died, or ◀─────┘          RerunTasks: the result  │
           the node's heartbeat lacks it                      never came to the ◀─────┘
           (at most `max_attempts` times, not counting        client
           what was lost with a message)

A job that comes from another scheduler, which was silent to its client, is *taken over*: before it
is placed, all nodes are asked what they have of its earlier submissions, for at most
`take_over_wait_s` (it is in the table `hand_over` meanwhile). Attempts that run are adopted:
nobody interrupts them, or runs their tasks again. Nodes are fenced by the question: they take
nothing of the job from its old scheduler any more, which may only have been slow.

Late binding: a reservation carries no task. A node with a free slot sends GetTasks and gets the
job's oldest waiting task that may run there. When no task waits any more, the remaining
reservations are withdrawn (CancelReservations). Where a job's placer wants it, a node that falls
idle says so (ReportTasks), and gets a reservation of the oldest job that waits (`_feed`). That
takes the place of nodes that steal from each other.

What the scheduler relies on:

- Messages between processes may be lost, duplicated or reordered. Whatever a message changes is
  therefore idempotent, or guarded by an attempt number, a request number or a job id that is never
  used again. What is lost is found out by comparing a node's heartbeat with the ledger
  (`_reconcile`), once `grace_s` has passed since the last message about it.
- Its state can be rebuilt: nodes announce themselves with heartbeats, clients resubmit what is
  unfinished to another scheduler. So nothing is written to disk. A job that a node names and nobody
  here knows may still come, so it is ended only when `lease_s` has passed.
- Clients ping. A job whose client is silent for `lease_s` is ended.

Bounds: open jobs by `jobs_max`, reservations by what clients submit, remembered ids of ended and
of unknown jobs by `ENDED_MAX`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, NamedTuple, assert_never

from msgspec import Struct

from machine_kit.addresses import Address, endpoint_of
from machine_kit.machine import Envelope, Tick
from machine_kit.ticks import Ticks
from sparrow_core.machines.hand_over import HandOver, TakingOver
from sparrow_core.machines.ledger import Job, Ledger, Node, Trail
from sparrow_core.policy.placement import Placements
from sparrow_core.policy.placer import Placer, Reservations
from sparrow_core.protocol.errors import InvalidJob, NoNodes, PlacementFailed, Unsatisfiable
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AcceptTimer,
    AskNodes,
    AssignTasks,
    CancelReservations,
    EndJob,
    EndJobs,
    GetNodes,
    GetShared,
    GetTasks,
    JobAborted,
    JobAccepted,
    JobPlaced,
    JobShared,
    JobStatus,
    KnownNodes,
    NodeLeft,
    NodeLoad,
    NodeLost,
    NodeRefused,
    Notes,
    PeerGone,
    Ping,
    PingJob,
    Pong,
    ProbeLoad,
    ProbeTimer,
    RefuseReservations,
    RegisterNode,
    ReportTasks,
    RerunTasks,
    Reserve,
    ReturnTask,
    SchedulerIn,
    SetWeights,
    StopTask,
    SubmitJob,
    TakenOver,
    TakeOver,
    TakeOverTimer,
    TaskAbandoned,
    TasksWithdrawn,
    WidenTimer,
    WithdrawTasks,
)
from sparrow_core.protocol.types import (
    Blame,
    JobOptions,
    JobReport,
    KeptJob,
    MovedJob,
    NodeLevel,
    RunningTask,
    TaskKey,
    TaskSpec,
)

ENDED_MAX = 32_768
# Refusals per eligible node after which all queues count as full and nothing more is moved.
_REFUSALS_PER_NODE = 2


class SchedulerConfig(Struct, frozen=True, kw_only=True):
    """Limits of a scheduler.

    Attributes:
        max_attempts: Lost attempts at a task after which its job fails. One whose executor fell
            silent counts twice; those that were lost with a message do not count.
        max_tries: The same, but all count once.
        accept_wait_s: How long a job may be open before its client is told that it has come:
            short jobs are over by then.
        tick_s: Interval at which silent nodes and clients are looked for.
        node_timeout_s: A node that is silent for this long is dead.
        nodes_wait_s: How long a job waits for the first node of the cluster.
        executors_wait_s: How long a job waits for a new executor when all of them have died, also
            for the first one of a node that has just joined.
        settle_s: How long a new scheduler waits for nodes before it calls a job unsatisfiable.
        lease_s: A job whose client is silent for this long is ended.
        grace_s: How long a message may take before a heartbeat that contradicts it is believed.
        probe_wait_s: How long to wait for the loads of probed nodes.
        take_over_wait_s: How long a job that comes from another scheduler waits until all nodes
            have said what they run of it.
        jobs_max: Open jobs; more are refused.
        refusals_max: Refusals by nodes with full queues before a job fails.
        cancellation: Whether reservations are withdrawn when all tasks of a job are bound.
        release: What must be equal in a cluster beside the protocol, in words: nodes of another
            release are refused, and clients that name another. Empty: nothing must, as where
            all processes are one program's.
    """

    max_attempts: int = 4
    max_tries: int = 30
    accept_wait_s: float = 0.01
    tick_s: float = 0.5
    node_timeout_s: float = 3.0
    nodes_wait_s: float = 5.0
    executors_wait_s: float = 15.0
    settle_s: float = 1.0
    lease_s: float = 10.0
    grace_s: float = 1.0
    probe_wait_s: float = 0.02
    take_over_wait_s: float = 1.0
    jobs_max: int = 100_000
    refusals_max: int = 1000
    cancellation: bool = True
    release: str = ""


@dataclass(slots=True)
class _Admitted:
    """A job that is about to be placed, perhaps after the loads of the nodes in `awaited`."""

    submit: SubmitJob
    placer: Placer
    awaited: dict[NodeName, None]
    trail: Trail | None
    loads: dict[NodeName, int] = field(default_factory=dict)


class _Ended(NamedTuple):
    """A job that is over here; its verdict, if it was aborted, answers a repeated SubmitJob.

    Nodes that still name it are told to drop it from `told_from` on: if it has moved to another
    scheduler, later, because that one may still be about to take it over there.
    """

    aborted: JobAborted | None
    told_from: float


_FINISHED = _Ended(None, 0.0)  # one for all: tens of thousands are remembered


class Scheduler:
    """One of any number of independent schedulers of a cluster."""

    inputs: ClassVar[Any] = SchedulerIn

    def __init__(
        self,
        address: Address,
        rng: Random,
        config: SchedulerConfig | None = None,
        placements: Placements | None = None,
    ) -> None:
        """Make a scheduler that knows no node yet; all placement is drawn from `rng`.

        By default, jobs may name any placement that can be imported.
        """
        self.address = address
        self._rng = rng
        self._config = config or SchedulerConfig()
        self._placements = placements or Placements()
        self._watching = self._placements.watching  # a plain list: it is asked with each message
        self._ledger = Ledger()  # nodes, open jobs, and who should hold what
        self._parked: dict[JobId, tuple[SubmitJob, float]] = {}  # with the deadline
        self._probing: dict[JobId, _Admitted] = {}
        self._hand_over = HandOver()  # jobs that come from another scheduler
        self._ended: OrderedDict[JobId, _Ended] = OrderedDict()
        # Since when nodes have named jobs that nobody here knows.
        self._unknown: OrderedDict[JobId, float] = OrderedDict()
        self._unacknowledged: dict[JobId, Address] = {}  # open jobs, and their clients
        self._peers: tuple[Address, ...] = ()  # other schedulers of the nodes
        # Jobs with waiting tasks that go to nodes that fall idle.
        self._hungry: OrderedDict[JobId, Job] = OrderedDict()
        self._accept_due = False
        self._weights = SetWeights()
        self._ticks = Ticks(address, self._config.tick_s)
        self._started_at: float | None = None

    def on_message(self, msg: SchedulerIn, now: float) -> list[Envelope]:
        if self._started_at is None:
            self._started_at = now
        try:
            return self._dispatch(msg, now)
        except PlacementFailed as error:
            # What else was to be done is made up for by the next heartbeats, as if it were lost.
            job = self._ledger.jobs.get(JobId(error.job_id))
            return self._abort(job, "invalid", str(error)) if job else []

    def _dispatch(self, msg: SchedulerIn, now: float) -> list[Envelope]:
        match msg:  # the most frequent messages first
            case GetTasks():
                return [*self._on_get_tasks(msg, now), *self._tell_peers(now)]
            case ReportTasks():
                return self._on_report_tasks(msg, now)
            case SubmitJob():
                return self._on_submit_job(msg, now)
            case EndJob():
                return self._on_end_job(msg, now)
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
            case AcceptTimer():
                return self._acknowledge()
            case WidenTimer():
                return self._on_widen_timer(msg, now)
            case RefuseReservations():
                return self._on_refuse_reservations(msg, now)
            case RerunTasks():
                return self._on_rerun_tasks(msg, now)
            case TakenOver():
                return self._on_taken_over(msg, now)
            case AskNodes():
                return self._ask_nodes()
            case Notes():
                return self._on_notes(msg, now)
            case TakeOverTimer():
                return self._open_taken_over(msg.job_id, now)
            case GetShared():
                return self._on_get_shared(msg)
            case WithdrawTasks():
                return self._on_withdraw_tasks(msg)
            case SetWeights():
                return self._on_set_weights(msg)
            case GetNodes():
                nodes = KnownNodes(self.address, self._ledger.node_infos())
                return [Envelope(msg.client, nodes)]
            case NodeLeft():
                reported = self._on_reports(msg.reports, now)
                return [*reported, *self._node_lost(msg.name, "it has drained", now)]
            case NodeLost():
                return self._node_lost(msg.node, msg.reason, now)
            case PeerGone():
                return self._on_peer_gone(msg, now)
            case Tick():
                return self._on_tick(msg, now)
            case _:
                assert_never(msg)

    # --- admission -----------------------------------------------------------------------------

    def _on_submit_job(self, msg: SubmitJob, now: float) -> list[Envelope]:
        if self._has(msg.job_id):
            self._unacknowledged.pop(msg.job_id, None)
            return [Envelope(msg.client, JobAccepted(msg.job_id))]  # ours was late or lost
        if msg.job_id in self._ended:
            # The client may have missed the verdict. If the job was ended at its own wish, it
            # wants no answer.
            aborted = self._ended[msg.job_id].aborted
            return [Envelope(msg.client, aborted)] if aborted else []
        if msg.version != PROTOCOL_VERSION:
            text = f"this scheduler speaks protocol {PROTOCOL_VERSION}, the client {msg.version}"
            return self._refuse(msg, "protocol", text, now)
        release = self._config.release
        if release and msg.release not in ("", release):
            text = self._other_release("client", msg.release)
            return self._refuse(msg, "protocol", text, now)
        if len(self._ledger.jobs) + len(self._parked) >= self._config.jobs_max:
            text = f"this scheduler has {self._config.jobs_max} jobs already"
            return self._refuse(msg, "overloaded", text, now)
        try:
            self._placements.of(msg.placement)  # from its first job on, it is told of all
        except InvalidJob as error:
            return self._refuse(msg, "invalid", str(error), now)
        for placement in self._watching:
            placement.on_job(msg, now)
        out: list[Envelope] = []
        if not self._accept_due:
            self._accept_due = True
            out.append(Envelope(self.address, AcceptTimer(), self._config.accept_wait_s))
        self._unacknowledged[msg.job_id] = msg.client
        return [*out, *self._begin(msg, self._admission_deadline(msg.options, now), now)]

    def _begin(self, msg: SubmitJob, until: float, now: float) -> list[Envelope]:
        return self._take_over(msg, until, now) if msg.replaces else self._admit(msg, until, now)

    def _acknowledge(self) -> list[Envelope]:
        """Tell clients that their jobs have come."""
        self._accept_due = False
        clients, self._unacknowledged = self._unacknowledged, {}
        return [Envelope(client, JobAccepted(job_id)) for job_id, client in clients.items()]

    def _has(self, job_id: JobId) -> bool:
        tables = (self._ledger.jobs, self._parked, self._probing, self._hand_over.jobs)
        return any(job_id in table for table in tables)

    def _admission_deadline(self, options: JobOptions, now: float) -> float:
        """Until when a job may wait for a node that satisfies it."""
        if self._ledger.is_empty() or not (_needs(options) or self._ledger.eligible(options)):
            return now + self._config.nodes_wait_s
        # A scheduler that has just been started may not have heard from all nodes yet.
        return (self._started_at or 0.0) + self._config.settle_s

    def _admit(self, msg: SubmitJob, deadline: float, now: float) -> list[Envelope]:
        """Probe for the job if its placement wants that, or place it at once."""
        assert not self._has(msg.job_id), "a job is in one table only"
        try:
            placer = self._placements.placer(msg.placement, msg, self._rng)
            nodes = self._eligible(msg.options)
            probes = placer.probes(msg.tasks, nodes)
            trail = Trail(now) if msg.options.explain else None
            admitted = _Admitted(msg, placer, dict.fromkeys(probes), trail)
            if probes and placer.waits_for_loads:
                return self._probe(admitted, now)
            return [*self._send_probes(admitted, now), *self._open(admitted, nodes, now)]
        except InvalidJob as error:
            return self._refuse(msg, "invalid", str(error), now)
        except (Unsatisfiable, NoNodes) as error:
            return self._park(msg, deadline, error, now)

    def _park(
        self, msg: SubmitJob, deadline: float, error: Unsatisfiable | NoNodes, now: float
    ) -> list[Envelope]:
        """No node fits: wait for one, if there is time."""
        if now < deadline:
            self._parked[msg.job_id] = (msg, deadline)
            return []
        return self._refuse(msg, _kind_of(error), str(error), now)

    def _admit_parked(self, now: float) -> list[Envelope]:
        # Taken out first: _admit puts back what still finds no node.
        parked, self._parked = self._parked, {}
        return [out for msg, until in parked.values() for out in self._begin(msg, until, now)]

    def _eligible(self, options: JobOptions) -> Sequence[NodeName]:
        """The nodes on which a job may be placed.

        Raises:
            NoNodes: There is no node with an executor, which passes while nodes are started again.
            Unsatisfiable: There are nodes, but none that the job may run on.
        """
        nodes = self._ledger.eligible(options)
        if nodes:
            return nodes
        needs = _needs(options)
        if self._ledger.is_empty() or not needs:
            raise NoNodes("no live node is left")
        raise Unsatisfiable(f"no live node has {' and '.join(needs)}")

    def _left_for(self, job: Job, now: float) -> Sequence[NodeName]:
        """The nodes on which an open job may be placed again; perhaps none.

        If there is no other, those that have just joined: `_abort_deserted` ends the job if they
        get no executors for it.
        """
        options = job.submit.options
        starting_since = now - self._config.executors_wait_s
        return self._ledger.eligible(options) or self._ledger.starting(options, starting_since)

    def _probe(self, probing: _Admitted, now: float) -> list[Envelope]:
        job_id = probing.submit.job_id
        self._probing[job_id] = probing
        # The timer bounds the wait: a probe or its answer may be lost.
        timer = Envelope(self.address, ProbeTimer(job_id), self._config.probe_wait_s)
        return [*self._send_probes(probing, now), timer]

    def _send_probes(self, admitted: _Admitted, now: float) -> list[Envelope]:
        probe = ProbeLoad(admitted.submit.job_id, self.address)
        if admitted.trail is not None:
            for node in admitted.awaited:
                admitted.trail.add(now, node, "probed", 1)
        return [Envelope(self._ledger.nodes[node].address, probe) for node in admitted.awaited]

    def _on_node_load(self, msg: NodeLoad, now: float) -> list[Envelope]:
        for placement in self._watching:
            placement.on_load(msg.node, msg.load, now)
        probing = self._probing.get(msg.job_id)
        if probing is None:
            return []  # too late: placed without it
        probing.loads[msg.node] = msg.load
        if probing.trail is not None:
            probing.trail.add(now, msg.node, "told", msg.load)
        probing.awaited.pop(msg.node, None)
        return [] if probing.awaited else self._place_probed(msg.job_id, now)

    def _place_probed(self, job_id: JobId, now: float) -> list[Envelope]:
        probing = self._probing.pop(job_id, None)
        if probing is None:
            return []  # placed already, or over
        try:
            probing.placer.note_loads(probing.loads)
            nodes = self._eligible(probing.submit.options)  # may have changed since the probes
            return self._open(probing, nodes, now)
        except InvalidJob as error:
            return self._refuse(probing.submit, "invalid", str(error), now)
        except (Unsatisfiable, NoNodes) as error:
            return self._refuse(probing.submit, _kind_of(error), str(error), now)

    def _open(self, admitted: _Admitted, nodes: Sequence[NodeName], now: float) -> list[Envelope]:
        """Place all tasks; raises what `Placer.place` raises, and then the job is not open."""
        msg = admitted.submit
        reservations = admitted.placer.place(msg.tasks, nodes)
        job = self._opened(msg, admitted.placer, admitted.trail, now)
        return [*self._reserve(job, reservations, now), *self._widen_timers(job, msg.tasks)]

    def _opened(self, msg: SubmitJob, placer: Placer, trail: Trail | None, now: float) -> Job:
        assert not self._has(msg.job_id), "a job is in one table only"
        tasks = {task.task_id: task for task in msg.tasks}
        job = Job(submit=msg, tasks=tasks, placer=placer, served_at=now, trail=trail)
        self._ledger.open(job, now)
        if placer.uses_idle and placer.waiting:
            self._hungry[msg.job_id] = job
        self._unknown.pop(msg.job_id, None)
        return job

    def _refuse(self, msg: SubmitJob, kind: str, message: str, now: float) -> list[Envelope]:
        aborted = JobAborted(msg.job_id, kind, message)
        self._remember_ended(msg.job_id, _Ended(aborted, now))
        return [Envelope(msg.client, aborted)]

    # --- jobs of other schedulers --------------------------------------------------------------

    def _take_over(self, msg: SubmitJob, until: float, now: float) -> list[Envelope]:
        """Ask all nodes what they have of the job, before any of its tasks is placed."""
        for earlier in msg.replaces:
            self._forget(earlier, now)  # perhaps they were ours
        is_first = self._hand_over.begin(msg, until, self._ledger.nodes)
        # The timer bounds the wait: a node may be dead. A scheduler that has just been started may
        # not have heard from all nodes yet.
        wait_s = max(self._config.take_over_wait_s, self._settled_at() - now)
        timer = Envelope(self.address, TakeOverTimer(msg.job_id), wait_s)
        return [timer, Envelope(self.address, AskNodes())] if is_first else [timer]

    def _ask_nodes(self) -> list[Envelope]:
        jobs = self._hand_over.for_all()
        return [out for name in self._ledger.nodes for out in self._ask(name, jobs)]

    def _ask(self, name: NodeName, jobs: Mapping[JobId, MovedJob]) -> list[Envelope]:
        if not jobs:
            return []
        self._hand_over.asked(name, jobs)
        question = TakeOver(self.address, tuple(jobs.values()))
        return [Envelope(self._ledger.nodes[name].address, question)]

    def _settled_at(self) -> float:
        return (self._started_at or 0.0) + self._config.settle_s

    def _ask_again(self, name: NodeName, *, joined: bool) -> list[Envelope]:
        """Ask a node that has been heard what it has of jobs that were taken over."""
        if not joined:
            return self._ask(name, self._hand_over.unanswered(name))
        opened = [job.submit for job in self._ledger.jobs.values() if job.submit.replaces]
        return self._ask(name, self._hand_over.for_joined(name, opened))

    def _on_taken_over(self, msg: TakenOver, now: float) -> list[Envelope]:
        node = self._ledger.nodes.get(msg.node)
        if node is None:
            return []  # lost, or not registered yet: then it will be asked again
        out: list[Envelope] = []
        for kept in msg.jobs:
            taking = self._hand_over.answered(msg.node, kept)
            job = self._ledger.jobs.get(kept.job_id)
            if taking is not None:
                out += self._open_if_known(taking, now)
            elif job is not None:
                out += self._adopt_late(job, msg.node, kept, now)
            elif self._is_over(kept.job_id, now):  # not if it has moved on
                out.append(Envelope(node.address, EndJob(kept.job_id)))
        return out

    def _open_if_known(self, taking: TakingOver, now: float) -> list[Envelope]:
        if taking.awaited or now < self._settled_at():
            return []
        return self._open_taken_over(taking.submit.job_id, now)

    def _open_taken_over(self, job_id: JobId, now: float) -> list[Envelope]:
        """Adopt what runs, and place the rest."""
        taking = self._hand_over.end(job_id)
        if taking is None:
            return []  # open already, or over
        msg = taking.submit
        for name in taking.awaited:
            taking.presume(name, self._ledger.nodes[name].longest)
        running, done, waiting = taking.sorted_out()
        reservations: Reservations = {}
        try:
            placer = self._placements.placer(msg.placement, msg, self._rng)
            if waiting:  # without the loads of nodes: no time is to be lost
                reservations = placer.place(waiting, self._eligible(msg.options))
        except InvalidJob as error:
            return self._refuse(msg, "invalid", str(error), now)
        except (Unsatisfiable, NoNodes) as error:
            return self._park(msg, taking.until, error, now)
        job = self._opened(msg, placer, Trail(now) if msg.options.explain else None, now)
        job.finished.update(dict.fromkeys(done))
        for node, key in running.values():
            self._adopt(job, node, key, now)
        out = [*self._reserve(job, reservations, now), *self._widen_timers(job, waiting)]
        return out if waiting else [*out, *self._all_bound(job)]

    def _adopt(self, job: Job, node: NodeName, key: TaskKey, now: float) -> None:
        self._ledger.adopt(job, key, node, now)
        if job.trail is not None:
            job.trail.add(now, node, "adopted", 1, (key.task_id,))

    def _adopt_late(self, job: Job, node: NodeName, msg: KeptJob, now: float) -> list[Envelope]:
        """A node answers after the rest was placed: adopt what still waits."""
        had_waiting = bool(job.placer.waiting)
        # What it was presumed to run. Of that, its heartbeats tell from now on.
        presumed = job.adopted_on(node)
        for key in msg.running:
            # Tasks that run elsewhere by now run twice, and the first result counts.
            if key.task_id in job.placer.waiting:
                job.placer.withdraw(key.task_id)
                self._adopt(job, node, key, now)
            elif key.task_id in presumed:
                job.running[key.task_id].at = now
        adopted_last = had_waiting and not job.placer.waiting
        done = [
            task_id for task_id in msg.done if task_id in job.placer.waiting or task_id in presumed
        ]
        out = self._finish(job, done)
        return [*out, *self._all_bound(job)] if adopted_last else out

    def _forget(self, job_id: JobId, now: float) -> None:
        """The job is another scheduler's; it asks the nodes for what they have."""
        job = self._drop(job_id, _Ended(None, now + self._config.lease_s))
        if job is not None:
            self._ledger.end(job)

    def _is_over(self, job_id: JobId, now: float) -> bool:
        """Whether a node that names the job is to drop it."""
        if self._has(job_id) or self._ledger.find(job_id) or self._hand_over.is_replaced(job_id):
            return False
        ended = self._ended.get(job_id)
        if ended is not None:
            return ended.told_from <= now
        # A scheduler that has just been started knows no job: their clients bring them.
        since = self._unknown.setdefault(job_id, now)
        if len(self._unknown) > ENDED_MAX:
            self._unknown.popitem(last=False)
        return since <= now - self._config.lease_s

    # --- reservations --------------------------------------------------------------------------

    def _reserve(self, job: Job, reservations: Reservations, now: float) -> list[Envelope]:
        out, claim = [], job.claim
        for name, count in reservations.items():
            assert count > 0, "an empty reservation would never be asked for"
            self._ledger.hold(job, name, count, now)
            if job.trail is not None:
                job.trail.add(now, name, "reserved", count)
            msg = Reserve(job.job_id, self.address, count, claim)
            out.append(Envelope(self._ledger.nodes[name].address, msg))
        for placement in self._watching if out else ():
            placement.on_reserved(job.submit, reservations, now)
        return [*out, *self._tell_peers(now)]

    def _place(
        self, job: Job, tasks: tuple[TaskSpec, ...], avoid: tuple[NodeName, ...], now: float
    ) -> list[Envelope]:
        """Place tasks of an open job again; the job fails if that is impossible."""
        try:
            nodes = self._left_for(job, now) or self._eligible(job.submit.options)
            reservations = job.placer.place(tasks, nodes, avoid)
        except (Unsatisfiable, NoNodes) as error:
            return self._abort(job, _kind_of(error), str(error), job.story)
        if job.placer.uses_idle:
            self._hungry[job.job_id] = job
        return [*self._reserve(job, reservations, now), *self._widen_timers(job, tasks)]

    def _widen_timers(self, job: Job, tasks: Sequence[TaskSpec]) -> list[Envelope]:
        """Delay scheduling: timers after which tasks give up their preferred nodes."""
        waits: dict[float, list[TaskId]] = {}  # one timer for all tasks that wait as long
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
            return []  # over
        nodes = self._ledger.eligible(job.submit.options)
        return self._reserve(job, job.placer.widen(msg.tasks, nodes), now) if nodes else []

    def _on_refuse_reservations(self, msg: RefuseReservations, now: float) -> list[Envelope]:
        job = self._ledger.jobs.get(msg.job_id)
        if job is None or msg.node not in job.reserved:
            return []  # over, withdrawn, or a duplicate
        job.refusals += 1
        if job.refusals > self._config.refusals_max:
            text = f"nodes with full queues refused it {job.refusals} times"
            return self._abort(job, "overloaded", text, job.story)
        count = min(msg.count, job.reserved[msg.node].count)
        nodes = self._ledger.eligible(job.submit.options)
        if job.refusals > _REFUSALS_PER_NODE * len(nodes):
            # All queues are full, and moving reservations around at once would be a storm of
            # messages. The ledger still counts them as held, so that _reconcile sends them again
            # after the node's next heartbeat.
            return []
        moved = job.placer.refused(msg.node, count, nodes)
        if moved:
            self._ledger.consume(job, msg.node, count)
        return self._reserve(job, moved, now)

    def _cancel_reservations(self, job: Job) -> list[Envelope]:
        assert not job.placer.waiting, "a waiting task needs its reservations"
        nodes = tuple(job.reserved)
        job.reserved.clear()
        if not self._config.cancellation:
            return []  # nodes ask in vain and learn it from the answer
        return [self._cancel(job, node) for node in nodes]

    def _cancel(self, job: Job, node: NodeName) -> Envelope:
        job.cancelled_on[node] = None
        cancel = CancelReservations(job.job_id, job.sent[node])
        return Envelope(self._ledger.nodes[node].address, cancel)

    # --- the end of a job ----------------------------------------------------------------------

    def _abort(
        self, job: Job, kind: str, message: str, story: tuple[str, ...] = ()
    ) -> list[Envelope]:
        aborted = JobAborted(job.job_id, kind, message, story)
        ended = self._end(job.job_id, _Ended(aborted, 0.0))
        return [Envelope(job.submit.client, aborted), *ended]

    def _on_end_job(self, msg: EndJob, now: float) -> list[Envelope]:
        if msg.moved:
            self._forget(msg.job_id, now)
            return []
        job = self._ledger.jobs.get(msg.job_id)
        if job is not None and msg.finished:
            self._tell_finished(job, tuple(job.running), now)  # nodes' reports would be too late
        return self._end(msg.job_id, _FINISHED, at_once=not msg.finished)

    def _end(self, job_id: JobId, ended: _Ended, *, at_once: bool = True) -> list[Envelope]:
        """Forget the job and tell its nodes, or let their heartbeats find out."""
        job = self._drop(job_id, ended)
        if job is None:
            return []
        nodes = self._ledger.end(job)
        assert not self._has(job_id)
        if at_once:
            return [Envelope(address, EndJob(job_id)) for address in nodes.values()]
        # A finished job runs nowhere. Only reservations are worth a message now, because they
        # would cost the node a request; the rest is cleared with the next heartbeats.
        return [Envelope(nodes[name], EndJob(job_id)) for name in job.reserved if name in nodes]

    def _drop(self, job_id: JobId, ended: _Ended) -> Job | None:
        """Take the job out of the tables of those that are not open; returns it if it is open."""
        self._remember_ended(job_id, ended)
        self._parked.pop(job_id, None)
        self._probing.pop(job_id, None)
        self._hand_over.end(job_id)
        return self._ledger.jobs.get(job_id)

    def _remember_ended(self, job_id: JobId, ended: _Ended) -> None:
        self._unacknowledged.pop(job_id, None)
        self._hungry.pop(job_id, None)
        self._ended[job_id] = ended
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _abort_deserted(self, now: float) -> list[Envelope]:
        """End jobs for which there has been no executor for `executors_wait_s`."""
        out: list[Envelope] = []
        for job in tuple(self._ledger.jobs.values()):
            nodes = [self._ledger.nodes[n] for n in self._ledger.eligible(job.submit.options)]
            framework = job.submit.options.framework
            unfinished = job.placer.waiting or job.running
            if any(
                executor.framework == framework for node in nodes for executor in node.executors
            ):
                job.served_at = now
            elif unfinished and now - job.served_at > self._config.executors_wait_s:
                deaths = "; ".join(node.last_death for node in nodes if node.last_death)
                text = f"no executor has come up for {self._config.executors_wait_s:g} s"
                out += self._abort(
                    job, "no_executors", f"{text}; {deaths or 'none died'}", job.story
                )
        return out

    def _on_ping_job(self, msg: PingJob, now: float) -> list[Envelope]:
        job = self._ledger.jobs.get(msg.job_id)
        if job is None:
            status = JobStatus(msg.job_id, self._has(msg.job_id), ())
        else:
            self._ledger.clients.heard(msg.job_id, now)
            finished = tuple(task_id for task_id in msg.missing if task_id in job.finished)
            status = JobStatus(msg.job_id, True, finished)
        return [Envelope(msg.client, status)]

    # --- tasks ---------------------------------------------------------------------------------

    def _on_get_tasks(self, msg: GetTasks, now: float) -> list[Envelope]:
        # Reports first: a lost attempt that they tell of can be bound by this very request.
        out = self._on_reports(msg.reports, now)
        node = self._ledger.nodes.get(msg.node)
        if node is None:
            return out  # not registered yet: its heartbeat comes, and its request times out
        self._ledger.heard.heard(msg.node, now)
        self._note_level(msg.node, msg.level, now)
        job = self._ledger.jobs.get(msg.job_id)
        if job is None:
            fed = self._feed(msg.node, msg.level, now)
            nothing = AssignTasks(
                job_id=msg.job_id, scheduler=self.address,
                client=self.address,  # no task, so no result for anybody
                request=msg.request, tasks=(), drained=True, has_shared=False,
            )  # fmt: skip
            return [*out, Envelope(node.address, nothing), *fed]
        return [*out, *self._assign(job, msg, node, now)]

    def _assign(self, job: Job, msg: GetTasks, node: Node, now: float) -> list[Envelope]:
        if msg.node in job.cancelled_on and not job.placer.offers(msg.node):
            # CancelReservations is on its way and answers this request, too.
            return self._feed(msg.node, msg.level, now)
        tasks = job.placer.take(msg.node, msg.count)
        assert len(tasks) <= msg.count, "the node has no slot for more"
        for placement in self._watching:
            placement.on_asked(msg.node, job.submit, tasks, now)
        drained = not job.placer.offers(msg.node)
        self._ledger.consume(job, msg.node, len(tasks))
        if drained:
            job.reserved.pop(msg.node, None)
        has_shared = bool(job.submit.shared)
        out = []
        if tasks and has_shared and msg.node not in job.shared_on:
            job.shared_on[msg.node] = None
            out.append(self._share(job, node.address, job.job_id))
        assignments = tuple(self._ledger.bind(job, tasks, msg.node, now) if tasks else ())
        answer = AssignTasks(
            job_id=job.job_id,
            scheduler=self.address,
            client=job.submit.client,
            request=msg.request,
            tasks=assignments,
            drained=drained,
            has_shared=has_shared,
            claim=job.claim,
            limit_s=job.submit.options.limit_s,
        )
        out.append(Envelope(node.address, answer))
        if job.trail is not None:
            bound = tuple(task.task_id for task in tasks)
            job.trail.add(now, msg.node, "asked", msg.count, bound)
        if not job.placer.waiting:
            out += self._all_bound(job)
        return out if tasks else [*out, *self._feed(msg.node, msg.level, now)]

    def _feed(self, name: NodeName, level: NodeLevel | None, now: float) -> list[Envelope]:
        """A node has told a level at which it has free slots, and is given no task."""
        if level is None or level.net >= 0:
            return []
        node = self._ledger.nodes[name]
        for job in self._hungry.values():
            if node.suits(job.submit.options):
                # What is on its way there serves as well.
                return [] if name in job.reserved else self._reserve(job, {name: 1}, now)
        return []

    def _all_bound(self, job: Job) -> list[Envelope]:
        """No task of the job waits any more: withdraw its reservations."""
        self._hungry.pop(job.job_id, None)
        out = self._cancel_reservations(job)
        if job.trail is not None and job.trail.steps:
            out.append(Envelope(job.submit.client, JobPlaced(job.job_id, job.trail.take())))
        return out

    def _on_get_shared(self, msg: GetShared) -> list[Envelope]:
        job = self._ledger.find(msg.job_id)
        return [self._share(job, msg.asker, msg.job_id)] if job else []

    def _share(self, job: Job, to: Address, job_id: JobId) -> Envelope:
        return Envelope(to, JobShared(job_id, self.address, job.submit.shared))

    def _on_report_tasks(self, msg: ReportTasks, now: float) -> list[Envelope]:
        out = self._on_reports(msg.reports, now)
        if msg.node in self._ledger.nodes:
            self._note_level(msg.node, msg.level, now)
            out += self._feed(msg.node, msg.level, now)
        return [*out, *self._tell_peers(now)]

    def _on_reports(self, reports: tuple[JobReport, ...], now: float) -> list[Envelope]:
        out: list[Envelope] = []
        for report in reports:
            job = self._ledger.find(report.job_id)
            if job is None:
                self._hand_over.reported(report)
                continue
            self._tell_finished(job, report.done, now)
            out += self._finish(job, report.done)
            for loss in report.lost:
                run = job.running.get(loss.task_id)
                if run is None or (run.job_id, run.attempt) != (report.job_id, loss.attempt):
                    continue  # a duplicate, or about an attempt that was given up before
                at, reason = f"/{loss.executor}", loss.reason
                out += self._lose(job, loss.task_id, at, reason, now, loss.blame)
        return out

    def _tell_finished(self, job: Job, task_ids: Sequence[TaskId], now: float) -> None:
        for placement in self._watching:
            for task_id in task_ids:
                if (run := job.running.get(task_id)) is not None:
                    placement.on_finished(run.node, job.submit, now - run.at, now)

    def _finish(self, job: Job, task_ids: Sequence[TaskId]) -> list[Envelope]:
        """Note tasks whose results the client has been sent."""
        waiting = job.placer.waiting
        withdrawn = False
        for task_id in task_ids:
            # No attempt number is compared: a result counts whichever attempt it is of, also one
            # that was given up, because the client takes the first that comes.
            if task_id in waiting:
                job.placer.withdraw(task_id)
                withdrawn = True
            elif task_id in job.tasks:
                self._ledger.unbind(job, task_id)
            else:
                continue  # nonsense from a faulty node
            job.finished[task_id] = None
        return self._all_bound(job) if withdrawn and not waiting else []

    def _lose(
        self,
        job: Job,
        task_id: TaskId,
        executor: str,
        reason: str,
        now: float,
        blame: Blame = Blame.DEATH,
    ) -> list[Envelope]:
        """An attempt is lost, on "/executor" of its node if that is known, or with a message."""
        assert task_id in job.running, "only a running task can be lost"
        node = job.running[task_id].node
        self._ledger.unbind(job, task_id)
        if task_id in job.unwanted:
            job.finished[task_id] = None
            return []
        # Another node is preferred for the next attempt: this one may be the cause.
        return self._try_again(job, task_id, f"{node}{executor}: {reason}", (node,), now, blame)

    def _try_again(
        self,
        job: Job,
        task_id: TaskId,
        reason: str,
        avoid: tuple[NodeName, ...],
        now: float,
        blame: Blame,
    ) -> list[Envelope]:
        assert task_id not in job.running
        assert task_id not in job.finished
        story = job.stories.setdefault(task_id, [])
        story.append(f"task {task_id} attempt {len(story) + 1}: {reason}")
        # What kills or silences executors must not go on for ever.
        job.blame[task_id] += blame
        config = self._config
        assert len(story) <= config.max_tries, "the job should have failed before"
        if job.blame[task_id] >= config.max_attempts or len(story) >= config.max_tries:
            # Whether the job fails is up to the client: it may have the task's result, if only the
            # report of its end was lost.
            job.finished[task_id] = None
            job.abandoned[task_id] = (
                f"task {task_id} was lost {len(story)} times; at last: {reason}"
            )
            return [self._abandoned(job, task_id)]
        return self._place(job, (job.tasks[task_id],), avoid, now)

    @staticmethod
    def _abandoned(job: Job, task_id: TaskId) -> Envelope:
        story, message = tuple(job.stories[task_id]), job.abandoned[task_id]
        return Envelope(job.submit.client, TaskAbandoned(job.job_id, task_id, message, story))

    def _on_withdraw_tasks(self, msg: WithdrawTasks) -> list[Envelope]:
        job = self._ledger.jobs.get(msg.job_id)
        if job is None:
            return []  # over, or not placed yet: then the client's next request finds it
        waited = tuple(task_id for task_id in msg.tasks if task_id in job.placer.waiting)
        # As if they had finished: were the answer lost, the client would have them run again.
        out = self._finish(job, waited)
        if waited and not msg.stop:
            out.append(Envelope(job.submit.client, TasksWithdrawn(msg.job_id, waited)))
        for task_id in msg.tasks:
            run = job.running.get(task_id)
            if run is None:
                continue
            key = TaskKey(run.job_id, task_id, run.attempt)
            node = self._ledger.nodes[run.node].address
            if msg.stop:
                job.unwanted[task_id] = None
                out.append(Envelope(node, StopTask(key)))
            else:
                out.append(Envelope(node, ReturnTask(key, job.submit.client, job.job_id)))
        return out

    def _on_rerun_tasks(self, msg: RerunTasks, now: float) -> list[Envelope]:
        out: list[Envelope] = []
        for task_id in msg.tasks:
            # Looked up each time: the job may fail at one of the tasks.
            job = self._ledger.jobs.get(msg.job_id)
            if job is None or task_id not in job.finished:
                continue
            if task_id in job.abandoned:
                out.append(self._abandoned(job, task_id))  # the message was lost
                continue
            del job.finished[task_id]
            text = "its result never reached the client"
            out += self._try_again(job, task_id, text, (), now, Blame.NONE)
        return out

    # --- nodes ---------------------------------------------------------------------------------

    def _on_register_node(self, msg: RegisterNode, now: float) -> list[Envelope]:
        if msg.version != PROTOCOL_VERSION:
            text = f"this scheduler speaks protocol {PROTOCOL_VERSION}, the node {msg.version}"
            return [Envelope(msg.address, NodeRefused(text, self.address))]
        if self._config.release not in ("", msg.release):
            text = self._other_release("node", msg.release)
            return [Envelope(msg.address, NodeRefused(text, self.address))]
        out: list[Envelope] = []
        nodes = self._ledger.nodes
        if msg.name in nodes and nodes[msg.name].address != msg.address:
            # A new process under the same name has nothing of what the old one had.
            out += self._node_lost(msg.name, "the node was restarted", now)
        joined = msg.name not in nodes
        node = nodes.setdefault(msg.name, Node(address=msg.address, joined_at=now))
        self._ledger.heard.heard(msg.name, now)
        node.load = msg.load
        node.deaths, node.last_death = msg.deaths, msg.last_death
        node.longest = msg.longest
        self._peers = tuple(scheduler for scheduler in msg.schedulers if scheduler != self.address)
        for placement in self._watching:
            placement.on_heartbeat(msg.name, sum(msg.load), _longest_by_job(msg.longest), now)
        if self._ledger.update_node(node, msg.executors, msg.attributes, msg.draining):
            out += self._offer(msg.name, now)
            out += self._admit_parked(now)
        out += self._ask_again(msg.name, joined=joined)
        # Reports before the comparison: what they say has ended is not missing.
        out += self._on_reports(msg.reports, now)
        return [*out, *self._compare_weights(msg), *self._reconcile(node, msg, now)]

    def _other_release(self, who: str, release: str) -> str:
        return (
            f"this scheduler has {self._config.release}, the {who} {release or 'none'}; "
            "install the same versions on all machines"
        )

    def _offer(self, name: NodeName, now: float) -> list[Envelope]:
        """Give a node that has joined its part of the reservations of jobs that wait."""
        out: list[Envelope] = []
        for job in self._ledger.jobs.values():
            nodes = self._ledger.eligible(job.submit.options)
            if job.placer.waiting and name in nodes and name not in job.reserved:
                out += self._reserve(job, job.placer.node_joined(name, len(nodes)), now)
        return out

    def _on_set_weights(self, msg: SetWeights) -> list[Envelope]:
        if msg.version <= self._weights.version:
            return []
        self._weights = msg
        return [Envelope(node.address, msg) for node in self._ledger.nodes.values()]

    def _compare_weights(self, msg: RegisterNode) -> list[Envelope]:
        """Gossip: whoever has newer weights tells the other, so a new scheduler learns them."""
        if msg.weights.version < self._weights.version:
            return [Envelope(msg.address, self._weights)]
        return self._on_set_weights(msg.weights)

    def _reconcile(self, node: Node, msg: RegisterNode, now: float) -> list[Envelope]:
        """Make up for lost messages: compare what the node has with what it should have."""
        held = {job.job_id: job.reservations for job in msg.held}
        over = tuple(job_id for job_id in held if self._is_over(job_id, now))
        out = [Envelope(node.address, EndJobs(over))] if over else []
        for job_id in tuple(node.jobs):
            out += self._reconcile_held(job_id, msg.name, held.get(job_id, 0), now)
        running = dict.fromkeys(msg.running)
        late = now - self._config.grace_s  # younger attempts may still be on their way
        unheard = self._hand_over.unheard(msg.name)
        for job, task_id in self._ledger.running_on(msg.name):
            run = job.running.get(task_id)
            if run is None or run.at > late:
                continue
            if run.job_id in unheard:
                continue  # the node still reports it to the old scheduler
            if TaskKey(run.job_id, task_id, run.attempt) not in running:
                # The answer with the task was lost, or the report of its end.
                text = "the node does not know of it"
                out += self._lose(job, task_id, "", text, now, Blame.NONE)
        return out

    def _reconcile_held(
        self, job_id: JobId, name: NodeName, count: int, now: float
    ) -> list[Envelope]:
        """Compare the reservations of one job: the node says that it has `count`."""
        job = self._ledger.jobs.get(job_id)
        if job is None:
            return []  # ended while this heartbeat was handled
        should = job.reserved.get(name)
        if should is None:
            if count == 0 or job.placer.offers(name):
                return []  # agreed; or superfluous, but of use
            return [self._cancel(job, name)]
        if count >= should.count or should.at > now - self._config.grace_s:
            return []
        missing = should.count - count
        should.count = count
        return self._reserve(job, {name: missing}, now)

    def _node_lost(self, name: NodeName, reason: str, now: float) -> list[Envelope]:
        node = self._ledger.nodes.get(name)
        if node is None:
            return []  # known already
        # While its tasks and reservations are moved, the node must not be chosen for them.
        node.draining = True
        self._ledger.eligibility_changed()
        out: list[Envelope] = []
        for job, task_id in self._ledger.running_on(name):
            if task_id in job.running:  # its job may have failed at an earlier one
                out += self._lose(job, task_id, "", f"node lost ({reason})", now)
        for job_id in tuple(node.jobs):
            open_job = self._ledger.jobs.get(job_id)
            if open_job is not None:
                out += self._move_reservations(open_job, name, now)
        self._ledger.remove_node(name)
        for taking in self._hand_over.lost(name):
            out += self._open_if_known(taking, now)
        for placement in self._watching:
            placement.on_node_lost(name, now)
        return out

    def _on_peer_gone(self, msg: PeerGone, now: float) -> list[Envelope]:
        """Do not wait for its silence, if it was a node."""
        gone = [
            name
            for name, node in self._ledger.nodes.items()
            if endpoint_of(node.address) == msg.endpoint
        ]
        return [out for name in gone for out in self._node_lost(name, "its process ended", now)]

    def _move_reservations(self, job: Job, name: NodeName, now: float) -> list[Envelope]:
        job.shared_on.pop(name, None)
        held = job.reserved.pop(name, None)
        nodes = self._left_for(job, now)
        try:
            reservations = job.placer.node_lost(name, held.count if held else 0, nodes)
        except (Unsatisfiable, NoNodes) as error:
            return self._abort(job, _kind_of(error), str(error), job.story)
        return self._reserve(job, reservations, now)

    # --- what placements know -------------------------------------------------------------------

    def _note_level(self, node: NodeName, level: NodeLevel | None, now: float) -> None:
        if level is not None:
            for placement in self._watching:
                placement.on_level(node, level, now)

    def _tell_peers(self, now: float) -> list[Envelope]:
        """What placements have to tell those of other schedulers, which nodes have named."""
        out: list[Envelope] = []
        for name, placement in self._placements.noting.items() if self._peers else ():
            if body := placement.notes(len(self._peers), now):
                out += [Envelope(peer, Notes(name, body)) for peer in self._peers]
        return out

    def _on_notes(self, msg: Notes, now: float) -> list[Envelope]:
        # For one that no job here has named, there is nobody to tell.
        if (placement := self._placements.noting.get(msg.placement)) is not None:
            placement.on_notes(msg.body, now)
        return []

    # --- time ----------------------------------------------------------------------------------

    def _on_tick(self, msg: Tick, now: float) -> list[Envelope]:
        if not self._ticks.is_due(msg.generation, now):
            return []
        out, config, ledger = [self._ticks.next()], self._config, self._ledger
        for peers in (ledger.heard, ledger.clients):
            peers.forgive(self._ticks.stall_s, now)
        for name in ledger.heard.silent(now, config.node_timeout_s):
            out += self._node_lost(name, f"silent for {config.node_timeout_s:g} s", now)
        if any(deadline <= now for _, deadline in self._parked.values()):
            out += self._admit_parked(now)  # refuses those whose time is over
        for job_id in ledger.clients.silent(now, config.lease_s):
            out += self._end(job_id, _Ended(None, now))
        forgotten = now - 2 * config.lease_s
        while self._unknown and next(iter(self._unknown.values())) < forgotten:
            self._unknown.popitem(last=False)
        # The last news before all is quiet would be told with the next job, which is too late.
        return [*out, *self._abort_deserted(now), *self._tell_peers(now)]

    # --- observation ---------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        waiting = {
            "parked": len(self._parked),
            "probing": len(self._probing),
            "taking_over": len(self._hand_over.jobs),
        }
        return {**self._ledger.gauges(), **waiting}

    def check(self) -> None:
        """Assert the ledger's invariants, and that each job is in one table."""
        self._ledger.check()
        jobs = [*self._ledger.jobs, *self._parked, *self._probing, *self._hand_over.jobs]
        assert len(dict.fromkeys(jobs)) == len(jobs)
        for job in self._ledger.jobs.values():
            assert all(run.attempt <= self._config.max_tries for run in job.running.values())
        # A job whose loads are all known is placed.
        assert all(probing.awaited for probing in self._probing.values())
        assert len(self._ended) <= ENDED_MAX
        assert all(map(self._has, self._unacknowledged))
        hungry = (job for job in self._ledger.jobs.values() if job.placer.uses_idle)
        assert {job.job_id for job in hungry if job.placer.waiting} == self._hungry.keys()
        self._hand_over.check(self._ledger.nodes.keys())


def _longest_by_job(tasks: Sequence[RunningTask]) -> dict[JobId, float]:
    """How long each job's tasks have been running at most."""
    longest: dict[JobId, float] = {}
    for task in tasks:
        longest[task.key.job_id] = max(task.for_s, longest.get(task.key.job_id, 0.0))
    return longest


def _needs(options: JobOptions) -> list[str]:
    """What not every node has."""
    return [*options.requires, *([f"framework {options.framework}"] * bool(options.framework))]


def _kind_of(error: Unsatisfiable | NoNodes) -> str:
    """The kind of `JobFailed` that an error becomes."""
    return "unsatisfiable" if isinstance(error, Unsatisfiable) else "no_nodes"
