"""Workloads: jobs that arrive at random, and how long they took."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct

from sparrow_core.events import JobFinished
from sparrow_core.ids import JobId, NodeName
from sparrow_core.messages import StartJob
from sparrow_core.node_monitor import NodeMonitorConfig
from sparrow_core.parts import JobOptions, TaskSpec
from sparrow_core.scheduler import SchedulerConfig
from sparrow_core.sim.cluster import SimulatedCluster, duration_of, payload_of
from sparrow_core.sim.network import Network
from sparrow_core.sim.world import World

_WARM_UP_S = 1.0
_PARETO_SHAPE = 1.5
_QUIET_HEARTBEAT_S = 1000.0  # nothing fails, so heartbeats would only cost time

# Task times of a job with mean 1, by name of their distribution.
DISTRIBUTIONS: dict[str, Callable[[Random, int], list[float]]] = {
    "exponential": lambda rng, tasks: [rng.expovariate(1) for _ in range(tasks)],
    "exponential_jobs": lambda rng, tasks: [rng.expovariate(1)] * tasks,
    "constant": lambda _, tasks: [1.0] * tasks,
    "pareto": lambda rng, tasks: [
        rng.paretovariate(_PARETO_SHAPE) * (1 - 1 / _PARETO_SHAPE) for _ in range(tasks)
    ],
}


class Workload(Struct, frozen=True):
    """Jobs of equal size, arriving as a Poisson process.

    Attributes:
        load: Share of all slots that is busy on average.
        jobs: How many.
        tasks: In each job.
        task_s: Mean time of a task.
        distribution: Of task times, a name in `DISTRIBUTIONS`.
        placement: One of `placement.PLACEMENTS`, or "central": an omniscient scheduler.
        probe_ratio: Reservations a task.
        replicas: If above 0, each task prefers this many random nodes.
        options: Of every job.
    """

    load: float
    jobs: int
    tasks: int = 10
    task_s: float = 0.1
    distribution: str = "exponential"
    placement: str = "sparrow"
    probe_ratio: float = 2.0
    replicas: int = 0
    options: JobOptions = JobOptions()


class Arrival(Struct, frozen=True):
    """A job and when it arrives."""

    at_s: float
    job: StartJob


def make_jobs(
    workload: Workload, nodes: Sequence[NodeName], slots: int, rng: Random
) -> list[Arrival]:
    """The jobs of a workload."""
    interval_s = workload.task_s * workload.tasks / (workload.load * slots * len(nodes))
    at_s = _WARM_UP_S  # nodes have registered by then
    arrivals = []
    for number in range(workload.jobs):
        at_s += rng.expovariate(1 / interval_s)
        times = DISTRIBUTIONS[workload.distribution](rng, workload.tasks)
        tasks = tuple(
            TaskSpec(
                task_id,
                payload_of(time * workload.task_s),
                tuple(rng.sample(nodes, workload.replicas)),
            )
            for task_id, time in enumerate(times)
        )
        job = StartJob(
            JobId(f"job{number}"), "user", tasks, b"",
            workload.placement, workload.probe_ratio, workload.options,
        )  # fmt: skip
        arrivals.append(Arrival(at_s, job))
    return arrivals


def response_times_s(
    workload: Workload,
    *,
    nodes: int,
    slots: int,
    schedulers: int,
    seed: int,
    monitor: NodeMonitorConfig | None = None,
) -> list[float]:
    """Simulate a workload on a faultless cluster; the sorted response times of its jobs."""
    names = [NodeName(f"n{number}") for number in range(nodes)]
    arrivals = make_jobs(workload, names, slots, Random(f"workload {seed}"))
    if workload.placement == "central":
        return sorted(central_response_times_s(arrivals, nodes * slots, Network().delay_s))
    world = World(seed, Network())
    cluster = SimulatedCluster(
        world, nodes=nodes, slots=slots, schedulers=schedulers,
        heartbeat_s=_QUIET_HEARTBEAT_S, monitor=monitor,
        scheduler=SchedulerConfig(lease_s=_QUIET_HEARTBEAT_S),
    )  # fmt: skip
    return sorted(run_jobs(cluster, arrivals))


def run_jobs(cluster: SimulatedCluster, arrivals: Sequence[Arrival]) -> list[float]:
    """Run jobs to their end, as they must all finish; their response times."""
    world, ended = cluster.world, cluster.recorder.ended
    for arrival in arrivals:
        world.post(cluster.client, arrival.job, arrival.at_s - world.now)
    world.run(float("inf"), done=lambda: len(ended) == len(arrivals))
    assert all(event == JobFinished() for event in ended.values())
    ended_at = cluster.recorder.ended_at
    return [ended_at[each.job.job_id] - each.at_s for each in arrivals]


def central_response_times_s(
    arrivals: Sequence[Arrival], slots: int, delay_s: float
) -> list[float]:
    """An omniscient scheduler: each task, first come first served, on the slot that is free first.

    The bound that decentralised schedulers are held against: one message of `delay_s` for the job,
    one to start a task, one for its result, and never a slot idle while a task waits.
    """
    free_at = [0.0] * slots
    times_s = []
    for arrival in arrivals:
        ends = []
        for task in arrival.job.tasks:
            start_s = max(arrival.at_s + 2 * delay_s, free_at[0])
            ends.append(start_s + duration_of(task.payload))
            heapq.heapreplace(free_at, ends[-1])
        times_s.append(max(ends) + delay_s - arrival.at_s)
    return times_s


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in order."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
