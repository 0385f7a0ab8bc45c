"""Where semi joins keep the duplicates of the side that they only test."""

from __future__ import annotations

import pytest

from minishark.compiler.logical import operators as ops
from minishark.compiler.physical.plan import PhysicalPlan, Single
from minishark.compiler.rules.semi_join_duplicates import (
    SemiJoinDuplicatesOptions,
    with_duplicates,
)
from minishark.model.catalog import Catalog
from minishark.model.expressions import AggregateCall, Call, Column, ColumnRef

SCHEMA = (Column("k", "BIGINT"),)
KEY = ColumnRef(0, "BIGINT")
OPTIONS = SemiJoinDuplicatesOptions()


def node(operator: ops.Operator, rows: float, *children: PhysicalPlan) -> PhysicalPlan:
    """A node in one task, with one column."""
    return PhysicalPlan(operator, children, SCHEMA, Single(), rows)


def scan(rows: float) -> PhysicalPlan:
    """A scan of keys."""
    return node(ops.Scan("t", ("k",), SCHEMA), rows)


def joined(kind: ops.JoinKind, left: PhysicalPlan, right: PhysicalPlan) -> PhysicalPlan:
    """A join of the keys."""
    conditions = (ops.JoinCondition(KEY, "=", KEY),)
    return node(ops.Join(kind, conditions, (), (0,), (0,)), 10.0, left, right)


def distinct(rows: float, groups: float) -> PhysicalPlan:
    """Keys without duplicates."""
    return node(ops.Aggregate((KEY,), ()), groups, scan(rows))


def rewritten(plan: PhysicalPlan) -> list[str]:
    """The operators of the plan after the rule, the root first."""
    found = with_duplicates(plan, Catalog(), OPTIONS)
    assert (found is plan) == (found == plan)
    return [type(each.operator).__name__ for each in found.nodes()]


@pytest.mark.parametrize("kind", [ops.JoinKind.SEMI, ops.JoinKind.ANTI])
def test_the_tested_side_keeps_duplicates(kind: ops.JoinKind) -> None:
    """The right one; the left one's rows come out, each once."""
    assert ["Join", "Scan", "Project", "Scan"] == rewritten(joined(kind, scan(9), distinct(20, 10)))
    assert ["Join", "Aggregate", "Scan", "Scan"] == rewritten(
        joined(kind, distinct(20, 10), scan(9))
    )


@pytest.mark.parametrize("kind", [ops.JoinKind.RIGHT_SEMI, ops.JoinKind.RIGHT_ANTI])
def test_of_right_joins_it_is_the_left_side(kind: ops.JoinKind) -> None:
    """They keep rows of the right side."""
    assert ["Join", "Project", "Scan", "Scan"] == rewritten(joined(kind, distinct(20, 10), scan(9)))


def test_below_projections_and_of_distinct() -> None:
    """Whatever eliminates the duplicates, below what is computed row by row."""
    project = node(ops.Project((KEY,), ("k",)), 10, node(ops.Distinct(), 10, scan(15)))
    assert ["Join", "Scan", "Project", "Project", "Scan"] == rewritten(
        joined(ops.JoinKind.SEMI, scan(9), project)
    )


@pytest.mark.parametrize(
    "tested",
    [
        distinct(21, 10),
        node(
            ops.Aggregate((KEY,), (AggregateCall(name="max", arguments=(KEY,), type="BIGINT"),)),
            10,
            scan(10),
        ),
        node(ops.Aggregate((), ()), 1, scan(1)),
        node(ops.Aggregate((KEY,), (), ((0,), ())), 10, scan(10)),
        node(ops.Project((Call("random", (), "BIGINT"),), ("k",)), 10, distinct(10, 10)),
        node(ops.Limit(5, 0), 5, distinct(10, 10)),
    ],
    ids=["many duplicates", "aggregates", "no groups", "grouping sets", "volatile", "limit"],
)
def test_what_stays(tested: PhysicalPlan) -> None:
    """More than twice the rows, or rows that would be others."""
    plan = joined(ops.JoinKind.SEMI, scan(9), tested)
    assert plan is with_duplicates(plan, Catalog(), OPTIONS)


def test_other_joins_need_distinct_rows() -> None:
    """Each match is a row."""
    plan = joined(ops.JoinKind.INNER, scan(9), distinct(10, 10))
    assert plan is with_duplicates(plan, Catalog(), OPTIONS)
