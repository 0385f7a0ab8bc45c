"""Aggregates that begin below a join (eager aggregation; Yan and Larson, VLDB 1995). Pure.

Where all that an aggregate reads comes from one side of a join, and its groups from the other, rows
of that side with equal join keys always go to the same groups. Aggregated in part before the join,
far fewer rows are moved and probed; the second phase follows above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from minishark.expressions import AggregateCall, ColumnRef, Expression, references, transform
from minishark.logical.operators import Aggregate, Join, JoinKind
from minishark.physical.aggregates import combines_results

_EITHER_SIDE = {JoinKind.INNER: (0, 1), JoinKind.LEFT: (1,), JoinKind.RIGHT: (0,)}
"""By the kind of join, the sides that may be aggregated first: rows without a match are lost."""


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
    if aggregate.grouping_sets or not aggregate.groups or join.residual:
        return None
    origins = [(0, i) for i in join.left_output] + [(1, i) for i in join.right_output]
    for side in _EITHER_SIDE.get(join.kind, ()):
        keys = _keys(join, side)
        groups = _columns_of(aggregate, origins, 1 - side)
        calls = tuple(_calls_of(aggregate, origins, side))
        may_begin = all(_can_begin(call, join.kind) for call in calls)
        if keys is None or groups is None or len(calls) < len(aggregate.aggregates):
            continue
        if may_begin:
            partial = Aggregate(keys, calls)
            below = _joined(join, side, keys, groups, len(calls))
            return EagerAggregation(side, keys, partial, below)
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
    aggregate: Aggregate, origins: list[tuple[int, int]], side: int
) -> Iterator[AggregateCall]:
    """The calls that read a side only, over its columns."""
    for call in aggregate.aggregates:
        read = [ref for argument in call.arguments for ref in references(argument)]
        if all(origins[ref.index][0] == side for ref in read):
            yield replace(
                call,
                arguments=tuple(
                    transform(a, lambda ref: replace(ref, index=origins[ref.index][1]))
                    for a in call.arguments
                ),
            )


def _can_begin(call: AggregateCall, kind: JoinKind) -> bool:
    """Whether results of parts combine to the call's, though an outer join adds a row of NULLs."""
    plain = not (call.distinct or call.filter or call.order_by)
    counts_rows = not call.arguments and kind is not JoinKind.INNER
    return plain and not counts_rows and combines_results(call)


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
