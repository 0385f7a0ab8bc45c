"""Steady groups of a source's parts: few change where a part does."""

from __future__ import annotations

import random

import pytest

from minishark.sources.groups import steady_groups


@pytest.mark.parametrize("count", [1, 3, 64, 1000])
def test_all_parts_are_in_a_group_in_order(count: int) -> None:
    """In about as many groups as were asked for."""
    parts = [f"{number}.parquet" for number in range(500)]
    groups = steady_groups(parts, count, str)
    assert parts == [part for group in groups for part in group]
    assert min(count, 500) / 2 <= len(groups) <= count * 3 + 6


def test_a_change_of_one_part_changes_few_groups() -> None:
    """Wherever it is, and whether it goes, comes, or is another one."""
    rng = random.Random(7)
    parts = [f"data/{number:04}.parquet" for number in range(900)]
    before = {*map(tuple, steady_groups(parts, 64, str))}
    for _ in range(100):
        at = rng.randrange(len(parts))
        change = rng.choice([[], ["data/new.parquet"], [parts[at], "data/new.parquet"]])
        after = steady_groups([*parts[:at], *change, *parts[at + 1 :]], 64, str)
        assert sum(tuple(group) not in before for group in after) <= 4
