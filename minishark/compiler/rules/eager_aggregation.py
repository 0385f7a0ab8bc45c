"""Eager aggregation: aggregates that begin below a join (Yan and Larson, VLDB 1995). Pure.

Where everything that an aggregate reads comes from one side of a join, and its groups from the
other, rows of that side with equal join keys always go to the same groups. Pre-aggregated below the
join, far fewer rows are moved and probed; the second phase follows above it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minishark.compiler.logical.operators import Aggregate, Join, JoinKind, Project
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.physical.aggregates import combines_results
from minishark.compiler.physical.estimate import Profile, grouped_rows, joined_rows
from minishark.compiler.physical.exchanges import Planned
from minishark.compiler.rules.rule import Phase, Placer, Rule
from minishark.model.expressions import AggregateCall, ColumnRef, Expression

_KEPT_MIN = 0.5
"""The share of its rows that the join must keep: rows that it drops are aggregated in vain."""

_EITHER_SIDE = {JoinKind.INNER: (0, 1), JoinKind.LEFT: (1,), JoinKind.RIGHT: (0,)}
"""By kind of join, the sides that may be aggregated first: an unmatched row of the other side must
not get a group of its own."""

_NEVER_TOO_LARGE = frozenset(
    [
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    ]
)
_DECIMAL_DIGITS = 18
"""Sums of decimals with at most this many digits fit into 128 bits, for any number of rows."""


@dataclass(frozen=True, slots=True)
class EagerAggregationOptions:
    """When pre-aggregation pays."""

    # How many times fewer rows the pre-aggregated side must have; 0 for wherever it is possible.
    gain_min: float = 3.0


@dataclass(frozen=True, slots=True)
class EagerAggregation:
    """An aggregate over a join in three steps."""

    side: int  # the input that is pre-aggregated: 0 for the left one, 1 for the right one
    keys: tuple[ColumnRef, ...]  # its columns that the join compares
    partial: Aggregate  # the aggregate over it, grouped by these keys
    # The join of its groups and states with the other input. Its output are the groups of the whole
    # aggregate and the states, those of the left input first.
    join: Join


def aggregate_below_join(
    logical: LogicalPlan, placer: Placer, options: EagerAggregationOptions
) -> Planned | None:
    """An aggregate over a join, begun below it where that pays; None to place it as it is."""
    aggregate = logical.operator
    if not isinstance(aggregate, Aggregate):
        return None
    (below,) = logical.children
    join = below.operator
    if not isinstance(join, Join):
        return None
    eager = eager_aggregation(aggregate, join)
    if eager is None:
        return None
    # Whether it pays depends on estimates and distributions, so the inputs are placed first.
    left, right = (placer.plan(child) for child in below.children)
    if not _pays(eager, join, left, right, options):
        # The inputs are placed already: only the join and the aggregate are left to do.
        return placer.aggregate(
            aggregate, placer.join(join, left, right, below.schema), logical.schema
        )
    if eager.side == 0:
        left = placer.partial(eager.partial, left, _names(eager.keys, left))
    else:
        right = placer.partial(eager.partial, right, _names(eager.keys, right))
    # The partial aggregate takes the place of the side itself, so the join moves fewer rows.
    schema = eager.join.output_schema((left.plan.schema, right.plan.schema))
    joined = placer.join(eager.join, left, right, schema)
    if eager.side == 0:
        joined = _groups_first(placer, joined, len(aggregate.groups))
    keys = tuple(ColumnRef(i, group.type) for i, group in enumerate(aggregate.groups))
    columns = joined.profile.columns[: len(keys)] + (None,) * len(aggregate.aggregates)
    profile = Profile(grouped_rows(keys, joined.profile), columns)
    return placer.final(aggregate, joined, logical.schema, profile)


def _pays(
    eager: EagerAggregation,
    join: Join,
    left: Planned,
    right: Planned,
    options: EagerAggregationOptions,
) -> bool:
    """Whether pre-aggregation shrinks the join's input, and the join keeps most of those rows."""
    if not options.gain_min:
        return True
    side = right if eager.side else left
    rows = side.profile.rows
    # Each partition may have all groups, as rows are not exchanged before the first phase.
    groups = grouped_rows(eager.keys, side.profile) * side.distribution.partitions
    kept = joined_rows(join, left.profile, right.profile)
    return options.gain_min * groups <= rows and kept >= _KEPT_MIN * rows


def _names(columns: tuple[ColumnRef, ...], child: Planned) -> list[str]:
    return [child.plan.schema[column.index].name for column in columns]


def _groups_first(placer: Placer, states_first: Planned, groups: int) -> Planned:
    """The groups before the states, as a final aggregate reads them; joins output left first."""
    schema = states_first.plan.schema
    first = len(schema) - groups
    order = [*range(first, len(schema)), *range(first)]
    references = tuple(ColumnRef(i, schema[i].type) for i in order)
    project = Project(references, tuple(schema[i].name for i in order))
    return placer.project(project, states_first, tuple(schema[i] for i in order))


def eager_aggregation(aggregate: Aggregate, join: Join) -> EagerAggregation | None:
    """How `aggregate` over `join` can begin below it; None if it can't.

    Only plain groups, plain calls and joins on equal columns qualify.
    """
    # Without groups the first phase would have to give a row even for no rows.
    if aggregate.grouping_sets or not aggregate.groups:
        return None
    if join.residual or not join.conditions:  # without keys even no rows make a group
        return None
    origins = [(0, i) for i in join.left_output] + [(1, i) for i in join.right_output]
    # At most one side qualifies: the groups come from the other one.
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
        left, right = condition.left, condition.right
        if side == 1:
            left, right = right, left
        # Rows with equal keys must match the same rows of the other side, so only equality will do.
        if not isinstance(left, ColumnRef) or not condition.is_equality or left.type != right.type:
            return None
        keys.append(left)
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

    They must read bare columns. Anything computed could fail for rows that the join drops, and for
    the row of NULLs that an outer join adds it could give something other than NULL.
    """
    calls = []
    for call in aggregate.aggregates:
        columns = [
            replace(argument, index=origins[argument.index][1])
            for argument in call.arguments
            if isinstance(argument, ColumnRef) and origins[argument.index][0] == side
        ]
        # An outer join counts its unmatched rows, which the first phase has no states for.
        counts_rows = not call.arguments and kind is not JoinKind.INNER
        if len(columns) < len(call.arguments) or counts_rows or not _can_begin(call):
            return None
        calls.append(replace(call, arguments=tuple(columns)))
    return tuple(calls)


def _can_begin(call: AggregateCall) -> bool:
    """Whether partial results combine, and no partial result can overflow alone."""
    if call.distinct or call.filter or call.order_by or not combines_results(call):
        return False
    return call.name != "sum" or all(_sums_fit(argument.type) for argument in call.arguments)


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

    # The keys have done their work in the join: only states are passed on.
    given = tuple(range(len(keys), len(keys) + states))
    if side == 0:
        conditions = tuple(replace(c, left=over_groups(c.left)) for c in join.conditions)
        return replace(join, conditions=conditions, left_output=given, right_output=groups)
    conditions = tuple(replace(c, right=over_groups(c.right)) for c in join.conditions)
    return replace(join, conditions=conditions, left_output=groups, right_output=given)


EAGER_AGGREGATION = Rule(
    name="eager_aggregation",
    doc="pre-aggregate one side of a join where that leaves few rows to join",
    phase=Phase.PLACEMENT,
    apply=aggregate_below_join,
    options=EagerAggregationOptions(),
    everywhere=EagerAggregationOptions(gain_min=0.0),
)
