"""Which stages may put out other rows when they run again on the same inputs.

A task reads its inputs in the same order each time, but passes rows on in another order where it
has several threads, or where DuckDB ran short of memory once and not the other time. So whatever
depends on the order of rows counts as varying, as do volatile functions and sums of floating-point
numbers. What must not vary are the rows, not their order.
"""

from __future__ import annotations

from minishark.compiler.logical.operators import Aggregate
from minishark.compiler.physical.order import INDEPENDENT_AGGREGATES
from minishark.compiler.physical.plan import Exchange, PhysicalPlan, aggregate_of
from minishark.model.expressions import AggregateCall, Call, Expression, children, is_volatile

_INEXACT_TYPES = ("FLOAT", "DOUBLE")

# fmt: off
UNREPEATABLE = frozenset([
    "current_connection_id", "current_database", "current_date", "current_query",
    "current_query_id", "current_schema", "current_schemas", "current_setting",
    "current_transaction_id", "currval", "error", "gen_random_uuid", "get_current_time",
    "get_current_timestamp", "getvariable", "in_search_path", "nextval", "now", "random",
    "setseed", "setval", "sleep_ms", "stats", "today", "transaction_timestamp", "txid_current",
    "uuid", "uuidv4", "uuidv7", "vector_type", "write_log",
])
# fmt: on
"""Functions of DuckDB's whose values depend on more than their arguments, as its catalog tells."""


def varies(plan: PhysicalPlan) -> bool:
    """Whether the stage that computes `plan` may put out other rows when it runs again."""
    operator = plan.operator
    if isinstance(operator, Exchange):
        return False  # another stage
    aggregate = aggregate_of(operator)
    if aggregate is not None:
        exact = _is_exact(aggregate)
    else:
        exact = not operator.order_matters and not any(map(is_volatile, operator.expressions()))
    return not exact or any(map(varies, plan.children))


def _is_exact(aggregate: Aggregate) -> bool:
    return not any(map(is_volatile, aggregate.expressions())) and all(
        map(_is_exact_call, aggregate.aggregates)
    )


def _is_exact_call(call: AggregateCall) -> bool:
    if call.name not in INDEPENDENT_AGGREGATES:
        return False
    if call.name not in ("sum", "avg"):
        return True
    added = [argument.type for argument in call.arguments]
    if call.name == "sum":
        added.append(call.type)  # DuckDB sums the largest integers as floating-point numbers
    return not any(type_ in _INEXACT_TYPES for type_ in added)


def volatile_call(plan: PhysicalPlan) -> str | None:
    """A function that the stage of `plan` calls whose value may be another in the next statement.

    None if there is none.
    """
    if isinstance(plan.operator, Exchange):
        return None
    aggregate = aggregate_of(plan.operator)
    expressions: list[Expression] = [*plan.operator.expressions()]
    expressions += () if aggregate is None else aggregate.expressions()
    while expressions:
        expression = expressions.pop()
        if isinstance(expression, Call) and expression.name in UNREPEATABLE:
            return expression.name
        expressions += children(expression)
    return next(filter(None, map(volatile_call, plan.children)), None)
