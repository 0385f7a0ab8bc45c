"""All 22 TPC-H answers equal DuckDB's, however the cluster is made and the data lies."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pyarrow as pa
import pytest

import minishark
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries
from minishark.cli.tpch.tables import TABLES
from minishark.compiler.rules.coalesced_tasks import CoalescedTasks
from minishark.model.events.record import QueryRecord
from minishark.query.answers import differences, output_order
from minishark.session.session import Session
from minishark_lab.tpch.reference import create_views

_MORE_CASES = ((8, 3, True), (3, 1, False), (8, 2, False), (1, 3, False))
_QUERIES = load_queries(range(1, QUERY_COUNT + 1))


@pytest.fixture(scope="module")
def answers(tpch_files: dict[str, str]) -> dict[int, tuple[pa.Table, tuple[int, ...]]]:
    """DuckDB's answers, and the columns that they are ordered by, by query."""
    with duckdb.connect() as connection:
        create_views(connection, tpch_files)
        found = {}
        for number, text in _QUERIES.items():
            answer = connection.sql(text).to_arrow_table()
            found[number] = (answer, output_order(connection, text, answer.column_names))
    return found


def _load(session: Session, files: dict[str, str], partitions: int, replicas: int) -> None:
    for name, key in TABLES.items():
        session.create_table(
            name,
            files[name],
            partition_by=key,
            partitions=partitions if key else None,
            replicas=replicas,
        )


def _run(
    session: Session, answers: dict[int, tuple[pa.Table, tuple[int, ...]]]
) -> dict[int, QueryRecord]:
    """Run the queries of these answers, and compare each; their figures."""
    wrong = {}
    metrics = {}
    for number, (expected, order) in answers.items():
        frame = session.sql(_QUERIES[number])
        found = differences(expected, frame.to_arrow(), ordered_by=order)
        metrics[number] = frame.metrics()
        if found:
            wrong[number] = found
    assert {} == wrong
    return metrics


@pytest.mark.parametrize(
    ("partitions", "nodes", "in_process"),
    [
        (3, 2, True),
        pytest.param(1, 1, True, marks=pytest.mark.slow),
        pytest.param(8, 3, False, marks=pytest.mark.slow),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in _MORE_CASES),
    ],
)
def test_all_answers_are_right(
    tpch_files: dict[str, str],
    answers: dict[int, tuple[pa.Table, tuple[int, ...]]],
    partitions: int,
    nodes: int,
    in_process: bool,
) -> None:
    """Everything is distributed; each task that has a place to be runs there."""
    with minishark.connect(
        nodes=nodes,
        executors_per_node=1,
        partitions=partitions,
        single_task_rows=0,
        in_process=in_process,
    ) as session:
        _load(session, tpch_files, partitions, min(2, nodes))
        metrics = _run(session, answers)
        assert () == session.warnings
    for number, figures in metrics.items():
        assert () == figures.warnings, f"query {number}"
        assert figures.constrained_tasks == figures.local_tasks, f"query {number}"
        assert figures.tasks == sum(stage.tasks for stage in figures.by_stage)
        assert figures.stages == len(figures.by_stage) >= 1
        assert 0 < figures.planning_s < figures.elapsed_s
        assert figures.constrained_tasks > 0
    if partitions > 1:
        assert all(figures.stages > 1 and figures.tasks > 2 for figures in metrics.values())
        assert partitions in {stage.tasks for stage in metrics[1].by_stage}


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [2, 16])
def test_answers_are_right_where_partitions_share_tasks(
    tpch_files: dict[str, str],
    answers: dict[int, tuple[pa.Table, tuple[int, ...]]],
    partitions: int,
) -> None:
    """As many tasks as their work is worth, anything from one to one per partition."""
    with minishark.connect(
        in_process=True,
        nodes=2,
        executors_per_node=1,
        partitions=partitions,
        single_task_rows=1,
        disabled_optimizations=["one_task"],
    ) as session:
        _load(session, tpch_files, partitions, 1)
        planner = session._runtime.engine.planner
        rules = {"coalesced_tasks": CoalescedTasks(least_s=2e-4, most_s=5e-4)}
        planner.options = replace(planner.options, rules=rules, read_whole_rows=0, gather_rows=0)
        metrics = _run(session, answers)
    tasks = {stage.tasks for figures in metrics.values() for stage in figures.by_stage}
    assert {1, 2} <= tasks
    assert len(tasks) > 2 or partitions == 2


@pytest.mark.slow
def test_small_data_runs_in_one_task(
    tpch_files: dict[str, str], answers: dict[int, tuple[pa.Table, tuple[int, ...]]]
) -> None:
    """By default, a query over few rows is one task in one stage."""
    with minishark.connect(in_process=True, nodes=2, partitions=4) as session:
        _load(session, tpch_files, 4, 2)
        metrics = _run(session, answers)
    # Those that do not read lineitem, the one large table.
    assert all((1, 1) == (metrics[n].stages, metrics[n].tasks) for n in (2, 11, 16, 22))


@pytest.mark.slow
def test_random_placement_is_right_too(
    tpch_files: dict[str, str], answers: dict[int, tuple[pa.Table, tuple[int, ...]]]
) -> None:
    """Random placement chooses blindly among the nodes that hold a task's data."""
    with minishark.connect(
        in_process=True, nodes=3, partitions=4, placement="random", single_task_rows=0
    ) as session:
        _load(session, tpch_files, 4, 1)
        some = {number: answers[number] for number in (1, 3, 5, 9, 13, 18, 21)}
        metrics = _run(session, some).values()
    constrained = sum(figures.constrained_tasks for figures in metrics)
    assert 0 < constrained == sum(figures.local_tasks for figures in metrics)
