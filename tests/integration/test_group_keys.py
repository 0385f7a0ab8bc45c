"""Groups by the numbers of text in dictionaries: where, and with the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import minishark
from minishark.query.answers import differences
from minishark.session.session import Session

ROWS = 250_000


@pytest.fixture(scope="module")
def stages() -> Iterator[Session]:
    """A session that runs everything in stages, however small."""
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, single_task_rows=0
    ) as session:
        _load(session)
        yield session


@pytest.fixture(scope="module")
def one_task() -> Iterator[Session]:
    """A session that runs queries as one task with two threads."""
    with minishark.connect(in_process=True, nodes=2, executors_per_node=1) as session:
        _load(session)
        yield session


def _load(session: Session) -> None:
    """Make tables whose partitions have different text."""
    numbers = range(ROWS)
    facts = {
        "id": numbers,
        "half": ["first" if i < ROWS // 2 else "second" for i in numbers],
        "kind": [None if i % 5 == 0 else f"kind {i % 7} é" for i in numbers],
        "same": ["" if i % 2 else "x" * 40 for i in numbers],
        "single": [f"u{i}" for i in numbers],
        "key": [i % 40 for i in numbers],
    }
    session.create_table("facts", pa.table(facts))
    session.create_table("divided", pa.table(facts), partition_by="same")
    table = {"key": range(30), "name": [f"place {i % 4}" for i in range(30)]}
    session.create_table("places", pa.table(table))
    odd = {"s": ["a", "b"] * ROWS, "s#CODE": [1, 2] * ROWS, "n": [1, 2] * ROWS}
    session.create_table("odd", pa.table(odd))


CODED = [
    "SELECT half, kind, count(*), sum(id) FROM facts GROUP BY ALL",
    "SELECT half, same, max(kind) FROM facts WHERE half <> 'first' AND same <> '' GROUP BY ALL",
    "SELECT kind, key % 3 AS k, count(*) AS n FROM facts GROUP BY ALL HAVING n > 10 ORDER BY ALL",
    "SELECT name, sum(id * p.key) FROM facts f JOIN places p ON f.key = p.key GROUP BY name",
    "SELECT name, kind, count(*) FROM facts LEFT JOIN places USING (key) GROUP BY ALL",
    "SELECT name, half, count(*) FROM places RIGHT JOIN facts USING (key) GROUP BY ALL",
    "SELECT name, half, count(id) FROM places FULL JOIN facts USING (key) GROUP BY ALL",
    "SELECT half, same, count(*) FROM facts SEMI JOIN places USING (key) GROUP BY ALL",
    "SELECT half, same, count(*) FROM facts ANTI JOIN places USING (key) GROUP BY ALL",
    """SELECT name, sum(key) FROM (SELECT p.key, p.name FROM places p ANTI JOIN facts f
       ON p.key = f.id - 10) GROUP BY name""",
    """SELECT name, sum(key) FROM (SELECT p.key, p.name FROM places p SEMI JOIN facts f
       ON p.key = f.id - 10) GROUP BY name""",
    "SELECT a.kind, b.half, count(*) FROM facts a JOIN facts b ON a.id = b.key GROUP BY ALL",
    "SELECT kind, kind || '!', half, count(DISTINCT id) FROM facts GROUP BY ALL",
    "SELECT DISTINCT n FROM (SELECT half, kind, count(*) AS n FROM facts GROUP BY ALL)",
    "SELECT kind, half, min(id), avg(key) FROM facts GROUP BY ALL",
]
PLAIN = [
    "SELECT kind, sum(id) FROM facts GROUP BY kind",
    "SELECT single, id, count(*) FROM facts WHERE id < 999 GROUP BY ALL",
    "SELECT s, n, count(*) FROM odd GROUP BY ALL",
    "SELECT half, kind, count(*) FROM facts GROUP BY ROLLUP (half, kind)",
    "SELECT upper(half), key, count(*) FROM facts GROUP BY ALL",
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("sql", CODED)
def test_text_of_few_values_is_grouped_by_its_numbers(stages: Session, sql: str) -> None:
    """Whatever lies between the table and the groups, and where partitions number them anew."""
    frame = stages.sql(sql, verify=True)
    assert "#code" in frame.plan_text("physical")
    frame.to_arrow()


@pytest.mark.slow
@pytest.mark.parametrize("sql", CODED[::3])
def test_the_same_in_one_task(one_task: Session, sql: str) -> None:
    """Of many rows; again when the fragment is prepared."""
    frame = one_task.sql(sql, verify=True)
    if "WHERE" not in sql and "JOIN" not in sql:
        assert "#code" in frame.plan_text("physical")
    first, again = frame.to_arrow(), one_task.sql(sql)
    for _ in range(3):  # the second time prepares the fragment, later ones use it
        assert [] == differences(first, again.to_arrow())


@pytest.mark.sample(3)
@pytest.mark.parametrize("sql", PLAIN)
def test_text_that_is_grouped_as_it_is(stages: Session, sql: str) -> None:
    """DuckDB does it well for one column; else there are many values, or none that are stored."""
    frame = stages.sql(sql, verify=True)
    assert "#code" not in frame.plan_text("physical")
    frame.to_arrow()


def test_group_keys_can_be_left_as_they_are() -> None:
    """To compare."""
    with minishark.connect(
        in_process=True, nodes=2, single_task_rows=0, disabled_optimizations=["group_keys"]
    ) as session:
        session.create_table("t", pa.table({"a": ["x", "y"] * 9, "b": ["x", "y"] * 9}))
        frame = session.sql("SELECT a, b, count(*) FROM t GROUP BY ALL", verify=True)
        assert "#code" not in frame.plan_text("physical")
        frame.to_arrow()


def test_files_are_written_by_tasks_that_group_by_numbers(stages: Session, tmp_path: Path) -> None:
    """One file a task, as there is one: the statement did not have to run as a whole instead."""
    sql = "SELECT same, kind, count(*) AS n FROM divided GROUP BY ALL"
    frame = stages.sql(sql)
    assert "#code" in frame.plan_text("physical")
    frame.write.parquet(str(tmp_path / "out"))
    assert 2 == len(list((tmp_path / "out").glob("*.parquet")))
    written = stages.sql(f"FROM '{tmp_path}/out/*.parquet' ORDER BY ALL").to_arrow()
    assert stages.sql(f"{sql} ORDER BY ALL").to_arrow().equals(written)
