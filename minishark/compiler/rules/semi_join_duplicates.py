"""Semi and anti joins without duplicate elimination on the side that is only tested. Pure.

When DuckDB decorrelates a subquery, it joins with the distinct values of the outer columns. For a
join that only asks whether there is a match, they need not be distinct: its hash table does the
same work once more. Where there are many duplicates, or rows are exchanged, eliminating them first
still pays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from minishark.compiler.logical.operators import Aggregate, Distinct, Join, JoinKind, Project
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.rules.rule import Phase, Rule
from minishark.model.catalog import Catalog
from minishark.model.expressions import ColumnRef, is_volatile

_TESTED_SIDE = {JoinKind.SEMI: 1, JoinKind.ANTI: 1, JoinKind.RIGHT_SEMI: 0, JoinKind.RIGHT_ANTI: 0}


@dataclass(frozen=True, slots=True)
class SemiJoinDuplicatesOptions:
    """When duplicates may stay."""

    # The most rows for each distinct one; a hash table of more is slower.
    duplicates_max: float = 2.0


def with_duplicates(
    plan: PhysicalPlan, catalog: Catalog, options: SemiJoinDuplicatesOptions
) -> PhysicalPlan:
    """`plan` without useless duplicate eliminations; the same object if there are none."""
    children = [with_duplicates(child, catalog, options) for child in plan.children]
    if isinstance(plan.operator, Join) and plan.operator.kind in _TESTED_SIDE:
        side = _TESTED_SIDE[plan.operator.kind]
        children[side] = _bare(children[side], options.duplicates_max)
    return plan.with_children(tuple(children))


def _bare(plan: PhysicalPlan, duplicates_max: float) -> PhysicalPlan:
    match plan.operator:
        case Project(outputs=outputs) if not any(map(is_volatile, outputs)):
            # Row by row, so the same values come out, some of them several times.
            child = _bare(plan.children[0], duplicates_max)
            bare = plan.with_children((child,))
            return bare if bare is plan else replace(bare, rows=child.rows)
        # Only in one phase: the first of two sends fewer rows to the second one.
        case Aggregate(groups=(_, *_) as groups, aggregates=(), grouping_sets=()):
            operator = Project(groups, tuple(column.name for column in plan.schema))
        case Distinct():
            columns = tuple(ColumnRef(i, column.type) for i, column in enumerate(plan.schema))
            operator = Project(columns, tuple(column.name for column in plan.schema))
        case _:
            return plan
    (child,) = plan.children
    # Estimates of both are equal where nothing is known about duplicates: then there are few.
    if child.rows > duplicates_max * plan.rows:
        return plan
    return replace(plan, operator=operator, rows=child.rows)


SEMI_JOIN_DUPLICATES = Rule(
    name="semi_join_duplicates",
    doc="keep duplicates on the tested side of semi and anti joins, if there are few",
    phase=Phase.PHYSICAL,
    apply=with_duplicates,
    options=SemiJoinDuplicatesOptions(),
    everywhere=SemiJoinDuplicatesOptions(duplicates_max=math.inf),
)
