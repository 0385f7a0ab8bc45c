"""Emulated: real node monitors, schedulers and ZeroMQ; only the tasks sleep."""

from __future__ import annotations

import importlib.resources
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from sparrow_core.audit import AuditEvent
from sparrow_core.lab.emulation import EmulatedCluster, Query, QueryStage, run_queries
from sparrow_core.lab.experiment import Advance, Chart, Experiment, steps
from sparrow_core.lab.findings import (
    Finding,
    over_all_x,
    percent,
    percent_over,
    quantile,
    value,
)
from sparrow_core.lab.placements import NAMES
from sparrow_core.lab.rows import Point, Response, distribution, response
from sparrow_core.parts import TaskSpec
from sparrow_core.sim.cluster import payload_of
from sparrow_core.sim.workload import Workload, response_times_s
from sparrow_core.specs import JobSpec


@dataclass(frozen=True)
class Sleeping:
    """Jobs of ten equal tasks that sleep, as a Poisson process.

    Attributes:
        nodes: Of `slots` slots each, in `processes` processes.
        tasks: Of a job.
        task_ms: How long each sleeps.
        loads: Shares of slots that are busy.
        seconds: How long jobs come at each load; the first fifth is not counted.
    """

    nodes: int = 100
    slots: int = 4
    schedulers: int = 2
    processes: int = 2
    tasks: int = 10
    task_ms: float = 100.0
    loads: tuple[float, ...] = (0.2, 0.4, 0.6, 0.7, 0.8)
    seconds: float = 12.0
    simulated_jobs: int = 600


def _sleeping_jobs(parameters: Sleeping, load: float, seed: int) -> list[Query]:
    rng = Random(f"{seed} {load}")
    task_s = parameters.task_ms / 1000
    specs = tuple(TaskSpec(number, payload_of(task_s)) for number in range(parameters.tasks))
    rate = load * parameters.nodes * parameters.slots / (task_s * parameters.tasks)
    queries: list[Query] = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(rate)) < parameters.seconds:
        queries.append(Query(at_s, (QueryStage(JobSpec(specs)),)))
    return queries


def emulated_delay(parameters: Sleeping, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times, emulated and simulated."""
    part = steps(advance, len(parameters.loads))
    rows = []
    with EmulatedCluster(
        nodes=parameters.nodes, slots=parameters.slots, schedulers=parameters.schedulers,
        processes=parameters.processes, seed=seed,
    ) as cluster:  # fmt: skip
        for load in parameters.loads:
            queries = _sleeping_jobs(parameters, load, seed)
            share = 1 / len(queries)
            times = run_queries(cluster.front, queries, lambda: part(share))  # noqa: B023
            counted = [
                time_s
                for query, time_s in zip(queries, times, strict=True)
                if query.at_s >= parameters.seconds / 5
            ]
            rows.append(response("", "emulated", load, counted))
    for load in parameters.loads:
        workload = Workload(
            load, parameters.simulated_jobs, parameters.tasks, parameters.task_ms / 1000, "constant"
        )
        simulated = response_times_s(
            workload, nodes=parameters.nodes, slots=parameters.slots,
            schedulers=parameters.schedulers, seed=seed,
        )  # fmt: skip
        rows.append(response("", "simulated", load, simulated))
    return rows


# --- where the time of a task goes -------------------------------------------------------------


@dataclass(frozen=True)
class Breakdown:
    """See `Sleeping`."""

    cluster: Sleeping = Sleeping(loads=(0.8,))


def breakdown(parameters: Breakdown, seed: int, advance: Advance) -> Sequence[Point]:
    """How long reservations travel, requests for tasks take, tasks wait and run."""
    shape = parameters.cluster
    with EmulatedCluster(
        nodes=shape.nodes, slots=shape.slots, schedulers=shape.schedulers,
        processes=shape.processes, seed=seed, audited=True,
    ) as cluster:  # fmt: skip
        queries = _sleeping_jobs(shape, shape.loads[0], seed)
        share = 1 / len(queries)
        run_queries(cluster.front, queries, lambda: advance(share))
        events = cluster.end_and_read_audit()
    rows: list[Point] = []
    for name, spans_s in _spans(events).items():
        rows += distribution("", name, [1000 * max(1e-6, each) for each in spans_s])
    return rows


def _spans(events: Sequence[AuditEvent]) -> dict[str, list[float]]:
    """Times between events of the log, in seconds."""
    begun: dict[tuple[str, str, str, int | None], list[float]] = defaultdict(list)
    spans: dict[str, list[float]] = defaultdict(list)
    starts = {
        "scheduler_launch_enqueue_task": "enqueue",
        "node_monitor_get_task_launch": "get task",
    }
    ends = {
        "reservation_enqueued": ("enqueue", "reservation on its way"),
        "node_monitor_get_task_complete": ("get task", "request for tasks"),
    }
    for event in events:
        if event.event in starts:
            begun[starts[event.event], event.job, event.node, None].append(event.at_s)
        elif event.event in ends:
            kind, name = ends[event.event]
            waiting = begun[kind, event.job, event.node, None]
            if waiting:
                spans[name].append(event.at_s - waiting.pop(0))
        elif event.event == "arrived":
            begun["job", event.job, "", None].append(event.at_s)
        elif event.event == "node_monitor_task_launch":
            begun["task", event.job, "", event.task].append(event.at_s)
            spans["queue time"] += [event.at_s - at for at in begun["job", event.job, "", None]]
        elif event.event == "task_completed":
            ran = begun["task", event.job, "", event.task]
            spans["service time"] += [event.at_s - at for at in ran[:1]]
    return spans


# --- TPC-H -------------------------------------------------------------------------------------


class RecordedStage(msgspec.Struct, frozen=True):
    """A stage of a query as it once ran: task times, whether they read the user's partitions."""

    task_ms: tuple[float, ...]
    reads_partitions: bool
    after: tuple[int, ...] = ()


class RecordedQuery(msgspec.Struct, frozen=True):
    """The stages of a query as it once ran."""

    name: str
    stages: tuple[RecordedStage, ...]


class Recording(msgspec.Struct, frozen=True):
    """Queries as they once ran, and how that was."""

    about: str
    queries: tuple[RecordedQuery, ...]


def shipped_recording() -> Recording:
    """TPC-H queries recorded on minishark, with 30 partitions."""
    text = importlib.resources.files("sparrow_core.lab").joinpath("tpch_stages.json").read_bytes()
    return msgspec.json.decode(text, type=Recording)


@dataclass(frozen=True)
class EmulatedTpch:
    """Users with tables of their own submit recorded queries.

    Attributes:
        users: Each has a table of as many partitions as stages that read it have tasks.
        nodes: Of `slots` slots each, in `processes` processes.
        replicas: Of each partition, on random nodes.
        mean_task_ms: Recorded task times are scaled to this mean: one machine's control plane
            must carry the messages of a hundred.
        queries: Of the recording.
        loads: Shares of slots that are busy.
        placements: In turn, for each load.
        seconds: How long queries come; the first fifth is not counted.
    """

    users: int = 10
    nodes: int = 100
    slots: int = 4
    schedulers: int = 2
    processes: int = 2
    replicas: int = 3
    mean_task_ms: float = 200.0
    queries: tuple[str, ...] = ("q1", "q3", "q6", "q12")
    loads: tuple[float, ...] = (0.65, 0.8)
    placements: tuple[str, ...] = ("sparrow", "batch", "per_task", "random")
    seconds: float = 40.0


def emulated_tpch(parameters: EmulatedTpch, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of queries under each placement, and without any queueing (the ideal)."""
    part = steps(advance, len(parameters.loads) * len(parameters.placements))
    rows: list[Response] = []
    for load in parameters.loads:
        plan = _TpchPlan(parameters, load, seed)
        for placement in parameters.placements:
            with EmulatedCluster(
                nodes=parameters.nodes, slots=parameters.slots, schedulers=parameters.schedulers,
                processes=parameters.processes, seed=seed,
            ) as cluster:  # fmt: skip
                queries = plan.queries(placement)
                share = 1 / len(queries)
                times = run_queries(cluster.front, queries, lambda: part(share))  # noqa: B023
            rows += plan.rows(f"{load:.0%} load", NAMES[placement], times)
        rows += plan.rows(f"{load:.0%} load", "ideal", plan.ideal_s())
    return rows


class _TpchPlan:
    """Which user asks for which query when, and where the partitions lie."""

    def __init__(self, parameters: EmulatedTpch, load: float, seed: int) -> None:
        recorded = {query.name: query for query in shipped_recording().queries}
        self._recorded = [recorded[name] for name in parameters.queries]
        self._parameters = parameters
        rng = Random(f"{seed} {load}")
        times = [
            time for query in self._recorded for stage in query.stages for time in stage.task_ms
        ]
        self._scale = parameters.mean_task_ms * len(times) / sum(times) / 1000
        work_s = self._scale * sum(times) / len(self._recorded)  # of a query, on average
        rate = load * parameters.nodes * parameters.slots / work_s
        partitions = max(len(s.task_ms) for query in self._recorded for s in query.stages)
        nodes = [f"n{number}" for number in range(parameters.nodes)]
        self._homes = [
            [tuple(rng.sample(nodes, parameters.replicas)) for _ in range(partitions)]
            for _ in range(parameters.users)
        ]
        self._arrivals: list[tuple[float, int, int]] = []
        at_s = 0.0
        while (at_s := at_s + rng.expovariate(rate)) < parameters.seconds:
            user = rng.randrange(parameters.users)
            self._arrivals.append((at_s, user, rng.randrange(len(self._recorded))))

    def queries(self, placement: str) -> list[Query]:
        """All that is asked for."""
        return [
            Query(at_s, tuple(
                QueryStage(self._job(placement, user, stage), stage.after)
                for stage in self._recorded[number].stages
            ))
            for at_s, user, number in self._arrivals
        ]  # fmt: skip

    def _job(self, placement: str, user: int, stage: RecordedStage) -> JobSpec:
        homes = self._homes[user] if stage.reads_partitions else None
        tasks = tuple(
            TaskSpec(task_id, payload_of(time_ms * self._scale), homes[task_id] if homes else ())
            for task_id, time_ms in enumerate(stage.task_ms)
        )
        return JobSpec(tasks, user=f"user {user}", placement=placement)

    def ideal_s(self) -> list[float]:
        """Response times if each task started as soon as its stage can."""
        ideal = [_critical_path(query.stages, self._scale) for query in self._recorded]
        return [ideal[number] for _, _, number in self._arrivals]

    def rows(self, panel: str, series: str, times_s: Sequence[float]) -> list[Response]:
        """A row for each query."""
        rows = []
        for number, query in enumerate(self._recorded):
            counted = [
                time_s
                for time_s, (at_s, _, asked) in zip(times_s, self._arrivals, strict=True)
                if asked == number and at_s >= self._parameters.seconds / 5
            ]
            if counted:
                rows.append(response(panel, series, float(query.name.removeprefix("q")), counted))
        return rows


def _critical_path(stages: Iterable[RecordedStage], scale: float) -> float:
    ends: list[float] = []
    for stage in stages:
        begin = max((ends[each] for each in stage.after), default=0.0)
        ends.append(begin + scale * max(stage.task_ms))
    return max(ends)


def _tpch_findings(load: float) -> tuple[Finding, ...]:
    panel, sparrow = f"{load:.0%} load", NAMES["sparrow"]
    over_ideal = over_all_x((panel, sparrow), (panel, "ideal"))
    tail = over_all_x((panel, NAMES["random"]), (panel, sparrow), "p95_ms")
    return (
        Finding(
            f"medians over the ideal, mean over queries, {panel} (%)", "12 to 14",
            percent(over_ideal),
        ),
        Finding(f"95th percentile of random against it, {panel} (times)", "over 6", tail),
    )  # fmt: skip


_TINY = Sleeping(6, 2, 1, 1, 4, 20.0, (0.5,), 0.6, 30)

EXPERIMENTS = (
    Experiment(
        "emulated-delay",
        "Simulated and emulated: 100 nodes of 4 slots, jobs of ten 100 ms tasks",
        "Batch Sampling, figure 9",
        "emulated",
        Sleeping(),
        _TINY,
        emulated_delay,
        Chart("Load"),
        tuple(
            Finding(
                f"median emulated over simulated, {load:.0%} load (%)",
                "within 3" if load <= 0.7 else "",
                percent_over(value("emulated", load), value("simulated", load)),
            )
            for load in (0.2, 0.4, 0.6, 0.7, 0.8)
        ),
    ),
    Experiment(
        "breakdown",
        "Where the time of a task goes: 100 nodes of 4 slots at 80 % load",
        "Sparrow, figure 9",
        "emulated",
        Breakdown(),
        Breakdown(_TINY),
        breakdown,
        Chart("Time (ms)", "Share", "steps", log_x=True),
        (
            Finding("reservation on its way, median (ms)", "a few", quantile("reservation", 0.5)),
            Finding("request for tasks, median (ms)", "a few", quantile("request", 0.5)),
        ),
    ),
    Experiment(
        "emulated-tpch",
        "TPC-H stages of 10 users on 100 nodes, with recorded task times",
        "Batch Sampling, figures 10 and 11; Sparrow, figure 8",
        "emulated",
        EmulatedTpch(),
        EmulatedTpch(2, 6, 8, 1, 1, 2, 5.0, ("q6",), (0.5,), ("sparrow",), 0.6),
        emulated_tpch,
        Chart("TPC-H query", log_y=True),
        tuple(finding for load in (0.65, 0.8) for finding in _tpch_findings(load)),
    ),
)
