"""Queries in one task that uses several cores, where nodes are on one machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import minishark
from minishark.errors import OptionError
from minishark.session import Session

_ROWS = 400_000
_ONE_TASK = [
    "SELECT g, count(*) AS n, sum(x) AS s, avg(y) AS m FROM t GROUP BY g ORDER BY g",
    "SELECT max(t.x) AS x, count(DISTINCT u.g) AS n FROM t JOIN u ON t.x = u.x WHERE u.y < 40",
    "SELECT x, y FROM t WHERE x % 1000 = 7 ORDER BY y DESC, x LIMIT 20",
    "SELECT g, count(*) FROM t WHERE x IN (SELECT x + 1 FROM u) GROUP BY g ORDER BY g",
    "SELECT g, x FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY x DESC) = 1 ORDER BY g",
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


@pytest.mark.parametrize("sql", _ONE_TASK)
def test_a_query_runs_in_one_task_on_all_cores(session: Session, sql: str) -> None:
    """Its plan says so, and its answer is DuckDB's."""
    frame = session.sql(sql, verify=True)
    assert "Stage 0: 1 task with 2 threads\n" in frame.explain("stages")
    frame.to_arrow()
    assert (1, 1) == (frame.metrics().stages, frame.metrics().tasks)


def test_a_large_result_is_put_out_by_several_tasks(session: Session) -> None:
    """One thread would write it all."""
    frame = session.sql("SELECT * FROM t, range(20)", verify=True)
    assert 20 * _ROWS == frame.count()
    assert "Stage 0: 2 tasks\n" in session.sql("SELECT *, x + y FROM t").explain("stages")


def test_small_queries_keep_one_thread(session: Session) -> None:
    """There is no work for a second one."""
    session.sql("CREATE OR REPLACE TABLE few AS SELECT * FROM t LIMIT 1000")
    assert "Stage 0: 1 task\n" in session.sql("SELECT sum(x) FROM few").explain("stages")


def test_one_thread_a_task_leaves_it_to_stages() -> None:
    """On request, only tasks beside each other use several cores."""
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, task_threads=1
    ) as session:
        _load(session)
        frame = session.sql(_ONE_TASK[0], verify=True)
        assert "threads" not in frame.explain("stages")
        frame.to_arrow()


def test_threads_are_at_least_one() -> None:
    """Zero makes no sense."""
    with pytest.raises(OptionError, match="task_threads"):
        minishark.connect(task_threads=0)
