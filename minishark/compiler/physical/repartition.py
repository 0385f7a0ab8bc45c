"""Plans whose rows are spread over partitions as a user asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minishark.compiler.logical.operators import Cte, CteRef, Filter, Project, Scan
from minishark.compiler.physical.plan import (
    Boundaries,
    Gather,
    Hashed,
    PhysicalPlan,
    Ranged,
    RangeShuffle,
    SampleKeys,
    Shuffle,
    Single,
    Spread,
    free_cte_index,
    in_one_task,
)
from minishark.model.expressions import Column, ColumnRef, SortKey, is_volatile

SAMPLE_ROWS = 2_000  # sampled keys per partition: ranges then differ by a few percent in size
_SAMPLE_SCHEMA = (Column("key", "BLOB"), Column("rows", "DOUBLE"))
_NAME = "rows to sort"


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


def ranged(
    plan: PhysicalPlan, keys: tuple[SortKey, ...], partitions: int, index: int
) -> PhysicalPlan:
    # Rows are needed twice, for the sample and for the exchange: what is more than a filtered table
    # is stored in between, as the common table expression `index`, which must be free in the whole
    # plan. Rows with equal keys stay in their order.
    if _is_cheap(plan):
        return _exchanged(plan, keys, partitions)
    reference = replace(plan, operator=CteRef(index, _NAME, plan.schema), children=())
    main = _exchanged(reference, keys, partitions)
    return replace(main, operator=Cte(index, _NAME), children=(plan, main))


def _exchanged(plan: PhysicalPlan, keys: tuple[SortKey, ...], partitions: int) -> PhysicalPlan:
    count = plan.distribution.partitions
    rows = min(plan.rows, float(SAMPLE_ROWS * count))
    sampling = SampleKeys(keys, SAMPLE_ROWS)
    sample = PhysicalPlan(sampling, (plan,), _SAMPLE_SCHEMA, Spread(count), rows)
    gathered = PhysicalPlan(Gather(), (sample,), _SAMPLE_SCHEMA, Single(), rows)
    schema = tuple(Column(f"range {i}", "BLOB") for i in range(1, partitions))
    boundaries = PhysicalPlan(Boundaries(partitions), (gathered,), schema, Single(), 1.0)
    exchange = RangeShuffle(keys, partitions)
    return PhysicalPlan(exchange, (plan, boundaries), plan.schema, Ranged(partitions), plan.rows)


def _is_cheap(plan: PhysicalPlan) -> bool:
    """Whether computing `plan` twice costs less than storing its rows."""
    match plan.operator:
        case Filter(predicates=expressions) | Project(outputs=expressions):
            return _is_cheap(plan.children[0]) and not any(map(is_volatile, expressions))
        case Scan():
            return True
        case _:
            return False
