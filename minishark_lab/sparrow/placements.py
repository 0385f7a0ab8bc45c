"""Placement on thousands of nodes: the papers' simulations, on the vectorized simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated

import numpy as np
from msgspec import Meta, structs

from minishark_lab.harness.experiment import Advance, Chart, Experiment, Mark, over_cases
from minishark_lab.harness.findings import (
    Finding,
    Reading,
    constant,
    percent_over,
    percent_under,
    times,
    value,
)
from minishark_lab.harness.lengths import MEASURED, RunLength, run_length
from minishark_lab.harness.parameters import (
    Count,
    Counts,
    Flags,
    Load,
    Loads,
    Names,
    Positive,
    Ratio,
    Ratios,
    Some,
    check_names,
)
from minishark_lab.harness.rows import Response, response
from minishark_lab.models import vector
from minishark_lab.models.analysis import (
    pooled_relaxation_time,
    queue_relaxation_time,
    random_response_quantile,
    relaxation_time,
)
from minishark_lab.models.vector import ARRIVALS, DISTRIBUTIONS, VECTORIZED, VectorCluster, distinct
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import Workload


class _Names(dict[str, str]):
    """Series of placements; a plug-in is called by its own name."""

    def __missing__(self, placement: str) -> str:
        return placement


NAMES = _Names(
    central="omniscient",
    sparrow="batch + late binding",
    batch="batch sampling",
    batch_filling="batch filling",
    per_task="per-task sampling",
    random="random",
    known_idle="known idle nodes",
    adaptive="adaptive ratio",
    eagle="Eagle's placement",
    dodoor="Dodoor",
    prequal="Prequal",
    jiq="Join-Idle-Queue",
)
# The four placements that emulated and live experiments compare.
COMPARED = ("sparrow", "batch", "per_task", "random")
# Relaxation times while measuring: random placement measures thousands of queues at once.
_MEASURED = {"random": 0.5}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Jobs of equal size over a range of loads."""

    slots_in_all: Count = 10_000  # nodes times slots
    slots: Counts = (1,)  # of a node, one or several to compare
    tasks: Count = 500
    task_ms: Positive = 100.0  # their mean
    # Shares of slots that are busy.
    loads: Loads = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    placements: Names = ("central", "sparrow")
    ratios: Ratios = (2.0,)
    distributions: Names = ("exponential",)  # of task times, a panel each
    arrivals: Names = ("poisson",)  # of jobs, a panel each
    # Whether superfluous reservations are withdrawn; a panel each.
    cancellation: Flags = (True,)
    # Measured per point at least, after at least a quarter as many others. Where queues take long
    # to forget how the run began (`analysis.relaxation_time`), more, but at most `jobs_max` in all.
    jobs: Count = 2000
    jobs_max: Count = 200_000
    closed_form: bool = False  # whether to add that of random placement, for exponential tasks

    def __post_init__(self) -> None:
        check_names("placements", self.placements, VECTORIZED)
        check_names("distributions", self.distributions, tuple(DISTRIBUTIONS))
        check_names("arrivals", self.arrivals, tuple(ARRIVALS))
        if max(self.slots) > self.slots_in_all:
            raise ValueError(f"slots: a node has more than the {self.slots_in_all} slots in all")

    def run_length(self, placement: str, load: float, ratio: float) -> RunLength:
        """How many jobs are simulated, and how many of the first of them are not measured."""
        time = relaxation_time(placement, load, self.tasks, self.slots_in_all, ratio)
        return run_length(
            time * load * self.slots_in_all / self.tasks,
            jobs=self.jobs,
            jobs_max=self.jobs_max,
            measured=_MEASURED.get(placement, MEASURED),
        )


def _cases(sweep: Sweep) -> Iterator[tuple[str, str, int, bool, Workload]]:
    """Panel, series, slots of a node, cancellation and workload."""
    for distribution, arrivals, cancellation in _panels(sweep):
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


def _panels(sweep: Sweep) -> Iterator[tuple[str, str, bool]]:
    return product(sweep.distributions, sweep.arrivals, sweep.cancellation)


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
        length = sweep.run_length(workload.placement, workload.load, workload.probe_ratio)
        times_s = vector.response_times_s(
            structs.replace(workload, jobs=length.jobs),
            nodes=sweep.slots_in_all // slots, slots=slots, seed=seed, cancellation=cancellation,
            on_jobs=lambda jobs: part(jobs / length.jobs),
        )[length.warm_up :].tolist()  # fmt: skip
        settled = length.has_settled(times_s)
        yield response(panel, series, workload.load, times_s, settled=settled)

    return [*over_cases(_cases(sweep), measure, advance), *_closed_forms(sweep)]


def _closed_forms(sweep: Sweep) -> Iterator[Response]:
    """Random placement of exponential tasks, with the messages of a job but no collision of two."""
    if not sweep.closed_form or "random" not in sweep.placements or sweep.slots != (1,):
        return
    for distribution, arrivals, cancellation in _panels(sweep):
        if (distribution, arrivals) != ("exponential", "poisson"):
            continue
        panel = _panel(sweep, distribution, arrivals, cancellation=cancellation)
        for load in sweep.loads:
            p5, p50, p95 = (
                sweep.task_ms * random_response_quantile(load, sweep.tasks, share)
                + 3000 * Network().delay_s
                for share in (0.05, 0.5, 0.95)
            )
            yield Response(
                panel=panel, series="random, closed form", x=load, jobs=0, mean_ms=math.nan,
                ci_ms=math.nan, p5_ms=p5, p50_ms=p50, p95_ms=p95,
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Short jobs among long ones."""

    nodes: Count = 100
    slots: Counts = (4, 16)  # of a node, a panel each
    tasks: Count = 10
    short_ms: Positive = 100.0
    # How much longer the tasks of long jobs take, a line each.
    factors: Annotated[tuple[Positive, ...], Some] = (10.0, 100.0, 1000.0)
    long_shares: Annotated[tuple[Annotated[float, Meta(ge=0, lt=1)], ...], Some] = (
        0.0, 0.1, 0.2, 0.3, 0.4, 0.5,
    )  # fmt: skip
    load: Load = 0.8
    ratio: Ratio = 2.0
    # Measured per point at least, after at least a quarter as many others; as many as `lengths`
    # asks for, but at most `jobs_max` in all.
    jobs: Count = 20_000
    jobs_max: Count = 60_000

    def __post_init__(self) -> None:
        if round(self.ratio * self.tasks) > self.nodes:
            raise ValueError("tasks: a node can have only one of its reservations")

    def run_length(self, slots: int, factor: float, share: float) -> RunLength:
        """How many jobs are simulated, and how many of the first of them are not measured."""
        mean, square = 1 + share * (factor - 1), 1 + share * (factor * factor - 1)
        # In times of short tasks: of the work of jobs, all tasks of which take equally long, and of
        # tasks in queues, which forget as those of exponential ones would.
        work = pooled_relaxation_time(self.load, self.nodes * slots, self.tasks * square / mean)
        queue = queue_relaxation_time(self.load, self.ratio) * square / mean / 2
        every = mean * self.tasks / (self.load * self.nodes * slots)  # between jobs
        return run_length(max(work, queue) / every, jobs=self.jobs, jobs_max=self.jobs_max)


def short_among_long(mixture: Mixture, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of the short jobs."""

    def measure(slots: int, factor: float, share: float, part: Advance) -> Iterator[Response]:
        length = mixture.run_length(slots, factor, share)
        times_s = _short_times_s(mixture, length, slots, factor, share, seed)
        panel, series = f"{slots} slots a node", f"long tasks: {factor:g} x"
        settled = length.has_settled(times_s)
        yield response(panel, series, 100 * share, times_s, settled=settled)
        part(1.0)

    cases = product(mixture.slots, mixture.factors, mixture.long_shares)
    return over_cases(cases, measure, advance)


def _short_times_s(
    mixture: Mixture, length: RunLength, slots: int, factor: float, share: float, seed: int
) -> list[float]:
    rng = np.random.default_rng(seed)
    long = rng.random(length.jobs) < share
    task_s = np.where(long, factor, 1.0) * mixture.short_ms / 1000
    interval_s = task_s.mean() * mixture.tasks / (mixture.load * mixture.nodes * slots)
    arrivals_s = np.cumsum(rng.exponential(interval_s, length.jobs)).tolist()
    cluster = VectorCluster(mixture.nodes, slots)
    probes = distinct(rng, mixture.nodes, round(mixture.ratio * mixture.tasks), length.jobs)
    times_s = [
        cluster.late_binding(at_s, each, np.full(mixture.tasks, time_s))
        for at_s, each, time_s in zip(arrivals_s, probes, task_s.tolist(), strict=True)
    ]
    counted = zip(times_s[length.warm_up :], long[length.warm_up :].tolist(), strict=True)
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


def _over(series: str, load: float, factor: float, panel: str = "") -> Reading:
    """The paper's factor on one of our medians."""
    return lambda rows: factor * value(series, load, panel)(rows)


FIVE = ("random", "per_task", "batch", "sparrow", "central")
SIX = ("random", "per_task", "batch", "batch_filling", "sparrow", "central")
_RUNS = 4
_TINY = Sweep(slots_in_all=200, tasks=10, loads=(0.5, 0.9), jobs=60, jobs_max=80)

EXPERIMENTS = (
    Experiment(
        name="probe-ratio-10k",
        title="Response times by probe ratio: {slots_in_all:,} slots, jobs of {tasks} "
        "{distributions} tasks of {task_ms:g} ms",
        source="Batch Sampling, figure 5",
        kind="simulated",
        parameters=Sweep(
            ratios=(1.0, 1.2, 1.5, 2.0, 3.0), cancellation=(False, True), jobs_max=120_000
        ),
        runs=_RUNS,
        quick=replace(_TINY, ratios=(1.2, 2.0)),
        run=sweep_responses,
        chart=Chart(
            x="Load (share of busy slots)",
            log_y=True,
            marks=(
                Mark(0.6, _over(NAMES["central"], 0.6, 1.04), "paper, d = 2", "without"),
                Mark(0.95, _over(NAMES["central"], 0.95, 1.33), "paper, d = 2", "without"),
            ),
        ),
        findings=(
            _over_omniscient("d = 2", 0.6, "within 4", "without"),
            _over_omniscient("d = 2", 0.95, "within 33", "without"),
            _over_omniscient("d = 2", 0.95, "", "with "),
        ),
    ),
    Experiment(
        name="techniques",
        title="Response times by placement: {slots_in_all:,} slots, jobs of {tasks} tasks of "
        "{task_ms:g} ms",
        source="Batch Sampling, figure 6; Sparrow, figure 3",
        kind="simulated",
        parameters=Sweep(
            placements=SIX,
            distributions=("exponential", "constant", "pareto", "bimodal"),
            loads=(0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
            closed_form=True,
        ),
        runs=_RUNS,
        quick=replace(
            _TINY, placements=SIX, distributions=("exponential", "pareto"), closed_form=True
        ),
        run=sweep_responses,
        chart=Chart(
            x="Load (share of busy slots)",
            log_y=True,
            same_y=False,
            marks=(
                Mark(0.9, _over(NAMES["central"], 0.9, 1.14), "paper, late binding", "exp"),
                Mark(0.9, _over(NAMES["central"], 0.9, 1.75), "paper, per-task", "exp"),
                Mark(0.9, _over(NAMES["central"], 0.9, 5 * 1.75), "paper, random", "exp"),
            ),
        ),
        findings=(
            _faster("per_task", "random", 0.9, "5", "exponential"),
            _over_omniscient(NAMES["per_task"], 0.9, "75", "exponential"),
            _over_omniscient(NAMES["batch"], 0.9, "over 50", "exponential"),
            _over_omniscient(NAMES["sparrow"], 0.9, "within 14", "exponential"),
            _over_omniscient(NAMES["sparrow"], 0.95, "", "exponential"),
            _faster("batch", "per_task", 0.9, "over 1.1", "exponential"),
            _faster("sparrow", "batch", 0.9, "1.5", "exponential"),
            _faster("sparrow", "batch", 0.95, "about 2", "exponential"),
            _faster("sparrow", "per_task", 0.95, "about 2", "exponential"),
            _faster("sparrow", "batch", 0.9, "2", "constant"),
            _faster("sparrow", "per_task", 0.95, "3", "pareto"),
        ),
    ),
    Experiment(
        name="slots",
        title="Response times by slots a node: {slots_in_all:,} slots in all, jobs of {tasks} "
        "{distributions} tasks of {task_ms:g} ms",
        source="Batch Sampling, figure 7",
        kind="simulated",
        parameters=Sweep(
            slots=(1, 2, 4),
            placements=("sparrow",),
            loads=(0.5, 0.7, 0.8, 0.9, 0.95),
            cancellation=(False, True),
        ),
        runs=6,
        quick=replace(_TINY, slots=(1, 4), placements=("sparrow",)),
        run=sweep_responses,
        chart=Chart(
            x="Load (share of busy slots)",
            marks=(
                Mark(
                    0.95,
                    _over(f"{NAMES['sparrow']}, 1 slot", 0.95, 0.8, "without"),
                    "paper, 4 slots (below)",
                    "without",
                ),
            ),
        ),
        findings=(_with_four_slots("without", "over 20"), _with_four_slots("with ", "")),
    ),
    Experiment(
        name="bursts",
        title="Response times when jobs come in bursts (squared coefficient of variation 9): "
        "{slots_in_all:,} slots, jobs of {tasks} {distributions} tasks of {task_ms:g} ms",
        source="past the papers",
        kind="simulated",
        parameters=Sweep(
            slots_in_all=1000,
            tasks=50,
            placements=("per_task", "batch", "sparrow", "central"),
            arrivals=("poisson", "bursty"),
            loads=(0.3, 0.5, 0.7, 0.8, 0.9),
            jobs=12_000,
        ),
        runs=8,
        quick=replace(_TINY, placements=("sparrow",), arrivals=("poisson", "bursty")),
        run=sweep_responses,
        chart=Chart(x="Load (share of busy slots)"),
    ),
    Experiment(
        name="probe-ratio",
        title="Response times by probe ratio: {slots_in_all} slots, {slots} a node, jobs of "
        "{tasks} {distributions} tasks of {task_ms:g} ms",
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
            jobs=20_000,
        ),
        runs=8,
        quick=replace(_TINY, ratios=(1.1, 2.0), distributions=("constant",)),
        run=sweep_responses,
        chart=Chart(x="Load (share of busy slots)", log_y=True),
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
        title="Short jobs ({tasks} tasks of {short_ms:g} ms) among long ones, at {load:.0%} load "
        "of {nodes} nodes",
        source="Sparrow, figure 13",
        kind="simulated",
        parameters=Mixture(),
        runs=8,
        quick=Mixture(
            nodes=25, slots=(4,), factors=(10.0,), long_shares=(0.0, 0.5), jobs=100, jobs_max=120
        ),
        run=short_among_long,
        chart=Chart(x="Long jobs (%)", log_y=True),
        findings=(
            Finding(
                "median over 100 ms, 16 slots, half of the jobs 1000 times longer (%)",
                "within 11",
                percent_over(value("long tasks: 1000 x", 50.0, "16"), constant(100.0)),
            ),
        ),
    ),
)
