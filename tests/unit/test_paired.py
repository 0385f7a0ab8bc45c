"""Placements that are compared within one run."""

from __future__ import annotations

import math
from random import Random

import pytest

from minishark_lab.harness.lengths import rise_or_fall
from minishark_lab.harness.paired import ALL, MEDIANS, Asked, comparison, has_settled, in_words
from minishark_lab.harness.rows import Point, Row


def blocks(factor: float, *, growth: float = 0.0, seed: int = 1) -> list[list[Asked]]:
    """Ten blocks of two queries, in which the machine is slow or fast; times grow in each."""
    rng, machine = Random(seed), Random(0)
    slow = [machine.uniform(0.5, 4.0) for _ in range(10)]
    return [
        [
            Asked(
                1 + at % 2, (1 + at % 2) * factor * each * (1 + growth * at) * rng.uniform(1, 2), 1
            )
            for at in range(40)
        ]
        for each in slow
    ]


def compared(first: list[list[Asked]], other: list[list[Asked]], *, settled: bool) -> list[Row]:
    return list(comparison({"one": first, "two": other}, settled=settled, numbers=(1, 2)))


def over_first(rows: list[Row], what: str = MEDIANS) -> Point:
    found = [row for row in rows if row.panel.startswith(f"{what} over those") and row.x == ALL]
    assert isinstance(found[0], Point)
    return found[0]


def test_what_slows_a_block_down_cancels_out() -> None:
    """Blocks differ eightfold, but the ratio within each is that of the placements."""
    rows = compared(blocks(1.0), blocks(1.5, seed=2), settled=True)
    ratio = over_first(rows)
    assert ratio.low < 1.5 < ratio.high
    assert ratio.high / ratio.low < 1.3
    assert "With two, queries take 1." in in_words(rows)


@pytest.mark.slow
def test_intervals_have_the_truth_in_them() -> None:
    """Of equal placements, in about 19 of 20 runs; such a one says that there is nothing to see."""
    runs = [
        compared(blocks(1.0, seed=seed), blocks(1.0, seed=1000 + seed), settled=True)
        for seed in range(60)
    ]
    right = [rows for rows in runs if over_first(rows).low < 1 < over_first(rows).high]
    assert 50 < len(right) <= 60
    assert "can't tell two from one" in in_words(right[0])


@pytest.mark.parametrize(("growth", "settled"), [(0.05, True), (0.0, False)])
def test_what_has_not_settled_is_no_ratio(growth: float, settled: bool) -> None:
    """Where queues grow within blocks, or the run was too short."""
    rows = compared(blocks(1.0), blocks(1.5, growth=growth, seed=2), settled=settled)
    ratio = over_first(rows)
    assert not ratio.settled
    assert math.isnan(ratio.y)
    assert in_words(rows).startswith("Not settled")


def test_queues_that_grow_from_block_to_block_have_not_settled() -> None:
    """As do few blocks, and those in which nothing came."""
    steady = blocks(1.0)
    assert has_settled(steady)
    assert not has_settled(steady[:4])
    assert not has_settled([*steady, []])
    ordered = sorted(steady, key=lambda block: sum(each.took_s for each in block))
    assert not has_settled(ordered)


def test_trends_add_up_over_series() -> None:
    """Each is too short to tell; ten that all rise are none by chance, ten that differ are."""
    rising = [[1.0, 2.0, 3.0, 4.0]]
    assert not rise_or_fall(rising)
    assert rise_or_fall(rising * 10)
    assert not rise_or_fall([*rising, [4.0, 3.0, 2.0, 1.0]] * 5)
