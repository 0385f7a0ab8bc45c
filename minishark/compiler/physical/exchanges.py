"""Plans with what is estimated about them, and the exchanges that move their rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minishark.compiler.logical.operators import Aggregate, CteRef, Distinct, Filter, Project, Scan
from minishark.compiler.physical.estimate import Profile
from minishark.compiler.physical.join_moves import Side
from minishark.compiler.physical.plan import (
    Broadcast,
    Distribution,
    Gather,
    Hashed,
    Materialize,
    PhysicalOperator,
    PhysicalPlan,
    Replicated,
    Shuffle,
    Single,
    StageOutput,
    in_one_task,
)
from minishark.model.expressions import ColumnRef, Expression, Schema, is_volatile


@dataclass(frozen=True, slots=True)
class Planned:
    """A physical plan and what is estimated about its output."""

    plan: PhysicalPlan
    profile: Profile

    @property
    def distribution(self) -> Distribution:
        return self.plan.distribution

    @property
    def in_one_task(self) -> bool:
        return in_one_task(self.plan.distribution)

    @property
    def side(self) -> Side:
        return Side(self.plan.distribution, self.profile.rows)


def planned(
    operator: PhysicalOperator,
    children: Sequence[Planned],
    schema: Schema,
    distribution: Distribution,
    profile: Profile,
) -> Planned:
    plans = tuple(child.plan for child in children)
    return Planned(PhysicalPlan(operator, plans, schema, distribution, profile.rows), profile)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Puts exchanges over plans that are not distributed as they must be."""

    partitions: int  # how many partitions a shuffle makes
    read_whole_rows: int  # stored relations of at most this many are read by every task

    def shuffled(
        self, child: Planned, keys: tuple[Expression, ...], partitions: int | None = None
    ) -> Planned:
        """`child` by the hash of keys, in the default number of partitions or another one."""
        count = partitions or self.partitions
        # A key that is more than a column is known to the shuffle only.
        positions = tuple(
            frozenset((key.index,) if isinstance(key, ColumnRef) else ()) for key in keys
        )
        distribution = Hashed(positions, count)
        return planned(
            Shuffle(keys, count), (child,), child.plan.schema, distribution, child.profile
        )

    def broadcast(self, child: Planned) -> Planned:
        if isinstance(child.distribution, Replicated):
            return child
        return Planned(self._read_whole(child.plan, Broadcast(), Replicated()), child.profile)

    def gathered(self, child: Planned) -> Planned:
        if child.in_one_task:
            return child
        return Planned(self._read_whole(child.plan, Gather(), Single()), child.profile)

    def materialized(self, child: Planned) -> Planned:
        schema = child.plan.schema
        return planned(Materialize(), (child,), schema, child.distribution, child.profile)

    def _read_whole(
        self, plan: PhysicalPlan, exchange: Broadcast | Gather, distribution: Distribution
    ) -> PhysicalPlan:
        """All rows of `plan`, for each task or for one."""
        if isinstance(plan.operator, StageOutput):
            return replace(plan, distribution=Replicated())
        # What is stored already and small is read in place, and filtered by each reader, which is
        # cheaper than a stage that stores it again.
        if self.is_stored(plan):
            match plan.operator:
                # The exchange moves down to what is stored; these are computed by each reader.
                case Filter() | Project() | Aggregate() | Distinct():
                    below = self._read_whole(plan.children[0], exchange, distribution)
                    return replace(plan, children=(below,), distribution=distribution)
                case Scan():
                    return replace(plan, distribution=Replicated())
                case _:
                    pass
        return PhysicalPlan(exchange, (plan,), plan.schema, distribution, plan.rows)

    def is_stored(self, plan: PhysicalPlan) -> bool:
        """Whether `plan` is cheap to compute again from something small that is stored."""
        match plan.operator:
            case Filter(predicates=expressions) | Project(outputs=expressions):
                # Readers must agree on the rows, which volatile functions would not let them.
                stored = self.is_stored(plan.children[0])
                return stored and not any(map(is_volatile, expressions))
            case Aggregate() | Distinct():
                return self.is_stored(plan.children[0])
            case Scan() | CteRef() | StageOutput():
                return plan.rows <= self.read_whole_rows
            case _:
                return False
