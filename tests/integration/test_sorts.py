"""Sorts in ranges: every type orders as in DuckDB, and equal keys keep a defined order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from oracle import divergences
from toy_tables import TOY_TABLES, quoted, toy_database

import minishark
from minishark import functions as F
from minishark.session.session import Session

_WAYS = (
    "ASC NULLS LAST",
    "DESC NULLS FIRST",
    "ASC NULLS FIRST",
    "DESC NULLS LAST",
)


def _columns() -> list[tuple[str, str]]:
    with toy_database() as connection:
        return [
            (table.name, column)
            for table in TOY_TABLES
            if table.name in ("t", "f", "kinds", "skew", "nulls", 'Odd "Name"')
            for column in connection.sql(f"FROM {quoted(table.name)}").columns
        ]


@pytest.mark.sample(9)
@pytest.mark.parametrize(("table", "column"), _columns())
def test_every_type_sorts(
    toy_session: Session, plain: duckdb.DuckDBPyConnection, table: str, column: str
) -> None:
    """A column of any type sorts in ranges as DuckDB sorts it, in each direction."""
    way = _WAYS[len(column) % len(_WAYS)]
    first, *_ = plain.sql(f"FROM {quoted(table)}").columns
    sql = (
        f"SELECT {quoted(column)}, {quoted(first)} AS first FROM {quoted(table)} "
        f"ORDER BY 1 {way}, 2"
    )
    if column != "st":  # a plan's structs have no names that compare
        assert "range shuffle" in toy_session.sql(sql).plan_text("physical")
    assert [] == divergences(toy_session, plain, sql)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT s, k FROM t ORDER BY s COLLATE NOCASE DESC, k, id",
        "SELECT ts, ts::TIMESTAMP_NS AS n FROM kinds ORDER BY n DESC, id",
        "SELECT st.q, li[1] FROM kinds ORDER BY st.p NULLS FIRST, li DESC, id",
        "SELECT tz::TIMETZ AS z FROM kinds ORDER BY z, id",
        "SELECT id::BIT AS b FROM kinds ORDER BY b DESC",
        "SELECT id, iv * 31 AS i FROM kinds ORDER BY i DESC, id",
        "SELECT k, count(*) AS n FROM skew GROUP BY k ORDER BY n DESC, k",
        "SELECT x.id FROM skew x JOIN skew y ON x.id = y.id ORDER BY y.x, x.id",
        "SELECT sum(x) FROM (SELECT x FROM skew ORDER BY id LIMIT 2500)",
        "SELECT id FROM skew ORDER BY x, id LIMIT 2000 OFFSET 900",
        "SELECT id, row_number() OVER () FROM (SELECT id FROM skew ORDER BY x, id)",
        "SELECT list(id) FROM (SELECT id FROM skew ORDER BY x, id)",
        "SELECT * FROM (SELECT id, x FROM skew ORDER BY x, id) WHERE id % 3 = 0 ORDER BY id DESC",
        """WITH q AS MATERIALIZED (FROM skew) SELECT a.id FROM q a JOIN q b ON a.id = b.x
        ORDER BY b.k, b.id, a.id""",
        "SELECT id FROM events ORDER BY n, who, id",
        "SELECT id FROM t WHERE k > 99 ORDER BY s",
    ],
)
def test_sorts_below_and_above_other_operators(
    toy_session: Session, plain: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """The order survives whatever stands above the sort, and any input can be sorted."""
    assert [] == divergences(toy_session, plain, sql)


@pytest.fixture(scope="module")
def ties() -> pa.Table:
    """Few keys, many rows, in a known order."""
    return pa.table({"k": [i * 7 % 5 for i in range(4_000)], "i": range(4_000)})


@pytest.fixture(scope="module", params=[1, 4])
def tied_session(request: pytest.FixtureRequest, ties: pa.Table) -> Iterator[Session]:
    """The same rows in one partition and in several."""
    with minishark.connect(
        in_process=True, nodes=1, executors_per_node=2, partitions=3, single_task_rows=0
    ) as session:
        session.create_table("ties", ties, partitions=request.param)
        yield session


@pytest.mark.parametrize(
    ("tail", "kept"),
    [("", slice(None)), ("LIMIT 10", slice(10)), ("LIMIT 9 OFFSET 5", slice(5, 14))],
)
def test_sorts_of_tables_in_source_order_are_stable(
    tied_session: Session, ties: pa.Table, tail: str, kept: slice
) -> None:
    """Rows with equal keys keep the order of the source, at any number of partitions."""
    pairs = sorted(zip(*ties.to_pydict().values(), strict=True), key=lambda pair: -pair[0])
    found = tied_session.sql(f"SELECT k, i FROM ties WHERE i >= 0 ORDER BY k DESC {tail}")
    columns = found.to_arrow().to_pydict().values()
    assert list(itertools.islice(pairs, *kept.indices(4_000))) == list(zip(*columns, strict=True))


_WITH_NULLS = """
SELECT i AS id, CASE WHEN i % 7 = 0 THEN NULL ELSE i * 7919 % 100 END AS v, i % 5 AS g,
    CASE WHEN i % 3 = 0 THEN NULL ELSE 'x' || i * 31 % 50 END AS s FROM range(3000) r(i)
"""
_SORTED = [
    "SELECT id, v FROM n ORDER BY v, id",
    "SELECT id, v FROM n ORDER BY v DESC, id DESC",
    "SELECT id, v FROM n ORDER BY s DESC, v, id LIMIT 20 OFFSET 5",
    "SELECT id, v FROM n ORDER BY v ASC NULLS LAST, id LIMIT 20",
    "SELECT id, row_number() OVER (ORDER BY v, id) AS r FROM n ORDER BY id",
    "SELECT id, lag(id) OVER (PARTITION BY s ORDER BY v DESC, id) AS l FROM n ORDER BY id",
    "SELECT id FROM n QUALIFY row_number() OVER (PARTITION BY g ORDER BY v, id) < 4 ORDER BY id",
    "SELECT g, list(v ORDER BY v) AS l FROM n GROUP BY g ORDER BY g",
    "SELECT s, count(*) AS c FROM n GROUP BY s ORDER BY s DESC LIMIT 3",
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("tasks", [{}, {"single_task_rows": 0, "partitions": 3}], ids=str)
def test_the_place_of_nulls_can_be_spark_s(tasks: dict[str, int]) -> None:
    """In sorts, windows, first rows and lists, in one task and in stages, as the setting says."""
    setting = "SET default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC'"
    with minishark.connect(in_process=True, **tasks) as session, duckdb.connect() as plain:
        for run in (session.sql, plain.execute):
            run(f"CREATE TABLE n AS {_WITH_NULLS}")
            run(setting)
        for query in _SORTED:
            expected = plain.execute(query).fetchall()
            assert expected == [tuple(row) for row in session.sql(query).collect()], query
        frame = session.table("n").coalesce(1)
        up, down = (
            [row.id for row in frame.sort_within_partitions(key, "id").collect()]
            for key in ("v", F.desc("v"))
        )
        assert [id_ for (id_,) in plain.execute("SELECT id FROM n ORDER BY v, id").fetchall()] == up
        expected = plain.execute("SELECT id FROM n ORDER BY v DESC, id").fetchall()
        assert [id_ for (id_,) in expected] == down
