"""Placement on thousands of nodes: the papers' simulations, on the vectorized simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from msgspec import structs

from sparrow_core.lab.experiment import Advance, Chart, Experiment, over_cases
from sparrow_core.lab.findings import Finding, percent_over, percent_under, times, value
from sparrow_core.lab.rows import Response, response
from sparrow_core.sim import vector
from sparrow_core.sim.vector import VectorCluster, distinct
from sparrow_core.sim.workload import Workload


class _Names(dict[str, str]):
    """Series of placements; a plug-in is called by its own name."""

    def __missing__(self, placement: str) -> str:
        return placement


NAMES = _Names(
    central="omniscient",
    sparrow="batch + late binding",
    batch="batch sampling",
    per_task="per-task sampling",
    random="random",
)
# The four placements that emulated and live experiments compare.
COMPARED = ("sparrow", "batch", "per_task", "random")
# Queues under random placement take far longer to fill: a slot's relaxation time at 90 % load is
# 380 task times.
_RANDOM_FACTOR = 6


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Jobs of equal size over a range of loads."""

    slots_in_all: int = 10_000  # nodes times slots
    slots: tuple[int, ...] = (1,)  # of a node, one or several to compare
    tasks: int = 500
    task_ms: float = 100.0  # their mean
    # Shares of slots that are busy.
    loads: tuple[float, ...] = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    placements: tuple[str, ...] = ("central", "sparrow")
    ratios: tuple[float, ...] = (2.0,)
    distributions: tuple[str, ...] = ("exponential",)  # of task times, a panel each
    arrivals: tuple[str, ...] = ("poisson",)  # of jobs, a panel each
    # Whether superfluous reservations are withdrawn; a panel each.
    cancellation: tuple[bool, ...] = (True,)
    jobs: int = 4000  # measured per point, after `warm_up` others
    warm_up: int = 2000


def _cases(sweep: Sweep) -> Iterator[tuple[str, str, int, bool, Workload]]:
    """Panel, series, slots of a node, cancellation and workload."""
    panels = product(sweep.distributions, sweep.arrivals, sweep.cancellation)
    for distribution, arrivals, cancellation in panels:
        panel = _panel(sweep, distribution, arrivals, cancellation=cancellation)
        for placement, ratio, slots in product(sweep.placements, sweep.ratios, sweep.slots):
            if placement == "central" and ratio != sweep.ratios[0]:
                continue
            series = _series(sweep, placement, ratio, slots)
            for load in sweep.loads:
                workload = Workload(
                    load=load,
                    jobs=sweep.jobs,
                    tasks=sweep.tasks,
                    task_s=sweep.task_ms / 1000,
                    distribution=distribution,
                    placement=placement,
                    probe_ratio=ratio,
                    arrivals=arrivals,
                )
                yield panel, series, slots, cancellation, workload


def _panel(sweep: Sweep, distribution: str, arrivals: str, *, cancellation: bool) -> str:
    parts = []
    if len(sweep.distributions) > 1:
        parts.append(f"{distribution} tasks")
    if len(sweep.arrivals) > 1:
        parts.append(f"{arrivals} arrivals")
    if len(sweep.cancellation) > 1:
        parts.append(f"{'with' if cancellation else 'without'} cancellation")
    return ", ".join(parts)


def _series(sweep: Sweep, placement: str, ratio: float, slots: int) -> str:
    if placement != "central" and len(sweep.ratios) > 1:
        return f"d = {ratio:g}"
    name = NAMES[placement]
    return f"{name}, {slots} slot{'s' * (slots > 1)}" if len(sweep.slots) > 1 else name


def sweep_responses(sweep: Sweep, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times at each load, for each placement, ratio, slots and distribution."""

    def measure(
        panel: str, series: str, slots: int, cancellation: bool, workload: Workload, part: Advance
    ) -> Iterator[Response]:
        factor = _RANDOM_FACTOR if workload.placement == "random" else 1
        total = (sweep.jobs + sweep.warm_up) * factor
        times_s = vector.response_times_s(
            structs.replace(workload, jobs=total),
            nodes=sweep.slots_in_all // slots, slots=slots, seed=seed, cancellation=cancellation,
            on_jobs=lambda jobs: part(jobs / total),
        )  # fmt: skip
        counted = times_s[sweep.warm_up * factor :].tolist()
        yield response(panel, series, workload.load, counted)

    return over_cases(_cases(sweep), measure, advance)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Short jobs among long ones."""

    nodes: int = 100
    slots: tuple[int, ...] = (4, 16)  # of a node, a panel each
    tasks: int = 10
    short_ms: float = 100.0
    # How much longer the tasks of long jobs take, a line each.
    factors: tuple[float, ...] = (10.0, 100.0, 1000.0)
    long_shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # shares of jobs that are long
    load: float = 0.8
    ratio: float = 2.0
    jobs: int = 20_000  # measured per point, after `warm_up` others
    warm_up: int = 10_000


def short_among_long(mixture: Mixture, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of the short jobs."""

    def measure(slots: int, factor: float, share: float, part: Advance) -> Iterator[Response]:
        times_s = _short_times_s(mixture, slots, factor, share, seed)
        yield response(f"{slots} slots a node", f"long tasks: {factor:g} x", 100 * share, times_s)
        part(1.0)

    cases = product(mixture.slots, mixture.factors, mixture.long_shares)
    return over_cases(cases, measure, advance)


def _short_times_s(
    mixture: Mixture, slots: int, factor: float, share: float, seed: int
) -> list[float]:
    rng = np.random.default_rng(seed)
    total = mixture.jobs + mixture.warm_up
    long = rng.random(total) < share
    task_s = np.where(long, factor, 1.0) * mixture.short_ms / 1000
    interval_s = task_s.mean() * mixture.tasks / (mixture.load * mixture.nodes * slots)
    arrivals_s = np.cumsum(rng.exponential(interval_s, total)).tolist()
    cluster = VectorCluster(mixture.nodes, slots)
    probes = distinct(rng, mixture.nodes, round(mixture.ratio * mixture.tasks), total)
    times_s = [
        cluster.late_binding(at_s, each, np.full(mixture.tasks, time_s))
        for at_s, each, time_s in zip(arrivals_s, probes, task_s.tolist(), strict=True)
    ]
    counted = zip(times_s[mixture.warm_up :], long[mixture.warm_up :].tolist(), strict=True)
    return [time for time, is_long in counted if not is_long]


def _over_omniscient(series: str, load: float, paper: str, panel: str) -> Finding:
    what = f"median of {series} over omniscient, {load:.0%} load, {panel.strip()}"
    if panel.startswith("with"):
        what += " cancellation"
    over = percent_over(value(series, load, panel), value(NAMES["central"], load, panel))
    return Finding(f"{what} (%)", paper, over)


def _faster(better: str, worse: str, load: float, paper: str, tasks: str) -> Finding:
    what = f"{NAMES[better]} against {NAMES[worse]}, {load:.0%} load, {tasks} tasks (times)"
    ratio = times(value(NAMES[worse], load, tasks), value(NAMES[better], load, tasks))
    return Finding(what, paper, ratio)


def _with_four_slots(panel: str, paper: str) -> Finding:
    one, four = (f"{NAMES['sparrow']}, {slots}" for slots in ("1 slot", "4 slots"))
    lower = percent_under(value(four, 0.95, panel), value(one, 0.95, panel))
    what = f"median with 4 slots a node below 1, 95 % load, {panel.strip()} cancellation (%)"
    return Finding(what, paper, lower)


FIVE = ("random", "per_task", "batch", "sparrow", "central")
_TINY = Sweep(slots_in_all=200, tasks=10, loads=(0.5, 0.9), jobs=60, warm_up=20)

EXPERIMENTS = (
    Experiment(
        name="probe-ratio-10k",
        title="Response times by probe ratio: 10,000 slots, jobs of 500 exponential 100 ms tasks",
        source="Batch Sampling, figure 5",
        kind="simulated",
        parameters=Sweep(
            ratios=(1.0, 1.2, 1.5, 2.0, 3.0), cancellation=(False, True), jobs=10_000, warm_up=2500
        ),
        quick=replace(_TINY, ratios=(1.2, 2.0)),
        run=sweep_responses,
        chart=Chart(x="Load"),
        findings=(
            _over_omniscient("d = 2", 0.6, "within 4", "without"),
            _over_omniscient("d = 2", 0.95, "within 33", "without"),
            _over_omniscient("d = 2", 0.95, "", "with "),
        ),
    ),
    Experiment(
        name="techniques",
        title="Response times by placement: 10,000 slots, jobs of 500 tasks of 100 ms",
        source="Batch Sampling, figure 6; Sparrow, figure 3",
        kind="simulated",
        parameters=Sweep(
            placements=FIVE,
            distributions=("exponential", "constant", "pareto", "bimodal"),
            loads=(0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
            jobs=3000,
            warm_up=2000,
        ),
        quick=replace(_TINY, placements=FIVE, distributions=("exponential", "pareto")),
        run=sweep_responses,
        chart=Chart(x="Load", log_y=True, same_y=False),
        findings=(
            _faster("per_task", "random", 0.9, "5", "exponential"),
            _over_omniscient(NAMES["sparrow"], 0.9, "within 14", "exponential"),
            _faster("sparrow", "batch", 0.95, "about 2", "exponential"),
            _faster("sparrow", "per_task", 0.95, "about 2", "exponential"),
            _faster("sparrow", "batch", 0.9, "2", "constant"),
            _faster("sparrow", "per_task", 0.95, "3", "pareto"),
        ),
    ),
    Experiment(
        name="slots",
        title="Response times by slots a node: 10,000 slots in all, jobs of 500 exponential tasks",
        source="Batch Sampling, figure 7",
        kind="simulated",
        parameters=Sweep(
            slots=(1, 2, 4),
            placements=("sparrow",),
            loads=(0.5, 0.7, 0.8, 0.9, 0.95),
            cancellation=(False, True),
            jobs=40_000,
            warm_up=10_000,
        ),
        quick=replace(_TINY, slots=(1, 4), placements=("sparrow",)),
        run=sweep_responses,
        chart=Chart(x="Load"),
        findings=(_with_four_slots("without", "over 20"), _with_four_slots("with ", "")),
    ),
    Experiment(
        name="bursts",
        title="Response times when jobs come in bursts (squared coefficient of variation 9)",
        source="past the papers",
        kind="simulated",
        parameters=Sweep(
            slots_in_all=1000,
            tasks=50,
            placements=("per_task", "batch", "sparrow", "central"),
            arrivals=("poisson", "bursty"),
            loads=(0.3, 0.5, 0.7, 0.8, 0.9),
            jobs=12_000,
            warm_up=3000,
        ),
        quick=replace(_TINY, placements=("sparrow",), arrivals=("poisson", "bursty")),
        run=sweep_responses,
        chart=Chart(x="Load"),
    ),
    Experiment(
        name="probe-ratio",
        title="Response times by probe ratio: 100 nodes of 4 slots, jobs of ten 100 ms tasks",
        source="Sparrow, figure 12",
        kind="simulated",
        parameters=Sweep(
            slots_in_all=400,
            slots=(4,),
            tasks=10,
            placements=("sparrow",),
            ratios=(1.0, 1.1, 1.2, 1.5, 2.0, 3.0),
            distributions=("constant",),
            loads=(0.5, 0.7, 0.8, 0.9, 0.95),
            jobs=10_000,
            warm_up=2000,
        ),
        quick=replace(_TINY, ratios=(1.1, 2.0), distributions=("constant",)),
        run=sweep_responses,
        chart=Chart(x="Load"),
        findings=(
            Finding(
                "median with d = 1.5 over d = 2 at 80 % load (%)",
                "nearly as good",
                percent_over(value("d = 1.5", 0.8), value("d = 2", 0.8)),
            ),
        ),
    ),
    Experiment(
        name="heterogeneity",
        title="Short jobs (ten 100 ms tasks) among long ones, at 80 % load of 100 nodes",
        source="Sparrow, figure 13",
        kind="simulated",
        parameters=Mixture(),
        quick=Mixture(
            nodes=25, slots=(4,), factors=(10.0,), long_shares=(0.0, 0.5), jobs=100, warm_up=20
        ),
        run=short_among_long,
        chart=Chart(x="Long jobs (%)", log_y=True),
        findings=(
            Finding(
                "median over 100 ms, 16 slots, half of the jobs 1000 times longer (%)",
                "within 11",
                percent_over(value("long tasks: 1000 x", 50.0, "16"), lambda _: 100.0),
            ),
        ),
    ),
)
