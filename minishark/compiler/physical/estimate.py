"""Rough row counts, good enough to choose between broadcast and shuffle.

Textbook rules (Selinger et al., SIGMOD 1979): uniform values, independent predicates, the smaller
key domain contained in the larger one. DuckDB has ordered the joins already; nothing here
changes an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minishark.compiler.logical.operators import Join, JoinKind
from minishark.model.catalog import ColumnStatistics
from minishark.model.expressions import (
    Cast,
    ColumnRef,
    Expression,
    Infix,
    InList,
    IsNull,
    Literal,
    Prefix,
    children,
)

_RANGE_SELECTIVITY = 0.3
_OTHER_SELECTIVITY = 0.25
_SEMI_SELECTIVITY = 0.5
_PREFIX_SELECTIVITY = 0.01  # of text with a prefix of three letters or more
_BELOW = ("<", "<=")


@dataclass(frozen=True, slots=True)
class Profile:
    """Estimated rows of a relation, and the known statistics of its output columns."""

    rows: float
    columns: tuple[ColumnStatistics | None, ...]

    def distinct(self, expression: Expression) -> float:
        while isinstance(expression, Cast):
            expression = expression.argument
        if isinstance(expression, Literal):
            return 1.0
        if isinstance(expression, ColumnRef):
            column = self.columns[expression.index]
            if column is not None and column.distinct is not None:
                return max(1.0, min(float(column.distinct), self.rows))
            return max(1.0, self.rows)
        inner = [self.distinct(child) for child in children(expression)]
        return max(1.0, min(self.rows, max(inner, default=self.rows)))


def selectivity(predicate: Expression, profile: Profile) -> float:
    """The share of rows for which `predicate` is true, between 0 and 1."""
    match predicate:
        case Infix(operator="AND", arguments=arguments):
            return _all_share(arguments, profile)
        case Infix(operator="OR", arguments=arguments):
            return min(1.0, sum(selectivity(argument, profile) for argument in arguments))
        case Prefix(operator="NOT", argument=argument):
            return 1.0 - selectivity(argument, profile)
        case Infix(operator="=" | "IS NOT DISTINCT FROM", arguments=(left, _)):
            return 1.0 / profile.distinct(left)
        case Infix(operator="<>" | "IS DISTINCT FROM", arguments=(left, _)):
            return 1.0 - 1.0 / max(2.0, profile.distinct(left))
        case Infix(operator="<" | "<=" | ">" | ">=", arguments=(left, right)):
            below = _share_below(left, right, profile)
            if below is None:
                return _RANGE_SELECTIVITY
            return below if predicate.operator in _BELOW else 1.0 - below
        case InList(argument=argument, options=options, negated=negated):
            share = min(1.0, len(options) / profile.distinct(argument))
            return 1.0 - share if negated else share
        case Infix(operator="!~~"):
            return 1.0 - _OTHER_SELECTIVITY
        case IsNull(negated=negated):
            return 0.95 if negated else 0.05
        case _:
            return _OTHER_SELECTIVITY


def _all_share(predicates: Sequence[Expression], profile: Profile) -> float:
    """The share of rows for which all `predicates` are true."""
    # Predicates count as independent, except the two ends of a range of one column.
    share = 1.0
    ranges: dict[int, tuple[float, float]] = {}
    lows: dict[int, str] = {}
    for predicate in predicates:
        match predicate:
            case Infix(
                operator=">=",
                arguments=(ColumnRef(index=column, type="VARCHAR"), Literal(value=str(value))),
            ):
                lows[column] = value
                share *= _RANGE_SELECTIVITY
            case Infix(
                operator="<",
                arguments=(ColumnRef(index=column, type="VARCHAR"), Literal(value=str(value))),
            ) if _are_prefix_bounds(lows.get(column, ""), value):
                share *= _PREFIX_SELECTIVITY / _RANGE_SELECTIVITY
            case Infix(
                operator="<" | "<=" | ">" | ">=" as operator,
                arguments=(ColumnRef(index=column) as left, right),
            ) if (below := _share_below(left, right, profile)) is not None:
                low, high = ranges.get(column, (0.0, 1.0))
                is_end = operator in _BELOW
                ranges[column] = (low, min(high, below)) if is_end else (max(low, below), high)
            case _:
                share *= selectivity(predicate, profile)
    for low, high in ranges.values():
        share *= max(0.0, high - low)
    return share


def _are_prefix_bounds(low: str, high: str) -> bool:
    """Whether all text from `low` to below `high` begins with `low`, of three letters or more."""
    # DuckDB writes LIKE 'forest%' as such a range.
    if len(low) < 3 or low[:-1] != high[:-1] or len(low) != len(high):
        return False
    return ord(low[-1]) + 1 == ord(high[-1])


def _share_below(left: Expression, right: Expression, profile: Profile) -> float | None:
    """The share of a column's values below a constant, from its minimum and maximum."""
    if not isinstance(left, ColumnRef) or not isinstance(right, Literal):
        return None
    column = profile.columns[left.index]
    if column is None:
        return None
    low, high, value = map(_number, (column.minimum, column.maximum, right.value))
    if low is None or high is None or value is None or high <= low:
        return None
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _number(value: str | float | None) -> float | None:
    """A number for a numeric bound, or for an ISO date; None for other text."""
    if isinstance(value, str):
        text = value.removeprefix("DATE ").strip("'")
        parts = text[:10].split("-")
        if len(parts) == 3 and all(part.isdigit() for part in parts):
            year, month, day = map(int, parts)
            return year * 365.25 + month * 30.44 + day
        try:
            return float(text)
        except ValueError:
            return None
    return None if value is None else float(value)


def filtered_rows(predicates: Sequence[Expression], profile: Profile) -> float:
    return max(1.0, profile.rows * _all_share(predicates, profile))


def joined_rows(join: Join, left: Profile, right: Profile) -> float:
    pairs = left.rows * right.rows
    for condition in join.conditions:
        if condition.is_equality:
            pairs /= max(left.distinct(condition.left), right.distinct(condition.right))
        else:
            pairs *= _RANGE_SELECTIVITY
    pairs *= _OTHER_SELECTIVITY ** len(join.residual)
    match join.kind:
        case JoinKind.INNER:
            rows = pairs
        case JoinKind.LEFT:
            rows = max(pairs, left.rows)
        case JoinKind.RIGHT:
            rows = max(pairs, right.rows)
        case JoinKind.FULL:
            rows = max(pairs, left.rows + right.rows)
        case JoinKind.SEMI:
            rows = min(left.rows, pairs)
        case JoinKind.RIGHT_SEMI:
            rows = min(right.rows, pairs)
        case JoinKind.ANTI:
            rows = left.rows * _SEMI_SELECTIVITY
        case JoinKind.RIGHT_ANTI:
            rows = right.rows * _SEMI_SELECTIVITY
        case JoinKind.MARK | JoinKind.SINGLE:
            rows = left.rows
    return max(1.0, rows)


def grouped_rows(groups: Sequence[Expression], profile: Profile) -> float:
    product = 1.0
    for group in groups:
        product *= profile.distinct(group)
    return max(1.0, min(product, profile.rows))


def joined_columns(
    join: Join, left: Profile, right: Profile
) -> tuple[ColumnStatistics | None, ...]:
    kept: tuple[ColumnStatistics | None, ...] = ()
    if join.keeps_left_columns:
        kept += tuple(left.columns[i] for i in join.left_output)
    if join.keeps_right_columns:
        kept += tuple(right.columns[i] for i in join.right_output)
    return (*kept, None) if join.kind is JoinKind.MARK else kept
