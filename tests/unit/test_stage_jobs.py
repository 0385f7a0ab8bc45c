"""What becomes of a run when a node has no folder for what its tasks put out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from minishark.cluster.backend import JobEvent
from minishark.errors import TasksLostError
from minishark.model.events.figures import TaskFigures
from minishark.query import stage_jobs
from minishark.query.stage_graph import StageGraph, StageNode, Submission, TaskOutput
from minishark.query.stage_jobs import RECOVERIES_MAX, OnShared, SharedTask, StageJobs
from minishark.worker.protocol import (
    FileSlice,
    ProblemDetail,
    TaskOutcome,
    TaskProblem,
    decode_outcome,
    encode,
)
from sparrow_core import JobFinished, JobId, JobSpec, TaskCompleted, TaskFailed, TaskSpec

LACKS = TaskFailed(
    1,
    "n1 has no folder q",
    encode(ProblemDetail(problem=TaskProblem.FOLDER, message="it has none")),
    "n1",
    "e1",
)


class Run:
    """Two tasks of one stage; the second meets a node without the folder some times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.renewed = 0
        self.submitted: list[tuple[int, ...]] = []

    # As a back end

    def submit(self, job: JobSpec, on_event: Callable[[JobEvent], None]) -> JobId:
        """Tell at once what happens to a job."""
        tasks = tuple(task.task_id for task in job.tasks)
        self.submitted.append(tasks)
        for task in tasks:
            if task == 1 and self.failures:
                self.failures -= 1
                on_event(LACKS)
                break
            on_event(
                TaskCompleted(
                    task_id=task,
                    result=encode(
                        TaskOutcome(figures=TaskFigures(rows=1, bytes=8), file=f"q/{task}")
                    ),
                    node="n0",
                    executor="e0",
                    attempt=1,
                    queue_s=0.0,
                    run_s=0.0,
                )
            )
        else:
            on_event(JobFinished())
        return JobId(f"job {len(self.submitted)}")

    def cancel(self, job_id: JobId) -> None:
        """Nothing runs."""

    # As the work

    def job(self, submission: Submission) -> JobSpec:
        """The tasks."""
        return JobSpec(tasks=tuple(TaskSpec(task, b"") for task in submission.tasks))

    def task_output(self, submission: Submission, event: TaskCompleted) -> TaskOutput:
        """What a task put out."""
        del submission
        return TaskOutput(decode_outcome(event.result), event.node, (event.node,))

    def on_event(self, submission: Submission, event: JobEvent) -> None:
        """Nobody wants to know."""

    def failure(self, submission: Submission, event: TaskFailed) -> Exception:
        """Any other failure."""
        del submission
        return AssertionError(event.message)

    def inputs_lost(self, files: Sequence[FileSlice]) -> TasksLostError:
        """There are no inputs."""
        raise AssertionError(files)

    def renew(self) -> None:
        """Folders are made."""
        self.renewed += 1

    def waiting(self) -> None:
        """It never waits."""


class Claims:
    """A query that shares its tasks with others, of which none runs any."""

    def __init__(self) -> None:
        self.claimed: set[int] = set()
        self.before: list[set[int]] = []  # what was still claimed whenever tasks were submitted

    def adopt(self) -> None:
        """There is nothing."""

    def shared(self, submission: Submission, tell: OnShared) -> frozenset[int]:
        """It runs all tasks itself."""
        del tell
        self.before.append({*self.claimed})
        self.claimed |= {*submission.tasks}
        return frozenset()

    def on_shared(self, submission: Submission, event: SharedTask) -> None:
        """Nobody else runs any."""
        raise AssertionError(submission, event)

    def ended(self, submission: Submission) -> None:
        """Others may run these."""
        self.claimed -= {*submission.tasks}

    def lost(self, files: Iterable[str]) -> None:
        """Nothing is kept."""


def stage_jobs_of(run: Run, sharing: Claims | None = None) -> StageJobs:
    """The run's jobs."""
    return StageJobs(
        graph=StageGraph([StageNode(index=0, tasks=2)]),
        backend=run,
        work=run,
        lost_nodes=lambda _: (),
        sharing=sharing,
    )


def test_a_task_whose_node_lacks_the_folder_runs_again() -> None:
    """Alone, and after the folders were made."""
    run = Run(failures=2)
    stage_jobs_of(run).run()
    assert ([(0, 1), (1,), (1,)], 2) == (run.submitted, run.renewed)


def test_tasks_of_a_submission_that_is_over_are_left_to_others() -> None:
    """Else two queries that have lost outputs may wait for each other."""
    claims = Claims()
    stage_jobs_of(Run(failures=2), claims).run()
    assert ([set(), set(), set()], set()) == (claims.before, claims.claimed)


def test_a_folder_that_never_comes_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error that names the node."""
    monkeypatch.setattr(stage_jobs, "_PAUSE_S", 0.0)
    run = Run(failures=99)
    with pytest.raises(TasksLostError, match="n1 has no folder q"):
        stage_jobs_of(run).run()
    assert RECOVERIES_MAX == run.renewed
