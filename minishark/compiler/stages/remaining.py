"""What is left of a physical plan when some of its stages have started. Pure.

A stage that has started is not changed any more: in the plan of what is left, a leaf stands for its
output. Of complete stages the number of rows is known, and corrects the estimates above them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from minishark.compiler.logical.operators import Cte, CteRef
from minishark.compiler.physical.plan import (
    Boundaries,
    Broadcast,
    Gather,
    Materialize,
    PhysicalPlan,
    RangeShuffle,
    Shuffle,
    StageOutput,
)
from minishark.compiler.physical.replacing import with_children
from minishark.compiler.physical.sizes import StageSize
from minishark.compiler.stages.stage import Stage


def remaining(
    plan: PhysicalPlan, started: Iterable[Stage], sizes: Mapping[int, StageSize]
) -> PhysicalPlan:
    """`plan` with leaves for the stages that have `started`, and rows as `sizes` say.

    The stages are those that `plan` was split into; plans are shared, so identity tells which node
    a stage computes.
    """
    shuffled, stored = dict[int, Stage](), dict[int, Stage]()
    for stage in started:
        if stage.exchange is None:
            stored[id(stage.plan)] = stage
        else:
            shuffled[id(stage.exchange)] = stage
    return _Remaining(shuffled, stored, sizes).rewritten(plan)


def executed(plan: PhysicalPlan, stages: Mapping[int, Stage]) -> PhysicalPlan:
    """`plan` with what `stages` have computed below their outputs; each of them once."""
    left = dict(stages)

    def expanded(node: PhysicalPlan) -> PhysicalPlan:
        if isinstance(node.operator, StageOutput):
            stage = left.pop(node.operator.stage, None)
            return node if stage is None else replace(node, children=(expanded(stage.plan),))
        return node.with_children(tuple(map(expanded, node.children)))

    return expanded(plan)


@dataclass(frozen=True, slots=True)
class _Remaining:
    """Rewrites a plan."""

    # The stages that write buckets, by the identity of the exchange above them.
    shuffled: Mapping[int, Stage]
    stored: Mapping[int, Stage]  # the others, by the identity of the plan that they compute
    sizes: Mapping[int, StageSize]  # the sizes of complete stages
    # The stages that compute common table expressions.
    outputs: dict[int, Stage] = field(default_factory=dict)
    rows: dict[int, float] = field(default_factory=dict)  # the rows of common table expressions

    def rewritten(self, plan: PhysicalPlan) -> PhysicalPlan:
        match plan.operator:
            case StageOutput(stage=stage):
                return self._counted(plan, stage)
            case Cte(index=index):
                return self._cte(plan, index)
            case CteRef(index=index):
                return self._reference(plan, index)
            case Broadcast() | Gather() if isinstance(plan.children[0].operator, CteRef):
                # The definition is read where it is stored.
                child = self.rewritten(plan.children[0])
                if isinstance(child.operator, StageOutput):
                    return replace(child, distribution=plan.distribution)
                return with_children(plan, (child,))
            case Boundaries() if id(plan) in self.stored:
                return self._output(plan, self.stored[id(plan)])
            case Shuffle() | RangeShuffle() if id(plan) in self.shuffled:
                return self._output(plan, self.shuffled[id(plan)])
            case Broadcast() | Gather() | Materialize() if id(plan.children[0]) in self.stored:
                return self._output(plan, self.stored[id(plan.children[0])])
        return with_children(plan, tuple(map(self.rewritten, plan.children)))

    def _cte(self, plan: PhysicalPlan, index: int) -> PhysicalPlan:
        definition, main = plan.children
        output = self.stored.get(id(definition))
        if output is None and isinstance(definition.operator, StageOutput):
            definition = self._counted(definition, definition.operator.stage)
        elif output is None:
            definition = self.rewritten(definition)
        else:
            self.outputs[index] = output
            definition = self._output(definition, output)
        self.rows[index] = definition.rows
        return with_children(plan, (definition, self.rewritten(main)))

    def _reference(self, plan: PhysicalPlan, index: int) -> PhysicalPlan:
        output = self.outputs.get(index)
        if output is not None:
            return self._output(plan, output)
        rows = self.rows.get(index, plan.rows)
        return plan if rows == plan.rows else replace(plan, rows=rows)

    def _output(self, plan: PhysicalPlan, stage: Stage) -> PhysicalPlan:
        home = (stage.exchange or stage.plan).distribution
        operator = StageOutput(stage.index, home, stage.exchange is not None, plan.rows)
        return self._counted(replace(plan, operator=operator, children=()), stage.index)

    def _counted(self, plan: PhysicalPlan, stage: int) -> PhysicalPlan:
        size = self.sizes.get(stage)
        rows = plan.rows if size is None else float(max(1, size.rows))
        return plan if rows == plan.rows else replace(plan, rows=rows)
