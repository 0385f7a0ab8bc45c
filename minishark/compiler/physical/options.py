"""The options of physical planning; light, as `connect` imports it first."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minishark.compiler.physical.costs import REFERENCE, Costs
from minishark.errors import OptionError

SINGLE_TASK_ROWS = 150_000
"""Up to here one core is done before several tasks could have been started."""

UNLIMITED = sys.maxsize
"""As many slots as there are tasks, for plans that are to be the same on any machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerOptions:
    """The options of physical planning."""

    partitions: int  # how many partitions a shuffle makes
    single_task_rows: int = SINGLE_TASK_ROWS  # tables with at most so many run in one task
    gather_rows: int = 50_000  # at most so many partial results are not shuffled
    read_whole_rows: int = 20_000  # stored relations up to here are read by every task
    stage_cost: float = 100_000.0  # what one more stage costs, in rows built into a hash table
    sort_values: int = 8_000_000  # rows times columns that one task sorts; more in ranges
    threads: int = 1  # how many cores a task may use that runs alone
    costs: Costs = REFERENCE  # what work costs on the machine
    slots: int = UNLIMITED  # how many tasks run at the same time, each on a core of its own
    task_bytes: float = math.inf  # memory of a task for hash tables and sorts
    # Beyond which several tasks are better than one that has all threads; infinite where that one
    # has the memory of all slots, too.
    alone_bytes: float = math.inf
    disabled: frozenset[str] = frozenset()  # the names of the optimizer rules that are switched off
    everywhere: bool = False  # whether rules apply wherever they can, however small the data
    # Whether outputs are kept for later queries: tasks that read sources are then small, and read
    # the same as before where nothing has changed.
    reuses: bool = False
    # Options of rules, by name, that replace their defaults.
    rules: Mapping[str, Any] = field(default_factory=dict, hash=False)  # dicts are unhashable

    @classmethod
    def eager(cls, partitions: int) -> PlannerOptions:
        return cls(
            partitions=partitions,
            single_task_rows=0,
            gather_rows=0,
            read_whole_rows=0,
            stage_cost=0.0,
            sort_values=0,
            disabled=frozenset(("one_task",)),
            everywhere=True,
        )

    def in_stages(self) -> PlannerOptions:
        return replace(self, single_task_rows=0).without("one_task")

    def without(self, *rules: str) -> PlannerOptions:
        return replace(self, disabled=self.disabled.union(rules))


PARTITIONS_MAX = 4096


def check_partitions(count: int | None) -> None:
    if count is not None and not is_whole_number(count, PARTITIONS_MAX):
        raise OptionError(f"partitions must be a whole number from 1 to {PARTITIONS_MAX}.")


def is_whole_number(value: object, most: int) -> bool:
    """Whether a user passed a whole number from 1 to `most`, whatever the type hints say."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
