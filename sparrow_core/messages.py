"""The whole wire vocabulary.

Every message is a frozen, tagged struct that travels as a msgpack array, so the order of fields
*is* the wire format: fields are only ever appended. Each machine has one input union; a driver
decodes a message with the union of the machine that it is for, so that a misdirected message dies
at the boundary.

    client        SubmitJob ─▶ scheduler  Reserve ─▶ node monitor
    node monitor  GetTasks ─▶ scheduler  JobShared, AssignTasks ─▶ node monitor  (late binding)
    node monitor  JobShared, RunTask ─▶ executor  StartTask ─▶ slot  SlotDone ─▶ executor
    executor      TaskResult ─▶ client;  TaskFinished ─▶ node monitor
    node monitor  TaskReport, in the next GetTasks or in ReportTasks ─▶ scheduler
    client        EndJob ─▶ scheduler ─▶ node monitors ─▶ executors

Two periodic messages heal what the network lost: `RegisterNode` (node monitor to scheduler) and
`ExecutorStatus` (executor to node monitor) say what the sender has; the receiver answers for
whatever it knew otherwise.
"""

from __future__ import annotations

from msgspec import Struct

from sparrow_core.events import JobEvent
from sparrow_core.ids import Address, JobId, NodeName, TaskId

PROTOCOL_VERSION = 1


class Message(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of all messages."""


# --- parts of messages -------------------------------------------------------------------------


class TaskSpec(Struct, frozen=True, array_like=True, gc=False):
    """One task of a job.

    Attributes:
        task_id: Unique within the job.
        payload: Opaque to everything but the runner.
        preferred_nodes: If not empty, the task runs on one of these nodes (a hard constraint).
    """

    task_id: TaskId
    payload: bytes
    preferred_nodes: tuple[str, ...] = ()


class Assignment(Struct, frozen=True, array_like=True, gc=False):
    """A task bound to a node; `attempt` counts from 1."""

    task_id: TaskId
    attempt: int
    payload: bytes


class TaskKey(Struct, frozen=True, array_like=True, gc=False):
    """One attempt at one task."""

    job_id: JobId
    task_id: TaskId
    attempt: int


class TaskReport(Struct, frozen=True, array_like=True, gc=False):
    """How an attempt ended on a node; `lost` is the reason why it must be tried again, if so."""

    key: TaskKey
    executor: str
    lost: str | None = None


class ExecutorInfo(Struct, frozen=True, array_like=True, gc=False):
    """An executor of a node."""

    address: Address
    pid: int
    slots: int


class HeldJob(Struct, frozen=True, array_like=True, gc=False):
    """A job of which a node holds `reservations` (0: only its shared part)."""

    job_id: JobId
    reservations: int


class NodeInfo(Struct, frozen=True, array_like=True, gc=False):
    """A live node as a scheduler knows it."""

    name: NodeName
    executors: tuple[ExecutorInfo, ...]


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


# --- embedding program to client, client to embedding program ----------------------------------


class StartJob(Message, frozen=True):
    """Run these tasks; events go to the client's sink."""

    job_id: JobId
    user: str
    tasks: tuple[TaskSpec, ...]
    shared: bytes
    placement: str
    probe_ratio: float


class CancelJob(Message, frozen=True):
    """The user no longer wants the job."""

    job_id: JobId


class SchedulerLost(Message, frozen=True):
    """The scheduler's process is known to be dead."""

    scheduler: Address


class AllNodesLost(Message, frozen=True):
    """No node is left: every job, open or still to come, fails."""


class Notify(Message, frozen=True):
    """An event of a job, for the embedding program."""

    job_id: JobId
    event: JobEvent


# --- client and scheduler ----------------------------------------------------------------------


class SubmitJob(Message, frozen=True):
    """A job, or (after a failover) what is left of it under a new id."""

    version: int
    job_id: JobId
    client: Address
    user: str
    tasks: tuple[TaskSpec, ...]
    shared: bytes
    placement: str
    probe_ratio: float


class JobAccepted(Message, frozen=True):
    """The scheduler has the job."""

    job_id: JobId


class JobAborted(Message, frozen=True):
    """The scheduler gives the job up; `kind` is one of the kinds of `events.JobFailed`."""

    job_id: JobId
    kind: str
    message: str
    story: tuple[str, ...] = ()


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


class GetNodes(Message, frozen=True):
    """Which nodes do you know?"""

    client: Address


class KnownNodes(Message, frozen=True):
    """Answer to GetNodes: the live nodes."""

    scheduler: Address
    nodes: tuple[NodeInfo, ...]


class EndJob(Message, frozen=True):
    """The job is over, finished or not: drop what waits, interrupt what runs, forget it.

    It travels client -> scheduler -> node monitors -> executors.
    """

    job_id: JobId


# --- scheduler and node monitor ----------------------------------------------------------------


class RegisterNode(Message, frozen=True):
    """A node's heartbeat: who it is and what it has of the receiving scheduler's jobs."""

    version: int
    name: NodeName
    address: Address
    executors: tuple[ExecutorInfo, ...]
    held: tuple[HeldJob, ...]
    running: tuple[TaskKey, ...]


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
    count: int


class GetTasks(Message, frozen=True):
    """A node has `count` slots for reservations of the job; `reports` are of any job."""

    job_id: JobId
    node: NodeName
    request: int
    count: int
    reports: tuple[TaskReport, ...]


class ReportTasks(Message, frozen=True):
    """Ended attempts, when there is nothing to ask for."""

    reports: tuple[TaskReport, ...]


class AssignTasks(Message, frozen=True):
    """Answer to GetTasks: 0 to `count` tasks; `drained` if the job has nothing more for the node.

    `has_shared`: the tasks need the job's JobShared.
    """

    job_id: JobId
    scheduler: Address
    client: Address
    request: int
    tasks: tuple[Assignment, ...]
    drained: bool
    has_shared: bool


class CancelReservations(Message, frozen=True):
    """All tasks of the job are bound: drop its reservations."""

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


class RunTask(Message, frozen=True):
    """Run an attempt, with the job's JobShared if `has_shared`; its result goes to `client`."""

    key: TaskKey
    client: Address
    payload: bytes
    has_shared: bool


class TaskFinished(Message, frozen=True):
    """An attempt ended and its slot is free; `lost` is why it must be tried again, if so."""

    key: TaskKey
    executor: Address
    lost: str | None = None


class TaskResult(Message, frozen=True):
    """A task's result, executor to client."""

    key: TaskKey
    node: NodeName
    executor: str
    run_s: float
    result: bytes


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


class StartTask(Message, frozen=True):
    """Run this on the slot's runner."""

    key: TaskKey
    shared: bytes
    payload: bytes


class InterruptTask(Message, frozen=True):
    """If the slot still runs this attempt, make it stop."""

    key: TaskKey


class ForgetJob(Message, frozen=True):
    """Drop what the runner keeps for the job."""

    job_id: JobId


class SlotDone(Message, frozen=True):
    """The slot is idle again, with a result or an error (`message` is not None)."""

    slot: Address
    key: TaskKey
    run_s: float
    result: bytes
    message: str | None = None
    detail: bytes = b""
    retryable: bool = False


ClientIn = (
    StartJob | CancelJob | SchedulerLost | AllNodesLost | JobTimer
    | JobAccepted | JobAborted | JobStatus | KnownNodes | TaskResult | TaskError
)  # fmt: skip
SchedulerIn = (
    Tick | SubmitJob | PingJob | RerunTasks | GetNodes | EndJob
    | RegisterNode | NodeLost | GetTasks | ReportTasks | GetShared
)  # fmt: skip
NodeMonitorIn = (
    Tick | Flush | NodeRefused | Reserve | AssignTasks | CancelReservations | EndJob
    | JobShared | GetShared | ExecutorStatus | ExecutorLost | TaskFinished
)  # fmt: skip
ExecutorIn = Tick | RunTask | JobShared | EndJob | SlotReady | SlotDone
SlotIn = StartTask | InterruptTask | ForgetJob
