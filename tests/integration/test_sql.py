"""Any SELECT answers as plain DuckDB does: names, types, rows, order."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import duckdb
import pytest
from corpus import CORPUS
from moving import rows_moved_by
from oracle import answer, frame_divergences

from minishark.session.session import Session


@pytest.fixture(
    scope="module",
    params=["as planned", "shuffle", pytest.param("broadcast", marks=pytest.mark.slow)],
)
def session(request: pytest.FixtureRequest, toy_session: Session) -> Iterator[Session]:
    """The toy session with one way of moving rows."""
    with rows_moved_by(toy_session, request.param) as found:
        yield found


def check(
    session: Session, plain: duckdb.DuckDBPyConnection, feature: str, ways: Sequence[str]
) -> None:
    """Compare the answers to the statements of a feature, for each way to move their rows.

    What is distributed runs as it was planned, but for separators of distinct text.
    """
    wrong, rejected = {}, []
    for sql in CORPUS[feature]:
        expected = answer(plain, sql)
        compared: set[str] = set()  # half of the statements move no rows
        for way in ways:
            with rows_moved_by(session, way):
                frame = session.sql(sql)
                planned = str(frame.plan_text("sql"))
                if planned in compared:
                    continue
                compared.add(planned)
                wrong[sql, way] = frame_divergences(frame, expected)
                if any("did not accept" in warning for warning in frame.metrics().warnings):
                    rejected.append(sql)
    assert {} == {which: sentences for which, sentences in wrong.items() if sentences}
    assert [] == [sql for sql in rejected if not re.search(r"(string_agg|listagg)\(DISTINCT", sql)]


@pytest.mark.sample(9)
@pytest.mark.parametrize("feature", CORPUS)
def test_corpus(toy_session: Session, plain: duckdb.DuckDBPyConnection, feature: str) -> None:
    """Every statement of the corpus, by feature, has DuckDB's answer however rows move."""
    check(toy_session, plain, feature, ["as planned", "shuffle"])


@pytest.mark.slow
@pytest.mark.parametrize("feature", CORPUS)
def test_corpus_by_broadcasts(
    toy_session: Session, plain: duckdb.DuckDBPyConnection, feature: str
) -> None:
    """The same where rows are sent to all nodes."""
    check(toy_session, plain, feature, ["broadcast"])


def test_most_of_the_corpus_is_distributed(toy_session: Session) -> None:
    """At most a quarter of the statements runs as a whole in one task, so the rest is tested."""
    statements = list(itertools.chain.from_iterable(CORPUS.values()))[::3]
    whole = [s for s in statements if "Statement" in toy_session.sql(s).plan_text("logical")]
    assert len(whole) < len(statements) / 4


@pytest.mark.parametrize("sql", [s for s in CORPUS["structs"] if "struct_" not in s])
def test_structs_are_distributed(toy_session: Session, sql: str) -> None:
    """Columns and values of STRUCTs do not make a statement run as a whole in one task."""
    assert "Statement" not in toy_session.sql(sql).plan_text("logical")


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
