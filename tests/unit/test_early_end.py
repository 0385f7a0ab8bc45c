"""A stage below a limit ends when the first of its tasks have given enough rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from toy_cluster import ToyTable

from minishark.cluster.backend import JobEvent, Placement
from minishark.compiler.logical.operators import Limit, Scan
from minishark.compiler.logical.plan import LogicalPlan, make_plan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import Stage
from minishark.errors import TaskFailedError
from minishark.model.catalog import Catalog
from minishark.model.events.figures import TaskFigures
from minishark.model.expressions import Column
from minishark.query.run import QueryRun, Site
from minishark.query.sinks import Output
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import (
    FileSlice,
    OutputKind,
    ProblemDetail,
    StageTask,
    TaskOutcome,
    TaskProblem,
    decode_job,
    encode,
)
from minishark.worker.store import Store
from sparrow_core import JobFailed, JobFinished, JobId, JobSpec, TaskCompleted, TaskFailed

COLUMNS = (("a", "INTEGER"),)
TABLE = ToyTable("t", COLUMNS, (), (), 4).catalog_table()
SCAN = make_plan(Scan("t", ("a",), (Column("a", "INTEGER"),)))


def staged(plan: LogicalPlan) -> tuple[Stage, ...]:
    """The stages of a plan over four partitions."""
    catalog = Catalog()
    catalog.add(TABLE)
    return split(plan_physical(plan, catalog, PlannerOptions.eager(4)))


LIMITED = staged(make_plan(Limit(5, 1), SCAN))


class Script:
    """A back end that answers the first job as it was told, and the second with a row."""

    def __init__(self, events: Sequence[JobEvent]) -> None:
        self.events = events
        self.jobs: list[JobSpec] = []
        self.cancelled: list[str] = []

    def submit(self, job: JobSpec, on_event: Callable[[JobEvent], None]) -> JobId:
        """Tell all that happens to a job at once."""
        self.jobs.append(job)
        last = [completed(0, 1), JobFinished()]
        for event in self.events if len(self.jobs) == 1 else last:
            on_event(event)
        return JobId(f"job {len(self.jobs)}")

    def cancel(self, job_id: JobId) -> None:
        """Note it."""
        self.cancelled.append(job_id)


def completed(task: int, rows: int) -> TaskCompleted:
    """A task that put out rows."""
    outcome = TaskOutcome(figures=TaskFigures(rows=rows, bytes=8 * rows), file=f"q/0-{task}")
    return TaskCompleted(
        task_id=task,
        result=encode(outcome),
        node="n0",
        executor="e0",
        attempt=1,
        run_s=0.5,
        queue_s=0.25,
    )


def run(script: Script, folder: Path) -> QueryRun:
    """Run the limited query."""
    paths = StorePaths(folder, folder)
    query = QueryRun(
        stages=LIMITED,
        tables=lambda: {"t": TABLE},
        site=Site(script, lambda: Placement(policy="sparrow", probe_ratio=2.0, nodes=("n0",))),
        store=Store(paths, "n0"),
        folder="q",
        output=Output(kind=OutputKind.RESULT, columns=("a",)),
    )
    query.run()
    return query


def read_by_last(script: Script) -> tuple[FileSlice, ...]:
    """The files that the last stage reads."""
    stage = decode_job(script.jobs[1].shared)
    assert isinstance(stage, StageTask)
    return stage.shared_inputs["in0"]


def test_only_limits_in_several_tasks_end_early() -> None:
    """The limit's first phase needs limit and offset, its last one and other stages all rows."""
    assert [6, None] == [stage.enough_rows for stage in LIMITED]
    assert [None, None] == [stage.enough_rows for stage in staged(make_plan(Limit(None, 3), SCAN))]


def test_a_stage_ends_when_its_first_tasks_gave_enough(tmp_path: Path) -> None:
    """Later tasks are cancelled, and whatever comes of them is not read, not even their errors."""
    late: list[JobEvent] = [
        TaskFailed(
            3,
            "cancelled",
            encode(ProblemDetail(problem=TaskProblem.INTERRUPTED, message="")),
            "n0",
            "e0",
        ),
        JobFailed("cancelled", "The job was cancelled."),
    ]
    script = Script([completed(2, 9), completed(0, 4), completed(1, 2), *late])
    query = run(script, tmp_path)
    assert ["job 1"] == script.cancelled
    assert ["q/0-0", "q/0-1", "q/0-2"] == [item.file for item in read_by_last(script)]
    first, _ = query.observer.record.by_stage
    assert (4, 1, 15) == (first.tasks, first.skipped_tasks, first.rows)
    assert (0.5, 0.5, 0.5) == first.run_s
    assert [(4, 4), (1, 1)] == [(each.tasks, each.done) for each in query.progress().stages]


def test_rows_of_later_tasks_are_not_enough(tmp_path: Path) -> None:
    """Which rows a limit keeps must not depend on which task is first."""
    events = [completed(3, 9), completed(2, 9), completed(1, 9), completed(0, 1), JobFinished()]
    script = Script(events)
    first, _ = run(script, tmp_path).observer.record.by_stage
    assert [] == script.cancelled
    assert 0 == first.skipped_tasks


def test_an_error_before_there_is_enough_counts(tmp_path: Path) -> None:
    """A task whose rows are needed, and fails, fails the query."""
    detail = encode(ProblemDetail(problem=TaskProblem.SQL, message="no"))
    failed = [completed(1, 9), TaskFailed(0, "no", detail, "n0", "e0")]
    with pytest.raises(TaskFailedError):
        run(Script(failed), tmp_path)
