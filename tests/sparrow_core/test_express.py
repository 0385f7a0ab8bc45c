from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import pytest

from minishark_lab.models.express import ExpressCluster
from minishark_lab.remembering import Levels
from minishark_lab.simulator.cluster import payload_of, quiet_cluster
from minishark_lab.simulator.workload import Arrival, run_jobs
from minishark_lab.simulator.world import World
from minishark_lab.sparrow.streams import RunningTasks
from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.policy.disciplines import DISCIPLINES
from sparrow_core.policy.placement import placement_names
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec

NODES = [NodeName(f"n{number}") for number in range(20)]


@pytest.fixture(autouse=True)
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers tell each other of few nodes, too."""
    monkeypatch.setattr(Levels, "NEWS", 2)
    monkeypatch.setattr(Levels, "NEWS_SHARE", 1.0)


def jobs_of(placement: str, *, replicas: int = 0, wait_s: float | None = None) -> list[Arrival]:
    """Jobs of three users that differ in size, length, priority and constraints."""
    rng, at_s, arrivals = Random(7), 1.0, []
    for number in range(90):
        at_s += rng.expovariate(45)
        task_s = rng.choice((0.05, 0.2))
        tasks = tuple(
            TaskSpec(
                task_id,
                payload_of(rng.expovariate(1 / task_s) + 0.002, NODES[:5], 1.5),
                tuple(rng.sample(NODES, replicas)) if rng.random() < 0.8 else (),
                wait_s,
            )
            for task_id in range(rng.randint(1, 9))
        )
        user, options = f"u{number % 3}", JobOptions(priority=number % 2, task_s=task_s)
        start = StartJob(
            job_id=JobId(f"j{number}"),
            user=user,
            tasks=tasks,
            placement=placement,
            options=options,
        )
        arrivals.append(Arrival(at_s, start))
    return arrivals


def times_s(
    jobs: list[Arrival], slots: int, policy: str = "fifo", *, cancellation: bool = True
) -> tuple[list[float], list[float]]:
    """Response times on the production machines, and by the express simulator."""
    cluster = quiet_cluster(
        World(3), nodes=len(NODES), slots=slots, schedulers=3, cancellation=cancellation,
        monitor=NodeMonitorConfig(policy=policy),
    )  # fmt: skip
    express = ExpressCluster(
        nodes=len(NODES), slots=slots, policy=policy, seed=3, cancellation=cancellation
    )
    express.run(jobs)
    return run_jobs(cluster, jobs), [express.ended_s[job.job.job_id] for job in jobs]


@pytest.mark.sample(3)
@pytest.mark.parametrize("placement", ["sparrow", "batch", "per_task", "random"])
@pytest.mark.parametrize("slots", [1, 3])
def test_jobs_take_as_long_as_on_the_machines(placement: str, slots: int) -> None:
    """With the same seed, to rounding, under every placement."""
    machines, express = times_s(jobs_of(placement), slots)
    assert machines == pytest.approx(express, rel=1e-9)


@pytest.mark.sample(3)
@pytest.mark.parametrize("policy", ["fifo", "priority", "fair", "srpt"])
@pytest.mark.parametrize("slots", [1, 3])
def test_policies_are_those_of_the_machines(policy: str, slots: int) -> None:
    """So it is under every queue discipline."""
    machines, express = times_s(jobs_of("sparrow"), slots, policy)
    assert machines == pytest.approx(express, rel=1e-9)


@pytest.mark.sample(3)
@pytest.mark.parametrize("wait_s", [None, 0.0, 0.03])
def test_constraints_are_those_of_the_machines(wait_s: float | None) -> None:
    """Hard ones, and soft ones that give way after a while."""
    machines, express = times_s(jobs_of("sparrow", replicas=3, wait_s=wait_s), 3)
    assert machines == pytest.approx(express, rel=1e-9)


def test_so_it_is_without_cancellation() -> None:
    """Nodes then ask in vain."""
    machines, express = times_s(jobs_of("sparrow"), 2, cancellation=False)
    assert machines == pytest.approx(express, rel=1e-9)


class Configuration(NamedTuple):
    """A cluster and its jobs."""

    nodes: int
    slots: int
    schedulers: int
    policy: str
    cancellation: bool
    jobs: list[Arrival]


# "no_queue" hands tasks to executors that queue them, which this simulator leaves out.
SIMULATED = tuple(name for name in DISCIPLINES if name != "no_queue")


def random_configuration(seed: int) -> Configuration:
    """Few nodes or many, jobs with more reservations than nodes, tasks of a few round trips."""
    rng = Random(seed)
    nodes, slots = rng.choice((1, 2, 3, 5, 8, 13, 20)), rng.choice((1, 1, 2, 3, 5))
    names = [NodeName(f"n{number}") for number in range(nodes)]
    placement = placement_names()[seed % len(placement_names())]
    replicas, wait_s = min(nodes, rng.choice((0, 0, 1, 3))), rng.choice((None, 0.0, 0.03))
    means = rng.choice(((0.05, 0.2), (0.002, 0.004)))
    ratio, most = rng.choice((1.0, 1.2, 2.0, 3.0)), rng.choice((3, 9, 25))
    # Times that are multiples of one another end at one instant, where order matters most.
    even = rng.random() < 0.5
    interval_s = sum(means) * (most + 1) / 4 / (rng.choice((0.4, 0.8, 1.1)) * nodes * slots)
    at_s, jobs = 1.0, []
    for number in range(rng.choice((10, 30, 60))):
        at_s += rng.expovariate(1 / interval_s)
        mean_s = rng.choice(means)
        tasks = tuple(
            TaskSpec(
                task_id,
                payload_of(
                    rng.choice((1, 2, 3)) * mean_s if even else rng.expovariate(1 / mean_s) + 0.002,
                    names[:5],
                    1.5,
                ),
                tuple(rng.sample(names, replicas)) if rng.random() < 0.8 else (),
                wait_s,
            )
            for task_id in range(rng.randint(1, most))
        )
        start = StartJob(
            job_id=JobId(f"j{number}"),
            user=f"u{number % 3}",
            tasks=tasks,
            placement=placement,
            probe_ratio=ratio,
            options=JobOptions(priority=number % 2, task_s=mean_s),
        )
        jobs.append(Arrival(at_s, start))
    policy, cancellation = rng.choice(SIMULATED), rng.random() < 0.7
    return Configuration(nodes, slots, rng.choice((1, 3)), policy, cancellation, jobs)


def differing(seeds: Iterable[int]) -> list[int]:
    """The seeds of configurations in which a job takes longer, or shorter, than on the machines."""
    return [seed for seed in seeds if not _is_that_of_the_machines(random_configuration(seed))]


def _is_that_of_the_machines(chosen: Configuration) -> bool:
    cluster = quiet_cluster(
        World(3), nodes=chosen.nodes, slots=chosen.slots, schedulers=chosen.schedulers,
        cancellation=chosen.cancellation, monitor=NodeMonitorConfig(policy=chosen.policy),
    )  # fmt: skip
    express = ExpressCluster(
        nodes=chosen.nodes,
        slots=chosen.slots,
        schedulers=chosen.schedulers,
        policy=chosen.policy,
        seed=3,
        cancellation=chosen.cancellation,
    )
    express.run(chosen.jobs)
    found = [express.ended_s[job.job.job_id] for job in chosen.jobs]
    machines: list[float] = run_jobs(cluster, chosen.jobs)
    return bool(machines == pytest.approx(found, rel=1e-9))


# In these, nodes are cancelled or ask at one instant, and their order matters.
ORDER_MATTERS = (192, 480, 498)


@pytest.mark.sample(6)
@pytest.mark.parametrize("seeds", [ORDER_MATTERS, *(range(i, i + 5) for i in range(0, 25, 5))])
def test_random_configurations_are_those_of_the_machines(seeds: Sequence[int]) -> None:
    """Job by job, under all placements and disciplines, with one scheduler or three."""
    assert [] == differing(seeds)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_random_configurations_are_those_of_the_machines() -> None:
    """Job by job, as above."""
    assert [] == differing(range(1000, 2000))


def test_who_runs_what_is_told_as_it_changes() -> None:
    """Tasks that run are counted by user, and none is left at the end."""
    cluster = ExpressCluster(nodes=len(NODES), slots=2)
    running = RunningTasks(cluster)
    seen: list[int] = []
    for step in range(20):
        cluster.call(1.0 + step / 10, lambda: seen.append(running.by_user.total()))
    cluster.run(jobs_of("sparrow"))
    assert 0 < max(seen) <= 2 * len(NODES)
    assert 0 == running.by_user.total()


def test_a_run_can_stop_at_a_time() -> None:
    """Jobs that have not ended by then are not among those that have."""
    cluster = ExpressCluster(nodes=len(NODES), slots=1)
    cluster.run(jobs_of("sparrow"), 1.5)
    assert 0 < len(cluster.ended_s) < 90
    assert cluster.now <= 1.5
