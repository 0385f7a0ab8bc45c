"""Jobs and what is told of them, as those name them who have jobs run: the words of `Backend`.

They are Sparrow's; `Placement` makes jobs and tasks. Who tries another scheduler behind `Backend`
makes them of its own here, and nobody else notices.
"""

from __future__ import annotations

from typing import TypeAlias

from sparrow_core import (
    JobFailed,
    JobFinished,
    JobId,
    PlacementStep,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TasksReturned,
)
from sparrow_core import JobSpec as Job
from sparrow_core import TaskSpec as Task

__all__ = [
    "Job",
    "JobEvent",
    "JobFailed",
    "JobFinished",
    "JobId",
    "PlacementStep",
    "Task",
    "TaskCompleted",
    "TaskFailed",
    "TaskLost",
    "TasksReturned",
]

JobEvent: TypeAlias = (
    TaskCompleted | TaskFailed | TaskLost | TasksReturned | JobFinished | JobFailed
)
