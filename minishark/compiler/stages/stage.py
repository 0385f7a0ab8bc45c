"""A stage: one SQL fragment that each of its tasks runs over its own inputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

from minishark.compiler.hints import NO_FRAGMENT_HINTS, FragmentHints
from minishark.compiler.logical.operators import Join, Statement
from minishark.compiler.physical.order import depends_on_order
from minishark.compiler.physical.plan import Exchange, PhysicalPlan, Share
from minishark.compiler.stages.varying import varies, volatile_call
from minishark.model.expressions import Schema

_LARGE_ROWS = 250_000
"""Enough for several threads: DuckDB divides its work into pieces of 122,880 rows."""

_MULTIPLIED = 10
"""Below a join with this many times more output than input rows, aggregating early pays."""


class ReadMode(StrEnum):
    """Which part of an input the task of partition i reads."""

    OWN = "own"
    """Partition i of a table, or the output of task i."""
    ALL = "all"
    """Everything: a replicated table, a broadcast, or a gather."""
    BUCKET = "bucket"
    """Bucket i of the output of every task."""


@dataclass(frozen=True, slots=True)
class TableInput:
    """A table that the fragment reads under the name `name`."""

    name: str
    table: str
    mode: ReadMode


@dataclass(frozen=True, slots=True)
class StageInput:
    """The output of an earlier stage, which the fragment reads under the name `name`."""

    name: str
    stage: int
    mode: ReadMode
    # What each task reads of buckets, if that is not one bucket each.
    shares: tuple[Share, ...] = ()


Input: TypeAlias = TableInput | StageInput


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of a query; all runs of a repeated statement share it."""

    index: int  # its number; a stage reads only stages with lower numbers
    # The fragment. Its output columns are c0, c1, ...; with buckets, one more column holds the
    # number of the bucket that a row belongs to.
    sql: str
    inputs: tuple[Input, ...]
    schema: Schema  # its output columns, without the bucket number
    # How many tasks run it: one per partition of its plan, or fewer, which then take several
    # partitions that follow one another.
    tasks: int
    buckets: int  # into how many buckets a task divides its output; 0 for one undivided piece
    plan: PhysicalPlan  # the part of the physical plan that it computes
    # The shuffle above it that divides its output; None if it has no buckets.
    exchange: PhysicalPlan | None = None
    # Stages whose size may change the plan, so that this one waits for them.
    after: tuple[int, ...] = ()
    # No reader needs more rows than these, of its tasks in their order; None for no limit.
    enough_rows: int | None = None
    hints: FragmentHints = NO_FRAGMENT_HINTS  # what optimizer rules attach to the fragment

    @property
    def is_statement(self) -> bool:
        """Whether the fragment is a user's statement as it was written."""
        return isinstance(self.plan.operator, Statement)

    @property
    def reason(self) -> str | None:
        """Why the stage is a whole statement in one task; None for all others."""
        operator = self.plan.operator
        return operator.reason if isinstance(operator, Statement) else None

    def partitions_of(self, task: int) -> range:
        """The partitions that a task computes."""
        count = max(self.tasks, self.plan.distribution.partitions)
        return range(task * count // self.tasks, (task + 1) * count // self.tasks)

    def share(self, item: StageInput, task: int) -> Share:
        """What a task reads of a stage's buckets."""
        if item.shares:
            return item.shares[task]
        numbers = self.partitions_of(task)
        return Share(numbers.start, numbers.stop)

    @cached_property
    def aggregates_early(self) -> bool:
        """Whether DuckDB may push aggregates below joins.

        Without statistics it would do so where a join leaves few rows, which costs more than it
        saves; but where a join multiplies rows, nothing else helps.
        """
        return self.is_statement or _multiplies_rows(self.plan)

    @cached_property
    def is_large_task(self) -> bool:
        """Whether it is a single task that several threads may share: over many rows.

        Several threads pass rows on in no certain order, which must not decide the answer.
        """
        if self.tasks > 1 or self.is_statement or depends_on_order(self.plan):
            return False
        return _read_rows(self.plan) >= _LARGE_ROWS

    @cached_property
    def varies(self) -> bool:
        return varies(self.plan)

    @cached_property
    def volatile_call(self) -> str | None:
        """A function that it calls whose value may be another in the next statement."""
        return volatile_call(self.plan)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The stages that must be complete before this one starts."""
        return tuple(
            dict.fromkeys(item.stage for item in self.inputs if isinstance(item, StageInput))
        )


def _read_rows(plan: PhysicalPlan) -> float:
    """The estimated number of rows that the stage of `plan` reads."""
    if isinstance(plan.operator, Exchange) or not plan.children:
        return plan.rows
    return sum(map(_read_rows, plan.children))


def _multiplies_rows(plan: PhysicalPlan) -> bool:
    """Whether a join in the stage of `plan` has many times more output than input rows."""
    if isinstance(plan.operator, Exchange):
        return False
    read = sum(child.rows for child in plan.children)
    if isinstance(plan.operator, Join) and plan.rows > _MULTIPLIED * read:
        return True
    return any(map(_multiplies_rows, plan.children))
