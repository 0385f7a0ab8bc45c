"""The logical plan: a tree of operators with the schema of each output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

from minishark.compiler.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    DistinctOn,
    Filter,
    Join,
    JoinKind,
    Limit,
    Operator,
    Project,
    Scan,
    SetOperation,
    Sort,
    Statement,
    TopN,
    Unnest,
    Values,
    Window,
)
from minishark.expressions import AggregateCall, Column, ColumnRef, Schema, quote, render


@dataclass(frozen=True)
class LogicalPlan:
    """An operator over its inputs; `schema` is the operator's output."""

    operator: Operator
    children: tuple[LogicalPlan, ...]
    schema: Schema

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that it scans, with repetitions."""
        own = (self.operator.table,) if isinstance(self.operator, Scan) else ()
        return own + tuple(name for child in self.children for name in child.tables)


def make_plan(operator: Operator, *children: LogicalPlan) -> LogicalPlan:
    """A plan node whose schema follows from the operator and its inputs."""
    schema = output_schema(operator, tuple(child.schema for child in children))
    return LogicalPlan(operator, children, schema)


def output_schema(operator: Operator, inputs: tuple[Schema, ...]) -> Schema:
    """The columns that `operator` puts out over inputs with the given schemas."""
    match operator:
        case Scan() | Values() | CteRef() | Statement():
            return operator.schema
        case Filter(output=output) | Sort(output=output):
            return tuple(inputs[0][i] for i in output)
        case Project(expressions=expressions, names=names):
            return tuple(Column(n, e.type) for n, e in zip(names, expressions, strict=True))
        case Aggregate():
            return aggregate_schema(operator, inputs[0])
        case Join():
            return join_schema(operator, inputs[0], inputs[1])
        case Limit() | TopN() | Distinct() | DistinctOn() | SetOperation():
            return inputs[0]
        case Window(calls=calls):
            return inputs[0] + tuple(Column(call.name, call.type) for call in calls)
        case Unnest(types=types):
            return inputs[0] + tuple(Column("unnest", type_) for type_ in types)
        case Cte():
            return inputs[1]
        case _:
            assert_never(operator)


def aggregate_schema(operator: Aggregate, child: Schema) -> Schema:
    """Groups, aggregates, GROUPING() values."""
    names = [quote(column.name) for column in child]
    groups = tuple(
        Column(child[g.index].name if isinstance(g, ColumnRef) else render(g, names), g.type)
        for g in operator.groups
    )
    aggregates = tuple(Column(aggregate_name(call), call.type) for call in operator.aggregates)
    groupings = tuple(Column("grouping", "BIGINT") for _ in operator.grouping_functions)
    return groups + aggregates + groupings


def aggregate_name(call: AggregateCall) -> str:
    """A short name for the output of an aggregate."""
    return call.name


def join_schema(operator: Join, left: Schema, right: Schema) -> Schema:
    """The kept columns of both sides, and the mark of a mark join."""
    kept_left = tuple(left[i] for i in operator.left_output)
    kept_right = tuple(right[i] for i in operator.right_output)
    match operator.kind:
        case JoinKind.SEMI | JoinKind.ANTI:
            return kept_left
        case JoinKind.RIGHT_SEMI | JoinKind.RIGHT_ANTI:
            return kept_right
        case JoinKind.MARK:
            return (*kept_left, Column("mark", "BOOLEAN"))
        case _:
            return kept_left + kept_right
