"""Physical plan -> stages: the plan is cut at its exchanges.

A common table expression becomes a stage of its own whose output several others read. Where all
readers are in one stage and read it partition by partition, it stays inside that stage's fragment
instead, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from minishark.compiler.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    DistinctOn,
    Filter,
    GroupRuns,
    Join,
    KeyFilter,
    Limit,
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
from minishark.compiler.physical.plan import (
    Boundaries,
    Broadcast,
    FinalAggregate,
    Gather,
    Materialize,
    PartialAggregate,
    PhysicalPlan,
    RangeShuffle,
    Replicated,
    SampleKeys,
    Shuffle,
)
from minishark.compiler.rules.group_keys import dictionary_relation
from minishark.compiler.stages import fragment
from minishark.compiler.stages.fragment import Aliases, Block
from minishark.compiler.stages.inputs import InputCodes, InputFilter, InputRuns, Step, with_ctes
from minishark.compiler.stages.sides import turned_kind
from minishark.compiler.stages.stage import Input, ReadMode, Stage, StageInput, TableInput


def split(plan: PhysicalPlan) -> tuple[Stage, ...]:
    """The stages of `plan` in an order in which they can run; the last one gives the result."""
    inlined = _inlined_ctes(plan)
    splitter = _Splitter(inlined, inlined & _stored_ctes(plan))
    splitter.stage(plan)
    return tuple(splitter.stages)


def _inlined_ctes(root: PhysicalPlan) -> frozenset[int]:
    """The common table expressions that need no stage of their own."""
    regions = _Regions()
    regions.visit(root, regions.start(root))
    return regions.inlined()


def _stored_ctes(root: PhysicalPlan) -> frozenset[int]:
    """The common table expressions that filters need, and those that these read."""
    definitions: dict[int, PhysicalPlan] = {}
    needed: list[int] = []
    for plan in _nodes(root):
        match plan.operator:
            case Cte(index=index):
                definitions[index] = plan.children[0]
            case Scan(key_filter=KeyFilter(cte=cte)):
                needed.append(cte)
    found: set[int] = set()
    while needed:
        index = needed.pop()
        if index not in found:
            found.add(index)
            read = (plan.operator for plan in _nodes(definitions[index]))
            needed += [operator.index for operator in read if isinstance(operator, CteRef)]
    return frozenset(found)


def _nodes(plan: PhysicalPlan) -> Iterator[PhysicalPlan]:
    yield plan
    for child in plan.children:
        yield from _nodes(child)


def _mode(plan: PhysicalPlan) -> ReadMode:
    """What a task reads of a relation that is stored."""
    return ReadMode.ALL if isinstance(plan.distribution, Replicated) else ReadMode.OWN


def _group_runs(plan: PhysicalPlan) -> GroupRuns | None:
    """How the groups of an aggregate may be found without a hash table."""
    below = plan.children[0].operator
    return below.runs if isinstance(below, Scan) else None


@dataclass(slots=True)
class _Regions:
    """Which future stage each reader of a common table expression is in.

    A region is a part of the plan without exchanges, that is, a stage. The definition of a CTE
    is a region for now; it becomes part of its readers' region if it stays inside their fragment.
    """

    roots: list[PhysicalPlan] = field(default_factory=list)
    definitions: dict[int, tuple[PhysicalPlan, int]] = field(default_factory=dict)
    readers: dict[int, list[int | None]] = field(default_factory=dict)

    def start(self, root: PhysicalPlan) -> int:
        self.roots.append(root)
        return len(self.roots) - 1

    def visit(self, plan: PhysicalPlan, region: int) -> None:
        match plan.operator:
            case Cte(index=index):
                definition, main = plan.children
                own = self.start(definition)
                self.definitions[index] = (definition, own)
                self.visit(definition, own)
                self.visit(main, region)
            case CteRef(index=index):
                self.readers.setdefault(index, []).append(region)
            case Broadcast() | Gather() if isinstance(plan.children[0].operator, CteRef):
                # Read as a whole where it is stored.
                self.readers.setdefault(plan.children[0].operator.index, []).append(None)
            case Shuffle() | RangeShuffle() | Broadcast() | Gather() | Materialize():
                for child in plan.children:
                    self.visit(child, self.start(child))
            case _:
                for child in plan.children:
                    self.visit(child, region)

    def inlined(self) -> frozenset[int]:
        merged: dict[int, int] = {}
        found: list[int] = []
        for index in reversed(self.definitions):
            definition, own = self.definitions[index]
            regions = {r if r is None else merged.get(r, r) for r in self.readers.get(index, [])}
            if isinstance(definition.distribution, Replicated):
                found.append(index)
            elif len(regions) == 1 and None not in regions:
                (region,) = regions
                assert region is not None
                readers = self.roots[region].distribution.partitions
                if readers == definition.distribution.partitions:
                    found.append(index)
            if index in found and len(regions) == 1:
                (region,) = regions
                if region is not None:
                    merged[own] = region
        return frozenset(found)


def _enough_rows(plan: PhysicalPlan) -> int | None:
    """How many rows of `plan`, in the order of its partitions, anybody can want.

    A limit in several partitions stands below a gather and a limit of at most as many rows.
    """
    limit = plan.operator
    if isinstance(limit, Limit) and not limit.offset and plan.distribution.partitions > 1:
        return limit.limit
    return None


@dataclass(slots=True)
class _Fragment:
    """A stage's SQL while it is being written."""

    aliases: Aliases = field(default_factory=Aliases)
    inputs: dict[tuple[str | int, ReadMode, KeyFilter | None], Input] = field(default_factory=dict)
    ctes: dict[str, str] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    codes: dict[str, InputCodes] = field(default_factory=dict)
    filters: dict[str, InputFilter] = field(default_factory=dict)
    runs: list[InputRuns] = field(default_factory=list)

    def table(self, table: str, mode: ReadMode, key_filter: KeyFilter | None = None) -> str:
        key = (table.lower(), mode, key_filter)
        if key not in self.inputs:
            self.inputs[key] = TableInput(f"in{len(self.inputs)}", table, mode)
        return self.inputs[key].name

    def code(self, read: str, scan: Scan, mode: ReadMode) -> None:
        """Let the input `read` have the numbers of text that `scan` reads."""
        if not scan.coded:
            return
        known = self.codes[read].columns if read in self.codes else ()
        columns = tuple(dict.fromkeys((*known, *scan.coded)))
        relation = dictionary_relation(scan.table, whole=mode is ReadMode.ALL)
        self.codes[read] = InputCodes(read, relation, columns)

    def filter(self, read: str, scan: Scan, key_filter: KeyFilter, keys: str) -> None:
        """Let the input `read`, of `scan`, have only rows with keys in the relation `keys`."""
        known = self.filters[read].columns if read in self.filters else ()
        columns = tuple(dict.fromkeys((*known, *(c for c in scan.columns if c is not None))))
        self.filters[read] = InputFilter(
            name=read,
            column=key_filter.column,
            keys=keys,
            key=f"c{key_filter.key}",
            columns=columns,
            low=key_filter.low,
            high=key_filter.high,
            most=key_filter.most,
        )

    def stage(self, stage: int, mode: ReadMode) -> str:
        key = (stage, mode, None)
        if key not in self.inputs:
            self.inputs[key] = StageInput(f"in{len(self.inputs)}", stage, mode)
        return self.inputs[key].name


class _Splitter:
    def __init__(self, inlined: frozenset[int], stored: frozenset[int]) -> None:
        """The common table expressions inside fragments, and those of them that are steps."""
        self.stages: list[Stage] = []
        self._inlined = inlined
        self._stored = stored
        self._definitions: dict[int, PhysicalPlan] = {}
        self._stage_of: dict[int, int] = {}

    def stage(self, plan: PhysicalPlan, exchange: PhysicalPlan | None = None) -> int:
        """Add the stage that computes `plan`, after those that it reads; its number.

        Args:
            plan: what it computes.
            exchange: the shuffle above it, for which it divides its output.
        """
        known = self._stage_of.get(id(plan)) if exchange is None else None
        if known is not None:
            return known
        parts = _Fragment()
        if isinstance(plan.operator, Statement):
            sql = self._statement(plan.operator, exchange, parts)
        else:
            sql = self._fragment(plan, exchange, parts)
        buckets = exchange.distribution.partitions if exchange else 0
        tasks = plan.distribution.partitions
        index = len(self.stages)
        inputs = tuple(parts.inputs.values())
        enough = _enough_rows(plan) if exchange is None else None
        self.stages.append(
            Stage(
                index,
                sql,
                inputs,
                plan.schema,
                tasks,
                buckets,
                plan,
                enough,
                codes=tuple(parts.codes.values()),
                steps=tuple(parts.steps.values()),
                filters=tuple(parts.filters.values()),
                runs=tuple(parts.runs),
            )
        )
        if exchange is None:
            self._stage_of[id(plan)] = index
        return index

    def _statement(
        self, statement: Statement, exchange: PhysicalPlan | None, parts: _Fragment
    ) -> str:
        for table in statement.tables:
            parts.inputs[(table, ReadMode.ALL, None)] = TableInput(table, table, ReadMode.ALL)
        if exchange is None:
            return statement.sql
        columns = [f"c{i}" for i in range(len(statement.schema))]
        block = Block(
            f"({statement.sql}) AS t({', '.join(columns)})", tuple(f"t.{c}" for c in columns)
        )
        return self._divided(block, exchange, parts)

    def _fragment(self, plan: PhysicalPlan, exchange: PhysicalPlan | None, parts: _Fragment) -> str:
        block = self._block(plan, parts)
        sql = self._divided(block, exchange, parts) if exchange else fragment.select(block)
        if not parts.filters:  # which other fragments have
            parts.ctes = {name: step.sql for name, step in parts.steps.items()} | parts.ctes
            parts.steps.clear()
        return with_ctes(sql, parts.ctes)

    def _divided(self, block: Block, exchange: PhysicalPlan, parts: _Fragment) -> str:
        """A fragment whose rows say which bucket they belong to."""
        block = fragment.extensible(block, parts.aliases)
        match exchange.operator:
            case Shuffle(keys=keys, partitions=partitions):
                bucket = fragment.bucket_column(keys, block.names, partitions)
                return fragment.select(block, [bucket])
            case RangeShuffle(keys=sort_keys, partitions=partitions):
                boundaries = parts.stage(self.stage(exchange.children[1]), ReadMode.ALL)
                return fragment.ranges_select(
                    sort_keys, block, boundaries, partitions, parts.aliases
                )
            case _:
                message = "only shuffles divide rows"
                raise AssertionError(message)

    def _block(self, plan: PhysicalPlan, parts: _Fragment) -> Block:
        operator, aliases = plan.operator, parts.aliases
        match operator:
            case Scan():
                return self._scan(plan, operator, parts)
            case Values():
                return fragment.values_block(operator, aliases)
            case Cte():
                self._definitions[operator.index] = plan.children[0]
                return self._block(plan.children[1], parts)
            case CteRef():
                return self._cte_ref(plan, operator, parts)
            case Shuffle() | RangeShuffle() | Broadcast() | Gather() | Materialize():
                return self._exchange(plan, parts)
            case Aggregate() | PartialAggregate() if _group_runs(plan) is not None:
                return self._groups(plan, parts)
            case Statement():
                message = "a whole statement is always a stage of its own"
                raise AssertionError(message)
            case _:
                blocks = [self._block(child, parts) for child in plan.children]
        match operator:
            case Filter():
                return fragment.filter_block(operator, blocks[0], aliases)
            case Project():
                return fragment.project_block(operator, blocks[0], aliases)
            case Aggregate():
                return fragment.aggregate_block(operator, blocks[0], aliases)
            case PartialAggregate():
                return fragment.partial_block(operator.complete, blocks[0], aliases)
            case FinalAggregate():
                return fragment.final_block(operator.complete, blocks[0], aliases)
            case Distinct():
                return fragment.distinct_block(blocks[0], aliases)
            case DistinctOn():
                return fragment.distinct_on_block(operator, blocks[0], aliases)
            case Window():
                return fragment.window_block(operator, blocks[0], aliases)
            case Unnest():
                return fragment.unnest_block(operator, blocks[0], aliases)
            case SetOperation():
                left, right = blocks
                return fragment.set_block(operator, left, right, aliases)
            case SampleKeys(keys=keys, rows=rows):
                return fragment.sample_block(keys, rows, blocks[0], aliases)
            case Boundaries(partitions=partitions):
                return fragment.boundaries_block(partitions, blocks[0], aliases)
            case Sort():
                return fragment.sort_block(operator, blocks[0], aliases)
            case Limit() | TopN():
                return fragment.limit_block(operator, blocks[0], aliases)
            case Join():
                left, right = blocks
                turned = turned_kind(operator, *plan.children)
                if turned is not None:
                    return fragment.turned_join_block(operator, turned, left, right, aliases)
                right_schema = plan.children[1].schema
                return fragment.join_block(operator, left, right, right_schema, aliases)
            case _:
                assert_never(operator)

    def _relation(self, plan: PhysicalPlan, scan: Scan, parts: _Fragment) -> str:
        """What the fragment calls a table of which it reads a partition, or all."""
        return parts.table(scan.table, _mode(plan), scan.key_filter)

    def _scan(self, plan: PhysicalPlan, scan: Scan, parts: _Fragment) -> Block:
        relation = self._relation(plan, scan, parts)
        parts.code(relation, scan, _mode(plan))
        if scan.key_filter is not None:
            keys_mode = ReadMode.ALL if scan.key_filter.whole else ReadMode.OWN
            keys = self._cte(scan.key_filter.cte, keys_mode, parts)
            parts.filter(relation, scan, scan.key_filter, keys)
        return fragment.scan_block(relation, scan.columns, parts.aliases)

    def _groups(self, plan: PhysicalPlan, parts: _Fragment) -> Block:
        """The groups of a table's rows, as a relation for which tasks choose how it is made."""
        known, (child,), aliases = _group_runs(plan), plan.children, parts.aliases
        assert known is not None
        assert isinstance(child.operator, Scan)
        rows = self._scan(child, child.operator, parts)
        columns = [f"c{i}" for i in range(len(plan.schema))]
        name = f"groups{len(parts.runs)}"
        runs = fragment.table_block(f"{name}_runs", columns, aliases)
        single = fragment.cast_block(runs, plan.schema)
        match plan.operator:
            case PartialAggregate(complete=aggregate):
                hashed, merged = fragment.partial_block(aggregate, rows, aliases), single
            case Aggregate() as aggregate:
                hashed = fragment.aggregate_block(aggregate, rows, aliases)
                merged = fragment.final_block(aggregate, runs, aliases)
            case _:
                message = "only aggregates have groups"
                raise AssertionError(message)
        parts.runs.append(
            InputRuns(
                name=name,
                input=self._relation(child, child.operator, parts),
                key=known.key,
                values=known.values,
                sum_max=known.sum_max,
                hashed=fragment.select(hashed),
                merged=fragment.select(merged),
                single=fragment.select(single),
            )
        )
        return fragment.table_block(name, columns, aliases)

    def _cte_ref(self, plan: PhysicalPlan, reference: CteRef, parts: _Fragment) -> Block:
        columns = [f"c{i}" for i in range(len(plan.schema))]
        relation = self._cte(reference.index, _mode(plan), parts)
        return fragment.table_block(relation, columns, parts.aliases)

    def _cte(self, index: int, mode: ReadMode, parts: _Fragment) -> str:
        """What the fragment calls a common table expression; it is made if that is not known."""
        definition = self._definitions[index]
        if index not in self._inlined:
            return parts.stage(self.stage(definition), mode)
        name = f"cte{index}"
        if name in parts.ctes or name in parts.steps:
            return name
        sql = fragment.select(self._block(definition, parts))
        if index in self._stored:
            types = tuple(column.type for column in definition.schema)
            rows = definition.rows / definition.distribution.partitions
            parts.steps[name] = Step(name, sql, types, rows)
        else:
            parts.ctes[name] = sql
        return name

    def _exchange(self, plan: PhysicalPlan, parts: _Fragment) -> Block:
        child = plan.children[0]
        if isinstance(plan.operator, Shuffle | RangeShuffle):
            relation = parts.stage(self.stage(child, plan), ReadMode.BUCKET)
        elif isinstance(plan.operator, Materialize):
            relation = parts.stage(self.stage(child), ReadMode.OWN)
        elif isinstance(child.operator, CteRef):
            definition = self._definitions[child.operator.index]
            relation = parts.stage(self.stage(definition), ReadMode.ALL)
        else:
            relation = parts.stage(self.stage(child), ReadMode.ALL)
        columns = [f"c{i}" for i in range(len(plan.schema))]
        return fragment.table_block(relation, columns, parts.aliases)
