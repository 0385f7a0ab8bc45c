from __future__ import annotations

import pytest

from minishark.compiler.logical.operators import (
    Filter,
    Join,
    JoinCondition,
    JoinKind,
    Project,
    Scan,
)
from minishark.compiler.logical.plan import LogicalPlan, make_plan
from minishark.compiler.logical.rewrite import rewrite
from minishark.model.expressions import Column, ColumnRef, Expression, Infix, Literal, Prefix

MARK = ColumnRef(2, "BOOLEAN")
NOT_MARK = Prefix("NOT", MARK, "BOOLEAN")
OTHER = Infix(">", (ColumnRef(1, "INTEGER"), Literal("1", "INTEGER", 1)), "BOOLEAN")


def scan(name: str) -> LogicalPlan:
    """A table of two columns."""
    columns = (Column(f"{name}0", "INTEGER"), Column(f"{name}1", "INTEGER"))
    return make_plan(Scan(name, tuple(c.name for c in columns), columns))


def filtered_mark(
    predicates: tuple[Expression, ...],
    output: tuple[int, ...] = (0, 1),
    comparison: str = "=",
    residual: tuple[Expression, ...] = (),
) -> LogicalPlan:
    """A filter over a mark join."""
    condition = JoinCondition(ColumnRef(0, "INTEGER"), comparison, ColumnRef(0, "INTEGER"))
    join = Join(JoinKind.MARK, (condition,), residual, (0, 1), ())
    return make_plan(Filter(predicates, output), make_plan(join, scan("l"), scan("r")))


def kind_of(plan: LogicalPlan) -> JoinKind:
    """The kind of the join at or below the root."""
    return plan.operator.kind if isinstance(plan.operator, Join) else kind_of(plan.children[0])


def test_filter_on_the_mark_is_a_semi_join() -> None:
    """Rows whose mark is true are those with a partner."""
    plan = filtered_mark((MARK,))
    found = rewrite(plan)
    assert isinstance(found.operator, Join)
    assert JoinKind.SEMI is found.operator.kind
    assert plan.schema == found.schema
    assert plan.children[0].children == found.children


def test_other_predicates_stay() -> None:
    """What the filter asks besides is asked above the semi join."""
    found = rewrite(filtered_mark((OTHER, MARK), output=(1,)))
    assert Filter((OTHER,), (1,)) == found.operator
    assert JoinKind.SEMI is kind_of(found)
    assert (Column("l1", "INTEGER"),) == found.schema


def test_residual_conditions_do_not_hinder_a_semi_join() -> None:
    """A true mark means that all conditions held for one row."""
    assert JoinKind.SEMI is kind_of(rewrite(filtered_mark((MARK,), residual=(OTHER,))))


def test_negated_mark_that_is_never_null_is_an_anti_join() -> None:
    """Where NULLs compare like values, no mark is NULL, and false is all that is not true."""
    plan = filtered_mark((NOT_MARK,), comparison="IS NOT DISTINCT FROM")
    assert JoinKind.ANTI is kind_of(rewrite(plan))


@pytest.mark.parametrize(
    "plan",
    [
        filtered_mark((NOT_MARK,)),
        filtered_mark((NOT_MARK,), comparison="IS NOT DISTINCT FROM", residual=(OTHER,)),
        filtered_mark((MARK,), output=(0, 2)),
        filtered_mark((MARK, Prefix("NOT", MARK, "BOOLEAN"))),
        filtered_mark((Infix("OR", (MARK, OTHER), "BOOLEAN"),)),
        filtered_mark((OTHER,)),
    ],
    ids=["null marks", "residual", "mark put out", "mark used twice", "or", "not about the mark"],
)
def test_mark_that_matters_stays(plan: LogicalPlan) -> None:
    """Where the mark's false or NULL is looked at, the join stays a mark join."""
    assert plan == rewrite(plan)


def test_rewriting_goes_through_the_whole_tree() -> None:
    """A mark join anywhere in the plan is found."""
    plan = make_plan(Project((ColumnRef(0, "INTEGER"),), ("x",)), filtered_mark((MARK,)))
    found = rewrite(plan)
    assert plan.operator == found.operator
    assert JoinKind.SEMI is kind_of(found)
