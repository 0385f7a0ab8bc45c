"""The relational operators, as data.

Logical and physical plans share them: an operator says *what* is computed from its inputs, the plan
node around it adds children and, in a physical plan, where the rows lie. Positions in expressions
count the columns of the input (in a join: of the left input, then of the right one).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from minishark.expressions import AggregateCall, Expression, Schema, SortKey, WindowCall


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
class KeyFilter:
    """A semi-join filter of a scan: rows whose integer is not a key may be dropped.

    Attributes:
        column: the table's column.
        cte: the common table expression that has the keys,
        key: in the column at this position.
        whole: whether the keys of all its partitions count, not only those of the scan's own.
        low: the smallest value in `column`.
        high: the largest one.
        most: if a larger share of the rows has a key, from 0 to 1, all of them are read.
    """

    column: str
    cte: int
    key: int
    whole: bool
    low: int
    high: int
    most: float


@dataclass(frozen=True, slots=True)
class GroupRuns:
    """What is known of the groups that the aggregate above a scan makes of its rows.

    Attributes:
        key: the table's column that they are made by.
        values: of each aggregate the function (sum, count, min or max) and the table's column,
            which is empty for a count of rows.
        sum_max: no value that is summed up is further from 0, in units of the last digit.
    """

    key: str
    values: tuple[tuple[str, str], ...]
    sum_max: int


@dataclass(frozen=True, slots=True)
class Scan:
    """Columns of a table.

    Attributes:
        table: the table.
        columns: a column that is None stands for "no column needed, only the rows".
        schema: the columns.
        coded: in a physical plan, those of `columns` that are the numbers of text in the
            dictionary that it is stored with, each with the column of that text.
        key_filter: in a physical plan, which rows are not needed.
        runs: in a physical plan, the groups of its rows, if they may be found as runs of rows that
            follow one another.
    """

    table: str
    columns: tuple[str | None, ...]
    schema: Schema
    coded: tuple[tuple[str, str], ...] = ()
    key_filter: KeyFilter | None = None
    runs: GroupRuns | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows for which all `predicates` are true; of them the columns at `output`."""

    predicates: tuple[Expression, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Project:
    """One output column per expression."""

    expressions: tuple[Expression, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Groups first, then aggregates, then one GROUPING() value per entry of `grouping_functions`.

    `grouping_sets` holds positions in `groups`; it is empty for a plain GROUP BY.
    """

    groups: tuple[Expression, ...]
    aggregates: tuple[AggregateCall, ...]
    grouping_sets: tuple[tuple[int, ...], ...] = ()
    grouping_functions: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Join:
    """A join; `residual` predicates range over the left columns followed by the right ones.

    `left_output` and `right_output` are the columns that are kept of each side; a mark join
    adds one BOOLEAN after the left ones.
    """

    kind: JoinKind
    conditions: tuple[JoinCondition, ...]
    residual: tuple[Expression, ...]
    left_output: tuple[int, ...]
    right_output: tuple[int, ...]

    def source(self, position: int) -> tuple[int, int] | None:
        """Which input (0 or 1), and column of it, an output column is; None for a mark."""
        keeps_right_only = self.kind in (JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI)
        width = 0 if keeps_right_only else len(self.left_output)
        if position < width:
            return 0, self.left_output[position]
        if self.kind is JoinKind.MARK:
            return None
        return 1, self.right_output[position - width]


@dataclass(frozen=True, slots=True)
class Sort:
    """All rows in the order of `keys`; of them the columns at `output`.

    Where it is `stable`, rows with equal keys stay in the order in which they come.
    """

    keys: tuple[SortKey, ...]
    output: tuple[int, ...]
    stable: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """`limit` rows (None: all) after the first `offset`."""

    limit: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class TopN:
    """The first `limit` rows after `offset` in the order of `keys`; `stable` as in `Sort`."""

    keys: tuple[SortKey, ...]
    limit: int
    offset: int
    stable: bool = False


@dataclass(frozen=True, slots=True)
class Distinct:
    """Each different row once."""


@dataclass(frozen=True, slots=True)
class DistinctOn:
    """The first row, in the order of `keys`, for each different value of `targets`."""

    targets: tuple[Expression, ...]
    keys: tuple[SortKey, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The input columns, then one column per window function."""

    calls: tuple[WindowCall, ...]


@dataclass(frozen=True, slots=True)
class Unnest:
    """The input columns, then one per list; a row for each element of the longest list."""

    lists: tuple[Expression, ...]
    types: tuple[str, ...]


class SetKind(StrEnum):
    """The set operations."""

    UNION = "UNION"
    INTERSECT = "INTERSECT"
    EXCEPT = "EXCEPT"


@dataclass(frozen=True, slots=True)
class SetOperation:
    """A set operation on two inputs with the same types; `keep_all` for the ALL forms."""

    kind: SetKind
    keep_all: bool


@dataclass(frozen=True, slots=True)
class Values:
    """Constant rows; no rows and a schema make an empty relation."""

    rows: tuple[tuple[Expression, ...], ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class Cte:
    """Children: the definition, computed once, and the plan that reads it through `CteRef`."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CteRef:
    """The rows of the common table expression `index`."""

    index: int
    name: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class Statement:
    """A whole statement, run by DuckDB as it was written over all rows of `tables`.

    The way out for whatever has no distributed form; `reason` says what that was.
    """

    sql: str
    tables: tuple[str, ...]
    reason: str
    schema: Schema


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
