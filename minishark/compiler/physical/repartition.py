"""Plans whose rows are spread over partitions as a user asks for."""

from __future__ import annotations

from collections.abc import Sequence

from minishark.compiler.physical.distribution import in_one_task
from minishark.compiler.physical.plan import (
    Gather,
    Hashed,
    PhysicalPlan,
    Shuffle,
    Single,
    free_cte_index,
)
from minishark.compiler.physical.ranges import ranged
from minishark.expressions import ColumnRef, SortKey


def hashed_on(plan: PhysicalPlan, columns: Sequence[int], partitions: int) -> PhysicalPlan:
    """`plan` with its rows in partition `hash(columns) % partitions`."""
    if is_hashed_on(plan, columns, partitions):
        return plan
    keys = tuple(ColumnRef(i, plan.schema[i].type) for i in columns)
    distribution = Hashed(tuple(frozenset((i,)) for i in columns), partitions)
    exchange = Shuffle(keys, partitions)
    return PhysicalPlan(exchange, (plan,), plan.schema, distribution, plan.rows)


def is_hashed_on(plan: PhysicalPlan, columns: Sequence[int], partitions: int) -> bool:
    distribution = plan.distribution
    return (
        isinstance(distribution, Hashed)
        and distribution.partitions == partitions
        and len(distribution.keys) == len(columns)
        and all(i in key for i, key in zip(columns, distribution.keys, strict=True))
    )


def hash_columns(plan: PhysicalPlan) -> tuple[int, ...] | None:
    """The output columns that determine the partition of a row, if any do."""
    distribution = plan.distribution
    if not isinstance(distribution, Hashed) or not all(distribution.keys):
        return None
    return tuple(min(key) for key in distribution.keys)


def together(plan: PhysicalPlan, columns: Sequence[int], partitions: int) -> PhysicalPlan:
    """`plan` with all rows that are equal in `columns` in the same partition, any one."""
    distribution = plan.distribution
    if isinstance(distribution, Hashed) and all(key & set(columns) for key in distribution.keys):
        return plan
    return hashed_on(plan, columns, partitions)


def ranged_on(plan: PhysicalPlan, columns: Sequence[int], partitions: int) -> PhysicalPlan:
    """`plan` with one range of the values of `columns` in each partition, in their order."""
    if partitions == 1:
        return in_one_partition(plan)
    keys = tuple(
        SortKey(ColumnRef(i, plan.schema[i].type), descending=False, nulls_first=False)
        for i in columns
    )
    return ranged(plan, keys, partitions, free_cte_index(plan))


def in_one_partition(plan: PhysicalPlan) -> PhysicalPlan:
    """`plan` with all rows in one partition, in their order."""
    if in_one_task(plan.distribution):
        return plan
    return PhysicalPlan(Gather(), (plan,), plan.schema, Single(), plan.rows)
