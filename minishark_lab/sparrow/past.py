"""Placements that remember, beside late binding and an omniscient scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random

import numpy as np

from minishark_lab.harness.experiment import Advance, Chart, Experiment, over_cases
from minishark_lab.harness.findings import Finding, percent_over, value
from minishark_lab.harness.lengths import RunLength, run_length
from minishark_lab.harness.parameters import (
    Count,
    Counts,
    Loads,
    Names,
    NotNegative,
    Positive,
    Ratio,
    check_names,
    check_placements,
)
from minishark_lab.harness.rows import Point
from minishark_lab.models.analysis import relaxation_time
from minishark_lab.models.express import ExpressCluster
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import (
    DISTRIBUTIONS,
    Workload,
    central_response_times_s,
    make_jobs,
)
from minishark_lab.sparrow.placements import NAMES
from sparrow_core.protocol.ids import NodeName

MEDIAN, P95, MESSAGES = "median response (ms)", "95th percentile (ms)", "messages a task"


@dataclass(frozen=True, kw_only=True)
class Past:
    """Jobs of equal size on nodes of one slot, placed by several schedulers."""

    nodes: Count = 10_000
    tasks: Count = 500
    task_ms: Positive = 100.0
    distribution: str = "exponential"  # of task times
    loads: Loads = (0.6, 0.8, 0.9, 0.95)
    schedulers: Counts = (10,)  # among which jobs are dealt; each remembers what it has seen itself
    placements: Names = ("central", "sparrow", "adaptive", "known_idle", "dodoor", "prequal")
    ratio: Ratio = 2.0  # of placements that do not choose it themselves
    heartbeat_ms: NotNegative = 50.0  # for `dodoor`; 0 for never
    # Measured per point at least, after at least a quarter as many others; as many as `lengths`
    # asks for, but at most `jobs_max` in all.
    jobs: Count = 1200
    jobs_max: Count = 12_000

    def __post_init__(self) -> None:
        check_names("distribution", (self.distribution,), tuple(DISTRIBUTIONS))
        check_placements(self.placements, ("central",))

    def run_length(self, load: float) -> RunLength:
        """How many jobs are simulated, and how many of the first of them are not measured."""
        time = relaxation_time("sparrow", load, self.tasks, self.nodes, self.ratio)
        relaxation = time * load * self.nodes / self.tasks
        return run_length(relaxation, jobs=self.jobs, jobs_max=self.jobs_max)


def past_sparrow(parameters: Past, seed: int, advance: Advance) -> Sequence[Point]:
    """Response times and messages by load, or by the number of schedulers if there are several."""
    by_load = len(parameters.schedulers) == 1

    def measure(placement: str, load: float, schedulers: int, part: Advance) -> Iterator[Point]:
        length = parameters.run_length(load)
        times_s, messages = _run(parameters, placement, load, length.jobs, schedulers, seed)
        times_s = times_s[length.warm_up :]
        settled = length.has_settled(times_s)
        x, series = load if by_load else schedulers, NAMES[placement]
        for panel, percent in ((MEDIAN, 50), (P95, 95)):
            y = 1000 * float(np.percentile(times_s, percent))
            yield Point(panel=panel, series=series, x=x, y=y, settled=settled)
        yield Point(panel=MESSAGES, series=series, x=x, y=messages, settled=settled)
        part(1.0)

    cases = product(parameters.placements, parameters.loads, parameters.schedulers)
    return over_cases(cases, measure, advance)


def _run(
    parameters: Past, placement: str, load: float, jobs: int, schedulers: int, seed: int
) -> tuple[list[float], float]:
    """Response times of all jobs; messages a task between schedulers and nodes but results."""
    workload = Workload(
        load=load, jobs=jobs, tasks=parameters.tasks,
        task_s=parameters.task_ms / 1000, distribution=parameters.distribution,
        placement=placement, probe_ratio=parameters.ratio,
    )  # fmt: skip
    names = [NodeName(f"n{number}") for number in range(parameters.nodes)]
    # The same jobs under every placement. Tasks of less than a millisecond would be fetched ahead.
    arrivals = make_jobs(workload, names, 1, Random(f"past {seed}"))
    if placement == "central":
        times_s = central_response_times_s(arrivals, parameters.nodes, Network().delay_s)
        return times_s, 1.0  # a message to start each task
    heartbeat_s = parameters.heartbeat_ms / 1000 if placement == "dodoor" else 0.0
    cluster = ExpressCluster(
        nodes=parameters.nodes, seed=seed, schedulers=schedulers, heartbeat_s=heartbeat_s or None
    )
    cluster.run(arrivals)
    ended = [cluster.ended_s[each.job.job_id] for each in arrivals]
    messages = (cluster.messages + cluster.heartbeats) / (jobs * parameters.tasks)
    return ended, messages


def _over_omniscient(placement: str, x: float) -> Finding:
    over = percent_over(value(NAMES[placement], x, MEDIAN), value(NAMES["central"], x, MEDIAN))
    at = f"{x:.0%} load" if x < 1 else f"{x:g} scheduler{'s' * (x > 1)}"
    return Finding(f"median of {NAMES[placement]} over omniscient, {at} (%)", "", over)


def _messages(placement: str, x: float) -> Finding:
    at = f"{x:.0%} load" if x < 1 else f"{x:g} scheduler{'s' * (x > 1)}"
    return Finding(
        f"messages a task of {NAMES[placement]}, {at}",
        "",
        value(NAMES[placement], x, MESSAGES),
        "{:.2f}",
    )


_LATE = ("sparrow", "adaptive", "known_idle")
_TINY = Past(nodes=200, tasks=10, loads=(0.9,), jobs=60, jobs_max=80)

EXPERIMENTS = (
    Experiment(
        name="past-sparrow",
        title="Placements that remember: {nodes:,} nodes, jobs of {tasks} {distribution} tasks of "
        "{task_ms:g} ms, schedulers: {schedulers}",
        source="past the papers: Tarcil, Dodoor and Prequal in kind",
        kind="simulated",
        parameters=Past(),
        quick=_TINY,
        run=past_sparrow,
        chart=Chart(x="Load (share of busy slots)", y="", style="lines", log_y=True, same_y=False),
        runs=3,
        findings=tuple(
            make(placement, 0.95) for placement in _LATE for make in (_over_omniscient, _messages)
        ),
    ),
    Experiment(
        name="stale-information",
        title="By the number of schedulers: {nodes:,} nodes, "
        "{loads:.0%} load, jobs of {tasks} {distribution} tasks of {task_ms:g} ms",
        source="past the papers: what a scheduler can know",
        kind="simulated",
        parameters=Past(schedulers=(1, 2, 4, 10, 30), loads=(0.95,)),
        quick=replace(_TINY, schedulers=(1, 4)),
        run=past_sparrow,
        chart=Chart(x="Schedulers", y="", style="lines", log_x=True, log_y=True, same_y=False),
        runs=3,
        findings=tuple(
            make(placement, x)
            for placement in _LATE
            for x in (1, 2, 10)
            for make in (_over_omniscient, _messages)
        ),
    ),
)
