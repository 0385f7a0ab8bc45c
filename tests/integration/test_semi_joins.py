"""Semi-join filters: where rows are dropped before they are read, and with the same answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import minishark
from minishark.session.session import Session
from minishark.worker import run_task

ROWS = 2_000
FILTERED = " in #"


@pytest.fixture(scope="module", params=[1, 3], ids=["one task", "stages"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Sessions that filter every scan that may be filtered, however small, in tasks or in one."""
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, single_task_rows=0, partitions=request.param
    ) as session:
        _load(session)
        yield session


def _load(session: Session) -> None:
    numbers = range(ROWS)
    facts = {
        "id": numbers,
        "key": [None if i % 11 == 0 else i % 90 - 20 for i in numbers],
        "small": pa.array([i % 100 for i in numbers], pa.uint8()),
        "kind": [None if i % 5 == 0 else f"kind {i % 7} é" for i in numbers],
        "price": pa.array([i * 10**15 for i in numbers], pa.decimal128(38, 2)),
        "list": [[i, None] for i in numbers],
    }
    table = {
        "key": [None, *range(-10, 30)],
        "small": pa.array([None, *range(40)], pa.uint8()),
        "name": [None, *[f"place {i % 4}" for i in range(40)]],
        "worth": pa.array([10**18, *range(40)], pa.decimal128(30, 3)),
    }
    session.create_table("facts", pa.table(facts), partition_by="id")
    session.create_table("places", pa.table(table), partition_by="key")
    session.create_table("loose", pa.table(facts))
    session.create_table("empty", pa.table(table).slice(0, 0))
    session.create_table('odd "table', pa.table({"a b": range(50), "select": range(50)}))


WITH_FILTERS = [
    "SELECT * FROM facts JOIN places USING (key) WHERE name = 'place 1'",
    "SELECT f.id, p.name FROM facts f JOIN places p ON f.key = p.key AND f.small < p.small",
    "SELECT f.id, p.name FROM facts f JOIN places p ON f.key IS NOT DISTINCT FROM p.key",
    "SELECT f.id FROM facts f SEMI JOIN places p ON f.key = p.key",
    "SELECT p.name FROM places p SEMI JOIN facts f ON f.key = p.key WHERE p.small < 9",
    "SELECT p.name FROM places p ANTI JOIN facts f ON f.key = p.key AND f.id > 1000",
    "SELECT p.key, f.id FROM places p LEFT JOIN facts f ON f.key = p.key AND f.kind > 'kind 3'",
    "SELECT p.key, f.id FROM facts f RIGHT JOIN places p ON f.key IS NOT DISTINCT FROM p.key",
    "SELECT name, kind, count(*), sum(price) FROM facts f JOIN places p USING (key) GROUP BY ALL",
    "SELECT f.kind, sum(p.worth) FROM facts f JOIN places p USING (small) GROUP BY ALL",
    """SELECT name, n FROM places p JOIN (SELECT key, count(*) AS n FROM loose GROUP BY key) f
       ON f.key IS NOT DISTINCT FROM p.key""",
    """SELECT p.name, q.name, f.id FROM facts f JOIN places p ON f.key = p.key
       JOIN places q ON f.small = q.small WHERE p.worth < 5 AND q.worth > 20""",
    """SELECT a.id, b.id FROM facts a JOIN facts b ON a.id = b.key JOIN places p ON a.key = p.key
       WHERE p.name = 'place 2'""",
    """SELECT id FROM facts f WHERE small > (SELECT avg(small) FROM facts g WHERE g.key = f.key)
       AND key IN (SELECT key FROM places WHERE worth < 9)""",
    """WITH p AS MATERIALIZED (SELECT key, name FROM places WHERE small < 20)
       SELECT a.id, b.name FROM facts a JOIN p ON a.key = p.key JOIN p b ON a.small = b.key""",
    """SELECT name, max(id) FROM (SELECT key, id FROM facts UNION ALL SELECT key, id FROM loose)
       JOIN (SELECT f.key, any_value(name) AS name FROM places p JOIN loose f USING (key)
             GROUP BY f.key) USING (key) GROUP BY name""",
    """SELECT a."select" FROM "odd ""table" a JOIN "odd ""table" b ON a."a b" = b."select"
       WHERE b."a b" % 7 = 3""",
    "SELECT f.id FROM facts f JOIN empty e ON f.key = e.key",
    "SELECT name, row_number() OVER (ORDER BY id) FROM facts JOIN places USING (key) LIMIT 7",
    "SELECT id FROM facts JOIN places USING (key) ORDER BY price DESC, id LIMIT 5 OFFSET 3",
]
WITHOUT_FILTERS = {
    "rows without a match are kept": "SELECT * FROM facts FULL JOIN places USING (key)",
    "a limit counts all rows": "SELECT * FROM (FROM facts ORDER BY id LIMIT 9) SEMI JOIN "
    "(FROM places ORDER BY small LIMIT 3) USING (key)",
    "not an integer": "SELECT id FROM facts f JOIN places p ON f.kind = p.name",
    "of several types": "SELECT id FROM facts f JOIN places p ON f.key = p.small",
    "computed": "SELECT id FROM facts f JOIN places p ON f.key + 1 = p.key * 2",
    "not equal": "SELECT count(*) FROM facts f JOIN places p ON f.key < p.key",
    "windows see all rows": "SELECT n FROM (SELECT key, row_number() OVER (ORDER BY id) AS n "
    "FROM facts) JOIN (SELECT key * 2 AS key FROM places) USING (key)",
}


@pytest.mark.sample(18)
@pytest.mark.parametrize("sql", WITH_FILTERS)
def test_rows_that_no_join_wants_are_dropped(
    session: Session, sql: str, request: pytest.FixtureRequest
) -> None:
    """Whatever lies between table and join; in stages an exchange may, too.

    In one task again, when the first step is prepared.
    """
    one_task = "one task" in request.node.name
    frame = session.sql(sql, verify="LIMIT 7" not in sql)
    if one_task:
        assert FILTERED in frame.plan_text("physical")
    for _ in range(3 if one_task else 1):
        frame.to_arrow()


@pytest.mark.sample(4)
@pytest.mark.parametrize("sql", WITHOUT_FILTERS.values(), ids=WITHOUT_FILTERS)
def test_joins_that_need_all_rows(session: Session, sql: str) -> None:
    """They have no filter."""
    frame = session.sql(sql, verify=True)
    assert FILTERED not in frame.plan_text("physical")
    frame.to_arrow()


def test_the_steps_can_be_seen(session: Session) -> None:
    """What is computed first, and what it is for."""
    text = session.sql(WITH_FILTERS[0]).plan_text("stages")
    assert re.search(r"  drops rows of in\d whose key is not in (cte|in)\d", text)
    alone = session.sql("SELECT id FROM facts JOIN facts AS g USING (id) WHERE g.small < 2")
    assert re.search(
        r"computes cte(\d+) first\n  .* whose id is not in cte\1", alone.plan_text("stages")
    )


@pytest.mark.sample(2)
def test_steps_that_are_too_large_run_within_the_fragment(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more is held than memory allows; all rows are read then."""
    monkeypatch.setattr(run_task, "_HELD_PART", 1 << 62)
    for sql in WITH_FILTERS[:12]:
        session.sql(sql, verify=True).to_arrow()


def test_fragments_without_filters_need_no_steps() -> None:
    """They read a common table expression that is a step of another fragment."""
    with minishark.connect(in_process=True, nodes=2, single_task_rows=0) as session:
        numbers = range(300)
        facts = pa.table({"k": numbers, "v": numbers})
        session.create_table("a", facts, partition_by="k", partitions=3)
        session.create_table("b", facts, partition_by="k", partitions=3)
        session.create_table("one", facts.slice(0, 10), partitions=1)
        frame = session.sql(
            "WITH d AS MATERIALIZED (FROM one WHERE v < 4) "
            "SELECT a.v, d.v FROM a JOIN d ON a.k = d.k "
            "UNION ALL SELECT b.k, d.v FROM b FULL JOIN d ON b.v = d.v",
            verify=True,
        )
        frame.to_arrow()
        assert FILTERED in frame.plan_text("physical")
        assert frame.metrics().stages > 1  # or the statement ran as a whole


def test_groups_written_to_files(session: Session, tmp_path: Path) -> None:
    """Tasks that write files filter too."""
    sql = "SELECT name, count(*) AS n FROM facts JOIN places USING (key) GROUP BY name"
    session.sql(sql).write.parquet(f"{tmp_path}/out")
    written = session.sql(f"FROM '{tmp_path}/out/*.parquet' ORDER BY ALL").to_arrow()
    assert session.sql(f"{sql} ORDER BY ALL").to_arrow().equals(written)


def test_steps_may_call_functions_of_the_user(session: Session) -> None:
    """Which executors are told of, as they are of those that fragments call."""
    session.udf.register("is_odd", lambda n: n % 2 == 1, "BOOLEAN", ["BIGINT"])
    frame = session.sql(
        "SELECT f.id, p.name FROM facts f JOIN places p ON f.key = p.key WHERE is_odd(p.key)"
    )
    assert FILTERED in frame.plan_text("physical")
    assert {
        i for i in range(ROWS) if i % 11 and (i % 90 - 20) % 2 and i % 90 - 20 in range(-10, 30)
    } == {row[0] for row in frame.collect()}
    assert not frame.metrics().warnings


def test_files_that_a_query_names_are_not_filtered(session: Session, tmp_path: Path) -> None:
    """DuckDB reads them itself."""
    session.sql("FROM facts").write.parquet(f"{tmp_path}/facts")
    frame = session.sql(
        f"SELECT count(*) FROM '{tmp_path}/facts/*.parquet' f "
        "JOIN (SELECT key * 2 AS key FROM places) p USING (key)",
        verify=True,
    )
    assert FILTERED not in frame.plan_text("physical")
    frame.to_arrow()


def test_filters_can_be_switched_off() -> None:
    """To compare."""
    with minishark.connect(
        in_process=True, nodes=1, single_task_rows=0, disabled_optimizations=["semi_join_filters"]
    ) as session:
        session.create_table("t", pa.table({"a": [1, 2, 3]}))
        frame = session.sql("SELECT t.a FROM t JOIN t AS u ON t.a = u.a", verify=True)
        assert FILTERED not in frame.plan_text("physical")
        assert 3 == frame.to_arrow().num_rows


def test_small_tables_are_read_as_they_are() -> None:
    """Steps cost more than they save there."""
    with minishark.connect(in_process=True, nodes=1) as session:
        session.create_table("t", pa.table({"a": range(300_000), "b": range(300_000)}))
        frame = session.sql("SELECT sum(t.b) FROM t JOIN t AS u ON t.a = u.a WHERE u.b < 9")
        assert FILTERED not in frame.plan_text("physical")
