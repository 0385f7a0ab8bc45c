"""Experiments with their tiny parameters: they find what the model says, and the same each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minishark_lab.canary import overhead, simulated
from minishark_lab.canary.simulated import (
    Costs,
    Deaths,
    Partitions,
    Straggler,
    TaskLengths,
    Throughput,
)
from minishark_lab.harness.experiment import Experiment
from minishark_lab.harness.findings import value
from minishark_lab.harness.rows import Point


def _rows(experiment: Experiment[Any]) -> list[Point]:
    done: list[float] = []
    rows = list(experiment.run(experiment.quick, 1, done.append))
    assert pytest.approx(1) == sum(done)
    return [row for row in rows if isinstance(row, Point)]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "experiment", simulated.EXPERIMENTS, ids=lambda experiment: experiment.name
)
def test_simulations_are_deterministic(experiment: Experiment[Any]) -> None:
    """The same seed gives the same rows."""
    assert _rows(experiment) == _rows(experiment)


def test_tasks_take_their_own_time_and_the_control_plane() -> None:
    """One worker waits for nobody; more of them wait for a broadcast and a sum."""
    rows = simulated.throughput(Throughput(workers=(1, 3), stages=100), 1, lambda _: None)
    alone, together = (value("Canary", workers, "of the")(rows) for workers in (1, 3))
    assert alone == pytest.approx(100 * 6.6 / 7.3, rel=0.01)
    assert 0.5 * alone < together < alone


def test_an_iteration_takes_at_least_its_tasks() -> None:
    """And with messages that cost nothing, hardly more."""
    free = Costs(task_us=0.0, packet_us=0.0, network_us=1.0)
    parameters = TaskLengths(workers=(2,), partitions=4, tasks_us=(10.0, 50.0), costs=free)
    rows = simulated.task_lengths(parameters, 1, lambda _: None)
    for task_us in (10.0, 50.0):
        own = value("Canary", task_us)(rows)
        assert 4 * task_us / 1000 <= own < 2 * 4 * task_us / 1000 + 0.05


@pytest.mark.slow
def test_migration_helps_against_a_straggler() -> None:
    """Iterations are nearly as short as before, once partitions have left the slow worker."""
    parameters = Straggler(workers=4, partitions=4, iterations=60, slow=(5, 60))
    rows = simulated.straggler(parameters, 1, lambda _: None)
    stays, moves = (
        simulated.mean_between(f"partitions {each}", 40, 59)(rows) for each in ("stay", "move")
    )
    assert moves < 0.6 * stays


def test_more_partitions_even_out() -> None:
    """Where tasks differ, an iteration is shorter with more of them per core."""
    parameters = Partitions(workers=4, partitions=(1, 8), iterations=10)
    rows = simulated.partitions(parameters, 1, lambda _: None)
    assert value("partitions stay", 8)(rows) < value("partitions stay", 1)(rows)


@pytest.mark.slow
def test_snapshots_bound_what_is_repeated() -> None:
    """Without them the program begins anew."""
    parameters = Deaths(workers=3, partitions=4, task_ms=20.0, iterations=30, deaths=3)
    rows = simulated.deaths(replace(parameters, every=(1, 0)), 1, lambda _: None)
    panel = "repeated"
    often, never = (value("one death", each, panel)(rows) for each in (1, 30))
    assert often < never / 2


def test_the_overhead_is_positive() -> None:
    """Whatever the noise: a task costs more than its function."""
    (experiment,) = overhead.EXPERIMENTS
    shares = [row.y for row in _rows(experiment) if row.panel.startswith("share")]
    assert 2 == len(shares)
    assert all(0 < share < 100 for share in shares)
    cost = overhead.cost_of_tasks(10, 20_000)
    assert cost.control_ns > 0
