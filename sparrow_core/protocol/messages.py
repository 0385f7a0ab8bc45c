"""The whole wire vocabulary.

Every message is a frozen, tagged struct that travels as a msgpack array, so the order of fields
*is* the wire format: fields are only ever appended. Each machine has one input union; a driver
decodes a message with the union of the machine that it is for, so that a misdirected message dies
at the boundary.

    client        SubmitJob ─▶ scheduler  Reserve ─▶ node monitor
    node monitor  GetTasks ─▶ scheduler  JobShared, AssignTasks ─▶ node monitor  (late binding)
    node monitor  JobShared, RunTasks ─▶ executor  StartTasks ─▶ slot  SlotDone ─▶ executor
    executor      TaskResults ─▶ client;  TasksEnded ─▶ node monitor
    node monitor  JobReport, in the next GetTasks or heartbeat ─▶ scheduler
    client        EndJob ─▶ scheduler ─▶ node monitors ─▶ executors

Two periodic messages heal what the network lost: `RegisterNode` (node monitor to scheduler) and
`ExecutorStatus` (executor to node monitor) say what the sender has; the receiver answers for
whatever it knew otherwise. What concerns several tasks of a job at one time is one message.
"""

from __future__ import annotations

from msgspec import Struct

from sparrow_core.protocol.events import JobEvent
from sparrow_core.protocol.ids import Address, JobId, NodeName, TaskId
from sparrow_core.protocol.types import (
    Assignment,
    AttemptEnd,
    Claim,
    Count,
    ExecutorInfo,
    HeldJob,
    JobOptions,
    JobReport,
    NodeInfo,
    PlacementStep,
    Result,
    SlotOutcome,
    TaskKey,
    TaskSpec,
)

PROTOCOL_VERSION = 6


class Message(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of all messages."""


# --- timers (a machine's messages to itself) ---------------------------------------------------


class Tick(Message, frozen=True):
    """The periodic timer of a machine; a driver starts it with generation 0."""

    generation: int


class Flush(Message, frozen=True):
    """A node monitor's note to itself: act on all that has just come in, in few messages."""


class JobTimer(Message, frozen=True):
    """A client's timer for one job."""

    job_id: JobId
    generation: int


class WatchTimer(Message, frozen=True):
    """A client's timer, while it has jobs: which schedulers are silent?"""

    generation: int


class StragglerTimer(Message, frozen=True):
    """A client's timer: what the job still misses takes unusually long."""

    job_id: JobId


class ProbeTimer(Message, frozen=True):
    """A scheduler's timer: place the job with the loads that have been told by now."""

    job_id: JobId


class WidenTimer(Message, frozen=True):
    """A scheduler's timer: these tasks have waited long enough for the nodes that they prefer."""

    job_id: JobId
    tasks: tuple[TaskId, ...]


# --- embedding program to client, client to embedding program ----------------------------------


class StartJob(Message, frozen=True, kw_only=True):
    """Run these tasks; events go to the client's sink."""

    job_id: JobId
    user: str
    tasks: tuple[TaskSpec, ...]
    shared: bytes = b""
    placement: str = "sparrow"
    probe_ratio: float = 2.0
    options: JobOptions = JobOptions()


class CancelJob(Message, frozen=True):
    """The user no longer wants the job."""

    job_id: JobId


class SchedulerLost(Message, frozen=True):
    """The scheduler's process is known to be dead; it `returns` if it is being started anew."""

    scheduler: Address
    returns: bool = False
    reason: str = ""


class AllNodesLost(Message, frozen=True):
    """No node is left: every job, open or still to come, fails. `reason`: how the last ended."""

    reason: str = ""


class Notify(Message, frozen=True):
    """Events of a job, for the embedding program."""

    job_id: JobId
    events: tuple[JobEvent, ...]


class SchedulerSilent(Message, frozen=True):
    """A scheduler has fallen silent, and its jobs have moved; or it is heard again."""

    scheduler: Address
    silent: bool


# --- client and scheduler ----------------------------------------------------------------------


class SubmitJob(Message, frozen=True, kw_only=True):
    """A job, or (after a failover) what is left of it under a new id.

    It `replaces` earlier submissions, which nodes must forget whether or not their schedulers live.
    """

    version: int
    job_id: JobId
    client: Address
    user: str
    tasks: tuple[TaskSpec, ...]
    shared: bytes = b""
    placement: str = "sparrow"
    probe_ratio: float = 2.0
    options: JobOptions = JobOptions()
    replaces: tuple[JobId, ...] = ()


class JobAccepted(Message, frozen=True):
    """The scheduler has the job."""

    job_id: JobId


class JobAborted(Message, frozen=True):
    """The scheduler gives the job up; `kind` is one of the kinds of `events.JobFailed`."""

    job_id: JobId
    kind: str
    message: str
    story: tuple[str, ...] = ()


class JobPlaced(Message, frozen=True):
    """All tasks of a job that is to be explained are bound; what was done since the last time."""

    job_id: JobId
    steps: tuple[PlacementStep, ...]


class PingJob(Message, frozen=True):
    """Do you still have the job, and which of the tasks that I miss do you think finished?"""

    job_id: JobId
    client: Address
    missing: tuple[TaskId, ...]


class JobStatus(Message, frozen=True):
    """Answer to PingJob."""

    job_id: JobId
    known: bool
    finished: tuple[TaskId, ...]


class RerunTasks(Message, frozen=True):
    """The results of these finished tasks never came: run the tasks again."""

    job_id: JobId
    tasks: tuple[TaskId, ...]


class Ping(Message, frozen=True):
    """Are you alive? A client asks the schedulers of its open jobs, several times a timeout."""

    client: Address


class Pong(Message, frozen=True):
    """Answer to Ping."""

    scheduler: Address


class GetNodes(Message, frozen=True):
    """Which nodes do you know?"""

    client: Address


class KnownNodes(Message, frozen=True):
    """Answer to GetNodes: the live nodes."""

    scheduler: Address
    nodes: tuple[NodeInfo, ...]


class EndJob(Message, frozen=True):
    """The job is over: drop what waits, interrupt what runs, forget it.

    It travels client -> scheduler -> node monitors -> executors. If the job has `finished`, nothing
    of it runs and there is no hurry: nodes hear of it in answer to their next heartbeats.
    """

    job_id: JobId
    finished: bool = False


class EndJobs(Message, frozen=True):
    """These jobs are over; answers a heartbeat that names them."""

    job_ids: tuple[JobId, ...]


# --- scheduler and node monitor ----------------------------------------------------------------


class SetWeights(Message, frozen=True):
    """The users' shares under weighted fairness (1 if not named); a newer version replaces all.

    Operator to scheduler; from there it spreads with heartbeats.
    """

    version: int = 0
    weights: tuple[tuple[str, float], ...] = ()


class RegisterNode(Message, frozen=True, kw_only=True):
    """A node's heartbeat: who it is and what it has of the receiving scheduler's jobs."""

    version: int
    name: NodeName
    address: Address
    executors: tuple[ExecutorInfo, ...]
    held: tuple[HeldJob, ...]
    running: tuple[TaskKey, ...]
    attributes: tuple[str, ...] = ()
    draining: bool = False
    load: tuple[int, int] = (0, 0)  # reservations and running tasks, of all schedulers
    weights: SetWeights = SetWeights()
    reports: tuple[JobReport, ...] = ()
    deaths: int = 0  # of its executors
    last_death: str = ""


class NodeLeft(Message, frozen=True):
    """The node has drained: nothing of any job is left there."""

    name: NodeName


class NodeRefused(Message, frozen=True):
    """The scheduler does not take the node."""

    message: str


class NodeLost(Message, frozen=True):
    """The node is known to be dead."""

    node: NodeName
    reason: str


class Reserve(Message, frozen=True):
    """Queue `count` reservations for the job."""

    job_id: JobId
    scheduler: Address
    count: Count
    claim: Claim = Claim()


class RefuseReservations(Message, frozen=True):
    """The node's queue is full, or it drains: `count` reservations must go elsewhere."""

    job_id: JobId
    node: NodeName
    count: Count


class ProbeLoad(Message, frozen=True):
    """How loaded are you? For placements that bind tasks early."""

    job_id: JobId
    scheduler: Address


class NodeLoad(Message, frozen=True):
    """Answer to ProbeLoad: reservations in the queue, or minus the free slots if there are any."""

    job_id: JobId
    node: NodeName
    load: int


class GetTasks(Message, frozen=True):
    """A node has `count` slots for reservations of the job; `reports` are of any job."""

    job_id: JobId
    node: NodeName
    request: int
    count: Count
    reports: tuple[JobReport, ...]


class ReportTasks(Message, frozen=True):
    """Lost attempts, when there is nothing to ask for; successes can wait for a heartbeat."""

    reports: tuple[JobReport, ...]


class AssignTasks(Message, frozen=True, kw_only=True):
    """Answer to GetTasks: 0 to `count` tasks; `drained` if the job has nothing more for the node.

    `has_shared`: the tasks need the job's JobShared. `claim`: as in Reserve, brought up to date.
    """

    job_id: JobId
    scheduler: Address
    client: Address
    request: int
    tasks: tuple[Assignment, ...]
    drained: bool
    has_shared: bool
    claim: Claim = Claim()


class CancelReservations(Message, frozen=True):
    """All tasks of the job are bound: drop its reservations.

    It also answers what the node has asked for the job meanwhile: there is nothing.
    """

    job_id: JobId


class JobShared(Message, frozen=True):
    """What all tasks of a job share; precedes the first of them to a node, and to an executor."""

    job_id: JobId
    scheduler: Address
    shared: bytes


class GetShared(Message, frozen=True):
    """JobShared was lost: send it again to `asker`."""

    job_id: JobId
    asker: Address


# --- operator and node monitor, node monitor and its supervisor ---------------------------------


class Drain(Message, frozen=True):
    """Take no new job; leave when those that the node has reservations of are done."""


class Drained(Message, frozen=True):
    """The node monitor has nothing left to do, and the schedulers know."""


# --- node monitor and executor -----------------------------------------------------------------


class ExecutorStatus(Message, frozen=True):
    """An executor's heartbeat, its first one registers it: what it has."""

    info: ExecutorInfo
    jobs: tuple[JobId, ...]
    running: tuple[TaskKey, ...]


class ExecutorLost(Message, frozen=True):
    """The executor's process is dead."""

    executor: Address
    reason: str


class RunTasks(Message, frozen=True):
    """Run these, with the job's JobShared if `has_shared`; results go to `client`."""

    job_id: JobId
    client: Address
    has_shared: bool
    tasks: tuple[Assignment, ...]


class StopTask(Message, frozen=True):
    """The attempt has been given up: interrupt it and withhold its result."""

    key: TaskKey


class TasksEnded(Message, frozen=True):
    """Attempts at tasks of a job ended on the executor, and their slots are free."""

    job_id: JobId
    executor: Address
    ends: tuple[AttemptEnd, ...]


class TaskResults(Message, frozen=True):
    """Results of tasks of a job, executor to client."""

    job_id: JobId
    node: NodeName
    executor: str
    results: tuple[Result, ...]


class TaskError(Message, frozen=True):
    """A task failed for good, executor to client."""

    key: TaskKey
    node: NodeName
    executor: str
    message: str
    detail: bytes


# --- executor and slot (same process) ----------------------------------------------------------


class SlotReady(Message, frozen=True):
    """The slot's runner has been made."""

    slot: Address


class StartTasks(Message, frozen=True):
    """Run these on the slot's runner, one after the other."""

    job_id: JobId
    shared: bytes
    tasks: tuple[Assignment, ...]


class InterruptTask(Message, frozen=True):
    """If the slot still runs this attempt, make it stop."""

    key: TaskKey


class TellOutcomes(Message, frozen=True):
    """Tell of tasks that have ended now, not when more have: the next one may take long."""


class ForgetJob(Message, frozen=True):
    """Drop what the runner keeps for the job."""

    job_id: JobId


class SlotDone(Message, frozen=True):
    """The slot has done with these tasks."""

    slot: Address
    outcomes: tuple[SlotOutcome, ...]


# --- metrics -----------------------------------------------------------------------------------


class GetMetrics(Message, frozen=True):
    """What have you done, and what do you hold? To the machine "metrics" of a process."""

    asker: Address


class MetricsText(Message, frozen=True):
    """Answer to GetMetrics, in the text format of Prometheus."""

    source: str
    text: str


ClientIn = (
    StartJob | CancelJob | SchedulerLost | AllNodesLost | JobTimer | WatchTimer | StragglerTimer
    | JobAccepted | JobAborted | JobPlaced | JobStatus | Pong | KnownNodes | TaskResults | TaskError
)  # fmt: skip
SchedulerIn = (
    Tick | ProbeTimer | WidenTimer | SubmitJob | PingJob | RerunTasks | Ping | GetNodes | EndJob
    | SetWeights | RegisterNode | NodeLeft | NodeLost | RefuseReservations | NodeLoad
    | GetTasks | ReportTasks | GetShared
)  # fmt: skip
NodeMonitorIn = (
    Tick | Flush | NodeRefused | SetWeights | Drain | Reserve | ProbeLoad | AssignTasks
    | CancelReservations | EndJob | EndJobs | JobShared | GetShared
    | ExecutorStatus | ExecutorLost | TasksEnded
)  # fmt: skip
ExecutorIn = Tick | RunTasks | StopTask | JobShared | EndJob | EndJobs | SlotReady | SlotDone
SlotIn = StartTasks | InterruptTask | TellOutcomes | ForgetJob
