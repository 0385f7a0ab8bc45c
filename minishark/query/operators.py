"""Rows and times of a plan's operators, from what DuckDB's profiler measured in tasks. Pure.

A fragment is written from the operators of its stage, and DuckDB plans it again: it adds
projections, moves filters, and may swap the sides of joins. So its operators form a tree of nearly
the same shape, without names in common. Both trees are laid over each other from the root down:

* Projections and filters are *loose*: between two other operators, any number of them may stand on
  either side. Their rows follow from the ends of such a chain.
* All others are *firm*: kind for kind, each has one counterpart. The sides of a join are tried in
  both orders; leaves tell them apart by the columns that they read. Where both orders fit, what
  they do not agree on is unknown.
* Where DuckDB has moved a filter, operators between its two places have other rows than the plan's,
  and theirs are unknown.

Where the trees do not fit, nothing is known. A number that is given is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import structs

from minishark.compiler.logical.operators import (
    Cte,
    CteRef,
    Distinct,
    DistinctOn,
    Filter,
    Join,
    JoinKind,
    Limit,
    Project,
    Scan,
    SetKind,
    SetOperation,
    Sort,
    TopN,
    Unnest,
    Values,
    Window,
)
from minishark.compiler.physical.plan import (
    Boundaries,
    Exchange,
    PhysicalOperator,
    PhysicalPlan,
    RangeShuffle,
    Replicated,
    SampleKeys,
    aggregate_of,
)
from minishark.compiler.stages.stage import Stage
from minishark.model.events.figures import OperatorFigures
from minishark.worker.protocol import Profiled, TaskOutcome

_GROUPED = frozenset(("HASH_GROUP_BY", "PERFECT_HASH_GROUP_BY", "PARTITIONED_AGGREGATE"))
_UNGROUPED = frozenset(("UNGROUPED_AGGREGATE",))
_WINDOWS = frozenset(("WINDOW", "STREAMING_WINDOW"))
_JOINS = frozenset(
    ("HASH_JOIN", "NESTED_LOOP_JOIN", "PIECEWISE_MERGE_JOIN", "IE_JOIN", "BLOCKWISE_NL_JOIN")
)
_KINDS: dict[type, frozenset[str]] = {
    Distinct: _GROUPED,
    DistinctOn: _GROUPED,
    Sort: frozenset(("ORDER_BY",)),
    TopN: frozenset(("TOP_N",)),
    Limit: frozenset(("LIMIT", "STREAMING_LIMIT")),
    Window: _WINDOWS,
    Unnest: frozenset(("UNNEST",)),
}
"""DuckDB's names for an operator with one input."""

_MIRRORED = {
    JoinKind.INNER: "INNER",
    JoinKind.FULL: "FULL",
    JoinKind.LEFT: "RIGHT",
    JoinKind.RIGHT: "LEFT",
    JoinKind.SEMI: "RIGHT_SEMI",
    JoinKind.ANTI: "RIGHT_ANTI",
    JoinKind.RIGHT_SEMI: "SEMI",
    JoinKind.RIGHT_ANTI: "ANTI",
}
"""DuckDB's name for a join whose sides it has swapped."""

_DECIDED = frozenset(("INNER", "SEMI", "RIGHT", "RIGHT_SEMI", "RIGHT_ANTI"))
"""Joins that have no rows, or known ones, if the hash table is empty."""

_CONSTANTS = frozenset(("COLUMN_DATA_SCAN", "DUMMY_SCAN", "EXPRESSION_SCAN"))
_STAGED_COLUMN = re.compile(r"c(\d+)")


_UNKNOWN = OperatorFigures()
Fit: TypeAlias = dict[int, OperatorFigures]
"""What is known of operators, by the identity of their nodes."""


def own_operators(stage: Stage) -> list[tuple[PhysicalPlan, int]]:
    """The nodes of a stage, each after the one that reads it, and how deep they are.

    With the exchanges that it reads, and the common table expressions that its fragment defines.
    """
    operators: list[tuple[PhysicalPlan, int]] = []
    waiting = [(stage.plan, 0)]
    while waiting:
        node, depth = waiting.pop()
        operators.append((node, depth))
        waiting += [(child, depth + 1) for child in reversed(_inputs(stage, node))]
    return operators


def _inputs(stage: Stage, node: PhysicalPlan) -> tuple[PhysicalPlan, ...]:
    """What a node reads in its own stage."""
    match node.operator:
        case Exchange():
            return ()
        case Cte(index=index) if not _is_early(stage, index) and not _is_written(stage, index):
            return node.children[1:]
        case _:
            return node.children


def _is_early(stage: Stage, index: int) -> bool:
    """Whether tasks compute a common table expression before the fragment."""
    return any(cte.name == f"cte{index}" for cte in stage.hints.ctes)


def _is_written(stage: Stage, index: int) -> bool:
    """Whether the fragment defines a common table expression."""
    return f"cte{index} AS MATERIALIZED (" in stage.sql


def measured(stage: Stage, outcomes: Iterable[TaskOutcome]) -> list[OperatorFigures]:
    """What each of `own_operators` did in all tasks of a stage together.

    Rows that every task has alike, such as those of a table that each of them reads, count once.
    """
    nodes = [node for node, _ in own_operators(stage)]
    tasks = list(outcomes)
    fits = [_fit(stage, outcome.profiles) for outcome in tasks]
    figures = [_total(node, [fit.get(id(node), _UNKNOWN) for fit in fits]) for node in nodes]
    if figures and tasks and not isinstance(stage.plan.distribution, Replicated):
        # What a stage puts out is counted anyway.
        figures[0] = structs.replace(
            figures[0], rows=sum(outcome.figures.rows for outcome in tasks)
        )
    kept = _kept(stage, nodes, figures)
    if len(tasks) < stage.tasks:  # a limit had enough rows
        return [structs.replace(operator, ended_early=True) for operator in kept]
    return kept


def _total(node: PhysicalPlan, tasks: Sequence[OperatorFigures]) -> OperatorFigures:
    rows = [task.rows for task in tasks if task.rows is not None]
    times = [task.run_s for task in tasks if task.run_s is not None]
    total: int | None = None
    if tasks and len(rows) == len(tasks):
        if not isinstance(node.distribution, Replicated):
            total = sum(rows)
        elif len(set(rows)) == 1:
            total = rows[0]
    run_s = sum(times) if tasks and len(times) == len(tasks) else None
    return OperatorFigures(
        rows=total, run_s=run_s, ended_early=any(task.ended_early for task in tasks)
    )


def _kept(
    stage: Stage, nodes: Sequence[PhysicalPlan], figures: Sequence[OperatorFigures]
) -> list[OperatorFigures]:
    """Pass rows on through operators that neither add nor drop any."""
    by_node = {id(node): figure for node, figure in zip(nodes, figures, strict=True)}
    for downwards in (True, False):
        for node in nodes if downwards else reversed(nodes):
            if not isinstance(node.operator, Project | Cte | Window):
                continue
            last = _inputs(stage, node)[-1]
            if isinstance(node.distribution, Replicated) != isinstance(
                last.distribution, Replicated
            ):
                continue
            source, target = (node, last) if downwards else (last, node)
            if by_node[id(target)].rows is None:
                rows, cut = by_node[id(source)].rows, by_node[id(source)].ended_early
                by_node[id(target)] = structs.replace(
                    by_node[id(target)], rows=rows, ended_early=cut
                )
    return [by_node[id(node)] for node in nodes]


def _fit(stage: Stage, profiles: Mapping[str, Profiled]) -> Fit:
    """What a task's profiles say of the nodes of its stage."""
    if "" not in profiles or stage.is_statement or stage.hints.group_runs:
        return {}  # which SQL makes groups of runs, each task decides for itself
    overlay = _Overlay(stage)
    root = profiles[""]
    while root.kind == "RESULT_COLLECTOR" and len(root.inputs) == 1:
        root = root.inputs[0]
    fit = overlay.fit(stage.plan, root)
    if fit is None and stage.exchange and isinstance(stage.exchange.operator, RangeShuffle):
        fit = overlay.fit_ranges(root)
    if fit is None:
        return {}
    definitions = overlay.fit_definitions(profiles)
    if definitions is None:
        return {}
    return fit | definitions


@dataclass(slots=True)
class _Chain:
    """Loose operators that follow one another, and the firm one below them."""

    top_rows: int
    filters_s: float
    others_s: float
    filters: int
    end: Profiled

    @property
    def drops_rows(self) -> bool:
        return self.filters > 0 and self.top_rows != self.end.rows


@dataclass(slots=True)
class _Overlay:
    """Lays DuckDB's operators over the nodes of a stage."""

    stage: Stage
    _definitions: list[Profiled] = field(default_factory=list)
    _filter_is_moved: bool = False

    @property
    def _finds_out(self) -> bool:
        """Whether DuckDB may know which rows are not wanted while it reads others."""
        return any(
            isinstance(node.operator, Join | TopN | Limit | SetOperation)
            for node, _ in own_operators(self.stage)
        )

    def fit(self, plan: PhysicalPlan, root: Profiled) -> Fit | None:
        """What is known of a node and all below it; None if the trees do not fit."""
        self._definitions.clear()
        self._filter_is_moved = False
        figures = self._node(plan, root)
        return self._sure(figures) if figures is not None else None

    def fit_ranges(self, root: Profiled) -> Fit | None:
        """As `fit` for the whole stage; its rows are joined with the boundaries of ranges."""
        chain = self._loose(root)
        if chain.end.kind not in (*_JOINS, "CROSS_PRODUCT") or len(chain.end.inputs) != 2:
            return None
        rows, boundaries = chain.end.inputs
        if self._loose(boundaries).end.read_rows != 1:
            return None
        return self.fit(self.stage.plan, rows)

    def _sure(self, figures: Fit) -> Fit:
        """Without rows if a filter stands where the plan has none: it may come from anywhere."""
        if not self._filter_is_moved:
            return figures
        return _without_rows(figures)

    def fit_definitions(self, profiles: Mapping[str, Profiled]) -> Fit | None:
        """What is known of the common table expressions of the fragment."""
        figures: Fit = {}
        written = list(self._definitions)
        for node, _ in own_operators(self.stage):
            if not isinstance(node.operator, Cte):
                continue
            index = node.operator.index
            plan = node.children[0]
            early = profiles.get(f"cte{index}")
            candidates = [early] if early is not None else written
            if not (_is_early(self.stage, index) or _is_written(self.stage, index)):
                continue
            fits = []
            for root in candidates:
                overlay = _Overlay(self.stage)
                while root.kind == "RESULT_COLLECTOR" and len(root.inputs) == 1:
                    root = root.inputs[0]  # noqa: PLW2901
                fit = overlay.fit(plan, root)
                if fit is not None:
                    fits.append(fit)
            if fits:
                figures |= _agreed(fits)
        return figures

    # Chains of loose operators

    def _loose(self, root: Profiled) -> _Chain:
        node, filters, filters_s, others_s = root, 0, 0.0, 0.0
        while True:
            if node.kind == "PROJECTION":
                others_s += node.run_s
            elif node.kind == "FILTER":
                filters += 1
                filters_s += node.run_s
            elif node.kind == "CTE" and len(node.inputs) == 2:
                others_s += node.run_s
                if not any(node.inputs[0] is definition for definition in self._definitions):
                    self._definitions.append(node.inputs[0])
                node = node.inputs[1]
                continue
            elif _is_in_list(node):
                filters_s += node.run_s + node.inputs[1].run_s
            elif self._looks_up_text(node):
                others_s += node.run_s
            else:
                break
            if not node.inputs:
                break
            node = node.inputs[0]
        return _Chain(_rows(root), filters_s, others_s, filters, node)

    def _looks_up_text(self, node: Profiled) -> bool:
        """Whether it joins each row with the one row of dictionaries, for the text of codes."""
        texts = {
            text
            for dictionary_code in self.stage.hints.dictionary_codes
            for _, text in dictionary_code.columns
        }
        is_cross = node.kind == "CROSS_PRODUCT" and len(node.inputs) == 2
        return bool(texts) and is_cross and _is_dictionary(node.inputs[1], texts)

    def _node(self, plan: PhysicalPlan, root: Profiled) -> Fit | None:
        above: list[PhysicalPlan] = []
        while isinstance(plan.operator, Project | Filter | Cte):
            above.append(plan)
            plan = plan.children[-1]
        chain = self._loose(root)
        if chain.end.kind == "EMPTY_RESULT":
            return {id(node): OperatorFigures(rows=0) for node in (*above, plan)[:1]}
        below = self._firm(plan, chain.end)
        if below is None:
            return None
        return below | self._chained(plan, above, chain, below)

    def _chained(
        self, plan: PhysicalPlan, above: Sequence[PhysicalPlan], chain: _Chain, below: Fit
    ) -> Fit:
        """What is known of loose nodes; changes what is of those below if a filter has moved."""
        figures: Fit = {}
        filters = [
            node for node in above if isinstance(node.operator, Filter) and node.operator.predicates
        ]
        if chain.drops_rows and not filters:
            self._filter_is_moved = True
        if filters and not chain.filters:
            # DuckDB tests the predicates further down, so rows are missing there.
            figures |= _without_rows(below)
        rows: int | None = chain.top_rows
        cut = below[id(plan)].ended_early
        for node in above:
            figures[id(node)] = OperatorFigures(rows=rows, ended_early=cut)
            if any(node is filter_ for filter_ in filters):
                rows = chain.end.rows if node is filters[-1] and chain.filters else None
        if chain.top_rows == chain.end.rows and chain.filters:
            kept = OperatorFigures(rows=chain.top_rows, ended_early=cut)
            figures |= {id(node): kept for node in above}
        # What DuckDB adds counts for the operator that needs it.
        loose = {True: chain.filters_s, False: chain.others_s}
        for is_filter, run_s in loose.items():
            if not run_s:
                continue
            kind = Filter if is_filter else Project
            target = next((node for node in above if isinstance(node.operator, kind)), None)
            target = target or next(iter(above), plan)
            own = figures.get(id(target)) or below[id(target)]
            figures[id(target)] = structs.replace(own, run_s=(own.run_s or 0.0) + run_s)
        return figures

    # Firm operators

    def _firm(self, plan: PhysicalPlan, root: Profiled) -> Fit | None:
        rows = root.rows
        match plan.operator:
            case Exchange() | Scan() | CteRef() | Values():
                return self._leaf(plan, root)
            case Join():
                below = self._joined(plan, plan.operator, root)
            case SetOperation(kind=SetKind.UNION, keep_all=True) if root.kind == "UNION":
                below = self._inputs(plan.children, root.inputs)
                rows = sum(_rows(child) for child in root.inputs)  # DuckDB does not count them
            case SampleKeys() | Boundaries():
                below = self._numbered(plan, root)
            case Window():
                below = self._windows(plan, root)
            case Sort(stable=True) | TopN(stable=True):
                below = self._stable(plan, root)
            case operator if root.kind in _kinds(operator):
                below = self._inputs(plan.children, root.inputs)
            case _:
                return None
        if below is None:
            return None
        figures = below.get(id(plan), OperatorFigures(run_s=root.run_s))
        return below | {
            id(plan): structs.replace(figures, rows=rows, ended_early=_is_cut(plan, rows, below))
        }

    def _inputs(self, plans: Sequence[PhysicalPlan], roots: Sequence[Profiled]) -> Fit | None:
        if len(plans) != len(roots):
            return None
        figures: Fit = {}
        for plan, root in zip(plans, roots, strict=True):
            fit = self._node(plan, root)
            if fit is None:
                return None
            figures |= fit
        return figures

    def _joined(self, plan: PhysicalPlan, join: Join, root: Profiled) -> Fit | None:
        if len(root.inputs) != 2 or root.kind not in (*_JOINS, "CROSS_PRODUCT"):
            return None
        name = root.join or "INNER"
        fits = []
        moved, self._filter_is_moved = self._filter_is_moved, False
        all_moved = False
        for is_swapped in (False, True):
            kind = _MIRRORED.get(join.kind) if is_swapped else join.kind.name
            if name != kind:
                continue
            roots = root.inputs[::-1] if is_swapped else root.inputs
            self._filter_is_moved = False
            fit = self._inputs(plan.children, roots)
            if fit is not None:
                if name in _DECIDED and not _rows(root.inputs[1]):
                    # DuckDB leaves the probing side wherever it is, even between two operators.
                    probing = self._probing(plan, is_swapped=is_swapped)
                    fit |= {
                        key: structs.replace(fit[key], ended_early=True)
                        for key in probing & fit.keys()
                    }
                fits.append(fit)
                all_moved |= self._filter_is_moved
        self._filter_is_moved = moved or all_moved
        return _agreed(fits) if fits else None

    def _probing(self, plan: PhysicalPlan, *, is_swapped: bool) -> set[int]:
        """The nodes on the side of a join that DuckDB does not build a hash table from."""
        waiting, nodes = [plan.children[is_swapped]], set()
        while waiting:
            node = waiting.pop()
            nodes.add(id(node))
            waiting += _inputs(self.stage, node)
        return nodes

    def _windows(self, plan: PhysicalPlan, root: Profiled) -> Fit | None:
        """Functions over other partitions or orders have operators of their own."""
        node, run_s = root, 0.0
        while node.kind in _WINDOWS:
            run_s += node.run_s
            following = self._loose(node.inputs[0])
            if following.filters or following.end.kind not in _WINDOWS:
                break
            run_s += following.others_s
            node = following.end
        if node.kind not in _WINDOWS:
            return None
        below = self._node(plan.children[0], node.inputs[0])
        return None if below is None else {id(plan): OperatorFigures(run_s=run_s), **below}

    def _stable(self, plan: PhysicalPlan, root: Profiled) -> Fit | None:
        """Row numbers decide between equal keys."""
        if root.kind not in _KINDS[type(plan.operator)]:
            return None
        numbered = self._loose(root.inputs[0])
        if numbered.filters or numbered.end.kind != "STREAMING_WINDOW":
            return None
        return self._node(plan.children[0], numbered.end.inputs[0])

    def _numbered(self, plan: PhysicalPlan, root: Profiled) -> Fit | None:
        """Samples of keys and their boundaries are several operators of DuckDB's."""
        node, run_s = root, 0.0
        while node.kind in (*_WINDOWS, *_UNGROUPED, "RESERVOIR_SAMPLE", "PROJECTION"):
            run_s += node.run_s
            node = node.inputs[0]
        below = self._node(plan.children[0], node)
        return None if below is None else {id(plan): OperatorFigures(run_s=run_s), **below}

    def _leaf(self, plan: PhysicalPlan, root: Profiled) -> Fit | None:
        if root.inputs or not _may_be(plan, root):
            return None
        rows: int | None = root.rows
        if root.kind == "CTE_SCAN" and not isinstance(plan.operator, CteRef):
            rows = None  # DuckDB scans once for several scans: with rows that one of them wants
        elif root.kind == "TABLE_SCAN" and root.read_rows is None:
            # Where DuckDB reads files itself, it drops rows while it does: those that filters just
            # above do not want, but also by what joins and limits find out.
            rows = None
            self._filter_is_moved |= self._finds_out
        cut = root.read_rows is not None and root.rows < root.read_rows
        return {id(plan): OperatorFigures(rows=rows, run_s=root.run_s, ended_early=cut)}


def _rows(root: Profiled) -> int:
    """The output rows of an operator; some that only pass rows on do not count them."""
    match root.kind:
        case "CTE" if len(root.inputs) == 2:
            return _rows(root.inputs[1])
        case "UNION":
            return sum(map(_rows, root.inputs))
        case _:
            return root.rows


def _is_cut(plan: PhysicalPlan, rows: int, below: Fit) -> bool:
    """Whether an operator was cut as one that it reads was, and did not decide that itself."""
    if isinstance(plan.operator, Limit | TopN) or (isinstance(plan.operator, Join) and not rows):
        return False  # a limit is enough, and an empty side decides most joins
    return any(id(child) in below and below[id(child)].ended_early for child in plan.children)


def _without_rows(fit: Fit) -> Fit:
    return {key: structs.replace(figures, rows=None) for key, figures in fit.items()}


def _kinds(operator: PhysicalOperator) -> frozenset[str]:
    aggregate = aggregate_of(operator)
    if aggregate is not None:
        return _GROUPED if aggregate.groups else _UNGROUPED
    return _KINDS.get(type(operator), frozenset())


def _is_dictionary(node: Profiled, texts: AbstractSet[str]) -> bool:
    """Whether it is the row of a dictionary of some texts, or of several dictionaries."""
    if node.kind in (*_UNGROUPED, "PROJECTION", "CROSS_PRODUCT") and node.inputs:
        return all(_is_dictionary(given, texts) for given in node.inputs)
    return node.kind == "TABLE_SCAN" and node.read_rows == 1 and texts >= {*node.columns}


def _is_in_list(node: Profiled) -> bool:
    """Whether it is one of the joins by which DuckDB looks up long lists of constants."""
    return (
        node.kind == "HASH_JOIN"
        and node.join == "MARK"
        and len(node.inputs) == 2
        and node.inputs[1].kind == "COLUMN_DATA_SCAN"
    )


def _may_be(plan: PhysicalPlan, leaf: Profiled) -> bool:
    """Whether a leaf of DuckDB's may read what this node stands for."""
    match plan.operator:
        case Values():
            return leaf.kind in _CONSTANTS
        case _ if leaf.kind == "CTE_SCAN":
            return True
        case Scan(columns=columns) if leaf.kind == "TABLE_SCAN":
            names = {column.lower() for column in columns if column is not None}
            read = {column.lower() for column in leaf.columns}
            return leaf.read_rows is None or not names or names <= read or read <= names
        case _ if leaf.kind == "TABLE_SCAN":
            numbers = [_STAGED_COLUMN.fullmatch(column) for column in leaf.columns]
            return all(number and int(number[1]) < len(plan.schema) for number in numbers)
        case _:
            return False


def _agreed(fits: Sequence[Fit]) -> Fit:
    """What all fits say."""
    first, *others = fits
    agreed = dict(first)
    for fit in others:
        for key in agreed.keys() | fit.keys():
            agreed[key] = _common(agreed.get(key, _UNKNOWN), fit.get(key, _UNKNOWN))
    return agreed


def _common(one: OperatorFigures, other: OperatorFigures) -> OperatorFigures:
    """What both say."""
    return OperatorFigures(
        rows=one.rows if one.rows == other.rows else None,
        run_s=one.run_s if one.run_s == other.run_s else None,
        ended_early=one.ended_early or other.ended_early,
    )
