"""What an embedding program hears about its job, in order."""

from __future__ import annotations

from msgspec import Struct

from sparrow_core.protocol.types import PlacementStep


class TaskCompleted(Struct, frozen=True, tag=True, gc=False, kw_only=True):
    """A task's result, exactly once a task.

    Attributes:
        task_id: The task.
        result: What the runner returned.
        node: Where it ran.
        executor: The executor that ran it.
        attempt: 1 for the first attempt.
        queue_s: Time from submission to the result, without `run_s`: waiting and messages.
        run_s: Time in the runner.
    """

    task_id: int
    result: bytes
    node: str
    executor: str
    attempt: int
    queue_s: float
    run_s: float


class TaskFailed(Struct, frozen=True, tag=True, gc=False):
    """A task failed for good; `JobFailed` follows at once."""

    task_id: int
    message: str
    detail: bytes
    node: str
    executor: str


class JobFinished(Struct, frozen=True, tag=True, repr_omit_defaults=True):
    """All tasks have completed; the job's last event.

    Attributes:
        placement: How the tasks came to their nodes, if `JobOptions.explain` asked for it: what
            schedulers did, in order; `why.explain` reads it.
    """

    placement: tuple[PlacementStep, ...] = ()


class JobFailed(Struct, frozen=True, tag=True):
    """The job is over without all results; its last event.

    Attributes:
        kind: "task_failed", "task_lost" (no attempts left), "unsatisfiable", "no_nodes",
            "no_scheduler", "cancelled", "invalid" or "protocol".
        message: One sentence.
        story: What happened before, oldest first.
    """

    kind: str
    message: str
    story: tuple[str, ...] = ()


JobEvent = TaskCompleted | TaskFailed | JobFinished | JobFailed
