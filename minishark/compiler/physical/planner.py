"""Logical plan -> physical plan: the distribution of rows, and the exchanges that are needed.

Bottom-up. Each operator looks at its inputs' distributions, keeps them where it can, and asks for
an exchange where it can't. Choices between exchanges compare estimated costs (`join_moves.py`).
Optimizer rules (`compiler/rules/`) choose between plans, replace single nodes, and rewrite the
finished plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import assert_never

from minishark.compiler.logical import operators as ops
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.physical.aggregates import can_split, state_column
from minishark.compiler.physical.estimate import (
    Profile,
    filtered_rows,
    grouped_rows,
    joined_columns,
    joined_rows,
)
from minishark.compiler.physical.exchanges import Exchanges, Planned, planned
from minishark.compiler.physical.join_moves import JoinCosts, JoinMove
from minishark.compiler.physical.joins import (
    KEEPS_LEFT_ONLY,
    KEEPS_RIGHT_ONLY,
    can_hash,
    is_guessed,
    join_distribution,
    lie_together,
    matching_keys,
)
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import (
    Distribution,
    FinalAggregate,
    Hashed,
    PartialAggregate,
    PhysicalPlan,
    Replicated,
    Single,
    Spread,
    hashed_alike,
    moved,
    positions_of,
    set_distribution,
)
from minishark.compiler.physical.repartition import ranged
from minishark.compiler.rules import enabled
from minishark.compiler.rules import rule as rules
from minishark.compiler.rules.one_task import Place
from minishark.compiler.rules.rule import Phase
from minishark.model.catalog import Catalog, ColumnStatistics, Table
from minishark.model.expressions import (
    AggregateCall,
    Column,
    ColumnRef,
    Expression,
    Schema,
    is_volatile,
)

_UNNESTED_LENGTH = 10  # the assumed length of a list: nothing is measured about nested columns
_OWN_CTES = 1_000_000  # DuckDB numbers its common table expressions far below


def plan_physical(logical: LogicalPlan, catalog: Catalog, options: PlannerOptions) -> PhysicalPlan:
    def place(*, whole: bool) -> PhysicalPlan:
        return Placer(catalog, options, whole=whole).plan(logical).plan

    plan = _chosen(place, logical, catalog, options)
    # On the placed plan: these rules only pay for what one task reads or groups.
    for rule, rule_options in enabled(Phase.PHYSICAL, options):
        plan = rule.apply(plan, catalog, rule_options)
    return plan


def _chosen(
    place: Place, logical: LogicalPlan, catalog: Catalog, options: PlannerOptions
) -> PhysicalPlan:
    """The plan in one task or in stages."""
    tables = {name.lower(): catalog.get(name) for name in logical.tables}
    if sum(table.rows for table in tables.values()) <= options.single_task_rows:
        return place(whole=True)
    # There is one choice to make, so the first rule makes it.
    for rule, rule_options in enabled(Phase.CHOICE, options):
        plan: PhysicalPlan = rule.apply(place, options, rule_options)
        return plan
    return place(whole=False)


class Placer(rules.Placer):
    """Places the operators of one logical plan, bottom-up; rules use its public methods."""

    def __init__(self, catalog: Catalog, options: PlannerOptions, *, whole: bool) -> None:
        self._catalog = catalog
        self._options = options
        self._exchanges = Exchanges(options.partitions, options.read_whole_rows)
        self._whole = whole
        self._rules = list(enabled(Phase.PLACEMENT, options))
        self._ctes: dict[int, Planned] = {}
        self._own_ctes = count(_OWN_CTES)

    def plan(self, logical: LogicalPlan) -> Planned:
        operator = logical.operator
        if isinstance(operator, ops.Cte):
            return self._cte(operator, logical)  # its definition must be known to its readers
        for rule, rule_options in self._rules:
            planned: Planned | None = rule.apply(logical, self, rule_options)
            if planned is not None:
                return planned
        return self.place(
            operator, [self.plan(child) for child in logical.children], logical.schema
        )

    def place(self, operator: ops.Operator, children: Sequence[Planned], schema: Schema) -> Planned:
        """An operator over inputs that are placed; all but common table expressions."""
        match operator:
            case ops.Scan():
                return self._scan(operator, schema)
            case ops.Values():
                # Constants are in the SQL of every task that needs them.
                profile = Profile(float(len(operator.rows)), (None,) * len(operator.schema))
                return planned(operator, (), schema, Replicated(), profile)
            case ops.CteRef():
                return self._cte_ref(operator, schema)
            case ops.Statement():
                profile = Profile(1.0, (None,) * len(operator.schema))
                return planned(operator, (), schema, Single(), profile)
            case ops.Filter():
                return self._filter(operator, children[0], schema)
            case ops.Project():
                return self.project(operator, children[0], schema)
            case ops.Aggregate():
                return self.aggregate(operator, children[0], schema)
            case ops.Distinct():
                return self._distinct(children[0], schema)
            case ops.DistinctOn():
                return self._distinct_on(operator, children[0], schema)
            case ops.Window():
                return self._window(operator, children[0], schema)
            case ops.Unnest():
                return self._unnest(operator, children[0], schema)
            case ops.SetOperation():
                return self._set_operation(operator, children[0], children[1], schema)
            case ops.Join():
                return self.join(operator, children[0], children[1], schema)
            case ops.Sort():
                return self._sort(operator, children[0], schema)
            case ops.TopN() | ops.Limit():
                return self._limited(operator, children[0], schema)
            case ops.Cte():
                message = "its definition is placed before its main plan"
                raise AssertionError(message)
            case _:
                assert_never(operator)

    # Leaves

    def _scan(self, scan: ops.Scan, schema: Schema) -> Planned:
        table = self._catalog.get(scan.table)
        names = {column.name.lower(): i for i, column in enumerate(table.schema)}
        statistics = table.statistics.columns
        columns = tuple(None if n is None else statistics[names[n.lower()]] for n in scan.columns)
        # At least one row: estimates divide by row counts.
        profile = Profile(float(max(1, table.rows)), columns)
        return planned(scan, (), schema, self._scan_distribution(table, scan), profile)

    def _scan_distribution(self, table: Table, scan: ops.Scan) -> Distribution:
        partitions = len(table.partitions)
        if partitions == 1 or self._whole:
            return Replicated()
        positions = {n.lower(): i for i, n in enumerate(scan.columns) if n is not None}
        keys = tuple(
            frozenset((positions[name.lower()],) if name.lower() in positions else ())
            for name in table.partition_by
        )
        # Without one of its keys among the columns, nothing above could make use of the hash.
        return Hashed(keys, partitions) if all((keys, *keys)) else Spread(partitions)

    def _cte(self, cte: ops.Cte, logical: LogicalPlan) -> Planned:
        # Before the main plan, whose references are distributed as the definition is.
        definition = self.plan(logical.children[0])
        self._ctes[cte.index] = definition
        main = self.plan(logical.children[1])
        plan = PhysicalPlan(
            cte, (definition.plan, main.plan), logical.schema, main.distribution, main.plan.rows
        )
        return Planned(plan, main.profile)

    def _cte_ref(self, reference: ops.CteRef, schema: Schema) -> Planned:
        """A reference is distributed as its definition; every task can read a single partition."""
        definition = self._ctes[reference.index]
        distribution = definition.distribution
        if isinstance(distribution, Single):
            distribution = Replicated()
        return planned(reference, (), schema, distribution, definition.profile)

    # One input

    def _filter(self, filter_: ops.Filter, child: Planned, schema: Schema) -> Planned:
        rows = filtered_rows(filter_.predicates, child.profile)
        profile = Profile(rows, tuple(child.profile.columns[i] for i in filter_.output))
        distribution = moved(child.distribution, positions_of(filter_.output))
        distribution = _computed(filter_.predicates, distribution)
        return planned(filter_, (child,), schema, distribution, profile)

    def project(self, project: ops.Project, child: Planned, schema: Schema) -> Planned:
        columns = tuple(_expression_statistics(e, child.profile) for e in project.outputs)
        profile = Profile(child.profile.rows, columns)
        positions = positions_of(_indexes(project.outputs))
        distribution = _computed(project.outputs, moved(child.distribution, positions))
        return planned(project, (child,), schema, distribution, profile)

    def aggregate(self, aggregate: ops.Aggregate, child: Planned, schema: Schema) -> Planned:
        """An aggregate: in each partition if it holds whole groups, else in two phases."""
        groups = _indexes(aggregate.groups)
        rows = grouped_rows(aggregate.groups, child.profile)
        columns = tuple(_expression_statistics(e, child.profile) for e in aggregate.groups)
        profile = Profile(rows, columns + (None,) * (len(schema) - len(columns)))
        kept = moved(child.distribution, positions_of(groups))
        # Still hashed on the groups alone: no group has rows in two partitions. Grouping sets
        # also have groups that leave out some of the columns.
        one_phase = isinstance(kept, Hashed) and not aggregate.grouping_sets
        # A small stored relation: each reader aggregates it again, which spares a stage.
        if not one_phase and self._exchanges.is_stored(child.plan):
            child = self._exchanges.broadcast(child)
            kept = child.distribution
        if child.in_one_task or one_phase:
            return planned(aggregate, (child,), schema, kept, profile)
        if can_split(aggregate):
            names = tuple(column.name for column in schema[: len(aggregate.groups)])
            partial = self.partial(aggregate, child, names)
            return self.final(aggregate, partial, schema, profile)
        # DISTINCT and the like need all rows of a group at once: they are exchanged as they are.
        keys = () if aggregate.grouping_sets else aggregate.groups
        complete = self._exchanged_groups(self._without_duplicates(aggregate, child), keys)
        kept = moved(complete.distribution, positions_of(groups))
        return planned(aggregate, (complete,), schema, kept, profile)

    def partial(self, aggregate: ops.Aggregate, child: Planned, names: Sequence[str]) -> Planned:
        """The first phase of an aggregate, whose groups get these names: groups and states."""
        group_columns = tuple(
            Column(name, group.type) for name, group in zip(names, aggregate.groups, strict=True)
        )
        states = tuple(state_column(call, i) for i, call in enumerate(aggregate.aggregates))
        groups = _indexes(aggregate.groups)
        # Rows of a group may be in any partition, so each partition may have all groups.
        rows = grouped_rows(aggregate.groups, child.profile) * child.distribution.partitions
        columns = tuple(_expression_statistics(e, child.profile) for e in aggregate.groups)
        return planned(
            PartialAggregate(aggregate),
            (child,),
            group_columns + states,
            moved(child.distribution, positions_of(groups)),
            Profile(min(child.profile.rows, rows), columns + (None,) * len(states)),
        )

    def final(
        self, aggregate: ops.Aggregate, partial: Planned, schema: Schema, profile: Profile
    ) -> Planned:
        """The second phase, over groups and states; equal groups are brought together."""
        width = len(aggregate.groups)
        keys = tuple(ColumnRef(i, partial.plan.schema[i].type) for i in range(width))
        positions = {i: (i,) for i in range(width)}
        together = isinstance(moved(partial.distribution, positions), Hashed)
        # A partition has all states of a group if it is hashed on the group's columns.
        if not (partial.in_one_task or (together and not aggregate.grouping_sets)):
            # Rows of grouping sets have NULL in the columns that they leave out: no common key.
            partial = self._exchanged_groups(partial, () if aggregate.grouping_sets else keys)
        distribution = moved(partial.distribution, positions)
        return planned(FinalAggregate(aggregate), (partial,), schema, distribution, profile)

    def _exchanged_groups(self, child: Planned, keys: tuple[Expression, ...]) -> Planned:
        """Equal keys together: shuffled, or gathered where there are few rows or no keys."""
        if not keys or child.profile.rows <= self._options.gather_rows:
            return self._exchanges.gathered(child)
        return self._exchanges.shuffled(child, keys)

    def _without_duplicates(self, aggregate: ops.Aggregate, child: Planned) -> Planned:
        """Fewer rows to exchange: duplicates that DISTINCT aggregates ignore are dropped early."""
        calls = aggregate.aggregates
        # Only if the rows consist of just the groups and the argument are equal rows redundant.
        inputs = {call.arguments for call in calls}
        if len(inputs) != 1 or not all(_ignores_duplicates(call) for call in calls):
            return child
        (arguments,) = inputs
        needed = tuple(dict.fromkeys((*aggregate.groups, *arguments)))
        width = len(child.plan.schema)
        if not all(isinstance(e, ColumnRef) for e in needed) or len(needed) != width:
            return child
        return planned(
            ops.Distinct(), (child,), child.plan.schema, child.distribution, child.profile
        )

    def _distinct(self, child: Planned, schema: Schema) -> Planned:
        keys = tuple(ColumnRef(i, column.type) for i, column in enumerate(schema))
        profile = replace(child.profile, rows=grouped_rows(keys, child.profile))
        # Hashed on any columns, equal rows are in the same partition.
        if child.in_one_task or isinstance(child.distribution, Hashed):
            return planned(ops.Distinct(), (child,), schema, child.distribution, profile)
        partial = planned(ops.Distinct(), (child,), schema, child.distribution, profile)
        exchanged = self._exchanged_groups(partial, keys)
        return planned(ops.Distinct(), (exchanged,), schema, exchanged.distribution, profile)

    def _distinct_on(self, distinct: ops.DistinctOn, child: Planned, schema: Schema) -> Planned:
        child = self._grouped_by(distinct.targets, child)
        profile = replace(child.profile, rows=grouped_rows(distinct.targets, child.profile))
        return planned(distinct, (child,), schema, child.distribution, profile)

    def _window(self, window: ops.Window, child: Planned, schema: Schema) -> Planned:
        """Windows that share keys run where the rows of equal keys are together."""
        # More keys than all windows share would tear some window's rows apart.
        first, *others = (call.partition_by for call in window.calls)
        shared = tuple(key for key in first if all(key in keys for keys in others))
        child = self._grouped_by(shared, child)
        profile = Profile(child.profile.rows, child.profile.columns + (None,) * len(window.calls))
        return planned(window, (child,), schema, child.distribution, profile)

    def _grouped_by(self, keys: tuple[Expression, ...], child: Planned) -> Planned:
        """`child` with the rows of equal keys in one partition."""
        positions = positions_of(_indexes(keys))
        together = isinstance(moved(child.distribution, positions), Hashed)
        if child.in_one_task or together:
            return child
        return self._exchanged_groups(child, keys)

    def _unnest(self, unnest: ops.Unnest, child: Planned, schema: Schema) -> Planned:
        columns = child.profile.columns + (None,) * len(unnest.lists)
        profile = Profile(child.profile.rows * _UNNESTED_LENGTH, columns)
        return planned(unnest, (child,), schema, child.distribution, profile)

    def _set_operation(
        self, operation: ops.SetOperation, left: Planned, right: Planned, schema: Schema
    ) -> Planned:
        is_union = operation.kind is ops.SetKind.UNION
        rows = left.profile.rows + (right.profile.rows if is_union else 0)
        profile = Profile(rows, (None,) * len(schema))
        left, right = self._side_by_side(operation, left, right)
        distribution = set_distribution(left.distribution, right.distribution)
        return planned(operation, (left, right), schema, distribution, profile)

    def _side_by_side(
        self, operation: ops.SetOperation, left: Planned, right: Planned
    ) -> tuple[Planned, Planned]:
        """Both inputs so that the operation can run partition by partition."""
        if left.in_one_task and right.in_one_task:
            return left, right
        same_count = left.distribution.partitions == right.distribution.partitions
        # UNION ALL compares no rows, so it does not matter which ones are side by side.
        anywhere = operation.kind is ops.SetKind.UNION and operation.keep_all
        if same_count and (anywhere or hashed_alike(left.distribution, right.distribution)):
            return left, right
        if left.profile.rows + right.profile.rows <= self._options.gather_rows:
            return self._exchanges.gathered(left), self._exchanges.gathered(right)
        keys = tuple(ColumnRef(i, column.type) for i, column in enumerate(left.plan.schema))
        return self._exchanges.shuffled(left, keys), self._exchanges.shuffled(right, keys)

    def _sort(self, sort: ops.Sort, child: Planned, schema: Schema) -> Planned:
        """Range by range where there are many rows, else in one task."""
        # Ties in the table's own order, as DuckDB gives them for one table; stable sorts cost more.
        sort = replace(sort, stable=self._in_source_order(child.plan))
        keys = tuple(key.expression for key in sort.keys)
        values = child.profile.rows * len(child.plan.schema)
        few = values <= self._options.sort_values
        # Volatile keys would differ between the sample, the exchange and the sort.
        if child.in_one_task or few or self._options.partitions == 1 or any(map(is_volatile, keys)):
            child = self._exchanges.gathered(child)
            distribution: Distribution = Single()
        else:
            index = next(self._own_ctes)
            plan = ranged(child.plan, sort.keys, self._options.partitions, index)
            child, distribution = Planned(plan, child.profile), plan.distribution
        profile = Profile(child.profile.rows, tuple(child.profile.columns[i] for i in sort.output))
        return planned(sort, (child,), schema, distribution, profile)

    def _in_source_order(self, plan: PhysicalPlan) -> bool:
        """Whether rows come in an order that does not depend on the number of partitions."""
        match plan.operator:
            case ops.Filter() | ops.Project():
                return self._in_source_order(plan.children[0])
            case ops.Scan(table=table):
                return not self._catalog.get(table).partition_by
            case _:
                return False

    def _limited(self, operator: ops.TopN | ops.Limit, child: Planned, schema: Schema) -> Planned:
        """First in each partition, then over what is left of all of them."""
        profile = child.profile
        if isinstance(operator, ops.TopN):
            operator = replace(operator, stable=self._in_source_order(child.plan))
        if operator.limit is not None:
            profile = replace(profile, rows=max(1.0, min(profile.rows, operator.limit)))
        if not child.in_one_task and operator.limit is not None:
            # All of the skipped rows may be in one partition, so each keeps `offset` more.
            early = replace(operator, limit=operator.limit + operator.offset, offset=0)
            distribution = Spread(child.distribution.partitions)
            child = planned(early, (child,), schema, distribution, profile)
        return planned(operator, (self._exchanges.gathered(child),), schema, Single(), profile)

    # Joins

    def join(self, join: ops.Join, left: Planned, right: Planned, schema: Schema) -> Planned:
        left, right = self._counted(join, *self._joinable(join, left, right))
        rows = joined_rows(join, left.profile, right.profile)
        columns = joined_columns(join, left.profile, right.profile)
        # The number of left columns tells the sides apart in the hash keys of the output.
        distribution = join_distribution(
            join, left.distribution, right.distribution, len(left.plan.schema)
        )
        return planned(join, (left, right), schema, distribution, Profile(rows, columns))

    def _joinable(self, join: ops.Join, left: Planned, right: Planned) -> tuple[Planned, Planned]:
        """Both inputs, moved where necessary, so that the join can run partition by partition."""
        if lie_together(join, left.distribution, right.distribution):
            return left, right
        keys = tuple(c for c in join.conditions if can_hash(c))
        options = self._options
        costs = JoinCosts(left.side, right.side, options.partitions, options.stage_cost)
        match costs.cheapest(join):
            case JoinMove.BROADCAST_RIGHT:
                return left, self._exchanges.broadcast(right)
            case JoinMove.BROADCAST_LEFT:
                return self._exchanges.broadcast(left), right
            case JoinMove.SHUFFLE_RIGHT:
                return left, self._shuffle_like(right, left, keys, left_is_target=True)
            case JoinMove.SHUFFLE_LEFT:
                return self._shuffle_like(left, right, keys, left_is_target=False), right
            case JoinMove.SHUFFLE_BOTH:
                return (
                    self._exchanges.shuffled(left, tuple(c.left for c in keys)),
                    self._exchanges.shuffled(right, tuple(c.right for c in keys)),
                )
            case JoinMove.GATHER:
                return self._exchanges.gathered(left), self._exchanges.gathered(right)

    def _counted(self, join: ops.Join, left: Planned, right: Planned) -> tuple[Planned, Planned]:
        """Both inputs; first materialized is what a semi or anti join should build."""
        # DuckDB builds the hash table from the input that it estimates to be smaller. Without
        # statistics it overestimates the joins below; of stored rows it knows the number.
        costs = JoinCosts(left.side, right.side, self._options.partitions, self._options.stage_cost)
        if join.kind in KEEPS_LEFT_ONLY and costs.counting_pays(left.side, right.side):
            return self._stored(left), right
        if join.kind in KEEPS_RIGHT_ONLY and costs.counting_pays(right.side, left.side):
            return left, self._stored(right)
        return left, right

    def _stored(self, child: Planned) -> Planned:
        return self._exchanges.materialized(child) if is_guessed(child.plan) else child

    def _shuffle_like(
        self,
        moved: Planned,
        target: Planned,
        keys: Sequence[ops.JoinCondition],
        *,
        left_is_target: bool,
    ) -> Planned:
        """`moved`, hashed on the join keys in the way in which `target` is."""
        keys_here = [c.right if left_is_target else c.left for c in keys]
        theirs = [c.left if left_is_target else c.right for c in keys]
        # The hash is of the keys in an order: the same one on both sides.
        order = matching_keys(target.distribution, theirs)
        assert order is not None
        return self._exchanges.shuffled(
            moved, tuple(keys_here[i] for i in order), partitions=target.distribution.partitions
        )


def _computed(expressions: Sequence[Expression], distribution: Distribution) -> Distribution:
    """`distribution` after expressions were computed; random values differ from task to task."""
    if isinstance(distribution, Replicated) and any(map(is_volatile, expressions)):
        return Single()
    return distribution


def _expression_statistics(expression: Expression, profile: Profile) -> ColumnStatistics | None:
    if isinstance(expression, ColumnRef):
        return profile.columns[expression.index]
    return ColumnStatistics(0.0, int(profile.distinct(expression)), None, None)


def _indexes(expressions: Sequence[Expression]) -> list[int]:
    """The input column that each expression is; -1 if it is more than a column."""
    return [e.index if isinstance(e, ColumnRef) else -1 for e in expressions]


def _ignores_duplicates(call: AggregateCall) -> bool:
    extreme = call.name in ("min", "max") and len(call.arguments) == 1
    return (call.distinct or extreme) and not (call.filter or call.order_by)
