"""BEGIN, COMMIT and ROLLBACK over tables in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import minishark
from minishark import dbapi
from minishark.errors import (
    ConflictError,
    MinisharkError,
    QueryCancelledError,
    QueryTimeoutError,
    TasksLostError,
    TransactionError,
    UnsupportedError,
)
from minishark.session.session import Session


@pytest.fixture(scope="module")
def root() -> Iterator[Session]:
    """A session whose tables others share."""
    with minishark.connect(in_process=True, nodes=2, partitions=2, executors_per_node=1) as found:
        yield found


@pytest.fixture
def pair(root: Session) -> Iterator[tuple[Session, Session]]:
    """Two sessions over the same tables, of which there are two."""
    for name in ("a", "b"):
        root.sql(f"CREATE OR REPLACE TABLE {name} AS SELECT i AS k, 0 AS v FROM range(10) r(i)")
    with root.new_session() as one, root.new_session() as other:
        yield one, other


def ask(session: Session, sql: str) -> list[Any]:
    """The rows of a statement, in order; single values without a tuple."""
    rows = sorted(tuple(row) for row in session.sql(sql).collect())
    return [row[0] if len(row) == 1 else row for row in rows]


def files(session: Session) -> list[int]:
    """How many files each table has in memory, over all nodes."""
    session.sql("SELECT 1").collect()
    cluster = session._runtime.cluster
    root = cluster.paths.memory  # type: ignore[attr-defined]
    return [len([*root.glob(f"*/{t.folder}/*.arrow")]) for t in session._runtime.tables.catalog]


def test_others_see_all_changes_at_once(pair: tuple[Session, Session]) -> None:
    """The transaction sees its own before, whichever database answers."""
    one, other = pair
    one.sql("BEGIN")
    one.sql("INSERT INTO a VALUES (10, 1)")
    one.sql("UPDATE b SET v = 5 WHERE k = 3")
    one.sql("DELETE FROM b WHERE k > 5")
    one.sql("INSERT INTO a SELECT k + 100, v FROM b WHERE v = 5")
    counts = "SELECT (SELECT count(*) FROM a), (SELECT sum(v) FROM a), (SELECT count(*) FROM b)"
    assert [(12, 6, 6)] == ask(one, counts)
    assert [(0, 10), (1, 1), (5, 1)] == ask(one, "PIVOT a ON k % 1 USING count(*) GROUP BY v")
    assert [(10, 0, 10)] == ask(other, counts)
    one.sql("COMMIT")
    assert [(12, 6, 6)] == ask(other, counts) == ask(one, counts)


def test_what_others_create_meanwhile_is_not_there(pair: tuple[Session, Session]) -> None:
    """As in DuckDB; the same name can be taken, which is a conflict at the end."""
    one, other = pair
    other.sql("DROP TABLE b")
    one.sql("BEGIN")
    other.sql("CREATE TABLE b AS SELECT 1 AS k, 1 AS v")
    other.sql("CREATE OR REPLACE TABLE a AS SELECT 1 AS k, 1 AS v")
    assert [10] == ask(one, "SELECT count(*) FROM a")
    with pytest.raises(MinisharkError, match="b"):
        ask(one, "SELECT count(*) FROM b")
    one.sql("ROLLBACK")
    assert [1] == ask(one, "SELECT count(*) FROM b")
    one.sql("BEGIN")
    other.sql("DROP TABLE b")
    assert "a" in {table.name for table in one.catalog.list_tables()}
    other.sql("CREATE TABLE c AS SELECT 1 AS k")
    one.sql("CREATE TABLE c AS SELECT 2 AS k")
    with pytest.raises(ConflictError):
        one.sql("COMMIT")
    assert [1] == ask(one, "SELECT k FROM c")
    one.sql("DROP TABLE c")


def test_what_is_rolled_back_leaves_nothing(pair: tuple[Session, Session]) -> None:
    """Neither rows nor files; nor does a session that ends in a transaction."""
    one, other = pair
    before = files(one)
    one.sql("BEGIN; INSERT INTO a VALUES (10, 1); UPDATE a SET v = 3 WHERE k < 5")
    assert [11] == ask(one, "SELECT count(*) FROM a")
    one.sql("ROLLBACK")
    assert [10] == ask(one, "SELECT count(*) FROM a")
    assert [0] == ask(one, "SELECT sum(v) FROM a")
    other.sql("BEGIN; DELETE FROM b")
    other.stop()
    assert [10] == ask(one, "SELECT count(*) FROM b")
    assert before == files(one)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE a SET v = 1 WHERE k = 77",
        "UPDATE a SET v = 1 WHERE k = 77 RETURNING k",
        "DELETE FROM a WHERE k = 77",
        "MERGE INTO a USING (SELECT 77 k) s ON a.k = s.k WHEN MATCHED THEN UPDATE SET v = 1",
    ],
)
def test_what_changes_no_row_conflicts_with_nobody(
    pair: tuple[Session, Session], statement: str
) -> None:
    one, other = pair
    one.sql("BEGIN")
    ask(one, statement)
    ask(one, "UPDATE b SET v = 2 WHERE k = 3")
    other.sql("UPDATE a SET v = 3 WHERE k = 4")
    one.sql("COMMIT")
    assert [(4, 3)] == ask(one, "SELECT k, v FROM a WHERE v > 0")
    assert [(3, 2)] == ask(other, "SELECT k, v FROM b WHERE v > 0")


def test_a_conflict_undoes_the_later_transaction(pair: tuple[Session, Session]) -> None:
    """Whoever commits first wins; what the other one did to other tables is undone, too."""
    one, other = pair
    one.sql("BEGIN; UPDATE a SET v = 1 WHERE k = 1; INSERT INTO b VALUES (77, 7)")
    other.sql("UPDATE a SET v = 2 WHERE k = 2")
    with pytest.raises(ConflictError, match="changed by another session"):
        one.sql("COMMIT")
    assert [(1, 0), (2, 2)] == ask(one, "FROM a WHERE k IN (1, 2)")
    assert [] == ask(one, "FROM b WHERE k = 77")
    one.sql("INSERT INTO b VALUES (78, 7)")  # there is no transaction any more
    assert [(78, 7)] == ask(other, "FROM b WHERE v = 7")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "change",
    [
        "CREATE OR REPLACE TABLE a AS SELECT 1 AS k, 1 AS v",
        "CREATE INDEX i ON a (k)",
    ],
)
def test_a_transaction_reads_what_others_have_replaced(
    pair: tuple[Session, Session], change: str
) -> None:
    """A table stays readable as it was, with the transaction's changes, and is freed afterwards."""
    one, other = pair
    table = one._runtime.tables.catalog.get("a")
    one.sql("BEGIN; INSERT INTO a VALUES (10, 1)")
    other.sql(change)
    assert [11] == ask(one, "SELECT count(*) FROM a WHERE v < 2")
    assert [(10, 1)] == ask(one, "FROM a WHERE v = 1")
    with pytest.raises(ConflictError):
        one.sql("COMMIT")
    root = one._runtime.cluster.paths.memory  # type: ignore[attr-defined]
    assert [] == [*root.glob(f"*/{table.folder}/*.arrow")]


def test_rows_are_added_to_what_others_have_changed(pair: tuple[Session, Session]) -> None:
    """Inserts do not conflict; the transaction reads what there was when it began."""
    one, other = pair
    one.sql("BEGIN; INSERT INTO a VALUES (10, 1)")
    other.sql("DELETE FROM a WHERE k < 5; INSERT INTO a VALUES (20, 2)")
    assert [11] == ask(one, "SELECT count(*) FROM a")
    one.sql("COMMIT")
    assert [5, 6, 7, 8, 9, 10, 20] == ask(other, "SELECT k FROM a")


def test_rows_are_not_added_to_other_columns(pair: tuple[Session, Session]) -> None:
    one, other = pair
    one.sql("BEGIN; INSERT INTO a VALUES (10, 1)")
    other.sql("ALTER TABLE a ADD COLUMN y INTEGER DEFAULT 3")
    with pytest.raises(ConflictError):
        one.sql("COMMIT")
    assert [30] == ask(other, "SELECT sum(y) FROM a")


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "sql",
    [
        *("INSERT INTO made VALUES (1)", "DROP TABLE made", "ALTER TABLE made RENAME TO other"),
        *("CREATE INDEX i ON a (k)", "DROP INDEX i", "CREATE TEMP TABLE c (x INT)"),
        "CREATE TABLE c (x INT PRIMARY KEY, y INT REFERENCES c(x))",
        *("CREATE TABLE c (x ENUM ('p', 'q'))", "CREATE TYPE e AS ENUM ('p', 'q')"),
        *("CREATE MACRO m(x) AS x", "DROP MACRO m", "ALTER VIEW w RENAME TO x"),
        *("CREATE SEQUENCE s", "CREATE SCHEMA s", "USE memory.main"),
    ],
)
def test_what_a_transaction_does_not_take(pair: tuple[Session, Session], sql: str) -> None:
    """Whatever could not be undone is refused, and aborts the transaction as any error does."""
    one, _ = pair
    one.sql("CREATE TABLE IF NOT EXISTS made (k INT, l INT AS (k + 1))")
    one.sql("BEGIN; INSERT INTO a VALUES (10, 1)")
    with pytest.raises(UnsupportedError, match="COMMIT or ROLLBACK"):
        one.sql(sql)
    with pytest.raises(TransactionError, match="aborted"):
        one.sql("FROM a")
    one.sql("ROLLBACK")
    assert [10] == ask(one, "SELECT count(*) FROM a")


def test_python_calls_are_part_of_it(pair: tuple[Session, Session]) -> None:
    """What DataFrames and methods do sees it, and errors of theirs abort it."""
    one, _ = pair
    frame = one.sql("FROM a")
    for fails in (
        lambda: one.create_table("c", {"x": [1]}),
        lambda: one.sql("SELECT CAST('x' || k AS INT) FROM a").to_arrow(),
        lambda: one.drop_table("none"),
    ):
        one.begin()
        one.sql("INSERT INTO a VALUES (10, 1)")
        assert 11 == frame.count()
        with pytest.raises(MinisharkError):
            fails()
        with pytest.raises(TransactionError, match="aborted"):
            frame.count()
        with pytest.raises(TransactionError, match="aborted"):
            one.create_table("d", {"x": [1]})
        assert one.in_transaction
        one.sql("COMMIT")
        assert 10 == frame.count()
    assert ["A COMMIT has rolled back its transaction, which an error had aborted."] == [
        each for each in one.warnings if "COMMIT" in each
    ]


def test_what_is_cancelled_aborts_it(pair: tuple[Session, Session]) -> None:
    """Whoever or whatever ends a statement, the rest is not committed."""
    one, _ = pair
    for ended in (
        QueryCancelledError("The query was cancelled."),
        QueryTimeoutError("It took too long."),
        TasksLostError("The nodes died."),
        KeyboardInterrupt(),
    ):

        def handler(_: object, ended: BaseException = ended) -> None:
            raise ended

        one.sql("BEGIN; INSERT INTO a VALUES (10, 1)")
        one.register_progress_handler(handler)
        with pytest.raises(type(ended)):
            one.sql("DELETE FROM a WHERE k IN (SELECT k FROM b)")
        one.remove_progress_handler(handler)
        with pytest.raises(TransactionError, match="aborted"):
            one.sql("INSERT INTO a VALUES (11, 1)")
        one.sql("COMMIT")
        assert list(range(10)) == ask(one, "SELECT k FROM a")


def test_a_session_that_is_aborted_lets_others_go_on(pair: tuple[Session, Session]) -> None:
    """Its state is its own, and one that stops leaves no files."""
    one, other = pair
    before = files(other)
    one.sql("BEGIN; INSERT INTO a VALUES (10, 1)")
    with pytest.raises(MinisharkError):
        one.sql("SELECT none FROM a")
    other.sql("INSERT INTO b VALUES (11, 1)")
    with one.new_session() as third:
        assert [10] == ask(third, "SELECT count(*) FROM a")
    one.stop()
    other.sql("DELETE FROM b WHERE k = 11")
    assert before[0] == files(other)[0]


def test_drivers_end_what_began_with_begin(pair: tuple[Session, Session]) -> None:
    """A connection of the DB-API commits and rolls back; without BEGIN each statement stands."""
    one, other = pair
    connection = dbapi.connect(session=one)
    connection.execute("BEGIN")
    connection.execute("INSERT INTO a VALUES (10, 1)")
    assert one.in_transaction
    connection.rollback()
    assert [10] == ask(other, "SELECT count(*) FROM a")
    connection.execute("BEGIN").execute("INSERT INTO a VALUES (10, 1)")
    assert [10] == ask(other, "SELECT count(*) FROM a")
    connection.commit()
    assert [11] == ask(other, "SELECT count(*) FROM a")
    assert not one.in_transaction
    connection.execute("BEGIN").execute("INSERT INTO a VALUES (11, 1)")
    with pytest.raises(dbapi.ProgrammingError):
        connection.execute("SELEC")
    with pytest.raises(dbapi.OperationalError, match="aborted"):
        connection.execute("FROM a")
    connection.commit()
    assert [11] == ask(other, "SELECT count(*) FROM a")
    connection.execute("BEGIN").execute("UPDATE a SET v = 2")
    other.sql("UPDATE a SET v = 3")
    with pytest.raises(dbapi.OperationalError, match="Run the transaction again"):
        connection.commit()
    assert not one.in_transaction


@pytest.mark.slow
def test_comments_are_part_of_it(pair: tuple[Session, Session]) -> None:
    """Others see them after COMMIT; the table's rows stay where they are, and go on changing."""
    one, other = pair
    comments = """SELECT 'a', comment FROM duckdb_tables() WHERE table_name = 'a' AND comment <> ''
    UNION ALL SELECT column_name, comment FROM duckdb_columns() WHERE comment <> ''
    AND table_name = 'a'"""
    folder = one._runtime.tables.catalog.get("a").folder
    one.sql("COMMENT ON COLUMN a.v IS 'it''s v'")
    one.sql("BEGIN; COMMENT ON TABLE a IS 'one'; INSERT INTO a VALUES (10, 1)")
    assert [("a", "one"), ("v", "it's v")] == ask(one, comments)
    assert [("v", "it's v")] == ask(other, comments)
    one.sql("ROLLBACK")
    assert [("v", "it's v")] == ask(one, comments)
    one.sql("BEGIN; COMMENT ON TABLE a IS 'two'; COMMENT ON COLUMN a.v IS NULL; COMMIT")
    assert [("a", "two")] == ask(other, comments)
    other.sql("UPDATE a SET v = 7 WHERE k = 3")
    assert [(3, 7)] == ask(one, "FROM a WHERE v = 7")
    assert folder == one._runtime.tables.catalog.get("a").folder
    one.sql("ALTER TABLE a ADD COLUMN w INTEGER")
    assert [("a", "two")] == ask(other, comments)
