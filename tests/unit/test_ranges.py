from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from toy_cluster import Row, ToyCluster, ToyTable, rounded

from minishark.compiler.logical.operators import Cte, Scan, Statement
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import (
    Boundaries,
    Gather,
    PhysicalPlan,
    Ranged,
    RangeShuffle,
    SampleKeys,
    Spread,
)
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.physical.repartition import ranged
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages.split import split
from minishark.model.expressions import Column, ColumnRef, SortKey

COLUMNS = (("a", "INTEGER"), ("s", "VARCHAR"), ("x", "DOUBLE"))
ORDERS = (
    "a, s, x",
    "s DESC NULLS FIRST, a",
    "x NULLS FIRST, lower(s)",
    "[s, a::VARCHAR] DESC, x",
    "a * x DESC, s NULLS FIRST",
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-2, 3),
        st.none() | st.sampled_from(["", "p", "P", "q\0", "é"]),
        st.none() | st.sampled_from([0.0, 1.5, float("nan"), float("inf"), -float("inf")]),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """One DuckDB for all."""
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """The planning database."""
    database = PlanningDatabase()
    database.put_table(ToyTable("t", COLUMNS, ()).catalog_table())
    yield database
    database.close()


def operators(plan: PhysicalPlan) -> list[str]:
    """The names of all operators, from the root, depth first."""
    below = [name for child in plan.children for name in operators(child)]
    return [type(plan.operator).__name__, *below]


@settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=ROWS,
    order=st.sampled_from(ORDERS),
    partitions=st.integers(2, 6),
    tail=st.sampled_from(["", "LIMIT 7 OFFSET 2", "OFFSET 3"]),
)
@example(rows=[], order=ORDERS[0], partitions=3, tail="")
@example(rows=[(1, "p", 0.0)] * 30, order=ORDERS[0], partitions=4, tail="")
@example(rows=[(1, "p", 0.0)] * 29 + [(0, "", 1.5)], order=ORDERS[1], partitions=4, tail="")
def test_sorts_in_ranges_order_as_duckdb(
    con: duckdb.DuckDBPyConnection,
    planning: PlanningDatabase,
    rows: list[Row],
    order: str,
    partitions: int,
    tail: str,
) -> None:
    """Partitions one after the other are DuckDB's order, on any rows: none, one key, skew."""
    cluster = ToyCluster(con, [ToyTable("t", COLUMNS, tuple(rows), ("a",), 3)])
    sql = f"SELECT * FROM t ORDER BY {order}, a, s, x {tail}"
    options = PlannerOptions(partitions=partitions, sort_values=0).in_stages()
    plan = plan_physical(planning.plan(planning.bind(sql)), cluster.catalog, options)
    assert ("RangeShuffle" in operators(plan)) == (not tail.startswith("LIMIT"))
    found = cluster.run_physical(plan)
    expected = con.execute(sql).fetchall()
    assert list(map(repr, map(rounded, expected))) == list(map(repr, map(rounded, found)))


def planned(planning: PlanningDatabase, sql: str, options: PlannerOptions) -> PhysicalPlan:
    """A query over a table of which 1,000,000 rows are believed."""
    catalog = ToyCluster(duckdb.connect(), [ToyTable("t", COLUMNS, (), ("a",), 8, 1_000_000)])
    return plan_physical(planning.plan(planning.bind(sql)), catalog.catalog, options)


def test_many_rows_are_sorted_in_ranges(planning: PlanningDatabase) -> None:
    """A filtered table is sampled and exchanged; what follows the sort keeps its partitions."""
    plan = planned(
        planning,
        "SELECT a, s, x FROM t ORDER BY s",
        PlannerOptions(partitions=4, sort_values=2_000_000).without("one_task"),
    )
    table = ["Project", "Scan"]
    sample = ["Boundaries", "Gather", "SampleKeys"]
    assert ["Sort", "RangeShuffle", *table, *sample, *table] == operators(plan)
    assert Ranged(4) == plan.distribution


@pytest.mark.parametrize(
    ("sql", "options"),
    [
        (
            "SELECT a FROM t ORDER BY s",
            PlannerOptions(partitions=4, sort_values=3_000_000).without("one_task"),
        ),
        (
            "SELECT a FROM t ORDER BY s",
            PlannerOptions(partitions=1, sort_values=0).without("one_task"),
        ),
        (
            "SELECT a FROM t WHERE a = 1 ORDER BY s",
            PlannerOptions(partitions=4, sort_values=500_000).without("one_task"),
        ),
    ],
)
def test_other_sorts_are_gathered(
    planning: PlanningDatabase, sql: str, options: PlannerOptions
) -> None:
    """Few rows, and those of a cluster of one slot, are sorted in one task."""
    found = operators(planned(planning, sql, options))
    assert ["Gather"] == [name for name in found if name in ("Gather", "RangeShuffle")]


def test_dear_rows_are_computed_once(planning: PlanningDatabase) -> None:
    """What is more than a filtered table is a stage, which the sample and the exchange read."""
    plan = planned(
        planning,
        "SELECT s, max(x) AS m FROM t GROUP BY s ORDER BY m",
        PlannerOptions(partitions=4, sort_values=1_000).without("one_task"),
    )
    assert 1 == sum(name == "FinalAggregate" for name in operators(plan))
    assert 1 == operators(plan).count("Cte")
    assert [8, 4, 4, 1, 4, 4] == [stage.tasks for stage in split(plan)]


def test_ranges_of_any_plan() -> None:
    """The exchange is a building block: rows, keys and a number of ranges are all it needs."""
    schema = (Column("a", "INTEGER"),)
    keys = (SortKey(ColumnRef(0, "INTEGER"), descending=False, nulls_first=False),)
    scan = PhysicalPlan(Scan("t", ("a",), schema), (), schema, Spread(5), 1e6)
    plan = ranged(scan, keys, 3, 7)
    boundaries = plan.children[1]
    assert (RangeShuffle(keys, 3), Ranged(3)) == (plan.operator, plan.distribution)
    assert Boundaries(3) == boundaries.operator
    assert Gather() == boundaries.children[0].operator
    assert isinstance(boundaries.children[0].children[0].operator, SampleKeys)
    statement = Statement("FROM t", (), "it is odd", schema)
    whole = ranged(PhysicalPlan(statement, (), schema, Spread(1), 1e6), keys, 3, 7)
    assert Cte(7, "rows to sort") == whole.operator
    assert [1, 1, 1, 1, 3] == [stage.tasks for stage in split(whole)]
