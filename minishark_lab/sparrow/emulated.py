"""Emulated clusters: real schedulers, node monitors and ZeroMQ, but tasks that sleep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from minishark_lab.harness.experiment import Advance, Chart, Experiment, over_cases
from minishark_lab.harness.findings import (
    Finding,
    over_all_x,
    percent,
    percent_over,
    quantile,
    value,
)
from minishark_lab.harness.parameters import Count, Loads, Positive
from minishark_lab.harness.rows import Point, Response, distribution, response
from minishark_lab.models.express import ExpressCluster
from minishark_lab.sparrow.emulation import EmulatedCluster, run_queries
from minishark_lab.sparrow.placements import NAMES
from minishark_lab.sparrow.queries import Query, QueryStage, simulate_queries
from minishark_lab.sparrow.recorded import TpchPlan, TpchUsers
from sparrow_core.observe.audit import AuditEvent
from sparrow_core.protocol.types import TaskSpec
from sparrow_core.runtime.specs import JobSpec
from sparrow_core.sim.cluster import payload_of


@dataclass(frozen=True, kw_only=True)
class Sleeping:
    """Jobs of ten equal tasks that sleep, as a Poisson process."""

    nodes: Count = 100  # of `slots` slots each, in `processes` processes
    slots: Count = 4
    schedulers: Count = 2
    processes: Count = 2
    tasks: Count = 10
    task_ms: Positive = 100.0
    loads: Loads = (0.2, 0.4, 0.6, 0.7, 0.8)  # shares of slots that are busy
    seconds: Positive = 12.0  # how long jobs arrive at each load; the first fifth is not measured


def _emulate(shape: Sleeping | TpchUsers, seed: int, *, audited: bool = False) -> EmulatedCluster:
    return EmulatedCluster(
        nodes=shape.nodes, slots=shape.slots, schedulers=shape.schedulers,
        processes=shape.processes, seed=seed, audited=audited,
    )  # fmt: skip


def _sleeping_jobs(parameters: Sleeping, load: float, seed: int) -> list[Query]:
    rng = Random(f"{seed} {load}")
    task_s = parameters.task_ms / 1000
    specs = tuple(TaskSpec(number, payload_of(task_s)) for number in range(parameters.tasks))
    rate = load * parameters.nodes * parameters.slots / (task_s * parameters.tasks)
    queries: list[Query] = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(rate)) < parameters.seconds:
        queries.append(Query(at_s, (QueryStage(JobSpec(tasks=specs)),)))
    return queries


def emulated_delay(parameters: Sleeping, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of the same jobs, emulated and simulated."""
    with _emulate(parameters, seed) as cluster:

        def measure(load: float, part: Advance) -> Iterator[Response]:
            queries = _sleeping_jobs(parameters, load, seed)
            times = run_queries(cluster.client, queries, part)
            simulated = ExpressCluster(nodes=parameters.nodes, slots=parameters.slots, seed=seed)
            found_by = {"emulated": times, "simulated": simulate_queries(simulated, queries)}
            for name, found in found_by.items():
                pairs = zip(queries, found, strict=True)
                counted = [each for query, each in pairs if query.at_s >= parameters.seconds / 5]
                yield response("", name, load, counted)

        return over_cases(product(parameters.loads), measure, advance)


# --- where the time of a task goes -------------------------------------------------------------


def breakdown(parameters: Sleeping, seed: int, advance: Advance) -> Sequence[Point]:
    """Distributions of message delays, queue times and service times, at the first load."""
    with _emulate(parameters, seed, audited=True) as cluster:
        queries = _sleeping_jobs(parameters, parameters.loads[0], seed)
        run_queries(cluster.client, queries, advance)
        events = cluster.end_and_read_audit()
    rows: list[Point] = []
    for name, spans_s in _spans(events).items():
        rows += distribution("", name, [1000 * max(1e-6, each) for each in spans_s])
    return rows


def _spans(events: Sequence[AuditEvent]) -> dict[str, list[float]]:
    """Times between events of the audit log, in seconds, by name."""
    begun: dict[tuple[str, str, str, int | None], list[float]] = defaultdict(list)
    spans: dict[str, list[float]] = defaultdict(list)
    starts = {
        "scheduler_launch_enqueue_task": "enqueue", "node_monitor_get_task_launch": "get task",
    }  # fmt: skip
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


def emulated_tpch(parameters: TpchUsers, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of queries by placement: emulated, simulated, and without queueing."""

    def measure(load: float, part: Advance) -> Iterator[Response]:
        plan, panel = TpchPlan(parameters, load, seed), f"{load:.0%} load"
        for placement in parameters.placements:
            with _emulate(parameters, seed) as cluster:
                times = run_queries(
                    cluster.client,
                    plan.queries(placement),
                    lambda share: part(share / len(parameters.placements)),
                )
            yield from plan.rows(panel, NAMES[placement], times)
        yield from _simulated(parameters, plan, panel, ("sparrow",), seed)

    return over_cases(product(parameters.loads), measure, advance)


def simulated_tpch(parameters: TpchUsers, seed: int, advance: Advance) -> Sequence[Response]:
    """The same without emulation."""

    def measure(load: float, part: Advance) -> Iterator[Response]:
        plan, panel = TpchPlan(parameters, load, seed), f"{load:.0%} load"
        yield from _simulated(parameters, plan, panel, parameters.placements, seed)
        part(1.0)

    return over_cases(product(parameters.loads), measure, advance)


def _simulated(
    parameters: TpchUsers, plan: TpchPlan, panel: str, placements: Sequence[str], seed: int
) -> list[Response]:
    rows: list[Response] = []
    for placement in placements:
        cluster = ExpressCluster(nodes=parameters.nodes, slots=parameters.slots, seed=seed)
        times = simulate_queries(cluster, plan.queries(placement))
        rows += plan.rows(panel, f"{NAMES[placement]}, simulated", times)
    return rows + plan.rows(panel, "ideal", plan.ideal_s())


def _tpch_findings(load: float, suffix: str = "") -> tuple[Finding, ...]:
    panel = f"{load:.0%} load"
    sparrow, random = (NAMES[each] + suffix for each in ("sparrow", "random"))
    over_ideal = percent(over_all_x((panel, sparrow), (panel, "ideal")))
    tail = over_all_x((panel, random), (panel, sparrow), "p95_ms")
    return (
        Finding(f"{sparrow} over the ideal, {panel}, mean of queries (%)", "12 to 14", over_ideal),
        Finding(f"95th percentile of {random} against it, {panel} (times)", "over 6", tail),
    )


def _emulated_over_simulated(load: float) -> Finding:
    panel, sparrow = f"{load:.0%} load", NAMES["sparrow"]
    over = percent(over_all_x((panel, sparrow), (panel, f"{sparrow}, simulated")))
    return Finding(f"emulated over simulated, {panel}, mean of queries (%)", "", over)


_TINY = Sleeping(
    nodes=6, slots=2, schedulers=1, processes=1, tasks=4, task_ms=20.0, loads=(0.5,), seconds=0.6
)
_TINY_USERS = TpchUsers(
    users=2, nodes=6, slots=8, schedulers=1, processes=1, replicas=2, mean_task_ms=5.0,
    queries=("q6",), loads=(0.5,), placements=("sparrow",), seconds=0.6,
)  # fmt: skip

EXPERIMENTS = (
    Experiment(
        name="emulated-delay",
        title="Simulated and emulated: {nodes} nodes of {slots} slots, jobs of {tasks} tasks of "
        "{task_ms:g} ms",
        source="Batch Sampling, figure 9",
        kind="emulated",
        parameters=Sleeping(),
        quick=_TINY,
        run=emulated_delay,
        chart=Chart(x="Load"),
        findings=tuple(
            Finding(
                f"median emulated over simulated, {load:.0%} load (%)",
                "within 3" if load <= 0.7 else "",
                percent_over(value("emulated", load), value("simulated", load)),
            )
            for load in (0.2, 0.4, 0.6, 0.7, 0.8)
        ),
    ),
    Experiment(
        name="breakdown",
        title="Where the time of a task goes: {nodes} nodes of {slots} slots at {loads:.0%} load",
        source="Sparrow, figure 9",
        kind="emulated",
        parameters=Sleeping(loads=(0.8,)),
        quick=_TINY,
        run=breakdown,
        chart=Chart(x="Time (ms)", y="Share", style="steps", log_x=True),
        findings=(
            Finding("reservation on its way, median (ms)", "a few", quantile("reservation", 0.5)),
            Finding("request for tasks, median (ms)", "a few", quantile("request", 0.5)),
        ),
    ),
    Experiment(
        name="emulated-tpch",
        title="TPC-H stages of {users} users on {nodes} nodes, with recorded task times",
        source="Batch Sampling, figures 10 and 11; Sparrow, figure 8",
        kind="emulated",
        parameters=TpchUsers(),
        quick=_TINY_USERS,
        run=emulated_tpch,
        chart=Chart(x="TPC-H query", category="Q{:g}", log_y=True),
        findings=(
            *_tpch_findings(0.65),
            _emulated_over_simulated(0.65),
            *_tpch_findings(0.8),
            _emulated_over_simulated(0.8),
        ),
    ),
    Experiment(
        name="simulated-tpch",
        title="The same, all simulated",
        source="Batch Sampling, figures 10 and 11; Sparrow, figure 8",
        kind="simulated",
        parameters=TpchUsers(seconds=120.0),
        quick=_TINY_USERS,
        run=simulated_tpch,
        chart=Chart(x="TPC-H query", category="Q{:g}", log_y=True),
        findings=(*_tpch_findings(0.65, ", simulated"), *_tpch_findings(0.8, ", simulated")),
    ),
)
