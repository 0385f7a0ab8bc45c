from __future__ import annotations

from functools import partial

import pytest

from minishark.cluster.backend import (
    DatabaseBrokenError,
    FragmentRejectedError,
    job_error,
    task_error,
)
from minishark.compiler.logical.operators import Values
from minishark.compiler.physical.plan import PhysicalPlan, Single
from minishark.compiler.stages.stage import Input, ReadMode, Stage, StageInput, TableInput
from minishark.errors import (
    ClusterError,
    ConstraintError,
    DataValueError,
    ExecutionError,
    QueryCancelledError,
    ResourceError,
    TaskFailedError,
    TasksLostError,
)
from minishark.model.catalog import Partition, Table, TableStatistics
from minishark.model.events.figures import TaskFigures
from minishark.model.expressions import Column
from minishark.query.inputs import preferred_nodes, stage_slices
from minishark.worker.protocol import (
    BucketSlice,
    FileSlice,
    ProblemDetail,
    TaskOutcome,
    TaskProblem,
    decode_outcome,
    decode_problem,
    encode,
)
from sparrow_core import JobFailed, TaskFailed

SCHEMA = (Column("a", "INTEGER"),)


def table(name: str, *partitions: tuple[int, str]) -> Table:
    """A table whose partitions have sizes and holders (one letter each)."""
    stored = tuple(
        Partition(index=i, file=f"{name}/{i}", locations=tuple(locations), rows=1, bytes=size)
        for i, (size, locations) in enumerate(partitions)
    )
    return Table(
        name=name,
        schema=SCHEMA,
        partitions=stored,
        partition_by=(),
        statistics=TableStatistics(1, 1, ()),
    )


def stage(*inputs: Input) -> Stage:
    """A stage that reads something."""
    plan = PhysicalPlan(Values((), SCHEMA), (), SCHEMA, Single(), 1.0)
    return Stage(index=0, sql="", inputs=inputs, schema=SCHEMA, tasks=2, buckets=0, plan=plan)


def preferred(index: int, *inputs: tuple[Table, ReadMode]) -> str:
    """The nodes that a task prefers, as letters."""
    named = [(f"in{i}", item, mode) for i, (item, mode) in enumerate(inputs)]
    tables = {name: item for name, item, _ in named}
    reads = [TableInput(name, item.name, mode) for name, item, mode in named]
    return "".join(sorted(preferred_nodes(stage(*reads), tables, index)))


OWN, ALL = ReadMode.OWN, ReadMode.ALL
T = table("t", (10, "ab"), (10, "bc"))
U = table("u", (5, "bd"), (5, "cd"))


def test_holders_of_the_own_partition_are_preferred() -> None:
    """Any replica of what a task reads will do."""
    assert ("ab", "bc") == (preferred(0, (T, OWN)), preferred(1, (T, OWN)))


def test_node_that_holds_most_is_preferred() -> None:
    """Of two partitions, a node that has both wins, then the larger one's holders."""
    assert ("b", "c") == (preferred(0, (T, OWN), (U, OWN)), preferred(1, (T, OWN), (U, OWN)))
    far = table("far", (99, "z"))
    assert "z" == preferred(0, (T, OWN), (far, OWN))
    close = table("close", (1, "a"), (1, "d"))
    assert ("ab", "bc") == (
        preferred(0, (T, OWN), (close, OWN)),
        preferred(1, (T, OWN), (close, OWN)),
    )


def test_tables_read_whole_do_not_decide() -> None:
    """A table that every task reads whole only matters where there is nothing else."""
    assert "ab" == preferred(0, (T, OWN), (table("big", (999, "z")), ALL))
    assert "b" == preferred(0, (T, ALL))


def test_empty_partitions_have_holders_too() -> None:
    """A partition of no bytes is still somewhere."""
    assert "ab" == preferred(0, (table("empty", (0, "ab")), OWN))


def test_stages_without_tables_prefer_nobody() -> None:
    """Outputs of other stages lie where they lie."""
    assert frozenset() == preferred_nodes(stage(StageInput("in0", 0, ReadMode.BUCKET)), {}, 0)
    assert frozenset() == preferred_nodes(stage(), {}, 0)


# What a task reads of an earlier stage


def outcome(file: str, *buckets: int, rows: int = 0) -> TaskOutcome:
    """A task's output, with a batch per filled bucket."""
    slices, first = [], 0
    for count in buckets:
        last = first + (count > 0)
        slices.append(BucketSlice(first, last, count))
        first = last
    return TaskOutcome(
        figures=TaskFigures(rows=rows or sum(buckets), bytes=1), file=file, buckets=tuple(slices)
    )


piece = partial(FileSlice, is_new=True)
OUTCOMES = [outcome("0", 2, 0, 1), outcome("1", 0, 0, 4)]
NODES = ["a", "b"]


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        (range(1), (piece("0", ("a",), 0, 1),)),
        (range(2, 3), (piece("0", ("a",), 1, 2), piece("1", ("b",), 0, 1))),
        (range(1, 2), (piece("0", ("a",), 1, 1),)),
        (range(2), (piece("0", ("a",), 0, 1),)),
        (range(3), (piece("0", ("a",), 0, 2), piece("1", ("b",), 0, 1))),
        (None, (piece("0", ("a",)), piece("1", ("b",)))),
    ],
)
def test_stage_slices(buckets: range | None, expected: tuple[FileSlice, ...]) -> None:
    """A task reads its buckets of each, or all, and one for the schema at least."""
    assert expected == stage_slices(OUTCOMES, NODES, buckets)


def test_empty_pieces_are_left_out() -> None:
    """Empty files cost an open for nothing, but one must tell the columns."""
    pieces = [
        TaskOutcome(figures=TaskFigures(rows=0, bytes=0), file="0"),
        TaskOutcome(figures=TaskFigures(rows=3, bytes=9), file="1"),
        TaskOutcome(figures=TaskFigures(rows=0, bytes=0), file="2"),
    ]
    found = stage_slices(pieces, ["a", "b", "c"], None)
    assert (piece("1", ("b",)),) == found
    assert (piece("0", ("a",)),) == stage_slices(pieces[:1], ["a"], None)


# Errors that come back


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        (TaskProblem.BIND, FragmentRejectedError, "the story"),
        (TaskProblem.INTERNAL, DatabaseBrokenError, "the story"),
        (TaskProblem.SQL, TaskFailedError, "the story"),
        (TaskProblem.VALUE, DataValueError, "the story"),
        (TaskProblem.CONSTRAINT, ConstraintError, "the story"),
        (TaskProblem.RESOURCE, ResourceError, "the story"),
        (TaskProblem.INPUT, ExecutionError, "Input data can't be read: the story"),
        (TaskProblem.FOLDER, TasksLostError, "Can't store rows: the story"),
        (TaskProblem.INTERRUPTED, QueryCancelledError, "The query was cancelled."),
    ],
)
def test_task_errors(problem: TaskProblem, kind: type[Exception], message: str) -> None:
    """Each problem has its error, with the task's own message."""
    detail = encode(ProblemDetail(problem=problem, message="the story"))
    error = task_error(TaskFailed(0, "short", detail, "n0", "e0"))
    assert (kind, message) == (type(error), str(error))


def test_task_error_without_detail() -> None:
    """A failure that is no task's own says where it was."""
    error = task_error(TaskFailed(0, "the executor broke", b"", "n0", "e0"))
    assert (ExecutionError, "A task failed on n0: the executor broke") == (type(error), str(error))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("cancelled", QueryCancelledError),
        ("no_nodes", ClusterError),
        ("no_executors", ClusterError),
        ("no_scheduler", ClusterError),
        ("protocol", ClusterError),
        ("task_lost", TasksLostError),
        ("internal", ExecutionError),
    ],
)
def test_job_errors(kind: str, error: type[Exception]) -> None:
    """A job that ends without results says why, and tells what came before."""
    found = job_error(JobFailed(kind, "It ended.", ("first", "second")))
    assert error is type(found)
    if kind != "cancelled":
        assert "It ended.\n  first\n  second" in str(found)


def test_outcomes_cross_the_wire() -> None:
    """What a task reports is what the front end reads."""
    for sent in (
        *OUTCOMES,
        TaskOutcome(
            figures=TaskFigures(rows=1, bytes=2, disk_bytes=2, received={"n": 3}),
            inline=b"inline",
            statistics=b"statistics",
        ),
    ):
        assert sent == decode_outcome(encode(sent))
    detail = ProblemDetail(problem=TaskProblem.SQL, message="why")
    assert detail == decode_problem(encode(detail))
