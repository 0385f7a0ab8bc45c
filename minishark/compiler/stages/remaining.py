"""What is left of a physical plan when some of its stages have started. Pure.

A stage that has started is not changed any more: in the plan of what is left, a leaf stands for its
output. Of complete stages the number of rows is known, and corrects the estimates above them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from minishark.compiler.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    DistinctOn,
    Limit,
    SetOperation,
    TopN,
)
from minishark.compiler.physical.plan import (
    Broadcast,
    Exchange,
    FinalAggregate,
    Gather,
    PartialAggregate,
    PhysicalPlan,
    StageOutput,
)
from minishark.compiler.physical.sizes import StageSize
from minishark.compiler.stages.stage import Stage

_GROUPING = (Aggregate, PartialAggregate, FinalAggregate, Distinct, DistinctOn)


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


@dataclass(frozen=True, slots=True)
class _Remaining:
    """Rewrites a plan.

    Attributes:
        shuffled: the stages that write buckets, by the identity of the exchange above them.
        stored: the others, by the identity of the plan that they compute.
        sizes: the sizes of complete stages.
        outputs: the stages that compute common table expressions.
        rows: the rows of common table expressions.
    """

    shuffled: Mapping[int, Stage]
    stored: Mapping[int, Stage]
    sizes: Mapping[int, StageSize]
    outputs: dict[int, Stage] = field(default_factory=dict)
    rows: dict[int, float] = field(default_factory=dict)

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
                return _rebuilt(plan, (child,))
            case Exchange():
                known = self.shuffled.get(id(plan)) or self.stored.get(id(plan.children[0]))
                if known is not None:
                    return self._output(plan, known)
        return _rebuilt(plan, tuple(map(self.rewritten, plan.children)))

    def _cte(self, plan: PhysicalPlan, index: int) -> PhysicalPlan:
        definition, main = plan.children
        known = self.stored.get(id(definition))
        if known is None and isinstance(definition.operator, StageOutput):
            definition = self._counted(definition, definition.operator.stage)
        elif known is None:
            definition = self.rewritten(definition)
        else:
            self.outputs[index] = known
            definition = self._output(definition, known)
        self.rows[index] = definition.rows
        return _rebuilt(plan, (definition, self.rewritten(main)))

    def _reference(self, plan: PhysicalPlan, index: int) -> PhysicalPlan:
        known = self.outputs.get(index)
        if known is not None:
            return self._output(plan, known)
        rows = self.rows.get(index, plan.rows)
        return plan if rows == plan.rows else replace(plan, rows=rows)

    def _output(self, plan: PhysicalPlan, stage: Stage) -> PhysicalPlan:
        operator = StageOutput(stage.index, stage.buckets, stage.plan.distribution)
        return self._counted(replace(plan, operator=operator, children=()), stage.index)

    def _counted(self, plan: PhysicalPlan, stage: int) -> PhysicalPlan:
        size = self.sizes.get(stage)
        rows = plan.rows if size is None else float(max(1, size.rows))
        return plan if rows == plan.rows else replace(plan, rows=rows)


def _rebuilt(plan: PhysicalPlan, children: tuple[PhysicalPlan, ...]) -> PhysicalPlan:
    found = plan.with_children(children)
    rows = scaled_rows(plan, children)
    return found if rows == plan.rows else replace(found, rows=rows)


def scaled_rows(plan: PhysicalPlan, children: tuple[PhysicalPlan, ...]) -> float:
    """The estimated rows of `plan` over other children.

    An estimate was made with the statistics of columns, which are not at hand any more; so it is
    corrected by the factor by which those below it were wrong.
    """
    pairs = list(zip(children, plan.children, strict=True))
    factor = 1.0
    match plan.operator:
        case Exchange():
            return children[0].rows
        case Cte():
            return children[1].rows
        case SetOperation():
            factor = sum(new.rows for new, _ in pairs) / sum(old.rows for _, old in pairs)
            return max(1.0, plan.rows * factor)
    for new, old in pairs:
        factor *= new.rows / old.rows
    match plan.operator:
        case Limit() | TopN():
            return min(plan.rows, children[0].rows) if factor < 1.0 else plan.rows
        case operator if isinstance(operator, _GROUPING):
            # There are no more groups than values, however many rows have them.
            return max(1.0, min(plan.rows, children[0].rows))
    return max(1.0, plan.rows * factor)
