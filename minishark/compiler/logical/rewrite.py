"""Rewrites that help a distributed plan, which DuckDB's optimizer has no reason to make.

A mark join marks each left row with whether it found a match, and with NULL where that is unknown;
for the NULLs, every task needs the whole right side. A filter on the mark needs less: a semi or an
anti join, whose sides may be partitioned on the keys.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_

from minishark.compiler.logical.operators import Filter, Join, JoinKind
from minishark.compiler.logical.plan import LogicalPlan, make_plan
from minishark.model.expressions import ColumnRef, Expression, Prefix, references


def rewrite(plan: LogicalPlan) -> LogicalPlan:
    children = tuple(map(rewrite, plan.children))
    if not all(map(is_, children, plan.children)):
        plan = replace(plan, children=children)
    return _semi_join_from_mark(plan)


def _semi_join_from_mark(plan: LogicalPlan) -> LogicalPlan:
    filter_, child = plan.operator, plan.children[0] if plan.children else None
    if not isinstance(filter_, Filter) or child is None:
        return plan
    join = child.operator
    if not isinstance(join, Join) or join.kind is not JoinKind.MARK:
        return plan
    mark = len(child.schema) - 1
    kind, rest = _without_mark(filter_.predicates, mark, join)
    used_elsewhere = any(r.index == mark for e in rest for r in references(e))
    if kind is None or used_elsewhere or mark in filter_.output:
        return plan
    semi = make_plan(replace(join, kind=kind), *child.children)
    if not rest and filter_.output == tuple(range(mark)):
        return replace(semi, schema=plan.schema)

    return replace(make_plan(Filter(rest, filter_.output), semi), schema=plan.schema)


def _without_mark(
    predicates: tuple[Expression, ...], mark: int, join: Join
) -> tuple[JoinKind | None, tuple[Expression, ...]]:
    """The join that a predicate on the mark asks for, and the predicates that remain."""
    never_null = all(
        c.comparison in ("IS NOT DISTINCT FROM", "IS DISTINCT FROM") for c in join.conditions
    )
    for position, predicate in enumerate(predicates):
        rest = predicates[:position] + predicates[position + 1 :]
        match predicate:
            case ColumnRef(index=index) if index == mark:
                return JoinKind.SEMI, rest
            case Prefix(operator="NOT", argument=ColumnRef(index=index)) if (
                index == mark and never_null and not join.residual
            ):
                return JoinKind.ANTI, rest
            case _:
                continue
    return None, predicates
