"""Replays a trace of a cluster, under any placements and queue disciplines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from sparrow_core.lab.experiment import Advance, Chart, Experiment, ExperimentError, over_cases
from sparrow_core.lab.findings import Finding, times, value
from sparrow_core.lab.parameters import (
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
from sparrow_core.lab.placements import NAMES
from sparrow_core.lab.rows import Point, Row, response
from sparrow_core.lab.traces import FORMATS, TracedJob, hawk_shaped, read_trace
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec
from sparrow_core.sim.cluster import payload_of
from sparrow_core.sim.express import ExpressCluster
from sparrow_core.sim.network import Network
from sparrow_core.sim.workload import Arrival, central_response_times_s

_LONG_TIMES = 10.0
_SHORTEST_S = 0.001  # of a task: below, nodes would fetch ahead, which is not simulated
SHORT, LONG, MESSAGES = "short jobs", "long jobs", "messages a task"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A trace, and the clusters on which it is replayed."""

    trace: str = ""  # file; "" for a synthetic trace of the shape of Google's
    format: str = "hawk"  # of the file: hawk, google or alibaba
    columns: dict[str, Natural] = field(default_factory=dict)  # where they are not the format's
    jobs: Natural = 20_000  # at most so many of the file (0: all); of a synthetic trace, so many
    nodes: Count = 10_000  # of `slots` slots each
    slots: Count = 1
    schedulers: Count = 10  # among which jobs are dealt
    # Submissions are moved together or apart so that this share of the slots is busy; none for the
    # times of the trace.
    loads: tuple[Load, ...] = (0.5, 0.7, 0.8, 0.9, 0.95)
    placements: Names = ("central", "sparrow", "eagle", "batch", "random")
    policies: Names = ("fifo",)  # queue disciplines of nodes
    ratio: Ratio = 2.0
    # Jobs are long if their tasks are expected to take longer; 0 for ten times the geometric mean.
    cutoff_s: NotNegative = 0.0
    heartbeat_s: NotNegative = 100.0  # how often nodes report to schedulers; 0 for never
    warm_up: Annotated[float, Meta(ge=0, lt=1)] = 0.25  # share of the jobs that is not measured

    def __post_init__(self) -> None:
        check_names("format", (self.format,), tuple(FORMATS))
        check_placements(self.placements, ("central",))
        check_policies(self.policies)
        if not self.trace and not self.jobs:
            raise ValueError("jobs: how many is a synthetic trace to have?")

    def read(self, seed: int) -> list[TracedJob]:
        """The jobs; ExperimentError if the file can't be read."""
        if not self.trace:
            return hawk_shaped(self.jobs, seed)
        return read_trace(Path(self.trace), self.format, self.columns, jobs_max=self.jobs)


def replayed(parameters: Replay, seed: int, advance: Advance) -> Sequence[Row]:
    """Response times of short and of long jobs, and messages."""
    jobs = parameters.read(seed)
    if len(jobs) < 2:
        raise ExperimentError("a trace of one job says nothing of queues: at least two are needed")
    expected = [max(job.expected_s, _SHORTEST_S) for job in jobs]
    cutoff_s = parameters.cutoff_s or _LONG_TIMES * statistics.geometric_mean(expected)
    first = int(parameters.warm_up * len(jobs))
    long = [each > cutoff_s for each in expected]
    own = _own_load(jobs, parameters.nodes * parameters.slots)

    def measure(placement: str, policy: str, load: float, part: Advance) -> Iterator[Row]:
        series = NAMES[placement]
        if placement == "central":
            if policy != parameters.policies[0]:
                return  # it has one queue, first in, first out
        elif len(parameters.policies) > 1:
            series = f"{series}, {policy}"
        arrivals = _arrivals(parameters, jobs, placement, stretch=own / load)
        times_s, messages = _run(parameters, arrivals, placement, policy, seed)
        for kind in (False, True):
            counted = [
                time_s
                for time_s, is_long in zip(times_s[first:], long[first:], strict=True)
                if is_long == kind
            ]
            if counted:
                yield response(LONG if kind else SHORT, series, load, counted)
        yield Point(panel=MESSAGES, series=series, x=load, y=messages)
        part(1.0)

    cases = product(parameters.placements, parameters.policies, parameters.loads or (own,))
    return over_cases(cases, measure, advance)


def _own_load(jobs: Sequence[TracedJob], slots: int) -> float:
    """The share of slots that would be busy at the times of the trace."""
    span_s = jobs[-1].at_s * len(jobs) / (len(jobs) - 1)
    if not span_s:
        raise ExperimentError("all jobs of the trace come at once: there is no load to speak of")
    return sum(job.work_s for job in jobs) / (span_s * slots)


def _arrivals(
    parameters: Replay, jobs: Sequence[TracedJob], placement: str, *, stretch: float
) -> list[Arrival]:
    arrivals = []
    for number, job in enumerate(jobs):
        tasks = tuple(
            TaskSpec(task_id, payload_of(max(each, _SHORTEST_S)))
            for task_id, each in enumerate(job.durations_s)
        )
        start = StartJob(
            job_id=JobId(f"job{number}"), user="trace", tasks=tasks, placement=placement,
            probe_ratio=parameters.ratio, options=JobOptions(task_s=job.expected_s),
        )  # fmt: skip
        arrivals.append(Arrival(job.at_s * stretch, start))
    return arrivals


def _run(
    parameters: Replay, arrivals: Sequence[Arrival], placement: str, policy: str, seed: int
) -> tuple[list[float], float]:
    """Response times of all jobs, and messages a task between schedulers and nodes."""
    slots = parameters.nodes * parameters.slots
    tasks = sum(len(each.job.tasks) for each in arrivals)
    if placement == "central":  # a message to start each task
        return central_response_times_s(arrivals, slots, Network().delay_s), 1.0
    cluster = ExpressCluster(
        nodes=parameters.nodes, slots=parameters.slots, policy=policy, seed=seed,
        schedulers=parameters.schedulers, heartbeat_s=parameters.heartbeat_s or None,
    )  # fmt: skip
    cluster.run(arrivals)
    return [cluster.ended_s[each.job.job_id] for each in arrivals], cluster.messages / tasks


def _against(
    kind: str, load: float, field_name: str = "p50_ms", policies: tuple[str, ...] = ()
) -> Finding:
    """Eagle's placement over Sparrow's, under one queue discipline each if there are several."""
    eagle = ", ".join((NAMES["eagle"], *policies[:1]))
    sparrow = ", ".join((NAMES["sparrow"], *policies[1:]))
    ratio = times(value(eagle, load, kind, field_name), value(sparrow, load, kind, field_name))
    what = "median" if field_name == "p50_ms" else "95th percentile"
    return Finding(f"{what} of {kind}, {load:.0%} load, {eagle} over {sparrow} (times)", "", ratio,
                   "{:.3f}")  # fmt: skip


EXPERIMENTS = (
    Experiment(
        name="replay",
        title="A trace (nodes: {nodes:,}, slots of each: {slots}, schedulers: {schedulers})",
        source="Hawk, figure 5, and Eagle, figure 6, in kind: their traces, or a file of yours",
        kind="simulated",
        parameters=Replay(),
        quick=Replay(
            jobs=200, nodes=1000, loads=(0.5,), placements=("central", "sparrow", "eagle")
        ),
        run=replayed,
        chart=Chart(
            x="Load (share of busy slots)", y="Response time (s)", unit_ms=1000.0,
            log_y=True, same_y=False, figures=(MESSAGES,),
        ),
        runs=3,
        findings=(
            _against(SHORT, 0.9), _against(SHORT, 0.95), _against(SHORT, 0.95, "p95_ms"),
            _against(LONG, 0.9), _against(LONG, 0.95),
            *(
                _against(kind, 0.9, policies=policies)
                for kind in (SHORT, LONG)
                for policies in (("fifo", "fifo"), ("srpt", "fifo"))
            ),
        ),
    ),
)  # fmt: skip
