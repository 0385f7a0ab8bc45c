"""Operators -> the SQL of a fragment.

A `Block` is a SELECT that is still being put together: most operators only extend it, so that a
fragment stays as flat as a person would write it. An operator that can't extend a block closes it
into a subquery first. Output columns are called c0, c1, ... and are always used with their table's
alias, so that no name can capture another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from minishark.compiler.logical import operators as ops
from minishark.compiler.physical.aggregates import render_final, render_partial
from minishark.compiler.physical.build_sides import turned_kind
from minishark.compiler.physical.plan import (
    Boundaries,
    FinalAggregate,
    PartialAggregate,
    PhysicalPlan,
    SampleKeys,
)
from minishark.model.expressions import (
    ColumnRef,
    Expression,
    Schema,
    SortKey,
    quote,
    render,
    render_aggregate,
    render_sort_keys,
    render_window,
)

HASH_SALT = 7
"""Mixed into the hash that chooses a row's bucket.

DuckDB's hash tables use bits of the same `hash()` of the same keys; without the salt all rows of a
partition would share some of them, and collide.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """SELECT `names` FROM `source` WHERE `where` `tail`."""

    source: str  # the text after FROM
    names: tuple[str, ...]  # the SQL of each output column
    where: tuple[str, ...] = ()
    tail: str = ""  # ORDER BY and LIMIT
    # Whether some of `names` are more than columns, so that using one twice would compute it twice.
    computed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether predicates and joins can still be added."""
        return not self.tail and not self.computed


@dataclass(slots=True)
class Aliases:
    """Gives each table in a fragment a unique alias."""

    _numbers: Iterator[int] = field(default_factory=count)

    def new(self) -> str:
        return f"t{next(self._numbers)}"


def select(block: Block, extra: Sequence[str] = (), *, distinct: bool = False) -> str:
    """The block as a complete SELECT with output columns c0, c1, ..., then `extra` ones."""
    columns = [f"{name} AS c{i}" for i, name in enumerate(block.names)] + list(extra)
    sql = f"SELECT {'DISTINCT ' if distinct else ''}{', '.join(columns)} FROM {block.source}"
    if block.where:
        sql += f" WHERE {' AND '.join(block.where)}"
    return f"{sql} {block.tail}".rstrip()


def table_block(relation: str, names: Sequence[str], aliases: Aliases) -> Block:
    """Columns, by their SQL names, of a named relation."""
    alias = aliases.new()
    return Block(f"{relation} AS {alias}", tuple(f"{alias}.{name}" for name in names))


def columns(schema: Schema) -> list[str]:
    return [f"c{i}" for i in range(len(schema))]


def operator_block(plan: PhysicalPlan, blocks: Sequence[Block], aliases: Aliases) -> Block:
    """An operator over the blocks of its inputs.

    Scans, exchanges and common table expressions have inputs of the fragment instead.
    """
    match plan.operator, blocks:
        case ops.Values() as values, []:
            return values_block(values, aliases)
        case ops.Filter() as filter_, [child]:
            return filter_block(filter_, child, aliases)
        case ops.Project() as project, [child]:
            return project_block(project, child, aliases)
        case ops.Aggregate() as aggregate, [child]:
            return aggregate_block(aggregate, child, aliases)
        case PartialAggregate(complete=aggregate), [child]:
            return partial_block(aggregate, child, aliases)
        case FinalAggregate(complete=aggregate), [child]:
            return final_block(aggregate, child, aliases)
        case ops.Distinct(), [child]:
            return distinct_block(child, aliases)
        case ops.DistinctOn() as distinct, [child]:
            return distinct_on_block(distinct, child, aliases)
        case ops.Window() as window, [child]:
            return window_block(window, child, aliases)
        case ops.Unnest() as unnest, [child]:
            return unnest_block(unnest, child, aliases)
        case ops.SetOperation() as operation, [left, right]:
            return set_block(operation, left, right, aliases)
        case SampleKeys(keys=keys, rows=rows), [child]:
            return sample_block(keys, rows, child, aliases)
        case Boundaries(partitions=partitions), [child]:
            return boundaries_block(partitions, child, aliases)
        case ops.Sort() as sort, [child]:
            return sort_block(sort, child, aliases)
        case (ops.Limit() | ops.TopN()) as limit, [child]:
            return limit_block(limit, child, aliases)
        case ops.Join() as join, [left, right]:
            turned = turned_kind(join, *plan.children)
            return join_block(join, left, right, plan.children[1].schema, aliases, turned)
        case _:
            message = f"{type(plan.operator).__name__} has no SQL of its own"
            raise AssertionError(message)


def subquery(sql: str, width: int, aliases: Aliases) -> Block:
    """A complete SELECT with columns c0, c1, ... as a new block."""
    return table_block(f"({sql})", [f"c{i}" for i in range(width)], aliases)


def nested(block: Block, aliases: Aliases) -> Block:
    """The block as a subquery."""
    return subquery(select(block), len(block.names), aliases)


def closed(block: Block, aliases: Aliases) -> Block:
    """The block as a plain table, without predicates of its own."""
    return block if block.is_open and not block.where else nested(block, aliases)


def extensible(block: Block, aliases: Aliases) -> Block:
    return block if block.is_open else closed(block, aliases)


def scan_block(relation: str, read: Sequence[str | None], aliases: Aliases) -> Block:
    """Columns of a table; for None, just one value per row."""
    block = table_block(relation, [quote(c) for c in read if c is not None], aliases)
    names = iter(block.names)
    return replace(block, names=tuple("true" if c is None else next(names) for c in read))


def filter_block(filter_: ops.Filter, child: Block, aliases: Aliases) -> Block:
    if filter_.predicates:
        child = extensible(child, aliases)
    where = child.where + tuple(render(p, child.names) for p in filter_.predicates)
    return replace(child, names=tuple(child.names[i] for i in filter_.output), where=where)


def project_block(project: ops.Project, child: Block, aliases: Aliases) -> Block:
    """New columns; plain references need no subquery."""
    used = [e.index for e in project.outputs if isinstance(e, ColumnRef)]
    plain = len(used) == len(project.outputs)
    if child.computed and (not plain or len(used) != len(dict.fromkeys(used))):
        child = closed(child, aliases)
    names = tuple(render(e, child.names) for e in project.outputs)
    return replace(child, names=names, computed=child.computed or not plain)


def aggregate_block(aggregate: ops.Aggregate, child: Block, aliases: Aliases) -> Block:
    child = extensible(child, aliases)
    groups = [render(e, child.names) for e in aggregate.groups]
    calls = [render_aggregate(call, child.names) for call in aggregate.aggregates]
    return _grouped(groups, calls, aggregate, child, aliases)


def cast_block(child: Block, schema: Schema) -> Block:
    pairs = zip(child.names, schema, strict=True)
    return replace(child, names=tuple(f"CAST({name} AS {column.type})" for name, column in pairs))


def partial_block(aggregate: ops.Aggregate, child: Block, aliases: Aliases) -> Block:
    """The first phase: groups and states, never grouping sets."""
    child = extensible(child, aliases)
    groups = [render(e, child.names) for e in aggregate.groups]
    states = [render_partial(call, child.names) for call in aggregate.aggregates]
    plain = replace(aggregate, grouping_sets=(), grouping_functions=())
    return _grouped(groups, states, plain, child, aliases)


def final_block(aggregate: ops.Aggregate, child: Block, aliases: Aliases) -> Block:
    child = extensible(child, aliases)
    width = len(aggregate.groups)
    states = child.names[width:]
    calls = [render_final(c, s) for c, s in zip(aggregate.aggregates, states, strict=True)]
    return _grouped(list(child.names[:width]), calls, aggregate, child, aliases)


def _grouped(
    groups: list[str], calls: list[str], aggregate: ops.Aggregate, child: Block, aliases: Aliases
) -> Block:
    groupings = [
        f"GROUPING({', '.join(groups[i] for i in positions)})"
        for positions in aggregate.grouping_functions
    ]
    names = (*groups, *calls, *groupings)
    tail = ""
    if aggregate.grouping_sets:
        sets = (f"({', '.join(groups[i] for i in s)})" for s in aggregate.grouping_sets)
        tail = f"GROUP BY GROUPING SETS ({', '.join(sets)})"
    elif groups:
        tail = f"GROUP BY {', '.join(str(i + 1) for i in range(len(groups)))}"
    return nested(replace(child, names=names, tail=tail), aliases)


def sort_block(sort: ops.Sort, child: Block, aliases: Aliases) -> Block:
    child, order = _ordered(sort, child, aliases)
    return replace(child, names=tuple(child.names[i] for i in sort.output), tail=order)


def _ordered(sort: ops.Sort | ops.TopN, child: Block, aliases: Aliases) -> tuple[Block, str]:
    """A block to be sorted, and its ORDER BY.

    DuckDB's own sort is not stable: row numbers decide between equal keys where that matters.
    """
    child = extensible(child, aliases)
    number = ""
    if sort.stable:
        child = nested(replace(child, names=(*child.names, "row_number() OVER ()")), aliases)
        number = f", {child.names[-1]}"
        child = replace(child, names=child.names[:-1])
    return child, f"ORDER BY {render_sort_keys(sort.keys, child.names)}{number}"


def limit_block(limit: ops.Limit | ops.TopN, child: Block, aliases: Aliases) -> Block:
    tail = ""
    if isinstance(limit, ops.TopN):
        child, order = _ordered(limit, child, aliases)
        tail = f"{order} "
    elif "LIMIT" in child.tail or "OFFSET" in child.tail:
        child = closed(child, aliases)
    else:
        tail = f"{child.tail} " if child.tail else ""
    if limit.limit is not None:
        tail += f"LIMIT {limit.limit} "
    if limit.offset:
        tail += f"OFFSET {limit.offset}"
    return replace(child, tail=tail.rstrip())


def distinct_block(child: Block, aliases: Aliases) -> Block:
    child = closed(child, aliases) if child.tail else child
    return subquery(select(child, distinct=True), len(child.names), aliases)


def distinct_on_block(distinct: ops.DistinctOn, child: Block, aliases: Aliases) -> Block:
    child = extensible(child, aliases)
    targets = ", ".join(render(target, child.names) for target in distinct.targets)
    order = f"ORDER BY {render_sort_keys(distinct.keys, child.names)}" if distinct.keys else ""
    sql = select(replace(child, tail=order)).removeprefix("SELECT ")
    return subquery(f"SELECT DISTINCT ON ({targets}) {sql}", len(child.names), aliases)


def window_block(window: ops.Window, child: Block, aliases: Aliases) -> Block:
    child = extensible(child, aliases)
    calls = tuple(render_window(call, child.names) for call in window.calls)
    return replace(child, names=child.names + calls, computed=True)


def unnest_block(unnest: ops.Unnest, child: Block, aliases: Aliases) -> Block:
    """The columns, and the elements of lists; closed at once, as its columns make rows."""
    child = extensible(child, aliases)
    elements = tuple(f"unnest({render(item, child.names)})" for item in unnest.lists)
    return nested(replace(child, names=child.names + elements), aliases)


def set_block(operation: ops.SetOperation, left: Block, right: Block, aliases: Aliases) -> Block:
    word = f"{operation.kind}{' ALL' if operation.keep_all else ''}"
    return subquery(f"({select(left)}) {word} ({select(right)})", len(left.names), aliases)


def values_block(values: ops.Values, aliases: Aliases) -> Block:
    width = len(values.schema)
    if not values.rows:
        nulls = ", ".join(f"CAST(NULL AS {c.type}) AS c{i}" for i, c in enumerate(values.schema))
        return subquery(f"SELECT {nulls} WHERE false", width, aliases)
    rows = ", ".join(f"({', '.join(render(e, ()) for e in row)})" for row in values.rows)
    alias = aliases.new()
    columns = ", ".join(f"c{i}" for i in range(width))
    return Block(
        f"(VALUES {rows}) AS {alias}({columns})", tuple(f"{alias}.c{i}" for i in range(width))
    )


_JOIN_WORDS = {
    ops.JoinKind.INNER: "JOIN",
    ops.JoinKind.LEFT: "LEFT JOIN",
    ops.JoinKind.RIGHT: "RIGHT JOIN",
    ops.JoinKind.FULL: "FULL JOIN",
    ops.JoinKind.SEMI: "SEMI JOIN",
    ops.JoinKind.ANTI: "ANTI JOIN",
    ops.JoinKind.RIGHT_SEMI: "SEMI JOIN",
    ops.JoinKind.RIGHT_ANTI: "ANTI JOIN",
}


def join_block(
    join: ops.Join,
    left: Block,
    right: Block,
    right_schema: Schema,
    aliases: Aliases,
    turned: ops.JoinKind | None = None,
) -> Block:
    """A join; if it is `turned`, the right side is written first, and the kind is seen from there.

    Rows and columns are the same.
    """
    left, right = join_operand(left, aliases), join_operand(right, aliases)
    names = tuple(left.names[i] for i in join.left_output if join.keeps_left_columns)
    if join.kind is ops.JoinKind.MARK:
        return replace(left, names=(*names, _mark(join, left, right)), computed=True)
    if join.kind is ops.JoinKind.SINGLE:
        return _single(join, left, right, right_schema, aliases)
    names += tuple(right.names[i] for i in join.right_output if join.keeps_right_columns)
    # SQL has no joins that only keep rows of the right side.
    is_turned = turned is not None or not join.keeps_left_columns
    first, second = (right, left) if is_turned else (left, right)
    source = f"{first.source} {_JOIN_WORDS[turned or join.kind]} {second.source}"
    return Block(f"{source} ON {_on(join, left, right)}", names)


def join_operand(block: Block, aliases: Aliases) -> Block:
    """A side of a join: a plain table, or a subquery; a join in it becomes a subquery too.

    DuckDB optimizes each subquery's joins on their own, so that they keep the order in which they
    were planned, with statistics that executors do not have.
    """
    return nested(block, aliases) if " JOIN " in block.source else closed(block, aliases)


def _conditions(join: ops.Join, left: Block, right: Block) -> list[str]:
    return [
        f"{render(c.left, left.names)} {c.comparison} {render(c.right, right.names)}"
        for c in join.conditions
    ]


def _residual(join: ops.Join, left: Block, right: Block) -> list[str]:
    both = left.names + right.names
    return [render(predicate, both) for predicate in join.residual]


def _on(join: ops.Join, left: Block, right: Block) -> str:
    return " AND ".join(_conditions(join, left, right) + _residual(join, left, right)) or "true"


def _mark(join: ops.Join, left: Block, right: Block) -> str:
    """The mark as an expression over the left columns.

    The comparisons that IN or ANY was written with decide between false and NULL; the others only
    restrict which right rows they are about.
    """
    conditions = _conditions(join, left, right)
    deciding = [i for i, c in enumerate(join.conditions) if "DISTINCT" not in c.comparison]
    residual = _residual(join, left, right)
    if not deciding:
        where = " AND ".join(conditions + residual) or "true"
        return f"EXISTS (SELECT 1 FROM {right.source} WHERE {where})"
    others = [c for i, c in enumerate(conditions) if i not in deciding] + residual
    where = f" WHERE {' AND '.join(others)}" if others else ""
    options = ", ".join(render(join.conditions[i].right, right.names) for i in deciding)
    probes = ", ".join(render(join.conditions[i].left, left.names) for i in deciding)
    rows = f"(SELECT {options} FROM {right.source}{where})"
    if len(deciding) > 1:
        return f"(({probes}) IN {rows})"
    return f"({probes} {join.conditions[deciding[0]].comparison} ANY {rows})"


def _single(
    join: ops.Join, left: Block, right: Block, right_schema: Schema, aliases: Aliases
) -> Block:
    """At most one right row for each left one: a scalar subquery that packs the right columns."""
    fields = ", ".join(f"'c{n}': {right.names[i]}" for n, i in enumerate(join.right_output))
    row = f"(SELECT {{{fields}}} FROM {right.source} WHERE {_on(join, left, right)})"
    kept = tuple(left.names[i] for i in join.left_output)
    packed = nested(replace(left, names=(*kept, row)), aliases)
    types = [right_schema[i].type for i in join.right_output]
    unpacked = tuple(
        f"CAST(struct_extract({packed.names[-1]}, 'c{n}') AS {type_})"
        for n, type_ in enumerate(types)
    )
    return replace(packed, names=packed.names[:-1] + unpacked, computed=True)


def bucket_column(keys: Sequence[Expression], names: Sequence[str], buckets: int) -> str:
    """The bucket number of a row; the same in every process and every stage."""
    arguments = ", ".join(render(key, names) for key in keys)
    return f"CAST(hash({arguments}, {HASH_SALT}) % {buckets} AS USMALLINT) AS bucket"


def sort_key(keys: Sequence[SortKey], names: Sequence[str]) -> str:
    """One BLOB that compares as the keys do in ORDER BY.

    Of a few short keys alone DuckDB would make a number: text at the end prevents that.
    """
    pairs = (
        f"{render(key.expression, names)}, '{'DESC' if key.descending else 'ASC'} "
        f"NULLS {'FIRST' if key.nulls_first else 'LAST'}'"
        for key in keys
    )
    return f"create_sort_key({', '.join(pairs)}, '', 'ASC NULLS LAST')"


def sample_block(keys: Sequence[SortKey], rows: int, child: Block, aliases: Aliases) -> Block:
    """Sort keys of some rows, and for how many rows each stands.

    Rows are numbered as they pass; the highest number in the sample tells how many there are.
    """
    child = extensible(child, aliases)
    values = tuple(render(key.expression, child.names) for key in keys)
    numbered = select(replace(child, names=(*values, "row_number() OVER ()")))
    plain = tuple(
        replace(key, expression=ColumnRef(i, key.expression.type)) for i, key in enumerate(keys)
    )
    names = [f"c{i}" for i in range(len(keys))]
    sql = (
        f"SELECT {sort_key(plain, names)} AS c0, "
        f"CAST(max(c{len(keys)}) OVER () / count(*) OVER () AS DOUBLE) AS c1 "
        f"FROM ({numbered}) USING SAMPLE reservoir({rows} ROWS) REPEATABLE (1)"
    )
    return subquery(sql, 2, aliases)


def boundaries_block(partitions: int, sample: Block, aliases: Aliases) -> Block:
    """The sort keys that divide a sample into ranges of about as many rows, side by side."""
    key, rows = extensible(sample, aliases).names
    shares = (
        f"SELECT {key} AS k, sum({rows}) OVER (ORDER BY {key} ROWS UNBOUNDED PRECEDING) "
        f"/ sum({rows}) OVER () AS share FROM {sample.source}"
    )
    columns = ", ".join(
        f"min(k) FILTER (WHERE share > {i}::DOUBLE / {partitions}) AS c{i - 1}"
        for i in range(1, partitions)
    )
    return subquery(f"SELECT {columns} FROM ({shares})", partitions - 1, aliases)


def ranges_select(
    keys: Sequence[SortKey], block: Block, boundaries: str, partitions: int, aliases: Aliases
) -> str:
    """A complete SELECT of the block and, as "bucket", the range that each row's keys are in.

    `boundaries` is a relation of one row: joined with it, rows stay in their order.
    """
    width = len(block.names)
    keyed = subquery(select(block, [f"{sort_key(keys, block.names)} AS k"]), width, aliases)
    alias = aliases.new()
    key = f"{keyed.source.rpartition(' AS ')[2]}.k"
    bucket = _range_number(key, [f"{alias}.c{i}" for i in range(partitions - 1)], 0)
    joined = replace(keyed, source=f"{keyed.source} CROSS JOIN {boundaries} AS {alias}")
    return select(joined, [f"CAST({bucket} AS USMALLINT) AS bucket"])


def _range_number(key: str, boundaries: Sequence[str], first: int) -> str:
    """How many boundaries are at most `key`, plus `first`; found by halves."""
    if not boundaries:
        return str(first)
    middle = len(boundaries) // 2
    below = _range_number(key, boundaries[:middle], first)
    above = _range_number(key, boundaries[middle + 1 :], first + middle + 1)
    return f"CASE WHEN {key} < {boundaries[middle]} THEN {below} ELSE {above} END"
