"""Tables and views that a transaction creates, changes and drops: as in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
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
    for sql in [*script, "ROLLBACK", *QUERIES]:
        there = outcome(lambda sql: con.execute(sql).fetchall(), sql)
        assert (sql, there) == (sql, outcome(lambda sql: rows_of(one, sql), sql))
        there = outcome(lambda sql: beside.execute(sql).fetchall(), "SHOW TABLES")
        assert there == outcome(lambda sql: rows_of(other, sql), "SHOW TABLES")
    for query in QUERIES:
        there = outcome(lambda sql: beside.execute(sql).fetchall(), query)
        assert (query, there) == (query, outcome(lambda sql: rows_of(other, sql), query))
    assert stored(one) == files(one)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    script=st.lists(
        st.sampled_from(
            [*CREATES, *CREATES, *DROPS, *ALTERS, *CHANGES, *QUERIES, *ENDS, *ENDS, *ENDS]
        ),
        max_size=14,
    )
)
def test_any_script(pair: tuple[Session, Session], script: list[str]) -> None:
    """Each statement ends as in DuckDB; another session sees what is committed."""
    compare(pair, ["BEGIN", *script])
