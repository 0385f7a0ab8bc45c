"""Queries in one task that uses several cores, where nodes are on one machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import minishark
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.rules.coalesced_tasks import CoalescedTasks
from minishark.errors import OptionError
from minishark.query.run import QueryRun
from minishark.query.sinks import CollectRows
from minishark.session.session import Session

_ROWS = 400_000
_ONE_TASK = [
    "SELECT g, count(*) AS n, sum(x) AS s, avg(y) AS m FROM t GROUP BY g ORDER BY g",
    "SELECT max(t.x) AS x, count(DISTINCT u.g) AS n FROM t JOIN u ON t.x = u.x WHERE u.y < 40",
    "SELECT x, y FROM t WHERE x % 1000 = 7 ORDER BY y DESC, x LIMIT 20",
    "SELECT g, count(*) FROM t WHERE x IN (SELECT x + 1 FROM u) GROUP BY g ORDER BY g",
    "SELECT y, median(x) AS m, stddev(x) AS s FROM t GROUP BY y HAVING m > 7 ORDER BY y",
]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Two nodes with one slot each, and tables that keep both busy."""
    with minishark.connect(in_process=True, nodes=2, executors_per_node=1) as found:
        _load(found)
        yield found


def _load(session: Session) -> None:
    rows = session.sql(f"SELECT i AS x, i % 97 AS y, 'g' || (i % 11) AS g FROM range({_ROWS}) r(i)")
    for name, key in (("t", "x"), ("u", "y")):
        session.create_table(name, rows, partition_by=key)


@pytest.mark.sample(3)
@pytest.mark.parametrize("sql", _ONE_TASK)
def test_a_query_runs_in_one_task_on_all_cores(session: Session, sql: str) -> None:
    """Its plan says so, and its answer is DuckDB's."""
    frame = session.sql(sql, verify=True)
    assert "Stage 0: 1 task with 2 threads\n" in frame.plan_text("stages")
    frame.to_arrow()
    assert (1, 1) == (frame.metrics().stages, frame.metrics().tasks)


@pytest.mark.slow
def test_queries_at_a_time_share_the_cores(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would have to wait for the others anyway."""
    threads = []

    def run(self: QueryRun) -> None:
        threads.append(self.threads)
        original(self)

    original = QueryRun.run
    monkeypatch.setattr(QueryRun, "run", run)
    sql = _ONE_TASK[1]
    expected = session.sql(sql).to_arrow()
    barrier, answers = threading.Barrier(4), []

    def ask() -> None:
        barrier.wait(30)
        answers.extend(session.sql(sql).to_arrow() for _ in range(5))

    users = [threading.Thread(target=ask) for _ in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join(60)
    assert [expected] * 20 == answers
    assert 2 == threads[0]
    assert {1} <= {*threads} <= {1, 2}


def test_a_large_result_is_put_out_by_several_tasks(session: Session) -> None:
    """One thread would write it all."""
    frame = session.sql("SELECT * FROM t, range(20)", verify=True)
    assert 20 * _ROWS == frame.count()
    assert "Stage 0: 2 tasks\n" in session.sql("SELECT *, x + y FROM t").plan_text("stages")


def test_small_queries_keep_one_thread(session: Session) -> None:
    """There is no work for a second one."""
    session.sql("CREATE OR REPLACE TABLE few AS SELECT * FROM t LIMIT 1000")
    assert "Stage 0: 1 task\n" in session.sql("SELECT sum(x) FROM few").plan_text("stages")


@pytest.mark.slow
def test_one_thread_a_task_leaves_it_to_stages() -> None:
    """On request, only tasks beside each other use several cores."""
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, task_threads=1
    ) as session:
        _load(session)
        frame = session.sql(_ONE_TASK[0], verify=True)
        assert "threads" not in frame.plan_text("stages")
        frame.to_arrow()


def test_threads_are_at_least_one() -> None:
    """Zero makes no sense."""
    with pytest.raises(OptionError, match="task_threads"):
        minishark.connect(task_threads=0)


@pytest.mark.slow
def test_partitions_that_are_asked_for_are_used() -> None:
    """Who wants partitions wants tasks."""
    with minishark.connect(in_process=True, nodes=2, partitions=4) as session:
        _load(session)
        assert "threads" not in session.sql(_ONE_TASK[0]).plan_text("stages")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, list(x)[:3], first(y), string_agg(x)[:9] FROM t GROUP BY g ORDER BY g",
        "SELECT g, x, row_number() OVER (PARTITION BY g ORDER BY y) AS n FROM t QUALIFY n < 3",
        "SELECT DISTINCT ON (g) g, x FROM t ORDER BY g",
        "SELECT y, count(*) FROM t GROUP BY y LIMIT 5",
        "SELECT * FROM t USING SAMPLE 10",
        "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 9) FROM r",
    ],
)
def test_what_depends_on_the_order_of_rows_keeps_one_thread(session: Session, sql: str) -> None:
    """So that it answers the same each time, as far as it ever did."""
    assert "threads" not in session.sql(sql).plan_text("stages")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disabled", "shown"),
    [("one_task", "Stage 1: "), ("eager_aggregation", "with 2 threads\n")],
)
def test_optimizations_can_be_switched_off(disabled: str, shown: str) -> None:
    """One by one; answers stay the same."""
    sql = "SELECT u.g, count(t.x) AS n FROM u LEFT JOIN t ON u.y = t.y AND t.x < 9 GROUP BY u.g"
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, disabled_optimizations=[disabled]
    ) as session:
        _load(session)
        frame = session.sql(sql, verify=True)
        assert shown in frame.plan_text("stages")
        assert "PartialAggregate" not in frame.plan_text("physical") or disabled == "one_task"
        frame.to_arrow()


@pytest.mark.parametrize("names", ["one_task", ["one_tusk"], ["one_tusk", 1]])
def test_unknown_optimizations_are_refused(names: Any) -> None:
    """With the names that there are, before anything is started."""
    with pytest.raises(
        OptionError, match=r"eager_aggregation, .*group_keys, group_runs, .*join"
    ) as told:
        minishark.connect(disabled_optimizations=names)
    assert ("'one_tusk'" in str(told.value)) == ("one_tusk" in names)


def test_known_queries_are_planned_anew_for_more_cores(session: Session) -> None:
    """As nodes join, or when some of them are on other hosts; else a plan is used again."""
    # As if a task were worth its overhead for few rows.
    cheap = {"coalesced_tasks": CoalescedTasks(least_s=1e-6, most_s=1e9)}
    options = replace(PlannerOptions(partitions=2, slots=1).in_stages(), rules=cheap)
    cores = 1
    planner = session._runtime.planner
    shared = replace(planner.shared, options=options, cores=lambda: cores)
    planner = replace(planner, shared=shared)

    def tasks(*, on_hosts: bool = False) -> int:
        plan = planner.plan("SELECT x, y + 1 FROM t", CollectRows(), on_hosts=on_hosts)
        assert plan is planner.plan(plan.bound.sql, CollectRows(), on_hosts=on_hosts)
        return plan.stages[0].tasks

    assert (1, 2) == (tasks(), tasks(on_hosts=True))
    cores = 2
    assert 2 == tasks()
