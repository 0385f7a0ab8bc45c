"""Parts of messages: tasks, attempts, executors, nodes, and options of jobs.

They are encoded as msgpack arrays, so the order of fields is the wire format: fields are only ever
appended.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from machine_kit.addresses import Address
from sparrow_core.protocol.ids import JobId, NodeName, TaskId

Count = Annotated[int, Meta(ge=0)]  # negative numbers are rejected when decoding
Seconds = Annotated[float, Meta(ge=0)]
StepKind = Literal["probed", "told", "reserved", "asked", "adopted"]


class TaskSpec(Struct, frozen=True, array_like=True, gc=False):
    """One task of a job.

    Attributes:
        task_id: Unique within the job.
        payload: Opaque bytes for the runner.
        preferred_nodes: If not empty, the task runs on one of these nodes.
        wait_s: None if that is a hard constraint. Otherwise the task may run on any node after
            waiting this long, or if none of the preferred nodes is alive (delay scheduling).
        memory_bytes: Estimated memory use, for the node's memory budget; 0 for none.
    """

    task_id: TaskId
    payload: bytes
    preferred_nodes: tuple[str, ...] = ()
    wait_s: Seconds | None = None
    memory_bytes: Count = 0


class JobOptions(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Options of a job.

    Attributes:
        framework: Only executors of this framework run it.
        priority: Smaller runs first, on nodes with the policy "priority".
        requires: Attributes that nodes must have, such as "gpu" or "zone=a".
        task_s: Estimated time of a task, for the policy "srpt"; nodes fetch tasks ahead from the
            start if it is less than a round trip.
        straggler_factor: If above 0, tasks that take this many times the median of the finished
            ones are submitted a second time, once half of the tasks have finished.
        explain: Record the steps of placement in `JobFinished`; see `why.explain`.
        independent: Tasks fail alone: one that fails, or is lost too often, does not end the job.
        group: Jobs of a user with the same group count as one for the policy "fair", under which a
            user's groups share its slots.
        limit_s: How long a task may run; None for no limit. The runner is to end it by then. If it
            does not, or the executor is lost later than that, the node gives the task up for good.
    """

    framework: str = ""
    priority: int = 0
    requires: tuple[str, ...] = ()
    task_s: Seconds = 1.0
    straggler_factor: Annotated[float, Meta(ge=0)] = 0.0
    explain: bool = False
    independent: bool = False
    group: str = ""
    limit_s: Seconds | None = None


class Claim(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """What a node's queue discipline knows of a job; `waiting` is its number of unbound tasks.

    With `levels`, the node tells its level when it asks for tasks of the job, and when it falls
    idle after one.
    """

    user: str = ""
    framework: str = ""
    priority: int = 0
    task_s: Seconds = 1.0
    waiting: Count = 1
    levels: bool = False
    group: str = ""


def claim_of(user: str, options: JobOptions, waiting: int, *, levels: bool = False) -> Claim:
    """The claim of a job at the moment when `waiting` of its tasks are unbound."""
    return Claim(
        user=user, framework=options.framework, priority=options.priority,
        task_s=options.task_s, waiting=waiting, levels=levels,
        group=options.group,
    )  # fmt: skip


class NodeLevel(Struct, frozen=True, array_like=True, gc=False):
    """A node's queued reservations minus its free slots, at some moment.

    `stamp` grows with each that the node tells, so that a late one can be told from a newer; also
    from one process of that name to the next, as it follows the node's clock (in microseconds).
    """

    net: int
    stamp: Count


class PlacementStep(Struct, frozen=True, array_like=True, gc=False):
    """A step in placing a job's tasks, between its scheduler and a node.

    Attributes:
        at_s: Seconds since the scheduler got the job.
        what: The scheduler "probed" the node for its load; the node "told" its load; the scheduler
            "reserved" there; the node had free slots and "asked" for tasks; or a task that it had
            already was "adopted", because the job came from another scheduler.
        count: The load, or the number of reservations or tasks.
        tasks: Those bound to the node that asked, or adopted.
    """

    at_s: float
    node: NodeName
    what: StepKind
    count: int = 0
    tasks: tuple[TaskId, ...] = ()


class Assignment(Struct, frozen=True, array_like=True, gc=False):
    """A task bound to a node; `attempt` counts from 1."""

    task_id: TaskId
    attempt: Count
    payload: bytes
    memory_bytes: Count = 0


class TaskKey(Struct, frozen=True, array_like=True, gc=False):
    """One attempt at one task."""

    job_id: JobId
    task_id: TaskId
    attempt: Count


class Result(Struct, frozen=True, array_like=True, gc=False):
    """A task's result, and the runner's time."""

    task_id: TaskId
    attempt: Count
    run_s: Seconds
    result: bytes


class AttemptEnd(Struct, frozen=True, array_like=True, gc=False):
    """How an attempt ended; its slot is free."""

    task_id: TaskId
    attempt: Count
    run_s: float | None = None  # time in the runner; None if it was not run to its end
    lost: str | None = None  # why it must be retried; None if it need not


class SlotOutcome(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The outcome of a task: a result, an error if `message` is not None, or it was not begun."""

    key: TaskKey
    run_s: Seconds
    result: bytes
    message: str | None = None
    detail: bytes = b""
    retryable: bool = False
    returned: bool = False


class Blame(IntEnum):
    """How much a lost attempt tells against its task; see `SchedulerConfig.max_attempts`."""

    NONE = 0  # a message was lost
    DEATH = 1  # its executor or node died
    SILENCE = 2  # its executor fell silent, which takes others long to notice


class Loss(Struct, frozen=True, array_like=True, gc=False):
    """An attempt that must be retried, and why."""

    task_id: TaskId
    attempt: Count
    executor: str
    reason: str
    blame: Blame = Blame.DEATH


class JobReport(Struct, frozen=True, array_like=True, gc=False):
    """Completion report of a job on a node: finished tasks and lost attempts."""

    job_id: JobId
    done: tuple[TaskId, ...] = ()
    lost: tuple[Loss, ...] = ()


class MovedJob(Struct, frozen=True, array_like=True, gc=False):
    """A job that has moved to another scheduler; `replaces` are its earlier submissions."""

    job_id: JobId
    replaces: tuple[JobId, ...]


class KeptJob(Struct, frozen=True, array_like=True, gc=False):
    """What a node has of a job that has moved: attempts, and tasks that ended there."""

    job_id: JobId
    running: tuple[TaskKey, ...] = ()
    done: tuple[TaskId, ...] = ()


class ExecutorInfo(Struct, frozen=True, array_like=True, gc=False):
    """An executor of a node; it runs jobs of one framework."""

    address: Address
    pid: int
    slots: Count
    framework: str = ""


class HeldJob(Struct, frozen=True, array_like=True, gc=False):
    """A job of which a node has `reservations` (0: only tasks or the shared part)."""

    job_id: JobId
    reservations: Count


class RunningTask(Struct, frozen=True, array_like=True, gc=False):
    """An attempt that has been with an executor for `for_s` seconds."""

    key: TaskKey
    executor: str
    for_s: Seconds


class NodeInfo(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A live node as a scheduler knows it.

    `queued` reservations and `running` tasks are those of all schedulers; `deaths` counts its
    executors' deaths, of which `last_death` describes the last; `longest` are those of the tasks
    that run the longest.
    """

    name: NodeName
    executors: tuple[ExecutorInfo, ...]
    attributes: tuple[str, ...] = ()
    draining: bool = False
    queued: int = 0
    running: int = 0
    monitor: Address = Address("")
    deaths: int = 0
    last_death: str = ""
    longest: tuple[RunningTask, ...] = ()
