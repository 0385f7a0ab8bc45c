from __future__ import annotations

from minishark.compiler.logical.operators import Scan
from minishark.compiler.physical.plan import (
    Gather,
    Hashed,
    PhysicalPlan,
    Ranged,
    Shuffle,
    Single,
    Spread,
)
from minishark.compiler.physical.repartition import (
    hash_columns,
    hashed_on,
    in_one_partition,
    ranged_on,
    together,
)
from minishark.model.expressions import Column

SCHEMA = (Column("a", "BIGINT"), Column("b", "BIGINT"))


def _plan(distribution: Hashed | Spread | Single) -> PhysicalPlan:
    return PhysicalPlan(Scan("t", ("a", "b"), SCHEMA), (), SCHEMA, distribution, 100.0)


BY_A = _plan(Hashed((frozenset({0}),), 4))


def test_rows_that_lie_right_stay() -> None:
    """No exchange where rows are hashed as they should be."""
    assert BY_A is hashed_on(BY_A, (0,), 4)
    assert BY_A is together(BY_A, (0, 1), 7)
    assert (0,) == hash_columns(BY_A)


def test_other_rows_are_shuffled() -> None:
    """On other columns, or into another number of partitions."""
    for plan in (hashed_on(BY_A, (0,), 5), hashed_on(BY_A, (1,), 4), together(BY_A, (1,), 4)):
        assert isinstance(plan.operator, Shuffle)
        assert BY_A is plan.children[0]
    assert hash_columns(_plan(Spread(4))) is None


def test_ranges() -> None:
    """Rows are exchanged by range; one range is all rows in one place."""
    assert Ranged(3) == ranged_on(BY_A, (1,), 3).distribution
    assert isinstance(ranged_on(BY_A, (1,), 1).operator, Gather)
    single = _plan(Single())
    assert single is in_one_partition(single)
