"""Random queries over random tables have DuckDB's answer, whatever lies where."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from generators import TableShape, queries, shapes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moving import rows_moved_by
from oracle import divergences

from minishark.errors import MinisharkError
from minishark.session.session import Session

_QUICK = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
_THOROUGH = settings(_QUICK, max_examples=400, derandomize=False)
_CASES = {
    "pair": st.tuples(shapes, shapes),
    "texts": st.lists(queries, min_size=6, max_size=12, unique=True),
}


@pytest.fixture(
    scope="module",
    params=[
        "shuffle",
        pytest.param("as planned", marks=pytest.mark.slow),
        pytest.param("broadcast", marks=pytest.mark.slow),
    ],
)
def session(request: pytest.FixtureRequest, toy_session: Session) -> Iterator[Session]:
    """The toy session with one way of moving rows."""
    with rows_moved_by(toy_session, request.param) as found:
        yield found


def check(session: Session, pair: tuple[TableShape, TableShape], texts: list[str]) -> None:
    """Compare the answers; where DuckDB fails, a typed error is right."""
    with duckdb.connect() as judge:
        for name, shape in zip("ab", pair, strict=True):
            for statement in shape.create(name):
                judge.execute(statement)
            session.create_table(
                name,
                judge.table(name),
                partition_by=shape.partition_by,
                partitions=shape.partitions,
                replace=True,
            )
        for text in texts:
            try:
                judge.sql(text).to_arrow_table()
            except duckdb.Error:
                with pytest.raises(MinisharkError):
                    session.sql(text).to_arrow()
            else:
                assert (text, []) == (text, divergences(session, judge, text))


@_QUICK
@given(**_CASES)
def test_random_queries(
    session: Session, pair: tuple[TableShape, TableShape], texts: list[str]
) -> None:
    """Random queries over random tables have DuckDB's answer."""
    check(session, pair, texts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@_THOROUGH
@given(**_CASES)
def test_many_random_queries(
    session: Session, pair: tuple[TableShape, TableShape], texts: list[str]
) -> None:
    """The same with many more examples, others each time."""
    check(session, pair, texts)
