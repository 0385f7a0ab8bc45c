from __future__ import annotations

from dataclasses import replace

import pytest

from minishark.compiler.logical.operators import Distinct, Filter, Scan, Sort
from minishark.compiler.physical.plan import Distribution, Gather, PhysicalPlan, Single, Spread
from minishark.compiler.physical.work import STAGE_S, elapsed_s, held_bytes
from minishark.expressions import Call, Column, ColumnRef, Expression, Infix, Literal

SCHEMA = (Column("a", "VARCHAR"), Column("b", "VARCHAR"))
MILLION = 1e6


def scan(distribution: Distribution, rows: float = MILLION) -> PhysicalPlan:
    """All rows of a table."""
    return PhysicalPlan(Scan("t", ("a", "b"), SCHEMA), (), SCHEMA, distribution, rows)


def filtered(predicate: Expression) -> PhysicalPlan:
    """Half of the rows of a table."""
    child = scan(Single())
    operator = Filter((predicate,), (0, 1))
    return PhysicalPlan(operator, (child,), SCHEMA, child.distribution, child.rows / 2)


def test_work_grows_with_rows() -> None:
    """Twice the rows take twice the time."""
    assert 2 * elapsed_s(scan(Single())) == pytest.approx(elapsed_s(scan(Single(), 2 * MILLION)))


def test_tasks_share_the_work() -> None:
    """Several tasks are faster than one, but not by as much as there are of them."""
    alone, beside = elapsed_s(scan(Single())), elapsed_s(scan(Spread(4)))
    assert alone / 4 < beside < alone / 2


def test_stages_one_after_the_other_add_up() -> None:
    """Each exchange on the longest way to the root costs a stage, and the rows that it moves."""
    child = replace(scan(Spread(4)), rows=0.0)
    gathered = PhysicalPlan(Gather(), (child,), SCHEMA, Single(), 0.0)
    assert STAGE_S == elapsed_s(gathered)
    both = PhysicalPlan(Distinct(), (gathered, gathered), SCHEMA, Single(), 0.0)
    assert STAGE_S == elapsed_s(both)
    assert 2 * STAGE_S == elapsed_s(PhysicalPlan(Gather(), (both,), SCHEMA, Single(), 0.0))


@pytest.mark.parametrize(
    "predicate",
    [
        Call("prefix", (ColumnRef(0, "VARCHAR"), Literal("'x'", "VARCHAR", "x")), "BOOLEAN"),
        Infix("!~~", (ColumnRef(0, "VARCHAR"), Literal("'%x'", "VARCHAR", "%x")), "BOOLEAN"),
    ],
)
def test_patterns_cost_more_than_comparisons(predicate: Expression) -> None:
    """Text that is searched takes many times what a comparison does."""
    compared = Infix("=", (ColumnRef(0, "VARCHAR"), ColumnRef(1, "VARCHAR")), "BOOLEAN")
    assert elapsed_s(filtered(predicate)) > 5 * elapsed_s(filtered(compared))


def test_threads_help_one_task_only() -> None:
    """A task beside others has one core; one that runs alone may use all."""
    assert elapsed_s(scan(Spread(4)), threads=4) == elapsed_s(scan(Spread(4)))
    alone = elapsed_s(scan(Single()))
    assert alone / 4 < elapsed_s(scan(Single()), threads=4) < alone


def test_rows_are_put_out_by_one_thread() -> None:
    """So several tasks are faster than several threads where the result is large."""
    assert elapsed_s(scan(Spread(4))) < elapsed_s(scan(Single()), threads=4)


def test_memory_is_taken_by_what_holds_rows() -> None:
    """A scan holds nothing, a hash table its groups, a sort what it reads."""
    read = scan(Single())
    assert 0 == held_bytes(read)
    groups = PhysicalPlan(Distinct(), (read,), SCHEMA, Single(), 1000.0)
    assert 1000 * 64 < held_bytes(groups) < 1000 * 128
    ordered = PhysicalPlan(Sort((), (0, 1)), (groups,), SCHEMA, Single(), 1000.0)
    assert held_bytes(ordered) == 2 * held_bytes(groups)
