"""Groups by numbers instead of text. Pure.

Tables store text of few values as numbers of a dictionary. Grouped by these, rows need no text to
be hashed and compared; the text of each group is looked up when there is one row left of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minishark.catalog import Catalog, Table
from minishark.expressions import (
    Column,
    ColumnRef,
    DictionaryValue,
    Expression,
    Schema,
)
from minishark.logical.operators import (
    Aggregate,
    Filter,
    Join,
    JoinKind,
    Project,
    Scan,
)
from minishark.physical.plan import PartialAggregate, PhysicalPlan, Replicated

CODE_TYPE = "SMALLINT"
"""About: a partition's numbers are as narrow or as wide as its dictionary needs."""

_VALUES_MAX = 500
"""Text of more values may be stored as it is."""

_KEEPS_BOTH = (JoinKind.INNER, JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL)
_KEEPS_LEFT = (*_KEEPS_BOTH, JoinKind.SEMI, JoinKind.ANTI)
_KEEPS_RIGHT = (*_KEEPS_BOTH, JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI)


def with_coded_keys(plan: PhysicalPlan, catalog: Catalog, rows_min: float) -> PhysicalPlan:
    """`plan` with numbers as group keys; the same object where nothing is to gain.

    Args:
        plan: a physical plan.
        catalog: the tables that it scans.
        rows_min: from how many rows on the text of groups is replaced.
    """
    children = tuple(with_coded_keys(child, catalog, rows_min) for child in plan.children)
    if any(new is not old for new, old in zip(children, plan.children, strict=True)):
        plan = replace(plan, children=children)
    match plan.operator:
        case Aggregate() | PartialAggregate(complete=Aggregate()):
            return _grouped(plan, catalog, rows_min)
        case _:
            return plan


def dictionary_relation(table: str, *, whole: bool) -> str:
    """What fragments call the text of a table, or of a task's partition of it."""
    return f"{table.lower()}#{'values' if whole else 'own values'}"


@dataclass(frozen=True, slots=True)
class _Origin:
    """The column of a table that a column of a plan is.

    Attributes:
        table: the table.
        name: the column.
        joined: whether a join lies between.
    """

    table: Table
    name: str
    joined: bool = False

    @property
    def can_be_coded(self) -> bool:
        """Whether the column has few values, and no other has the name that their numbers get."""
        columns = self.table.statistics.columns
        names = [column.name for column in self.table.schema]
        distinct = columns[names.index(self.name)].distinct if columns else None
        taken = {name.lower() for name in names}
        few = distinct is not None and distinct <= _VALUES_MAX
        return few and _code_name(self.name).lower() not in taken


def _grouped(plan: PhysicalPlan, catalog: Catalog, rows_min: float) -> PhysicalPlan:
    aggregate = _aggregate(plan)
    (child,) = plan.children
    if aggregate.grouping_sets or aggregate.grouping_functions or child.rows < rows_min:
        return plan
    alone = len(aggregate.groups) == 1
    groups: list[Expression] = list(aggregate.groups)
    outputs: list[Expression] = [ColumnRef(i, c.type) for i, c in enumerate(plan.schema)]
    for position, group in enumerate(aggregate.groups):
        origin = _text_origin(child, group, catalog)
        if origin is None or (alone and not origin.joined):
            continue  # DuckDB groups by the dictionary of a single key itself
        assert isinstance(group, ColumnRef)
        coded = _with_code(child, group.index)
        if coded is not None:
            child, relation = coded
            groups[position] = ColumnRef(len(child.schema) - 1, CODE_TYPE)
            code = ColumnRef(position, CODE_TYPE)
            outputs[position] = DictionaryValue(code, relation, origin.name)
    if tuple(groups) == aggregate.groups:
        return plan
    return _looked_up(plan, child, replace(aggregate, groups=tuple(groups)), outputs)


def _text_origin(plan: PhysicalPlan, group: Expression, catalog: Catalog) -> _Origin | None:
    """The column of text that a group key is, if it can be coded."""
    if not isinstance(group, ColumnRef) or group.type != "VARCHAR":
        return None
    origin = _origin(plan, group.index, catalog)
    return origin if origin is not None and origin.can_be_coded else None


def _aggregate(plan: PhysicalPlan) -> Aggregate:
    operator = plan.operator
    if isinstance(operator, PartialAggregate):
        return operator.complete
    assert isinstance(operator, Aggregate)
    return operator


def _looked_up(
    plan: PhysicalPlan, child: PhysicalPlan, aggregate: Aggregate, outputs: list[Expression]
) -> PhysicalPlan:
    """The aggregate by other keys, and what these stand for."""
    keys = tuple(
        Column(column.name, group.type)
        for column, group in zip(plan.schema, aggregate.groups, strict=False)
    )
    is_partial = isinstance(plan.operator, PartialAggregate)
    operator = PartialAggregate(aggregate) if is_partial else aggregate
    schema = keys + plan.schema[len(keys) :]
    below = replace(plan, operator=operator, children=(child,), schema=schema)
    project = Project(tuple(outputs), tuple(column.name for column in plan.schema))
    return replace(plan, operator=project, children=(below,))


def _origin(plan: PhysicalPlan, position: int, catalog: Catalog) -> _Origin | None:
    """The table's column that a column of a plan's output is; None if it is not just that."""
    match plan.operator:
        case Scan(table=table, columns=columns):
            name = columns[position]
            return None if name is None else _Origin(catalog.get(table), name)
        case Filter(output=output):
            return _origin(plan.children[0], output[position], catalog)
        case Project(expressions=expressions):
            expression = expressions[position]
            if not isinstance(expression, ColumnRef):
                return None
            return _origin(plan.children[0], expression.index, catalog)
        case Join():
            side, index = _side(plan.operator, position)
            origin = None if side is None else _origin(plan.children[side], index, catalog)
            return origin and replace(origin, joined=True)
        case _:
            return None


def _side(join: Join, position: int) -> tuple[int | None, int]:
    """Which input a join's output column comes from, and which column it is there."""
    if position < len(join.left_output):
        return (0 if join.kind in _KEEPS_LEFT else None), join.left_output[position]
    position -= len(join.left_output)
    if join.kind not in _KEEPS_RIGHT:
        return None, 0
    return 1, join.right_output[position]


def _with_code(plan: PhysicalPlan, position: int) -> tuple[PhysicalPlan, str] | None:
    """`plan` with one more column: the number of the text in the one at `position`.

    And the relation that has the text of each number. None if they can't come along.
    """
    match plan.operator:
        case Scan():
            return _with_code_column(plan, plan.operator, position)
        case Filter(output=output) as operator:
            found = _with_code(plan.children[0], output[position])
            if found is None:
                return None
            child, relation = found
            last = len(child.schema) - 1
            return _extended(plan, replace(operator, output=(*output, last)), (child,)), relation
        case Project(expressions=expressions) as operator:
            expression = expressions[position]
            assert isinstance(expression, ColumnRef)
            found = _with_code(plan.children[0], expression.index)
            if found is None:
                return None
            child, relation = found
            code = ColumnRef(len(child.schema) - 1, CODE_TYPE)
            operator = Project((*expressions, code), (*operator.names, child.schema[-1].name))
            return _extended(plan, operator, (child,)), relation
        case Join():
            return _joined_with_code(plan, plan.operator, position)
        case _:
            message = f"{type(plan.operator).__name__} has columns of its own"
            raise AssertionError(message)


def _with_code_column(
    plan: PhysicalPlan, scan: Scan, position: int
) -> tuple[PhysicalPlan, str] | None:
    name = scan.columns[position]
    assert name is not None
    column = Column(_code_name(name), CODE_TYPE)
    if column.name in scan.columns:
        return None
    scan = replace(
        scan,
        columns=(*scan.columns, column.name),
        schema=(*scan.schema, column),
        coded=(*scan.coded, (column.name, name)),
    )
    extended = replace(plan, operator=scan, schema=(*plan.schema, column))
    whole = isinstance(plan.distribution, Replicated)
    return extended, dictionary_relation(scan.table, whole=whole)


def _code_name(column: str) -> str:
    return f"{column}#code"


def _joined_with_code(
    plan: PhysicalPlan, join: Join, position: int
) -> tuple[PhysicalPlan, str] | None:
    side, index = _side(join, position)
    assert side is not None
    if side == 0 and join.residual:
        return None  # these predicates count the columns of both sides, so that one can't be added
    found = _with_code(plan.children[side], index)
    if found is None:
        return None
    child, relation = found
    last = len(child.schema) - 1
    if side == 1:
        join = replace(join, right_output=(*join.right_output, last))
        return _extended(plan, join, (plan.children[0], child)), relation
    width = len(join.left_output)
    join = replace(join, left_output=(*join.left_output, last))
    schema = (*plan.schema[:width], child.schema[-1], *plan.schema[width:])
    below = replace(plan, operator=join, children=(child, plan.children[1]), schema=schema)
    order = [*range(width), *range(width + 1, len(schema)), width]
    return _reordered(below, order), relation


def _reordered(plan: PhysicalPlan, order: list[int]) -> PhysicalPlan:
    schema: Schema = tuple(plan.schema[i] for i in order)
    columns = tuple(ColumnRef(i, plan.schema[i].type) for i in order)
    project = Project(columns, tuple(column.name for column in schema))
    return replace(plan, operator=project, children=(plan,), schema=schema)


def _extended(
    plan: PhysicalPlan, operator: Filter | Project | Join, children: tuple[PhysicalPlan, ...]
) -> PhysicalPlan:
    code = children[-1].schema[-1]
    return replace(plan, operator=operator, children=children, schema=(*plan.schema, code))
