"""Emulated clusters: real schedulers, node monitors and ZeroMQ, but tasks that sleep."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from minishark_lab.harness.paired import (
    FIGURES,
    MEDIANS,
    OBSERVED,
    TAILS,
    comparison,
    in_words,
    over_first,
    over_ideal,
)
from minishark_lab.harness.parameters import Count, Loads, Positive
from minishark_lab.harness.rows import Point, Response, Row, distribution, response
from minishark_lab.models.express import ExpressCluster
from minishark_lab.simulator.cluster import payload_of
from minishark_lab.sparrow.emulation import EmulatedCluster, run_queries
from minishark_lab.sparrow.placements import NAMES
from minishark_lab.sparrow.queries import Query, QueryStage, simulate_queries
from minishark_lab.sparrow.recorded import TpchPlan, TpchUsers
from sparrow_core.observe.audit import AuditEvent
from sparrow_core.protocol.types import TaskSpec
from sparrow_core.runtime.specs import JobSpec

SIMULATED = ", simulated"  # what such series end with


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


def emulated_tpch(parameters: TpchUsers, seed: int, advance: Advance) -> Sequence[Row]:
    """Response times of queries by placement, without queueing, and beside the first placement's.

    Each placement has a cluster of its own, and all clusters run at the same time: what else this
    machine does meets them alike.
    """

    def measure(load: float, part: Advance) -> Iterator[Row]:
        plan = TpchPlan(parameters, load, seed)
        placements = parameters.placements
        with contextlib.ExitStack() as stack:
            clusters = [stack.enter_context(_emulate(parameters, seed)) for _ in placements]
            pool = stack.enter_context(ThreadPoolExecutor(len(placements)))
            runs = [
                pool.submit(
                    run_queries, cluster.client, plan.queries(placement),
                    lambda share: part(share / len(placements)),
                )
                for placement, cluster in zip(placements, clusters, strict=True)
            ]  # fmt: skip
            times_s = [run.result() for run in runs]
        named = dict(zip(map(NAMES.__getitem__, placements), times_s, strict=True))
        yield from _compared(plan, named, load)
        if placements[0] == "sparrow":
            simulated = _simulated(parameters, plan, placements[:1], seed)
            rows = _compared(plan, simulated, load)
            yield from (r for r in rows if r.panel.endswith(OBSERVED) and r.series in simulated)

    return over_cases(product(parameters.loads), measure, advance)


def simulated_tpch(parameters: TpchUsers, seed: int, advance: Advance) -> Sequence[Row]:
    """The same without emulation."""

    def measure(load: float, part: Advance) -> Iterator[Row]:
        plan = TpchPlan(parameters, load, seed)
        yield from _compared(plan, _simulated(parameters, plan, parameters.placements, seed), load)
        part(1.0)

    return over_cases(product(parameters.loads), measure, advance)


def _simulated(
    parameters: TpchUsers, plan: TpchPlan, placements: Sequence[str], seed: int
) -> dict[str, list[float]]:
    """Response times by series."""
    return {
        NAMES[placement] + SIMULATED: simulate_queries(
            ExpressCluster(nodes=parameters.nodes, slots=parameters.slots, seed=seed),
            plan.queries(placement),
        )
        for placement in placements
    }


def _compared(plan: TpchPlan, times_s: Mapping[str, Sequence[float]], load: float) -> Iterator[Row]:
    blocks = {name: plan.blocks(own) for name, own in times_s.items()}
    enough = plan.length.is_enough
    return comparison(blocks, settled=enough, numbers=plan.numbers, where=_at(load))


def _at(load: float) -> str:
    return f"{load:.0%} load: "


def tpch_findings(load: float, suffix: str = "") -> tuple[Finding, ...]:
    """Late binding over the ideal, and random placement over it."""
    first, random = (NAMES[each] + suffix for each in ("sparrow", "random"))
    at = _at(load)
    return (
        Finding(
            f"{at}medians of {first} over the ideal (%)", "12 to 14",
            percent(over_ideal(MEDIANS, first, at)),
        ),
        Finding(
            f"{at}95th percentiles of {first} over the ideal (%)", "",
            percent(over_ideal(TAILS, first, at)),
        ),
        Finding(
            f"{at}medians of {random} over its (times)", "",
            over_first(MEDIANS, random, first, at), "{:.2f}",
        ),
        Finding(
            f"{at}95th percentiles of {random} over its (times)", "over 6",
            over_first(TAILS, random, first, at), "{:.2f}",
        ),
    )  # fmt: skip


def _emulated_over_simulated(load: float) -> Finding:
    panel, first = _at(load) + OBSERVED, NAMES["sparrow"]
    over = percent(over_all_x((panel, first), (panel, first + SIMULATED)))
    return Finding(f"{_at(load)}emulated over simulated, mean of queries (%)", "", over)


_TINY = Sleeping(
    nodes=6, slots=2, schedulers=1, processes=1, tasks=4, task_ms=20.0, loads=(0.5,), seconds=0.6
)
_CHART = Chart(x="TPC-H query", y="", category="Q{:g}", zero="all", same_y=False, figures=FIGURES)
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
        chart=_CHART,
        findings=(
            *tpch_findings(0.65),
            _emulated_over_simulated(0.65),
            *tpch_findings(0.8),
            _emulated_over_simulated(0.8),
        ),
        conclusion=in_words,
    ),
    Experiment(
        name="simulated-tpch",
        title="The same, all simulated",
        source="Batch Sampling, figures 10 and 11; Sparrow, figure 8",
        kind="simulated",
        parameters=TpchUsers(mean_task_ms=100.0, loads=(0.65, 0.8), seconds=120.0),
        quick=_TINY_USERS,
        run=simulated_tpch,
        chart=_CHART,
        findings=(*tpch_findings(0.65, SIMULATED), *tpch_findings(0.8, SIMULATED)),
        conclusion=in_words,
    ),
)
