"""Where semi-join filters are planned: what is spared, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minishark.compiler.logical.operators import Cte, CteRef, Filter, Join, JoinCondition, JoinKind
from minishark.compiler.logical.operators import Scan as ScanOf
from minishark.compiler.physical.plan import Gather, PhysicalPlan, Single, Spread
from minishark.compiler.rules.semi_join_filters import SemiJoinFilterOptions, with_key_filters
from minishark.model.catalog import Catalog, ColumnStatistics, Partition, Table, TableStatistics
from minishark.model.expressions import Column, ColumnRef, Infix, Literal

MILLION = 1_000_000
SCHEMA = (Column("k", "BIGINT"), Column("v", "BIGINT"))
KEYS = ColumnStatistics(0.0, MILLION, "1", str(MILLION))


def table(name: str, rows: int, key: ColumnStatistics = KEYS, read: bytes = b"") -> Table:
    """A table of two columns, of which the first has keys."""
    partition = Partition(
        index=0,
        file=f"tables/{name}/0",
        locations=("n",),
        rows=rows,
        bytes=rows * 16,
        read=read,
    )
    statistics = TableStatistics(rows, rows * 16, (key, KEYS))
    return Table(
        name=name, schema=SCHEMA, partitions=(partition,), partition_by=(), statistics=statistics
    )


def catalog(large: int, key: ColumnStatistics = KEYS, read: bytes = b"") -> Catalog:
    """A large table and a smaller one."""
    found = Catalog()
    found.add(table("large", large, key, read))
    found.add(table("small", MILLION))
    return found


def scan(name: str, rows: float, columns: tuple[str, ...] = ("k", "v")) -> PhysicalPlan:
    """A scan of all rows."""
    schema = SCHEMA[: len(columns)]
    return PhysicalPlan(ScanOf(name, columns, schema), (), schema, Single(), rows)


def filtered(plan: PhysicalPlan, rows: float) -> PhysicalPlan:
    """What a predicate leaves of a plan."""
    predicate = Infix(">", (ColumnRef(1, "BIGINT"), Literal("5", "BIGINT", 5)), "BOOLEAN")
    operator = Filter((predicate,), tuple(range(len(plan.schema))))
    return PhysicalPlan(operator, (plan,), plan.schema, Single(), rows)


def joined(left: PhysicalPlan, right: PhysicalPlan) -> PhysicalPlan:
    """A join of the keys."""
    key = ColumnRef(0, "BIGINT")
    conditions = (JoinCondition(key, "=", key),)
    operator = Join(JoinKind.INNER, conditions, (), (0,), (0,))
    return PhysicalPlan(operator, (left, right), SCHEMA, Single(), 1000.0)


@pytest.mark.parametrize(
    ("large", "left", "keys", "columns", "is_filtered"),
    [
        (10, 10, 0.01, 2, True),
        (6, 6, 0.01, 2, False),  # too few rows
        (6, 3, 0.01, 2, True),  # whose tests are spared, too
        (6, 6, 0.05, 2, True),  # with a hash table that is not in a cache
        (6, 6, 0.05, 1, False),  # for a look-up of one kind instead of another
        (10, 10, 0.03, 2, False),  # few keys, but of many rows
        (10, 10, 0.2, 2, False),  # too many rows would be copied
        (10, 0.1, 0.01, 2, False),  # the query's own predicates are better
        (0.9, 0.5, 0.01, 2, False),  # not of the smaller one by the larger one
    ],
)
def test_filters_stand_where_they_pay(
    large: float, left: float, keys: float, columns: int, is_filtered: bool
) -> None:
    """In millions of rows: of the large table, left by predicates, and with keys."""
    rows = int(large * MILLION)
    read = scan("large", float(rows), ("k", "v")[:columns])
    if left != large:
        read = filtered(read, left * MILLION)
    plan = joined(read, filtered(scan("small", MILLION), keys * MILLION))
    found = with_key_filters(plan, catalog(rows), SemiJoinFilterOptions())
    assert is_filtered == isinstance(found.operator, Cte)
    if not is_filtered:
        assert found is plan
        return
    assert plan.children[1] is found.children[0]
    join = found.children[1]
    assert isinstance(join.children[1].operator, CteRef)
    while not isinstance(join.operator, ScanOf):
        join = join.children[0]
    assert join.operator.hints.key_filter is not None
    assert ("k", 1, MILLION) == (
        join.operator.hints.key_filter.column,
        join.operator.hints.key_filter.low,
        join.operator.hints.key_filter.high,
    )


@pytest.mark.parametrize(
    "key",
    [
        ColumnStatistics(0.0, MILLION, "1", str(1 << 40)),
        ColumnStatistics(0.0, MILLION, None, None),
        ColumnStatistics(0.0, None, "1", "5"),
    ],
    ids=["too far apart", "no bounds", "no count"],
)
def test_keys_that_can_not_be_marked(key: ColumnStatistics) -> None:
    """Nothing is filtered by what is not known of the table."""
    plan = joined(scan("large", 9e7), filtered(scan("small", MILLION), 1000.0))
    assert plan is with_key_filters(plan, catalog(90 * MILLION, key), SemiJoinFilterOptions())


def test_files_and_exchanges_are_left_alone() -> None:
    """DuckDB reads files itself; rows of other stages are there already."""
    plan = joined(scan("large", 9e7), filtered(scan("small", MILLION), 1000.0))
    files = catalog(90 * MILLION, read=b"splits")
    assert plan is with_key_filters(plan, files, SemiJoinFilterOptions())
    keys = plan.children[1]
    gathered = PhysicalPlan(Gather(), (keys,), keys.schema, Single(), keys.rows)
    plan = replace(plan, children=(plan.children[0], gathered))
    assert plan is with_key_filters(plan, catalog(90 * MILLION), SemiJoinFilterOptions())
    far = PhysicalPlan(Gather(), (plan.children[0],), SCHEMA, Spread(2), 9e7)
    plan = replace(plan, children=(far, keys))
    assert plan is with_key_filters(plan, catalog(90 * MILLION), SemiJoinFilterOptions())
