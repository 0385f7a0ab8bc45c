from __future__ import annotations

from dataclasses import replace

import pytest

from minishark.compiler.logical.operators import Distinct, Filter, Join, JoinKind, Scan, Sort
from minishark.compiler.physical.costs import Costs
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import (
    Distribution,
    Gather,
    PhysicalPlan,
    Replicated,
    Single,
    Spread,
)
from minishark.compiler.physical.work import Estimate, estimated, held_bytes, useful_tasks
from minishark.model.expressions import Call, Column, ColumnRef, Expression, Infix, Literal

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


COSTS = Costs(stage_s=0.0, task_s=0.0)
OPTIONS = PlannerOptions(partitions=4, slots=4, costs=COSTS)


def elapsed_s(plan: PhysicalPlan, threads: int = 1, options: PlannerOptions = OPTIONS) -> float:
    """The time of a plan on idle cores, without the overhead of stages and tasks."""
    return estimated(plan, options, threads).elapsed_s


def test_work_grows_with_rows() -> None:
    """Twice the rows take twice the time."""
    assert 2 * elapsed_s(scan(Single())) == pytest.approx(elapsed_s(scan(Single(), 2 * MILLION)))


def test_tasks_share_the_work() -> None:
    """Several tasks are faster than one, but not by as much as there are of them."""
    alone, beside = elapsed_s(scan(Single(), 1e8)), elapsed_s(scan(Spread(4), 1e8))
    assert alone / 4 < beside < alone / 2


def test_no_more_tasks_run_at_once_than_there_are_cores() -> None:
    """More tasks share the same cores."""
    few = replace(OPTIONS, slots=2)
    found = [elapsed_s(scan(Spread(n), 1e8), options=few) for n in (2, 4, 8)]
    assert [found[0]] * 3 == pytest.approx(found)


def test_tasks_repeat_what_is_replicated() -> None:
    """Each builds a hash table of its own over broadcast rows, which takes CPU time and no less."""
    many = scan(Spread(4), 1e8)
    alike, whole = (
        PhysicalPlan(
            Join(JoinKind.INNER, (), (), (0, 1), ()), (many, few), SCHEMA, many.distribution, 1.0
        )
        for few in (scan(Spread(4)), scan(Replicated()))
    )
    divided, repeated = estimated(alike, OPTIONS), estimated(whole, OPTIONS)
    built_s = MILLION * COSTS.built_ns * 1e-9
    assert 3 * built_s < repeated.cpu_s - divided.cpu_s < 4 * built_s
    assert repeated.elapsed_s > divided.elapsed_s


def test_stages_one_after_the_other_add_up() -> None:
    """Each exchange on the longest way to the root costs a stage, and each task its overhead."""
    options = replace(OPTIONS, costs=Costs(stage_s=1.0, task_s=10.0))
    child = replace(scan(Spread(4)), rows=0.0)
    gathered = PhysicalPlan(Gather(), (child,), SCHEMA, Single(), 0.0)
    assert Estimate(1.0, 20.0) == estimated(gathered, options)
    both = PhysicalPlan(Distinct(), (gathered, gathered), SCHEMA, Single(), 0.0)
    assert Estimate(1.0, 30.0) == estimated(both, options)
    last = PhysicalPlan(Gather(), (both,), SCHEMA, Single(), 0.0)
    assert Estimate(2.0, 40.0) == estimated(last, options)


def test_cpu_time_is_a_burden_on_other_queries() -> None:
    """A plan that is faster as it keeps more cores busy wins only if it does little more work."""
    one = Estimate(elapsed_s=1.0, cpu_s=1.0)
    assert Estimate(0.6, 1.1).burden_s(2) < one.burden_s(2) < Estimate(0.8, 1.5).burden_s(2)


def test_tasks_are_worth_their_overhead() -> None:
    """None for little work, as many as cores for more, more than cores for much."""
    assert [1, 1, 4, 4, 5] == [useful_tasks(work_s, 4) for work_s in (0, 0.006, 0.02, 0.4, 0.41)]


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
