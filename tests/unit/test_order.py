from __future__ import annotations

import pytest

from minishark.compiler.logical.operators import Aggregate, DistinctOn, Limit, Scan, TopN
from minishark.compiler.physical.order import depends_on_order
from minishark.compiler.physical.plan import (
    FinalAggregate,
    Gather,
    PhysicalOperator,
    PhysicalPlan,
    Single,
)
from minishark.model.expressions import AggregateCall, Column, ColumnRef, SortKey

SCHEMA = (Column("a", "INTEGER"),)
A = ColumnRef(0, "INTEGER")
KEY = SortKey(A, descending=False, nulls_first=False)


def over(operator: PhysicalOperator, child: PhysicalPlan | None = None) -> PhysicalPlan:
    """An operator over another, or over a table."""
    if child is None:
        child = PhysicalPlan(Scan("t", ("a",), SCHEMA), (), SCHEMA, Single(), 10.0)
    return PhysicalPlan(operator, (child,), SCHEMA, Single(), 10.0)


def aggregate(name: str, order: tuple[SortKey, ...] = ()) -> Aggregate:
    """One call, in one group."""
    return Aggregate(
        (), (AggregateCall(name=name, arguments=(A,), type="INTEGER", order_by=order),)
    )


@pytest.mark.parametrize("name", ["list", "first", "string_agg", "mode", "arg_max"])
def test_some_aggregates_depend_on_order(name: str) -> None:
    """Unless they say in which, and wherever in the stage they are."""
    assert depends_on_order(over(aggregate(name)))
    assert depends_on_order(over(FinalAggregate(aggregate(name))))
    assert depends_on_order(over(TopN((KEY,), 3, 0), over(aggregate(name))))
    assert not depends_on_order(over(aggregate(name, (KEY,))))


@pytest.mark.parametrize("name", ["sum", "count", "avg", "median", "stddev"])
def test_others_do_not(name: str) -> None:
    """Or in the last digits only."""
    assert not depends_on_order(over(aggregate(name)))


def test_what_keeps_some_rows_depends_on_order() -> None:
    """But for a top-N, where only ties do; another stage is not looked at."""
    assert depends_on_order(over(Limit(3, 0)))
    assert depends_on_order(over(DistinctOn((A,), ())))
    assert not depends_on_order(over(TopN((KEY,), 3, 0)))
    assert not depends_on_order(over(Gather(), over(Limit(3, 0))))
    assert not depends_on_order(over(aggregate("sum"), over(Gather(), over(Limit(3, 0)))))
