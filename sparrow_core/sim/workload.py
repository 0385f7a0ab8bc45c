"""Workloads: jobs that arrive at random, and how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec import Struct

from sparrow_core.events import JobFinished
from sparrow_core.ids import JobId, NodeName
from sparrow_core.messages import StartJob
from sparrow_core.parts import TaskSpec
from sparrow_core.sim.cluster import SimulatedCluster, payload_of
from sparrow_core.sim.network import Network
from sparrow_core.sim.world import World

_WARM_UP_S = 1.0


class Workload(Struct, frozen=True):
    """Jobs of equal size with exponential task times, arriving as a Poisson process.

    Attributes:
        load: Share of all slots that is busy on average.
        jobs: How many.
        tasks: In each job.
        task_s: Mean time of a task.
        placement: "sparrow" or "random".
        probe_ratio: Reservations a task.
        replicas: If above 0, each task prefers this many random nodes.
    """

    load: float
    jobs: int
    tasks: int = 10
    task_s: float = 0.1
    placement: str = "sparrow"
    probe_ratio: float = 2.0
    replicas: int = 0


def make_jobs(
    workload: Workload, nodes: Sequence[NodeName], slots: int, rng: Random
) -> list[tuple[float, StartJob]]:
    """The jobs of a workload with their times of arrival."""
    interval_s = workload.task_s * workload.tasks / (workload.load * slots * len(nodes))
    at_s = _WARM_UP_S  # nodes have registered by then
    jobs = []
    for number in range(workload.jobs):
        at_s += rng.expovariate(1 / interval_s)
        tasks = tuple(
            TaskSpec(
                task_id,
                payload_of(rng.expovariate(1 / workload.task_s)),
                tuple(rng.sample(nodes, workload.replicas)),
            )
            for task_id in range(workload.tasks)
        )
        job_id = JobId(f"job{number}")
        placement, ratio = workload.placement, workload.probe_ratio
        jobs.append((at_s, StartJob(job_id, "user", tasks, b"", placement, ratio)))
    return jobs


def response_times_s(
    workload: Workload, *, nodes: int, slots: int, schedulers: int, seed: int
) -> list[float]:
    """Simulate a workload on a faultless cluster; the sorted response times of its jobs."""
    world = World(seed, Network())
    cluster = SimulatedCluster(world, nodes=nodes, slots=slots, schedulers=schedulers)
    names = [NodeName(f"n{number}") for number in range(nodes)]
    jobs = make_jobs(workload, names, slots, Random(f"workload {seed}"))
    for at_s, job in jobs:
        world.post(cluster.client, job, at_s)
    ended = cluster.recorder.ended
    world.run(float("inf"), done=lambda: len(ended) == len(jobs))
    assert all(event == JobFinished() for event in ended.values())
    return sorted(cluster.recorder.ended_at[job.job_id] - at_s for at_s, job in jobs)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in order."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
