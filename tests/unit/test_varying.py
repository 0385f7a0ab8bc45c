"""What makes a stage put out other rows when it runs again."""

from __future__ import annotations

import pytest

from minishark.compiler.logical.operators import Aggregate, Limit, Project, Scan, TopN, Window
from minishark.compiler.physical.plan import (
    Gather,
    PartialAggregate,
    PhysicalOperator,
    PhysicalPlan,
    SampleKeys,
    Single,
)
from minishark.compiler.stages.varying import varies
from minishark.model.expressions import AggregateCall, Call, Column, ColumnRef, SortKey

SCHEMA = (Column("a", "INTEGER"),)
A = ColumnRef(0, "INTEGER")
X = ColumnRef(0, "DOUBLE")
SCAN = PhysicalPlan(Scan("t", ("a",), SCHEMA), (), SCHEMA, Single(), 1.0)


def over(operator: PhysicalOperator, child: PhysicalPlan = SCAN) -> PhysicalPlan:
    """An operator over another plan."""
    return PhysicalPlan(operator, (child,), SCHEMA, Single(), 1.0)


def aggregate(name: str, argument: ColumnRef) -> Aggregate:
    """One aggregate without groups."""
    return Aggregate((), (AggregateCall(name=name, arguments=(argument,), type=argument.type),))


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (Project((A,), ("a",)), False),
        (Project((Call("random", (), "DOUBLE"),), ("r",)), True),
        (aggregate("sum", A), False),
        (aggregate("sum", X), True),
        (PartialAggregate(aggregate("avg", A)), False),
        (PartialAggregate(aggregate("avg", X)), True),
        (aggregate("max", X), False),
        (aggregate("first", A), True),
        (Limit(1, 0), True),
        (TopN((SortKey(A, False, False),), 1, 0), True),
        (Window(()), True),
        (SampleKeys((), 10), True),
    ],
)
def test_operators(operator: PhysicalOperator, expected: bool) -> None:
    """Volatile functions, orders that SQL leaves open and rounding vary; all else does not."""
    assert expected == varies(over(operator))


def test_a_stage_ends_at_exchanges() -> None:
    """What another stage computes is that one's affair; all of its own counts."""
    limited = over(Limit(1, 0))
    assert not varies(over(Project((A,), ("a",)), over(Gather(), limited)))
    assert varies(over(Project((A,), ("a",)), limited))
