"""Logical plans and operators as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

from minishark.compiler.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    DistinctOn,
    Filter,
    Join,
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
from minishark.compiler.logical.plan import LogicalPlan
from minishark.expressions import (
    AggregateCall,
    DictionaryValue,
    Expression,
    Names,
    Schema,
    SortKey,
    render,
    render_aggregate,
    render_sort_keys,
    render_window,
)


class TreeNode(Protocol):
    """Anything with children."""

    @property
    def children(self) -> Sequence[Any]:
        """The inputs."""
        ...


def tree(node: Any, label: Callable[[Any], str]) -> str:
    """A tree as indented text, one line per node, the root first."""
    lines: list[str] = []

    def walk(item: TreeNode, indent: str, own: str, below: str) -> None:
        lines.append(f"{indent}{own}{label(item)}")
        for i, child in enumerate(item.children):
            last = i == len(item.children) - 1
            walk(child, indent + below, "└─ " if last else "├─ ", "   " if last else "│  ")

    walk(node, "", "", "")
    return "\n".join(lines)


def logical_text(plan: LogicalPlan) -> str:
    """A logical plan as a tree."""
    return tree(plan, lambda node: operator_label(node.operator, [c.schema for c in node.children]))


def operator_label(operator: Operator, inputs: Sequence[Schema]) -> str:
    """An operator in one line, with column names instead of positions."""
    names = [column.name or f"#{i}" for i, column in enumerate(c for s in inputs for c in s)]
    match operator:
        case Scan(table=table, columns=columns, key_filter=key, runs=runs):
            kept = "" if key is None else f" of {key.column} in #{key.cte}"
            kept += "" if runs is None else f" perhaps in runs of {runs.key}"
            return f"Scan {table} [{', '.join(c or '-' for c in columns)}]{kept}"
        case Filter(predicates=predicates):
            return f"Filter {' AND '.join(render(p, names) for p in predicates) or 'true'}"
        case Project(expressions=expressions):
            return f"Project {', '.join(_projected(e, names) for e in expressions)}"
        case Aggregate():
            return f"Aggregate {aggregate_label(operator, names)}"
        case Join():
            return join_label(operator, inputs)
        case Sort(keys=keys):
            return f"Sort {sort_label(keys, names)}"
        case TopN(keys=keys, limit=limit, offset=offset):
            return (
                f"TopN {limit}{f' offset {offset}' if offset else ''} by {sort_label(keys, names)}"
            )
        case Limit(limit=limit, offset=offset):
            return (
                f"Limit {'all' if limit is None else limit}{f' offset {offset}' if offset else ''}"
            )
        case Distinct():
            return "Distinct"
        case DistinctOn(targets=targets):
            return f"DistinctOn {', '.join(render(target, names) for target in targets)}"
        case Window(calls=calls):
            return f"Window {', '.join(render_window(call, names) for call in calls)}"
        case Unnest(lists=lists):
            return f"Unnest {', '.join(render(item, names) for item in lists)}"
        case SetOperation(kind=kind, keep_all=keep_all):
            return f"{kind}{' ALL' if keep_all else ''}"
        case Values(rows=rows):
            return f"Values {len(rows)} rows"
        case Cte(index=index, name=name):
            return f"Cte {name} (#{index})"
        case CteRef(index=index):
            return f"CteRef #{index}"
        case Statement(tables=tables, reason=reason):
            return f"Statement over {', '.join(tables) or 'no table'}: {reason}"
        case _:
            assert_never(operator)


def _projected(expression: Expression, names: Names) -> str:
    if isinstance(expression, DictionaryValue):
        return f"text of {render(expression.code, names)}"
    return render(expression, names)


def aggregate_label(aggregate: Aggregate, names: Names) -> str:
    """Groups and aggregates."""
    calls: Sequence[AggregateCall] = aggregate.aggregates
    text = ", ".join(render_aggregate(call, names) for call in calls) or "-"
    if aggregate.grouping_sets:
        sets = (
            f"({', '.join(render(aggregate.groups[i], names) for i in s)})"
            for s in aggregate.grouping_sets
        )
        return f"{text} by grouping sets {', '.join(sets)}"
    groups = ", ".join(render(group, names) for group in aggregate.groups)
    return f"{text} by {groups}" if groups else text


def join_label(join: Join, inputs: Sequence[Schema]) -> str:
    """A join's kind and conditions."""
    left, right = ([c.name or f"#{i}" for i, c in enumerate(schema)] for schema in inputs)
    conditions = [
        f"{render(c.left, left)} {c.comparison} {render(c.right, right)}" for c in join.conditions
    ]
    conditions += [render(predicate, left + right) for predicate in join.residual]
    return f"Join {join.kind} on {' AND '.join(conditions) or 'true'}"


def sort_label(keys: Sequence[SortKey], names: Names) -> str:
    """Sort keys as SQL."""
    return render_sort_keys(keys, names)
