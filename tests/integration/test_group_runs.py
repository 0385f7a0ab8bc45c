"""Groups as runs of rows: where they are found without a hash table, and with the same answers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import minishark
from minishark.query.answers import differences
from minishark.session.session import Session
from minishark.worker import reduction
from minishark.worker.group_runs import Runs

PLANNED = " possibly in runs of "
KEYS = 700
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module", params=[1, 3], ids=["one task", "stages"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Sessions that look for runs wherever they may, however few; in one task or in several."""
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, single_task_rows=0, partitions=request.param
    ) as session:
        lines = [(key, line) for key in range(KEYS) for line in range(2 + key * 7 % 5)]
        numbers = range(len(lines))
        rows = pa.table(
            {
                "k": [key for key, _ in lines],
                "line": pa.array([line for _, line in lines], pa.int8()),
                "day": [dt.date(2024, 1, 1) + dt.timedelta(days=key // 3) for key, _ in lines],
                "hour": pa.array(
                    [START + dt.timedelta(hours=key // 2) for key, _ in lines], pa.timestamp("us")
                ),
                "price": pa.array(
                    [Decimal(i % 900 - 450) / 4 for i in numbers], pa.decimal128(15, 2)
                ),
                "wide": pa.array([i * 10**20 for i in numbers], pa.decimal128(30, 2)),
                "part": [None if i % 50 == 0 else i % 40 for i in numbers],
                "name": [f"name {i % 9}" for i in numbers],
            }
        )
        session.create_table("lines", rows)
        session.create_table("keyed", rows, partition_by="k")
        session.create_table("parted", rows, partition_by="part")
        session.create_table("shuffled", rows.take([i * 911 % len(lines) for i in numbers]))
        session.create_table("twice", pa.concat_tables([rows, rows]))
        session.create_table("heads", pa.table({"k": range(0, 1000, 3), "n": range(334)}))
        session.create_table("empty", rows.slice(0, 0))
        yield session


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Runs | None]:
    """What tasks find when they look for runs."""
    looked: list[Runs | None] = []
    find = reduction.runs_of

    def seen(*args: object, **options: object) -> Runs | None:
        looked.append(find(*args, **options))  # type: ignore[arg-type]
        return looked[-1]

    monkeypatch.setattr(reduction, "runs_of", seen)
    return looked


OTHER_TABLES = ["keyed", "parted", "twice", "empty"]
IN_RUNS = [
    "SELECT k, count(*), sum(price), min(line), max(line), count(price) FROM {} GROUP BY k",
    "SELECT sum(line), max(price), k FROM {} GROUP BY k ORDER BY k DESC LIMIT 9",
    "SELECT k FROM {} GROUP BY k",
    "SELECT day, sum(price) FROM {} GROUP BY day",
    "SELECT hour, min(k), max(line), count(1) FROM {} GROUP BY hour",
    "SELECT k + 1, sum(price) * 2 FROM {} GROUP BY k HAVING sum(price) > 3",
    "SELECT count(*), sum(n) FROM (SELECT k, count(*) AS n FROM {} GROUP BY k) WHERE n > 3",
    """SELECT count(*), sum(s) FROM heads LEFT JOIN
       (SELECT k, sum(price) AS s FROM {} GROUP BY k) t ON t.s > n""",
    "SELECT n FROM heads WHERE k IN (SELECT sum(line) FROM {} GROUP BY k HAVING sum(line) > 5)",
    """SELECT a.k, s, t FROM (SELECT k, sum(line) AS s FROM {0} GROUP BY k) a
       JOIN (SELECT k, max(price) AS t FROM {0} GROUP BY k) b USING (k)""",
    """WITH s AS MATERIALIZED (SELECT k, sum(price) AS s FROM {} GROUP BY k)
       SELECT a.k, b.s FROM s a JOIN s b ON a.k = b.k + 1 WHERE a.s < b.s""",
]
NOT_IN_RUNS = {
    "several keys": "SELECT k, day, count(*) FROM lines GROUP BY ALL",
    "text": "SELECT name, count(*) FROM lines GROUP BY name",
    "computed": "SELECT k % 50, count(*) FROM lines GROUP BY ALL",
    "of expressions": "SELECT k, sum(price * 2) FROM lines GROUP BY k",
    "of wide decimals": "SELECT k, sum(wide) FROM lines GROUP BY k",
    "of other functions": "SELECT k, avg(price) FROM lines GROUP BY k",
    "distinct": "SELECT k, count(DISTINCT line) FROM lines GROUP BY k",
    "filtered": "SELECT k, count(*) FILTER (WHERE line > 1) FROM lines GROUP BY k",
    "of some rows": "SELECT k, count(*) FROM lines WHERE price > 3 GROUP BY k",
    "in sets": "SELECT k, count(*) FROM lines GROUP BY ROLLUP (k)",
    "of nothing": "SELECT sum(price) FROM lines",
}


@pytest.mark.sample(18)
@pytest.mark.parametrize("sql", IN_RUNS)
@pytest.mark.parametrize(
    "table",
    ["lines", "shuffled", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHER_TABLES)],
)
def test_groups_are_those_of_a_hash_table(session: Session, sql: str, table: str) -> None:
    """Whether rows lie together, or in several places, or anywhere."""
    frame = session.sql(sql.format(table), verify=True)
    if table in ("lines", "keyed"):
        assert PLANNED in frame.plan_text("physical")
    first = frame.to_arrow()
    if table in ("lines", "shuffled"):
        again = session.sql(sql.format(table))
        for _ in range(2):  # the second time prepares the fragment, the third uses it
            assert [] == differences(first, again.to_arrow())


@pytest.mark.sample(3)
@pytest.mark.parametrize("sql", NOT_IN_RUNS.values(), ids=NOT_IN_RUNS)
def test_other_groups(session: Session, sql: str) -> None:
    """Not looked for."""
    frame = session.sql(sql, verify=True)
    assert PLANNED not in frame.plan_text("physical")
    frame.to_arrow()


def test_where_runs_are_found(session: Session, found: list[Runs | None]) -> None:
    """In rows that lie together; each is a group where no other partition has its key."""
    sql = "SELECT k, sum(price) FROM {} GROUP BY k"
    for table, has_runs, are_groups in (
        ("lines", True, True),
        ("keyed", True, True),
        ("shuffled", False, False),
        ("twice", True, False),
    ):
        found.clear()
        session.sql(sql.format(table), verify=True).to_arrow()
        assert found
        assert has_runs == all(runs is not None for runs in found)
        if session.sql(sql.format(table)).plan_text("physical").count("Aggregate") == 1:
            assert are_groups == all(runs is not None and runs.are_groups for runs in found)


def test_nulls_are_left_to_duckdb(session: Session, found: list[Runs | None]) -> None:
    """They would be integers of their own."""
    session.sql("SELECT part, count(*) FROM parted GROUP BY part", verify=True).to_arrow()
    session.sql("SELECT k, sum(part), count(part) FROM lines GROUP BY k", verify=True).to_arrow()
    assert found
    assert all(runs is None for runs in found)


def test_what_is_looked_for_can_be_seen(session: Session) -> None:
    """With the SQL of the groups, if they are none."""
    text = session.sql(IN_RUNS[0].format("lines")).plan_text("sql")
    assert "  checks whether groups0 are runs of k in in0" in text
    assert "groups0: SELECT" in text


def test_groups_written_to_files(
    session: Session, tmp_path: Path, found: list[Runs | None]
) -> None:
    """Tasks that write files find runs, too."""
    sql = "SELECT k, sum(price) AS s FROM keyed GROUP BY k"
    session.sql(sql).write.parquet(f"{tmp_path}/out")
    assert any(found)
    written = session.sql(f"FROM '{tmp_path}/out/*.parquet' ORDER BY k").to_arrow()
    assert session.sql(f"{sql} ORDER BY k").to_arrow().equals(written)


def test_runs_can_be_switched_off() -> None:
    """To compare."""
    with minishark.connect(
        in_process=True, nodes=1, single_task_rows=0, disabled_optimizations=["group_runs"]
    ) as session:
        session.create_table("t", pa.table({"a": [1, 1, 1, 2, 2, 2]}))
        frame = session.sql("SELECT a, count(*) FROM t GROUP BY a", verify=True)
        assert PLANNED not in frame.plan_text("physical")
        assert 2 == frame.to_arrow().num_rows


def test_few_groups_are_not_looked_for() -> None:
    """Their hash table is in a core's cache."""
    with minishark.connect(in_process=True, nodes=1) as session:
        for rows, planned in ((60_000, False), (200_000, True)):
            table = pa.table({"a": [i // 4 for i in range(rows)]})
            session.create_table("t", table, replace=True)
            frame = session.sql("SELECT a, count(*) AS n FROM t GROUP BY a")
            assert planned == (PLANNED in frame.plan_text("physical"))
            assert {4} == set(frame.to_arrow().column("n").to_pylist())
