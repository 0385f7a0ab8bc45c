"""Plans as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


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
