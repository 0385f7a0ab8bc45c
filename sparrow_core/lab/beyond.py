"""Beyond the papers: shortest remaining work, soft constraints, adaptive probe ratio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

import numpy as np

from sparrow_core.lab.experiment import Advance, Chart, Experiment, over_cases
from sparrow_core.lab.findings import Finding, Reading, percent_under, times, value
from sparrow_core.lab.parameters import (
    Count,
    Loads,
    Names,
    Natural,
    NotNegative,
    Positive,
    Share,
    Some,
    check_policies,
)
from sparrow_core.lab.placements import NAMES
from sparrow_core.lab.rows import Point, Response, response
from sparrow_core.lab.streams import START_S, Stream, response_times, run_for
from sparrow_core.policy import sampling as policy
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec
from sparrow_core.sim.cluster import payload_of
from sparrow_core.sim.express import ExpressCluster
from sparrow_core.sim.vector import VectorCluster, distinct
from sparrow_core.sim.workload import Arrival, CentralQueue

# --- sticky probing with shortest remaining work first -----------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShortAndLong:
    """Many short jobs, and few long ones that are most of the work, as in cluster traces."""

    nodes: Count = 100  # of `slots` slots each
    slots: Count = 4
    # Tasks and their time of nine jobs in ten, `long` of the tenth.
    short: tuple[Count, Positive] = (10, 0.1)
    long: tuple[Count, Positive] = (20, 2.0)
    short_share: Share = 0.9
    loads: Loads = (0.5, 0.7, 0.8, 0.9, 0.95)  # shares of slots that are busy
    policies: Names = ("fifo", "srpt")
    seconds: Positive = 30.0  # how long jobs arrive; the first fifth is not measured

    def __post_init__(self) -> None:
        check_policies(self.policies)


_POLICY_NAMES = {"fifo": "Sparrow", "srpt": "sticky probing, SRPT"}


def sticky_srpt(parameters: ShortAndLong, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of short and long jobs, first in first out and by remaining work."""

    def measure(queue: str, load: float, part: Advance) -> Iterator[Response]:
        streams = _two_streams(parameters, load)
        times = response_times(
            streams, nodes=parameters.nodes, slots=parameters.slots, policy=queue, seed=seed,
            until_s=3 * parameters.seconds, counted_from_s=parameters.seconds / 5, advance=part,
        )  # fmt: skip
        for stream, own in zip(streams, times, strict=True):
            if own:
                yield response(stream.user, _POLICY_NAMES[queue], load, own)

    return over_cases(product(parameters.policies, parameters.loads), measure, advance)


def _two_streams(parameters: ShortAndLong, load: float) -> tuple[Stream, Stream]:
    slots = load * parameters.nodes * parameters.slots
    work = [tasks * task_s for tasks, task_s in (parameters.short, parameters.long)]
    short = parameters.short_share * work[0]
    long = (1 - parameters.short_share) * work[1]

    def stream(name: str, shape: tuple[int, float], share: float) -> Stream:
        tasks, task_s = shape
        return Stream(
            user=f"{name} jobs: {tasks} tasks of {task_s:g} s",
            demand=share * slots,
            tasks=tasks,
            task_s=task_s,
            until_s=parameters.seconds,
            options=JobOptions(task_s=task_s),
        )

    return (
        stream("short", parameters.short, short / (short + long)),
        stream("long", parameters.long, long / (short + long)),
    )


# --- soft constraints --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HotPartitions:
    """Tasks that read partitions with a skewed popularity."""

    nodes: Count = 100  # of `slots` slots each
    slots: Count = 4
    partitions: Count = 100  # each on `replicas` random nodes; a job reads `tasks` of them
    replicas: Count = 3
    skew: NotNegative = 0.4  # exponent of the Zipf distribution of reads
    tasks: Count = 10
    task_s: Positive = 0.1
    remote_factor: Positive = 1.5  # slowdown of a task on a node without its partition
    # How long a task waits for a node with its partition; None for ever, as in the paper.
    waits_ms: Annotated[tuple[NotNegative | None, ...], Some] = (None, 200.0, 50.0, 0.0)
    # Shares of slots that would be busy if all tasks ran locally.
    loads: Loads = (0.3, 0.5, 0.6, 0.7, 0.8)
    jobs: Count = 1200  # measured per point, after `warm_up` others
    warm_up: Natural = 300

    def __post_init__(self) -> None:
        if self.tasks > self.partitions:
            raise ValueError(f"tasks: a job reads as many partitions, of {self.partitions}")
        if self.replicas > self.nodes:
            raise ValueError(f"replicas: at most one on each of {self.nodes} nodes")


def soft_constraints(parameters: HotPartitions, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times by how long tasks wait for nodes with their data."""

    def measure(wait_ms: float | None, load: float, part: Advance) -> Iterator[Response]:
        jobs = _reading_jobs(parameters, wait_ms, load, seed)
        cluster = ExpressCluster(nodes=parameters.nodes, slots=parameters.slots, seed=seed)
        ended_s = run_for(cluster, jobs, math.inf, part)
        counted = [ended_s[each.job.job_id] for each in jobs[parameters.warm_up :]]
        name = "hard constraints" if wait_ms is None else f"soft after {wait_ms:g} ms"
        yield response("", name, load, counted)

    return over_cases(product(parameters.waits_ms, parameters.loads), measure, advance)


def _reading_jobs(
    parameters: HotPartitions, wait_ms: float | None, load: float, seed: int
) -> list[Arrival]:
    rng = np.random.default_rng(seed)
    weights = np.arange(1, parameters.partitions + 1) ** -parameters.skew
    homes = [
        tuple(f"n{node}" for node in rng.permutation(parameters.nodes)[: parameters.replicas])
        for _ in range(parameters.partitions)
    ]
    wait_s = None if wait_ms is None else wait_ms / 1000
    interval_s = parameters.tasks * parameters.task_s
    interval_s /= load * parameters.nodes * parameters.slots
    at_s, arrivals = START_S, []
    for number in range(parameters.warm_up + parameters.jobs):
        at_s += rng.exponential(interval_s)
        read = rng.choice(
            parameters.partitions, parameters.tasks, replace=False, p=weights / weights.sum()
        )
        tasks = tuple(
            TaskSpec(
                task_id,
                payload_of(parameters.task_s, homes[partition], parameters.remote_factor),
                homes[partition],
                wait_s,
            )
            for task_id, partition in enumerate(read.tolist())
        )
        start = StartJob(job_id=JobId(f"job{number}"), user="user", tasks=tasks)
        arrivals.append(Arrival(at_s, start))
    return arrivals


# --- a probe ratio that adapts -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Jobs of exponential tasks; each scheduler adapts the probe ratio to the load that it sees."""

    nodes: int = 10_000  # of one slot each
    tasks: int = 500
    task_s: float = 0.1
    schedulers: int = 10  # each knows only what its own reservations found
    # Idle slots per task that reservations should find, which takes `headroom / (1 - load)`
    # reservations.
    headroom: float = 1.1
    ratios: tuple[float, float] = (1.1, 6.0)  # minimum and maximum
    smoothing: float = 0.2  # weight of the latest job in a scheduler's estimate of the load
    fixed: float = 2.0  # probe ratio to compare with
    loads: tuple[float, ...] = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    jobs: int = 4000  # measured per point, after `warm_up` others
    warm_up: int = 2000


def adaptive_ratio(parameters: Adaptive, seed: int, advance: Advance) -> Sequence[Point]:
    """Response times and reservations per task, with fixed and adaptive probe ratio."""

    def measure(series: str, load: float, part: Advance) -> Iterator[Point]:
        times_s, ratio = _adapting(parameters, load, seed, adapts=series == "adaptive")
        yield from _percentiles(series, load, times_s)
        yield Point(panel="reservations a task", series=series, x=load, y=ratio)
        part(1.0)

    series = (f"d = {parameters.fixed:g}", "adaptive")
    rows = over_cases(product(series, parameters.loads), measure, advance)
    for load in parameters.loads:
        rows += _percentiles(NAMES["central"], load, _omniscient(parameters, load, seed))
    return rows


def _percentiles(series: str, load: float, times_s: Sequence[float]) -> list[Point]:
    median, p95 = (1000 * float(np.percentile(times_s, percent)) for percent in (50, 95))
    return [
        Point(panel="median response (ms)", series=series, x=load, y=median),
        Point(panel="95th percentile (ms)", series=series, x=load, y=p95),
    ]


def _jobs(parameters: Adaptive, load: float, seed: int) -> tuple[list[float], np.random.Generator]:
    rng = np.random.default_rng(seed)
    interval_s = parameters.tasks * parameters.task_s / (load * parameters.nodes)
    total = parameters.jobs + parameters.warm_up
    return np.cumsum(rng.exponential(interval_s, total)).tolist(), rng


def _omniscient(parameters: Adaptive, load: float, seed: int) -> list[float]:
    arrivals_s, rng = _jobs(parameters, load, seed)
    queue = CentralQueue(parameters.nodes, 0.0005)
    times_s = [
        queue.run(at_s, rng.exponential(parameters.task_s, parameters.tasks).tolist())
        for at_s in arrivals_s
    ]
    return times_s[parameters.warm_up :]


def _adapting(
    parameters: Adaptive, load: float, seed: int, *, adapts: bool
) -> tuple[list[float], float]:
    """Response times, and the mean probe ratio."""
    arrivals_s, rng = _jobs(parameters, load, seed)
    cluster = VectorCluster(parameters.nodes)
    estimates = [0.5] * parameters.schedulers
    times_s, ratios = [], []
    for number, at_s in enumerate(arrivals_s):
        scheduler = number % parameters.schedulers
        ratio = parameters.fixed
        if adapts:
            wanted = parameters.headroom / max(1e-3, 1 - estimates[scheduler])
            ratio = min(max(wanted, parameters.ratios[0]), parameters.ratios[1])
        count = min(parameters.nodes, policy.reservation_count(parameters.tasks, ratio))
        (probes,) = distinct(rng, parameters.nodes, count, 1)
        busy = cluster.busy_share(at_s, probes)
        estimates[scheduler] += parameters.smoothing * (busy - estimates[scheduler])
        task_times = rng.exponential(parameters.task_s, parameters.tasks)
        times_s.append(cluster.late_binding(at_s, probes, task_times))
        ratios.append(ratio)
    counted = ratios[parameters.warm_up :]
    return times_s[parameters.warm_up :], sum(counted) / len(counted)


def _of_jobs(kind: str, policy: str, load: float) -> Reading:
    return value(_POLICY_NAMES[policy], load, f"{kind} jobs")


def _shorter(load: float) -> Finding:
    panel = "median response"
    less = percent_under(value("adaptive", load, panel), value("d = 2", load, panel))
    return Finding(f"median with the adaptive ratio below d = 2, {load:.0%} load (%)", "", less)


_FEW_PARTITIONS = HotPartitions(
    nodes=10, slots=2, partitions=20, tasks=4, waits_ms=(None, 50.0), loads=(0.6,),
    jobs=30, warm_up=5,
)  # fmt: skip

EXPERIMENTS = (
    Experiment(
        name="sticky-srpt",
        title="Sticky probing and shortest remaining work first; 100 nodes of 4 slots",
        source="past the papers: Eagle's idea on Sparrow's machines",
        kind="simulated",
        parameters=ShortAndLong(),
        quick=ShortAndLong(nodes=10, slots=2, loads=(0.9,), seconds=3.0),
        run=sticky_srpt,
        chart=Chart(x="Load", log_y=True, same_y=False),
        findings=tuple(
            Finding(
                f"median of {kind} jobs, Sparrow against SRPT, {load:.0%} load (times)",
                "",
                times(_of_jobs(kind, "fifo", load), _of_jobs(kind, "srpt", load)),
                "{:.2f}",
            )
            for kind, load in (("short", 0.9), ("short", 0.95), ("long", 0.9), ("long", 0.95))
        ),
    ),
    Experiment(
        name="soft-constraints",
        title="Delay scheduling: 100 partitions, 3 replicas, some hotter; remote tasks take 1.5 x",
        source="past the papers: sketched in Sparrow, section 8",
        kind="simulated",
        parameters=HotPartitions(),
        quick=_FEW_PARTITIONS,
        run=soft_constraints,
        chart=Chart(x="Load", log_y=True),
        findings=tuple(
            Finding(
                f"hard constraints against soft after {wait}, 80 % load, {name} (times)",
                "",
                times(
                    value("hard constraints", 0.8, field=field),
                    value(f"soft after {wait}", 0.8, field=field),
                ),
            )
            for wait in ("50 ms", "200 ms")
            for name, field in (("median", "p50_ms"), ("95th percentile", "p95_ms"))
        ),
    ),
    Experiment(
        name="adaptive-ratio",
        title="A probe ratio that adapts to load: 10,000 slots, jobs of 500 exponential tasks",
        source="past the papers: Tarcil's idea with what schedulers see anyway",
        kind="simulated",
        parameters=Adaptive(),
        quick=Adaptive(nodes=200, tasks=10, loads=(0.5, 0.9), jobs=60, warm_up=20),
        run=adaptive_ratio,
        chart=Chart(x="Load", y="", style="lines", same_y=False),
        findings=(
            _shorter(0.9),
            _shorter(0.95),
            Finding("reservations a task at 10 % load", "", value("adaptive", 0.1, "reservations")),
        ),
    ),
)
