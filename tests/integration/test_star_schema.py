"""Report queries over a star schema have DuckDB's answer, at several partition counts."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from oracle import divergences
from star_schema import PARTITIONED, QUESTIONS, TABLES

import minishark
from minishark.session.session import Session


@pytest.fixture(scope="module")
def judge() -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables in plain DuckDB."""
    with duckdb.connect() as connection:
        for name, select in TABLES.items():
            connection.execute(f"CREATE TABLE {name} AS {select}")
        yield connection


@pytest.fixture(scope="module", params=[3, pytest.param(7, marks=pytest.mark.slow)])
def session(request: pytest.FixtureRequest, judge: duckdb.DuckDBPyConnection) -> Iterator[Session]:
    """The tables in a session that distributes everything."""
    parts: int = request.param
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, partitions=parts, single_task_rows=0
    ) as found:
        for name in TABLES:
            rows = judge.table(name)
            found.create_table(name, rows, partition_by=PARTITIONED.get(name), partitions=parts)
        yield found


@pytest.mark.sample(10)
@pytest.mark.parametrize("question", QUESTIONS)
def test_report(session: Session, judge: duckdb.DuckDBPyConnection, question: str) -> None:
    """A report runs distributed, and its answer is DuckDB's and not empty."""
    sql = QUESTIONS[question]
    assert "Statement" not in session.sql(sql).plan_text("logical")
    assert judge.sql(sql).fetchall()
    assert [] == divergences(session, judge, sql)
