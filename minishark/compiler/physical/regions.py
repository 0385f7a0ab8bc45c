"""Regions of a plan that runs: parts without exchanges, each of which becomes a stage. Pure.

A region that reads only buckets of complete stages may read them otherwise than one bucket in each
task: its fragment runs over whatever rows its inputs have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from minishark.compiler.logical.operators import Cte, CteRef, Scan
from minishark.compiler.physical.plan import (
    Broadcast,
    Distribution,
    Exchange,
    Gather,
    Hashed,
    PhysicalPlan,
    Ranged,
    Share,
    Shuffle,
    Spread,
    StageOutput,
    in_one_task,
)

Change = Callable[[PhysicalPlan, bool], PhysicalPlan | None]
"""Another plan for a region, or None. It gets the region's root, and whether the tasks of the
region, and which rows they have, may change: whether nothing above depends on it."""


def changed_regions(plan: PhysicalPlan, change: Change, *, may_change: bool) -> PhysicalPlan:
    """`plan` with its regions changed, the upper ones first; none below a changed one.

    Args:
        plan: the plan.
        change: is asked for each region.
        may_change: whether the tasks of the uppermost region may change.
    """
    changed = change(plan, may_change)
    return _below(plan, change) if changed is None else changed


def _below(plan: PhysicalPlan, change: Change) -> PhysicalPlan:
    match plan.operator:
        case Shuffle() | Broadcast() | Gather() if not isinstance(
            plan.children[0].operator, CteRef
        ):
            # They take rows from any tasks.
            child = changed_regions(plan.children[0], change, may_change=True)
            return plan.with_children((child,))
        case Exchange():
            children = [changed_regions(child, change, may_change=False) for child in plan.children]
            return plan.with_children(tuple(children))
        case Cte():
            definition, main = plan.children
            definition = changed_regions(definition, change, may_change=False)
            return plan.with_children((definition, _below(main, change)))
        case _:
            return plan.with_children(tuple(_below(child, change) for child in plan.children))


def bucket_outputs(plan: PhysicalPlan, complete: Collection[int]) -> list[PhysicalPlan] | None:
    """The stage outputs that the region of `plan` reads by bucket.

    None if it reads anything else by partition, or an output that is not complete.
    """
    outputs = []
    for node in plan.own_nodes():
        divided = not in_one_task(node.distribution)
        match node.operator:
            case StageOutput(stage=stage, has_buckets=has_buckets):
                if stage not in complete or (divided and not has_buckets):
                    return None
                outputs += [node] * divided
            case Cte() if not in_one_task(node.children[0].distribution):
                return None
            case Exchange():  # of a stage that has not run
                return None
            case Scan() | CteRef() if divided:
                return None
    return outputs or None


def with_shares(plan: PhysicalPlan, shares: Sequence[Share], *, torn: bool) -> PhysicalPlan:
    """A region with a task for each of the shares.

    Args:
        plan: the region's root, or a part of it.
        shares: what each task reads of every output that is read by bucket.
        torn: whether rows with equal keys may be in several tasks.
    """
    if in_one_task(plan.distribution):
        return plan
    children = tuple(with_shares(child, shares, torn=torn) for child in plan.children)
    operator = plan.operator
    if isinstance(operator, StageOutput):
        operator = replace(operator, shares=tuple(shares))
    distribution = _resized(plan.distribution, len(shares), torn=torn)
    return replace(plan, operator=operator, children=children, distribution=distribution)


def _resized(distribution: Distribution, count: int, *, torn: bool) -> Distribution:
    match distribution:
        case Hashed(keys=keys) if not torn:
            return Hashed(keys, count)
        case Ranged() if not torn:
            return Ranged(count)
        case _:
            return Spread(count)
