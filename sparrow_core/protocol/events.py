"""The events of a job, which its callback gets in order."""

from __future__ import annotations

from msgspec import Struct

from sparrow_core.protocol.types import PlacementStep


class TaskCompleted(Struct, frozen=True, tag=True, gc=False, kw_only=True):
    """A task's result; exactly one per task.

    Attributes:
        task_id: The task.
        result: What the runner returned.
        node: Where it ran.
        executor: The executor that ran it.
        attempt: 1 for the first attempt.
        queue_s: Time from submission to the result, minus `run_s`.
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
    """A task failed permanently; `JobFailed` follows, unless the job's tasks are independent.

    `timed_out`: it exceeded `JobOptions.limit_s`, and its executor did not end it.
    """

    task_id: int
    message: str
    detail: bytes
    node: str
    executor: str
    timed_out: bool = False


class TaskLost(Struct, frozen=True, tag=True, gc=False):
    """All attempts at a task of a job with `JobOptions.independent` were lost.

    `story` has a line for each attempt.
    """

    task_id: int
    message: str
    story: tuple[str, ...] = ()


class TasksReturned(Struct, frozen=True, tag=True, gc=False):
    """The answer to a request to take tasks back: these had not begun and will not run."""

    task_ids: tuple[int, ...]


class JobFinished(Struct, frozen=True, tag=True, repr_omit_defaults=True):
    """All tasks have completed, or (if independent) have failed; the job's last event.

    Attributes:
        placement: With `JobOptions.explain`, the steps of placing the tasks, in order; the input of
            `why.explain`.
    """

    placement: tuple[PlacementStep, ...] = ()


class JobFailed(Struct, frozen=True, tag=True):
    """The job ended without all results; its last event.

    Attributes:
        kind: "task_failed", "task_lost" (no attempts left), "unsatisfiable", "no_nodes" (none
            came for `ClientConfig.recovery_s`), "no_executors" (nodes live, but none came up
            there), "no_scheduler" (none answered for as long), "cancelled", "invalid" or
            "protocol".
        message: One sentence.
        story: What happened before, oldest first.
    """

    kind: str
    message: str
    story: tuple[str, ...] = ()


JobEvent = TaskCompleted | TaskFailed | TaskLost | TasksReturned | JobFinished | JobFailed
