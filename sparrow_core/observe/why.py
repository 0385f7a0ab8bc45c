"""Why a task ran where it did, for the program that submitted it.

With `JobOptions(explain=True)`, a job's `JobFinished` has the steps of its placement. From these,
the job and its events, `explain` derives for each task its constraint, the probed nodes, and who
answered when. Other jobs have no overhead. For the same from audit logs, see `report.why_here`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, assert_never

from msgspec import Struct

from sparrow_core.protocol.events import JobEvent, JobFinished, TaskCompleted
from sparrow_core.protocol.types import JobOptions, PlacementStep, TaskSpec


class SubmittedJob(Protocol):
    """What is needed of a job's `JobSpec`."""

    @property
    def tasks(self) -> tuple[TaskSpec, ...]: ...
    @property
    def options(self) -> JobOptions: ...


class Why(Struct, frozen=True, kw_only=True):
    """Why a task ran where it did.

    Attributes:
        task_id: The task.
        node: Where it ran.
        executor: Which executor ran it.
        attempt: 1 for the first attempt.
        constraint: Which nodes were allowed, as a sentence.
        steps: Messages between scheduler and nodes until the task was bound, in order; the last
            one binds it. Empty if unknown, because the scheduler died.
    """

    task_id: int
    node: str
    executor: str
    attempt: int
    constraint: str
    steps: tuple[PlacementStep, ...]

    @property
    def probed(self) -> tuple[str, ...]:
        """The nodes that were probed or got reservations, each once."""
        asked = (step.node for step in self.steps if step.what in {"probed", "reserved"})
        return tuple(dict.fromkeys(asked))

    def lines(self) -> Iterator[str]:
        """The explanation as text, a line per step."""
        yield f"task {self.task_id} ran on {self.executor}, attempt {self.attempt}"
        yield f"           {self.constraint}"
        for step in self.steps:
            yield f"{1000 * step.at_s:7.3f} ms  {_in_words(step, self.task_id)}"


def explain(job: SubmittedJob, events: Sequence[JobEvent]) -> dict[int, Why]:
    """Explain the placement of each completed task of a job.

    Args:
        job: As submitted, with `JobOptions(explain=True)`.
        events: All events of the job.

    Returns:
        By task id, in order of completion.
    """
    steps = tuple(
        step for event in events if isinstance(event, JobFinished) for step in event.placement
    )
    bound: dict[tuple[int, str], int] = {
        (task_id, step.node): number for number, step in enumerate(steps) for task_id in step.tasks
    }
    specs = {task.task_id: task for task in job.tasks}
    return {
        event.task_id: Why(
            task_id=event.task_id, node=event.node, executor=event.executor, attempt=event.attempt,
            constraint=_constraint(specs[event.task_id], job.options, event.node),
            steps=steps[: bound.get((event.task_id, event.node), -1) + 1],
        )
        for event in events
        if isinstance(event, TaskCompleted)
    }  # fmt: skip


def _constraint(task: TaskSpec, options: JobOptions, node: str) -> str:
    rules = [f"nodes must have {', '.join(options.requires)}"] if options.requires else []
    if not task.preferred_nodes:
        return " and ".join([*rules, "it may run on any node"])
    preferred = ", ".join(task.preferred_nodes)
    if task.wait_s is None:
        return " and ".join([*rules, f"it may run only on {preferred}"])
    rules.append(f"it prefers {preferred} for {task.wait_s:g} s")
    if node not in task.preferred_nodes:
        rules.append("none of them had a free slot in that time, or none lives")
    return " and ".join(rules)


def _in_words(step: PlacementStep, task_id: int) -> str:
    match step.what:
        case "probed":
            return f"{step.node} is asked for its load"
        case "told":
            load = f"{step.count} queued" if step.count >= 0 else f"{-step.count} free slots"
            return f"{step.node} answers: {load}"
        case "reserved":
            return f"{step.node} gets {step.count} reservation(s)"
        case "asked":
            given = ["this task"] if task_id in step.tasks else []
            if others := len(step.tasks) - len(given):
                given.append(f"{others} other(s)")
            what = " and ".join(given) or "nothing"
            return f"{step.node} has {step.count} free slot(s), asks, and is given {what}"
        case "adopted":
            return f"{step.node} had {step.count} task(s) already when the scheduler got the job"
        case _:
            assert_never(step.what)
