"""Large buckets of a shuffle are divided among several tasks. Pure.

If most rows have the same key, they are all in one bucket, and the stage waits for its task. A join
can be computed in parts if each part has all rows of the other side that may match, as in a
broadcast: each task reads the outputs of some of the tasks that wrote the bucket, and the same
bucket of the other side whole. An aggregate above the join gets partial results from each part, and
another stage to combine them.

Parts consist of whole outputs of tasks, not of record batches: an output that is lost and computed
again has the same rows, but perhaps in another order.

Related work: skew handling in Spark's adaptive execution (SPARK-29544), which divides buckets in
the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from minishark.compiler.logical import operators as ops
from minishark.compiler.physical.aggregates import can_split
from minishark.compiler.physical.joins import KEEPS_LEFT, KEEPS_RIGHT
from minishark.compiler.physical.plan import (
    FinalAggregate,
    Hashed,
    PartialAggregate,
    PhysicalPlan,
    Share,
    Shuffle,
    Spread,
    StageOutput,
)
from minishark.compiler.physical.regions import bucket_outputs, changed_regions, with_shares
from minishark.compiler.physical.replacing import Placing, as_planned
from minishark.compiler.physical.sizes import Situation, StageSize
from minishark.compiler.rules.rule import Phase, Revised, Rule
from minishark.model.expressions import ColumnRef, is_volatile


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewSplitOptions:
    """Which buckets are large."""

    rows_min: int = 500_000  # those with fewer rows are not divided
    # Nor are those with fewer than this many times the rows of the mean of the others.
    ratio_min: float = 3.0


def split_buckets(plan: PhysicalPlan, situation: Situation, options: SkewSplitOptions) -> Revised:
    """The plan with large buckets divided."""
    reasons: list[str] = []

    def change(region: PhysicalPlan, may_change: bool) -> PhysicalPlan | None:
        outputs = bucket_outputs(region, situation.sizes)
        if outputs is None or not _can_be_torn(region):
            return None
        for output in _by_largest_bucket(outputs, situation):
            shares = _shares(output, outputs, situation, options)
            torn = shares and _torn(region, output, shares, situation.placing)
            if torn and (may_change or torn.distribution == region.distribution):
                reasons.append(_reason(output, shares, situation))
                return torn
        return None

    changed = changed_regions(plan, change, may_change=situation.free_root)
    return Revised(changed, tuple(reasons))


# Which buckets are divided


def _stage(output: PhysicalPlan) -> int:
    assert isinstance(output.operator, StageOutput)
    return output.operator.stage


def _by_largest_bucket(outputs: Sequence[PhysicalPlan], situation: Situation) -> list[PhysicalPlan]:
    def largest(output: PhysicalPlan) -> int:
        return max(situation.sizes[_stage(output)].bucket_rows, default=0)

    return sorted(outputs, key=largest, reverse=True)


def _shares(
    output: PhysicalPlan,
    outputs: Sequence[PhysicalPlan],
    situation: Situation,
    options: SkewSplitOptions,
) -> list[Share]:
    """What each task reads of `output`; none if no bucket is divided."""
    operator = output.operator
    assert isinstance(operator, StageOutput)
    if operator.shares:
        return []  # decided before
    size = situation.sizes[operator.stage]
    rows, total = size.bucket_rows, sum(size.bucket_rows)
    others = [
        situation.sizes[_stage(other)].bucket_rows for other in outputs if other is not output
    ]
    share = total / max(1, len(rows))  # what each task would have if all had the same
    shares: list[Share] = []
    for bucket, count in enumerate(rows):
        mean = (total - count) / max(1, len(rows) - 1)
        read_again = sum(other[bucket] for other in others)
        is_large = count >= max(options.rows_min, options.ratio_min * mean, read_again)
        parts = _parts(size, bucket, max(share, options.rows_min / 2)) if is_large else []
        shares += [Share(bucket, bucket + 1, part) for part in parts] or [Share(bucket, bucket + 1)]
    return shares if len(shares) > len(rows) else []


def _parts(size: StageSize, bucket: int, rows: float) -> list[tuple[int, int]]:
    """The tasks that wrote a bucket in groups of about as many `rows` or more; none for one."""
    written = [task.buckets[bucket] for task in size.tasks]
    count = min(len(written), int(-(-sum(written) // rows)))
    ends = list(accumulate(written))
    step = ends[-1] / count
    # A task belongs to the group in which the middle of its rows is.
    groups = [int((end - own / 2) // step) for end, own in zip(ends, written, strict=True)]
    firsts = [i for i, group in enumerate(groups) if not i or group != groups[i - 1]]
    bounds = [*firsts, len(written)]
    return list(pairwise(bounds)) if len(firsts) > 1 else []


def _reason(output: PhysicalPlan, shares: Sequence[Share], situation: Situation) -> str:
    stage = _stage(output)
    rows = situation.sizes[stage].bucket_rows
    hot = dict.fromkeys(share.first for share in shares if share.tasks)
    large = ", ".join(f"{bucket} has {rows[bucket]:,}" for bucket in hot)
    parts = sum(share.tasks is not None for share in shares)
    return (
        f"of the {sum(rows):,} rows of stage {stage}, bucket {large}: {parts} tasks read parts of "
        f"{'it' if len(hot) == 1 else 'them'}"
    )


# What becomes of the region


def _can_be_torn(plan: PhysicalPlan) -> bool:
    """Whether tasks that compute parts of a bucket agree on what they compute twice."""
    for node in plan.own_nodes():
        if any(map(is_volatile, node.operator.expressions())):
            return False
        # Codes hold in one task only; partial aggregates by codes could not be combined.
        if isinstance(node.operator, ops.Scan) and node.operator.hints.dictionary_codes:
            return False
    return True


def _torn(
    plan: PhysicalPlan, output: PhysicalPlan, shares: Sequence[Share], placing: Placing
) -> PhysicalPlan | None:
    """`plan`, which reads parts of buckets of `output`; None if it has to see them whole.

    Its rows are spread, up to an operator that needs equal keys together: that one gets an exchange
    and is distributed as before, and so is all above it.
    """
    if plan is output:
        return with_shares(plan, shares, torn=True)
    below = next((i for i, c in enumerate(plan.children) if _reads(c, output)), None)
    if below is None:
        return None
    torn = _torn(plan.children[below], output, shares, placing)
    if torn is None:
        return None
    spread = Spread(len(shares))
    children = list(plan.children)
    children[below] = torn
    if torn.distribution != spread:
        return plan.with_children(tuple(children))
    match plan.operator:
        case ops.Filter() | ops.Project() | ops.Unnest() | PartialAggregate():
            return replace(plan, children=(torn,), distribution=spread)
        case ops.Join(kind=kind) if kind in (KEEPS_RIGHT if below else KEEPS_LEFT):
            # Each part of a bucket meets all of the same bucket on the other side.
            whole = [Share(share.first, share.last) for share in shares]
            children[1 - below] = with_shares(children[1 - below], whole, torn=True)
            return replace(plan, children=tuple(children), distribution=spread)
        case ops.Aggregate() as aggregate if can_split(aggregate) and aggregate.groups:
            names = [column.name for column in plan.schema[: len(aggregate.groups)]]
            partial = placing.partial(aggregate, as_planned(torn), names).plan
            rows = min(partial.rows, plan.rows * len(shares))
            partial = replace(partial, rows=rows)
            return _combined(plan, partial, FinalAggregate(aggregate))
        # Over a stage's output it is the second of two phases: a third would change nothing.
        case ops.Distinct() if torn.children:
            partial = replace(plan, children=(torn,), distribution=spread)
            return _combined(plan, partial, plan.operator)
    return None


def _reads(plan: PhysicalPlan, output: PhysicalPlan) -> bool:
    return any(node is output for node in plan.own_nodes())


def _combined(
    plan: PhysicalPlan, partial: PhysicalPlan, operator: FinalAggregate | ops.Distinct
) -> PhysicalPlan | None:
    """The results of parts brought together as the rows of `plan` were."""
    distribution = plan.distribution
    if not isinstance(distribution, Hashed):
        return None
    columns = [min(key) for key in distribution.keys]
    keys = tuple(ColumnRef(i, partial.schema[i].type) for i in columns)
    hashed = Hashed(tuple(frozenset((i,)) for i in columns), distribution.partitions)
    exchange = Shuffle(keys, distribution.partitions)
    shuffled = PhysicalPlan(exchange, (partial,), partial.schema, hashed, partial.rows)
    return replace(plan, operator=operator, children=(shuffled,))


SKEW_SPLIT = Rule(
    name="skew_split",
    doc="divide a large bucket of a shuffle among several tasks, where the join above it allows it",
    phase=Phase.ADAPTIVE,
    apply=split_buckets,
    options=SkewSplitOptions(),
    everywhere=SkewSplitOptions(),
)
