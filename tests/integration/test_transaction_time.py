"""Functions that tell the time: in a transaction, they tell when that began, as DuckDB's do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

import minishark
from minishark import functions
from minishark.errors import MinisharkError
from minishark.session.session import Session

CALLS = (
    "now()",
    "current_timestamp",
    "get_current_timestamp()",
    "transaction_timestamp()",
    "current_date",
    "today()",
    "current_time",
    "get_current_time()",
    "localtime",
    "localtimestamp",
    "current_localtime()",
    "current_localtimestamp()",
)


@pytest.fixture(scope="module", params=["memory", "warehouse"])
def session(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Session]:
    """A session in which `t` has rows, in one of the stores."""
    folder = tmp_path_factory.mktemp("warehouse") if request.param == "warehouse" else None
    with minishark.connect(in_process=True, warehouse=folder) as session:
        if folder is not None:
            session.sql("USE warehouse")
        session.sql("CREATE TABLE t (i INTEGER, told TIMESTAMPTZ)")
        yield session


@pytest.fixture
def transaction(session: Session) -> Iterator[Session]:
    """The session, in a transaction that is rolled back."""
    session.sql("BEGIN")
    yield session
    session.sql("ROLLBACK")


def value(session: Session, sql: str) -> Any:
    return session.sql(sql).to_arrow().column(0)[0].as_py()


def later() -> None:
    """Wait until the time is another one."""
    before = time.time()
    while time.time() - before < 2e-6:
        pass


def test_it_is_the_same_in_each_statement(session: Session) -> None:
    """Statements are told the same, in the type and by the name that they have outside."""
    query = f"SELECT {', '.join(CALLS)}"
    session.sql("BEGIN")
    first = session.sql(query).to_arrow()
    later()
    assert session.sql(query).to_arrow() == first
    session.sql("ROLLBACK")
    outside = session.sql(query).to_arrow()
    assert first.schema == outside.schema
    assert first != outside


def test_all_of_them_tell_one_time(transaction: Session) -> None:
    """They are parts of one point in time, as in DuckDB."""
    texts = [f"{call}::VARCHAR" for call in CALLS]
    now = value(transaction, "SELECT now()")
    row = transaction.sql(f"SELECT {', '.join(texts)}").to_arrow().to_pylist()[0]
    stamp = value(transaction, f"SELECT TIMESTAMPTZ '{now.isoformat()}'::VARCHAR")
    date, _, clock = stamp.partition(" ")
    local = clock.removesuffix("+00")
    times = [stamp] * 4 + [date] * 2 + [clock] * 2 + [local, f"{date} {local}"] * 2
    assert list(row.values()) == times


def test_it_ends_with_the_transaction(session: Session) -> None:
    """The next transaction, and a statement without one, tell other times, later ones."""
    told = list[datetime]()
    for begin, end in (("BEGIN", "COMMIT"), ("BEGIN", "ROLLBACK"), ("SELECT 1", "SELECT 1")):
        session.sql(begin)
        told.append(value(session, "SELECT now()"))
        session.sql(end)
        later()
    assert told == sorted(set(told))
    listed = session.sql("SELECT count(*) FROM duckdb_functions() WHERE database_name = 'temp'")
    assert listed.to_arrow().column(0).to_pylist() == [0]


def test_the_catalog_does_not_list_how_it_is_told(transaction: Session) -> None:
    """Nor what else takes the place of DuckDB's functions there."""
    told = value(transaction, "SELECT now() FROM duckdb_tables()")
    own = "SELECT count(*) FROM duckdb_functions() WHERE database_name = 'temp'"
    assert (told, 0) == (value(transaction, "SELECT now()"), value(transaction, own))
    assert 0 == value(transaction, f"{own} AND EXISTS (FROM duckdb_tables())")


def test_queries_of_rows_tell_it(transaction: Session) -> None:
    """Rows that tasks make, statements that run as a whole, and the scratch database agree."""
    now = value(transaction, "SELECT now()")
    transaction.sql("INSERT INTO t VALUES (1, NULL)")
    later()
    for query in (
        "SELECT now() FROM t",
        "SELECT max(now()) FROM t",
        "SELECT now() FROM range(3) LIMIT 1",
        "SELECT list(now() ORDER BY i)[1] FROM t",
        "SELECT (SELECT now()) FROM t TABLESAMPLE 100%",
        "SELECT now() FROM duckdb_tables() LIMIT 1",
    ):
        assert value(transaction, query) == now, query


def test_changes_store_it(transaction: Session) -> None:
    """INSERT, UPDATE, MERGE and what they compare with."""
    now = value(transaction, "SELECT now()")
    later()
    for change in (
        "INSERT INTO t VALUES (1, now())",
        "INSERT INTO t SELECT i, current_timestamp FROM range(2, 4) r(i)",
        "INSERT INTO t VALUES (4, NULL), (5, TIMESTAMPTZ '2001-01-01')",
        "UPDATE t SET told = transaction_timestamp() WHERE i = 4",
        "MERGE INTO t USING (SELECT 5 AS i) USING (i) WHEN MATCHED THEN UPDATE SET told = now()",
        "DELETE FROM t WHERE told < now()",
    ):
        transaction.sql(change)
    rows = transaction.sql("SELECT i, told FROM t ORDER BY i").to_arrow().to_pylist()
    assert rows == [{"i": i, "told": now} for i in range(1, 6)]


def test_parameters_and_variables_tell_it(transaction: Session) -> None:
    """Prepared statements and variables."""
    now = value(transaction, "SELECT now()")
    later()
    transaction.sql("PREPARE p AS SELECT now() = $1")
    assert value(transaction, "EXECUTE p(now())")
    transaction.sql("SET VARIABLE x = now()")
    assert value(transaction, "SELECT getvariable('x')") == now


def test_dataframes_tell_it(transaction: Session) -> None:
    """A query that no text of the user's made."""
    now = value(transaction, "SELECT now()")
    later()
    frame = transaction.range(1).select(functions.now().alias("n"))
    assert frame.to_arrow().column("n").to_pylist() == [now]


@pytest.mark.slow
def test_definitions_tell_it() -> None:
    """Views, macros and defaults that were there before tell a transaction's time; then not."""
    with minishark.connect(in_process=True) as session:
        session.sql("CREATE TABLE d (i INTEGER, told TIMESTAMPTZ DEFAULT now())")
        session.sql("CREATE VIEW v AS SELECT current_timestamp AS told")
        session.sql("CREATE MACRO m() AS now()")
        session.sql("BEGIN")
        now = value(session, "SELECT now()")
        later()
        session.sql("INSERT INTO d (i) VALUES (1)")
        session.sql("INSERT INTO d (i) SELECT 2")
        session.sql("INSERT INTO d VALUES (3, DEFAULT)")
        session.sql("CREATE TABLE e (i INTEGER, told TIMESTAMPTZ DEFAULT current_timestamp)")
        session.sql("INSERT INTO e (i) VALUES (4)")
        session.sql("ALTER TABLE d ADD COLUMN added TIMESTAMPTZ DEFAULT now()")
        session.sql("CREATE VIEW w AS SELECT now() AS told")
        told = session.sql(
            "SELECT told FROM d UNION ALL SELECT added FROM d UNION ALL SELECT told FROM e "
            "UNION ALL FROM v UNION ALL SELECT m() UNION ALL FROM w"
        )
        assert set(told.to_arrow().column(0).to_pylist()) == {now}
        session.sql("COMMIT")
        session.sql("INSERT INTO d (i) VALUES (5)")
        session.sql("INSERT INTO e (i) VALUES (5)")
        after = session.sql(
            "SELECT told FROM d WHERE i = 5 UNION ALL SELECT told FROM e WHERE i = 5 "
            "UNION ALL FROM v UNION ALL SELECT m() UNION ALL FROM w"
        )
        assert all(moment > now for moment in after.to_arrow().column(0).to_pylist())


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["MACRO", "TEMP MACRO"])
def test_macros_of_users_stay(kind: str) -> None:
    """A user's macro with the name of such a function is called in transactions and after them."""
    with minishark.connect(in_process=True) as session:
        session.sql("BEGIN")
        now = value(session, "SELECT now() FROM duckdb_settings() LIMIT 1")
        assert value(session, "SELECT now()") == now
        session.sql("COMMIT")
        with pytest.raises(MinisharkError, match="Cannot drop internal"):
            session.sql("DROP MACRO now")
        session.sql(f"CREATE {kind} now() AS 7")
        session.sql(f"CREATE {kind} today(x) AS x + 1")
        session.sql("BEGIN")
        for query in (
            "SELECT now()",
            "SELECT now() FROM duckdb_settings() LIMIT 1",
            "SELECT today(6)",
        ):
            assert value(session, query) == 7, query
        stamp = value(session, "SELECT current_timestamp")
        later()
        assert value(session, "SELECT get_current_timestamp()") == stamp
        session.sql("COMMIT")
        assert value(session, "SELECT now() + today(6)") == 14
        session.sql("DROP MACRO now")
        session.sql("DROP MACRO today")
        session.sql("BEGIN")
        now = value(session, "SELECT now()")
        later()
        assert value(session, "SELECT now()") == now > stamp
        session.sql("ROLLBACK")
