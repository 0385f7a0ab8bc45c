"""The relational operators, as data that describes itself.

Logical and physical plans share them: an operator says *what* is computed from its inputs, the plan
node around it adds children and, in a physical plan, the distribution of the rows. Positions in
expressions count the columns of the input (in a join: of the left input, then of the right one).

To add an operator: a class here, its lowering (`sql/lower.py`), its distribution and estimated rows
(`physical/planner.py`) and its SQL (`stages/fragment.py`); everything else asks the operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias

from minishark.compiler.hints import NO_HINTS, UNNAMED_SOURCE, ScanHints
from minishark.model.expressions import (
    AggregateCall,
    Column,
    ColumnRef,
    DictionaryValue,
    Expression,
    Names,
    Schema,
    SortKey,
    WindowCall,
    quote,
    render,
    render_aggregate,
    render_sort_keys,
    render_window,
)


class BaseOperator:
    """An operator's description of itself; the defaults are safe for any operator."""

    __slots__: tuple[str, ...] = ()

    order_matters: ClassVar[bool] = True  # whether the output may depend on the order of the input

    def __init_subclass__(cls, *, order_matters: bool | None = None) -> None:
        if order_matters is not None:  # dataclass makes a second class, without the argument
            cls.order_matters = order_matters

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        """The output columns, for inputs with these schemas."""
        return inputs[0]

    def label(self, inputs: Sequence[Schema]) -> str:
        """The operator in one line of EXPLAIN, with column names instead of positions."""
        return type(self).__name__

    def expressions(self) -> Iterator[Expression]:
        """Every expression that the operator computes: those in its fields."""
        return _expressions_in(getattr(self, name) for name in self.__slots__)

    def source(self, position: int) -> tuple[int, int] | None:
        """Which input, and column of it, an output column is passed through from."""
        # None where it is computed, or where an input row affects output rows of other values (as
        # in a limit): rules drop input rows by the values of such columns.
        return None


class _Leaf(BaseOperator):
    """An operator without inputs, which knows its schema."""

    __slots__ = ()
    schema: Schema

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        return self.schema


def _expressions_in(parts: Iterable[object]) -> Iterator[Expression]:
    for part in parts:
        match part:
            case tuple():
                yield from _expressions_in(part)
            case SortKey():
                yield part.expression
            case JoinCondition():
                yield from (part.left, part.right)
            case AggregateCall() | WindowCall():
                yield from part.expressions()
            case _ if isinstance(part, Expression):
                yield part


def column_names(*inputs: Schema) -> list[str]:
    return [column.name or f"#{i}" for i, column in enumerate(c for s in inputs for c in s)]


class JoinKind(StrEnum):
    """DuckDB's join types. RIGHT_SEMI and RIGHT_ANTI keep rows of the right input."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"
    RIGHT_SEMI = "right semi"
    RIGHT_ANTI = "right anti"
    MARK = "mark"
    SINGLE = "single"


@dataclass(frozen=True, slots=True)
class JoinCondition:
    """`left comparison right`: `left` over the left input, `right` over the right input."""

    left: Expression
    comparison: str
    right: Expression

    @property
    def is_equality(self) -> bool:
        """Whether equal keys are needed, so that hash partitioning on them is sound."""
        return self.comparison in ("=", "IS NOT DISTINCT FROM")


@dataclass(frozen=True, slots=True)
class Scan(_Leaf, order_matters=False):
    """Columns of a table."""

    table: str
    columns: tuple[str | None, ...]  # None for "no column needed, only the rows"
    schema: Schema
    hints: ScanHints = NO_HINTS  # what optimizer rules attach, in a physical plan

    def label(self, inputs: Sequence[Schema]) -> str:
        columns = ", ".join(column or "-" for column in self.columns)
        # The hints tell what a source is that has no name of its own.
        named = "" if self.table.startswith(UNNAMED_SOURCE) else f"{self.table} "
        return f"Scan {named}[{columns}]{self.hints.label}"


@dataclass(frozen=True, slots=True)
class Filter(BaseOperator, order_matters=False):
    """The rows for which all `predicates` are true; of them the columns at `output`."""

    predicates: tuple[Expression, ...]
    output: tuple[int, ...]

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        return tuple(inputs[0][i] for i in self.output)

    def label(self, inputs: Sequence[Schema]) -> str:
        names = column_names(*inputs)
        return f"Filter {' AND '.join(render(p, names) for p in self.predicates) or 'true'}"

    def source(self, position: int) -> tuple[int, int] | None:
        return 0, self.output[position]


@dataclass(frozen=True, slots=True)
class Project(BaseOperator, order_matters=False):
    """One output column per expression in `outputs`."""

    outputs: tuple[Expression, ...]
    names: tuple[str, ...]

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        return tuple(Column(n, e.type) for n, e in zip(self.names, self.outputs, strict=True))

    def label(self, inputs: Sequence[Schema]) -> str:
        names = column_names(*inputs)
        return f"Project {', '.join(_projected(e, names) for e in self.outputs)}"

    def source(self, position: int) -> tuple[int, int] | None:
        expression = self.outputs[position]
        return (0, expression.index) if isinstance(expression, ColumnRef) else None


def _projected(expression: Expression, names: Names) -> str:
    if isinstance(expression, DictionaryValue):
        return f"text of {render(expression.code, names)}"
    return render(expression, names)


@dataclass(frozen=True, slots=True)
class Aggregate(BaseOperator):
    """Groups first, then aggregates, then one GROUPING() value per entry of `grouping_functions`.

    `grouping_sets` holds positions in `groups`; it is empty for a plain GROUP BY.
    """

    groups: tuple[Expression, ...]
    aggregates: tuple[AggregateCall, ...]
    grouping_sets: tuple[tuple[int, ...], ...] = ()
    grouping_functions: tuple[tuple[int, ...], ...] = ()

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        (child,) = inputs
        quoted = [quote(column.name) for column in child]
        groups = tuple(
            Column(child[g.index].name if isinstance(g, ColumnRef) else render(g, quoted), g.type)
            for g in self.groups
        )
        aggregates = tuple(Column(call.name, call.type) for call in self.aggregates)
        return groups + aggregates + (Column("grouping", "BIGINT"),) * len(self.grouping_functions)

    def label(self, inputs: Sequence[Schema]) -> str:
        names = column_names(*inputs)
        calls = ", ".join(render_aggregate(call, names) for call in self.aggregates) or "-"
        groups = [render(group, names) for group in self.groups]
        if self.grouping_sets:
            sets = (f"({', '.join(groups[i] for i in s)})" for s in self.grouping_sets)
            return f"Aggregate {calls} by grouping sets {', '.join(sets)}"
        return f"Aggregate {calls} by {', '.join(groups)}" if groups else f"Aggregate {calls}"

    def source(self, position: int) -> tuple[int, int] | None:
        is_group = position < len(self.groups) and not self.grouping_sets
        group = self.groups[position] if is_group else None
        return (0, group.index) if isinstance(group, ColumnRef) else None


@dataclass(frozen=True, slots=True)
class Join(BaseOperator, order_matters=False):
    """A join; `residual` predicates range over the left columns followed by the right ones.

    `left_output` and `right_output` are the columns that are kept of each side; a mark join
    adds one BOOLEAN after the left ones.
    """

    kind: JoinKind
    conditions: tuple[JoinCondition, ...]
    residual: tuple[Expression, ...]
    left_output: tuple[int, ...]
    right_output: tuple[int, ...]

    @property
    def keeps_left_columns(self) -> bool:
        return self.kind not in (JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI)

    @property
    def keeps_right_columns(self) -> bool:
        return self.kind not in (JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK)

    def source(self, position: int) -> tuple[int, int] | None:
        """As of any operator; None for a mark. Outer joins pass NULLs on, too."""
        width = len(self.left_output) if self.keeps_left_columns else 0
        if position < width:
            return 0, self.left_output[position]
        if self.kind is JoinKind.MARK:
            return None
        return 1, self.right_output[position - width]

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        left, right = inputs
        kept: Schema = ()
        if self.keeps_left_columns:
            kept += tuple(left[i] for i in self.left_output)
        if self.keeps_right_columns:
            kept += tuple(right[i] for i in self.right_output)
        return (*kept, Column("mark", "BOOLEAN")) if self.kind is JoinKind.MARK else kept

    def label(self, inputs: Sequence[Schema]) -> str:
        left, right = map(column_names, inputs)
        conditions = [
            f"{render(c.left, left)} {c.comparison} {render(c.right, right)}"
            for c in self.conditions
        ]
        conditions += [render(predicate, left + right) for predicate in self.residual]
        return f"Join {self.kind} on {' AND '.join(conditions) or 'true'}"


@dataclass(frozen=True, slots=True)
class Sort(BaseOperator, order_matters=False):
    """All rows in the order of `keys`; of them the columns at `output`.

    Where it is `stable`, rows with equal keys stay in the order in which they come.
    """

    keys: tuple[SortKey, ...]
    output: tuple[int, ...]
    stable: bool = False

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        return tuple(inputs[0][i] for i in self.output)

    def label(self, inputs: Sequence[Schema]) -> str:
        return f"Sort {render_sort_keys(self.keys, column_names(*inputs))}"

    def source(self, position: int) -> tuple[int, int] | None:
        return 0, self.output[position]


@dataclass(frozen=True, slots=True)
class Limit(BaseOperator):
    """`limit` rows (None: all) after the first `offset`."""

    limit: int | None
    offset: int

    def label(self, inputs: Sequence[Schema]) -> str:
        limit = "all" if self.limit is None else self.limit
        return f"Limit {limit}{f' offset {self.offset}' if self.offset else ''}"


@dataclass(frozen=True, slots=True)
class TopN(BaseOperator):
    """The first `limit` rows after `offset` in the order of `keys`; `stable` as in `Sort`."""

    keys: tuple[SortKey, ...]
    limit: int
    offset: int
    stable: bool = False

    def label(self, inputs: Sequence[Schema]) -> str:
        offset = f" offset {self.offset}" if self.offset else ""
        return f"TopN {self.limit}{offset} by {render_sort_keys(self.keys, column_names(*inputs))}"


@dataclass(frozen=True, slots=True)
class Distinct(BaseOperator, order_matters=False):
    """Each different row once."""

    def source(self, position: int) -> tuple[int, int] | None:
        return 0, position


@dataclass(frozen=True, slots=True)
class DistinctOn(BaseOperator):
    """The first row, in the order of `keys`, for each different value of `targets`."""

    targets: tuple[Expression, ...]
    keys: tuple[SortKey, ...]

    def label(self, inputs: Sequence[Schema]) -> str:
        names = column_names(*inputs)
        return f"DistinctOn {', '.join(render(target, names) for target in self.targets)}"


@dataclass(frozen=True, slots=True)
class Window(BaseOperator):
    """The input columns, then one column per window function."""

    calls: tuple[WindowCall, ...]

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        return inputs[0] + tuple(Column(call.name, call.type) for call in self.calls)

    def label(self, inputs: Sequence[Schema]) -> str:
        names = column_names(*inputs)
        return f"Window {', '.join(render_window(call, names) for call in self.calls)}"


@dataclass(frozen=True, slots=True)
class Unnest(BaseOperator, order_matters=False):
    """The input columns, then one per list; a row for each element of the longest list."""

    lists: tuple[Expression, ...]
    types: tuple[str, ...]

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        return inputs[0] + tuple(Column("unnest", type_) for type_ in self.types)

    def label(self, inputs: Sequence[Schema]) -> str:
        names = column_names(*inputs)
        return f"Unnest {', '.join(render(item, names) for item in self.lists)}"


class SetKind(StrEnum):
    """The set operations."""

    UNION = "UNION"
    INTERSECT = "INTERSECT"
    EXCEPT = "EXCEPT"


@dataclass(frozen=True, slots=True)
class SetOperation(BaseOperator, order_matters=False):
    """A set operation on two inputs with the same types; `keep_all` for the ALL forms."""

    kind: SetKind
    keep_all: bool

    def label(self, inputs: Sequence[Schema]) -> str:
        return f"{self.kind}{' ALL' if self.keep_all else ''}"


@dataclass(frozen=True, slots=True)
class Values(_Leaf, order_matters=False):
    """Constant rows; no rows and a schema make an empty relation."""

    rows: tuple[tuple[Expression, ...], ...]
    schema: Schema

    def label(self, inputs: Sequence[Schema]) -> str:
        return f"Values {len(self.rows)} rows"


@dataclass(frozen=True, slots=True)
class Cte(BaseOperator, order_matters=False):
    """Children: the definition, computed once, and the plan that reads it through `CteRef`."""

    index: int
    name: str

    def output_schema(self, inputs: Sequence[Schema]) -> Schema:
        return inputs[1]

    def label(self, inputs: Sequence[Schema]) -> str:
        return f"Cte {self.name} (#{self.index})"

    def source(self, position: int) -> tuple[int, int] | None:
        return 1, position


@dataclass(frozen=True, slots=True)
class CteRef(_Leaf, order_matters=False):
    """The rows of the common table expression `index`."""

    index: int
    name: str
    schema: Schema

    def label(self, inputs: Sequence[Schema]) -> str:
        return f"CteRef #{self.index}"


@dataclass(frozen=True, slots=True)
class Statement(_Leaf):
    """A whole statement, run by DuckDB as it was written over all rows of `tables`.

    The fallback for whatever has no distributed form; `reason` says what that was.
    """

    sql: str
    tables: tuple[str, ...]
    reason: str
    schema: Schema
    titles: tuple[str, ...] = ()  # what users know the tables as

    def label(self, inputs: Sequence[Schema]) -> str:
        return (
            f"Statement over {', '.join(self.titles or self.tables) or 'no table'}: {self.reason}"
        )


Operator: TypeAlias = (
    Scan
    | Filter
    | Project
    | Aggregate
    | Join
    | Sort
    | Limit
    | TopN
    | Distinct
    | DistinctOn
    | Window
    | Unnest
    | SetOperation
    | Values
    | Cte
    | CteRef
    | Statement
)
