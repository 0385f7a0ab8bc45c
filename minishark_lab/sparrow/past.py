"""Placements that remember, beside late binding and an omniscient scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

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
    Ratios,
    check_names,
    check_placements,
)
from minishark_lab.harness.rows import Point
from minishark_lab.models import compiled
from minishark_lab.models.analysis import relaxation_time
from minishark_lab.models.express import ExpressCluster
from minishark_lab.models.traffic import messages, size_bytes
from minishark_lab.models.vector import DISTRIBUTIONS
from minishark_lab.simulator.cluster import payload_of
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import Arrival, CentralQueue
from minishark_lab.sparrow.placements import NAMES
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import TaskSpec

MEDIAN, P95 = "median response (ms)", "95th percentile (ms)"
MESSAGES, BYTES = "messages a task", "bytes a task"


@dataclass(frozen=True, kw_only=True)
class Past:
    """Jobs of equal size on nodes of one slot, placed by several schedulers."""

    nodes: Count = 10_000
    tasks: Count = 500
    task_ms: Positive = 100.0
    distribution: str = "exponential"  # of task times
    loads: Loads = (0.5, 0.8, 0.9, 0.95)
    schedulers: Counts = (10,)  # among which jobs are dealt; each remembers what it has seen itself
    placements: Names = ("central", "sparrow", "adaptive", "known_idle", "jiq")
    ratios: Ratios = (2.0, 1.5)  # of `sparrow`; others have the first, or choose it themselves
    heartbeat_ms: NotNegative = 50.0  # for `dodoor`; 0 for never
    # Measured per point at least, after at least a quarter as many others; as many as `lengths`
    # asks for, but at most `jobs_max` in all.
    jobs: Count = 1200
    jobs_max: Count = 120_000
    # "compiled" for what that has, the others by "express"; or all by "express".
    simulator: str = "compiled"

    def __post_init__(self) -> None:
        check_names("distribution", (self.distribution,), tuple(DISTRIBUTIONS))
        check_names("simulator", (self.simulator,), compiled.SIMULATORS)
        check_placements(self.placements, compiled.PLACEMENTS)

    def run_length(self, load: float, ratio: float) -> RunLength:
        """How many jobs are simulated, and how many of the first of them are not measured."""
        time = relaxation_time("sparrow", load, self.tasks, self.nodes, ratio)
        relaxation = time * load * self.nodes / self.tasks
        return run_length(relaxation, jobs=self.jobs, jobs_max=self.jobs_max)


def past_sparrow(parameters: Past, seed: int, advance: Advance) -> Sequence[Point]:
    """Response times and messages by load, or by the number of schedulers if there are several."""
    by_load = len(parameters.schedulers) == 1
    # All placements have the same jobs at a load.
    longest = {
        load: parameters.run_length(load, min(parameters.ratios)) for load in parameters.loads
    }

    def measure(
        placement: tuple[str, float], load: float, schedulers: int, part: Advance
    ) -> Iterator[Point]:
        name, ratio = placement
        length = longest[load]
        times_s, sent = _run(
            parameters, name, ratio=ratio, load=load, jobs=length.jobs, schedulers=schedulers,
            seed=seed,
        )  # fmt: skip
        times_s = times_s[length.warm_up :]
        settled = length.has_settled(times_s)
        x, series = load if by_load else schedulers, _series(parameters, name, ratio)
        tasks = length.jobs * parameters.tasks
        for panel, y in (
            (MEDIAN, 1000 * float(np.percentile(times_s, 50))),
            (P95, 1000 * float(np.percentile(times_s, 95))),
            (MESSAGES, (messages(sent) + sent["heartbeat"]) / tasks),
            (BYTES, size_bytes(sent) / tasks),
        ):
            yield Point(panel=panel, series=series, x=x, y=y, settled=settled)
        part(1.0)

    placements = [
        (name, ratio)
        for name in parameters.placements
        for ratio in (parameters.ratios if name == "sparrow" else parameters.ratios[:1])
    ]
    return over_cases(
        product(placements, parameters.loads, parameters.schedulers), measure, advance
    )


def _series(parameters: Past, placement: str, ratio: float) -> str:
    first = ratio == parameters.ratios[0]
    return NAMES[placement] if first else f"{NAMES[placement]}, d = {ratio:g}"


def _run(
    parameters: Past,
    placement: str,
    *,
    ratio: float,
    load: float,
    jobs: int,
    schedulers: int,
    seed: int,
) -> tuple[list[float], Counter[str]]:
    """Response times of all jobs; messages between schedulers and nodes, but results."""
    # The same jobs under every placement.
    rng = np.random.default_rng([seed, round(1e6 * load)])
    task_s, nodes = parameters.task_ms / 1000, parameters.nodes
    times_s = task_s * DISTRIBUTIONS[parameters.distribution](rng, (jobs, parameters.tasks))
    gap_s = task_s * parameters.tasks / (load * nodes)
    at_s = (1.0 + np.cumsum(rng.exponential(gap_s, jobs))).tolist()
    heartbeat_s = parameters.heartbeat_ms / 1000 if placement == "dodoor" else 0.0
    if parameters.simulator == "compiled" and placement in compiled.PLACEMENTS:
        return compiled.response_times_s(
            at_s, times_s, placement=placement, nodes=nodes, schedulers=schedulers,
            probe_ratio=ratio, seed=seed, heartbeat_s=heartbeat_s or None,
        )  # fmt: skip
    if placement == "central":
        queue = CentralQueue(nodes, Network().delay_s)
        times = [queue.run(at, tasks.tolist()) for at, tasks in zip(at_s, times_s, strict=True)]
        return times, Counter({"reserve": times_s.size})  # a message to start each task
    arrivals = [
        Arrival(at, _job(number, placement, ratio, tasks.tolist()))
        for number, (at, tasks) in enumerate(zip(at_s, times_s, strict=True))
    ]
    cluster = ExpressCluster(
        nodes=nodes, seed=seed, schedulers=schedulers, heartbeat_s=heartbeat_s or None
    )
    cluster.run(arrivals)
    return [cluster.ended_s[each.job.job_id] for each in arrivals], cluster.sent


def _job(number: int, placement: str, ratio: float, times_s: Sequence[float]) -> StartJob:
    tasks = tuple(TaskSpec(task_id, payload_of(time_s)) for task_id, time_s in enumerate(times_s))
    return StartJob(
        job_id=JobId(f"job{number}"), user="user", tasks=tasks,
        placement=compiled.PATHS.get(placement, placement),
        probe_ratio=ratio,
    )  # fmt: skip


def _at(x: float) -> str:
    return f"{x:.0%} load" if x < 1 else f"{x:g} scheduler{'s' * (x > 1)}"


def _over_omniscient(series: str, x: float) -> Finding:
    over = percent_over(value(series, x, MEDIAN), value(NAMES["central"], x, MEDIAN))
    return Finding(f"median of {series} over omniscient, {_at(x)} (%)", "", over)


def _messages(series: str, x: float) -> Finding:
    counted = value(series, x, MESSAGES)
    return Finding(f"messages a task of {series}, {_at(x)}", "", counted, "{:.2f}")


_COMPARED = (
    NAMES["sparrow"], f"{NAMES['sparrow']}, d = 1.5",
    *(NAMES[name] for name in ("adaptive", "known_idle", "jiq")),
)  # fmt: skip
_TINY = Past(
    nodes=200, tasks=10, loads=(0.9,), jobs=60, jobs_max=80, simulator="express",
    placements=("central", "sparrow", "adaptive", "known_idle", "dodoor", "prequal"),
)  # fmt: skip

EXPERIMENTS = (
    Experiment(
        name="past-sparrow",
        title="Placements that remember: {nodes:,} nodes, jobs of {tasks} {distribution} tasks of "
        "{task_ms:g} ms, schedulers: {schedulers}",
        source="past the papers: Tarcil and Join-Idle-Queue in kind",
        kind="simulated",
        parameters=Past(),
        quick=_TINY,
        run=past_sparrow,
        chart=Chart(x="Load (share of busy slots)", y="", style="lines", log_y=True, same_y=False),
        runs=5,
        findings=tuple(
            make(series, load)
            for load in (0.5, 0.8, 0.9, 0.95, 0.99)
            for series in _COMPARED
            for make in (_over_omniscient, _messages)
        ),
    ),
    Experiment(
        name="stale-information",
        title="By the number of schedulers: {nodes:,} nodes, "
        "{loads:.0%} load, jobs of {tasks} {distribution} tasks of {task_ms:g} ms",
        source="past the papers: what a scheduler can know",
        kind="simulated",
        parameters=Past(
            schedulers=(1, 2, 4, 10, 30),
            loads=(0.95,),
            ratios=(2.0,),
            placements=("central", "sparrow", "adaptive", "known_idle"),
        ),
        quick=replace(_TINY, schedulers=(1, 4)),
        run=past_sparrow,
        chart=Chart(x="Schedulers", y="", style="lines", log_x=True, log_y=True, same_y=False),
        runs=5,
        findings=tuple(
            make(series, x)
            for series in _COMPARED
            for x in (1, 2, 4, 10, 30)
            for make in (_over_omniscient, _messages)
        ),
    ),
)
