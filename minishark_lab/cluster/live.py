"""Live comparison of placements: users submit TPC-H queries to a cluster on this machine.

Placements alternate in short rounds, so that other load on the machine affects all of them alike.
Beside each is its ideal, computed as in the papers from observed service times: the response times
if no task had waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import minishark
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import find_tables, load_tables
from minishark.errors import ExecutionError, OptionError
from minishark.query.metrics import QueryMetrics
from minishark.session.session import Session
from minishark_lab.harness.experiment import Advance, Chart, Experiment
from minishark_lab.harness.findings import Finding, over_all_x, percent
from minishark_lab.harness.parameters import check_placements
from minishark_lab.harness.rows import Response, response
from minishark_lab.sparrow.placements import COMPARED, NAMES
from minishark_lab.tpch_data import Silent, tpch_folder

_CALIBRATION_RUNS = 3


@dataclass(frozen=True, kw_only=True)
class LivePlacement:
    """Users on a cluster of this machine."""

    scale: float = 0.1  # TPC-H's scale factor; 0 for the bundled sample
    data: str = ""  # folder of generated data; "" for the default
    queries: tuple[int, ...] = (1, 3, 6, 12)  # of TPC-H, chosen at random
    nodes: int = 4  # of one executor each
    partitions: int = 8  # of each large table, on `replicas` nodes
    replicas: int = 2
    users: int = 4  # each submits queries as an independent Poisson process
    load: float = 0.6  # demanded work as a share of the capacity of `cores`
    cores: int = 2  # of this machine
    placements: tuple[str, ...] = COMPARED
    rounds: int = 4
    seconds: float = 8.0

    def __post_init__(self) -> None:
        check_placements(self.placements)


@dataclass(frozen=True)
class _Asked:
    """An answered query: its number, its response time, and its ideal."""

    number: int
    took_s: float
    ideal_s: float


def live_placement(parameters: LivePlacement, seed: int, advance: Advance) -> Sequence[Response]:
    """Response times of queries under each placement, observed and without queueing."""
    queries = load_queries(parameters.queries)
    with minishark.connect(
        nodes=parameters.nodes, executors_per_node=1, partitions=parameters.partitions,
        single_task_rows=0, disabled_optimizations=["coalesced_tasks"],
    ) as session:  # fmt: skip
        tables = find_tables(tpch_folder(parameters.scale, parameters.data))
        load_tables(
            session, tables, Silent(), partitions=parameters.partitions,
            replicas=parameters.replicas,
        )  # fmt: skip
        work_s = _calibrate(session, queries)
        asked: dict[str, list[_Asked]] = {name: [] for name in parameters.placements}
        total = parameters.rounds * len(parameters.placements)
        for number in range(parameters.rounds):
            for placement in parameters.placements:
                session.place(placement)
                rng = Random(f"{seed} {number}")  # the same queries for each placement
                asked[placement] += _round(session, queries, parameters, work_s, rng)
                advance(1 / total)
    if not all(asked.values()):
        raise OptionError("Too few queries were due in a round; set seconds or load higher.")
    return _rows(parameters, asked)


def _calibrate(session: Session, queries: dict[int, str]) -> float:
    """Average service time of a query on an idle cluster, in seconds."""
    works = []
    for _ in range(_CALIBRATION_RUNS):
        metrics = [_metrics_of(session, text) for text in queries.values()]
        works.append(sum(sum(stage.run_s) for each in metrics for stage in each.by_stage))
    return min(works) / len(queries)


def _metrics_of(session: Session, text: str) -> QueryMetrics:
    frame = session.sql(text)
    frame.to_arrow()
    return frame.metrics()


def ideal_s(metrics: QueryMetrics) -> float:
    """Response time if each task ran as soon as its stage's predecessors have finished."""
    ends: dict[int, float] = {}
    for stage in metrics.by_stage:
        begin = max((ends[each] for each in stage.after), default=metrics.planning_s)
        ends[stage.index] = begin + max(stage.run_s, default=0.0)
    return max(ends.values(), default=metrics.elapsed_s)


def _round(
    session: Session, queries: dict[int, str], parameters: LivePlacement, work_s: float, rng: Random
) -> list[_Asked]:
    """What all users asked with one placement."""
    rate = parameters.load * parameters.cores / work_s / parameters.users

    def ask(user: Random) -> list[_Asked]:
        asked = []
        started, due_s = time.perf_counter(), 0.0
        while (due_s := due_s + user.expovariate(rate)) < parameters.seconds:
            time.sleep(max(0.0, started + due_s - time.perf_counter()))
            number = user.choice(list(queries))
            metrics = _metrics_of(session, queries[number])
            # Measured from the due time (open loop), also if the last query took long.
            took_s = time.perf_counter() - started - due_s
            asked.append(_Asked(number, took_s, ideal_s(metrics)))
        return asked

    users = [Random(rng.random()) for _ in range(parameters.users)]
    with ThreadPoolExecutor(parameters.users) as pool:
        try:
            return [each for asked in pool.map(ask, users) for each in asked]
        except Exception as error:
            raise ExecutionError(f"A user's query failed: {error}") from error


def _rows(parameters: LivePlacement, asked: dict[str, list[_Asked]]) -> list[Response]:
    rows = []
    panels: tuple[tuple[str, Callable[[_Asked], float]], ...] = (
        ("as observed", lambda each: each.took_s),
        ("ideal, by observed service times", lambda each: each.ideal_s),
    )
    for panel, value in panels:
        for placement, found in asked.items():
            for number in parameters.queries:
                times = [value(each) for each in found if each.number == number]
                if times:
                    rows.append(response(panel, NAMES[placement], number, times))
    return rows


def _over_ideal(placement: str) -> Finding:
    name = NAMES[placement]
    over = percent(over_all_x(("as observed", name), ("ideal", name)))
    paper = "12 to 14" if placement == "sparrow" else ""
    return Finding(f"medians of {name} over its ideal, mean over queries (%)", paper, over)


EXPERIMENTS = (
    Experiment(
        name="placement",
        title="TPC-H queries of several users on a cluster of this machine",
        source="Batch Sampling, figures 10 and 11; Sparrow, figure 8, on one machine",
        kind="live",
        parameters=LivePlacement(),
        quick=LivePlacement(
            scale=0.0,
            queries=(1, 6),
            nodes=2,
            partitions=2,
            users=2,
            load=0.7,
            placements=("sparrow", "random"),
            rounds=1,
            seconds=1.0,
        ),
        run=live_placement,
        chart=Chart(x="TPC-H query", category="Q{:g}"),
        findings=tuple(map(_over_ideal, COMPARED)),
    ),
)
