"""What queries ask of sources: the predicates, columns and limits of their scans."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

import pytest

from minishark.compiler.logical.operators import Scan
from minishark.compiler.rules.source_pushdown import push
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.model.catalog import ColumnStatistics, Partition, Table, TableStatistics
from minishark.model.expressions import Column
from minishark.model.predicates import Comparison, Predicate, Pushed

TYPES = {
    "i": "INTEGER",
    "s": "VARCHAR",
    "x": "DOUBLE",
    "n": "DECIMAL(9,2)",
    "d": "DATE",
    "t": "TIMESTAMP",
    "b": "BOOLEAN",
}
WHEN = dt.datetime(2024, 5, 6, 7, 8, 9)  # noqa: DTZ001 - as TIMESTAMP


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """A table `t` that stands for a source, and a stored table `u`."""
    database = PlanningDatabase()
    statistics = TableStatistics(1000, 1000, (ColumnStatistics(distinct=100),) * len(TYPES))
    for name in ("t", "u"):
        partition = Partition(index=0, file="0", locations=(), rows=1000, bytes=1000)
        columns = tuple(Column(column, type_) for column, type_ in TYPES.items())
        database.put_table(
            Table(
                name=name,
                schema=columns,
                partitions=(partition,),
                partition_by=(),
                statistics=statistics,
            )
        )
    yield database
    database.close()


def pushed(planning: PlanningDatabase, sql: str) -> list[Pushed]:
    """What the scans of `t` ask for."""
    plan = push(planning.plan(planning.bind(sql)), {"t": "a source"}, None)
    scans = [operator for operator in plan.operators() if isinstance(operator, Scan)]
    assert all((scan.hints.source is not None) == (scan.table == "t") for scan in scans)
    return [scan.hints.source.pushed for scan in scans if scan.hints.source is not None]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("i = 3", [Predicate("i", Comparison.EQUAL, (3,))]),
        ("3 < i", [Predicate("i", Comparison.GREATER, (3,))]),
        ("i IN (1, 5, 9)", [Predicate("i", Comparison.IN, (1, 5, 9))]),
        ("i = 3 OR i IN (4, 3)", [Predicate("i", Comparison.IN, (3, 4))]),
        ("i = 3 OR s = 'a'", []),
        ("b", [Predicate("b", Comparison.EQUAL, (True,))]),
        ("NOT b", [Predicate("b", Comparison.EQUAL, (False,))]),
        ("i <> 4", [Predicate("i", Comparison.NOT_EQUAL, (4,))]),
        ("s >= 'it''s'", [Predicate("s", Comparison.GREATER_OR_EQUAL, ("it's",))]),
        ("n = 1.50", [Predicate("n", Comparison.EQUAL, (Decimal("1.50"),))]),
        ("d <= DATE '2024-05-06'", [Predicate("d", Comparison.LESS_OR_EQUAL, (WHEN.date(),))]),
        (f"t = TIMESTAMP '{WHEN}'", [Predicate("t", Comparison.EQUAL, (WHEN,))]),
        ("x < 2.5", [Predicate("x", Comparison.LESS, (2.5,))]),
        ("x > 2.5", []),  # NaN is larger, and not in a file's bounds
        ("x <> 2.5", []),
        ("s IS NULL", [Predicate("s", Comparison.IS_NULL)]),
        ("s IS NOT NULL", [Predicate("s", Comparison.IS_NOT_NULL)]),
        ("i + 1 = 3 OR s = 'a'", []),
        ("length(s) = 3", []),
        ("i = length(s)", []),
    ],
)
def test_predicates(planning: PlanningDatabase, condition: str, expected: list[Predicate]) -> None:
    """Comparisons of a column with constants of its type, as Python values."""
    (found,) = pushed(planning, f"SELECT count(*) FROM t WHERE {condition}")
    assert expected == [*found.predicates]


def test_columns(planning: PlanningDatabase) -> None:
    """Those that the query reads, for its predicates too."""
    (found,) = pushed(planning, "SELECT i + 1 FROM t WHERE length(s) = 3 ORDER BY d")
    assert {"i", "s", "d"} == {*(found.columns or ())}
    assert [()] == [each.columns for each in pushed(planning, "SELECT count(*) FROM t")]


@pytest.mark.parametrize(
    ("sql", "limit"),
    [
        ("FROM t LIMIT 5", 5),
        ("FROM t LIMIT 5 OFFSET 7", 12),
        ("SELECT i + 1 FROM t WHERE s = 'a' LIMIT 5", 5),
        ("SELECT i FROM t WHERE length(s) = 3 LIMIT 5", None),
        ("SELECT i FROM t WHERE s = 'a' AND x > 3 LIMIT 5", None),
        ("SELECT i FROM (SELECT i, random() r FROM t) WHERE r > 0.5 LIMIT 5", None),
        ("FROM t ORDER BY i LIMIT 5", None),
        ("SELECT DISTINCT i FROM t LIMIT 5", None),
        ("SELECT t.i FROM t JOIN u USING (i) LIMIT 5", None),
        ("SELECT count(*) FROM t LIMIT 5", None),
        ("SELECT * FROM t LIMIT 50%", None),
    ],
)
def test_limits(planning: PlanningDatabase, sql: str, limit: int | None) -> None:
    """Only where any so many rows of the source do, all of whose predicates were pushed."""
    for found in pushed(planning, sql):
        assert limit == found.limit
