"""Why tasks ran where they did: the scheduler's words, made when somebody asks."""

from __future__ import annotations

from minishark.model.events.kinds import StagePlaced, TaskEnded
from sparrow_core import (
    JobFinished,
    JobOptions,
    JobSpec,
    NodeName,
    TaskCompleted,
    TaskId,
    TaskSpec,
    explain,
)


def sentences(task: TaskEnded, placed: StagePlaced) -> tuple[str, ...]:
    """Why a task ran where it did, as `Profile.why` says it; empty if it is not of that job."""
    number = TaskId(task.task)
    if number not in placed.tasks:
        return ()
    preferred = tuple(map(NodeName, placed.preferred.get(number, ())))
    spec = TaskSpec(number, b"", preferred, placed.wait_s if preferred else None)
    ended = TaskCompleted(
        task_id=number,
        result=b"",
        node=task.figures.node,
        executor=task.figures.executor,
        attempt=task.figures.attempt,
        queue_s=task.figures.queue_s,
        run_s=task.figures.run_s,
    )
    job = JobSpec(tasks=(spec,), options=JobOptions(requires=placed.requires))
    explained = explain(job, (ended, JobFinished(placement=placed.steps)))
    return tuple(explained[number].lines())
