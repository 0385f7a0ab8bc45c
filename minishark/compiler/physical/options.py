"""What steers physical planning."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from minishark.errors import OptionError

SINGLE_TASK_ROWS = 150_000
"""Up to here one core is done before several could have been told what to do."""


@dataclass(frozen=True, slots=True)
class KeyFilterOptions:
    """Where semi-join filters pay.

    Attributes:
        rows_min: so many rows has the table, times the number of things that they are spared: other
            columns that are read, predicates, a look-up among many keys. Infinity for no filters.
        keys_many: so many keys make a hash table that a core's cache does not hold.
        left_min: the query's own predicates leave such a share of them at least.
        source_max: what the keys are computed of has at most so many times its rows.
        share_max: so many of its keys, as a share, are estimated to be joined at most,
        few_share_max: if there are fewer than `keys_many`.
        kept_max: the largest share of its rows that tasks copy; else they read all.
    """

    rows_min: float = 8_000_000.0
    keys_many: float = 32_000.0
    left_min: float = 0.03
    source_max: float = 0.9
    share_max: float = 0.12
    few_share_max: float = 0.02
    kept_max: float = 0.07

    @classmethod
    def everywhere(cls) -> KeyFilterOptions:
        """Filter whatever can be, for tests on small data."""
        return cls(
            rows_min=0.0,
            left_min=0.0,
            source_max=math.inf,
            share_max=1.0,
            few_share_max=1.0,
            kept_max=1.0,
        )


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What steers physical planning.

    Attributes:
        partitions: how many partitions a shuffle makes.
        single_task_rows: a query whose tables hold at most this many rows runs in one task.
        weighs: whether a query over more rows does so too, if that is estimated to be faster.
        gather_rows: partial results of at most this many rows are gathered instead of shuffled.
        read_whole_rows: a stored relation of at most this many rows is read by every task as it is.
        stage_cost: what one more stage costs, in rows built into a hash table.
        sort_values: rows times columns that are sorted in one task; more are sorted in ranges.
        early_gain: how many times fewer rows must be left by an aggregate below a join; 0 for
            any, infinity for none.
        coded_rows: from how many rows on groups are made by the numbers of text instead of text;
            infinity for never.
        key_filters: where semi-join filters pay.
        run_groups: from how many groups on tasks look whether they are runs of rows; infinity for
            never.
        threads: how many cores a task may use that runs alone.
        slots: how many tasks run at the same time.
        task_bytes: how much memory a task has for hash tables and sorts, before it spills.
    """

    partitions: int
    single_task_rows: int = SINGLE_TASK_ROWS
    weighs: bool = True
    gather_rows: int = 50_000
    read_whole_rows: int = 20_000
    stage_cost: float = 100_000.0
    sort_values: int = 8_000_000
    early_gain: float = 3.0
    coded_rows: float = 100_000.0
    key_filters: KeyFilterOptions = KeyFilterOptions()
    run_groups: float = 32_000.0
    threads: int = 1
    slots: int = sys.maxsize
    task_bytes: float = math.inf

    @classmethod
    def eager(cls, partitions: int) -> PlannerOptions:
        """Distribute everything, however small; for tests on small data."""
        return cls(
            partitions,
            single_task_rows=0,
            weighs=False,
            gather_rows=0,
            read_whole_rows=0,
            stage_cost=0.0,
            early_gain=0.0,
            coded_rows=0.0,
            key_filters=KeyFilterOptions.everywhere(),
            run_groups=0.0,
            sort_values=0,
        )


PARTITIONS_MAX = 4096


def check_partitions(count: int | None) -> None:
    """Raise OptionError unless `count` is None or a number of partitions that makes sense."""
    if count is not None and not is_whole_number(count, PARTITIONS_MAX):
        raise OptionError(f"partitions must be a whole number from 1 to {PARTITIONS_MAX}.")


def is_whole_number(value: object, most: int) -> bool:
    """Whether a user passed a whole number from 1 to `most`, whatever the type hints say."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
