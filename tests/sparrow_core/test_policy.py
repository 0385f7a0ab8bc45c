from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_core.policy.sampling import (
    batch_size,
    choose_preferred,
    reservation_count,
    smoothed,
    spread_reservations,
    tasks_ahead,
    without,
)
from sparrow_core.protocol.ids import NodeName

node_lists = st.integers(1, 40).map(lambda n: [NodeName(f"n{i}") for i in range(n)])


@pytest.mark.parametrize(
    ("tasks", "ratio", "expected"), [(10, 1.1, 11), (1, 2.0, 2), (3, 1.05, 4), (0, 2.0, 0)]
)
def test_reservations_are_the_rounded_up_product(tasks: int, ratio: float, expected: int) -> None:
    """ceil(d * m), also where d has no exact binary form."""
    assert expected == reservation_count(tasks, ratio)


@given(node_lists, st.integers(0, 200), st.integers())
def test_spread_is_complete_and_even(nodes: list[NodeName], count: int, seed: int) -> None:
    """Every reservation goes somewhere, and nodes differ by at most one."""
    spread = spread_reservations(Random(seed), nodes, count)
    assert count == sum(spread.values())
    assert set(spread) <= set(nodes)
    per_node = [spread.get(node, 0) for node in nodes]
    assert max(per_node) - min(per_node) <= 1


@given(node_lists, st.floats(1, 5), st.integers())
def test_preferred_nodes_are_split_without_loss(
    nodes: list[NodeName], ratio: float, seed: int
) -> None:
    """A task reserves on min(ceil(d), candidates) nodes; the rest are kept."""
    chosen, rest = choose_preferred(Random(seed), nodes, ratio)
    assert sorted(nodes) == sorted(chosen + rest)
    assert min(reservation_count(1, ratio), len(nodes)) == len(chosen)


def test_avoided_nodes_are_used_only_if_nothing_else_is_left() -> None:
    """Avoidance is a wish, not a constraint."""
    nodes = [NodeName("a"), NodeName("b")]
    assert ["b"] == without(nodes, ["a"])
    assert nodes == without(nodes, ["a", "b"])


@pytest.mark.parametrize(
    ("mean_s", "ahead", "batch"),
    [(None, 0, 1), (1.0, 0, 1), (0.0011, 0, 1), (0.001, 1, 1), (1e-4, 10, 1), (1e-5, 64, 10)],
)
def test_only_very_short_tasks_are_fetched_ahead(
    mean_s: float | None, ahead: int, batch: int
) -> None:
    """A millisecond's worth at most; unknown and longer tasks are bound late."""
    assert (ahead, batch) == (tasks_ahead(mean_s), batch_size(mean_s))


def test_no_time_at_all_is_short() -> None:
    """A clock too coarse for the task does no harm."""
    assert (64, 1) == (tasks_ahead(0.0), batch_size(0.0))


def test_the_running_mean_forgets() -> None:
    """One long task makes a job long; many short ones later it is short again."""
    mean_s = smoothed(smoothed(None, 1e-5), 10.0)
    assert 0 == tasks_ahead(mean_s)
    for _ in range(100):
        mean_s = smoothed(mean_s, 1e-5)
    assert 0 < tasks_ahead(mean_s)
