"""Range partitioning: partitions that hold one range of sort keys each, in order.

The boundaries between ranges come from a sample of the keys, so ranges are about equally large, as
far as equal keys allow. Keys are compared as DuckDB's `create_sort_key` gives them, which orders
as ORDER BY does, whatever the type, collation and place of NULLs.
"""

from __future__ import annotations

from dataclasses import replace

from minishark.compiler.logical.operators import Cte, CteRef, Filter, Project, Scan
from minishark.compiler.physical.plan import (
    Boundaries,
    Gather,
    PhysicalPlan,
    Ranged,
    RangeShuffle,
    SampleKeys,
    Single,
    Spread,
)
from minishark.expressions import Column, SortKey, is_volatile

SAMPLE_ROWS = 2_000
"""Sampled keys per partition: ranges then differ by a few percent in size."""

_SAMPLE_SCHEMA = (Column("key", "BLOB"), Column("rows", "DOUBLE"))
_NAME = "rows to sort"


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
