"""The papers' formulas beside simulation: idle slots found, mean responses, idle time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Annotated

import numpy as np

from minishark_lab.harness.experiment import Advance, Chart, Experiment, over_cases
from minishark_lab.harness.findings import Finding, value
from minishark_lab.harness.parameters import Count, Load, Loads, NotNegative, Ratios, Some
from minishark_lab.harness.rows import Point, Row, mean_and_interval
from minishark_lab.models import vector
from minishark_lab.models.analysis import (
    late_binding_idle_share,
    mean_response,
    zero_wait_probability,
)
from minishark_lab.models.meter import Meter
from minishark_lab.simulator.cluster import quiet_cluster
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import Workload, make_jobs, run_jobs
from minishark_lab.simulator.world import World

_AT_ONCE = Network(0.0, 0.0)  # the formulas assume no network delay
_NAMES = {"random": "random", "per_task": "per-task", "batch": "batch", "sparrow": "late binding"}


@dataclass(frozen=True)
class ZeroWait:
    """Jobs of constant tasks; see `zero_wait`."""

    # Tasks of a job and slots of a node, for each panel.
    shapes: Annotated[tuple[tuple[Count, Count], ...], Some] = ((10, 1), (100, 1), (10, 4))
    loads: Loads = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    nodes: Count = 10_000  # to simulate; the formulas hold for infinitely many
    jobs: Count = 10_000  # per point, after `warm_up` task times
    warm_up: NotNegative = 8.0


def zero_wait(parameters: ZeroWait, seed: int, advance: Advance) -> Sequence[Point]:
    """The probability that no task of a job waits, by formula and by simulation."""
    placements = ("random", "per_task", "batch")

    def measure(shape: tuple[int, int], part: Advance) -> Iterator[Point]:
        tasks, slots = shape
        panel = f"{tasks} tasks a job, {slots} slot{'s' * (slots > 1)} a node"
        for placement, load in product(placements, _curve(parameters.loads)):
            share = zero_wait_probability(placement, load, tasks, slots=slots)
            yield Point(panel=panel, series=_NAMES[placement], x=load, y=share)
        for placement, load in product(placements, parameters.loads):
            yield _no_wait(parameters, panel, (placement, load, tasks, slots), seed)
            part(1 / len(placements) / len(parameters.loads))

    return over_cases(product(parameters.shapes), measure, advance)


def _curve(loads: Sequence[float]) -> list[float]:
    """Loads for which to evaluate a formula: a smooth curve, and those that are simulated."""
    return sorted({step / 50 for step in range(1, 50)} | set(loads))


def _no_wait(
    parameters: ZeroWait, panel: str, case: tuple[str, float, int, int], seed: int
) -> Point:
    placement, load, tasks, slots = case
    # Batch sampling of the analysis finds idle slots wherever they are: that is late binding.
    policy = "sparrow" if placement == "batch" else placement
    warm_up = int(parameters.warm_up * load * parameters.nodes * slots / tasks)
    workload = Workload(
        load=load,
        jobs=warm_up + parameters.jobs,
        tasks=tasks,
        task_s=1.0,
        distribution="constant",
        placement=policy,
    )
    times = vector.response_times_s(
        workload, nodes=parameters.nodes, slots=slots, seed=seed, network=_AT_ONCE
    )
    waited = times[-parameters.jobs :] > 1.0 + 1e-6
    share, half = mean_and_interval((~waited).astype(float).tolist())
    low, high = _wilson(share, parameters.jobs)
    low, high = min(low, share - half), max(high, share + half)
    return Point(
        panel=panel,
        series=f"{_NAMES[placement]}, simulated",
        x=load,
        y=share,
        low=max(0.0, low),
        high=high,
    )


def _wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share, also where it is 0 or 1."""
    z = 1.96
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = share * (1 - share) / count + z * z / (4 * count * count)
    half = z * math.sqrt(spread) / (1 + z * z / count)
    return centre - half, centre + half


@dataclass(frozen=True)
class MeanResponse:
    """Jobs of one exponential task of mean 1 on `nodes` nodes of one slot."""

    loads: Loads = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
    # The formulas hold for infinitely many. With random placement the queues are independent, but
    # take far longer to reach a steady state, so it has `random_nodes` and `random_jobs`.
    nodes: Count = 1000
    # Divided by the square of the idle share: at 90 % load, 100 times as many. The first fifth is
    # not measured.
    jobs: Count = 16_000
    random_nodes: Count = 10
    random_jobs: Count = 20_000


def mean_responses(parameters: MeanResponse, seed: int, advance: Advance) -> Sequence[Point]:
    """M/M/1, shortest of two queues, least work of two; by formula and by simulation."""
    placements = ("random", "per_task", "sparrow")

    def measure(placement: str, at: tuple[int, float], part: Advance) -> Iterator[Point]:
        number, load = at
        nodes, jobs = parameters.nodes, parameters.jobs
        if placement == "random":
            nodes, jobs = parameters.random_nodes, parameters.random_jobs
        jobs = round(jobs / (1 - load) ** 2)
        workload = Workload(load=load, jobs=jobs, tasks=1, task_s=1.0, placement=placement)
        own_seed = seed * len(parameters.loads) + number  # or all points would err alike
        times = vector.response_times_s(workload, nodes=nodes, seed=own_seed, network=_AT_ONCE)
        mean, half = mean_and_interval(times[len(times) // 5 :].tolist())
        series = f"{_NAMES[placement]}, simulated"
        yield Point(panel="", series=series, x=load, y=mean, low=mean - half, high=mean + half)
        part(1.0)

    formulas = [
        Point(panel="", series=_NAMES[placement], x=load, y=mean_response(placement, load))
        for placement, load in product(placements, _curve(parameters.loads))
        if load <= max(0.9, *parameters.loads)  # further on, M/M/1 would dwarf all else
    ]
    cases = product(placements, enumerate(parameters.loads))
    return [*formulas, *over_cases(cases, measure, advance)]


@dataclass(frozen=True)
class IdleTime:
    """Jobs of ten 100 ms tasks on nodes of one slot; a message takes `delay_ms`."""

    ratios: Ratios = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
    load: Load = 0.8
    nodes: Count = 100
    jobs: Count = 300
    delay_ms: NotNegative = 0.5


def idle_time(parameters: IdleTime, seed: int, advance: Advance) -> Sequence[Point]:
    """The share of slot time that late binding spends waiting for answers."""

    def measure(cancellation: bool, ratio: float, part: Advance) -> Iterator[Point]:
        name = f"{'with' if cancellation else 'without'} cancellation, simulated"
        share = _idle_share(parameters, ratio, seed, cancellation=cancellation)
        yield Point(panel="", series=name, x=ratio, y=100 * share)
        part(1.0)

    round_trip_s = 2 * parameters.delay_ms / 1000
    bounds = (late_binding_idle_share(each, round_trip_s, 0.1) for each in parameters.ratios)
    rows = [
        Point(panel="", series="bound of the paper", x=ratio, y=100 * bound)
        for ratio, bound in zip(parameters.ratios, bounds, strict=True)
    ]
    return [*rows, *over_cases(product((False, True), parameters.ratios), measure, advance)]


def _idle_share(
    parameters: IdleTime, ratio: float, seed: int, *, cancellation: bool
) -> float:  # fmt: skip
    cluster = quiet_cluster(
        World(seed, Network(parameters.delay_ms / 1000)), nodes=parameters.nodes, schedulers=4,
        cancellation=cancellation,
    )  # fmt: skip
    meter = Meter(cluster.world)
    workload = Workload(
        load=parameters.load, jobs=parameters.jobs, distribution="constant", probe_ratio=ratio
    )
    run_jobs(cluster, make_jobs(workload, cluster.nodes, 1, Random(seed)))
    return meter.waited_s / (meter.bound * workload.task_s + meter.waited_s)


def agreement(rows: Sequence[Point], tolerance: float = 0.0) -> float:
    """The share of simulated points whose interval, widened by `tolerance`, holds the formula."""
    derived: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for row in rows:
        if math.isnan(row.low):
            xs, ys = derived.setdefault((row.panel, row.series), ([], []))
            xs.append(row.x)
            ys.append(row.y)
    inside = []
    for row in rows:
        if not math.isnan(row.low):
            xs, ys = derived[row.panel, row.series.removesuffix(", simulated")]
            expected = float(np.interp(row.x, xs, ys))
            inside.append(row.low - tolerance <= expected <= row.high + tolerance)
    if not inside:
        raise LookupError("nothing was simulated")
    return sum(inside) / len(inside)


def _agreeing(rows: Sequence[Row]) -> float:
    return 100 * agreement([row for row in rows if isinstance(row, Point)])


_AGREEMENT = Finding("simulated points with the formula in their 95 % interval (%)", "", _agreeing)

EXPERIMENTS = (
    Experiment(
        name="zero-wait",
        title="Probability that no task of a job waits",
        source="Batch Sampling, section 4; Sparrow, section 5",
        kind="paper",
        parameters=ZeroWait(),
        quick=ZeroWait(shapes=((10, 1),), loads=(0.2, 0.5), nodes=1000, jobs=200, warm_up=5.0),
        run=zero_wait,
        chart=Chart(x="Load", y="Probability", style="lines"),
        findings=(_AGREEMENT,),
    ),
    Experiment(
        name="mean-response",
        title="Mean response time of single exponential tasks of mean 1",
        source="M/M/1; Mitzenmacher's two choices; the less loaded of two queues",
        kind="paper",
        parameters=MeanResponse(),
        quick=MeanResponse(loads=(0.5, 0.8), nodes=100, jobs=200, random_nodes=20, random_jobs=200),
        run=mean_responses,
        chart=Chart(x="Load", y="Mean response time", style="lines"),
        findings=(_AGREEMENT,),
    ),
    Experiment(
        name="idle-time",
        title="Slot time that late binding leaves idle",
        source="Batch Sampling, section 4.4",
        kind="paper",
        parameters=IdleTime(),
        quick=IdleTime((1.0, 2.0), nodes=30, jobs=20),
        run=idle_time,
        chart=Chart(x="Probe ratio", y="Idle (% of slot time)", style="lines"),
        findings=(
            Finding(
                "idle at d = 2 without cancellation (%)",
                "2",
                value("without cancellation, simulated", 2.0),
                "{:.2f}",
            ),
            Finding(
                "idle at d = 2 with cancellation (%)",
                "",
                value("with cancellation, simulated", 2.0),
                "{:.2f}",
            ),
        ),
    ),
)
