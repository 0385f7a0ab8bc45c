"""A plan and its stages as events tell them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from minishark.catalog import Table
from minishark.compiler.logical.operators import Project, Scan, Sort, Window
from minishark.compiler.physical.plan import Exchange, PhysicalPlan
from minishark.compiler.stages.stage import Stage, TableInput
from minishark.events import kinds

_KEEP_ROWS = (Exchange, Project, Sort, Window)
_LABEL_CHARS = 400
_FRAGMENT_CHARS = 4_000
_NODES_MAX = 2_000

Shown: TypeAlias = tuple[tuple[kinds.PlanNode, ...], tuple[kinds.StagePlan, ...]]
"""The operators of a plan, and its stages."""


def shown(plan: PhysicalPlan, stages: Sequence[Stage], tables: Mapping[str, Table]) -> Shown:
    """A plan and its stages as an event tells them; of huge plans, the operators at the top."""
    homes: dict[int, int] = {}
    outputs: dict[int, int] = {}
    for stage in stages:
        for node in stage.plan.own_nodes():
            if not isinstance(node.operator, Exchange):
                homes.setdefault(id(node), stage.index)
        top = stage.plan if stage.exchange is None else stage.exchange
        outputs[id(top)] = outputs[id(stage.plan)] = stage.index
    nodes = tuple(_nodes(plan, homes, outputs, tables))
    return nodes, tuple(_stage(stage, tables) for stage in stages)


def _nodes(
    root: PhysicalPlan,
    homes: Mapping[int, int],
    outputs: Mapping[int, int],
    tables: Mapping[str, Table],
) -> Iterator[kinds.PlanNode]:
    last = max(homes.values(), default=0)
    waiting: list[tuple[PhysicalPlan, int | None, int]] = [(root, None, last)]
    count = 0
    while waiting and count < _NODES_MAX:
        node, parent, above = waiting.pop()
        operator = node.operator
        stage = outputs.get(id(node), homes.get(id(node)))
        if stage is None:  # an exchange belongs to the stage whose output it is
            child = node.children[0] if isinstance(operator, Exchange) and node.children else node
            stage = outputs.get(id(child), homes.get(id(child), above))
        stored = tables.get(operator.table.lower()) if isinstance(operator, Scan) else None
        unfiltered = isinstance(operator, Scan) and not operator.hints.label
        yield kinds.PlanNode(
            parent=parent,
            name=type(operator).__name__,
            label=kinds.shortened(
                operator.label([child.schema for child in node.children]), _LABEL_CHARS
            ),
            where=kinds.shortened(node.distribution.label(node.schema), _LABEL_CHARS),
            rows=round(node.rows, 1),
            stage=stage,
            puts_out=id(node) in outputs,
            keeps_rows=isinstance(operator, _KEEP_ROWS) and len(node.children) == 1,
            stored_rows=stored.rows if stored is not None and unfiltered else None,
        )
        own, count = count, count + 1
        waiting += ((child, own, stage) for child in reversed(node.children))


def _stage(stage: Stage, tables: Mapping[str, Table]) -> kinds.StagePlan:
    names = [item.table for item in stage.inputs if isinstance(item, TableInput)]
    found = [table for name in dict.fromkeys(names) if (table := tables.get(name.lower()))]
    operators = (node.operator for node in stage.plan.own_nodes())
    kinds_of = [type(each).__name__ for each in operators if not isinstance(each, Exchange)]
    return kinds.StagePlan(
        stage=stage.index,
        tasks=stage.tasks,
        reads=stage.parents,
        tables=tuple(table.name for table in found),
        table_bytes=sum(table.bytes for table in found),
        buckets=stage.buckets,
        does=", ".join(dict.fromkeys(reversed(kinds_of))),
        sql=kinds.shortened(stage.sql, _FRAGMENT_CHARS),
    )
