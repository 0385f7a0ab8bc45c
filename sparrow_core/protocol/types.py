"""What messages are made of: tasks, attempts, executors, nodes, and what is asked for jobs.

They travel as msgpack arrays, so the order of fields is the wire format: fields are only appended.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from sparrow_core.protocol.ids import Address, JobId, NodeName, TaskId

Count = Annotated[int, Meta(ge=0)]  # a message with a negative one is malformed
Seconds = Annotated[float, Meta(ge=0)]
StepKind = Literal["probed", "told", "reserved", "asked"]


class TaskSpec(Struct, frozen=True, array_like=True, gc=False):
    """One task of a job.

    Attributes:
        task_id: Unique within the job.
        payload: Opaque to everything but the runner.
        preferred_nodes: If not empty, the task runs on one of these nodes.
        wait_s: None if that is a hard constraint; else, when the task has waited for so long, or
            none of them lives, any node will do (delay scheduling).
        memory_bytes: About how much memory it needs; 0 if that is nobody's concern.
    """

    task_id: TaskId
    payload: bytes
    preferred_nodes: tuple[str, ...] = ()
    wait_s: Seconds | None = None
    memory_bytes: Count = 0


class JobOptions(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """What is asked for a whole job.

    Attributes:
        framework: Only executors of this framework run it.
        priority: Smaller goes first, where a node's policy is strict priority.
        requires: Attributes that a node must have, such as "gpu" or "zone=a".
        task_s: About how long a task runs, for shortest remaining work first.
        straggler_factor: If above 0, a task is submitted a second time when half of the job's
            tasks are done and it has taken this many times as long as their median.
        explain: Let `JobFinished` tell how the tasks came to their nodes; see `why.explain`.
    """

    framework: str = ""
    priority: int = 0
    requires: tuple[str, ...] = ()
    task_s: Seconds = 1.0
    straggler_factor: Annotated[float, Meta(ge=0)] = 0.0
    explain: bool = False


class Claim(Struct, frozen=True, array_like=True, gc=False):
    """What a node's queue discipline may know of a job; `waiting` tasks are not bound yet."""

    user: str = ""
    framework: str = ""
    priority: int = 0
    task_s: Seconds = 1.0
    waiting: Count = 1


class PlacementStep(Struct, frozen=True, array_like=True, gc=False):
    """What passed between a scheduler and a node while it placed a job's tasks.

    Attributes:
        at_s: When, since the scheduler had the job.
        node: The node.
        what: The scheduler "probed" it for its load; it "told" its load; the scheduler "reserved"
            there; or the node had free slots and "asked" for tasks.
        count: The load, or how many reservations or tasks.
        tasks: Those that were bound to a node that asked.
    """

    at_s: float
    node: NodeName
    what: StepKind
    count: int = 0
    tasks: tuple[TaskId, ...] = ()


class Assignment(Struct, frozen=True, array_like=True, gc=False):
    """A task bound to a node; `attempt` counts from 1, `memory_bytes` is what the task needs."""

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
    """A task's result, and how long the runner took."""

    task_id: TaskId
    attempt: Count
    run_s: Seconds
    result: bytes


class AttemptEnd(Struct, frozen=True, array_like=True, gc=False):
    """How an attempt ended; its slot is free.

    Attributes:
        task_id: The task.
        attempt: Which attempt at it.
        run_s: Time in the runner; None if it was not run to its end.
        lost: Why it must be tried again, if so.
    """

    task_id: TaskId
    attempt: Count
    run_s: float | None = None
    lost: str | None = None


class SlotOutcome(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """What a slot made of a task: a result, or an error (`message` is not None)."""

    key: TaskKey
    run_s: Seconds
    result: bytes
    message: str | None = None
    detail: bytes = b""
    retryable: bool = False


class Loss(Struct, frozen=True, array_like=True, gc=False):
    """An attempt on an executor that must be tried again, and why."""

    task_id: TaskId
    attempt: Count
    executor: str
    reason: str


class JobReport(Struct, frozen=True, array_like=True, gc=False):
    """How attempts at tasks of a job ended on a node: which tasks are done, which were lost."""

    job_id: JobId
    done: tuple[TaskId, ...] = ()
    lost: tuple[Loss, ...] = ()


class ExecutorInfo(Struct, frozen=True, array_like=True, gc=False):
    """An executor of a node, which runs the jobs of one framework."""

    address: Address
    pid: int
    slots: Count
    framework: str = ""


class HeldJob(Struct, frozen=True, array_like=True, gc=False):
    """A job of which a node holds `reservations` (0: only its shared part)."""

    job_id: JobId
    reservations: Count


class NodeInfo(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A live node as a scheduler knows it; `queued` and `running` are of all its schedulers.

    `deaths` of its executors; `last_death` says how the last of them ended.
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
