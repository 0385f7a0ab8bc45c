"""All messages of the protocol.

Every message is a frozen, tagged struct that is encoded as a msgpack array, so the order of fields
*is* the wire format: fields are only ever appended. Each machine has one input union, with which
drivers decode messages to it; a misdirected message is rejected as malformed.

    client        SubmitJob ─▶ scheduler  Reserve ─▶ node monitor
    node monitor  GetTasks ─▶ scheduler  JobShared, AssignTasks ─▶ node monitor  (late binding)
    node monitor  JobShared, RunTasks ─▶ executor  StartTasks ─▶ slot  SlotDone ─▶ executor
    executor      TaskResults ─▶ client;  TasksEnded ─▶ node monitor
    node monitor  JobReport, in the next GetTasks or heartbeat ─▶ scheduler
    client        EndJob ─▶ scheduler ─▶ node monitors ─▶ executors

Two heartbeats make up for lost messages: `RegisterNode` (node monitor to scheduler) and
`ExecutorStatus` (executor to node monitor) list what the sender has; the receiver corrects every
difference from what it expected. Several tasks of a job are handled in one message.
"""

from __future__ import annotations

from machine_kit.addresses import Address
from machine_kit.machine import Message, Tick
from sparrow_core.protocol.events import JobEvent
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.types import (
    Assignment,
    AttemptEnd,
    Claim,
    Count,
    ExecutorInfo,
    HeldJob,
    JobOptions,
    JobReport,
    KeptJob,
    MovedJob,
    NodeInfo,
    NodeLevel,
    PlacementStep,
    Result,
    RunningTask,
    Seconds,
    SlotOutcome,
    TaskKey,
    TaskSpec,
)

PROTOCOL_VERSION = 12


# --- timers (a machine's messages to itself) ---------------------------------------------------


class Flush(Message, frozen=True):
    """A node monitor's message to itself: act on all that has come in since, in few messages."""


class JobTimer(Message, frozen=True):
    """A client's timer for one job."""

    job_id: JobId
    generation: int


class WatchTimer(Message, frozen=True):
    """A client's timer while it has jobs: look for silent schedulers."""

    generation: int


class StragglerTimer(Message, frozen=True):
    """A client's timer: the job's remaining tasks take unusually long."""

    job_id: JobId


class ProbeTimer(Message, frozen=True):
    """A scheduler's timer: place the job with the loads that are known by now."""

    job_id: JobId


class TakeOverTimer(Message, frozen=True):
    """A scheduler's timer: open the job with what nodes have told of it by now."""

    job_id: JobId


class AskNodes(Message, frozen=True):
    """A scheduler's message to itself: ask nodes for the jobs that have moved here, together."""


class AcceptTimer(Message, frozen=True):
    """A scheduler's timer: acknowledge the jobs that came lately and are still open."""


class WidenTimer(Message, frozen=True):
    """A scheduler's timer: these tasks give up their preferred nodes (delay scheduling)."""

    job_id: JobId
    tasks: tuple[TaskId, ...]


# --- embedding program to client, client to embedding program ----------------------------------


class StartJob(Message, frozen=True, kw_only=True):
    """Run a job; its events go to the client's sink."""

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


class WithdrawTasks(Message, frozen=True):
    """Tasks that have not begun are not to run; from the embedding program, and to schedulers.

    With `stop`, running ones are interrupted and no result counts any more. Without it, answers
    (TasksWithdrawn, to the program TasksReturned) name those that had not begun.
    """

    job_id: JobId
    tasks: tuple[TaskId, ...]
    stop: bool


class SchedulerLost(Message, frozen=True):
    """The scheduler's process is dead; `returns` if it is being restarted."""

    scheduler: Address
    returns: bool = False
    reason: str = ""


class AllNodesLost(Message, frozen=True):
    """No node is left, so every job fails, now and later. `reason`: how the last node ended."""

    reason: str = ""


class SetSchedulers(Message, frozen=True):
    """These are the schedulers from now on: one has come back under another address."""

    schedulers: tuple[Address, ...]


class Notify(Message, frozen=True):
    """Events of a job, for the embedding program."""

    job_id: JobId
    events: tuple[JobEvent, ...]


class SchedulerSilent(Message, frozen=True):
    """A scheduler has fallen silent, so that its jobs move; or it is heard again."""

    scheduler: Address
    silent: bool


# --- client and scheduler ----------------------------------------------------------------------


class SubmitJob(Message, frozen=True, kw_only=True):
    """A job, or after a failover the rest of it under a new id.

    It `replaces` earlier submissions. What nodes have of these goes on under the new scheduler,
    whether the earlier ones live or not.
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
    release: str = ""  # see `SchedulerConfig`


class JobAccepted(Message, frozen=True):
    """The scheduler has the job; not sent for jobs that have ended within `accept_wait_s`."""

    job_id: JobId


class JobAborted(Message, frozen=True):
    """The scheduler aborted the job; `kind` as in `events.JobFailed`."""

    job_id: JobId
    kind: str
    message: str
    story: tuple[str, ...] = ()


class TaskAbandoned(Message, frozen=True):
    """All attempts at a task were lost; unless the client has its result, the job fails.

    A job with independent tasks goes on without it.
    """

    job_id: JobId
    task_id: TaskId
    message: str
    story: tuple[str, ...] = ()


class TasksWithdrawn(Message, frozen=True):
    """Answer to WithdrawTasks without `stop`: these tasks will not run."""

    job_id: JobId
    tasks: tuple[TaskId, ...]


class JobPlaced(Message, frozen=True):
    """All tasks of a job with `explain` are bound; the placement steps since the last time."""

    job_id: JobId
    steps: tuple[PlacementStep, ...]


class PingJob(Message, frozen=True):
    """Asks whether the scheduler has the job, and which of the missing tasks have finished."""

    job_id: JobId
    client: Address
    missing: tuple[TaskId, ...]


class JobStatus(Message, frozen=True):
    """Answer to PingJob."""

    job_id: JobId
    known: bool
    finished: tuple[TaskId, ...]


class RerunTasks(Message, frozen=True):
    """The results of these finished tasks were lost: run the tasks again."""

    job_id: JobId
    tasks: tuple[TaskId, ...]


class Ping(Message, frozen=True):
    """Health check of a scheduler, several times per timeout."""

    client: Address


class Pong(Message, frozen=True):
    """Answer to Ping."""

    scheduler: Address


class GetNodes(Message, frozen=True):
    """Asks a scheduler for its live nodes."""

    client: Address


class KnownNodes(Message, frozen=True):
    """Answer to GetNodes: the live nodes."""

    scheduler: Address
    nodes: tuple[NodeInfo, ...]


class EndJob(Message, frozen=True):
    """The job is over: drop its reservations, interrupt its tasks, free its state.

    It travels client -> scheduler -> node monitors -> executors. If the job has `finished`, no
    task runs, and nodes are told in answer to their next heartbeats. If it has `moved` to another
    scheduler, this one forgets it, and nothing is dropped or interrupted.
    """

    job_id: JobId
    finished: bool = False
    moved: bool = False

    @property
    def may_wait(self) -> bool:
        return self.finished


class EndJobs(Message, frozen=True):
    """These jobs are over; the answer to a heartbeat that names them."""

    job_ids: tuple[JobId, ...]


# --- scheduler and node monitor ----------------------------------------------------------------


class SetWeights(Message, frozen=True):
    """Weights of users for fair sharing (default 1); a newer version replaces all.

    From an operator to a scheduler; heartbeats spread it to all others.
    """

    version: int = 0
    weights: tuple[tuple[str, float], ...] = ()


class RegisterNode(Message, frozen=True, kw_only=True):
    """A node's heartbeat: its description, and what it has of the receiving scheduler's jobs."""

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
    longest: tuple[RunningTask, ...] = ()  # of the running tasks
    schedulers: tuple[Address, ...] = ()  # all that it serves
    release: str = ""  # see `SchedulerConfig`


class NodeLeft(Message, frozen=True):
    """The node has drained: it has no reservation and no task left.

    `reports`, as in RegisterNode: without the last ones, tasks that have ended there would count as
    lost with it, and run again.
    """

    name: NodeName
    reports: tuple[JobReport, ...] = ()


class NodeRefused(Message, frozen=True):
    """The scheduler rejects the node, because of its protocol version or release."""

    message: str
    scheduler: Address = Address("")
    others: bool = False  # to the supervisor: whether the node serves other schedulers


class NodeLost(Message, frozen=True):
    """The node's process is dead."""

    node: NodeName
    reason: str


class PeerGone(Message, frozen=True):
    """The host of a process says that it is not there any more; what it was is not known here."""

    endpoint: str


class Reserve(Message, frozen=True):
    """Queue `count` reservations for the job."""

    job_id: JobId
    scheduler: Address
    count: Count
    claim: Claim = Claim()


class TakeOver(Message, frozen=True):
    """These jobs have moved to this scheduler.

    Attempts of their earlier submissions go on and are reported to this scheduler; reservations
    are dropped. From now on, nothing that concerns them is taken from other schedulers.
    """

    scheduler: Address
    jobs: tuple[MovedJob, ...]


class TakenOver(Message, frozen=True):
    """Answer to TakeOver: what the node has of the jobs, one by one."""

    node: NodeName
    jobs: tuple[KeptJob, ...]


class RefuseReservations(Message, frozen=True):
    """The node's queue is full, or it is draining: `count` reservations must go elsewhere."""

    job_id: JobId
    node: NodeName
    count: Count


class ProbeLoad(Message, frozen=True):
    """Asks a node for its load, for placements that bind tasks early."""

    job_id: JobId
    scheduler: Address


class NodeLoad(Message, frozen=True):
    """Answer to ProbeLoad: queue length, or if that is 0, minus the number of free slots."""

    job_id: JobId
    node: NodeName
    load: int


class GetTasks(Message, frozen=True, kw_only=True):
    """A node has `count` free slots for the job; `reports` may be of any job.

    `level`: the node's, as if these slots were still free; if the job's claim wants it.
    """

    job_id: JobId
    node: NodeName
    request: int
    count: Count
    reports: tuple[JobReport, ...]
    level: NodeLevel | None = None


class ReportTasks(Message, frozen=True):
    """Reports lost attempts at once; successes wait for a GetTasks or a heartbeat.

    Or a node has fallen idle, and its last task was of a job that wants to know its `level`.
    """

    reports: tuple[JobReport, ...]
    node: NodeName = NodeName("")
    level: NodeLevel | None = None


class Notes(Message, frozen=True):
    """What a placement tells the same placement of another scheduler; opaque to schedulers."""

    placement: str
    body: bytes


class AssignTasks(Message, frozen=True, kw_only=True):
    """Answer to GetTasks: up to `count` tasks; `drained` if the job has no more for the node.

    `has_shared`: the tasks need the job's JobShared. `claim`: the current one, see Reserve.
    `limit_s`: see JobOptions.
    """

    job_id: JobId
    scheduler: Address
    client: Address
    request: int
    tasks: tuple[Assignment, ...]
    drained: bool
    has_shared: bool
    claim: Claim = Claim()
    limit_s: Seconds | None = None


class CancelReservations(Message, frozen=True):
    """All tasks of the job are bound: drop its reservations.

    It also answers, with no task, all requests for the job that the node has sent meanwhile.
    `count`: how many the node was sent for the job so far, used ones included.
    """

    job_id: JobId
    count: Count


class JobShared(Message, frozen=True):
    """Bytes that all tasks of a job share; sent before its first task to a node or executor."""

    job_id: JobId
    scheduler: Address
    shared: bytes


class GetShared(Message, frozen=True):
    """JobShared was lost: send it to `asker` again."""

    job_id: JobId
    asker: Address


# --- operator and node monitor, node monitor and its supervisor ---------------------------------


class Drain(Message, frozen=True):
    """Take no new reservations; leave when the queue is empty and no task runs.

    With `hold`, the node does not leave before a Drain without it has come: whoever drains it
    needs more than the end of its tasks.
    """

    hold: bool = False


class Drained(Message, frozen=True):
    """The node monitor has drained and told the schedulers."""


# --- node monitor and executor -----------------------------------------------------------------


class ExecutorStatus(Message, frozen=True):
    """An executor's heartbeat: the jobs and tasks that it has. The first one registers it."""

    info: ExecutorInfo
    jobs: tuple[JobId, ...]
    running: tuple[TaskKey, ...]


class ExecutorLost(Message, frozen=True):
    """The executor's process is dead."""

    executor: Address
    reason: str


class KillExecutor(Message, frozen=True):
    """To the supervisor: kill and replace an executor, which the node has given up."""

    executor: Address
    reason: str


class RunTasks(Message, frozen=True):
    """Run these tasks, with the job's JobShared if `has_shared`; results go to `client`.

    `task_s`: the estimated time of a task.
    """

    job_id: JobId
    client: Address
    has_shared: bool
    tasks: tuple[Assignment, ...]
    task_s: Seconds = 1.0


class StopTask(Message, frozen=True):
    """The attempt is not wanted any more: interrupt it and discard its result."""

    key: TaskKey


class ReturnTask(Message, frozen=True):
    """Drop the attempt unless it has begun; whoever drops it answers with TasksWithdrawn.

    It travels scheduler -> node monitor -> executor -> slot. The answer names the job by `job_id`,
    as the client does now: the attempt may have begun its way under an earlier submission.
    """

    key: TaskKey
    client: Address
    job_id: JobId


class TasksEnded(Message, frozen=True):
    """Attempts at tasks of a job have ended on the executor; their slots are free."""

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
    """A permanent failure of a task, executor to client; or node to client, if it `timed_out`."""

    key: TaskKey
    node: NodeName
    executor: str
    message: str
    detail: bytes
    timed_out: bool = False


# --- executor and slot (same process) ----------------------------------------------------------


class SlotReady(Message, frozen=True):
    """The slot's runner is ready."""

    slot: Address


class StartTasks(Message, frozen=True):
    """Run these tasks one after the other."""

    job_id: JobId
    shared: bytes
    tasks: tuple[Assignment, ...]


class InterruptTask(Message, frozen=True):
    """Interrupt this attempt if it still runs."""

    key: TaskKey


class TellOutcomes(Message, frozen=True):
    """Report outcomes now instead of batching them: the next task may take long."""


class ForgetJob(Message, frozen=True):
    """Free what the runner caches for the job."""

    job_id: JobId


class SlotDone(Message, frozen=True):
    """The outcomes of tasks that the slot has run."""

    slot: Address
    outcomes: tuple[SlotOutcome, ...]


# --- metrics -----------------------------------------------------------------------------------


class GetMetrics(Message, frozen=True):
    """Asks the machine "metrics" of a process for its metrics."""

    asker: Address


class MetricsText(Message, frozen=True):
    """Answer to GetMetrics, in the text format of Prometheus."""

    source: str
    text: str


ClientIn = (
    StartJob | CancelJob | WithdrawTasks | SchedulerLost | AllNodesLost | SetSchedulers
    | JobTimer | WatchTimer | StragglerTimer
    | JobAccepted | JobAborted | JobPlaced | JobStatus | Pong | KnownNodes | TaskResults | TaskError
    | TaskAbandoned | TasksWithdrawn
)  # fmt: skip
SchedulerIn = (
    Tick | AcceptTimer | ProbeTimer | WidenTimer | TakeOverTimer | SubmitJob | PingJob | RerunTasks
    | Ping | GetNodes | EndJob | SetWeights | RegisterNode | NodeLeft | NodeLost | NodeLoad
    | PeerGone | RefuseReservations | GetTasks | ReportTasks | GetShared | WithdrawTasks | TakenOver
    | AskNodes | Notes
)  # fmt: skip
NodeMonitorIn = (
    Tick | Flush | NodeRefused | SetWeights | SetSchedulers | Drain | Reserve | ProbeLoad
    | AssignTasks
    | CancelReservations | TakeOver | EndJob | EndJobs | JobShared | GetShared
    | ExecutorStatus | ExecutorLost | TasksEnded | StopTask | ReturnTask
)  # fmt: skip
ExecutorIn = (
    Tick | RunTasks | StopTask | ReturnTask | JobShared | EndJob | EndJobs | SlotReady | SlotDone
)
SlotIn = StartTasks | InterruptTask | ReturnTask | TellOutcomes | ForgetJob
