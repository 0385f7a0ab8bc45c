"""Snippets of ported programs against the answers that Spark has given: spark_snippets.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from spark_snippets import ANSWERS, answer, names

from minishark.spark import Row, Window, functions
from minishark.spark import session as spark_session

SPARKS: dict[str, list[str] | None] = json.loads(ANSWERS.read_text())["answers"]
# What differs, or fails in one of the two only: beginnings of snippets by reason, which
# docs/pyspark.md has as well. All else is Spark's answer.
DIFFERENT = {
    "silently: a position after the end of an array is NULL": (
        "SELECT array(1, 2)[5]",
        "SELECT element_at(array(1, 2), 5)",
        "people.select(F.element_at(F.array(F.lit(1)), 3))",
    ),
    "silently: a quotient and a mean of decimals are DOUBLEs": (
        "SELECT 5 / 2.0",
        "SELECT sum(x), typeof(sum(x)), typeof(avg(x)) FROM VALUES (1.50)",
        "SELECT count_if(x % 2 = 0), sum(IF",
        "SELECT 1.0 / 3",
        "SELECT typeof(a + b)",
    ),
    "silently: a date plus an interval of Columns is a timestamp": (
        'people.select((F.col("hired") + F.expr("INTERVAL 1 DAY"))',
    ),
    "silently: a union of numbers and texts is of texts": ("SELECT 1 AS a UNION ALL SELECT 'x'",),
    "silently: stat.corr and stat.cov leave NULLs out": ("people.stat.corr(", "people.stat.cov("),
    "silently: the catalog has another name, as has UTC": (
        "SELECT monotonically_increasing_id()",
        "SELECT from_utc_timestamp(",
    ),
    "the last digit of a float": (
        "SELECT corr(x, y), covar_pop(x, y)",
        "SELECT pow(2, 10)",
        'people.agg(F.corr("age"',
        "people.describe(",
        "people.summary()",
    ),
    "names of types": (
        "SELECT ceil(5)",
        "SELECT typeof(1 + 1L)",
        "SELECT typeof(DATE",
        "SELECT typeof(date_trunc(",
        "SELECT typeof(count(*))",
        "SELECT sum(x), typeof(sum(x)), typeof(avg(x)), typeof(count(x))",
    ),
    "names of columns without an alias": (
        'people.select((F.col("age") + 1).alias("a"), (F.col("salary") * 2)',
        'people.select(F.avg("age"), F.sum("salary")',
        'people.select(F.col("age") / 2, F.lit(1)',
        'people.select(F.ceil("salary"), F.round("age")',
    ),
    "rows with equal keys come in another order": ("people.rollup(", "people.cube("),
    "there is one type of intervals, and days between dates are a number": (
        "SELECT DATE '2024-01-31' + 1",
        "SELECT TIMESTAMP '2024-01-31 10:00:00' + INTERVAL 1 HOUR",
        "SELECT INTERVAL '1' DAY",
    ),
    "an error: text compared with or added to a number": (
        "SELECT x FROM VALUES ('1'), ('2'), ('10')",
        'people.select(F.col("age") + F.lit("1"))',
    ),
    "an error: a unit, a pattern, a function or an argument that is not there": (
        "SELECT date_trunc('MONTH'",
        "SELECT to_char(1234.5",
        "SELECT mask('AbCD",
        "SELECT array_sort(array(3, 1, 2), (a, b)",
    ),
}
_KNOWN = tuple(beginning for snippets in DIFFERENT.values() for beginning in snippets)


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, Any]]:
    """What snippets refer to, here."""
    with spark_session(in_process=True, nodes=1, progress=False, prints=False) as spark:
        yield names(spark, functions, Window, Row)


def test_each_difference_is_of_a_snippet() -> None:
    """None is listed that is not tried."""
    assert [] == [known for known in _KNOWN if not any(t.startswith(known) for t in SPARKS)]


@pytest.mark.sample(12)
@pytest.mark.parametrize("part", range(24))
def test_snippets_have_sparks_answers(part: int, given: dict[str, Any]) -> None:
    """Rows as Spark's `show` draws them, or an error where Spark has one."""
    texts = [text for number, text in enumerate(SPARKS) if number % 24 == part]
    found = {text: answer(text, given) for text in texts}
    wrong = [
        f"{text}\n  Spark     {SPARKS[text]}\n  minishark {mine}"
        for text, mine in found.items()
        if (SPARKS[text] == mine) == text.startswith(_KNOWN)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("datediff(MONTH, DATE '2024-01-31', DATE '2024-02-29')", 0),
        ("datediff(MONTH, DATE '2024-02-29', DATE '2024-01-31')", 0),
        ("datediff(MONTH, DATE '2024-01-29', DATE '2024-02-29')", 1),
        ("timestampdiff(YEAR, DATE '2023-06-01', DATE '2025-05-31')", 1),
        ("timestampdiff(QUARTER, DATE '2024-07-15', DATE '2024-01-14')", -2),
        ("timestampdiff(HOUR, TIMESTAMP '2024-01-01 23:30:00', DATE '2024-01-02')", 0),
        ("datediff(DAY, TIMESTAMP '2024-01-01 23:30:00', TIMESTAMP '2024-01-02 01:00:00')", 0),
        ("datediff(DATE '2024-02-29', DATE '2024-01-31')", 29),
        ("7.9 DIV 2", 3),
        ("-7 DIV 2", -3),
        ("9007199254740993 DIV 1", 9007199254740993),
        ("typeof(7 DIV 2)", "bigint"),
        ("substring('hello', 2, -1)", ""),
        ("substr('hello', 2, 3)", "ell"),
        ("max(r) FROM (SELECT rank() OVER (PARTITION BY id % 3 ORDER BY id) r FROM range(6))", 2),
    ],
)  # fmt: skip
def test_units_and_quotients_are_whole(text: str, expected: Any, given: dict[str, Any]) -> None:
    """As in Spark, where DuckDB counts beginnings of units, and quotients have fractions."""
    ((value,),) = given["spark"].sql(f"SELECT {text}").collect()
    assert expected == value


@pytest.mark.parametrize(
    ("joins", "expected"),
    [
        ("JOIN VALUES ('a', 1) AS r(id, y) USING (id)", ["id", "v", "x", "y"]),
        ("FULL JOIN VALUES ('b', 1) AS r(id, y) USING (id)", ["id", "v", "x", "y"]),
        (
            "JOIN VALUES ('a', 1) AS r(id, y) USING (id) JOIN VALUES (7, 5) AS t(w, x) USING (x)",
            ["x", "id", "v", "y", "w"],
        ),
        ("CROSS JOIN VALUES (1) AS r(y)", ["v", "id", "x", "y"]),
    ],
)
def test_columns_of_using_are_first(joins: str, expected: list[str], given: dict[str, Any]) -> None:
    """Of the last join before those of others; DuckDB leaves them where they are."""
    query = f"SELECT * FROM VALUES (1, 'a', 5) AS l(v, id, x) {joins}"
    assert expected == given["spark"].sql(query).columns
