"""minishark.dbapi is what PEP 249 says, and what tools expect of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest

from minishark import dbapi
from minishark.cli.tpch.locations import sample_folder
from minishark.cli.tpch.queries import load_queries
from minishark.session.session import Session


@pytest.fixture
def connection(toy_session: Session) -> Iterator[dbapi.Connection]:
    """A connection to the shared session."""
    with dbapi.connect(session=toy_session) as opened:
        yield opened


def test_the_module_says_what_it_is() -> None:
    """The globals that PEP 249 asks for are there, and errors form its tree."""
    assert ("2.0", 2, "qmark") == (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle)
    tree = {
        dbapi.Error: (dbapi.InterfaceError, dbapi.DatabaseError),
        dbapi.DatabaseError: (
            dbapi.DataError,
            dbapi.OperationalError,
            dbapi.IntegrityError,
            dbapi.InternalError,
            dbapi.ProgrammingError,
            dbapi.NotSupportedError,
        ),
    }
    for parent, children in tree.items():
        for child in children:
            assert (parent,) == child.__bases__
            assert child is getattr(dbapi.Connection, child.__name__)
    assert date(1970, 1, 2) == dbapi.DateFromTicks(86400)
    assert datetime(1970, 1, 2, 0, 0, 1) == dbapi.TimestampFromTicks(86401)  # noqa: DTZ001
    assert (1, 1) == (dbapi.TimeFromTicks(3661).hour, dbapi.TimeFromTicks(3661).minute)


def test_rows_come_one_by_one_in_groups_and_all(connection: dbapi.Connection) -> None:
    """fetchone, fetchmany, fetchall and iteration go on where the last one ended."""
    cursor = connection.execute("SELECT i FROM range(10) r(i) ORDER BY i")
    assert 10 == cursor.rowcount
    assert (0,) == cursor.fetchone()
    assert [(1,)] == cursor.fetchmany()
    assert [(2,), (3,)] == cursor.fetchmany(2)
    cursor.arraysize = 3
    assert [(4,), (5,), (6,)] == cursor.fetchmany()
    assert 7 == cursor.rownumber
    assert (7,) == next(iter(cursor))
    assert {"i": [8, 9]} == cursor.fetch_arrow_table().to_pydict()
    assert [] == cursor.fetchall()
    assert None is cursor.fetchone()


def test_description_names_types(connection: dbapi.Connection) -> None:
    """Type codes are DuckDB's names, and equal to one of the module's type objects."""
    cursor = connection.execute(
        "SELECT 1 AS n, 1.50::DECIMAL(9, 2) AS d, 'x' AS s, now() AS t, 'x'::BLOB AS b, [1] AS l"
    )
    assert cursor.description is not None
    assert [
        ("n", "INTEGER", None, None, None, None, None),
        ("d", "DECIMAL(9,2)", None, None, 9, 2, None),
        ("s", "VARCHAR", None, None, None, None, None),
        ("t", "TIMESTAMP WITH TIME ZONE", None, None, None, None, None),
        ("b", "BLOB", None, None, None, None, None),
        ("l", "INTEGER[]", None, None, None, None, None),
    ] == list(cursor.description)
    kinds = (dbapi.NUMBER, dbapi.NUMBER, dbapi.STRING, dbapi.DATETIME, dbapi.BINARY)
    found = [column[1] for column in cursor.description]
    assert all(code == kind for code, kind in zip(found, kinds, strict=False))
    assert all(found[-1] != kind for kind in kinds)


def test_values_are_pythons(connection: dbapi.Connection) -> None:
    """Each type has the value in Python that DuckDB's own client gives."""
    query = """
        SELECT true AS a, 42::HUGEINT AS b, sum(i) AS c, 1.50::DECIMAL(9, 2) AS d, 0.5::DOUBLE AS e,
            'ö' AS f, 'x'::BLOB AS g, DATE '2020-02-29' AS h, TIME '10:11:12' AS i,
            TIMESTAMP '2020-02-29 10:11:12.5' AS j, TIMESTAMP_NS '2020-02-29 10:11:12.5' AS k,
            INTERVAL '1 month 2 days 3 seconds' AS l, '0123456789abcdef0123456789abcdef'::UUID AS m,
            'b'::ENUM('a', 'b') AS n, [1, NULL] AS o, {'x': 1, 'y': 'z'} AS p, MAP {'k': 1} AS q,
            NULL AS r, NULL::UUID AS s
        FROM range(4) t(i)"""
    with duckdb.connect() as plain:
        expected = plain.execute(query).fetchall()
    assert expected == connection.execute(query).fetchall()
    assert UUID("0123456789abcdef0123456789abcdef") == expected[0][12]
    assert timedelta(days=32, seconds=3) == expected[0][11]
    ((moment,),) = connection.execute("SELECT TIMESTAMPTZ '2020-01-01 12:00:00+00'").fetchall()
    assert datetime(2020, 1, 1, 12, tzinfo=UTC) == moment


def test_values_that_python_has_not_are_told(connection: dbapi.Connection) -> None:
    """A date beyond Python's is a DataError that names the column, and only when it is fetched."""
    cursor = connection.execute("SELECT DATE '10000-01-01' AS far")
    with pytest.raises(dbapi.DataError, match="column far"):
        cursor.fetchone()


@pytest.mark.parametrize(
    ("text", "parameters", "row"),
    [
        ("SELECT ? AS a, ? AS b", (1, "it's"), (1, "it's")),
        ("SELECT $2 AS a, $1 AS b", [None, Decimal("1.5")], (Decimal("1.5"), None)),
        ("SELECT $day AS a", {"day": date(2020, 1, 1)}, (date(2020, 1, 1),)),
        ("SELECT 1 AS a", (), (1,)),
    ],
)
def test_parameters(
    connection: dbapi.Connection, text: str, parameters: Any, row: tuple[Any, ...]
) -> None:
    """Question marks, numbers and names take values."""
    assert [row] == connection.execute(text, parameters).fetchall()


def test_statements_that_write_have_a_count_and_no_rows(connection: dbapi.Connection) -> None:
    """Rowcount is what changed; executemany adds up; RETURNING gives rows."""
    cursor = connection.cursor()
    try:
        cursor.execute("CREATE TABLE written (a INTEGER PRIMARY KEY, b VARCHAR)")
        assert (None, 0) == (cursor.description, cursor.rowcount)
        cursor.executemany("INSERT INTO written VALUES (?, ?)", [(1, "x"), (2, "y"), (3, None)])
        assert 3 == cursor.rowcount
        cursor.execute("UPDATE written SET b = 'z' WHERE a > 1")
        assert 2 == cursor.rowcount
        connection.commit()
        rows = cursor.execute("DELETE FROM written WHERE a = 1 RETURNING a, b").fetchall()
        assert [(1, "x")] == rows
        with pytest.raises(dbapi.IntegrityError):
            cursor.execute("INSERT INTO written VALUES (2, 'again')")
    finally:
        cursor.execute("DROP TABLE IF EXISTS written")


@pytest.mark.parametrize(
    ("text", "parameters", "error"),
    [
        ("SELEC 1", None, dbapi.ProgrammingError),
        ("SELECT nothing FROM t", None, dbapi.ProgrammingError),
        ("DROP TABLE nowhere", None, dbapi.ProgrammingError),
        ("SELECT ?", (1, 2), dbapi.ProgrammingError),
        ("VACUUM", None, dbapi.NotSupportedError),
        ("SELECT 'x'::INTEGER FROM t", None, dbapi.DataError),
    ],
)
def test_errors_are_pep_249s(
    connection: dbapi.Connection, text: str, parameters: Any, error: type[Exception]
) -> None:
    """Each kind of failure has its class, and minishark's own error as its cause."""
    with pytest.raises(error) as found:
        connection.execute(text, parameters)
    assert found.value.__cause__ is not None


def test_misuse_is_told(connection: dbapi.Connection) -> None:
    """Fetching before executing, closed things, and transactions that can't be undone."""
    cursor = connection.cursor()
    with pytest.raises(dbapi.ProgrammingError, match="execute a query first"):
        cursor.fetchone()
    with pytest.raises(dbapi.ProgrammingError, match="can't run queries"):
        cursor.executemany("SELECT ?", [(1,)])
    with pytest.raises(dbapi.NotSupportedError):
        connection.rollback()
    cursor.close()
    with pytest.raises(dbapi.InterfaceError):
        cursor.execute("SELECT 1")
    connection.close()
    with pytest.raises(dbapi.InterfaceError):
        connection.cursor()
    with pytest.raises(dbapi.ProgrammingError):
        dbapi.connect(session=connection._session, nodes=1)
    with pytest.raises(dbapi.ProgrammingError):
        dbapi.connect(nodes=0)


def test_a_connection_serves_several_threads(connection: dbapi.Connection) -> None:
    """Each thread with a cursor of its own gets its own rows."""
    answers: dict[int, list[tuple[Any, ...]]] = {}

    def ask(number: int) -> None:
        answers[number] = connection.execute("SELECT ?, count(*) FROM t", [number]).fetchall()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: [(number, 60)] for number in range(4)} == answers


def test_a_connections_own_session_stops_with_it() -> None:
    """What connect starts, close stops; a session that was passed stays."""
    with dbapi.connect(in_process=True, nodes=1) as own:
        session = own.session
        assert [(1,)] == own.execute("SELECT 1").fetchall()
    with pytest.raises(Exception, match="stopped"):
        session.sql("SELECT 1")


def test_pandas_reads_a_tpch_query(connection: dbapi.Connection) -> None:
    """pandas.read_sql gets DuckDB's rows, with parameters too."""
    pandas = pytest.importorskip("pandas")
    query = load_queries([6])[6].replace("lineitem", f"'{_sample('lineitem')}'")
    with pytest.warns(UserWarning, match="SQLAlchemy"):
        found = pandas.read_sql(query, connection, coerce_float=False)
    with duckdb.connect() as plain:
        expected = plain.execute(query).fetchall()
    assert expected == [tuple(row) for row in found.itertuples(index=False)]
    with pytest.warns(UserWarning, match="SQLAlchemy"):
        assert [7] == pandas.read_sql("SELECT ? AS a", connection, params=[7])["a"].to_list()


def _sample(table: str) -> Path:
    return sample_folder() / f"{table}.parquet"
