"""A plan and its stages as events tell them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import TypeAlias

from msgspec import structs

from minishark.compiler.logical.operators import Cte, Limit, Project, Scan, Sort, TopN, Window
from minishark.compiler.physical.plan import Exchange, PhysicalPlan, StageOutput
from minishark.compiler.stages.stage import Stage, TableInput
from minishark.model.catalog import Table
from minishark.model.events import kinds
from minishark.model.events.figures import OperatorFigures
from minishark.query.operators import measured, own_operators
from minishark.worker.protocol import TaskOutcome

_KEEP_ROWS = (Exchange, Cte, Project, Sort, Window)  # those of their last input
_LABEL_CHARS = 400
_FRAGMENT_CHARS = 4_000
_NODES_MAX = 2_000

Shown: TypeAlias = tuple[tuple[kinds.PlanNode, ...], tuple[kinds.StagePlan, ...]]
"""The operators of a plan, and its stages."""


def shown(plan: PhysicalPlan, stages: Sequence[Stage], tables: Mapping[str, Table]) -> Shown:
    """A plan and its stages as an event tells them; of huge plans, the operators at the top."""
    nodes = _Nodes(stages, tables).of(plan)
    return tuple(islice(nodes, _NODES_MAX)), tuple(_stage(stage, tables) for stage in stages)


class _Nodes:
    """Which stage computes which node of a plan, and which nodes' rows are its output.

    Nodes are known by identity; a plan that was revised has other nodes around the same operators.
    """

    def __init__(self, stages: Sequence[Stage], tables: Mapping[str, Table]) -> None:
        self._last = stages[-1].index
        self._tables = tables
        self._homes: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        self._places: dict[tuple[int, int], int] = {}
        for stage in stages:
            for place, (node, _) in enumerate(own_operators(stage)):
                for part in (node, node.operator):
                    self._places.setdefault((stage.index, id(part)), place)
            for node in stage.plan.own_nodes():
                if not isinstance(node.operator, Exchange):
                    self._homes.setdefault(id(node), stage.index)
                    self._homes.setdefault(id(node.operator), stage.index)
            for top in (stage.plan, stage.exchange):
                if top is not None:
                    self._outputs[id(top)] = stage.index

    def of(self, root: PhysicalPlan) -> Iterator[kinds.PlanNode]:
        """The nodes of a plan, each after the one that reads it."""
        waiting: list[tuple[PhysicalPlan, int | None, int]] = [(root, None, self._last)]
        for number in count():
            if not waiting:
                break
            node, parent, above = waiting.pop()
            stage = self._stage(node, above)
            is_output = isinstance(node.operator, StageOutput) or id(node) in self._outputs
            yield self._told(node, parent, stage, puts_out=node is root or is_output)
            waiting += ((child, number, stage) for child in reversed(node.children))

    def _stage(self, node: PhysicalPlan, above: int) -> int:
        """The stage that computes a node, or of which an exchange hands on the output."""
        match node.operator:
            case StageOutput(stage=stage):
                return stage
            case Exchange() if id(node) not in self._outputs and node.children:
                return self._stage(node.children[0], above)
            case operator:
                number = self._outputs.get(id(node), self._homes.get(id(node)))
                return self._homes.get(id(operator), above) if number is None else number

    def _told(
        self, node: PhysicalPlan, parent: int | None, stage: int, *, puts_out: bool
    ) -> kinds.PlanNode:
        operator = node.operator
        is_whole = isinstance(operator, Scan) and not operator.hints.label
        stored = self._tables.get(operator.table.lower()) if isinstance(operator, Scan) else None
        return kinds.PlanNode(
            parent=parent,
            name=type(operator).__name__,
            label=kinds.shortened(_label(node), _LABEL_CHARS),
            where=kinds.shortened(node.distribution.label(node.schema), _LABEL_CHARS),
            rows=round(estimated_rows(node), 1),
            stage=stage,
            puts_out=puts_out,
            keeps_rows=isinstance(operator, _KEEP_ROWS) and bool(node.children),
            place=None if isinstance(operator, Exchange) else self._place(node, stage),
            stored_rows=stored.rows if stored is not None and is_whole else None,
        )

    def _place(self, node: PhysicalPlan, stage: int) -> int | None:
        place = self._places.get((stage, id(node)))
        return self._places.get((stage, id(node.operator))) if place is None else place


def estimated_rows(node: PhysicalPlan) -> float:
    """The estimated rows of all partitions: each of them has a limit's number of rows."""
    match node.operator:
        case Limit() | TopN() if node.distribution.partitions > 1:
            return min(node.rows * node.distribution.partitions, node.children[0].rows)
        case Exchange() if node.children:
            child = node.children[0]
            return estimated_rows(child) if isinstance(child.operator, Limit | TopN) else node.rows
        case _:
            return node.rows


def operator_figures(stage: Stage, outcomes: Iterable[TaskOutcome]) -> list[OperatorFigures]:
    """What the operators of a stage did in tasks with these outcomes, which profiled them."""
    return [
        structs.replace(
            figures,
            name=type(node.operator).__name__,
            label=kinds.shortened(_label(node), _LABEL_CHARS),
            depth=depth,
            estimated_rows=estimated_rows(node),
        )
        for (node, depth), figures in zip(
            own_operators(stage), measured(stage, outcomes), strict=True
        )
    ]


def _label(node: PhysicalPlan) -> str:
    return node.operator.label([child.schema for child in node.children])


def _stage(stage: Stage, tables: Mapping[str, Table]) -> kinds.StagePlan:
    names = [item.table for item in stage.inputs if isinstance(item, TableInput)]
    scanned = [table for name in dict.fromkeys(names) if (table := tables.get(name.lower()))]
    operators = (node.operator for node in stage.plan.own_nodes())
    kinds_of = [
        type(operator).__name__ for operator in operators if not isinstance(operator, Exchange)
    ]
    return kinds.StagePlan(
        stage=stage.index,
        tasks=stage.tasks,
        reads=stage.parents,
        tables=tuple(table.title or table.name for table in scanned),
        table_bytes=sum(table.bytes for table in scanned),
        buckets=stage.buckets,
        does=", ".join(dict.fromkeys(reversed(kinds_of))),
        sql=kinds.shortened(stage.sql, _FRAGMENT_CHARS),
    )
