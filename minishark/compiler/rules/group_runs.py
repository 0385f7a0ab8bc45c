"""Groups stored as runs: the rows of a group follow one another in the table. Pure.

Orders are stored with their lines one after the other, sessions with their events. Groups by such a
key need no hash table, which takes most of the time where there are many groups. Only the rows
tell whether they are stored so: here is decided for which aggregates a task looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from minishark.compiler.hints import GroupRuns, InputGroupRuns
from minishark.compiler.logical.operators import Aggregate, Scan
from minishark.compiler.physical.plan import PartialAggregate, PhysicalPlan
from minishark.compiler.rules.rule import Fragment, Phase, Rule
from minishark.compiler.stages import fragment as sql
from minishark.model.catalog import Catalog, Table
from minishark.model.expressions import AggregateCall, Cast, ColumnRef, Literal

if TYPE_CHECKING:
    from minishark.compiler.stages.fragment import Block
    from minishark.compiler.stages.stage import Stage

_INTEGER = re.compile("(?:TINY|SMALL|BIG)INT|INTEGER|U(?:TINY|SMALL)INT|UINTEGER")
_KEY_TYPES = re.compile(rf"{_INTEGER.pattern}|DATE|TIMESTAMP(?:_S|_MS|_NS)?")
_VALUE_TYPES = re.compile(rf"{_INTEGER.pattern}|DECIMAL\((?P<width>\d+),\s*(?P<scale>\d+)\)")
_WIDTH_MAX = 18
"""Decimals of more digits are stored as 128-bit integers."""

_SUM_MAX = 2**62
"""Values beyond could overflow a 64-bit sum of two."""
_ROWS_OF_GROUP_MIN = 2
"""Of smaller groups, runs are not fewer than rows."""


@dataclass(frozen=True, slots=True)
class GroupRunsOptions:
    """When it pays to look for runs."""

    groups_min: float = 32_000.0  # the least groups; a hash table of fewer fits into a core's cache


def with_group_runs(
    plan: PhysicalPlan, catalog: Catalog, options: GroupRunsOptions
) -> PhysicalPlan:
    """`plan` with what tasks need to know to find groups as runs, where that may pay."""
    children = tuple(with_group_runs(child, catalog, options) for child in plan.children)
    match plan.operator:
        case (Aggregate() as aggregate) | PartialAggregate(complete=aggregate):
            children = (_scanned(children[0], aggregate, catalog, options.groups_min),)
    return plan.with_children(children)


def _scanned(
    plan: PhysicalPlan, aggregate: Aggregate, catalog: Catalog, groups_min: float
) -> PhysicalPlan:
    """The input of an aggregate; if it is a scan, with what is known about its groups."""
    scan = plan.operator
    if not isinstance(scan, Scan):
        return plan
    # Rows that are dropped or grouped by codes are no longer as they are stored.
    if scan.hints.key_filter is not None or scan.hints.dictionary_codes:
        return plan
    runs = _group_runs(scan, aggregate, catalog.get(scan.table), groups_min)
    if runs is None:
        return plan
    return replace(plan, operator=replace(scan, hints=replace(scan.hints, group_runs=runs)))


def _group_runs(
    scan: Scan, aggregate: Aggregate, table: Table, groups_min: float
) -> GroupRuns | None:
    if aggregate.grouping_sets or aggregate.grouping_functions or len(aggregate.groups) != 1:
        return None
    key = _column(aggregate.groups[0], scan, _KEY_TYPES)
    # Files that a query names have no statistics, and are not read as Arrow.
    statistics = key and table.column_statistics(key)
    if not key or not statistics or not statistics.distinct or statistics.distinct < groups_min:
        return None
    # A hash table of few groups is small, and of groups of one row there are no runs.
    if table.rows < _ROWS_OF_GROUP_MIN * statistics.distinct:
        return None
    values, sum_max = [], 0
    for call in aggregate.aggregates:
        column = _value(call, scan)
        if column is None:
            return None
        # count(*) and count(1) count rows, as a count without a column does.
        values.append((call.name.removesuffix("_star"), column))
        if call.name == "sum":
            # numpy wraps around silently where DuckDB would widen the sum.
            largest = _largest(call, table, column)
            if largest is None:
                return None
            sum_max = max(sum_max, largest)
    return GroupRuns(key, tuple(values), sum_max)


def _value(call: AggregateCall, scan: Scan) -> str | None:
    """The column that is aggregated, "" for none; None if a task can't aggregate runs so."""
    if call.distinct or call.filter is not None or call.order_by:
        return None
    match call.name, call.arguments:
        case ("count_star", ()) | ("count", (Literal(value=bool() | int()),)):
            return ""
        # DuckDB's optimizer widens the argument of a sum; the values are the same.
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
    type_match = types.fullmatch(expression.type)
    if type_match is None or int(type_match.groupdict().get("width") or 0) > _WIDTH_MAX:
        return None
    return scan.columns[expression.index]


def _largest(call: AggregateCall, table: Table, column: str) -> int | None:
    """The largest |value|, in units of the last digit; None if it is unknown or may overflow."""
    statistics = table.column_statistics(column)
    if statistics is None or statistics.minimum is None or statistics.maximum is None:
        return None
    match = _VALUE_TYPES.fullmatch(call.arguments[0].type)
    scale = int((match and match["scale"]) or 0)
    bounds = (Decimal(text).scaleb(scale) for text in (statistics.minimum, statistics.maximum))
    largest = max(abs(int(bound)) for bound in bounds)
    return largest if largest < _SUM_MAX else None


def write_groups(plan: PhysicalPlan, fragment: Fragment) -> Block | None:
    """The groups of a scan as a relation, for which each task chooses the SQL that makes it."""
    match plan.operator:
        case Aggregate() | PartialAggregate():
            (child,) = plan.children
            scan = child.operator
        case _:
            return None
    if not isinstance(scan, Scan) or scan.hints.group_runs is None:
        return None
    hint, aliases = scan.hints.group_runs, fragment.aliases
    rows = fragment.block(child)
    # A task looks at the rows before it decides, so all variants of the SQL travel with it.
    name = f"groups{len(fragment.group_runs)}"
    runs = sql.table_block(f"{name}_runs", sql.columns(plan.schema), aliases)
    single = sql.cast_block(runs, plan.schema)
    if isinstance(plan.operator, PartialAggregate):
        # The final phase merges equal groups anyway.
        hashed, merged = sql.partial_block(plan.operator.complete, rows, aliases), single
    else:
        hashed = sql.aggregate_block(plan.operator, rows, aliases)
        merged = sql.final_block(plan.operator, runs, aliases)
    fragment.group_runs.append(
        InputGroupRuns(
            name=name,
            input=fragment.scanned(child, scan),
            key=hint.key,
            values=hint.values,
            sum_max=hint.sum_max,
            hashed=sql.select(hashed),
            merged=sql.select(merged),
            single=sql.select(single),
        )
    )
    return sql.table_block(name, sql.columns(plan.schema), aliases)


def _explain(stage: Stage) -> Iterator[str]:
    for group_run in stage.hints.group_runs:
        yield f"checks whether {group_run.name} are runs of {group_run.key} in {group_run.input}"


GROUP_RUNS = Rule(
    name="group_runs",
    doc="find groups whose rows follow one another in a table without a hash table",
    phase=Phase.PHYSICAL,
    apply=with_group_runs,
    options=GroupRunsOptions(),
    everywhere=GroupRunsOptions(groups_min=0.0),
    lower=write_groups,
    explain=_explain,
)
