"""Physical plan -> stages: the plan is cut at its exchanges.

A common table expression becomes a stage of its own whose output several others read. Where all
readers are in one stage and read it partition by partition, it stays inside that stage's fragment
instead, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from minishark.compiler.hints import KeyFilter, ScanHints
from minishark.compiler.logical.operators import Cte, CteRef, Limit, Scan, Statement
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import (
    Broadcast,
    Exchange,
    Gather,
    PhysicalPlan,
    Replicated,
    StageOutput,
)
from minishark.compiler.rules import RULES, enabled
from minishark.compiler.rules.rule import Phase
from minishark.compiler.stages.stage import Stage
from minishark.compiler.stages.writer import FragmentWriter


def split(
    plan: PhysicalPlan, disabled: Collection[str] = (), *, first: int = 0
) -> tuple[Stage, ...]:
    """The stages of `plan` in an order in which they can run; the last one computes the result.

    Optimizer rules whose names are in `disabled` are off. The stages are numbered from `first`;
    those that the plan knows as `StageOutput` exist already.
    """
    regions = _Regions()
    regions.visit(plan, regions.start(plan))
    inlined = regions.inlined()
    # Those with a stage of their own are complete before any reader starts.
    splitter = Splitter(
        root=plan,
        inlined=inlined,
        early=inlined & _early_ctes(plan),
        disabled=disabled,
        first=first,
    )
    splitter.stage(plan)
    stages: Sequence[Stage] = splitter.stages
    for rule in RULES:
        if rule.arrange is not None and rule.name not in disabled:
            stages = rule.arrange(stages, rule.options)
    return tuple(stages)


def with_tasks(
    stages: Sequence[Stage], kept: Mapping[int, int], options: PlannerOptions
) -> tuple[Stage, ...]:
    """The stages with as many tasks as rules say; those that are `kept` have so many, by number."""
    for rule, own in enabled(Phase.TASKS, options):
        stages = rule.apply(stages, kept, options, own)
    return tuple(stages)


def _early_ctes(root: PhysicalPlan) -> frozenset[int]:
    """The common table expressions that filters need first, and those that these read."""
    definitions: dict[int, PhysicalPlan] = {}
    needed: list[int] = []
    for plan in root.nodes():
        match plan.operator:
            case Cte(index=index):
                definitions[index] = plan.children[0]
            case Scan(hints=ScanHints(key_filter=KeyFilter(cte=cte))):
                needed.append(cte)
    early: set[int] = set()
    while needed:
        index = needed.pop()
        if index not in early:
            early.add(index)
            read = (plan.operator for plan in definitions[index].nodes())
            needed += [operator.index for operator in read if isinstance(operator, CteRef)]
    return frozenset(early)


@dataclass(slots=True)
class _Regions:
    """Which future stage each reader of a common table expression is in.

    A region is a part of the plan without exchanges, that is, a stage. The definition of a CTE
    is a region at first; it becomes part of its readers' region if it stays inside their fragment.
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
            case Exchange():
                for child in plan.children:
                    self.visit(child, self.start(child))
            case _:
                for child in plan.children:
                    self.visit(child, region)

    def inlined(self) -> frozenset[int]:
        """The common table expressions that stay inside the fragment of their readers."""
        merged: dict[int, int] = {}
        indices: list[int] = []
        # Readers first: a definition that stays in its readers' region takes those that it reads
        # along, and all of them may still be read from one region only.
        for index in reversed(self.definitions):
            definition, own = self.definitions[index]
            if isinstance(definition.operator, StageOutput):
                continue
            regions = {r if r is None else merged.get(r, r) for r in self.readers.get(index, [])}
            region = regions.pop() if len(regions) == 1 else None
            readers = None if region is None else self.roots[region].distribution.partitions
            # Every task may compute a replicated one for itself, which costs no more than reading
            # it. Others partition by partition: else tasks would compute rows of other partitions.
            if (
                isinstance(definition.distribution, Replicated)
                or readers == definition.distribution.partitions
            ):
                indices.append(index)
                if region is not None:
                    merged[own] = region
        return frozenset(indices)


def _enough_rows(plan: PhysicalPlan) -> int | None:
    """How many rows of `plan`, in the order of its partitions, any reader can need.

    A limit in several partitions stands below a gather and a limit of at most as many rows.
    """
    limit = plan.operator
    if isinstance(limit, Limit) and not limit.offset and plan.distribution.partitions > 1:
        return limit.limit
    return None


class Splitter:
    """The stages of a plan while it is being cut.

    Attributes:
        stages: those that are complete, in an order in which they can run.
        inlined: the common table expressions that need no stage of their own.
        early: those of them that run before the fragment, as filters need their rows.
        definitions: the common table expressions that are known so far, by index.
    """

    def __init__(
        self,
        *,
        root: PhysicalPlan,
        inlined: frozenset[int],
        early: frozenset[int],
        disabled: Collection[str],
        first: int,
    ) -> None:
        self.stages: list[Stage] = []
        self._root = root
        self._first = first
        self.inlined = inlined
        self.early = early
        self.definitions: dict[int, PhysicalPlan] = {}
        self._stage_of: dict[int, int] = {}
        self._rules = [
            rule for rule in RULES if rule.phase is Phase.FRAGMENT and rule.name not in disabled
        ]

    def stage(self, plan: PhysicalPlan, exchange: PhysicalPlan | None = None) -> int:
        """Add the stage that computes `plan`, after those that it reads; its index.

        It divides its output for the shuffle `exchange` above it.
        """
        if isinstance(plan.operator, StageOutput) and exchange is None and plan is not self._root:
            return plan.operator.stage
        # A definition may be read several times; plans are shared, so identity tells.
        number = self._stage_of.get(id(plan)) if exchange is None else None
        if number is not None:
            return number
        writer = FragmentWriter(stages=self)
        if isinstance(plan.operator, Statement):
            sql = writer.statement(plan.operator, exchange, is_last=plan is self._root)
        else:
            sql = writer.fragment(plan, exchange)
        stage = Stage(
            # Those that it reads were added while it was written.
            index=self._first + len(self.stages),
            sql=sql,
            inputs=tuple(writer.inputs.values()),
            schema=plan.schema,
            tasks=plan.distribution.partitions,
            buckets=exchange.distribution.partitions if exchange else 0,
            plan=plan,
            exchange=exchange,
            enough_rows=_enough_rows(plan) if exchange is None else None,
            hints=writer.hints(),
        )
        self.stages.append(self._hinted(stage))
        if exchange is None:
            self._stage_of[id(plan)] = stage.index
        return stage.index

    def _hinted(self, stage: Stage) -> Stage:
        """A stage with the hints of rules that look at it as a whole."""
        hints = structs.replace(stage.hints, aggregates_early=stage.aggregates_early)
        for rule in self._rules:
            hints = rule.apply(stage, hints, rule.options)
        return replace(stage, hints=hints)
