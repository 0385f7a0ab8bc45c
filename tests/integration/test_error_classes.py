"""What failed has a class of its own, wherever it ran: as DuckDB's exceptions have."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

import minishark
from minishark import dbapi
from minishark.errors import (
    ConstraintError,
    DataValueError,
    ExecutionError,
    MinisharkError,
    QueryError,
    TaskFailedError,
    TransactionError,
)
from minishark.session.session import Session

SETUP = (
    "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)",
    "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    "CREATE TABLE n (a INTEGER NOT NULL CHECK (a < 100), d DATE)",
    "CREATE TABLE parent (k INTEGER PRIMARY KEY)",
    "CREATE TABLE child (k INTEGER REFERENCES parent (k))",
    "CREATE TABLE many AS SELECT i AS k, 'x' || i AS v FROM range(1000) r(i)",
    "CREATE SCHEMA other",
    "CREATE TABLE other.t AS SELECT 'x' AS v",
)
KINDS = {
    duckdb.ConstraintException: (ConstraintError, dbapi.IntegrityError),
    duckdb.ConversionException: (DataValueError, dbapi.DataError),
    duckdb.OutOfRangeException: (DataValueError, dbapi.DataError),
    duckdb.InvalidInputException: (DataValueError, dbapi.DataError),
    duckdb.BinderException: (QueryError, dbapi.ProgrammingError),
    duckdb.ParserException: (QueryError, dbapi.ProgrammingError),
    duckdb.TransactionException: (TransactionError, dbapi.OperationalError),
}
FAILING = (
    "INSERT INTO t VALUES (1, 'again')",
    "INSERT INTO t SELECT 1, v FROM many",
    "UPDATE t SET k = 2 WHERE k = 1",
    "INSERT INTO n VALUES (NULL, NULL)",
    "INSERT INTO n SELECT k, NULL FROM many",
    "INSERT INTO n VALUES (1, '2020-13-01')",
    "INSERT INTO child VALUES (3)",
    "INSERT INTO n SELECT v, NULL FROM many",
    "CREATE TABLE made AS SELECT v::INTEGER AS k FROM many",
    "SELECT v::INTEGER FROM many",
    "SELECT sum(k::TINYINT) FROM many",
    "SELECT k::SMALLINT * 1000::SMALLINT FROM many",
    "SELECT k // (k - k) FROM many",
    "SELECT error(v) FROM many",
    "SELECT (SELECT k FROM many)",
    "SELECT strptime(v, '%Y') FROM many",
    "SELECT CAST('x' AS INTEGER)",
    "SELECT 1 // 0",
    "FROM range(CAST('x' AS INTEGER))",
    "SELECT v::INTEGER FROM other.t",
    "SELECT factorial(100)",
    "SELECT none FROM t",
    "SELEC",
    "COMMIT",
    "ROLLBACK",
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session with the tables."""
    with minishark.connect(in_process=True, nodes=2, partitions=2, executors_per_node=1) as found:
        for sql in SETUP:
            found.sql(sql)
        yield found


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the same tables."""
    with duckdb.connect() as found:
        for sql in SETUP:
            found.execute(sql)
        yield found


@pytest.mark.sample(8)
@pytest.mark.parametrize("sql", FAILING)
def test_each_failure_has_its_class(
    session: Session, duck: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """By DuckDB's exception, in sessions and in the DB-API."""
    with pytest.raises(duckdb.Error) as theirs:
        duck.execute(sql).fetchall()
    ours, standard = KINDS[theirs.type]
    with pytest.raises(MinisharkError) as found:
        session.sql(sql).to_arrow()
    assert ours is found.type, found.value
    assert "task" not in str(found.value).lower()
    with pytest.raises(dbapi.Error) as translated:
        dbapi.connect(session=session).execute(sql)
    assert standard is translated.type
    assert isinstance(translated.value, getattr(dbapi, _standard(theirs.type), standard))


def _standard(kind: type[duckdb.Error]) -> str:
    """PEP 249's name for a class of DuckDB's, but for that of invalid input."""
    if kind is duckdb.InvalidInputException:  # which DuckDB calls a ProgrammingError
        return "DataError"
    return kind.__mro__[1].__name__


def test_they_are_still_failures_of_tasks() -> None:
    """Programs that catch the class of before go on working."""
    for kind in ConstraintError, DataValueError:
        assert [TaskFailedError, ExecutionError] == [*kind.__mro__[1:3]]
