"""What is known of a query while it runs: the true sizes of stages that are complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.replacing import Placing
from minishark.model.catalog import Catalog


@dataclass(frozen=True, slots=True)
class TaskSize:
    """The output of a task: rows, bytes, and the rows of each bucket, if it has any."""

    rows: int
    bytes: int
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True)
class StageSize:
    """The output of a complete stage, by task."""

    tasks: tuple[TaskSize, ...]

    @cached_property
    def rows(self) -> int:
        return sum(task.rows for task in self.tasks)

    @cached_property
    def bytes(self) -> int:
        return sum(task.bytes for task in self.tasks)

    @cached_property
    def bucket_rows(self) -> tuple[int, ...]:
        """The rows of each bucket in all tasks together."""
        return tuple(map(sum, zip(*(task.buckets for task in self.tasks), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What adaptive rules know besides the remaining plan."""

    sizes: Mapping[int, StageSize]  # complete stages, by number
    empty: Collection[int]  # those without rows that would have none if they ran again
    catalog: Catalog  # the tables that the plan reads
    options: PlannerOptions  # the options of physical planning
    placing: Placing  # places single operators
    # Whether the last stage may have any number of tasks, and its rows be in any of them: they go
    # to the front end. Tables and Python functions get what was planned.
    free_root: bool
