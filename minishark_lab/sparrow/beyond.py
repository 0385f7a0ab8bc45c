"""Beyond the papers: shortest remaining work, soft constraints, and crowds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

import numpy as np
from msgspec import structs

from minishark_lab.harness.experiment import Advance, Chart, Experiment, over_cases
from minishark_lab.harness.findings import Finding, Reading, percent_over, times, value
from minishark_lab.harness.lengths import MEASURED, SETTLING, RunLength, run_length, spread
from minishark_lab.harness.parameters import (
    Count,
    Loads,
    Names,
    NotNegative,
    Positive,
    Share,
    Some,
    check_policies,
)
from minishark_lab.harness.rows import Response, response
from minishark_lab.models.analysis import pooled_relaxation_time, relaxation_time
from minishark_lab.models.express import ExpressCluster
from minishark_lab.simulator.cluster import payload_of
from minishark_lab.simulator.workload import Arrival
from minishark_lab.sparrow.streams import START_S, Stream, response_times, run_for
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec

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
    # How long jobs arrive; 0 for as long as `lengths` asks for, and at least a minute.
    seconds: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_policies(self.policies)

    def relaxation_s(self, load: float) -> float:
        """How long queues take to forget their past at this load."""
        share, (few, short_s), (many, long_s) = self.short_share, self.short, self.long
        jobs = round(100 * share) * [few * short_s] + round(100 * (1 - share)) * [many * long_s]
        tasks = round(100 * share) * few * [short_s] + round(100 * (1 - share)) * many * [long_s]
        # The cluster, to which jobs come, and a node, to which tasks do; two are probed for each.
        cluster = pooled_relaxation_time(load, self.nodes * self.slots, spread(jobs))
        node = pooled_relaxation_time(load**2, self.slots, spread(tasks))
        return max(cluster, node)

    def length_s(self, load: float) -> float:
        """How long jobs arrive at this load."""
        return self.seconds or max(60.0, (SETTLING + MEASURED) * self.relaxation_s(load))


_POLICY_NAMES = {"fifo": "Sparrow", "srpt": "sticky probing, SRPT"}


def sticky_srpt(parameters: ShortAndLong, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of short and long jobs, first in first out and by remaining work."""

    def measure(queue: str, load: float, part: Advance) -> Iterator[Response]:
        length_s, relaxation_s = parameters.length_s(load), parameters.relaxation_s(load)
        warm_up_s = length_s * SETTLING / (SETTLING + MEASURED)
        streams = _two_streams(parameters, load, length_s)
        times = response_times(
            streams, nodes=parameters.nodes, slots=parameters.slots, policy=queue, seed=seed,
            until_s=3 * length_s, counted_from_s=warm_up_s, advance=part,
        )  # fmt: skip
        for stream, (own, others) in zip(streams, times, strict=True):
            if own:
                every_s = (length_s - warm_up_s) / (len(own) + others)
                length = RunLength(
                    round(length_s / every_s), round(warm_up_s / every_s), relaxation_s / every_s
                )
                yield response(
                    stream.user, _POLICY_NAMES.get(queue, queue), load, own,
                    unfinished=others, settled=length.has_settled(own),
                )  # fmt: skip

    return over_cases(product(parameters.policies, parameters.loads), measure, advance)


def _two_streams(parameters: ShortAndLong, load: float, length_s: float) -> tuple[Stream, Stream]:
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
            until_s=length_s,
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
    # Measured per point at least, after at least a quarter as many others; as many as `lengths`
    # asks for, but at most `jobs_max` in all.
    jobs: Count = 1200
    jobs_max: Count = 20_000

    def __post_init__(self) -> None:
        if self.tasks > self.partitions:
            raise ValueError(f"tasks: a job reads as many partitions, of {self.partitions}")
        if self.replicas > self.nodes:
            raise ValueError(f"replicas: at most one on each of {self.nodes} nodes")

    def run_length(self, load: float) -> RunLength:
        """How many jobs are simulated, and how many of the first of them are not measured.

        As if a task could run anywhere: where partitions are hot, queues may take longer, or grow.
        """
        slots = self.nodes * self.slots
        time = relaxation_time("random", load, self.tasks, slots, 1.0)
        return run_length(time * load * slots / self.tasks, jobs=self.jobs, jobs_max=self.jobs_max)


def soft_constraints(parameters: HotPartitions, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times by how long tasks wait for nodes with their data."""

    def measure(wait_ms: float | None, load: float, part: Advance) -> Iterator[Response]:
        jobs = _reading_jobs(parameters, wait_ms, load, seed)
        cluster = ExpressCluster(nodes=parameters.nodes, slots=parameters.slots, seed=seed)
        ended_s = run_for(cluster, jobs, math.inf, part)
        length = parameters.run_length(load)
        counted = [ended_s[each.job.job_id] for each in jobs[length.warm_up :]]
        name = "hard constraints" if wait_ms is None else f"soft after {wait_ms:g} ms"
        yield response("", name, load, counted, settled=length.has_settled(counted))

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
    for number in range(parameters.run_length(load).jobs):
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


# --- a crowd of calls and short queries of one user --------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """A user submits many calls at once, each alone, and asks queries while they wait."""

    nodes: Count = 1  # of `slots` slots each
    slots: Count = 2
    calls: Count = 1500
    call_s: Positive = 0.02
    query_s: Positive = 0.012
    # Of the queries, which come at random until the calls alone would be done.
    demands: Annotated[tuple[NotNegative, ...], Some] = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
    policies: Names = ("fifo", "fair")

    def __post_init__(self) -> None:
        check_policies(self.policies)


_CROWD_NAMES = {"fifo": "first in, first out", "fair": "fair among groups"}


def crowd(parameters: Crowd, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of the queries, and when the last call of the crowd is done."""
    slots = parameters.nodes * parameters.slots
    call = TaskSpec(0, payload_of(parameters.call_s))
    together = JobOptions(group="calls")
    calls = [
        StartJob(job_id=JobId(f"call{number}"), user="user", tasks=(call,), options=together)
        for number in range(parameters.calls)
    ]

    def measure(policy: str, demand: float, part: Advance) -> Iterator[Response]:
        queries = Stream(
            user="user", demand=demand * slots, tasks=1, task_s=parameters.query_s,
            until_s=parameters.calls * parameters.call_s / slots,
        ).jobs(seed)  # fmt: skip
        own = [JobOptions(group=each.job.job_id) for each in queries]
        asked = [
            Arrival(each.at_s, structs.replace(each.job, options=options))
            for each, options in zip(queries, own, strict=True)
        ]
        cluster = ExpressCluster(
            nodes=parameters.nodes, slots=parameters.slots, policy=policy, seed=seed
        )
        arrivals = [*(Arrival(START_S, each) for each in calls), *asked]
        ended_s = run_for(cluster, arrivals, math.inf, part)
        name = _CROWD_NAMES.get(policy, policy)
        last_s = max(ended_s[each.job_id] for each in calls)
        yield response("last call of the crowd", name, demand, [last_s])
        if asked:
            times_s = [ended_s[each.job.job_id] for each in asked]
            yield response("queries", name, demand, times_s)

    return over_cases(product(parameters.policies, parameters.demands), measure, advance)


def _of_jobs(kind: str, policy: str, load: float) -> Reading:
    return value(_POLICY_NAMES[policy], load, f"{kind} jobs")


_FEW_PARTITIONS = HotPartitions(
    nodes=10, slots=2, partitions=20, tasks=4, waits_ms=(None, 50.0), loads=(0.6,),
    jobs=30, jobs_max=40,
)  # fmt: skip

EXPERIMENTS = (
    Experiment(
        name="sticky-srpt",
        title="Sticky probing and shortest remaining work first: {nodes} nodes of {slots} slots",
        source="past the papers: Eagle's idea on Sparrow's machines",
        kind="simulated",
        parameters=ShortAndLong(),
        runs=5,
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
        title="Delay scheduling: {partitions} partitions, {replicas} replicas, some hotter; remote "
        "tasks take {remote_factor:g} x",
        source="past the papers: sketched in Sparrow, section 8",
        kind="simulated",
        parameters=HotPartitions(),
        runs=5,
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
        name="crowd",
        title="Queries of {query_s:g} s beside a crowd of {calls:,} calls of {call_s:g} s of the "
        "same user",
        source="past the papers: groups of jobs within a user",
        kind="simulated",
        parameters=Crowd(),
        runs=5,
        quick=Crowd(calls=100, demands=(0.0, 0.05)),
        run=crowd,
        chart=Chart(x="Demand of the queries (share of slots)", log_y=True, same_y=False),
        findings=(
            *(
                Finding(
                    f"queries beside the crowd, 5 % demand, {_CROWD_NAMES[policy]}, {name} (ms)",
                    "",
                    value(_CROWD_NAMES[policy], 0.05, "queries", field),
                    "{:.0f}",
                )
                for policy in ("fifo", "fair")
                for name, field in (("median", "p50_ms"), ("95th percentile", "p95_ms"))
            ),
            *(
                Finding(
                    f"the crowd is done later by, {demand:.0%} demand (%)",
                    "",
                    percent_over(
                        value(_CROWD_NAMES["fair"], demand, "last call"),
                        value(_CROWD_NAMES["fair"], 0.0, "last call"),
                    ),
                )
                for demand in (0.05, 0.2)
            ),
        ),
    ),
)
