"""Any SELECT answers as plain DuckDB does: names, types, rows, order."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache, partial

import duckdb
import pytest
from corpus import CORPUS
from moving import rows_moved_by
from oracle import Answer, answer, frame_divergences

from minishark.session.session import Session


@pytest.fixture(
    scope="module",
    params=["as planned", "shuffle", pytest.param("broadcast", marks=pytest.mark.slow)],
)
def session(request: pytest.FixtureRequest, toy_session: Session) -> Iterator[Session]:
    """The toy session with one way of moving rows."""
    with rows_moved_by(toy_session, request.param) as found:
        yield found


@pytest.fixture(scope="module")
def expected(plain: duckdb.DuckDBPyConnection) -> Callable[[str], Answer]:
    """DuckDB's answer to a statement, which is asked once."""
    return cache(partial(answer, plain))


@pytest.fixture(scope="module")
def compared() -> set[tuple[str, str]]:
    """The statements that have been run, with their stages: half of them move no rows."""
    return set()


@pytest.mark.parametrize("feature", CORPUS)
def test_corpus(
    session: Session,
    expected: Callable[[str], Answer],
    compared: set[tuple[str, str]],
    feature: str,
) -> None:
    """Every statement of the corpus, by feature, has DuckDB's answer however rows move.

    What is distributed runs as it was planned, but for separators of distinct text.
    """
    wrong, rejected = {}, []
    for sql in CORPUS[feature]:
        frame = session.sql(sql)
        planned = (sql, frame.explain("physical") + frame.explain("sql"))
        if planned in compared:
            continue
        compared.add(planned)
        wrong[sql] = frame_divergences(frame, expected(sql))
        if any("did not accept" in warning for warning in frame.metrics().warnings):
            rejected.append(sql)
    assert {} == {sql: sentences for sql, sentences in wrong.items() if sentences}
    assert [] == [sql for sql in rejected if not re.search(r"(string_agg|listagg)\(DISTINCT", sql)]


def test_most_of_the_corpus_is_distributed(toy_session: Session) -> None:
    """At most a quarter of the statements runs as a whole in one task, so the rest is tested."""
    statements = list(itertools.chain.from_iterable(CORPUS.values()))
    whole = [s for s in statements if "Statement" in toy_session.sql(s).explain("logical")]
    assert len(whole) < len(statements) / 4


@pytest.mark.parametrize("sql", [s for s in CORPUS["structs"] if "struct_" not in s])
def test_structs_are_distributed(toy_session: Session, sql: str) -> None:
    """Columns and values of STRUCTs do not make a statement run as a whole in one task."""
    assert "Statement" not in toy_session.sql(sql).explain("logical")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(DISTINCT x) FROM t CROSS JOIN (SELECT random() AS x FROM one)",
        "SELECT count(DISTINCT x) FROM t CROSS JOIN (SELECT uuid() AS x)",
        "SELECT max(n) FROM (SELECT count(*) n FROM (SELECT id, random() AS x FROM t) GROUP BY x)",
        "SELECT count(DISTINCT x) - 5 FROM t JOIN (SELECT k, random() AS x FROM r) ON true",
        (
            "WITH x AS MATERIALIZED (SELECT k, random() AS y FROM r) "
            "SELECT count(*) - 5 FROM x a JOIN x b USING (k, y)"
        ),
    ],
)
def test_random_values_are_computed_once(session: Session, sql: str) -> None:
    """A random value is the same for every task that uses it, and differs from row to row."""
    assert [1] == [value for (value,) in session.sql(sql).collect()]


def test_time_goes_on(toy_session: Session) -> None:
    """The current time is that of each run, though plans are kept."""
    frame = toy_session.sql("SELECT now()::TIMESTAMP AS t, id FROM t ORDER BY id LIMIT 1")
    assert frame.collect()[0]["t"] < frame.collect()[0]["t"]


def test_rows_come_in_exactly_the_asked_order(toy_session: Session) -> None:
    """Where an ORDER BY decides everything, the rows stand in that very order."""
    rows = toy_session.sql("SELECT id FROM skew ORDER BY x DESC, id").to_arrow()
    expected = sorted(range(3000), key=lambda i: (-(i * 31 % 1009), i))
    assert expected == rows.column("id").to_pylist()
