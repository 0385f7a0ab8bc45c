"""EXPLAIN of statements that write: which way they would go. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import minishark
from minishark.errors import MinisharkError, UnsupportedError
from minishark.session.session import Session

STATEMENTS = {
    "INSERT INTO {t} VALUES (1, 2)": "own DuckDB makes the rows",
    "INSERT INTO {t} SELECT i, j FROM memory.main.large": "gives rows; tasks store them",
    "INSERT INTO {t} SELECT i, j FROM memory.main.large RETURNING i": "what the statement says",
    "DELETE FROM {t}": "without a look",
    "DELETE FROM {t} WHERE j < 5": "This query says",
    "DELETE FROM {t} WHERE j < 5 RETURNING *": "finds the rows that it concerns. The session's own",
    "UPDATE {t} SET j = 5 WHERE j = 3": "This query says",
    "WITH q AS (SELECT 3 AS k) UPDATE {t} SET j = k FROM q WHERE j = k": "says what becomes",
    "MERGE INTO {t} USING (SELECT 1 AS i, 2 AS j) USING (i) WHEN MATCHED THEN UPDATE": "says what",
    "CREATE OR REPLACE TABLE {t} AS SELECT i FROM memory.main.large": "Tasks store the rows",
}
STORES = {
    "memory.main.large": "large, a table in memory",
    "warehouse.main.w": "warehouse.main.w in the warehouse",
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: Any) -> Iterator[Session]:
    """Tables in memory, one of them not small, and one of a warehouse."""
    folder = tmp_path_factory.mktemp("warehouse")
    with minishark.connect(in_process=True, warehouse=folder) as session:
        session.sql(
            "CREATE TABLE memory.main.large AS SELECT i, i % 7 AS j FROM range(400000) r(i)"
        )
        session.sql("CREATE TABLE memory.main.small (i INTEGER PRIMARY KEY, j INTEGER)")
        session.sql("CREATE TABLE warehouse.main.w AS SELECT i, i % 7 AS j FROM range(100) r(i)")
        yield session


def explained(session: Session, sql: str) -> str:
    answer = session.sql(f"EXPLAIN {sql}").to_arrow()
    assert answer.column_names == ["explain_value"]
    text: str = answer.column(0)[0].as_py()
    return text


def rows(session: Session, table: str) -> Any:
    return session.sql(f"SELECT count(*), sum(i), sum(j) FROM {table}").to_arrow().to_pylist()


@pytest.mark.sample(3)
@pytest.mark.parametrize("table", STORES)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_it_says_how_a_statement_would_run(session: Session, table: str, statement: str) -> None:
    """The store, the way, and the stages of the query, if there is one; rows stay as they are."""
    before = rows(session, table)
    text = explained(session, statement.format(t=table))
    assert text.startswith(f"Concerns {STORES[table]}.")
    assert STATEMENTS[statement] in text
    has_query = "VALUES" not in statement and statement != "DELETE FROM {t}"
    assert ("\nStage 0: " in text) == has_query
    assert "_minishark" not in text
    assert rows(session, table) == before


def test_it_names_tables_as_users_do(session: Session) -> None:
    """Not as the queries do into which statements are divided."""
    text = explained(session, "DELETE FROM memory.main.large WHERE j = 1")
    assert "reads all of table large as in0" in text


def test_rows_in_memory_are_marked(session: Session) -> None:
    """Unless few are concerned, as statistics say, or other tables decide; files are patched."""
    for change, marked in (
        ("large SET j = 2 WHERE j = 3", True),
        ("large SET j = 2 WHERE i * j = 3", True),
        ("large SET j = 2 FROM (SELECT 3 AS k) AS q WHERE j = k", False),
        ("large SET j = 2 WHERE j IN (SELECT i FROM memory.main.small)", False),
    ):
        text = explained(session, f"UPDATE memory.main.{change}")
        assert ("says of each row whether it changes" in text) == marked, change
        assert ("says what becomes of which rows" in text) != marked, change
    text = explained(session, "UPDATE warehouse.main.w SET j = 2 WHERE j = 3")
    assert "says what becomes of which rows" in text


def test_few_rows_are_searched_in_the_front_end(session: Session) -> None:
    """No query is planned for that."""
    for search in ("small SET i = i + 1 WHERE j = 1", "large SET j = 2 WHERE i = 3"):
        text = explained(session, f"UPDATE memory.main.{search}")
        assert "The front end looks for the rows" in text
        assert "Stage" not in text


def test_what_only_duckdb_can_do(session: Session) -> None:
    """The reason is told, as when the statement runs."""
    changed = "UPDATE memory.main.large SET i = (SELECT max(j) FROM memory.main.large)"
    session.sql("CREATE SEQUENCE q")
    text = explained(session, f"{changed} RETURNING rowid")
    assert "on all rows" in text
    assert "rowid is of DuckDB's own tables" in text
    explained(session, "INSERT INTO memory.main.small VALUES (nextval('q'), 1)")
    assert session.sql("SELECT nextval('q')").to_arrow().column(0).to_pylist() == [1]
    within = "WITH n AS (INSERT INTO memory.main.small VALUES ($1, 1) RETURNING i) SELECT * FROM n"
    assert explained(session, within.replace("$1", "9")).startswith("Changes tables within WITH.")
    session.sql(f"PREPARE p AS {within}")
    assert session.sql("SELECT * FROM memory.main.small WHERE i = 9").count() == 0
    assert [row.i for row in session.sql("EXECUTE p(9)").collect()] == [9]
    session.sql("DELETE FROM memory.main.small WHERE i = 9")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM nowhere",
        "INSERT INTO {t} VALUES (1, 2, 3)",
        "INSERT INTO {t} SELECT none FROM {t}",
        "UPDATE {t} SET none = 1",
        "CREATE TABLE u AS SELECT none",
        "MERGE INTO {t} USING nowhere USING (i) WHEN MATCHED THEN DELETE",
    ],
)
@pytest.mark.parametrize("table", STORES)
def test_it_says_what_is_wrong(session: Session, sql: str, table: str) -> None:
    """As the statement itself would."""
    with pytest.raises(MinisharkError):
        explained(session, sql.format(t=table))
    with pytest.raises(MinisharkError):
        session.sql(sql.format(t=table))


def test_it_sees_its_transaction(session: Session) -> None:
    """A table that the transaction has changed is as it left it."""
    session.sql("BEGIN")
    try:
        session.sql("DELETE FROM warehouse.main.w WHERE j < 50")
        before = rows(session, "warehouse.main.w")
        explained(session, "UPDATE warehouse.main.w SET j = 1")
        assert rows(session, "warehouse.main.w") == before
    finally:
        session.sql("ROLLBACK")


def test_it_is_not_run_to_be_analyzed(session: Session) -> None:
    """EXPLAIN ANALYZE would change rows: it is for queries."""
    with pytest.raises(UnsupportedError):
        session.sql("EXPLAIN ANALYZE DELETE FROM memory.main.large")
