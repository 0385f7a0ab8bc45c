"""The estimated time and memory of a plan, to choose between one task and several. Pure.

The weights were fitted to the times of single-threaded queries over Arrow in memory. Only their
proportions matter, and they are rough on purpose: row counts are estimates too.
"""

from __future__ import annotations

from minishark.compiler.logical import operators as ops
from minishark.compiler.physical.aggregates import splits
from minishark.compiler.physical.plan import (
    Exchange,
    FinalAggregate,
    PartialAggregate,
    PhysicalPlan,
    Replicated,
    Single,
)
from minishark.expressions import (
    AggregateCall,
    Call,
    ColumnRef,
    Expression,
    Infix,
    Schema,
    children,
)

STAGE_S = 5e-3
"""The latency of one more stage in sequence: placing, binding, storing."""

_SHARED_CORE = 0.8
"""The speed of a core beside busy ones: they share memory bandwidth and caches."""

_NS = 1e-9
_SCANNED_NS = 1.0  # per value
_COMPUTED_NS = 5.0  # per value of an expression
_MATCHED_NS = 50.0  # per value that a function or a pattern tests
_BUILT_NS = 100.0  # per row of a hash table, of joins or groups
_PROBED_NS = 5.0  # per row
_GROUPED_NS = 2.5  # per value of groups and aggregates
_SORTED_NS = 100.0  # per row
_MOVED_NS = 20.0  # per row that is written and read again
_PUT_OUT_NS = 5.0  # per value of the result

_ENTRY_BYTES = 32  # of a row in a hash table, besides its values
_WIDTHS = {"VARCHAR": 32, "BLOB": 64, "HUGEINT": 16, "UHUGEINT": 16, "INTERVAL": 16, "UUID": 16}
_NESTED_WIDTH = 64
_WIDTH = 8

_GROUPING = (ops.Aggregate, PartialAggregate, FinalAggregate, ops.Distinct, ops.DistinctOn)


def _holds_rows(call: AggregateCall) -> bool:
    """Whether an aggregate holds all values that it reads, as a median or a list does."""
    return call.distinct or not splits(call)


def elapsed_s(plan: PhysicalPlan, threads: int = 1) -> float:
    """The estimated seconds that a plan takes if there is a free core for each task.

    A task that runs alone may use `threads` cores.
    """
    written = result_values(plan) * _PUT_OUT_NS * _NS / _speed(plan, 1)  # by one thread a task
    return _work_s(plan, threads) + written + STAGE_S * _depth(plan)


def stage_work_s(plan: PhysicalPlan) -> float:
    """The estimated seconds that all tasks of the stage of `plan` take together, on one core."""
    if isinstance(plan.operator, Exchange):
        return _own_ns(plan) * _NS  # written by one stage, and read by another
    return _own_ns(plan) * _NS + sum(map(stage_work_s, plan.children))


def written_s(plan: PhysicalPlan) -> float:
    """The estimated seconds that it takes to divide the rows of `plan` into buckets."""
    return plan.rows * _MOVED_NS * _NS


def result_values(plan: PhysicalPlan) -> float:
    return plan.rows * len(plan.schema)


def row_bytes(schema: Schema) -> int:
    return sum(_width(column.type) for column in schema)


def _width(type_: str) -> int:
    if type_.endswith("]") or ("(" in type_ and not type_.startswith("DECIMAL")):
        return _NESTED_WIDTH
    return _WIDTHS.get(type_, _WIDTH)


def held_bytes(plan: PhysicalPlan) -> float:
    """The estimated bytes of all hash tables and sorts of a plan, as if they existed at once."""
    return _own_bytes(plan) + sum(map(held_bytes, plan.children))


def _own_bytes(plan: PhysicalPlan) -> float:
    match plan.operator:
        case ops.Join():
            return min(map(built_bytes, plan.children))
        case ops.Aggregate() if any(map(_holds_rows, plan.operator.aggregates)):
            return built_bytes(plan.children[0])
        case operator if isinstance(operator, _GROUPING):
            return built_bytes(plan)
        case ops.Sort() | ops.Window():
            return built_bytes(plan.children[0])
        case _:
            return 0.0


def built_bytes(plan: PhysicalPlan) -> float:
    """The estimated bytes of a hash table or a sort over a plan's rows."""
    return plan.rows * (row_bytes(plan.schema) + _ENTRY_BYTES)


def _depth(plan: PhysicalPlan) -> int:
    """How many exchanges follow one another."""
    own = isinstance(plan.operator, Exchange)
    return own + max(map(_depth, plan.children), default=0)


def _work_s(plan: PhysicalPlan, threads: int) -> float:
    own = _own_ns(plan) * _NS / _speed(plan, threads)
    return own + sum(_work_s(child, threads) for child in plan.children)


def _speed(plan: PhysicalPlan, threads: int) -> float:
    """How much faster than one core the cores are that compute the plan's operator."""
    if isinstance(plan.operator, Exchange):
        plan = plan.children[0]  # its tasks write what is exchanged
    alone = isinstance(plan.distribution, Single | Replicated)
    cores = threads if alone else plan.distribution.partitions
    return max(1.0, _SHARED_CORE * cores)


def _own_ns(plan: PhysicalPlan) -> float:
    read = [child.rows for child in plan.children]
    match plan.operator:
        case ops.Scan(columns=columns):
            return plan.rows * len(columns) * _SCANNED_NS
        case ops.Filter(predicates=predicates):
            return read[0] * sum(_MATCHED_NS if _matches(p) else _SCANNED_NS for p in predicates)
        case ops.Project(outputs=expressions):
            computed = sum(not isinstance(expression, ColumnRef) for expression in expressions)
            return read[0] * computed * _COMPUTED_NS
        case ops.Join():
            values = plan.rows * len(plan.schema)
            return min(read) * _BUILT_NS + max(read) * _PROBED_NS + values * _SCANNED_NS
        case operator if isinstance(operator, _GROUPING):
            return read[0] * len(plan.schema) * _GROUPED_NS + plan.rows * _BUILT_NS
        case ops.Sort() | ops.Window():
            return read[0] * _SORTED_NS
        case Exchange():
            return plan.rows * _MOVED_NS
        case _:
            return 0.0


def _matches(expression: Expression) -> bool:
    """Whether a predicate matches text with a pattern, or calls a function."""
    match expression:
        case Call():
            return True
        case Infix(operator=operator) if "~" in operator:
            return True
        case _:
            return any(map(_matches, children(expression)))
