from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product
from random import Random

import numpy as np
import pytest

from machine_kit.addresses import Address
from machine_kit.machine import Envelope, Message
from minishark_lab.models import vector
from minishark_lab.models.vector import VectorCluster
from minishark_lab.simulator import workload
from minishark_lab.simulator.cluster import duration_of, quiet_cluster
from minishark_lab.simulator.workload import Workload, make_jobs, run_jobs
from minishark_lab.simulator.world import World
from sparrow_core.protocol.messages import Reserve


class Replay:
    """A run of the production machines, and the nodes that it chose for each job."""

    def __init__(
        self, load: Workload, nodes: int, slots: int, *, cancellation: bool = True
    ) -> None:
        cluster = quiet_cluster(
            World(3), nodes=nodes, slots=slots, schedulers=2, cancellation=cancellation
        )
        self.arrivals = make_jobs(load, cluster.nodes, slots, Random(5))
        self.chosen: dict[str, list[int]] = {}
        cluster.world.taps.append(self._tap)
        self.times_s = run_jobs(cluster, self.arrivals)

    def _tap(self, to: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        del to, msg, now
        for envelope in out:
            if isinstance(envelope.msg, Reserve):
                node = int(envelope.to.partition("#")[0][1:])
                reserved = self.chosen.setdefault(envelope.msg.job_id, [])
                reserved += [node] * envelope.msg.count


@pytest.mark.sample(4)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("cancellation", [True, False])
def test_late_binding_is_that_of_the_machines(slots: int, cancellation: bool) -> None:
    """With the same probes and task times, every job takes as long as on the state machines."""
    load = Workload(load=0.9, jobs=150, tasks=8)
    replay = Replay(load, 24, slots, cancellation=cancellation)
    cluster = VectorCluster(24, slots, cancellation=cancellation)
    times_s = [
        cluster.late_binding(
            arrival.at_s,
            np.array(replay.chosen[arrival.job.job_id]),
            np.array([duration_of(task.payload) for task in arrival.job.tasks]),
        )
        for arrival in replay.arrivals
    ]
    assert replay.times_s == pytest.approx(times_s, rel=1e-9)


@pytest.mark.sample(10)
@pytest.mark.parametrize(("nodes", "slots"), [(1, 1), (1, 4), (3, 2), (7, 1), (7, 4)])
@pytest.mark.parametrize("cancellation", [True, False])
def test_more_reservations_than_nodes_are_those_of_the_machines(
    nodes: int, slots: int, cancellation: bool
) -> None:
    """So it is where nodes hold several reservations of a job, which they serve one by one."""
    # Pareto times are above a millisecond, below which nodes fetch tasks ahead.
    load = Workload(load=0.8, jobs=120, tasks=8, distribution="pareto")
    replay = Replay(load, nodes, slots, cancellation=cancellation)
    cluster = VectorCluster(nodes, slots, cancellation=cancellation)
    times_s = [
        cluster.late_binding_crowded(
            arrival.at_s,
            np.array(replay.chosen[arrival.job.job_id]),
            np.array([duration_of(task.payload) for task in arrival.job.tasks]),
        )
        for arrival in replay.arrivals
    ]
    assert replay.times_s == pytest.approx(times_s, rel=1e-9)


@pytest.mark.sample(6)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("placement", ["random", "per_task", "batch"])
def test_bound_tasks_are_those_of_the_machines(slots: int, placement: str) -> None:
    """So it is where tasks are bound early; of equal length, as two simulators order them apart."""
    load = Workload(load=0.8, jobs=150, tasks=8, distribution="constant", placement=placement)
    replay = Replay(load, 24, slots)
    cluster = VectorCluster(24, slots, fetches=True)
    ways = 2 if placement == "random" else 4
    times_s = [
        cluster.bound(
            arrival.at_s, np.array(replay.chosen[arrival.job.job_id]), np.full(8, 0.1), ways
        )
        for arrival in replay.arrivals
    ]
    assert replay.times_s == pytest.approx(times_s, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("placement", vector.VECTORIZED)
def test_two_simulators_agree(placement: str) -> None:
    """With choices of its own, the event-driven one is one more run of the vectorised one."""
    load = Workload(load=0.75, jobs=300, tasks=6, placement=placement)
    runs = [vector.response_times_s(load, nodes=40, slots=2, seed=seed) for seed in range(12)]
    events = workload.response_times_s(load, nodes=40, slots=2, schedulers=2, seed=1)
    for figure in (statistics.fmean, statistics.median):
        values = [figure(run.tolist()) for run in runs]
        limit = 3.5 * statistics.stdev(values)
        assert statistics.fmean(values) == pytest.approx(figure(events), abs=limit)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", workload.DISTRIBUTIONS)
def test_distributions_are_the_same(name: str) -> None:
    """Task times have mean 1 and the same quantiles in both simulators."""
    one = np.array([workload.DISTRIBUTIONS[name](Random(i), 5)[i % 5] for i in range(20_000)])
    other = vector.DISTRIBUTIONS[name](np.random.default_rng(1), (20_000, 5))[:, 0]
    for percent in (25, 50, 85, 95):
        expected = np.percentile(one, percent)
        assert expected == pytest.approx(np.percentile(other, percent), rel=0.06)
    assert 1.0 == pytest.approx(np.minimum(other, 1e3).mean(), rel=0.1)


@pytest.mark.parametrize("name", workload.ARRIVALS)
def test_arrivals_are_the_same(name: str) -> None:
    """Times between jobs have mean 1 and the same spread; bursts are what varies most."""
    rng = Random(1)
    one = np.array([workload.ARRIVALS[name](rng) for _ in range(40_000)])
    other = vector.ARRIVALS[name](np.random.default_rng(1), 40_000)
    scv = {"poisson": 1.0, "regular": 0.0, "bursty": workload.BURSTY_SCV}[name]
    for gaps in (one, other):
        assert 1.0 == pytest.approx(gaps.mean(), rel=0.05)
        assert scv == pytest.approx(gaps.var(), rel=0.3)


def test_batch_sampling_takes_the_least_loaded() -> None:
    """One task each, the first of equals; a second one only where there are too few nodes."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        loads = rng.integers(-2, 4, 9)
        tasks = int(rng.integers(1, 30))
        ranked = sorted(range(9), key=loads.tolist().__getitem__)
        assert (4 * ranked)[:tasks] == vector.least_loaded(loads, tasks).tolist()


def test_batch_filling_fills_levels() -> None:
    """As if tasks were placed one by one, each on the first of the least loaded."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        loads = rng.integers(-2, 4, 9)
        tasks = int(rng.integers(1, 30))
        levels, expected = loads.tolist(), []
        for _ in range(tasks):
            best = min(range(9), key=levels.__getitem__)
            levels[best] += 1
            expected.append(best)
        assert expected == vector.fill_levels(loads, tasks).tolist()


@pytest.mark.parametrize("distribution", ["exponential", "pareto"])
def test_placements_are_compared_on_the_same_jobs(distribution: str) -> None:
    """Where nothing waits, a seed's jobs take the same time but for messages, however placed."""
    found = [
        vector.response_times_s(
            Workload(
                load=0.001, jobs=50, tasks=5, distribution=distribution, placement=each,
                probe_ratio=ratio,
            ),
            nodes=2000,
            seed=4,
        )
        for each, ratio in product(vector.VECTORIZED, (2.0, 3.0))
    ]  # fmt: skip
    for times_s in found[1:]:
        # At most six messages; and at random, two tasks of a job may meet.
        assert 46 <= (abs(times_s - found[0]) < 0.0031).sum()


def test_long_queues_are_remembered() -> None:
    """A node with more reservations than the ring had room for tells its true load."""
    cluster = VectorCluster(2, 1, remembers=True)
    for number in range(30):
        cluster.bound(number * 1e-6, np.array([0]), np.array([1.0]))
    assert [29, -1] == cluster.loads(0.5, np.array([0, 1])).tolist()
    assert [14, -1] == cluster.loads(15.5, np.array([0, 1])).tolist()
    assert [-1, -1] == cluster.loads(100.0, np.array([0, 1])).tolist()


def test_a_seed_reproduces_a_run() -> None:
    """Same seed, same times; another seed, others; and impossible workloads are refused."""
    load = Workload(load=0.8, jobs=100, tasks=5)
    first, again, other = (vector.response_times_s(load, nodes=20, seed=s) for s in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
    with pytest.raises(ValueError, match="no constraints"):
        vector.response_times_s(Workload(load=0.5, jobs=1, replicas=3), nodes=9, seed=1)
    with pytest.raises(ValueError, match="none of"):
        vector.response_times_s(Workload(load=0.5, jobs=1, placement="best"), nodes=9, seed=1)
