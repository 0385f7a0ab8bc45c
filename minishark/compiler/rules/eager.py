"""Aggregates that begin below a join (eager aggregation; Yan and Larson, VLDB 1995). Pure.

Where all that an aggregate reads comes from one side of a join, and its groups from the other, rows
of that side with equal join keys always go to the same groups. Aggregated in part before the join,
far fewer rows are moved and probed; the second phase follows above it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minishark.compiler.logical.operators import Aggregate, Join, JoinKind
from minishark.compiler.physical.aggregates import combines_results
from minishark.expressions import AggregateCall, ColumnRef, Expression

_EITHER_SIDE = {JoinKind.INNER: (0, 1), JoinKind.LEFT: (1,), JoinKind.RIGHT: (0,)}
"""By the kind of join, the sides that may be aggregated first: rows without a match are lost."""

_NEVER_TOO_LARGE = frozenset(
    [
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    ]
)
_DECIMAL_DIGITS = 18
"""Decimals of so many digits have sums that fit, of however many rows."""


@dataclass(frozen=True, slots=True)
class EagerAggregation:
    """An aggregate over a join in three steps.

    Attributes:
        side: what is aggregated first: 0 for the left input, 1 for the right one.
        keys: its columns that the join compares.
        partial: the aggregate over it, by these keys.
        join: the join of its groups and states with the other input. It gives the groups of the
            whole aggregate and the states, those from the left first.
    """

    side: int
    keys: tuple[ColumnRef, ...]
    partial: Aggregate
    join: Join


def eager_aggregation(aggregate: Aggregate, join: Join) -> EagerAggregation | None:
    """How `aggregate` over `join` can begin below it; None if it can't.

    Args:
        aggregate: of which only plain groups and plain calls will do.
        join: its input, on equal columns.
    """
    if aggregate.grouping_sets or not aggregate.groups:
        return None
    if join.residual or not join.conditions:  # without keys there is a group even of no rows
        return None
    origins = [(0, i) for i in join.left_output] + [(1, i) for i in join.right_output]
    for side in _EITHER_SIDE.get(join.kind, ()):
        keys = _keys(join, side)
        groups = _columns_of(aggregate, origins, 1 - side)
        calls = _calls_of(aggregate, origins, side, join.kind)
        if keys is not None and groups is not None and calls is not None:
            below = _joined(join, side, keys, groups, len(calls))
            return EagerAggregation(side, keys, Aggregate(keys, calls), below)
    return None


def _keys(join: Join, side: int) -> tuple[ColumnRef, ...] | None:
    """A side's columns that the join compares; None if it compares anything else."""
    keys = []
    for condition in join.conditions:
        own, other = condition.left, condition.right
        if side == 1:
            own, other = other, own
        if not isinstance(own, ColumnRef) or not condition.is_equality or own.type != other.type:
            return None
        keys.append(own)
    return tuple(dict.fromkeys(keys))


def _columns_of(
    aggregate: Aggregate, origins: list[tuple[int, int]], side: int
) -> tuple[int, ...] | None:
    """The groups as columns of a side; None if some are anything else."""
    columns = []
    for group in aggregate.groups:
        if not isinstance(group, ColumnRef) or origins[group.index][0] != side:
            return None
        columns.append(origins[group.index][1])
    return tuple(columns)


def _calls_of(
    aggregate: Aggregate, origins: list[tuple[int, int]], side: int, kind: JoinKind
) -> tuple[AggregateCall, ...] | None:
    """The calls over the columns of a side; None if some can't begin there.

    They read bare columns. Anything computed could fail for rows that the join drops; and where an
    outer join adds a row of NULLs, could give something else than NULL.
    """
    calls = []
    for call in aggregate.aggregates:
        columns = [
            replace(each, index=origins[each.index][1])
            for each in call.arguments
            if isinstance(each, ColumnRef) and origins[each.index][0] == side
        ]
        counts_rows = not call.arguments and kind is not JoinKind.INNER
        if len(columns) < len(call.arguments) or counts_rows or not _can_begin(call):
            return None
        calls.append(replace(call, arguments=tuple(columns)))
    return tuple(calls)


def _can_begin(call: AggregateCall) -> bool:
    """Whether results of parts combine to the call's, and none fails that the whole would not."""
    if call.distinct or call.filter or call.order_by or not combines_results(call):
        return False
    return call.name != "sum" or all(_sums_fit(each.type) for each in call.arguments)


def _sums_fit(type_: str) -> bool:
    if type_.startswith("DECIMAL("):
        return int(type_[len("DECIMAL(") :].partition(",")[0]) <= _DECIMAL_DIGITS
    return type_ in _NEVER_TOO_LARGE


def _joined(
    join: Join, side: int, keys: tuple[ColumnRef, ...], groups: tuple[int, ...], states: int
) -> Join:
    """The join with the groups and states of the partial aggregate instead of the side itself."""

    def over_groups(key: Expression) -> ColumnRef:
        return ColumnRef(keys.index(key), key.type)

    given = tuple(range(len(keys), len(keys) + states))
    if side == 0:
        conditions = tuple(replace(c, left=over_groups(c.left)) for c in join.conditions)
        return replace(join, conditions=conditions, left_output=given, right_output=groups)
    conditions = tuple(replace(c, right=over_groups(c.right)) for c in join.conditions)
    return replace(join, conditions=conditions, left_output=groups, right_output=given)
