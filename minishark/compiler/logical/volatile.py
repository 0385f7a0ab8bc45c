"""Functions that give another value at each call (random, uuid ...) and what they rule out.

A distributed plan may compute an expression in several tasks, or once for a shuffle and once more
for the join above it. A volatile function would give another value each time.
"""

from __future__ import annotations

from collections.abc import Iterator

from minishark.compiler.logical import operators as ops
from minishark.compiler.logical.plan import LogicalPlan
from minishark.expressions import Call, children, is_volatile

_ROW_BY_ROW = (ops.Filter, ops.Project)
# Operators that compute nothing twice. Lists of what is allowed, so that a new operator is not.
_HARMLESS = (*_ROW_BY_ROW, ops.Scan, ops.Aggregate, ops.Sort, ops.TopN, ops.Limit, ops.Distinct)


def volatile_reason(plan: LogicalPlan) -> str | None:
    """Why `plan` must not be distributed, if it calls volatile functions; None if it may be."""
    # It may be if they are computed row by row, over a table, and nothing but aggregates, sorts and
    # limits comes after.
    operators = list(plan.operators())
    callers = [o for o in operators if any(map(is_volatile, o.expressions()))]
    if not callers:
        return None
    others = [o for o in operators if not isinstance(o, _HARMLESS)]
    if others or not all(isinstance(caller, _ROW_BY_ROW) for caller in callers):
        return "a volatile function such as random()"
    return None


def called_functions(plan: LogicalPlan) -> Iterator[str]:
    waiting = [expression for operator in plan.operators() for expression in operator.expressions()]
    while waiting:
        expression = waiting.pop()
        if isinstance(expression, Call):
            yield expression.name
        waiting += children(expression)
