from __future__ import annotations

from collections.abc import Iterator

import pytest
from toy_cluster import ToyTable, believed_catalog

from minishark.compiler.logical.operators import Aggregate, Join
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import FinalAggregate, PartialAggregate, PhysicalPlan
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.rules.eager_aggregation import EagerAggregation, eager_aggregation
from minishark.compiler.sql.planning import PlanningDatabase

COLUMNS = (("k", "INTEGER"), ("g", "INTEGER"), ("v", "INTEGER"), ("h", "HUGEINT"))
MILLION = 1_000_000
TABLES = (
    ToyTable("few", COLUMNS, tuple((i, i, i, i) for i in range(9)), (), 2, 1000),
    ToyTable("many", COLUMNS, tuple((i % 3, i, i, i) for i in range(9)), (), 2, MILLION),
)


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """A planning database that knows the tables."""
    database = PlanningDatabase()
    for table in TABLES:
        database.put_table(table.catalog_table())
    yield database
    database.close()


def first(plan: LogicalPlan, kind: type) -> LogicalPlan:
    """The first node of a kind, from the root."""
    found = [plan]
    while not isinstance(found[0].operator, kind):
        found = [*found[0].children, *found[1:]]
    return found[0]


def begun(planning: PlanningDatabase, sql: str) -> EagerAggregation | None:
    """How the aggregate of a query can begin below its join."""
    plan = first(planning.plan(planning.bind(sql)), Aggregate)
    join = plan.children[0].operator
    assert isinstance(plan.operator, Aggregate)
    assert isinstance(join, Join)
    return eager_aggregation(plan.operator, join)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT f.g, sum(m.v) FROM few f JOIN many m ON f.k = m.k GROUP BY f.g", ["sum"]),
        ("SELECT f.g, count(*) FROM few f JOIN many m ON f.k = m.k GROUP BY f.g", ["count_star"]),
        (
            """SELECT f.g, f.v, count(m.v), max(m.g) FROM few f LEFT JOIN many m ON f.k = m.k
            GROUP BY f.g, f.v""",
            ["count", "max"],
        ),
    ],
)
def test_aggregates_of_one_side_can_begin_there(
    planning: PlanningDatabase, sql: str, names: list[str]
) -> None:
    """By the join key alone; the join then gives groups and states."""
    found = begun(planning, sql)
    assert found is not None
    assert names == [call.name for call in found.partial.aggregates]
    assert found.keys == found.partial.groups
    assert 1 == len(found.keys)
    states = found.join.right_output if found.side else found.join.left_output
    assert tuple(range(1, 1 + len(names))) == states


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT f.g, sum(m.v), sum(f.v) FROM few f JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT f.g, m.g, sum(m.v) FROM few f JOIN many m ON f.k = m.k GROUP BY f.g, m.g",
        "SELECT f.g, sum(m.v) FILTER (m.v > 1) FROM few f JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT f.g, avg(m.v) FROM few f JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT f.g, max(m.v, 2) FROM few f JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT f.g, sum(m.v) FROM few f JOIN many m ON f.k < m.k GROUP BY f.g",
        "SELECT f.g, count(*), sum(m.v) FROM few f LEFT JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT f.g, sum(m.v) FROM few f FULL JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT sum(m.v) FROM few f JOIN many m ON f.k = m.k",
        "SELECT f.g, count(1) FROM few f LEFT JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT f.g, sum(1) FROM few f LEFT JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT f.g, sum(m.h) FROM few f JOIN many m ON f.k = m.k GROUP BY f.g",
        "SELECT f.g, count(m.v) FROM few f CROSS JOIN many m GROUP BY f.g",
    ],
)
def test_others_begin_above(planning: PlanningDatabase, sql: str) -> None:
    """Where parts of rows would not do, or the join counts."""
    assert begun(planning, sql) is None


def test_it_is_done_where_it_leaves_few_rows(planning: PlanningDatabase) -> None:
    """A million rows of a thousand keys: a thousand rows are joined."""
    sql = "SELECT f.g, count(m.v) FROM few f LEFT JOIN many m ON f.k = m.k GROUP BY f.g"
    logical = planning.plan(planning.bind(sql))

    def operators(plan: PhysicalPlan) -> list[type]:
        return [type(plan.operator), *(each for c in plan.children for each in operators(c))]

    catalog = believed_catalog(TABLES)
    default = operators(plan_physical(logical, catalog, PlannerOptions(partitions=2).in_stages()))
    always = PlannerOptions(partitions=2, everywhere=True).in_stages()
    begins = operators(plan_physical(logical, catalog, always))
    assert begins.index(FinalAggregate) < begins.index(Join) < begins.index(PartialAggregate)
    assert default.index(PartialAggregate) < default.index(Join)
