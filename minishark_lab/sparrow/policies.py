"""Fair sharing and priorities: the papers' cluster experiments, on production policies."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from typing import Annotated

from msgspec import Meta

from machine_kit.addresses import Address
from machine_kit.machine import Envelope, Message
from minishark_lab.harness.experiment import Advance, Chart, Experiment, Mark, over_cases
from minishark_lab.harness.findings import (
    Finding,
    constant,
    mean_between,
    percent_over,
    quantile,
    value,
)
from minishark_lab.harness.parameters import Count, Load, NotNegative, Positive, Some
from minishark_lab.harness.rows import Point, Response, distribution, response
from minishark_lab.models.express import ExpressCluster
from minishark_lab.simulator.cluster import SimulatedCluster, payload_of
from minishark_lab.simulator.workload import Arrival, run_jobs
from minishark_lab.simulator.world import World
from minishark_lab.sparrow.streams import START_S, RunningTasks, Stream, response_times, run_for
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import RunTasks, StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec

_SAMPLE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class FairShare:
    """Two users with equal shares; the first demands the whole cluster."""

    nodes: Count = 100
    slots: Count = 4
    tasks: Count = 10  # of a job; each takes 100 ms
    # Of the second user, as shares of all slots, one after the other.
    demands: Annotated[tuple[NotNegative, ...], Some] = (0.0, 0.25, 0.5, 0.25, 0.0)
    phase_s: Positive = 10.0  # how long each of them lasts
    greed: NotNegative = 1.0  # demand of the first user, as a share of all slots


def fair_share(parameters: FairShare, seed: int, advance: Advance) -> Sequence[Point]:
    """Running tasks of each user over time."""
    slots = parameters.nodes * parameters.slots
    end_s = parameters.phase_s * len(parameters.demands)
    stream = partial(Stream, tasks=parameters.tasks)
    streams = [stream(user="user 0", demand=parameters.greed * slots, until_s=end_s)]
    for number, demand in enumerate(parameters.demands):
        begin_s = number * parameters.phase_s
        until_s = begin_s + parameters.phase_s
        streams.append(
            stream(user="user 1", demand=demand * slots, from_s=begin_s, until_s=until_s)
        )
    cluster = ExpressCluster(
        nodes=parameters.nodes, slots=parameters.slots, policy="fair", seed=seed
    )
    running = RunningTasks(cluster)
    rows: list[Point] = []

    def sample(at_s: float) -> None:
        users = ("user 0", "user 1")
        rows.extend(Point(panel="", series=u, x=at_s, y=running.by_user[u]) for u in users)

    for step in range(int(end_s / _SAMPLE_S) + 1):
        at_s = step * _SAMPLE_S
        cluster.call(START_S + at_s, partial(sample, at_s))
    jobs = [job for stream in streams for job in stream.jobs(seed)]
    run_for(cluster, jobs, end_s, advance)
    return rows


@dataclass(frozen=True)
class ThreeUsers:
    """Three users with a third of the cluster each; jobs of ten 100 ms tasks, Poisson."""

    nodes: Count = 100
    slots: Count = 4
    # Of the users, as shares of the cluster, a panel each.
    demands: Annotated[tuple[tuple[Positive, Positive, Positive], ...], Some] = (
        (0.25, 0.25, 0.5),
        (0.25, 0.25, 0.25),
    )
    seconds: Positive = 40.0
    warm_up: Annotated[float, Meta(ge=0, lt=1)] = 0.1  # share of that time that is not measured


def three_users(parameters: ThreeUsers, seed: int, advance: Advance) -> Sequence[Response]:
    slots = parameters.nodes * parameters.slots

    def measure(demands: tuple[float, float, float], part: Advance) -> list[Response]:
        streams = [
            Stream(user=f"user {number}", demand=share * slots, until_s=parameters.seconds)
            for number, share in enumerate(demands)
        ]
        times = response_times(
            streams, nodes=parameters.nodes, slots=parameters.slots, policy="fair", seed=seed,
            until_s=2 * parameters.seconds,  # the greedy user's last jobs wait long
            counted_from_s=parameters.warm_up * parameters.seconds, advance=part,
        )  # fmt: skip
        panel = "demands " + ", ".join(f"{share:.0%}" for share in demands)
        return [
            response(panel, f"user {n}", n, own, unfinished=others)
            for n, (own, others) in enumerate(times)
            if own
        ]

    return over_cases(product(parameters.demands), measure, advance)


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """A high-priority user with a quarter of the cluster, and a low-priority user."""

    nodes: Count = 100
    slots: Count = 4
    high: Load = 0.25
    # Demands of the low-priority user, as shares of the cluster.
    low: Annotated[tuple[NotNegative, ...], Some] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
    tasks: Count = 10
    seconds: Positive = 10.0  # for each of them; the first fifth is not measured


def isolation(parameters: Isolation, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of both users, by demand of the low-priority user."""
    slots = parameters.nodes * parameters.slots
    stream = partial(Stream, tasks=parameters.tasks, until_s=parameters.seconds)

    def measure(low: float, part: Advance) -> list[Response]:
        streams = (
            stream(user="high priority", demand=parameters.high * slots),
            stream(user="low priority", demand=low * slots, options=JobOptions(priority=7)),
        )
        times = response_times(
            streams, nodes=parameters.nodes, slots=parameters.slots, policy="priority", seed=seed,
            until_s=1.2 * parameters.seconds, counted_from_s=parameters.seconds / 5, advance=part,
        )  # fmt: skip
        total = 100 * (parameters.high + low)
        return [
            response("", stream.user, total, own, unfinished=others)
            for stream, (own, others) in zip(streams, times, strict=True)
            if own
        ]

    return over_cases(product(parameters.low), measure, advance)


_KILLED_TASK_S = 0.2


def simulated_failover(nodes: int, slots: int, seed: int) -> tuple[float, float]:
    """Seconds from a scheduler's death in mid-job to its detection, and until a task runs again."""
    cluster = SimulatedCluster(World(seed), nodes=nodes, slots=slots, schedulers=2)
    killed_at_s = 1.3 + Random(seed).uniform(0, 0.1)
    cluster.world.call(killed_at_s, lambda: cluster.world.kill("s1"))
    again_s: list[float] = []

    def tap(to: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        del to, out
        if isinstance(msg, RunTasks) and msg.job_id == "job~1":
            again_s.append(now)

    cluster.world.taps.append(tap)
    payload = payload_of(_KILLED_TASK_S)
    specs = tuple(TaskSpec(number, payload) for number in range(5 * nodes * slots))
    run_jobs(cluster, [Arrival(1.0, StartJob(job_id=JobId("job"), user="user", tasks=specs))])
    ((found_s, _),) = cluster.recorder.silences
    return found_s - killed_at_s, again_s[0] - killed_at_s


@dataclass(frozen=True)
class Failover:
    """One of two schedulers dies in the middle of a job; repeated."""

    nodes: Count = 10
    slots: Count = 2
    repetitions: Count = 300


def failover(parameters: Failover, seed: int, advance: Advance) -> Sequence[Point]:
    """Times from a scheduler's death to its detection, and until tasks run again."""
    found: list[float] = []
    again: list[float] = []
    for number in range(parameters.repetitions):
        times_s = simulated_failover(parameters.nodes, parameters.slots, seed * 10_000 + number)
        found.append(1000 * times_s[0])
        again.append(1000 * times_s[1])
        advance(1 / parameters.repetitions)
    return [
        *distribution("", f"noticed (median {statistics.median(found):.0f} ms)", found),
        *distribution("", f"runs again (median {statistics.median(again):.0f} ms)", again),
    ]


EXPERIMENTS = (
    Experiment(
        name="fair-share",
        title="Running tasks of two users with equal shares: {nodes} nodes of {slots} slots",
        source="Sparrow, figure 11",
        kind="simulated",
        parameters=FairShare(),
        quick=FairShare(nodes=10, slots=2, tasks=2, demands=(0.0, 0.5), phase_s=0.5),
        run=fair_share,
        chart=Chart(x="Time (s)", y="Running tasks", style="lines"),
        findings=tuple(
            # Without the second in which it changes.
            Finding(
                f"running tasks of user 1 at a demand of {demand:.0%}",
                paper,
                mean_between("user 1", 10.0 * phase + 1.0, 10.0 * phase + 9.99),
                "{:.0f}",
            )
            for phase, (demand, paper) in enumerate(
                ((0.0, "0"), (0.25, "100"), (0.5, "200"), (0.25, "100"), (0.0, "0"))
            )
        ),
    ),
    Experiment(
        name="three-users",
        title="Response times of three users with equal shares: {nodes} nodes of {slots} slots",
        source="Batch Sampling, figure 12 and table 4",
        kind="simulated",
        parameters=ThreeUsers(),
        runs=5,
        quick=ThreeUsers(10, 2, seconds=1.0),
        run=three_users,
        chart=Chart(
            x="",
            category="user {:g}",
            log_y=True,
            marks=tuple(
                Mark(user, constant(median_ms), "paper", f"demands {demands}")
                for demands, paper in (
                    ("25%, 25%, 50%", (166.5, 167.5)),
                    ("25%, 25%, 25%", (106.0, 106.0, 106.0)),
                )
                for user, median_ms in enumerate(paper)
            ),
        ),
        findings=(
            Finding(
                "median below one's share (ms)",
                "166",
                value("user 0", 0.0, "demands 25%, 25%, 50%"),
            ),
            Finding(
                "median, all at 75 % of their share (ms)",
                "106",
                value("user 0", 0.0, "demands 25%, 25%, 25%"),
            ),
        ),
    ),
    Experiment(
        name="isolation",
        title="Response times by priority: {nodes} nodes of {slots} slots; the high one wants "
        "{high:.0%}",
        source="Sparrow, table 3",
        kind="simulated",
        parameters=Isolation(),
        runs=5,
        quick=Isolation(nodes=10, slots=2, low=(0.0, 1.5), seconds=1.0),
        run=isolation,
        chart=Chart(x="Demand of both (% of the cluster)", log_y=True),
        findings=(
            Finding(
                "median of high priority over its own alone, both demand 200 % (%)",
                "at most 40",
                percent_over(value("high priority", 200.0), value("high priority", 25.0)),
            ),
        ),
    ),
    Experiment(
        name="failover",
        title="From the death of a scheduler until its jobs run again, by silence",
        source="Sparrow, figure 10",
        kind="simulated",
        parameters=Failover(),
        quick=Failover(4, 2, 2),
        run=failover,
        chart=Chart(x="Time (ms)", y="Share", style="steps"),
        findings=(
            Finding("a scheduler's silence is noticed, median (ms)", "120", quantile("notic", 0.5)),
            Finding("its tasks run again, median (ms)", "120", quantile("runs again", 0.5)),
        ),
    ),
)
