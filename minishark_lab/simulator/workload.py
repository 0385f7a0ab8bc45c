"""Random workloads, and response times under them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct

from minishark_lab.simulator.cluster import SimulatedCluster, duration_of, payload_of, quiet_cluster
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.world import World
from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.protocol.events import JobFinished
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec

_WARM_UP_S = 1.0
PARETO_SHAPE = 1.5
# As in cluster traces, most tasks are short and few are long.
BIMODAL_LONG_SHARE = 0.1
BIMODAL_RATIO = 10.0
BIMODAL_SHORT = 1 / (1 + BIMODAL_LONG_SHARE * (BIMODAL_RATIO - 1))
# Bursty arrivals: hyperexponential, with balanced means and this squared coefficient of variation.
BURSTY_SCV = 9.0
BURSTY_SHARE = (1 + math.sqrt((BURSTY_SCV - 1) / (BURSTY_SCV + 1))) / 2

# Task times of a job with mean 1, by name of their distribution.
DISTRIBUTIONS: dict[str, Callable[[Random, int], list[float]]] = {
    "exponential": lambda rng, tasks: [rng.expovariate(1) for _ in range(tasks)],
    "exponential_jobs": lambda rng, tasks: [rng.expovariate(1)] * tasks,
    "constant": lambda _, tasks: [1.0] * tasks,
    "pareto": lambda rng, tasks: [
        rng.paretovariate(PARETO_SHAPE) * (1 - 1 / PARETO_SHAPE) for _ in range(tasks)
    ],
    "bimodal": lambda rng, tasks: [
        BIMODAL_SHORT * (BIMODAL_RATIO if rng.random() < BIMODAL_LONG_SHARE else 1.0)
        for _ in range(tasks)
    ],
}
# Times between jobs with mean 1, by name of the arrival process.
ARRIVALS: dict[str, Callable[[Random], float]] = {
    "poisson": lambda rng: rng.expovariate(1),
    "regular": lambda _: 1.0,
    "bursty": lambda rng: rng.expovariate(
        2 * (BURSTY_SHARE if rng.random() < BURSTY_SHARE else 1 - BURSTY_SHARE)
    ),
}


class Workload(Struct, frozen=True, kw_only=True):
    """Jobs of equal size."""

    load: float  # average share of busy slots
    jobs: int
    tasks: int = 10
    task_s: float = 0.1
    distribution: str = "exponential"  # of task times, a name in `DISTRIBUTIONS`
    # A name that `make_placement` knows, or "central" for an omniscient scheduler.
    placement: str = "sparrow"
    probe_ratio: float = 2.0
    replicas: int = 0  # if above 0, each task prefers this many random nodes
    options: JobOptions = JobOptions()
    arrivals: str = "poisson"  # of jobs, a name in `ARRIVALS`

    def interval_s(self, slots: int) -> float:
        """Mean time between jobs on that many slots in all."""
        return self.task_s * self.tasks / (self.load * slots)


class Arrival(Struct, frozen=True):
    """A job and when it arrives."""

    at_s: float
    job: StartJob


def make_jobs(
    workload: Workload, nodes: Sequence[NodeName], slots: int, rng: Random
) -> list[Arrival]:
    interval_s = workload.interval_s(slots * len(nodes))
    at_s = _WARM_UP_S  # nodes have registered by then
    arrivals = []
    for number in range(workload.jobs):
        at_s += ARRIVALS[workload.arrivals](rng) * interval_s
        tasks = tuple(
            TaskSpec(task_id, payload_of(time_s), tuple(rng.sample(nodes, workload.replicas)))
            for task_id, time_s in enumerate(_times_s(workload, rng))
        )
        job = StartJob(
            job_id=JobId(f"job{number}"), user="user", tasks=tasks, options=workload.options,
            placement=workload.placement, probe_ratio=workload.probe_ratio,
        )  # fmt: skip
        arrivals.append(Arrival(at_s, job))
    return arrivals


def _times_s(workload: Workload, rng: Random) -> list[float]:
    times = DISTRIBUTIONS[workload.distribution](rng, workload.tasks)
    return [time * workload.task_s for time in times]


def response_times_s(
    workload: Workload,
    *,
    nodes: int,
    slots: int,
    schedulers: int,
    seed: int,
    monitor: NodeMonitorConfig | None = None,
) -> list[float]:
    """Simulate a workload without faults; returns the sorted response times of its jobs."""
    names = [NodeName(f"n{number}") for number in range(nodes)]
    arrivals = make_jobs(workload, names, slots, Random(f"workload {seed}"))
    if workload.placement == "central":
        return sorted(central_response_times_s(arrivals, nodes * slots, Network().delay_s))
    cluster = quiet_cluster(
        World(seed), nodes=nodes, slots=slots, schedulers=schedulers, monitor=monitor
    )
    return sorted(run_jobs(cluster, arrivals))


def run_jobs(cluster: SimulatedCluster, arrivals: Sequence[Arrival]) -> list[float]:
    """Run jobs, which must all finish; returns their response times."""
    world, ended = cluster.world, cluster.recorder.ended
    for arrival in arrivals:
        world.post(cluster.client, arrival.job, arrival.at_s - world.now)
    world.run(float("inf"), done=lambda: len(ended) == len(arrivals))
    assert all(event == JobFinished() for event in ended.values())
    ended_at = cluster.recorder.ended_at
    return [ended_at[arrival.job.job_id] - arrival.at_s for arrival in arrivals]


class CentralQueue:
    """An omniscient scheduler: each task, in order of arrival, on the first free slot.

    A lower bound for decentralized schedulers: one message of `delay_s` for the job, one to start
    a task, one for its result, and no slot is idle while a task waits.
    """

    def __init__(self, slots: int, delay_s: float) -> None:
        self._free_at = [0.0] * slots
        self._delay_s = delay_s

    def run(self, at_s: float, times_s: Sequence[float]) -> float:
        """The response time of the next job, in order of arrival."""
        last_s = 0.0
        reached_s = at_s + 2 * self._delay_s
        for time_s in times_s:
            end_s = max(reached_s, self._free_at[0]) + time_s
            heapq.heapreplace(self._free_at, end_s)
            last_s = max(last_s, end_s)
        return last_s + self._delay_s - at_s


def central_response_times_s(
    arrivals: Sequence[Arrival], slots: int, delay_s: float
) -> list[float]:
    """Response times under an omniscient scheduler."""
    queue = CentralQueue(slots, delay_s)
    return [
        queue.run(arrival.at_s, [duration_of(task.payload) for task in arrival.job.tasks])
        for arrival in arrivals
    ]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
