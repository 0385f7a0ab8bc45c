"""Semi-join filters: rows of large tables that no join wants are dropped early. Pure.

DuckDB filters its own tables by the keys of the joins above them, but takes no filters for Arrow
data, of which each row is looked up in a hash table then. Here the side of a join with few keys
becomes a common table expression, which tasks compute first; then they scan the key column of the
large table and copy the rows that have one of these keys. Which share of the rows that is, they
see before they copy, so a wrong estimate costs little.

Related work: sideways information passing; the semi-join reducers of Bernstein and Chiu (Using
Semi-Joins to Solve Relational Queries, 1981).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from minishark.catalog import Catalog, Table
from minishark.compiler.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    Filter,
    Join,
    JoinKind,
    KeyFilter,
    Project,
    Scan,
    Sort,
)
from minishark.compiler.physical.options import KeyFilterOptions
from minishark.compiler.physical.plan import (
    Broadcast,
    Exchange,
    FinalAggregate,
    PartialAggregate,
    PhysicalPlan,
    Replicated,
)
from minishark.expressions import ColumnRef, Schema

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
    JoinKind.INNER,
    JoinKind.RIGHT,
    JoinKind.SEMI,
    JoinKind.RIGHT_SEMI,
    JoinKind.RIGHT_ANTI,
)
_RIGHT_MAY_DROP = (
    JoinKind.INNER,
    JoinKind.LEFT,
    JoinKind.SEMI,
    JoinKind.RIGHT_SEMI,
    JoinKind.ANTI,
)
"""Joins whose rows of that side have no effect if the other side has none of their keys."""

_KEEPS_MATCHES = (JoinKind.INNER, JoinKind.SEMI, JoinKind.RIGHT_SEMI)
"""Joins whose rows have columns that are equal to one of the other side."""

_PASSES_LEFT = (
    JoinKind.INNER,
    JoinKind.LEFT,
    JoinKind.SEMI,
    JoinKind.ANTI,
    JoinKind.MARK,
    JoinKind.SINGLE,
)
_PASSES_RIGHT = (JoinKind.INNER, JoinKind.RIGHT, JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI)
"""Joins of which each row has the columns of one row of that side, and depends on no other."""


def with_key_filters(
    plan: PhysicalPlan, catalog: Catalog, options: KeyFilterOptions
) -> PhysicalPlan:
    """`plan` with semi-join filters where they pay.

    Args:
        plan: a physical plan.
        catalog: the tables that it scans.
        options: where they pay.
    """
    return _Filters(catalog, options, count(_first_free(plan))).rewritten(plan)


def _first_free(plan: PhysicalPlan) -> int:
    """A number that is above those of all common table expressions."""
    own = plan.operator.index + 1 if isinstance(plan.operator, Cte) else 0
    return max((own, *map(_first_free, plan.children)))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A scan that could be filtered: the input of a join that it is in, and by which keys.

    Attributes:
        side: the input.
        position: the join's key among the input's columns.
        column: the table's column that it is.
        key: the column of the other input.
        share: about which part of the table's rows is left.
        low: the table's smallest key.
        high: its largest one.
    """

    side: int
    position: int
    column: str
    key: int
    share: float
    low: int
    high: int


@dataclass(slots=True)
class _Filters:
    """Puts filters into a plan.

    Attributes:
        catalog: the tables that it scans.
        options: where filters pay.
        numbers: for new common table expressions.
        definitions: the common table expressions that are known.
        storable: which of them can be stored.
        largest: the rows of the largest table that each of them reads.
        distinct: how many values their columns have, by number and position.
    """

    catalog: Catalog
    options: KeyFilterOptions
    numbers: Iterator[int]
    definitions: dict[int, PhysicalPlan] = field(default_factory=dict)
    storable: dict[int, bool] = field(default_factory=dict)
    largest: dict[int, int] = field(default_factory=dict)
    distinct: dict[tuple[int, int], float] = field(default_factory=dict)

    def rewritten(self, plan: PhysicalPlan) -> PhysicalPlan:
        """`plan` with filters; inner joins choose first."""
        if isinstance(plan.operator, Cte):
            definition = self.rewritten(plan.children[0])
            self._define(plan.operator.index, definition)
            children: tuple[PhysicalPlan, ...] = (definition, self.rewritten(plan.children[1]))
        else:
            children = tuple(map(self.rewritten, plan.children))
        if any(new is not old for new, old in zip(children, plan.children, strict=True)):
            plan = replace(plan, children=children)
        if not isinstance(plan.operator, Join):
            return plan
        found = min(self._candidates(plan, plan.operator), key=lambda c: c.share, default=None)
        return plan if found is None else self._filtered(plan, found)

    def _define(self, index: int, definition: PhysicalPlan) -> None:
        self.definitions[index] = definition
        self.storable[index] = self._can_store(definition)
        self.largest[index] = self._largest_table(definition)

    def _candidates(self, plan: PhysicalPlan, join: Join) -> Iterator[_Candidate]:
        left, right = plan.children
        for a, b in _equal_columns(join):
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
        """What there is to gain if the table below `read` is filtered by the rows of `keys`."""
        found = _scan_below(read, position)
        if found is None or not self._can_be_keys(keys):
            return
        scan, name, left = found
        table = self.catalog.get(scan.table)
        known = table.column_statistics(name)
        if known is None or known.minimum is None or known.maximum is None or not known.distinct:
            return
        low, high = int(known.minimum), int(known.maximum)
        share = min(1.0, self._distinct(keys, key) / known.distinct)
        if high - low < _SPAN_MAX and self._pays(scan, table, left, keys, share):
            yield _Candidate(side, position, name, key, share, low, high)

    def _pays(
        self, scan: Scan, table: Table, left: float, keys: PhysicalPlan, share: float
    ) -> bool:
        """Whether it takes less time to filter a table than to join it as it is.

        Args:
            scan: reads the table.
            table: the table.
            left: how many rows the query's own predicates leave.
            keys: the rows that it is joined with.
            share: about which part of its keys they have.
        """
        options = self.options
        are_many = keys.rows >= options.keys_many
        if share > (options.share_max if are_many else options.few_share_max):
            return False
        if left < options.left_min * table.rows:
            return False
        if self._largest_table(keys) > options.source_max * table.rows:
            return False
        spared = [
            len(scan.columns) > 1,  # the other columns of most rows are not read
            left < _TESTED * table.rows,  # nor do predicates test them
            are_many,  # nor are they looked up in a hash table that no cache holds
        ]
        return sum(spared) * table.rows >= options.rows_min

    def _can_be_keys(self, plan: PhysicalPlan) -> bool:
        """Whether a plan's rows can be stored before the fragment runs that joins them."""
        if isinstance(plan.operator, Broadcast):
            return self._can_store(plan.children[0])
        return not isinstance(plan.operator, Exchange) and self._can_store(plan)

    def _can_store(self, plan: PhysicalPlan) -> bool:
        return _is_storable(plan.schema) and self._reads_storable(plan)

    def _reads_storable(self, plan: PhysicalPlan) -> bool:
        if isinstance(plan.operator, CteRef):
            return self.storable[plan.operator.index]
        return all(map(self._reads_storable, plan.children))

    def _largest_table(self, plan: PhysicalPlan) -> int:
        """The rows of the largest table that a plan reads."""
        match plan.operator:
            case Scan(table=table):
                return self.catalog.get(table).rows
            case CteRef(index=index):
                return self.largest[index]
            case _:
                return max(map(self._largest_table, plan.children), default=0)

    def _distinct(self, plan: PhysicalPlan, position: int) -> float:
        """About how many values a column has: no more than any column that it is equal to."""
        operator, found = plan.operator, plan.rows
        if isinstance(operator, CteRef):
            column = (operator.index, position)
            if column not in self.distinct:
                definition = self.definitions[operator.index]
                self.distinct[column] = self._distinct(definition, position)
            return min(found, self.distinct[column])
        if isinstance(operator, Scan):
            name = operator.columns[position]
            table = self.catalog.get(operator.table)
            known = None if name is None else table.column_statistics(name)
            return found if known is None or known.distinct is None else min(found, known.distinct)
        below = _below(plan, position)
        if below is None:
            return found
        side, key = below
        found = min(found, self._distinct(plan.children[side], key))
        if isinstance(operator, Join) and operator.kind in _KEEPS_MATCHES:
            for pair in _equal_columns(operator):
                if pair[side] == key:
                    other = self._distinct(plan.children[1 - side], pair[1 - side])
                    found = min(found, other)
        return found

    def _filtered(self, plan: PhysicalPlan, found: _Candidate) -> PhysicalPlan:
        """The join over a common table expression and an input that is filtered by it."""
        keys, read = plan.children[1 - found.side], plan.children[found.side]
        is_broadcast = isinstance(keys.operator, Broadcast)
        definition = keys.children[0] if is_broadcast else keys
        is_whole = is_broadcast or isinstance(definition.distribution, Replicated)
        is_shared = isinstance(definition.operator, CteRef)
        if isinstance(definition.operator, CteRef):
            index = definition.operator.index
        else:
            index = next(self.numbers)
            self._define(index, definition)
            reference = CteRef(index, f"keys_{index}", definition.schema)
            read_again = replace(definition, operator=reference, children=())
            keys = replace(keys, children=(read_again,)) if is_broadcast else read_again
        key_filter = KeyFilter(
            column=found.column,
            cte=index,
            key=found.key,
            whole=is_whole,
            low=found.low,
            high=found.high,
            most=self.options.kept_max,
        )
        read = _with_filter(read, found.position, key_filter, found.share)
        children = (read, keys) if found.side == 0 else (keys, read)
        joined = replace(plan, children=children)
        if is_shared:
            return joined
        operator = Cte(index, f"keys_{index}")
        return replace(joined, operator=operator, children=(definition, joined))


def _equal_columns(join: Join) -> Iterator[tuple[int, int]]:
    """The columns of both sides that must be equal."""
    for condition in join.conditions:
        if condition.is_equality:
            match condition.left, condition.right:
                case (ColumnRef(index=left), ColumnRef(index=right)):
                    yield left, right


def _is_storable(schema: Schema) -> bool:
    return all(_STORED_TYPES.fullmatch(column.type) for column in schema)


def _below(plan: PhysicalPlan, position: int) -> tuple[int, int] | None:
    """The child, and the column of it, that the column at `position` is.

    None if it is not just that, or rows without a key could matter to rows that have one.
    """
    match plan.operator:
        case Filter(output=output) | Sort(output=output):
            return 0, output[position]
        case Project(expressions=expressions):
            expression = expressions[position]
            return (0, expression.index) if isinstance(expression, ColumnRef) else None
        case (
            Aggregate(groups=groups, grouping_sets=())
            | PartialAggregate(complete=Aggregate(groups=groups))
        ):
            group = groups[position] if position < len(groups) else None
            return (0, group.index) if isinstance(group, ColumnRef) else None
        case FinalAggregate(complete=Aggregate(groups=groups, grouping_sets=())):
            return (0, position) if position < len(groups) else None
        case Distinct():
            return 0, position
        case Cte():
            return 1, position
        case Join(kind=kind):
            source = plan.operator.source(position)
            passes = _PASSES_RIGHT if source is not None and source[0] else _PASSES_LEFT
            return source if kind in passes else None
        case _:
            return None


def _scan_below(plan: PhysicalPlan, position: int) -> tuple[Scan, str, float] | None:
    """The scan that a column comes from, the table's column, and how many rows filters leave."""
    if isinstance(plan.operator, Scan):
        name = plan.operator.columns[position]
        if name is None or plan.operator.key_filter is not None:
            return None
        return plan.operator, name, plan.rows
    below = _below(plan, position)
    if below is None:
        return None
    found = _scan_below(plan.children[below[0]], below[1])
    if found is None:
        return None
    scan, name, left = found
    return scan, name, min(left, plan.rows) if isinstance(plan.operator, Filter) else left


def _with_filter(
    plan: PhysicalPlan, position: int, key_filter: KeyFilter, share: float
) -> PhysicalPlan:
    """`plan` with a filter of the scan that a column comes from; about a share of rows is left.

    The scan still reads all.
    """
    if isinstance(plan.operator, Scan):
        return replace(plan, operator=replace(plan.operator, key_filter=key_filter))
    below = _below(plan, position)
    assert below is not None
    side, column = below
    children = list(plan.children)
    children[side] = _with_filter(children[side], column, key_filter, share)
    return replace(plan, children=tuple(children), rows=max(1.0, plan.rows * share))
