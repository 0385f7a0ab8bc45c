"""The estimated time and memory of a plan, to choose between one task and several. Pure.

A plan's regions without exchanges are its stages. What a region computes is divided among its
tasks, but for what is replicated: scans of whole tables and hash tables over broadcast rows are
every task's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from minishark.compiler.logical import operators as ops
from minishark.compiler.physical.aggregates import splits
from minishark.compiler.physical.costs import Costs
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import (
    GROUPING,
    Exchange,
    PhysicalPlan,
    Replicated,
    Single,
)
from minishark.model.expressions import (
    AggregateCall,
    Call,
    ColumnRef,
    Expression,
    Infix,
    Schema,
    children,
)

LEAST_TASK_S = 5e-3
"""Tasks with less work than this are mostly overhead."""

MOST_TASK_S = 0.1
"""From this much work on, more tasks than cores balance the load; less is lost with one of them."""

_NS = 1e-9

_ENTRY_BYTES = 32  # of a row in a hash table, besides its values
_WIDTHS = {"VARCHAR": 32, "BLOB": 64, "HUGEINT": 16, "UHUGEINT": 16, "INTERVAL": 16, "UUID": 16}
_NESTED_WIDTH = 64
_WIDTH = 8


def _holds_rows(call: AggregateCall) -> bool:
    """Whether an aggregate holds all values that it reads, as a median or a list does."""
    return call.distinct or not splits(call)


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a plan takes on idle cores, and the CPU time that it costs, in seconds."""

    elapsed_s: float
    cpu_s: float

    def burden_s(self, cores: int) -> float:
        """What a query takes from its user and from others: they wait as long as cores work."""
        return (self.elapsed_s + self.cpu_s / cores) / 2


def estimated(plan: PhysicalPlan, options: PlannerOptions, threads: int = 1) -> Estimate:
    """The estimate of a plan; a task that runs alone may use as many cores as `threads`."""
    costs = options.costs
    elapsed, cpu = costs.stage_s * _depth(plan), 0.0
    for region in _regions(plan):
        work = _region_work(region, costs)
        put_out_s = _put_out_s(region, costs, is_last=region is plan)
        tasks = useful_tasks(work.divided_s + work.repeated_s + put_out_s, options.slots)
        tasks = min(tasks, region.distribution.partitions)
        alone = isinstance(region.distribution, Single | Replicated)
        speed = _speed(min(threads, options.slots) if alone else tasks, options)
        elapsed += work.divided_s / speed + work.repeated_s / (speed if alone else 1.0)
        elapsed += put_out_s / _speed(tasks, options)  # by one thread a task
        cpu += work.divided_s + put_out_s + tasks * (work.repeated_s + costs.task_s)
    return Estimate(elapsed, cpu)


def _speed(busy: int, options: PlannerOptions) -> float:
    """How much faster than one core so many tasks or threads are."""
    return max(1.0, options.costs.beside * min(busy, options.slots))


def _put_out_s(plan: PhysicalPlan, costs: Costs, *, is_last: bool) -> float:
    """What it takes to write the rows of a stage."""
    result_ns = result_values(plan) * costs.put_out_ns
    return (result_ns if is_last else _moved_ns(plan, costs)) * _NS


def _moved_ns(plan: PhysicalPlan, costs: Costs) -> float:
    """What the rows of an exchange cost its writer, or its readers."""
    return plan.rows * costs.moved_ns / 2


def stage_work_s(plan: PhysicalPlan, costs: Costs, *, is_last: bool = False) -> float:
    """The estimated seconds of one core that are divided among the tasks of the stage of `plan`."""
    return _region_work(plan, costs).divided_s + _put_out_s(plan, costs, is_last=is_last)


def useful_tasks(
    work_s: float,
    slots: int,
    least_s: float = LEAST_TASK_S,
    most_s: float = MOST_TASK_S,
) -> int:
    """How many tasks are worth their overhead for some work."""
    return max(1, min(slots, int(work_s / least_s)), ceil(work_s / most_s))


@dataclass(slots=True)
class _Work:
    """Seconds of one core: divided among the tasks of a stage, and repeated in each."""

    divided_s: float = 0.0
    repeated_s: float = 0.0


def _regions(plan: PhysicalPlan) -> Iterator[PhysicalPlan]:
    """The roots of the plan's stages; what several read, once for each."""
    yield plan
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        for child in node.children:
            if isinstance(node.operator, Exchange):
                yield child
            waiting.append(child)


def _region_work(root: PhysicalPlan, costs: Costs) -> _Work:
    """The work of a stage until its rows are put out."""
    work = _Work()
    waiting = [root]
    while waiting:
        plan = waiting.pop()
        if isinstance(plan.operator, Exchange):
            own_s, built_s = _moved_ns(plan, costs) * _NS, 0.0
        else:
            own_s, built_s = _own_s(plan, costs)
            waiting += plan.children
        if isinstance(plan.distribution, Replicated):
            work.repeated_s += own_s + built_s
        else:
            work.divided_s += own_s
            whole = isinstance(_smaller(plan).distribution, Replicated)
            work.repeated_s += built_s if whole else 0.0
            work.divided_s += 0.0 if whole else built_s
    return work


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
        case operator if isinstance(operator, GROUPING):
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
    is_exchange = isinstance(plan.operator, Exchange)
    return is_exchange + max(map(_depth, plan.children), default=0)


def _smaller(plan: PhysicalPlan) -> PhysicalPlan:
    """The child that a join's hash table is built from."""
    return min(plan.children, key=lambda child: child.rows, default=plan)


def _own_s(plan: PhysicalPlan, costs: Costs) -> tuple[float, float]:
    """The seconds of one core that an operator takes, and those to build a join's hash table."""
    if isinstance(plan.operator, ops.Join):
        values = plan.rows * len(plan.schema)
        probed = max(child.rows for child in plan.children) * costs.probed_ns
        built = _smaller(plan).rows * costs.built_ns
        return (probed + values * costs.scanned_ns) * _NS, built * _NS
    return _own_ns(plan, costs) * _NS, 0.0


def _own_ns(plan: PhysicalPlan, costs: Costs) -> float:
    read = [child.rows for child in plan.children]
    match plan.operator:
        case ops.Scan(columns=columns):
            return plan.rows * len(columns) * costs.scanned_ns
        case ops.Filter(predicates=predicates):
            tests = (costs.matched_ns if _matches(p) else costs.scanned_ns for p in predicates)
            return read[0] * sum(tests)
        case ops.Project(outputs=expressions):
            computed = sum(not isinstance(expression, ColumnRef) for expression in expressions)
            return read[0] * computed * costs.computed_ns
        case operator if isinstance(operator, GROUPING):
            grouped = read[0] * len(plan.schema) * costs.grouped_ns
            return grouped + plan.rows * costs.built_ns
        case ops.Sort() | ops.Window():
            return read[0] * costs.sorted_ns
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
