"""About how long a plan takes, to tell whether one task is done before several would be. Pure.

The weights were fitted to the times of single-threaded queries over Arrow in memory; only their
proportions matter, and they are rough on purpose: rows are estimates too.
"""

from __future__ import annotations

from minishark.expressions import Call, ColumnRef, Expression, Infix, children
from minishark.logical.operators import (
    Aggregate,
    Distinct,
    DistinctOn,
    Filter,
    Join,
    Project,
    Scan,
    Sort,
    Window,
)
from minishark.physical.plan import (
    Broadcast,
    Exchange,
    FinalAggregate,
    Gather,
    Materialize,
    PartialAggregate,
    PhysicalPlan,
    RangeShuffle,
    Replicated,
    Shuffle,
    Single,
)

STAGE_S = 5e-3
"""What one stage after another takes besides its tasks' work: placing, binding, storing."""

_SHARED_CORE = 0.8
"""How fast a task is beside others: they share memory bandwidth and caches."""

_NS = 1e-9
_SCANNED_NS = 1.0  # per value
_COMPUTED_NS = 5.0  # per value of an expression
_MATCHED_NS = 50.0  # per value that a function or a pattern tests
_BUILT_NS = 100.0  # per row of a hash table, of joins or groups
_PROBED_NS = 5.0  # per row
_GROUPED_NS = 2.5  # per value of groups and aggregates
_SORTED_NS = 100.0  # per row
_MOVED_NS = 20.0  # per row that is written and read again


def elapsed_s(plan: PhysicalPlan) -> float:
    """About how many seconds a plan takes where a core is free for each task."""
    return _work_s(plan) + STAGE_S * _depth(plan)


def _depth(plan: PhysicalPlan) -> int:
    """How many exchanges come one after the other."""
    own = isinstance(plan.operator, Exchange)
    return own + max(map(_depth, plan.children), default=0)


def _work_s(plan: PhysicalPlan) -> float:
    own = _own_ns(plan) * _NS / _speed(plan)
    return own + sum(map(_work_s, plan.children))


def _speed(plan: PhysicalPlan) -> float:
    """How much faster than one task those are that compute the plan's operator."""
    if isinstance(plan.operator, Exchange):
        plan = plan.children[0]  # whose tasks write what is exchanged
    if isinstance(plan.distribution, Single | Replicated):
        return 1.0
    return max(1.0, _SHARED_CORE * plan.distribution.partitions)


def _own_ns(plan: PhysicalPlan) -> float:
    """The work of a plan's own operator."""
    read = [child.rows for child in plan.children]
    match plan.operator:
        case Scan(columns=columns):
            return plan.rows * len(columns) * _SCANNED_NS
        case Filter(predicates=predicates):
            return read[0] * sum(map(_predicate_ns, predicates))
        case Project(expressions=expressions):
            computed = sum(not isinstance(expression, ColumnRef) for expression in expressions)
            return read[0] * computed * _COMPUTED_NS
        case Join():
            values = plan.rows * len(plan.schema)
            return min(read) * _BUILT_NS + max(read) * _PROBED_NS + values * _SCANNED_NS
        case Aggregate() | PartialAggregate() | FinalAggregate() | Distinct() | DistinctOn():
            return read[0] * len(plan.schema) * _GROUPED_NS + plan.rows * _BUILT_NS
        case Sort() | Window():
            return read[0] * _SORTED_NS
        case Shuffle() | RangeShuffle() | Broadcast() | Gather() | Materialize():
            return plan.rows * _MOVED_NS
        case _:
            return 0.0


def _predicate_ns(predicate: Expression) -> float:
    return _MATCHED_NS if _matches(predicate) else _SCANNED_NS


def _matches(expression: Expression) -> bool:
    """Whether text is matched with a pattern, or a function called."""
    match expression:
        case Call():
            return True
        case Infix(operator=operator) if "~" in operator:
            return True
        case _:
            return any(map(_matches, children(expression)))
