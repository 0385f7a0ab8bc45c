"""What a query needs of sources is told to them before they choose what to read. Pure.

A source leaves out files by partition values and column bounds, and reads some columns only. It is
asked for what it can decide: comparisons of a column with constants of the column's own type. The
query evaluates all predicates again, so a source may ignore any of them.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from minishark.compiler.hints import SourceScan
from minishark.compiler.logical import operators as ops
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.rules.rule import Phase, Rule
from minishark.model.expressions import (
    ColumnRef,
    Expression,
    Infix,
    InList,
    IsNull,
    Literal,
    Prefix,
)
from minishark.model.predicates import Comparison, Predicate, Pushed

_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_BOUNDED_ABOVE = (Comparison.EQUAL, Comparison.LESS, Comparison.LESS_OR_EQUAL, Comparison.IN)
"""Comparisons that are false for NaN, which DuckDB takes for the largest number.

Sources keep bounds without NaN, so that others can't be decided by them.
"""

_NUMBER = re.compile(r"CAST\((-?[\d.]+) AS DECIMAL\(.*\)\)")
_MICROSECONDS = re.compile(r"make_timestamp\(CAST\((-?\d+) AS BIGINT\)\)")
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - TIMESTAMP has no time zone


def push(plan: LogicalPlan, sources: Mapping[str, str], _: None) -> LogicalPlan:
    """The plan whose scans say what they need.

    Args:
        plan: a logical plan.
        sources: the names of sources, by the tables that stand for them, in lower case.
    """
    return _pushed(plan, (), None, sources)


def predicates_of(
    plan: LogicalPlan, tables: Collection[str]
) -> Mapping[str, tuple[tuple[Predicate, ...], ...]]:
    """Conditions of a column with constants that rows meet which a plan needs of a table.

    By the tables' names, in lower case: those of each place that reads it, of which a row meets all
    of one place at least. None of a table if there is a place without.
    """
    pushed = push(plan, dict.fromkeys(tables, ""), None)
    told: dict[str, list[tuple[Predicate, ...]]] = {}
    for scan in pushed.operators():
        if isinstance(scan, ops.Scan) and scan.hints.source is not None:
            told.setdefault(scan.table.lower(), []).append(scan.hints.source.pushed.predicates)
    return {name: tuple(places) for name, places in told.items() if all(places)}


def _pushed(
    plan: LogicalPlan,
    predicates: tuple[Expression, ...],
    limit: int | None,
    sources: Mapping[str, str],
) -> LogicalPlan:
    """The plan, of whose rows those are needed for which the predicates are true, or some."""
    match plan.operator:
        case ops.Scan() as scan if (source := sources.get(scan.table.lower())) is not None:
            told = [_predicate(predicate, scan) for predicate in predicates]
            pushed = Pushed(
                columns=tuple(dict.fromkeys(name for name in scan.columns if name is not None)),
                predicates=tuple(predicate for predicate in told if predicate is not None),
                # Rows that only the query can test do not count towards a limit.
                limit=None if None in told else limit,
            )
            hints = replace(scan.hints, source=SourceScan(source, pushed))
            return replace(plan, operator=replace(scan, hints=hints))
        case ops.Filter(predicates=conditions):
            # A limit holds for the rows above all predicates, and they are told of one filter's.
            left = None if predicates else limit
            return plan_over(plan, [_pushed(plan.children[0], conditions, left, sources)])
        case ops.Project():
            # Predicates above speak of what it computes; each of its rows is one of those below.
            left = None if predicates else limit
            return plan_over(plan, [_pushed(plan.children[0], (), left, sources)])
        case ops.Limit(limit=int(count), offset=offset):
            return plan_over(plan, [_pushed(plan.children[0], (), count + offset, sources)])
        case _:
            # A row of a join or a group may come from any of the rows below.
            return plan_over(plan, [_pushed(child, (), None, sources) for child in plan.children])


def plan_over(plan: LogicalPlan, children: Iterable[LogicalPlan]) -> LogicalPlan:
    """The plan over other children; the same object if they are the same."""
    planned = tuple(children)
    if all(new is old for new, old in zip(planned, plan.children, strict=True)):
        return plan
    return replace(plan, children=planned)


def _predicate(expression: Expression, scan: ops.Scan) -> Predicate | None:
    """A predicate over a scan's columns in the form that sources take; None if it has none."""
    match expression:
        case Infix(operator, (ColumnRef() as column, Literal() as literal)) if (
            operator in _MIRRORED
        ):
            return _comparison(scan, column, operator, [literal])
        case Infix(operator, (Literal() as literal, ColumnRef() as column)) if (
            operator in _MIRRORED
        ):
            return _comparison(scan, column, _MIRRORED[operator], [literal])
        case InList(ColumnRef() as column, options, negated=False):
            return _comparison(scan, column, Comparison.IN, options)
        case Infix("OR", branches):
            return _one_of([_predicate(branch, scan) for branch in branches])
        case ColumnRef(type="BOOLEAN") as column:
            return _boolean(scan, column, value=True)
        case Prefix("NOT", ColumnRef() as column):
            return _boolean(scan, column, value=False)
        case IsNull(ColumnRef() as column, negated):
            name = scan.columns[column.index]
            kind = Comparison.IS_NOT_NULL if negated else Comparison.IS_NULL
            return None if name is None else Predicate(name, kind)
        case _:
            return None


def _boolean(scan: ops.Scan, column: ColumnRef, *, value: bool) -> Predicate | None:
    name = scan.columns[column.index]
    return None if name is None else Predicate(name, Comparison.EQUAL, (value,))


def _one_of(branches: Sequence[Predicate | None]) -> Predicate | None:
    """Predicates of which one has to be true, if they say what one column may be equal to."""
    predicates = [branch for branch in branches if branch is not None]
    columns = {branch.column for branch in predicates}
    are_values = all(b.comparison in (Comparison.EQUAL, Comparison.IN) for b in predicates)
    # A branch that the source can't test may be true of any row.
    if len(predicates) < len(branches) or len(columns) > 1 or not are_values:
        return None
    values = dict.fromkeys(value for branch in predicates for value in branch.values)
    return Predicate(columns.pop(), Comparison.IN, tuple(values))


def _comparison(
    scan: ops.Scan, column: ColumnRef, comparison: str, options: Iterable[Expression]
) -> Predicate | None:
    name, values = scan.columns[column.index], list(_values(options, column.type))
    kind = Comparison(comparison)
    if name is None or None in values:
        return None
    if column.type in ("FLOAT", "DOUBLE") and kind not in _BOUNDED_ABOVE:
        return None
    return Predicate(name, kind, tuple(values))


def _values(options: Iterable[Expression], type_: str) -> Iterator[Any]:
    """Constants as Python has them; None for what is none, or of another type."""
    for option in options:
        same = isinstance(option, Literal) and option.type == type_
        yield _value(option) if isinstance(option, Literal) and same else None


def _value(literal: Literal) -> Any:
    match literal.type:
        case "BOOLEAN":
            return {"true": True, "false": False}.get(literal.sql)
        case "DATE" if isinstance(literal.value, str):
            return dt.date.fromisoformat(literal.value)
        case "TIMESTAMP" if (match := _MICROSECONDS.fullmatch(literal.sql)) is not None:
            try:
                return _EPOCH + dt.timedelta(microseconds=int(match[1]))
            except OverflowError:
                return None
        case "FLOAT" | "DOUBLE":
            is_number = isinstance(literal.value, float) and math.isfinite(literal.value)
            return literal.value if is_number else None
        case type_ if type_.startswith("DECIMAL("):
            exact = _NUMBER.fullmatch(literal.sql)
            return None if exact is None else Decimal(exact[1])
        case "VARCHAR":
            return literal.value
        case _:
            return literal.value if isinstance(literal.value, int) else None


SOURCE_PUSHDOWN = Rule(
    name="source_pushdown",
    doc="read only the columns, files and parts of sources that a query may need",
    phase=Phase.SOURCES,
    apply=push,
)
