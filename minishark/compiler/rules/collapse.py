"""What is left of a query runs in one task if it reads little. Pure.

A stage costs a round trip of scheduling, and each of its tasks a few milliseconds in an executor,
however few rows there are. Before a query runs, one can only guess how many rows its joins and
filters leave; when the stages below are complete, their true sizes are known. Then all exchanges
above them are dropped, and one task reads everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minishark.compiler.hints import NO_HINTS
from minishark.compiler.logical.operators import Cte, CteRef, Distinct, Scan, Values
from minishark.compiler.physical.plan import (
    Exchange,
    FinalAggregate,
    PartialAggregate,
    PhysicalPlan,
    Replicated,
    Single,
    StageOutput,
)
from minishark.compiler.physical.regions import changed_regions
from minishark.compiler.physical.sizes import Situation
from minishark.compiler.rules.rule import Phase, Revised, Rule
from minishark.model.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseOptions:
    """When one task is enough."""

    rows_max: int = 150_000  # the most rows that it may read
    # The most rows that any of its operators may have by estimate, as a multiple of `rows_max`: a
    # join of few rows may have many.
    growth_max: float = 4.0


def collapsed(plan: PhysicalPlan, situation: Situation, options: CollapseOptions) -> Revised:
    """The plan with every part of it that reads little in one task, the largest parts first."""
    reasons: list[str] = []

    def change(region: PhysicalPlan, may_change: bool) -> PhysicalPlan | None:
        if not may_change or not _has_several_tasks(region):
            return None
        read = _read_rows(region, situation, options)
        if read is None:
            return None
        what = "what is left" if region is plan else "a part of what is left"
        reasons.append(f"{what} reads {read:,} rows, so it runs in one task")
        return without_exchanges(region)

    changed = changed_regions(plan, change, may_change=situation.free_root)
    return Revised(changed, tuple(reasons))


def _read_rows(plan: PhysicalPlan, situation: Situation, options: CollapseOptions) -> int | None:
    """How many rows `plan` reads of tables and complete stages; None if unknown or too many."""
    total = 0
    defined = {node.operator.index for node in plan.nodes() if isinstance(node.operator, Cte)}
    for node in plan.nodes():
        rows = _own_rows(node, situation, defined)
        if rows is None or node.rows > options.growth_max * options.rows_max:
            return None
        total += rows
        if total > options.rows_max:
            return None
    return total


def _has_several_tasks(plan: PhysicalPlan) -> bool:
    """Whether it takes more than one task, in one stage or in several."""
    planned = (n for n in plan.nodes() if isinstance(n.operator, Exchange))
    more_stages = any(not isinstance(node.operator, StageOutput) for node in planned)
    return more_stages or plan.distribution.partitions > 1


def _own_rows(plan: PhysicalPlan, situation: Situation, defined: set[int]) -> int | None:
    match plan.operator:
        case StageOutput(stage=stage):
            size = situation.sizes.get(stage)
            return None if size is None else size.rows
        case Scan() as scan:
            return _table_rows(plan, scan, situation.catalog)
        case CteRef(index=index):
            return 0 if index in defined else None  # its definition counts what it reads
        case Values(rows=rows):
            return len(rows)
        case _:
            return 0


def _table_rows(plan: PhysicalPlan, scan: Scan, catalog: Catalog) -> int | None:
    # Text for these codes is looked up under the name of the dictionaries of one partition.
    if scan.hints.dictionary_codes and not isinstance(plan.distribution, Replicated):
        return None
    return catalog.get(scan.table).rows


def without_exchanges(plan: PhysicalPlan) -> PhysicalPlan:
    """`plan` without exchanges: one task computes it from all that it reads."""
    match plan.operator:
        case StageOutput() | CteRef() | Values():
            return replace(plan, distribution=Replicated())
        case Scan() as scan:
            # Filters and runs save time on large tables only, and are made for one partition each.
            codes = replace(NO_HINTS, dictionary_codes=scan.hints.dictionary_codes)
            return replace(plan, operator=replace(scan, hints=codes), distribution=Replicated())
        case Exchange():
            return without_exchanges(plan.children[0])
    children = tuple(map(without_exchanges, plan.children))
    single = replace(plan, children=children, distribution=Single())
    match plan.operator, children[0].operator:
        case FinalAggregate(complete=aggregate), PartialAggregate(complete=other):
            if aggregate is other:
                return replace(single, operator=aggregate, children=children[0].children)
        case Distinct(), Distinct():
            return children[0]
    return single


COLLAPSE = Rule(
    name="collapse",
    doc="run what is left of a query in one task if it reads few rows",
    phase=Phase.ADAPTIVE,
    apply=collapsed,
    options=CollapseOptions(),
    everywhere=CollapseOptions(),
)
