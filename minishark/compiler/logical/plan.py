"""The logical plan: a tree of operators with the schema of each output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from minishark.compiler.logical.operators import Operator, Scan
from minishark.expressions import Schema


class TreeNode(Protocol):
    """A node of a logical or physical plan."""

    @property
    def children(self) -> Sequence[Any]: ...

    @property
    def label(self) -> str: ...


def plan_text(plan: TreeNode) -> str:
    lines: list[str] = []

    def walk(node: TreeNode, indent: str, own: str, below: str) -> None:
        lines.append(f"{indent}{own}{node.label}")
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
