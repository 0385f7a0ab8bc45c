"""Functions with another value at each call (random, uuid ...) and what they forbid.

A distributed plan may compute an expression in several tasks, or once for a shuffle and once more
for the join behind it. For a volatile function that would be another value each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from minishark.compiler.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    DistinctOn,
    Filter,
    Join,
    Limit,
    Operator,
    Project,
    Scan,
    SetOperation,
    Sort,
    Statement,
    TopN,
    Unnest,
    Values,
    Window,
)
from minishark.compiler.logical.plan import LogicalPlan
from minishark.expressions import Call, Expression, children, is_volatile

_ROW_BY_ROW = (Filter, Project)
_HARMLESS = (Scan, Filter, Project, Aggregate, Sort, TopN, Limit, Distinct)


def volatile_reason(plan: LogicalPlan) -> str | None:
    """Why `plan` must not be distributed, if it calls volatile functions; None if it may be.

    It may be if they are computed row by row, over a table, and nothing but aggregates, sorts and
    limits comes after.
    """
    operators = list(_operators(plan))
    callers = [o for o in operators if any(map(is_volatile, expressions_of(o)))]
    if not callers:
        return None
    others = [o for o in operators if not isinstance(o, _HARMLESS)]
    if others or not all(isinstance(caller, _ROW_BY_ROW) for caller in callers):
        return "a volatile function such as random()"
    return None


def called_functions(plan: LogicalPlan) -> Iterator[str]:
    """The names of the functions that `plan` calls, with repetitions."""
    waiting = [e for operator in _operators(plan) for e in expressions_of(operator)]
    while waiting:
        expression = waiting.pop()
        if isinstance(expression, Call):
            yield expression.name
        waiting += children(expression)


def _operators(plan: LogicalPlan) -> Iterator[Operator]:
    yield plan.operator
    for child in plan.children:
        yield from _operators(child)


def expressions_of(operator: Operator) -> Iterator[Expression]:
    """Every expression that `operator` computes."""
    match operator:
        case Filter(predicates=expressions) | Project(expressions=expressions):
            yield from expressions
        case Aggregate(groups=groups, aggregates=calls):
            yield from groups
            for call in calls:
                yield from call.arguments
                yield from () if call.filter is None else (call.filter,)
                yield from (key.expression for key in call.order_by)
        case Join(conditions=conditions, residual=residual):
            for condition in conditions:
                yield from (condition.left, condition.right)
            yield from residual
        case Sort(keys=keys) | TopN(keys=keys):
            yield from (key.expression for key in keys)
        case DistinctOn(targets=targets, keys=keys):
            yield from targets
            yield from (key.expression for key in keys)
        case Window(calls=windows):
            for window in windows:
                yield from window.arguments
                yield from window.partition_by
                yield from (key.expression for key in window.order_by)
                yield from () if window.filter is None else (window.filter,)
        case Unnest(lists=lists):
            yield from lists
        case Values(rows=rows):
            yield from (value for row in rows for value in row)
        case Scan() | Limit() | Distinct() | SetOperation() | Cte() | CteRef() | Statement():
            return
        case _:
            assert_never(operator)
