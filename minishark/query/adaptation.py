"""Adaptive execution of one query: gathers true sizes, and asks for a better plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.planner import Placer
from minishark.compiler.physical.sizes import Situation, StageSize, TaskSize
from minishark.compiler.stages.adapt import adapt
from minishark.compiler.stages.remaining import executed
from minishark.compiler.stages.stage import Stage
from minishark.model.catalog import Catalog
from minishark.model.events.record import Revision
from minishark.worker.protocol import TaskOutcome


@dataclass(slots=True, kw_only=True)
class Adaptation:
    """What is left of a query while it runs."""

    # The physical plan, with leaves for the stages that had started when it was revised.
    plan: PhysicalPlan
    catalog: Catalog  # the tables that it reads
    options: PlannerOptions  # the options that it was planned with
    free_root: bool  # whether the last stage may have any number of tasks
    revisions: list[Revision] = field(default_factory=list)  # what was changed so far
    _sizes: dict[int, StageSize] = field(default_factory=dict)
    _empty: set[int] = field(default_factory=set)

    def complete(self, stage: int, outcomes: Sequence[TaskOutcome], *, may_vary: bool) -> bool:
        """Record the sizes of a complete stage; whether they were unknown.

        Args:
            stage: its number.
            outcomes: what its tasks have put out.
            may_vary: whether it may put out other rows if it runs again. Other sizes change no
                decision, but what has no rows now might have some then.
        """
        if stage in self._sizes:
            return False
        size = StageSize(tuple(map(_size, outcomes)))
        self._sizes[stage] = size
        if not size.rows and not may_vary:
            self._empty.add(stage)
        return True

    def revised(self, planned: Sequence[Stage], started: Collection[int]) -> Sequence[Stage]:
        """The stages of the query from now on; the same object if they stay.

        Args:
            planned: the stages so far, in an order in which they can run.
            started: the numbers of those that have started, which stay.
        """
        if len(started) == len(planned) or not self._sizes:
            return planned
        situation = Situation(
            sizes=self._sizes,
            empty=self._empty,
            catalog=self.catalog,
            options=self.options,
            placing=Placer(self.catalog, self.options, whole=False),
            free_root=self.free_root,
        )
        revision = adapt(self.plan, planned, started, situation)
        if revision is None:
            return planned
        self.plan = revision.plan
        self.revisions += (Revision(*reason) for reason in revision.reasons)
        kept = (stage for stage in planned if stage.index in started)
        return (*kept, *revision.stages)

    def executed(self, stages: Sequence[Stage]) -> PhysicalPlan:
        """The plan as it ran, with what its stages computed below each of their outputs."""
        return executed(self.plan, {stage.index: stage for stage in stages})


def _size(outcome: TaskOutcome) -> TaskSize:
    count = len(outcome.buckets) // outcome.runs
    rows = [bucket.rows for bucket in outcome.buckets]
    buckets = rows if outcome.runs == 1 else [sum(rows[i::count]) for i in range(count)]
    return TaskSize(outcome.figures.rows, outcome.figures.bytes, tuple(buckets))
