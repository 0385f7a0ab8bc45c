"""Tables and views that a transaction creates, changes and drops: as in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minishark
from minishark.errors import ConflictError, MinisharkError
from minishark.session.session import Session

Outcome = list[tuple[Any, ...]] | str

TABLES = (
    "CREATE TABLE t (k INTEGER, v VARCHAR)",
    "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    "CREATE TABLE p (k INTEGER PRIMARY KEY, v VARCHAR DEFAULT 'd')",
    "INSERT INTO p VALUES (1, 'a'), (2, 'b')",
    "CREATE VIEW s AS SELECT sum(k) AS n FROM t",
)
CREATES = (
    "CREATE TABLE c (x INTEGER PRIMARY KEY, y VARCHAR DEFAULT 'd')",
    "CREATE TABLE IF NOT EXISTS c (x INTEGER, y VARCHAR NOT NULL)",
    "CREATE OR REPLACE TABLE c AS SELECT k AS x, v AS y FROM t",
    "CREATE TABLE d AS SELECT k, v || '!' AS v FROM t",
    "CREATE OR REPLACE TABLE d (k INTEGER, v VARCHAR, CHECK (k < 100))",
    "CREATE TABLE t (k VARCHAR, v INTEGER)",
    "CREATE VIEW w AS SELECT count(*) AS n FROM d",
    "CREATE OR REPLACE VIEW w AS FROM c",
    "CREATE OR REPLACE VIEW s AS SELECT max(k) AS n FROM t",
    "CREATE TABLE w (n INTEGER)",
    "CREATE VIEW c AS FROM t",
)
DROPS = (
    *("DROP TABLE c", "DROP TABLE IF EXISTS d", "DROP TABLE t", "DROP TABLE p"),
    *("DROP VIEW w", "DROP VIEW IF EXISTS w", "DROP VIEW s"),
)
ALTERS = (
    "ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 7",
    "ALTER TABLE t ALTER v SET DEFAULT 'new'",
    "ALTER TABLE d RENAME TO e",
    "ALTER TABLE e RENAME TO d",
    "ALTER TABLE t RENAME TO e",
    "ALTER TABLE d DROP COLUMN v",
    "ALTER TABLE d RENAME COLUMN v TO z",
    "ALTER TABLE d ALTER k TYPE BIGINT",
    "ALTER TABLE d ALTER v SET NOT NULL",
)
CHANGES = (
    "INSERT INTO t VALUES (3, 'c')",
    "INSERT INTO t (k) VALUES (9)",
    "UPDATE t SET k = k + 1 WHERE k > 1",
    "UPDATE t SET k = k + (SELECT max(k) FROM t)",
    "DELETE FROM t WHERE k > (SELECT min(n) FROM s)",
    "INSERT INTO c VALUES (1, 'a'), (2, NULL)",
    "INSERT INTO c (x) VALUES (4)",
    "INSERT INTO c SELECT k + 10, v FROM t",
    "UPDATE c SET y = y || 'u' WHERE x < 5",
    "DELETE FROM c WHERE x = 1",
    "INSERT INTO d SELECT * FROM d",
    "INSERT INTO d VALUES (1000, 'big')",
    "DELETE FROM d WHERE k IN (SELECT min(k) FROM d)",
    (
        "MERGE INTO p USING c ON p.k = c.x WHEN MATCHED THEN UPDATE SET v = c.y "
        "WHEN NOT MATCHED THEN INSERT VALUES (c.x, c.y)"
    ),
)
QUERIES = (
    *("FROM t", "FROM c", "FROM d", "FROM e", "FROM p", "FROM w", "FROM s"),
    *("SHOW TABLES", "DESCRIBE t", "DESCRIBE c", "DESCRIBE d"),
    "SELECT table_name, column_name, data_type FROM information_schema.columns",
    "SELECT a.k, b.x FROM t AS a JOIN c AS b ON a.k = b.x",
    "SELECT n FROM s WHERE n > (SELECT count(*) FROM memory.main.t)",
    "PIVOT t ON k % 2 USING count(*)",
    "SELECT rowid, k FROM t WHERE k < 2",
)
ENDS = ("BEGIN", "COMMIT", "ROLLBACK")


@pytest.fixture(scope="module")
def root() -> Iterator[Session]:
    """A session whose tables others share."""
    with minishark.connect(in_process=True, nodes=2, partitions=2, executors_per_node=1) as found:
        yield found


@pytest.fixture(scope="module")
def pair(root: Session) -> Iterator[tuple[Session, Session]]:
    """Two sessions over the same tables."""
    with root.new_session() as one, root.new_session() as other:
        yield one, other


def outcome(run: Any, sql: str) -> Outcome:
    """The rows of a query, in order; "ok" for another statement, and "error"."""
    try:
        rows = run(sql)
    except (MinisharkError, duckdb.Error):
        return "error"
    return sorted(rows, key=repr) if sql in QUERIES else "ok"


def rows_of(session: Session, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in session.sql(sql).collect()]


def reset(session: Session) -> None:
    """Drop all tables and views."""
    if session._runtime.scope.transaction.is_active:  # a test has failed in it
        session.sql("ROLLBACK")
    for view in session._runtime.planning.views():
        session.sql(f"DROP VIEW {view}")
    for name in session.tables:
        session.sql(f"DROP TABLE {name}")


def files(session: Session) -> set[str]:
    """The files of tables, on all nodes."""
    session.sql("SELECT 1").collect()
    root = session._runtime.cluster.paths.memory  # type: ignore[attr-defined]
    return {"/".join(path.parts[-3:]) for path in root.glob("*/tables/*/*")}


def stored(session: Session) -> set[str]:
    """The files that tables have."""
    parts = [part for table in session._runtime.tables.catalog for part in table.partitions]
    return {file for part in parts for file in part.files}


def compare(pair: tuple[Session, Session], script: list[str]) -> None:
    """Run a script beside DuckDB, and what another session sees beside another connection."""
    one, other = pair
    reset(one)
    con = duckdb.connect()
    beside = con.cursor()
    for sql in TABLES:
        one.sql(sql)
        con.execute(sql)
    for sql in [*script, "ROLLBACK", *QUERIES[:9]]:
        there = outcome(lambda sql: con.execute(sql).fetchall(), sql)
        assert (sql, there) == (sql, outcome(lambda sql: rows_of(one, sql), sql))
        if sql not in QUERIES:
            there = outcome(lambda sql: beside.execute(sql).fetchall(), "SHOW TABLES")
            assert there == outcome(lambda sql: rows_of(other, sql), "SHOW TABLES")
    for query in QUERIES:
        there = outcome(lambda sql: beside.execute(sql).fetchall(), query)
        assert (query, there) == (query, outcome(lambda sql: rows_of(other, sql), query))
    assert stored(one) == files(one)


@pytest.mark.sample(13)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize(
    "script",
    [
        [CREATES[0], CHANGES[6], CHANGES[7], CHANGES[8], "FROM c", "DESCRIBE c", CHANGES[-1]],
        [
            CHANGES[0],
            CHANGES[2],
            CREATES[3],
            "FROM d",
            CHANGES[10],
            "FROM d",
            CHANGES[12],
            "FROM d",
        ],
        [CREATES[3], "DROP TABLE d", CREATES[4], CHANGES[10], "DESCRIBE d", CREATES[6], "FROM w"],
        ["DROP TABLE t", CREATES[5], "INSERT INTO t VALUES ('x', 1)", "FROM t", *QUERIES[7:9]],
        [CREATES[3], ALTERS[2], "FROM e", CHANGES[0], ALTERS[3], ALTERS[6], "FROM d"],
        [CHANGES[1], ALTERS[0], ALTERS[1], CHANGES[1], "FROM t", "DESCRIBE t", "FROM s"],
        [CREATES[1], CREATES[1], CREATES[7], CHANGES[5], "FROM w", "DROP VIEW w", "SHOW TABLES"],
        ["DROP VIEW s", "SHOW TABLES", CREATES[8], "FROM s", CHANGES[2], QUERIES[13]],
        [CREATES[9], "DROP TABLE w", CREATES[3], CREATES[6], *QUERIES[11:], "FROM w"],
        ["DROP TABLE p", "SHOW TABLES", "FROM p"],
        [CREATES[10], "FROM c", CREATES[0]],
        [CHANGES[3], "FROM t", CHANGES[4], "FROM t", CREATES[8], CHANGES[0], CHANGES[4], "FROM t"],
    ],
)
def test_scripts(pair: tuple[Session, Session], script: list[str], end: str) -> None:
    """Tables and views are the session's until COMMIT, and then everybody's or gone."""
    compare(pair, ["BEGIN", *script, end, *script])


@pytest.mark.sample(14)
@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ("CREATE TABLE c (x INTEGER)", "CREATE TABLE c (y INTEGER)"),
        ("CREATE TABLE c AS FROM t", "CREATE VIEW c AS FROM t"),
        ("CREATE VIEW c AS FROM t", "CREATE TABLE c (y INTEGER)"),
        ("CREATE VIEW c AS FROM t", "CREATE VIEW c AS FROM p"),
        ("CREATE OR REPLACE VIEW s AS FROM t", "DROP VIEW s"),
        ("DROP TABLE t", "INSERT INTO t VALUES (7, 'x')"),
        ("DROP TABLE t", "ALTER TABLE t ADD COLUMN z INTEGER"),
        ("ALTER TABLE t ADD COLUMN w INTEGER", "DELETE FROM t WHERE k = 1"),
        ("ALTER TABLE t RENAME TO c", "CREATE TABLE c (y INTEGER)"),
        ("ALTER TABLE t DROP COLUMN v", "DROP TABLE t"),
        ("INSERT INTO t VALUES (7, 'x')", "ALTER TABLE t ADD COLUMN z INTEGER"),
        ("CREATE VIEW c AS FROM t", "DROP TABLE t"),
        ("CREATE TABLE c (x INTEGER)", "CREATE TABLE c (x ENUM ('p', 'q'))"),
    ],
)
def test_who_commits_first_wins(pair: tuple[Session, Session], mine: str, others: str) -> None:
    """If another session has done the same, or has changed a table, nothing is committed."""
    one, other = pair
    reset(one)
    for sql in (*TABLES, "BEGIN", "CREATE TABLE made AS FROM t", mine):
        one.sql(sql)
    other.sql(others)
    seen = [outcome(lambda sql: rows_of(other, sql), query) for query in QUERIES]
    with pytest.raises(ConflictError, match="nothing is committed"):
        one.sql("COMMIT")
    assert seen == [outcome(lambda sql: rows_of(one, sql), query) for query in QUERIES]
    assert stored(one) == files(one)
    one.sql(f"DROP TABLE IF EXISTS c{'' if 'TABLE c' in others else '_'}")


def test_dataframes_and_methods_are_part_of_it(pair: tuple[Session, Session]) -> None:
    """Tables and views of Python, what lists them, and row numbers."""
    one, other = pair
    reset(one)
    one.sql(TABLES[0])
    one.sql("BEGIN")
    one.create_table("made", pa.table({"x": [1, 2, 3]}), partition_by=["x"], partitions=2)
    one.table("made").filter("x > 1").create_temp_view("few")
    one.sql("INSERT INTO made VALUES (4)")
    assert [(2,), (3,), (4,)] == sorted(tuple(r) for r in one.table("few").collect())
    assert ["made", "t"] == one.tables
    assert ["few", "made", "t"] == sorted(info.name for info in one.catalog.list_tables())
    assert [(0, 3)] == rows_of(one, "SELECT min(rowid), max(rowid) FROM made")
    assert ["t"] == other.tables
    one.drop_table("made")
    assert ["t"] == one.tables
    one.sql("ROLLBACK")
    assert (["t"], []) == (one.tables, one._runtime.planning.views())
    assert stored(one) == files(one)


def test_a_view_in_the_place_of_a_table(pair: tuple[Session, Session]) -> None:
    """A table stays what it was for a transaction, if another session makes a view of its name."""
    one, other = pair
    reset(one)
    for sql in ("CREATE TABLE placed AS SELECT 1 AS a", "BEGIN"):
        one.sql(sql)
    for sql in ("DROP TABLE placed", "CREATE VIEW Placed AS SELECT 5 AS a"):
        other.sql(sql)
    assert [(1, 1)] == rows_of(one, "SELECT sum(a), count(*) FROM placed")
    assert [(5, 1)] == rows_of(other, "SELECT sum(a), count(*) FROM placed")
    one.sql("COMMIT")
    assert [(5, 1)] == rows_of(one, "SELECT sum(a), count(*) FROM placed")
    one.sql("DROP VIEW placed")


def test_a_session_that_ends_leaves_nothing(pair: tuple[Session, Session]) -> None:
    """What it has created in its transaction is gone."""
    one, _ = pair
    reset(one)
    one.sql(TABLES[0])
    with one.new_session() as third:
        third.sql("BEGIN; CREATE TABLE made AS SELECT 1 AS x; DROP TABLE t")
    assert [("t",)] == rows_of(one, "SHOW TABLES")
    assert stored(one) == files(one)


_SCRIPTS = st.lists(
    st.sampled_from([*CREATES, *CREATES, *DROPS, *ALTERS, *CHANGES, *QUERIES, *ENDS, *ENDS, *ENDS]),
    max_size=14,
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=_SCRIPTS)
def test_any_script(pair: tuple[Session, Session], script: list[str]) -> None:
    """Each statement ends as in DuckDB; another session sees what is committed."""
    # Transactions refuse tables whose row ids were asked for outside of one (docs/sql.md).
    ends = next((place for place, sql in enumerate(script) if sql in ENDS[1:]), len(script))
    numbered = [sql for sql in script[ends:] if sql != QUERIES[-1]]
    compare(pair, ["BEGIN", *script[:ends], *numbered])
