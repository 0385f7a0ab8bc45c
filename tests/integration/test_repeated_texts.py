"""The first sight of a text, the second and the third give the same: rows, types, names, errors.

The first one is planned; the second finds the plan, and executors prepare its fragment; the third
runs what they have prepared, on the same node.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from corpus import CORPUS
from toy_tables import load_toy_tables

import minishark
from minishark.errors import MinisharkError
from minishark.query.answers import differences
from minishark.session.session import Session

SIGHTS = 3
FAILING = (
    "SELECT CAST(s AS INTEGER) FROM t",
    "SELECT CAST(k * 1000 AS TINYINT) FROM t",
    "SELECT error(s) FROM t",
    "SELECT (SELECT id FROM t AS o WHERE o.id <> t.id) FROM t",
    "SELECT nothing FROM t",
    "SELECT * FROM nowhere",
    "SELECT sum(s) FROM t",
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """The toy tables in a session of two nodes, whose queries are one task each."""
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, partitions=3
    ) as connected:
        load_toy_tables(connected)
        yield connected


@pytest.mark.sample(9)
@pytest.mark.parametrize("feature", CORPUS)
def test_all_sights_of_a_text_have_the_same_answer(session: Session, feature: str) -> None:
    """Names and types of columns too, for every statement of the corpus."""
    wrong = {}
    for sql in CORPUS[feature]:
        first = session.sql(sql).to_arrow()
        for _ in range(SIGHTS - 1):
            again = session.sql(sql).to_arrow()
            if again.schema != first.schema or differences(first, again):
                wrong[sql] = (first, again)
    assert {} == wrong


@pytest.mark.parametrize("sql", FAILING)
def test_all_sights_of_a_text_have_the_same_error(session: Session, sql: str) -> None:
    """Its class and its text."""
    told = []
    for _ in range(SIGHTS):
        with pytest.raises(MinisharkError) as raised:
            session.sql(sql).to_arrow()
        told.append((raised.type, str(raised.value)))
    assert told[:1] * SIGHTS == told


def test_later_sights_see_what_has_changed_since(session: Session) -> None:
    """Rows, columns, settings and definitions of now, not those of when it was prepared."""
    sql = "SELECT count(*), sum(a), min(b) FROM later"
    zoned = "SELECT TIMESTAMPTZ '2024-01-01 00:00:00+00'::VARCHAR AS z, a FROM later ORDER BY a"
    session.sql("CREATE TABLE later AS SELECT range AS a, 'x' AS b FROM range(3)")

    def seen() -> list[tuple[object, ...]]:
        for _ in range(SIGHTS - 1):
            session.sql(sql).collect()
        return [tuple(row) for row in session.sql(sql).collect()]

    assert [(3, 3, "x")] == seen()
    session.sql("INSERT INTO later VALUES (10, 'a')")
    assert [(4, 13, "a")] == seen()
    session.sql("DELETE FROM later WHERE a = 10")
    assert [(3, 3, "x")] == seen()
    session.sql("CREATE OR REPLACE TABLE later AS SELECT 1.5 AS a, NULL::DATE AS b")
    assert [(1, 1.5, None)] == [(n, float(str(a)), b) for n, a, b in seen()]
    times = []
    for zone in ("UTC", "Asia/Tokyo", "UTC"):
        session.sql(f"SET TimeZone = '{zone}'")
        times += [{session.sql(zoned).collect()[0][0] for _ in range(SIGHTS)}]
    session.sql("RESET TimeZone")
    assert [1, 1, 1] == [len(each) for each in times]
    assert times[0] == times[2] != times[1]
    session.sql("DROP TABLE later")
