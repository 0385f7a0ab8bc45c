"""Which stages may put out other rows when they run again on the same inputs.

A task has one thread and reads its inputs in the same order each time, so most of what SQL leaves
open is the same again; but not where DuckDB ran short of memory once and not the other time. So
whatever depends on the order of rows counts as varying, as do volatile functions and sums of
floating-point numbers.
"""

from __future__ import annotations

from minishark.expressions import AggregateCall, is_volatile
from minishark.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    Filter,
    Join,
    Project,
    Scan,
    SetOperation,
    Sort,
    Unnest,
    Values,
)
from minishark.logical.volatile import expressions_of
from minishark.physical.plan import (
    Boundaries,
    Exchange,
    FinalAggregate,
    PartialAggregate,
    PhysicalPlan,
)

_EXACT = (
    Scan, Filter, Project, Join, Sort, Distinct, SetOperation, Values, Unnest, Cte, CteRef,
)  # fmt: skip
_EXACT_AGGREGATES = frozenset(
    [
        "count", "count_star", "min", "max", "sum", "avg", "bool_and", "bool_or", "bit_and",
        "bit_or", "bit_xor", "regr_count", "approx_count_distinct",
    ]
)  # fmt: skip
_INEXACT_TYPES = ("FLOAT", "DOUBLE")


def varies(plan: PhysicalPlan) -> bool:
    """Whether the stage that computes `plan` may put out other rows when it runs again."""
    operator = plan.operator
    if isinstance(operator, Exchange):
        return False  # another stage
    match operator:
        case PartialAggregate(complete=aggregate) | FinalAggregate(complete=aggregate):
            exact = _is_exact(aggregate)
        case Aggregate():
            exact = _is_exact(operator)
        case Boundaries():
            exact = True
        case _:
            exact = isinstance(operator, _EXACT) and not any(
                map(is_volatile, expressions_of(operator))
            )
    return not exact or any(map(varies, plan.children))


def _is_exact(aggregate: Aggregate) -> bool:
    return not any(map(is_volatile, expressions_of(aggregate))) and all(
        map(_is_exact_call, aggregate.aggregates)
    )


def _is_exact_call(call: AggregateCall) -> bool:
    if call.name not in _EXACT_AGGREGATES:
        return False
    adds = call.name in ("sum", "avg")
    return not (adds and any(argument.type in _INEXACT_TYPES for argument in call.arguments))
