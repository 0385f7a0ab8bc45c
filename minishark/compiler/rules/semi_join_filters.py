"""Semi-join filters: rows of large tables that no join needs are dropped early. Pure.

DuckDB filters its own tables by the keys of the joins above them, but takes no filters for Arrow
data: there, each row is looked up in a hash table. Here the side of a join with few keys becomes a
common table expression that tasks compute first; then they scan the key column of the large table
and copy the rows that have one of these keys. A sample shows the share of these rows before
anything is copied, so a wrong estimate costs little.

Related work: sideways information passing; the semi-join reducers of Bernstein and Chiu (Using
Semi-Joins to Solve Relational Queries, 1981).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from minishark.compiler.hints import InputKeyFilter, KeyFilter
from minishark.compiler.logical import operators as ops
from minishark.compiler.physical.joins import KEEPS_LEFT, KEEPS_RIGHT
from minishark.compiler.physical.plan import (
    Broadcast,
    Exchange,
    PhysicalPlan,
    Replicated,
    free_cte_index,
)
from minishark.compiler.rules.rule import Fragment, Phase, Rule
from minishark.model.catalog import Catalog, Table
from minishark.model.expressions import ColumnRef

if TYPE_CHECKING:
    from minishark.compiler.stages.stage import Stage

_KEY_TYPES = frozenset(
    ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
)
_STORED_TYPES = re.compile(
    r"U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|DATE|VARCHAR|BOOLEAN|DOUBLE|FLOAT|DECIMAL\(.*\)|TIMESTAMP"
)
"""Types that a common table expression may have to be stored as Arrow data before it is read."""

_SPAN_MAX = 1 << 26
"""Keys are marked in an array with a byte for each integer between the table's extremes."""

_TESTED = 0.8
"""Predicates that leave a larger share of the rows are not worth mentioning."""

_LEFT_MAY_DROP = (
    ops.JoinKind.INNER,
    ops.JoinKind.RIGHT,
    ops.JoinKind.SEMI,
    ops.JoinKind.RIGHT_SEMI,
    ops.JoinKind.RIGHT_ANTI,
)
_RIGHT_MAY_DROP = (
    ops.JoinKind.INNER,
    ops.JoinKind.LEFT,
    ops.JoinKind.SEMI,
    ops.JoinKind.RIGHT_SEMI,
    ops.JoinKind.ANTI,
)
"""Joins whose rows of that side have no effect if the other side has none of their keys."""

_KEEPS_MATCHES = (ops.JoinKind.INNER, ops.JoinKind.SEMI, ops.JoinKind.RIGHT_SEMI)
"""Joins whose rows have columns that are equal to one of the other side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SemiJoinFilterOptions:
    """When semi-join filters pay."""

    # Minimum of table rows x benefits, which are: other columns are read, predicates are tested,
    # keys are looked up in a hash table larger than a core's cache.
    benefit_min: float = 8_000_000.0
    keys_many: float = 32_000.0  # from this many keys on, a hash table exceeds a core's cache
    left_min: float = 0.03  # the minimum share of the rows that the query's own predicates leave
    # The maximum size of what the keys are computed from, as a multiple of the table's rows.
    source_max: float = 0.9
    share_max: float = 0.12  # the maximum share of its keys that are estimated to be joined,
    few_share_max: float = 0.02  # if there are fewer than `keys_many`
    copied_max: float = 0.07  # the maximum share of its rows that tasks copy; else they read all


_EVERYWHERE = SemiJoinFilterOptions(
    benefit_min=0.0,
    left_min=0.0,
    source_max=math.inf,
    share_max=1.0,
    few_share_max=1.0,
    copied_max=1.0,
)


def with_key_filters(
    plan: PhysicalPlan, catalog: Catalog, options: SemiJoinFilterOptions
) -> PhysicalPlan:
    numbers = count(free_cte_index(plan))
    return _Filters(catalog=catalog, options=options, numbers=numbers).rewritten(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A scan that could be filtered: the input of a join that it is in, and by which keys."""

    side: int
    position: int  # the join's key among the input's columns
    column: str  # the table's column that it is
    key: int  # the column of the other input
    share: float  # the estimated share of the table's rows that is left
    low: int  # the table's smallest key
    high: int  # its largest one


@dataclass(slots=True, kw_only=True)
class _Filters:
    """Adds filters to a plan."""

    catalog: Catalog
    options: SemiJoinFilterOptions
    numbers: Iterator[int]  # for new common table expressions
    # The common table expressions that are known.
    definitions: dict[int, PhysicalPlan] = field(default_factory=dict)
    storable: dict[int, bool] = field(default_factory=dict)  # which of them can be stored
    # The rows of the largest table that each of them reads.
    largest: dict[int, int] = field(default_factory=dict)
    # The distinct counts of their columns, by index and position.
    distinct: dict[tuple[int, int], float] = field(default_factory=dict)

    def rewritten(self, plan: PhysicalPlan) -> PhysicalPlan:
        """`plan` with filters; inner joins choose first."""
        if isinstance(plan.operator, ops.Cte):
            definition = self.rewritten(plan.children[0])
            self._define(plan.operator.index, definition)
            children: tuple[PhysicalPlan, ...] = (definition, self.rewritten(plan.children[1]))
        else:
            children = tuple(map(self.rewritten, plan.children))
        plan = plan.with_children(children)
        if not isinstance(plan.operator, ops.Join):
            return plan
        # Bottom-up, so that an inner join, which is nearer to the scan, takes it first.
        best = min(self._candidates(plan, plan.operator), key=lambda c: c.share, default=None)
        return plan if best is None else self._filtered(plan, best)

    def _define(self, index: int, definition: PhysicalPlan) -> None:
        self.definitions[index] = definition
        self.storable[index] = self._can_store(definition)
        self.largest[index] = self._largest_table(definition)

    def _candidates(self, plan: PhysicalPlan, join: ops.Join) -> Iterator[_Candidate]:
        left, right = plan.children
        for a, b in _equal_columns(join):
            # Marks are compared as integers: a cast on one side could change equality.
            types = {left.schema[a].type, right.schema[b].type}
            if len(types) > 1 or types.isdisjoint(_KEY_TYPES):
                continue
            if join.kind in _LEFT_MAY_DROP:
                yield from self._candidate(0, left, a, right, b)
            if join.kind in _RIGHT_MAY_DROP:
                yield from self._candidate(1, right, b, left, a)

    def _candidate(
        self, side: int, read: PhysicalPlan, position: int, keys: PhysicalPlan, key: int
    ) -> Iterator[_Candidate]:
        """The candidate filter of the table below `read` by the rows of `keys`, if it pays."""
        below = _scan_below(read, position)
        if below is None or not self._can_be_keys(keys):
            return
        scan, name, left = below
        table = self.catalog.get(scan.table)
        values = table.column_statistics(name)
        if (
            values is None
            or values.minimum is None
            or values.maximum is None
            or not values.distinct
        ):
            return
        # The keys of a join are assumed to be among those of the table (containment).
        low, high = int(values.minimum), int(values.maximum)
        share = min(1.0, self._distinct(keys, key) / values.distinct)
        if high - low < _SPAN_MAX and self._pays(scan, table, left, keys, share):
            yield _Candidate(
                side=side, position=position, column=name, key=key, share=share, low=low, high=high
            )

    def _pays(
        self, scan: ops.Scan, table: Table, left: float, keys: PhysicalPlan, share: float
    ) -> bool:
        """Whether it takes less time to filter a table than to join it as it is.

        The query's own predicates leave `left` of its rows; `share` of its keys are in `keys`.
        """
        options = self.options
        # An array of marks beats a hash table by more if that does not fit into a cache.
        are_many = keys.rows >= options.keys_many
        if share > (options.share_max if are_many else options.few_share_max):
            return False
        # Few rows are left anyway: the filter would scan the key column of all rows for them.
        if left < options.left_min * table.rows:
            return False
        # The keys are computed before anything else runs: from less than what they save.
        if self._largest_table(keys) > options.source_max * table.rows:
            return False
        benefits = [
            len(scan.columns) > 1,  # the other columns of most rows are not read
            left < _TESTED * table.rows,  # predicates do not test most rows
            are_many,  # most rows are not looked up in a hash table that no cache holds
        ]
        return sum(benefits) * table.rows >= options.benefit_min

    def _can_be_keys(self, plan: PhysicalPlan) -> bool:
        """Whether a plan's rows can be stored before the fragment runs that joins them."""
        # What a broadcast delivers is an input of the fragment, ready before it starts. Any other
        # exchange delivers only the rows of this partition, or of too many.
        if isinstance(plan.operator, Broadcast):
            return self._can_store(plan.children[0])
        return not isinstance(plan.operator, Exchange) and self._can_store(plan)

    def _can_store(self, plan: PhysicalPlan) -> bool:
        are_storable = all(_STORED_TYPES.fullmatch(column.type) for column in plan.schema)
        return are_storable and self._reads_storable(plan)

    def _reads_storable(self, plan: PhysicalPlan) -> bool:
        if isinstance(plan.operator, ops.CteRef):
            return self.storable[plan.operator.index]
        return all(map(self._reads_storable, plan.children))

    def _largest_table(self, plan: PhysicalPlan) -> int:
        """The rows of the largest table that a plan reads."""
        match plan.operator:
            case ops.Scan(table=table):
                return self.catalog.get(table).rows
            case ops.CteRef(index=index):
                return self.largest[index]
            case _:
                return max(map(self._largest_table, plan.children), default=0)

    def _distinct(self, plan: PhysicalPlan, position: int) -> float:
        """About how many values a column has: no more than any column that it is equal to."""
        operator, count = plan.operator, plan.rows
        if isinstance(operator, ops.CteRef):
            # Remembered: CTEs that read CTEs would be walked once for each path to them.
            column = (operator.index, position)
            if column not in self.distinct:
                definition = self.definitions[operator.index]
                self.distinct[column] = self._distinct(definition, position)
            return min(count, self.distinct[column])
        if isinstance(operator, ops.Scan):
            name = operator.columns[position]
            table = self.catalog.get(operator.table)
            values = None if name is None else table.column_statistics(name)
            return (
                count if values is None or values.distinct is None else min(count, values.distinct)
            )
        below = _below(plan, position)
        if below is None:
            return count
        side, key = below
        count = min(count, self._distinct(plan.children[side], key))
        if isinstance(operator, ops.Join) and operator.kind in _KEEPS_MATCHES:
            for pair in _equal_columns(operator):
                # Equal to a column of the other side in every row that the join keeps.
                if pair[side] == key:
                    other = self._distinct(plan.children[1 - side], pair[1 - side])
                    count = min(count, other)
        return count

    def _filtered(self, plan: PhysicalPlan, candidate: _Candidate) -> PhysicalPlan:
        """The join over a common table expression and an input that is filtered by it."""
        keys, read = plan.children[1 - candidate.side], plan.children[candidate.side]
        is_broadcast = isinstance(keys.operator, Broadcast)
        # Below the broadcast, so that the definition stays where its rows are computed.
        definition = keys.children[0] if is_broadcast else keys
        is_whole = is_broadcast or isinstance(definition.distribution, Replicated)
        is_shared = isinstance(definition.operator, ops.CteRef)
        # The join and the filter share the keys: computing them twice would cost what is saved.
        if isinstance(definition.operator, ops.CteRef):
            index = definition.operator.index
        else:
            index = next(self.numbers)
            self._define(index, definition)
            reference = ops.CteRef(index, f"keys_{index}", definition.schema)
            read_again = replace(definition, operator=reference, children=())
            keys = replace(keys, children=(read_again,)) if is_broadcast else read_again
        key_filter = KeyFilter(
            column=candidate.column,
            cte=index,
            key=candidate.key,
            whole=is_whole,
            low=candidate.low,
            high=candidate.high,
            copied_max=self.options.copied_max,
        )
        read = _with_filter(read, candidate.position, key_filter, candidate.share)
        children = (read, keys) if candidate.side == 0 else (keys, read)
        joined = replace(plan, children=children)
        if is_shared:
            return joined
        operator = ops.Cte(index, f"keys_{index}")
        return replace(joined, operator=operator, children=(definition, joined))


def _equal_columns(join: ops.Join) -> Iterator[tuple[int, int]]:
    """The columns of both sides that must be equal."""
    for condition in join.conditions:
        if condition.is_equality:
            match condition.left, condition.right:
                case (ColumnRef(index=left), ColumnRef(index=right)):
                    yield left, right


def _below(plan: PhysicalPlan, position: int) -> tuple[int, int] | None:
    """The child, and the column of it, that the column at `position` is.

    None if it is computed, or if rows without a key could affect rows that have one.
    """
    operator = plan.operator
    source = operator.source(position)
    if isinstance(operator, ops.Join) and source is not None:
        # An outer join has rows for those of the other side that would lose their match.
        return source if operator.kind in (KEEPS_RIGHT if source[0] else KEEPS_LEFT) else None
    return source


def _scan_below(plan: PhysicalPlan, position: int) -> tuple[ops.Scan, str, float] | None:
    """The scan that a column comes from, the table's column, and how many rows filters leave."""
    if isinstance(plan.operator, ops.Scan):
        name = plan.operator.columns[position]
        # One filter per scan: a second one would have to wait for the copy of the first.
        if name is None or plan.operator.hints.key_filter is not None:
            return None
        return plan.operator, name, plan.rows
    below = _below(plan, position)
    if below is None:
        return None
    scanned = _scan_below(plan.children[below[0]], below[1])
    if scanned is None:
        return None
    scan, name, left = scanned
    return scan, name, min(left, plan.rows) if isinstance(plan.operator, ops.Filter) else left


def _with_filter(
    plan: PhysicalPlan, position: int, key_filter: KeyFilter, share: float
) -> PhysicalPlan:
    """`plan` with a filter of the scan that a column comes from, which leaves a share of its rows.

    The scan's own row count stays: a task reads its key column whole.
    """
    if isinstance(plan.operator, ops.Scan):
        hints = replace(plan.operator.hints, key_filter=key_filter)
        return replace(plan, operator=replace(plan.operator, hints=hints))
    below = _below(plan, position)
    assert below is not None
    side, column = below
    children = list(plan.children)
    children[side] = _with_filter(children[side], column, key_filter, share)
    return replace(plan, children=tuple(children), rows=max(1.0, plan.rows * share))


def attach_filter(plan: PhysicalPlan, fragment: Fragment) -> None:
    """Let a scan's input lose the rows without a key, once the keys are computed."""
    scan = plan.operator
    if not isinstance(scan, ops.Scan) or scan.hints.key_filter is None:
        return
    key_filter, name = scan.hints.key_filter, fragment.scanned(plan, scan)
    # Scans of the same table with the same filter share an input, and so the copy of its rows.
    present = fragment.key_filters.get(name)
    columns = (*(present.columns if present else ()), *(c for c in scan.columns if c is not None))
    fragment.key_filters[name] = InputKeyFilter(
        input=name,
        column=key_filter.column,
        keys=fragment.cte(key_filter.cte, whole=key_filter.whole),
        key=f"c{key_filter.key}",
        columns=tuple(dict.fromkeys(columns)),
        low=key_filter.low,
        high=key_filter.high,
        copied_max=key_filter.copied_max,
    )


def _explain(stage: Stage) -> Iterator[str]:
    for cte in stage.hints.ctes:
        yield f"computes {cte.name} first"
    for hint in stage.hints.key_filters:
        yield f"drops rows of {hint.input} whose {hint.column} is not in {hint.keys}"


SEMI_JOIN_FILTERS = Rule(
    name="semi_join_filters",
    doc="drop rows of large tables that no join needs before they are read",
    phase=Phase.PHYSICAL,
    apply=with_key_filters,
    options=SemiJoinFilterOptions(),
    everywhere=_EVERYWHERE,
    lower=attach_filter,
    explain=_explain,
)
