"""Live comparison of placements: queries come to a cluster on this machine, under each in turn.

There are as many slots as cores, so that what runs does not slow each other down. What the warm
cluster can do is measured first; queries then come at a share of that as a Poisson process, whether
or not earlier ones are done, in short blocks that are the same under each placement. Beside them is
their ideal, computed as in the papers from observed service times: the response times if no task
had waited.

A few cores leave little to choose from, and what else runs on them makes intervals wide. The quick
run has more nodes than cores, on which tasks sleep for as long as recorded ones took.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import duckdb

import minishark
from minishark.cli.data import tables_at
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import find_tables, load_tables
from minishark.errors import DataError, ExecutionError, OptionError
from minishark.query.metrics import QueryMetrics
from minishark.session.session import Session
from minishark.worker.cores import usable_cores
from minishark_lab.harness.experiment import Advance, Chart, Experiment
from minishark_lab.harness.findings import Finding, percent
from minishark_lab.harness.lengths import ENOUGH, spread
from minishark_lab.harness.paired import (
    BLOCKS_MIN,
    FIGURES,
    MEDIANS,
    Asked,
    comparison,
    in_words,
    over_ideal,
)  # fmt: skip
from minishark_lab.harness.parameters import Load, Names, Natural, Positive, check_placements
from minishark_lab.harness.rows import Row
from minishark_lab.models.analysis import pooled_relaxation_time, queue_relaxation_time
from minishark_lab.sparrow.emulated import SIMULATED, emulated_tpch, tpch_findings
from minishark_lab.sparrow.placements import COMPARED, NAMES
from minishark_lab.sparrow.recorded import TpchUsers
from minishark_lab.tpch.data import Silent, tpch_folder

_WARMING = 3  # times that each query is run before anything is measured
_CALIBRATION_S = 3.0
_MANY_NODES = "minishark bench emulated-tpch"
_LONGER_MAX = 3.0
_QUICK_LOAD = 0.7
_AT_ONCE_MAX = 64  # queries; those that come while so many run wait, which counts


@dataclass(frozen=True, kw_only=True)
class LivePlacement:
    """A cluster on this machine, and the queries that come to it."""

    scale: float = 0.1  # TPC-H's scale factor; 0 for the bundled sample
    data: str = ""  # folder of generated data, or of your tables; "" for the default
    queries: tuple[int, ...] = (1, 3, 6, 12)  # of TPC-H, chosen at random
    sql: str = ""  # a file of SELECT statements, instead of these, over the tables in `data`
    nodes: Natural = 0  # of one executor each; 0 for as many as cores
    partitions: Natural = 0  # of each large table, on `replicas` nodes; 0 for twice the nodes
    replicas: Natural = 2
    load: Load = 0.65  # as a share of the most queries that the cluster can answer
    placements: Names = COMPARED  # all are compared with the first
    # How long queries come in all; up to three times as long, where `lengths` asks for it.
    seconds: Positive = 160.0
    # Tasks sleep for recorded times, on nodes as in `_ASLEEP`; but not if queries are your own.
    asleep: bool = False

    def __post_init__(self) -> None:
        check_placements(self.placements)

    @property
    def slots(self) -> int:
        return self.nodes or usable_cores()


# So many that placement shows, so few that their messages take a fraction of a core.
_ASLEEP = TpchUsers(
    users=4, nodes=20, slots=4, schedulers=1, processes=1, mean_task_ms=100.0,
    queries=("q3", "q6"),
)  # fmt: skip


@dataclass(frozen=True)
class _Capacity:
    """What the warm cluster does when it has always something to do."""

    rate: float  # answered queries per second
    task_s: float  # the mean time of a task
    spread_s: float  # of the work of queries, see `lengths.spread`

    def relaxation_s(self, load: float, slots: int) -> float:
        """How long queues take to forget: those of slots that are not compared, or all work."""
        alone_s = queue_relaxation_time(load, 1) * self.task_s
        return max(alone_s, pooled_relaxation_time(load, slots, self.spread_s))


def live_placement(parameters: LivePlacement, seed: int, advance: Advance) -> Sequence[Row]:
    """Response times of queries under each placement, observed, ideal, and beside the first's."""
    if parameters.asleep and not parameters.sql:
        loads, placements = (parameters.load,), parameters.placements
        return emulated_tpch(replace(_ASLEEP, loads=loads, placements=placements), seed, advance)
    queries = _queries(parameters)
    slots = parameters.slots
    with minishark.connect(
        nodes=slots, executors_per_node=1, partitions=parameters.partitions or 2 * slots,
        single_task_rows=0, disabled_optimizations=["coalesced_tasks"],
    ) as session:  # fmt: skip
        _load(session, parameters)
        session.place(parameters.placements[0])
        capacity = _calibrate(session, queries, 2 * slots)
        relaxation_s = capacity.relaxation_s(parameters.load, slots)
        # A block is so long that queues forget that it began with none, unless that takes for ever.
        placed = len(parameters.placements)
        most_s = _LONGER_MAX * parameters.seconds / (placed * BLOCKS_MIN)
        block_s = min(2 * ENOUGH * relaxation_s, most_s)
        count = max(BLOCKS_MIN, round(parameters.seconds / (placed * block_s)))
        asked: dict[str, list[list[Asked]]] = {name: [] for name in parameters.placements}
        for number in range(count):
            # In turn, and each as often first as last.
            for placement in parameters.placements[:: 1 if number % 2 else -1]:
                session.place(placement)
                rng = Random(f"{seed} {number}")  # the same queries for each placement
                due = list(_due(rng, queries, parameters.load * capacity.rate, block_s))
                asked[placement].append(_block(session, queries, due, block_s / 2))
                advance(1 / (count * placed))
    if not any(block for blocks in asked.values() for block in blocks):
        raise OptionError("No query was due while measuring; set seconds or load higher.")
    by_name = {NAMES[name]: blocks for name, blocks in asked.items()}
    enough = block_s >= 2 * ENOUGH * relaxation_s
    return list(comparison(by_name, settled=enough, numbers=tuple(queries)))


def _queries(parameters: LivePlacement) -> dict[int, str]:
    """The queries by number."""
    if not parameters.sql:
        return load_queries(parameters.queries)
    if not parameters.data:
        raise OptionError("Queries of your own need tables: give their folder with --data.")
    try:
        text = Path(parameters.sql).read_text(encoding="utf-8")
        statements = duckdb.extract_statements(text)
    except OSError as error:
        raise DataError(f"Can't read {parameters.sql} ({error.strerror}).") from error
    except duckdb.Error as error:
        raise OptionError(f"{parameters.sql} is no SQL: {error}") from error
    if not statements or any(each.type != duckdb.StatementType.SELECT for each in statements):
        raise OptionError(f"{parameters.sql} must have queries, and nothing but queries.")
    return {number: each.query for number, each in enumerate(statements, 1)}


def _load(session: Session, parameters: LivePlacement) -> None:
    partitions, replicas = parameters.partitions or None, parameters.replicas
    if not parameters.sql:
        tables = find_tables(tpch_folder(parameters.scale, parameters.data))
        load_tables(session, tables, Silent(), partitions=partitions, replicas=replicas)
        return
    for name, path in tables_at(Path(parameters.data)).items():
        session.create_table(name, path, partitions=partitions, replicas=replicas)


def _calibrate(session: Session, queries: dict[int, str], at_once: int) -> _Capacity:
    """What the cluster can do, measured while `at_once` users ask one query after the other.

    When it is warm: the first runs of a query take several times as long as later ones.
    """
    for _ in range(_WARMING):
        for text in queries.values():
            _metrics_of(session, text)
    texts = list(queries.values())

    def ask(first: int) -> list[QueryMetrics]:
        answered: list[QueryMetrics] = []
        while time.perf_counter() < ends:
            answered.append(_metrics_of(session, texts[(first + len(answered)) % len(texts)]))
        return answered

    began = time.perf_counter()
    ends = began + _CALIBRATION_S
    with ThreadPoolExecutor(at_once) as pool:
        answers = [each for own in pool.map(ask, range(at_once)) for each in own]
    took_s = time.perf_counter() - began
    tasks_s = [[run_s for stage in each.by_stage for run_s in stage.run_s] for each in answers]
    if not any(tasks_s):
        raise OptionError("The queries are answered without tasks: there is nothing to place.")
    return _Capacity(
        rate=len(answers) / took_s,
        task_s=statistics.fmean(each for tasks in tasks_s for each in tasks),
        spread_s=spread([sum(tasks) for tasks in tasks_s]),
    )


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


def _due(
    rng: Random, queries: dict[int, str], rate: float, seconds: float
) -> Iterator[tuple[float, int]]:
    """When which query is due, as a Poisson process."""
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(rate)) < seconds:
        yield at_s, rng.choice(list(queries))


def _block(
    session: Session, queries: dict[int, str], due: Sequence[tuple[float, int]], warm_s: float
) -> list[Asked]:
    """What was asked after the first seconds, in order; returns when all is answered."""
    # Measured from the due time (an open loop), also if a query waits for one of the threads.
    began = time.perf_counter()

    def ask(at_s: float, number: int) -> Asked:
        metrics = _metrics_of(session, queries[number])
        return Asked(number, time.perf_counter() - began - at_s, ideal_s(metrics))

    with ThreadPoolExecutor(_AT_ONCE_MAX) as pool:
        asked = []
        for at_s, number in due:
            time.sleep(max(0.0, began + at_s - time.perf_counter()))
            asked.append(pool.submit(ask, at_s, number))
        try:
            answers = [each.result() for each in asked]
        except Exception as error:
            raise ExecutionError(f"A query failed: {error}") from error
    return [each for (at_s, _), each in zip(due, answers, strict=True) if at_s >= warm_s]


def _over_ideal(placement: str) -> Finding:
    name = NAMES[placement]
    paper = "12 to 14" if placement == "sparrow" else ""
    over = percent(over_ideal(MEDIANS, name))
    return Finding(f"medians of {name} over its ideal, mean over queries (%)", paper, over)


def _in_words(rows: Sequence[Row]) -> str:
    asleep = any(row.series.endswith(SIMULATED) for row in rows)
    said = f"Tasks slept, for recorded times, on {_ASLEEP.nodes} nodes of {_ASLEEP.slots} slots.\n"
    return f"{said if asleep else ''}{in_words(rows)}\nA hundred nodes that sleep: {_MANY_NODES}"


EXPERIMENTS = (
    Experiment(
        name="placement",
        title="Queries on a cluster of this machine, at {load:.0%} of the most that it can do",
        source="Batch Sampling, figures 10 and 11; Sparrow, figure 8, on one machine",
        kind="live",
        parameters=LivePlacement(),
        quick=LivePlacement(
            scale=0.0,
            queries=(1, 6),
            placements=("sparrow", "random"),
            seconds=20.0,
            load=_QUICK_LOAD,
            asleep=True,
        ),
        run=live_placement,
        chart=Chart(x="Query", y="", category="Q{:g}", zero="all", same_y=False, figures=FIGURES),
        findings=(*map(_over_ideal, COMPARED), *tpch_findings(_QUICK_LOAD)),
        conclusion=_in_words,
    ),
)
