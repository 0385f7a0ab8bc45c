"""Logical plan -> physical plan: where rows lie, and the exchanges that are needed.

Bottom-up. Each operator looks at its inputs' distributions, keeps them where it can, and asks for
an exchange where it can't. Choices between exchanges compare estimated costs (`join_moves.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import assert_never

from minishark.catalog import Catalog, Table
from minishark.expressions import (
    AggregateCall,
    Column,
    ColumnRef,
    Expression,
    Schema,
    is_volatile,
)
from minishark.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    DistinctOn,
    Filter,
    Join,
    JoinCondition,
    Limit,
    Project,
    Scan,
    SetKind,
    SetOperation,
    Sort,
    Statement,
    TopN,
    Unnest,
    Values,
    Window,
)
from minishark.logical.plan import LogicalPlan
from minishark.physical.aggregates import can_split, state_column
from minishark.physical.distribution import (
    hashed_alike,
    in_one_task,
    moved,
    places_of,
    set_distribution,
)
from minishark.physical.estimate import (
    Profile,
    filtered_rows,
    grouped_rows,
    joined_columns,
    joined_rows,
)
from minishark.physical.join_moves import JoinCosts, JoinMove, Side
from minishark.physical.joins import (
    can_hash,
    join_distribution,
    lie_together,
    matching_keys,
)
from minishark.physical.plan import (
    Broadcast,
    Distribution,
    FinalAggregate,
    Gather,
    Hashed,
    PartialAggregate,
    PhysicalOperator,
    PhysicalPlan,
    Replicated,
    Shuffle,
    Single,
    Spread,
)
from minishark.physical.ranges import ranged
from minishark.statistics import ColumnStatistics

SINGLE_TASK_ROWS = 150_000
"""Up to here one core is done before several could have been told what to do."""

_UNNESTED_LENGTH = 10
_OWN_CTES = 1_000_000


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What steers physical planning.

    Attributes:
        partitions: how many partitions a shuffle makes.
        single_task_rows: a query whose tables hold at most this many rows runs in one task.
        gather_rows: partial results of at most this many rows are gathered instead of shuffled.
        read_whole_rows: a stored relation of at most this many rows is read by every task as it is.
        stage_cost: what one more stage costs, in rows built into a hash table.
        sort_values: rows times columns that are sorted in one task; more are sorted in ranges.
    """

    partitions: int
    single_task_rows: int = SINGLE_TASK_ROWS
    gather_rows: int = 50_000
    read_whole_rows: int = 20_000
    stage_cost: float = 100_000.0
    sort_values: int = 8_000_000

    @classmethod
    def eager(cls, partitions: int) -> PlannerOptions:
        """Distribute everything, however small; for tests on small data."""
        return cls(partitions, 0, 0, 0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class _Node:
    """A physical plan and what is estimated about its output."""

    plan: PhysicalPlan
    profile: Profile

    @property
    def distribution(self) -> Distribution:
        return self.plan.distribution

    @property
    def in_one_task(self) -> bool:
        return in_one_task(self.plan.distribution)

    @property
    def side(self) -> Side:
        """This as one side of a join."""
        return Side(self.plan.distribution, self.profile.rows)


def plan_physical(logical: LogicalPlan, catalog: Catalog, options: PlannerOptions) -> PhysicalPlan:
    """The physical plan of `logical`.

    Raises:
        CatalogError: the plan names a table that the catalog does not have.
    """
    tables = {name.lower(): catalog.get(name) for name in scanned_tables(logical)}
    rows = sum(table.rows for table in tables.values())
    return _Planner(catalog, options, rows <= options.single_task_rows).plan(logical).plan


def scanned_tables(logical: LogicalPlan) -> list[str]:
    """The names of the tables that a plan scans, with repetitions."""
    own = [logical.operator.table] if isinstance(logical.operator, Scan) else []
    return own + [name for child in logical.children for name in scanned_tables(child)]


class _Planner:
    def __init__(self, catalog: Catalog, options: PlannerOptions, whole: bool) -> None:
        self._catalog = catalog
        self._options = options
        self._whole = whole
        self._ctes: dict[int, _Node] = {}
        self._own_ctes = count(_OWN_CTES)

    def plan(self, logical: LogicalPlan) -> _Node:
        """The physical plan of one logical node and all below it."""
        operator = logical.operator
        if isinstance(operator, Cte):
            return self._cte(operator, logical)
        children = [self.plan(child) for child in logical.children]
        match operator:
            case Scan():
                return self._scan(operator, logical.schema)
            case Values():
                profile = Profile(float(len(operator.rows)), (None,) * len(operator.schema))
                return _node(operator, (), logical.schema, Replicated(), profile)
            case CteRef():
                return self._cte_ref(operator, logical.schema)
            case Statement():
                profile = Profile(1.0, (None,) * len(operator.schema))
                return _node(operator, (), logical.schema, Single(), profile)
            case Filter():
                return self._filter(operator, children[0], logical.schema)
            case Project():
                return self._project(operator, children[0], logical.schema)
            case Aggregate():
                return self._aggregate(operator, children[0], logical.schema)
            case Distinct():
                return self._distinct(children[0], logical.schema)
            case DistinctOn():
                return self._distinct_on(operator, children[0], logical.schema)
            case Window():
                return self._window(operator, children[0], logical.schema)
            case Unnest():
                return self._unnest(operator, children[0], logical.schema)
            case SetOperation():
                return self._set_operation(operator, children[0], children[1], logical.schema)
            case Join():
                return self._join(operator, children[0], children[1], logical.schema)
            case Sort():
                return self._sort(operator, children[0], logical.schema)
            case TopN() | Limit():
                return self._limited(operator, children[0], logical.schema)
            case _:
                assert_never(operator)

    # Leaves

    def _scan(self, scan: Scan, schema: Schema) -> _Node:
        table = self._catalog.get(scan.table)
        names = {column.name.lower(): i for i, column in enumerate(table.schema)}
        statistics = table.statistics.columns
        columns = tuple(None if n is None else statistics[names[n.lower()]] for n in scan.columns)
        profile = Profile(float(max(1, table.rows)), columns)
        return _node(scan, (), schema, self._scan_distribution(table, scan), profile)

    def _scan_distribution(self, table: Table, scan: Scan) -> Distribution:
        partitions = len(table.partitions)
        if partitions == 1 or self._whole:
            return Replicated()
        positions = {n.lower(): i for i, n in enumerate(scan.columns) if n is not None}
        keys = tuple(
            frozenset((positions[name.lower()],) if name.lower() in positions else ())
            for name in table.partition_by
        )
        return Hashed(keys, partitions) if all((keys, *keys)) else Spread(partitions)

    def _cte(self, cte: Cte, logical: LogicalPlan) -> _Node:
        definition = self.plan(logical.children[0])
        self._ctes[cte.index] = definition
        main = self.plan(logical.children[1])
        plan = PhysicalPlan(
            cte, (definition.plan, main.plan), logical.schema, main.distribution, main.plan.rows
        )
        return _Node(plan, main.profile)

    def _cte_ref(self, reference: CteRef, schema: Schema) -> _Node:
        """A reference lies as its definition; one stored partition can be read by every task."""
        definition = self._ctes[reference.index]
        distribution = definition.distribution
        if isinstance(distribution, Single):
            distribution = Replicated()
        return _node(reference, (), schema, distribution, definition.profile)

    # One input

    def _filter(self, filter_: Filter, child: _Node, schema: Schema) -> _Node:
        rows = filtered_rows(filter_.predicates, child.profile)
        profile = Profile(rows, tuple(child.profile.columns[i] for i in filter_.output))
        distribution = moved(child.distribution, places_of(filter_.output))
        distribution = _computed(filter_.predicates, distribution)
        return _node(filter_, (child,), schema, distribution, profile)

    def _project(self, project: Project, child: _Node, schema: Schema) -> _Node:
        columns = tuple(_expression_statistics(e, child.profile) for e in project.expressions)
        profile = Profile(child.profile.rows, columns)
        places = places_of(
            [e.index if isinstance(e, ColumnRef) else -1 for e in project.expressions]
        )
        distribution = _computed(project.expressions, moved(child.distribution, places))
        return _node(project, (child,), schema, distribution, profile)

    def _aggregate(self, aggregate: Aggregate, child: _Node, schema: Schema) -> _Node:
        groups = [e.index if isinstance(e, ColumnRef) else -1 for e in aggregate.groups]
        rows = grouped_rows(aggregate.groups, child.profile)
        columns = tuple(_expression_statistics(e, child.profile) for e in aggregate.groups)
        profile = Profile(rows, columns + (None,) * (len(schema) - len(columns)))
        kept = moved(child.distribution, places_of(groups))
        one_phase = isinstance(kept, Hashed) and not aggregate.grouping_sets
        if not one_phase and self._is_stored(child.plan):
            child = self._broadcast(child)
            kept = child.distribution
        if child.in_one_task or one_phase:
            return _node(aggregate, (child,), schema, kept, profile)
        if can_split(aggregate):
            return self._two_phases(aggregate, child, schema, profile)
        complete = self._regrouped(aggregate, self._without_duplicates(aggregate, child))
        kept = moved(complete.distribution, places_of(groups))
        return _node(aggregate, (complete,), schema, kept, profile)

    def _two_phases(
        self, aggregate: Aggregate, child: _Node, schema: Schema, profile: Profile
    ) -> _Node:
        group_columns = tuple(
            Column(schema[i].name, group.type) for i, group in enumerate(aggregate.groups)
        )
        states = tuple(state_column(call, i) for i, call in enumerate(aggregate.aggregates))
        produced = min(child.profile.rows, profile.rows * child.distribution.partitions)
        partial = _node(
            PartialAggregate(aggregate),
            (child,),
            group_columns + states,
            Spread(child.distribution.partitions),
            Profile(produced, profile.columns[: len(group_columns)] + (None,) * len(states)),
        )
        keys = tuple(ColumnRef(i, column.type) for i, column in enumerate(group_columns))
        exchanged = self._exchanged_groups(partial, () if aggregate.grouping_sets else keys)
        places = {i: (i,) for i in range(len(group_columns))}
        distribution = moved(exchanged.distribution, places)
        return _node(FinalAggregate(aggregate), (exchanged,), schema, distribution, profile)

    def _exchanged_groups(self, child: _Node, keys: tuple[Expression, ...]) -> _Node:
        """Equal keys together: shuffled, or gathered where there are few rows or no keys."""
        if not keys or child.profile.rows <= self._options.gather_rows:
            return self._gathered(child)
        return self._shuffled(child, keys)

    def _regrouped(self, aggregate: Aggregate, child: _Node) -> _Node:
        return self._exchanged_groups(child, () if aggregate.grouping_sets else aggregate.groups)

    def _without_duplicates(self, aggregate: Aggregate, child: _Node) -> _Node:
        """Fewer rows to exchange: duplicates that DISTINCT aggregates ignore are dropped early."""
        calls = aggregate.aggregates
        inputs = {call.arguments for call in calls}
        if len(inputs) != 1 or not all(_ignores_duplicates(call) for call in calls):
            return child
        (arguments,) = inputs
        needed = tuple(dict.fromkeys((*aggregate.groups, *arguments)))
        width = len(child.plan.schema)
        if not all(isinstance(e, ColumnRef) for e in needed) or len(needed) != width:
            return child
        return _node(Distinct(), (child,), child.plan.schema, child.distribution, child.profile)

    def _distinct(self, child: _Node, schema: Schema) -> _Node:
        keys = tuple(ColumnRef(i, column.type) for i, column in enumerate(schema))
        profile = replace(child.profile, rows=grouped_rows(keys, child.profile))
        if child.in_one_task or isinstance(child.distribution, Hashed):
            return _node(Distinct(), (child,), schema, child.distribution, profile)
        partial = _node(Distinct(), (child,), schema, child.distribution, profile)
        exchanged = self._exchanged_groups(partial, keys)
        return _node(Distinct(), (exchanged,), schema, exchanged.distribution, profile)

    def _distinct_on(self, distinct: DistinctOn, child: _Node, schema: Schema) -> _Node:
        child = self._grouped_by(distinct.targets, child)
        profile = replace(child.profile, rows=grouped_rows(distinct.targets, child.profile))
        return _node(distinct, (child,), schema, child.distribution, profile)

    def _window(self, window: Window, child: _Node, schema: Schema) -> _Node:
        """Windows that share keys run where the rows of equal keys are together."""
        first, *others = (call.partition_by for call in window.calls)
        shared = tuple(key for key in first if all(key in keys for keys in others))
        child = self._grouped_by(shared, child)
        profile = Profile(child.profile.rows, child.profile.columns + (None,) * len(window.calls))
        return _node(window, (child,), schema, child.distribution, profile)

    def _grouped_by(self, keys: tuple[Expression, ...], child: _Node) -> _Node:
        """`child` with the rows of equal keys in one partition."""
        positions = [e.index if isinstance(e, ColumnRef) else -1 for e in keys]
        together = isinstance(moved(child.distribution, places_of(positions)), Hashed)
        if child.in_one_task or together:
            return child
        return self._exchanged_groups(child, keys)

    def _unnest(self, unnest: Unnest, child: _Node, schema: Schema) -> _Node:
        columns = child.profile.columns + (None,) * len(unnest.lists)
        profile = Profile(child.profile.rows * _UNNESTED_LENGTH, columns)
        return _node(unnest, (child,), schema, child.distribution, profile)

    def _set_operation(
        self, operation: SetOperation, left: _Node, right: _Node, schema: Schema
    ) -> _Node:
        rows = left.profile.rows + (right.profile.rows if operation.kind is SetKind.UNION else 0)
        profile = Profile(rows, (None,) * len(schema))
        left, right = self._side_by_side(operation, left, right)
        distribution = set_distribution(left.distribution, right.distribution)
        return _node(operation, (left, right), schema, distribution, profile)

    def _side_by_side(
        self, operation: SetOperation, left: _Node, right: _Node
    ) -> tuple[_Node, _Node]:
        """Both inputs so that the operation can run partition by partition."""
        if left.in_one_task and right.in_one_task:
            return left, right
        same_count = left.distribution.partitions == right.distribution.partitions
        anywhere = operation.kind is SetKind.UNION and operation.keep_all
        if same_count and (anywhere or hashed_alike(left.distribution, right.distribution)):
            return left, right
        if left.profile.rows + right.profile.rows <= self._options.gather_rows:
            return self._gathered(left), self._gathered(right)
        keys = tuple(ColumnRef(i, column.type) for i, column in enumerate(left.plan.schema))
        return self._shuffled(left, keys), self._shuffled(right, keys)

    def _sort(self, sort: Sort, child: _Node, schema: Schema) -> _Node:
        """Range by range where there are many rows, else in one task."""
        sort = replace(sort, stable=self._in_source_order(child.plan))
        keys = tuple(key.expression for key in sort.keys)
        values = child.profile.rows * len(child.plan.schema)
        few = values <= self._options.sort_values
        if child.in_one_task or few or self._options.partitions == 1 or any(map(is_volatile, keys)):
            child = self._gathered(child)
            distribution: Distribution = Single()
        else:
            index = next(self._own_ctes)
            plan = ranged(child.plan, sort.keys, self._options.partitions, index)
            child, distribution = _Node(plan, child.profile), plan.distribution
        profile = Profile(child.profile.rows, tuple(child.profile.columns[i] for i in sort.output))
        return _node(sort, (child,), schema, distribution, profile)

    def _in_source_order(self, plan: PhysicalPlan) -> bool:
        """Whether rows come in an order that does not depend on the number of partitions."""
        match plan.operator:
            case Filter() | Project():
                return self._in_source_order(plan.children[0])
            case Scan(table=table):
                return not self._catalog.get(table).partition_by
            case _:
                return False

    def _limited(self, operator: TopN | Limit, child: _Node, schema: Schema) -> _Node:
        """First in each partition, then over what is left of all of them."""
        profile = child.profile
        if isinstance(operator, TopN):
            operator = replace(operator, stable=self._in_source_order(child.plan))
        if operator.limit is not None:
            profile = replace(profile, rows=float(min(profile.rows, operator.limit)))
        if not child.in_one_task and operator.limit is not None:
            early = replace(operator, limit=operator.limit + operator.offset, offset=0)
            distribution = Spread(child.distribution.partitions)
            child = _node(early, (child,), schema, distribution, profile)
        return _node(operator, (self._gathered(child),), schema, Single(), profile)

    # Joins

    def _join(self, join: Join, left: _Node, right: _Node, schema: Schema) -> _Node:
        left, right = self._joinable(join, left, right)
        rows = joined_rows(join, left.profile, right.profile)
        columns = joined_columns(join, left.profile, right.profile)
        distribution = join_distribution(
            join, left.distribution, right.distribution, len(left.plan.schema)
        )
        return _node(join, (left, right), schema, distribution, Profile(rows, columns))

    def _joinable(self, join: Join, left: _Node, right: _Node) -> tuple[_Node, _Node]:
        """Both inputs, moved where necessary, so that the join can run partition by partition."""
        if lie_together(join, left.distribution, right.distribution):
            return left, right
        keys = tuple(c for c in join.conditions if can_hash(c))
        options = self._options
        costs = JoinCosts(left.side, right.side, options.partitions, options.stage_cost)
        match costs.cheapest(join):
            case JoinMove.BROADCAST_RIGHT:
                return left, self._broadcast(right)
            case JoinMove.BROADCAST_LEFT:
                return self._broadcast(left), right
            case JoinMove.SHUFFLE_RIGHT:
                return left, self._shuffle_like(right, left, keys, left_is_target=True)
            case JoinMove.SHUFFLE_LEFT:
                return self._shuffle_like(left, right, keys, left_is_target=False), right
            case JoinMove.SHUFFLE_BOTH:
                return (
                    self._shuffled(left, tuple(c.left for c in keys)),
                    self._shuffled(right, tuple(c.right for c in keys)),
                )
            case JoinMove.GATHER:
                return self._gathered(left), self._gathered(right)

    def _shuffle_like(
        self, moved: _Node, target: _Node, keys: Sequence[JoinCondition], *, left_is_target: bool
    ) -> _Node:
        """`moved`, hashed on the join keys in the way in which `target` is."""
        own = [c.right if left_is_target else c.left for c in keys]
        theirs = [c.left if left_is_target else c.right for c in keys]
        order = matching_keys(target.distribution, theirs)
        assert order is not None
        return self._shuffled(
            moved, tuple(own[i] for i in order), partitions=target.distribution.partitions
        )

    # Exchanges

    def _shuffled(
        self, child: _Node, keys: tuple[Expression, ...], partitions: int | None = None
    ) -> _Node:
        count = partitions or self._options.partitions
        positions = tuple(
            frozenset((key.index,) if isinstance(key, ColumnRef) else ()) for key in keys
        )
        distribution = Hashed(positions, count)
        return _node(Shuffle(keys, count), (child,), child.plan.schema, distribution, child.profile)

    def _broadcast(self, child: _Node) -> _Node:
        if isinstance(child.distribution, Replicated):
            return child
        return _Node(self._read_whole(child.plan, Broadcast(), Replicated()), child.profile)

    def _gathered(self, child: _Node) -> _Node:
        if child.in_one_task:
            return child
        return _Node(self._read_whole(child.plan, Gather(), Single()), child.profile)

    def _read_whole(
        self, plan: PhysicalPlan, exchange: Broadcast | Gather, distribution: Distribution
    ) -> PhysicalPlan:
        """All rows of `plan`, for each task or for one.

        What is stored already and small is read where it lies, and filtered by each reader,
        which is cheaper than a stage that stores it again.
        """
        if self._is_stored(plan):
            match plan.operator:
                case Filter() | Project() | Aggregate() | Distinct():
                    below = self._read_whole(plan.children[0], exchange, distribution)
                    return replace(plan, children=(below,), distribution=distribution)
                case Scan():
                    return replace(plan, distribution=Replicated())
                case _:
                    pass
        return PhysicalPlan(exchange, (plan,), plan.schema, distribution, plan.rows)

    def _is_stored(self, plan: PhysicalPlan) -> bool:
        """Whether `plan` is cheap to compute again from something small that is stored."""
        match plan.operator:
            case Filter(predicates=expressions) | Project(expressions=expressions):
                stored = self._is_stored(plan.children[0])
                return stored and not any(map(is_volatile, expressions))
            case Aggregate() | Distinct():
                return self._is_stored(plan.children[0])
            case Scan() | CteRef():
                return plan.rows <= self._options.read_whole_rows
            case _:
                return False


def _node(
    operator: PhysicalOperator,
    children: Sequence[_Node],
    schema: Schema,
    distribution: Distribution,
    profile: Profile,
) -> _Node:
    plans = tuple(child.plan for child in children)
    return _Node(PhysicalPlan(operator, plans, schema, distribution, profile.rows), profile)


def _computed(expressions: Sequence[Expression], distribution: Distribution) -> Distribution:
    """`distribution` after expressions were computed; random values differ from task to task."""
    if isinstance(distribution, Replicated) and any(map(is_volatile, expressions)):
        return Single()
    return distribution


def _expression_statistics(expression: Expression, profile: Profile) -> ColumnStatistics | None:
    if isinstance(expression, ColumnRef):
        return profile.columns[expression.index]
    return ColumnStatistics(0.0, int(profile.distinct(expression)), None, None)


def _ignores_duplicates(call: AggregateCall) -> bool:
    extreme = call.name in ("min", "max") and len(call.arguments) == 1
    return (call.distinct or extreme) and not (call.filter or call.order_by)
