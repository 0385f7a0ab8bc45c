"""Small buckets of a shuffle are read several by one task. Pure.

How many buckets a shuffle makes is decided before anybody knows how many rows it has; a task takes
milliseconds, however few there are. Only neighbours are merged, so ranges stay in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minishark.compiler.physical.plan import PhysicalPlan, Share, StageOutput
from minishark.compiler.physical.regions import (
    bucket_outputs,
    changed_regions,
    shares_of,
    with_shares,
)
from minishark.compiler.physical.sizes import Situation
from minishark.compiler.rules.rule import Phase, Revised, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketMergeOptions:
    """What is small.

    Attributes:
        rows_max: a task reads no more rows than these, unless one bucket has more.
    """

    rows_max: int = 100_000


def merged(plan: PhysicalPlan, situation: Situation, options: BucketMergeOptions) -> Revised:
    """The plan with fewer tasks where buckets are small."""
    reasons: list[str] = []

    def change(region: PhysicalPlan, may_change: bool) -> PhysicalPlan | None:
        outputs = bucket_outputs(region, situation.sizes) if may_change else None
        if outputs is None:
            return None
        known = shares_of(outputs)
        rows = [sum(_rows(output, i, situation) for output in outputs) for i in range(len(known))]
        shares = _merged(known, rows, options.rows_max)
        if len(shares) == len(known):
            return None
        reasons.append(f"{len(known)} buckets have {sum(rows):,} rows: {_tasks(shares)} them")
        return with_shares(region, shares, torn=any(share.tasks for share in shares))

    found = changed_regions(plan, change, may_change=situation.free_root)
    return Revised(found, tuple(reasons))


def _merged(shares: Sequence[Share], rows: Sequence[int], rows_max: int) -> list[Share]:
    found: list[Share] = []
    total = 0
    for share, count in zip(shares, rows, strict=True):
        # Parts of a bucket were made because it is large.
        if found and total + count <= rows_max and not share.tasks and not found[-1].tasks:
            found[-1] = Share(found[-1].first, share.last)
            total += count
        else:
            found.append(share)
            total = count
    return found


def _rows(output: PhysicalPlan, task: int, situation: Situation) -> int:
    """How many rows a task reads of an output."""
    operator = output.operator
    assert isinstance(operator, StageOutput)
    buckets = situation.sizes[operator.stage].bucket_rows
    if not operator.shares:
        return buckets[task]
    share = operator.shares[task]
    return sum(buckets[share.first : share.last])


def _tasks(shares: Sequence[Share]) -> str:
    return "1 task reads" if len(shares) == 1 else f"{len(shares)} tasks read"


BUCKET_MERGE = Rule(
    name="bucket_merge",
    doc="read several small buckets of a shuffle in one task",
    phase=Phase.ADAPTIVE,
    apply=merged,
    options=BucketMergeOptions(),
    everywhere=BucketMergeOptions(),
)
