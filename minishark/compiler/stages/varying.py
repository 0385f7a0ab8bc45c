"""Which stages may put out other rows when they run again on the same inputs.

A task reads its inputs in the same order each time, but passes rows on in another where it has
several threads, or where DuckDB ran short of memory once and not the other time. So whatever
depends on the order of rows counts as varying, as do volatile functions and sums of floating-point
numbers. What does not vary are the rows, not their order.
"""

from __future__ import annotations

from minishark.compiler.logical.operators import Aggregate
from minishark.compiler.logical.volatile import expressions_of
from minishark.compiler.physical.order import INDEPENDENT_AGGREGATES, INDEPENDENT_OPERATORS
from minishark.compiler.physical.plan import (
    Boundaries,
    Exchange,
    FinalAggregate,
    PartialAggregate,
    PhysicalPlan,
)
from minishark.expressions import AggregateCall, is_volatile

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
            exact = isinstance(operator, INDEPENDENT_OPERATORS) and not any(
                map(is_volatile, expressions_of(operator))
            )
    return not exact or any(map(varies, plan.children))


def _is_exact(aggregate: Aggregate) -> bool:
    return not any(map(is_volatile, expressions_of(aggregate))) and all(
        map(_is_exact_call, aggregate.aggregates)
    )


def _is_exact_call(call: AggregateCall) -> bool:
    if call.name not in INDEPENDENT_AGGREGATES:
        return False
    if call.name not in ("sum", "avg"):
        return True
    added = [argument.type for argument in call.arguments]
    if call.name == "sum":
        added.append(call.type)  # of the largest integers it is a floating-point number
    return not any(type_ in _INEXACT_TYPES for type_ in added)
