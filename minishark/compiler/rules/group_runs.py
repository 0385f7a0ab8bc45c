"""Aggregates of stored tables whose rows of a group follow one another. Pure.

Orders have their lines one after the other, sessions their events. Groups by such a key need no
hash table, which is most of the time where they are many. Whether rows lie so is seen by tasks,
in the rows; here stands for which aggregates they may look.
"""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

from minishark.catalog import Catalog, Table
from minishark.compiler.logical.operators import Aggregate, GroupRuns, Scan
from minishark.compiler.physical.plan import PartialAggregate, PhysicalPlan
from minishark.expressions import AggregateCall, Cast, ColumnRef, Literal

_INTEGER = re.compile("(?:TINY|SMALL|BIG)INT|INTEGER|U(?:TINY|SMALL)INT|UINTEGER")
_KEY_TYPES = re.compile(rf"{_INTEGER.pattern}|DATE|TIMESTAMP(?:_S|_MS|_NS)?")
_VALUE_TYPES = re.compile(rf"{_INTEGER.pattern}|DECIMAL\((?P<width>\d+),\s*(?P<scale>\d+)\)")
_WIDTH_MAX = 18
"""Decimals of more digits are stored as 128-bit integers."""

_SUM_MAX = 2**62
_ROWS_OF_GROUP_MIN = 2


def with_group_runs(plan: PhysicalPlan, catalog: Catalog, groups_min: float) -> PhysicalPlan:
    """`plan` with what tasks need to know to find groups as runs, where that may pay.

    Args:
        plan: a physical plan.
        catalog: the tables that it scans.
        groups_min: from how many groups on they are worth a look; a few fit into a core's cache.
    """
    children = tuple(with_group_runs(child, catalog, groups_min) for child in plan.children)
    match plan.operator:
        case (Aggregate() as aggregate) | PartialAggregate(complete=aggregate):
            children = (_scanned(children[0], aggregate, catalog, groups_min),)
    if all(new is old for new, old in zip(children, plan.children, strict=True)):
        return plan
    return replace(plan, children=children)


def _scanned(
    plan: PhysicalPlan, aggregate: Aggregate, catalog: Catalog, groups_min: float
) -> PhysicalPlan:
    """What is below an aggregate, which knows its groups if it is a scan."""
    scan = plan.operator
    if not isinstance(scan, Scan) or scan.key_filter is not None or scan.coded:
        return plan
    runs = _group_runs(scan, aggregate, catalog.get(scan.table), groups_min)
    return plan if runs is None else replace(plan, operator=replace(scan, runs=runs))


def _group_runs(
    scan: Scan, aggregate: Aggregate, table: Table, groups_min: float
) -> GroupRuns | None:
    if aggregate.grouping_sets or aggregate.grouping_functions or len(aggregate.groups) != 1:
        return None
    key = _column(aggregate.groups[0], scan, _KEY_TYPES)
    known = key and table.column_statistics(key)
    if not key or not known or not known.distinct or known.distinct < groups_min:
        return None
    if table.rows < _ROWS_OF_GROUP_MIN * known.distinct:
        return None
    values, sum_max = [], 0
    for call in aggregate.aggregates:
        column = _value(call, scan)
        if column is None:
            return None
        values.append((call.name.removesuffix("_star"), column))
        if call.name == "sum":
            largest = _largest(call, table, column)
            if largest is None:
                return None
            sum_max = max(sum_max, largest)
    return GroupRuns(key, tuple(values), sum_max)


def _value(call: AggregateCall, scan: Scan) -> str | None:
    """The column that an aggregate is of, "" for none; None if runs are not aggregated so."""
    if call.distinct or call.filter is not None or call.order_by:
        return None
    match call.name, call.arguments:
        case ("count_star", ()) | ("count", (Literal(value=bool() | int()),)):
            return ""
        case "sum", (Cast(argument=argument, type="BIGINT", lenient=False),):
            return _column(argument, scan, _INTEGER)
        case "count" | "sum" | "min" | "max", (argument,):
            return _column(argument, scan, _VALUE_TYPES)
        case _:
            return None


def _column(expression: object, scan: Scan, types: re.Pattern[str]) -> str | None:
    """The table's column that an expression is, if it is one of certain types."""
    if not isinstance(expression, ColumnRef):
        return None
    found = types.fullmatch(expression.type)
    if found is None or int(found.groupdict().get("width") or 0) > _WIDTH_MAX:
        return None
    return scan.columns[expression.index]


def _largest(call: AggregateCall, table: Table, column: str) -> int | None:
    """How far values are from 0 at most, in units of their last digit; None if that is not known.

    Or if it is so far that sums of a few may be no 64-bit integers.
    """
    known = table.column_statistics(column)
    if known is None or known.minimum is None or known.maximum is None:
        return None
    found = _VALUE_TYPES.fullmatch(call.arguments[0].type)
    scale = int((found and found["scale"]) or 0)
    bounds = (Decimal(text).scaleb(scale) for text in (known.minimum, known.maximum))
    largest = max(abs(int(bound)) for bound in bounds)
    return largest if largest < _SUM_MAX else None
