"""Pure functions on joins: which inputs can be joined in place, and how output is distributed."""

from __future__ import annotations

from collections.abc import Sequence

from minishark.compiler.logical.operators import Join, JoinCondition, JoinKind
from minishark.compiler.physical.plan import (
    Distribution,
    Exchange,
    Hashed,
    PhysicalPlan,
    Replicated,
    Single,
    Spread,
    in_one_task,
    moved,
    positions_of,
)
from minishark.model.expressions import ColumnRef, Expression

KEEPS_LEFT = frozenset(
    (JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK, JoinKind.SINGLE)
)
"""Joins whose left side may be partitioned in any way if every task has the whole right side."""
KEEPS_RIGHT = frozenset((JoinKind.INNER, JoinKind.RIGHT, JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI))
"""Joins whose right side may be partitioned in any way if every task has the whole left side."""
KEEPS_LEFT_ONLY = frozenset((JoinKind.SEMI, JoinKind.ANTI))
"""Joins that only choose among the rows of the left side."""
KEEPS_RIGHT_ONLY = frozenset((JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI))
"""Joins that only choose among the rows of the right side."""


def is_guessed(plan: PhysicalPlan) -> bool:
    """Whether DuckDB has to guess the number of rows of `plan`, as it comes from joins."""
    match plan.operator:
        case Join(kind=kind) if kind in KEEPS_LEFT_ONLY:
            return is_guessed(plan.children[0])
        case Join(kind=kind) if kind in KEEPS_RIGHT_ONLY:
            return is_guessed(plan.children[1])
        case Join():
            return True
        case Exchange():
            return False
        case _:
            return any(map(is_guessed, plan.children))


def can_hash(condition: JoinCondition) -> bool:
    """Whether rows may be shuffled by a condition's two sides: equal keys of equal types."""
    return condition.is_equality and condition.left.type == condition.right.type


def never_null(join: Join) -> bool:
    """Whether the mark of a mark join is true or false, never NULL."""
    return (
        all(c.comparison == "IS NOT DISTINCT FROM" for c in join.conditions) and not join.residual
    )


def matching_keys(
    distribution: Distribution, expressions: Sequence[Expression]
) -> list[int] | None:
    """Which expression is which key of a hash distribution; None unless all keys are among them."""
    if not isinstance(distribution, Hashed):
        return None
    order: list[int] = []
    for key in distribution.keys:
        matching = [
            i for i, e in enumerate(expressions) if isinstance(e, ColumnRef) and e.index in key
        ]
        if not matching:
            return None
        order.append(matching[0])
    return order


def lie_together(join: Join, left: Distribution, right: Distribution) -> bool:
    """Whether the join can run partition by partition without an exchange."""
    if in_one_task(left) and in_one_task(right):
        return True
    if isinstance(right, Replicated) and join.kind in KEEPS_LEFT:
        return True
    if isinstance(left, Replicated) and join.kind in KEEPS_RIGHT:
        return True
    if join.kind is JoinKind.MARK and not never_null(join):
        return False
    return _co_partitioned(join, left, right)


def _co_partitioned(join: Join, left: Distribution, right: Distribution) -> bool:
    """Whether rows that can match are in partitions with the same number."""
    if not isinstance(left, Hashed) or not isinstance(right, Hashed):
        return False
    if left.partitions != right.partitions or len(left.keys) != len(right.keys):
        return False
    pairs = [
        (c.left.index, c.right.index)
        for c in join.conditions
        if can_hash(c) and isinstance(c.left, ColumnRef) and isinstance(c.right, ColumnRef)
    ]
    return all(
        any(a in left_key and b in right_key for a, b in pairs)
        for left_key, right_key in zip(left.keys, right.keys, strict=True)
    )


def join_distribution(
    join: Join, left: Distribution, right: Distribution, left_width: int
) -> Distribution:
    """The distribution of a join's output, once its inputs are distributed as they must be."""
    if in_one_task(left) and in_one_task(right):
        both = isinstance(left, Replicated) and isinstance(right, Replicated)
        return Replicated() if both else Single()
    base = right if in_one_task(left) else left
    # Unmatched rows of one side have NULL for the keys of the other one, in any partition.
    if not isinstance(base, Hashed) or join.kind is JoinKind.FULL:
        return Spread(base.partitions)
    kept = list(join.left_output) if join.keeps_left_columns else []
    if join.keeps_right_columns:
        kept += [i + left_width for i in join.right_output]
    return moved(_equated(join, left, right, left_width), positions_of(kept))


def _equated(join: Join, left: Distribution, right: Distribution, width: int) -> Hashed:
    """The hash distribution over the left and right columns side by side, before projection."""
    # An inner join makes its equal columns interchangeable; other joins keep only the keys of the
    # side whose rows all survive with their own values.
    by_left = left if isinstance(left, Hashed) else None
    by_right = right if isinstance(right, Hashed) else None
    keeps_right = join.kind in (JoinKind.RIGHT, JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI)
    if by_left is None or (keeps_right and by_right is not None):
        assert by_right is not None
        keys = tuple(frozenset(i + width for i in key) for key in by_right.keys)
        partitions = by_right.partitions
    else:
        keys, partitions = by_left.keys, by_left.partitions
    # Only an inner join makes both sides' columns equal in every row of its output.
    if join.kind is not JoinKind.INNER:
        return Hashed(keys, partitions)
    pairs = [
        (c.left.index, c.right.index + width)
        for c in join.conditions
        if c.is_equality and isinstance(c.left, ColumnRef) and isinstance(c.right, ColumnRef)
    ]
    return Hashed(tuple(_closed(key, pairs) for key in keys), partitions)


def _closed(key: frozenset[int], pairs: Sequence[tuple[int, int]]) -> frozenset[int]:
    """`key` and all columns that the pairs make equal to one of it."""
    for _ in pairs:
        key = key.union(*(pair for pair in pairs if not key.isdisjoint(pair)))
    return key
