"""Typed scalar expressions, aggregates and sort keys, and their SQL.

A column is a *position* in the output of the operator below (in a join: in the left output followed
by the right one), as in DuckDB's own bound plans; names appear only when a fragment is rendered.
Types are DuckDB's type names as text (``DECIMAL(15,2)``). Everything here is immutable and pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

Names: TypeAlias = Sequence[str]  # the SQL text of each input column, by position


@dataclass(frozen=True, slots=True)
class Column:
    """An output column: its name (for display) and its DuckDB type."""

    name: str
    type: str


Schema: TypeAlias = tuple[Column, ...]

DUCKDB_TYPE = b"duckdb_type"
"""In the metadata of Arrow's fields: DuckDB's type, where Arrow has none that says it."""

WIDE_INTEGERS = ("HUGEINT", "UHUGEINT")


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """The input column at position `index`."""

    index: int
    type: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; `sql` is text that DuckDB reads back as the same value of the same type.

    `value` is the plain Python value where selectivity estimates can use it, else None.
    """

    sql: str
    type: str
    value: int | float | str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A function called by name."""

    name: str
    arguments: tuple[Expression, ...]
    type: str


@dataclass(frozen=True, slots=True)
class Infix:
    """`a op b [op c ...]`: arithmetic, comparisons, AND, OR, and named operators such as `~~`."""

    operator: str
    arguments: tuple[Expression, ...]
    type: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """`op a`: NOT and unary minus."""

    operator: str
    argument: Expression
    type: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """`a IS [NOT] NULL`."""

    argument: Expression
    negated: bool
    type: str = "BOOLEAN"


@dataclass(frozen=True, slots=True)
class InList:
    """`a [NOT] IN (b, c, ...)`."""

    argument: Expression
    options: tuple[Expression, ...]
    negated: bool
    type: str = "BOOLEAN"


@dataclass(frozen=True, slots=True)
class Cast:
    """`CAST(a AS type)`, or TRY_CAST."""

    argument: Expression
    type: str
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN condition THEN value ... ELSE otherwise END`."""

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression
    type: str


@dataclass(frozen=True, slots=True)
class DictionaryValue:
    """The text of a dictionary code."""

    code: Expression  # the code, from 0 on
    relation: str  # a relation of one row, with the dictionary of each column as a list
    column: str  # the column whose dictionary it is
    type: str = "VARCHAR"


Expression: TypeAlias = (
    ColumnRef | Literal | Call | Infix | Prefix | IsNull | InList | Cast | Case | DictionaryValue
)


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of an ORDER BY."""

    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateCall:
    """An aggregate function over the rows of a group."""

    name: str
    arguments: tuple[Expression, ...]
    type: str
    distinct: bool = False
    filter: Expression | None = None
    order_by: tuple[SortKey, ...] = ()

    def expressions(self) -> Iterator[Expression]:
        yield from self.arguments
        yield from () if self.filter is None else (self.filter,)
        yield from (key.expression for key in self.order_by)


@dataclass(frozen=True, slots=True)
class FrameBound:
    """One end of a window frame: `kind` as SQL writes it, after `offset` where it has one."""

    kind: str
    offset: Expression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCall:
    """A window function over the rows of a partition."""

    name: str
    arguments: tuple[Expression, ...]
    type: str
    partition_by: tuple[Expression, ...]
    order_by: tuple[SortKey, ...]
    unit: str
    start: FrameBound
    end: FrameBound
    exclude: str = ""  # the text after EXCLUDE, "" for none
    filter: Expression | None = None
    distinct: bool = False
    ignore_nulls: bool = False
    argument_order: tuple[SortKey, ...] = ()  # an ORDER BY inside the parentheses

    def expressions(self) -> Iterator[Expression]:
        yield from self.arguments
        yield from self.partition_by
        yield from () if self.filter is None else (self.filter,)
        yield from (key.expression for key in (*self.order_by, *self.argument_order))


def children(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case ColumnRef() | Literal():
            return ()
        case Call(arguments=arguments) | Infix(arguments=arguments):
            return arguments
        case Prefix(argument=argument) | IsNull(argument=argument) | Cast(argument=argument):
            return (argument,)
        case InList(argument=argument, options=options):
            return (argument, *options)
        case Case(branches=branches, otherwise=otherwise):
            return (*(part for branch in branches for part in branch), otherwise)
        case DictionaryValue(code=code):
            return (code,)
        case _:
            assert_never(expression)


def references(expression: Expression) -> Iterator[ColumnRef]:
    """Every column reference in `expression`, left to right, with repetitions."""
    if isinstance(expression, ColumnRef):
        yield expression
    for child in children(expression):
        yield from references(child)


_VOLATILE_FUNCTIONS = frozenset(
    ["random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "setseed", "sleep_ms"]
)


def is_volatile(expression: Expression) -> bool:
    """Whether `expression` may have another value at each evaluation."""
    if isinstance(expression, Call) and expression.name in _VOLATILE_FUNCTIONS:
        return True
    return any(map(is_volatile, children(expression)))


def transform(expression: Expression, change: Callable[[ColumnRef], Expression]) -> Expression:
    """`expression` with every column reference replaced by the result of `change`."""

    def walk(node: Expression) -> Expression:
        match node:
            case ColumnRef():
                return change(node)
            case Literal():
                return node
            case Call() | Infix():
                return replace(node, arguments=tuple(map(walk, node.arguments)))
            case Prefix() | IsNull() | Cast():
                return replace(node, argument=walk(node.argument))
            case InList():
                options = tuple(map(walk, node.options))
                return replace(node, argument=walk(node.argument), options=options)
            case Case():
                branches = tuple((walk(when), walk(then)) for when, then in node.branches)
                return replace(node, branches=branches, otherwise=walk(node.otherwise))
            case DictionaryValue():
                return replace(node, code=walk(node.code))
            case _:
                assert_never(node)

    return walk(expression)


def quote(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def declared(
    columns: Schema, required: Collection[str] = (), defaults: Mapping[int, str] = {}
) -> str:
    """The columns of a table as CREATE TABLE has them between its brackets.

    Args:
        columns: what they are called, and of which type they are.
        required: the names of those that are never NULL.
        defaults: expressions, by the columns' places.
    """
    return ", ".join(
        f"{quote(column.name)} {column.type}{' NOT NULL' * (column.name in required)}"
        f"{f' DEFAULT ({defaults[i]})' if i in defaults else ''}"
        for i, column in enumerate(columns)
    )


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_SYNTAX = frozenset(["coalesce"])  # syntax that looks like a function, but can't be quoted as one


def render(expression: Expression, names: Names) -> str:
    """`expression` as SQL over input columns called `names`."""

    def sql(node: Expression) -> str:
        match node:
            case ColumnRef(index=index):
                return names[index]
            case Literal(sql=text):
                return text
            case Call(name=name, arguments=arguments):
                called = name if name in _SYNTAX else quote(name)
                return f"{called}({', '.join(map(sql, arguments))})"
            case Infix(operator=operator, arguments=arguments):
                return "(" + f" {operator} ".join(map(sql, arguments)) + ")"
            case Prefix(operator=operator, argument=argument):
                return f"({operator} {sql(argument)})"
            case IsNull(argument=argument, negated=negated):
                return f"({sql(argument)} IS {'NOT ' if negated else ''}NULL)"
            case InList(argument=argument, options=options, negated=negated):
                choices = ", ".join(map(sql, options))
                return f"({sql(argument)} {'NOT ' if negated else ''}IN ({choices}))"
            case Cast(argument=argument, type=type_, lenient=lenient):
                return f"{'TRY_CAST' if lenient else 'CAST'}({sql(argument)} AS {type_})"
            case Case(branches=branches, otherwise=otherwise):
                whens = " ".join(f"WHEN {sql(a)} THEN {sql(b)}" for a, b in branches)
                return f"(CASE {whens} ELSE {sql(otherwise)} END)"
            case DictionaryValue(code=code, relation=relation, column=column):
                values = f"(SELECT {quote(column)} FROM {quote(relation)})"
                return f"{values}[CAST({sql(code)} AS INTEGER) + 1]"
            case _:
                assert_never(node)

    return sql(expression)


def render_sort_keys(keys: Sequence[SortKey], names: Names) -> str:
    return ", ".join(
        f"{render(key.expression, names)} {'DESC' if key.descending else 'ASC'} "
        f"NULLS {'FIRST' if key.nulls_first else 'LAST'}"
        for key in keys
    )


def render_aggregate(call: AggregateCall, names: Names) -> str:
    arguments = ", ".join(render(argument, names) for argument in call.arguments)
    inside = f"DISTINCT {arguments}" if call.distinct else arguments
    if call.order_by:
        inside += f" ORDER BY {render_sort_keys(call.order_by, names)}"
    name = "count" if call.name == "count_star" else call.name
    sql = f"{quote(name)}({'*' if call.name == 'count_star' else inside})"
    return sql if call.filter is None else f"{sql} FILTER (WHERE {render(call.filter, names)})"


def render_window(call: WindowCall, names: Names) -> str:
    inside = ", ".join(render(argument, names) for argument in call.arguments)
    if call.distinct:
        inside = f"DISTINCT {inside}"
    if call.argument_order:
        inside += f" ORDER BY {render_sort_keys(call.argument_order, names)}"
    if call.ignore_nulls:
        inside += " IGNORE NULLS"
    if call.name == "count_star":
        inside = "*"
    sql = f"{quote('count' if call.name == 'count_star' else call.name)}({inside.strip()})"
    if call.filter is not None:
        sql += f" FILTER (WHERE {render(call.filter, names)})"
    return f"{sql} OVER ({_render_over(call, names)})"


def _render_over(call: WindowCall, names: Names) -> str:
    parts = []
    if call.partition_by:
        parts.append("PARTITION BY " + ", ".join(render(e, names) for e in call.partition_by))
    if call.order_by:
        parts.append(f"ORDER BY {render_sort_keys(call.order_by, names)}")
    ends = (
        b.kind if b.offset is None else f"{render(b.offset, names)} {b.kind}"
        for b in (call.start, call.end)
    )
    parts.append(f"{call.unit} BETWEEN {' AND '.join(ends)}")
    if call.exclude:
        parts.append(f"EXCLUDE {call.exclude}")
    return " ".join(parts)


def numbered(names: Iterable[str]) -> tuple[str, ...]:
    """Unique names for a table's columns: duplicates get numbers, as in DuckDB."""
    taken: dict[str, None] = {}
    unique = []
    for name in names:
        free, number = name, 0
        while free.lower() in taken:
            number += 1
            free = f"{name}_{number}"
        taken[free.lower()] = None
        unique.append(free)
    return tuple(unique)
