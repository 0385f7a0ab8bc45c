"""Groups by dictionary codes instead of text. Pure.

Tables store text columns with few values as codes into a dictionary. Grouped by the codes, rows
need no text to be hashed and compared; the text of a group is looked up once, in its one row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minishark.compiler.hints import DictionaryCodes
from minishark.compiler.logical.operators import Aggregate, Filter, Join, JoinKind, Project, Scan
from minishark.compiler.physical.plan import PartialAggregate, PhysicalPlan, Replicated
from minishark.compiler.rules.rule import Fragment, Phase, Rule
from minishark.model.catalog import Catalog
from minishark.model.expressions import Column, ColumnRef, DictionaryValue, Expression, Schema

CODE_TYPE = "SMALLINT"
"""Nominal: a partition's codes are as narrow or as wide as its dictionary needs."""

_VALUES_MAX = 500
"""Columns with more values may be stored as plain text."""


@dataclass(frozen=True, slots=True)
class GroupKeysOptions:
    """When codes pay."""

    rows_min: float = 100_000.0  # the least rows to group; to find the codes costs a fixed time


_KEEPS_BOTH = (JoinKind.INNER, JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL)
_KEEPS_LEFT = (*_KEEPS_BOTH, JoinKind.SEMI, JoinKind.ANTI)
_KEEPS_RIGHT = (*_KEEPS_BOTH, JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI)


def with_coded_keys(
    plan: PhysicalPlan, catalog: Catalog, options: GroupKeysOptions
) -> PhysicalPlan:
    """`plan` with dictionary codes as group keys; the same object where nothing is to gain."""
    children = tuple(with_coded_keys(child, catalog, options) for child in plan.children)
    plan = plan.with_children(children)
    match plan.operator:
        # Not a final aggregate: partitions have dictionaries of their own.
        case (Aggregate() as aggregate) | PartialAggregate(complete=aggregate):
            return _grouped(plan, aggregate, catalog, options.rows_min)
        case _:
            return plan


def dictionary_relation(table: str, *, whole: bool) -> str:
    """The name in fragments of the dictionaries of a table, or of a task's partition of it."""
    return f"{table.lower()}#{'values' if whole else 'own values'}"


@dataclass(frozen=True, slots=True)
class _Coded:
    """A plan with one more column, the last: the dictionary code of a text column."""

    plan: PhysicalPlan
    relation: str  # holds the text of each code
    column: str  # the table's text column
    joined: bool = False  # whether a join is between the table and the plan


def _grouped(
    plan: PhysicalPlan, aggregate: Aggregate, catalog: Catalog, rows_min: float
) -> PhysicalPlan:
    (child,) = plan.children
    # Grouping sets put NULL into groups, which would be a code of its own.
    if aggregate.grouping_sets or aggregate.grouping_functions or child.rows < rows_min:
        return plan
    alone = len(aggregate.groups) == 1
    groups: list[Expression] = list(aggregate.groups)
    outputs: list[Expression] = [ColumnRef(i, c.type) for i, c in enumerate(plan.schema)]
    for position, group in enumerate(aggregate.groups):
        if not isinstance(group, ColumnRef) or group.type != "VARCHAR":
            continue
        coded = _with_code(child, group.index, catalog)
        if coded is None or (alone and not coded.joined):
            continue  # DuckDB groups by the dictionary of a single key itself
        # The code is the last column, so positions of the other expressions stay as they are.
        child = coded.plan
        groups[position] = ColumnRef(len(child.schema) - 1, CODE_TYPE)
        code = ColumnRef(position, CODE_TYPE)
        outputs[position] = DictionaryValue(code, coded.relation, coded.column)
    if tuple(groups) == aggregate.groups:
        return plan
    return _looked_up(plan, child, replace(aggregate, groups=tuple(groups)), outputs)


def _looked_up(
    plan: PhysicalPlan, child: PhysicalPlan, aggregate: Aggregate, outputs: list[Expression]
) -> PhysicalPlan:
    """The aggregate by codes, and a projection that looks up their text."""
    # Only types change: the names are those of the text that the codes stand for.
    keys = tuple(
        Column(column.name, group.type)
        for column, group in zip(plan.schema, aggregate.groups, strict=False)
    )
    is_partial = isinstance(plan.operator, PartialAggregate)
    operator = PartialAggregate(aggregate) if is_partial else aggregate
    schema = keys + plan.schema[len(keys) :]
    # The projection is part of the same stage: other stages see text, never codes.
    below = replace(plan, operator=operator, children=(child,), schema=schema)
    project = Project(tuple(outputs), tuple(column.name for column in plan.schema))
    return replace(plan, operator=project, children=(below,))


def _with_code(plan: PhysicalPlan, position: int, catalog: Catalog) -> _Coded | None:
    """`plan` with the dictionary code of the column at `position`.

    None if that is not just a column of a table, with few values, or an operator can't pass it on.
    """
    match plan.operator:
        case Scan() as scan:
            return _scanned(plan, scan, position, catalog)
        case Filter(output=output) as operator:
            coded = _with_code(plan.children[0], output[position], catalog)
            if coded is None:
                return None
            last = len(coded.plan.schema) - 1
            return _extended(plan, replace(operator, output=(*output, last)), coded)
        case Project(outputs=expressions) as operator:
            expression = expressions[position]
            if not isinstance(expression, ColumnRef):
                return None
            coded = _with_code(plan.children[0], expression.index, catalog)
            if coded is None:
                return None
            code = ColumnRef(len(coded.plan.schema) - 1, CODE_TYPE)
            names = (*operator.names, coded.plan.schema[-1].name)
            return _extended(plan, Project((*expressions, code), names), coded)
        case Join() as join:
            source = join.source(position)
            if source is None:
                return None
            from_side = _from_right if source[0] else _from_left
            return from_side(plan, join, source[1], catalog)
        case _:
            return None


def _scanned(plan: PhysicalPlan, scan: Scan, position: int, catalog: Catalog) -> _Coded | None:
    name = scan.columns[position]
    table = catalog.get(scan.table)
    values = name and table.column_statistics(name)
    if not name or not values or values.distinct is None or values.distinct > _VALUES_MAX:
        return None
    column = Column(f"{name}#code", CODE_TYPE)
    # A table may have a column of that very name.
    taken = {other.name.lower() for other in table.schema}
    if column.name.lower() in taken or column.name in scan.columns:
        return None
    codes = (*scan.hints.dictionary_codes, (column.name, name))
    scan = replace(
        scan,
        columns=(*scan.columns, column.name),
        schema=(*scan.schema, column),
        hints=replace(scan.hints, dictionary_codes=codes),
    )
    # A task that reads all partitions unifies their dictionaries; one that reads its own need not.
    whole = isinstance(plan.distribution, Replicated)
    extended = replace(plan, operator=scan, schema=(*plan.schema, column))
    return _Coded(extended, dictionary_relation(scan.table, whole=whole), name)


def _from_left(plan: PhysicalPlan, join: Join, column: int, catalog: Catalog) -> _Coded | None:
    # A residual predicate counts the columns of both sides: one more on the left would shift it.
    if join.kind not in _KEEPS_LEFT or join.residual:
        return None
    coded = _with_code(plan.children[0], column, catalog)
    if coded is None:
        return None
    width = len(join.left_output)
    join = replace(join, left_output=(*join.left_output, len(coded.plan.schema) - 1))
    schema = (*plan.schema[:width], coded.plan.schema[-1], *plan.schema[width:])
    children = (coded.plan, plan.children[1])
    below = replace(plan, operator=join, children=children, schema=schema)
    # The join puts the code behind the left columns; it has to be the last one of all.
    order = [*range(width), *range(width + 1, len(schema)), width]
    return replace(coded, plan=_reordered(below, order), joined=True)


def _from_right(plan: PhysicalPlan, join: Join, column: int, catalog: Catalog) -> _Coded | None:
    if join.kind not in _KEEPS_RIGHT:
        return None
    coded = _with_code(plan.children[1], column, catalog)
    if coded is None:
        return None
    join = replace(join, right_output=(*join.right_output, len(coded.plan.schema) - 1))
    return replace(_extended(plan, join, coded), joined=True)


def _reordered(plan: PhysicalPlan, order: list[int]) -> PhysicalPlan:
    schema: Schema = tuple(plan.schema[i] for i in order)
    columns = tuple(ColumnRef(i, plan.schema[i].type) for i in order)
    project = Project(columns, tuple(column.name for column in schema))
    return replace(plan, operator=project, children=(plan,), schema=schema)


def _extended(plan: PhysicalPlan, operator: Filter | Project | Join, last: _Coded) -> _Coded:
    """`plan` over its last child with the code, which `operator` passes on."""
    children = (*plan.children[:-1], last.plan)
    schema = (*plan.schema, last.plan.schema[-1])
    extended = replace(plan, operator=operator, children=children, schema=schema)
    return replace(last, plan=extended)


def attach_codes(plan: PhysicalPlan, fragment: Fragment) -> None:
    """Let a scan's input have the columns of codes that it reads."""
    scan = plan.operator
    if not isinstance(scan, Scan) or not scan.hints.dictionary_codes:
        return
    name = fragment.scanned(plan, scan)
    joined = fragment.dictionary_codes.get(name)
    # Another scan of the same input may need other codes.
    columns = (*(joined.columns if joined else ()), *scan.hints.dictionary_codes)
    whole = isinstance(plan.distribution, Replicated)
    relation = dictionary_relation(scan.table, whole=whole)
    distinct = tuple(dict.fromkeys(columns))
    fragment.dictionary_codes[name] = DictionaryCodes(name, relation, distinct)


GROUP_KEYS = Rule(
    name="group_keys",
    doc="group by dictionary codes instead of text",
    phase=Phase.PHYSICAL,
    apply=with_coded_keys,
    options=GroupKeysOptions(),
    everywhere=GroupKeysOptions(rows_min=0.0),
    lower=attach_codes,
)
