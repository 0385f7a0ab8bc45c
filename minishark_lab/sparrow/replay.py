"""Replays a trace of a cluster, under any placements and queue disciplines."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random

import numpy as np

from minishark_lab.harness.experiment import Advance, Chart, Experiment, ExperimentError, over_cases
from minishark_lab.harness.findings import Finding, times, value
from minishark_lab.harness.lengths import RunLength, run_length, spread
from minishark_lab.harness.parameters import (
    Count,
    Load,
    Names,
    Natural,
    NotNegative,
    Ratio,
    check_names,
    check_placements,
    check_policies,
)
from minishark_lab.harness.rows import Point, Row, response
from minishark_lab.models import compiled
from minishark_lab.models.analysis import pooled_relaxation_time, queue_relaxation_time
from minishark_lab.models.central import shortest_first_response_times_s
from minishark_lab.models.express import ExpressCluster
from minishark_lab.models.traffic import messages, size_bytes
from minishark_lab.simulator.cluster import payload_of
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import Arrival, central_response_times_s
from minishark_lab.sparrow.placements import NAMES
from minishark_lab.sparrow.traces import FORMATS, TracedJob, hawk_shaped, read_trace
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec

_LONG_TIMES = 10.0
_SHORTEST_S = 0.001  # of a task: below, nodes would fetch ahead, which is not simulated
SHORT, LONG = "short jobs", "long jobs"
MESSAGES, HEARTBEATS, BYTES = "messages a task", "heartbeats a task", "bytes a task"
# The estimate of a job's mean task time: that itself; times a lognormal error of sigma 1.5; a fifth
# of the jobs taken for ones of the other class; alike for all, so that only numbers of tasks tell
# jobs apart; or none, as from users who say nothing.
ESTIMATES: dict[str, Callable[[Random, float, float], float]] = {
    "exact": lambda _rng, mean_s, _cutoff_s: mean_s,
    "lognormal": lambda rng, mean_s, _cutoff_s: mean_s * rng.lognormvariate(0.0, 1.5),
    "wrong_class": lambda rng, mean_s, cutoff_s: (
        cutoff_s * cutoff_s / mean_s if rng.random() < 0.2 else mean_s
    ),
    "alike": lambda _rng, _mean_s, cutoff_s: cutoff_s,
    "none": lambda _rng, _mean_s, _cutoff_s: 0.0,
}
_OMNISCIENT = ("fifo", "srpt")  # queue disciplines of an omniscient scheduler
_BLIND = ("central", "sparrow", "batch", "per_task", "random")  # to estimates


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A trace, and the clusters on which it is replayed."""

    trace: str = ""  # file; "" for a synthetic trace of the shape of Google's
    format: str = "hawk"  # of the file: hawk, google or alibaba
    columns: dict[str, Natural] = field(default_factory=dict)  # where they are not the format's
    # At most so many of the file (0: all); of a synthetic trace, as many as `lengths` asks for, but
    # no more than so many.
    jobs: Natural = 60_000
    nodes: Count = 1_000  # of `slots` slots each
    slots: Count = 1
    schedulers: Count = 10  # among which jobs are dealt
    # Submissions are moved together or apart so that this share of the slots is busy; none for the
    # times of the trace.
    loads: tuple[Load, ...] = (0.5, 0.8, 0.9)
    placements: Names = ("central", "sparrow", "eagle")
    policies: Names = ("fifo", "srpt")  # queue disciplines of nodes
    ratio: Ratio = 2.0
    # What schedulers are told of a job's task times, see ESTIMATES.
    estimates: Names = ("exact", "alike", "none")
    # Jobs are long if their tasks are expected to take longer; 0 for ten times the geometric mean.
    cutoff_s: NotNegative = 0.0
    heartbeat_s: NotNegative = 100.0  # how often nodes report to schedulers; 0 for never
    # "compiled" for what that has, the others by "express"; or all by "express".
    simulator: str = "compiled"

    def __post_init__(self) -> None:
        check_names("format", (self.format,), tuple(FORMATS))
        check_names("simulator", (self.simulator,), compiled.SIMULATORS)
        check_placements(self.placements, compiled.PLACEMENTS)
        check_policies(self.policies)
        check_names("estimates", self.estimates, tuple(ESTIMATES))
        if not self.trace and not self.jobs:
            raise ValueError("jobs: how many is a synthetic trace to have?")

    def read(self, seed: int) -> list[TracedJob]:
        """The jobs; ExperimentError if the file can't be read."""
        if not self.trace:
            return hawk_shaped(self.jobs, seed)
        return read_trace(Path(self.trace), self.format, self.columns, jobs_max=self.jobs)

    def run_length(self, jobs: Sequence[TracedJob], load: float) -> RunLength:
        """How many of the jobs are replayed, and how many of the first are not measured."""
        slots, work_s = self.nodes * self.slots, [job.work_s for job in jobs]
        tasks_s = [each for job in jobs for each in job.durations_s]
        # Queues forget as those of exponential tasks would, of which the spread is twice the mean.
        queue_s = queue_relaxation_time(load, self.ratio) * spread(tasks_s) / 2
        longest_s = max(queue_s, pooled_relaxation_time(load, slots, spread(work_s)))
        relaxation = longest_s * load * slots * len(jobs) / sum(work_s)
        least = 1 if not self.trace else len(jobs)  # of a file, all
        return run_length(relaxation, jobs=least, jobs_max=len(jobs))


def replayed(parameters: Replay, seed: int, advance: Advance) -> Sequence[Row]:
    """Response times of short and of long jobs, and messages."""
    read = parameters.read(seed)
    if len(read) < 2:
        raise ExperimentError("a trace of one job says nothing of queues: at least two are needed")
    expected = [max(job.expected_s, _SHORTEST_S) for job in read]
    cutoff_s = parameters.cutoff_s or _LONG_TIMES * statistics.geometric_mean(expected)
    own = _own_load(read, parameters.nodes * parameters.slots)
    loads = parameters.loads or (own,)
    lengths = {load: parameters.run_length(read, load) for load in loads}

    def measure(
        placement: str, policy: str, estimates: str, load: float, part: Advance
    ) -> Iterator[Row]:
        if placement == "central" and policy not in _OMNISCIENT:
            return
        if placement in _BLIND and policy == "fifo" and estimates != parameters.estimates[-1]:
            return  # it would be the same
        series = _series(parameters, placement, policy, estimates)
        length = lengths[load]
        jobs = read[: length.jobs]
        rng = Random(f"estimates {seed}")
        told_s = [ESTIMATES[estimates](rng, each, cutoff_s) for each in expected[: length.jobs]]
        times_s, sent = _run(
            parameters, jobs, told_s, placement, policy, stretch=own / load, seed=seed
        )
        measured = list(zip(jobs, times_s, strict=True))[length.warm_up :]
        by_kind: dict[str, list[float]] = {SHORT: [], LONG: []}
        for job, time_s in measured:
            by_kind[LONG if job.expected_s > cutoff_s else SHORT].append(time_s)
        settled = length.has_settled([time_s for _, time_s in measured])
        for kind, counted in by_kind.items():
            if counted:
                yield response(kind, series, load, counted, settled=settled)
        tasks = sum(len(job.durations_s) for job in jobs)
        for panel, count in (
            (MESSAGES, messages(sent)), (HEARTBEATS, sent["heartbeat"]), (BYTES, size_bytes(sent)),
        ):  # fmt: skip
            yield Point(panel=panel, series=series, x=load, y=count / tasks, settled=settled)
        part(1.0)

    cases = product(parameters.placements, parameters.policies, parameters.estimates, loads)
    return over_cases(cases, measure, advance)


def _named(placement: str, policy: str, estimates: str) -> str:
    return f"{NAMES[placement]}, {policy}, estimates: {estimates.replace('_', ' ')}"


def _series(parameters: Replay, placement: str, policy: str, estimates: str) -> str:
    """The name, without what all have alike."""
    parts = _named(placement, policy, estimates).split(", ")
    several = (True, len(parameters.policies) > 1, len(parameters.estimates) > 1)
    return ", ".join(part for part, told in zip(parts, several, strict=True) if told)


def _own_load(jobs: Sequence[TracedJob], slots: int) -> float:
    """The share of slots that would be busy at the times of the trace."""
    span_s = jobs[-1].at_s * len(jobs) / (len(jobs) - 1)
    if not span_s:
        raise ExperimentError("all jobs of the trace come at once: there is no load to speak of")
    return sum(job.work_s for job in jobs) / (span_s * slots)


def _arrivals(
    parameters: Replay,
    jobs: Sequence[TracedJob],
    told_s: Sequence[float],
    placement: str,
    *,
    stretch: float,
) -> list[Arrival]:
    arrivals = []
    for number, (job, estimate_s) in enumerate(zip(jobs, told_s, strict=True)):
        tasks = tuple(
            TaskSpec(task_id, payload_of(max(each, _SHORTEST_S)))
            for task_id, each in enumerate(job.durations_s)
        )
        start = StartJob(
            job_id=JobId(f"job{number}"), user="trace", tasks=tasks,
            placement=compiled.PATHS.get(placement, placement), probe_ratio=parameters.ratio,
            options=JobOptions(task_s=estimate_s),
        )  # fmt: skip
        arrivals.append(Arrival(job.at_s * stretch, start))
    return arrivals


def _run(
    parameters: Replay,
    jobs: Sequence[TracedJob],
    told_s: Sequence[float],
    placement: str,
    policy: str,
    *,
    stretch: float,
    seed: int,
) -> tuple[list[float], Counter[str]]:
    """Response times of all jobs; messages between schedulers and nodes."""
    nodes, slots, schedulers = parameters.nodes, parameters.slots, parameters.schedulers
    heartbeat_s = parameters.heartbeat_s or None
    has_compiled = placement in compiled.PLACEMENTS and policy in compiled.POLICIES
    if parameters.simulator == "compiled" and has_compiled:
        return compiled.response_times_s(
            [job.at_s * stretch for job in jobs],
            [np.maximum(job.durations_s, _SHORTEST_S) for job in jobs],
            estimates_s=told_s, placement=placement, policy=policy, nodes=nodes, slots=slots,
            schedulers=schedulers, probe_ratio=parameters.ratio, seed=seed,
            heartbeat_s=heartbeat_s,
        )  # fmt: skip
    arrivals = _arrivals(parameters, jobs, told_s, placement, stretch=stretch)
    if placement == "central":  # a message to start each task
        ideal = shortest_first_response_times_s if policy == "srpt" else central_response_times_s
        sent = Counter({"reserve": sum(len(job.durations_s) for job in jobs)})
        return ideal(arrivals, nodes * slots, Network().delay_s), sent
    cluster = ExpressCluster(
        nodes=nodes, slots=slots, policy=policy, seed=seed, schedulers=schedulers,
        heartbeat_s=heartbeat_s,
    )  # fmt: skip
    cluster.run(arrivals)
    return [cluster.ended_s[each.job.job_id] for each in arrivals], cluster.sent


def _over(
    kind: str, load: float, more: tuple[str, str, str], less: tuple[str, str, str]
) -> Iterator[Finding]:
    """Medians and 95th percentiles; each is a placement, its discipline and its estimates."""
    for what, field_name in (("median", "p50_ms"), ("95th percentile", "p95_ms")):
        series = [_named(*each) for each in (more, less)]
        ratio = times(*(value(each, load, kind, field_name) for each in series))
        text = f"{what} of {kind}, {load:.0%} load, {series[0]} over {series[1]} (times)"
        yield Finding(text, "", ratio, "{:.3f}")


_EAGLE = ("eagle", "srpt", "exact")
_EAGLE_ALIKE, _EAGLE_UNTOLD = (("eagle", "srpt", each) for each in ("alike", "none"))
# Each beside what decides on as much knowledge.
_PAIRS = (
    (_EAGLE, ("sparrow", "srpt", "exact")),
    (_EAGLE, ("central", "srpt", "exact")),
    (_EAGLE, ("sparrow", "fifo", "none")),
    (_EAGLE_ALIKE, ("sparrow", "srpt", "alike")),
    (_EAGLE_ALIKE, ("sparrow", "fifo", "none")),
    (_EAGLE_ALIKE, ("central", "fifo", "none")),
    (_EAGLE_ALIKE, ("central", "srpt", "exact")),
    (_EAGLE_UNTOLD, ("sparrow", "fifo", "none")),
    (_EAGLE_UNTOLD, ("central", "fifo", "none")),
    (_EAGLE_UNTOLD, ("central", "srpt", "exact")),
    (("sparrow", "fifo", "none"), ("central", "fifo", "none")),
)


EXPERIMENTS = (
    Experiment(
        name="replay",
        title="A trace (nodes: {nodes:,}, slots of each: {slots}, schedulers: {schedulers})",
        source="Hawk, figure 5, and Eagle, figure 6, in kind: their traces, or a file of yours",
        kind="simulated",
        parameters=Replay(),
        quick=Replay(jobs=200, loads=(0.5,), estimates=("exact",), simulator="express"),
        run=replayed,
        chart=Chart(
            x="Load (share of busy slots)", y="Response time (s)", unit_ms=1000.0,
            log_y=True, same_y=False, figures=(MESSAGES, HEARTBEATS, BYTES),
        ),
        runs=5,
        findings=tuple(
            finding
            for load in (0.8, 0.9)
            for kind in (SHORT, LONG)
            for pair in _PAIRS
            for finding in _over(kind, load, *pair)
        ),
    ),
)  # fmt: skip
