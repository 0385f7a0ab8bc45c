"""The logical plan: a tree of operators with the schema of each output, and what it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from minishark.compiler.logical import operators as ops
from minishark.compiler.logical.operators import Operator, Scan
from minishark.model.expressions import Call, Schema, children, is_volatile

_ROW_BY_ROW = (ops.Filter, ops.Project)
# Operators that compute nothing twice. Lists of what is allowed, so that a new operator is not.
_HARMLESS = (*_ROW_BY_ROW, ops.Scan, ops.Aggregate, ops.Sort, ops.TopN, ops.Limit, ops.Distinct)


class TreeNode(Protocol):
    """A node of a logical or physical plan."""

    @property
    def children(self) -> Sequence[Any]: ...

    @property
    def label(self) -> str: ...


def plan_text(plan: TreeNode) -> str:
    lines: list[str] = []

    def walk(node: TreeNode, indent: str, mark: str, below: str) -> None:
        lines.append(f"{indent}{mark}{node.label}")
        for i, child in enumerate(node.children):
            last = i == len(node.children) - 1
            walk(child, indent + below, "└─ " if last else "├─ ", "   " if last else "│  ")

    walk(plan, "", "", "")
    return "\n".join(lines)


@dataclass(frozen=True)
class LogicalPlan:
    """An operator over its inputs; `schema` is the operator's output."""

    operator: Operator
    children: tuple[LogicalPlan, ...]
    schema: Schema

    @property
    def label(self) -> str:
        return self.operator.label([child.schema for child in self.children])

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that it scans, with repetitions."""
        return tuple(operator.table for operator in self.operators() if isinstance(operator, Scan))

    @cached_property
    def is_constant(self) -> bool:
        """Whether DuckDB has computed its rows while planning: constants are all that is left."""
        plain = all(isinstance(operator, ops.Values | ops.Project) for operator in self.operators())
        return plain and next(called_functions(self), None) is None

    def operators(self) -> Iterator[Operator]:
        """All operators, the root first and left before right."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node.operator
            waiting += reversed(node.children)


def make_plan(operator: Operator, *children: LogicalPlan) -> LogicalPlan:
    schema = operator.output_schema([child.schema for child in children])
    return LogicalPlan(operator, children, schema)


def volatile_reason(plan: LogicalPlan) -> str | None:
    """Why `plan` must not be distributed, if it calls volatile functions; None if it may be."""
    # It may be if they are computed row by row, over a table, and nothing but aggregates, sorts and
    # limits comes after.
    operators = list(plan.operators())
    callers = [o for o in operators if any(map(is_volatile, o.expressions()))]
    if not callers:
        return None
    others = [o for o in operators if not isinstance(o, _HARMLESS)]
    if others or not all(isinstance(caller, _ROW_BY_ROW) for caller in callers):
        return "a volatile function such as random()"
    return None


def called_functions(plan: LogicalPlan) -> Iterator[str]:
    waiting = [expression for operator in plan.operators() for expression in operator.expressions()]
    while waiting:
        expression = waiting.pop()
        if isinstance(expression, Call):
            yield expression.name
        waiting += children(expression)
