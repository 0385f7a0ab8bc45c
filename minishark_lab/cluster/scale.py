"""What `scale` predicts for other clusters, beside measurements on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minishark
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import find_tables, load_tables
from minishark.compiler.rules import RULES
from minishark.compiler.rules.rule import Phase
from minishark.session.session import Session
from minishark_lab.harness.experiment import Advance, Chart, Experiment
from minishark_lab.harness.findings import Finding
from minishark_lab.harness.rows import Point, Row
from minishark_lab.sparrow.scale_model import Machines, ScaleModel, shipped_recordings
from minishark_lab.sparrow.scale_out import predict
from minishark_lab.tpch.data import Silent, tpch_folder


@dataclass(frozen=True, kw_only=True)
class ScaleCheck:
    """A cluster on this machine, to compare with."""

    scale: float = 1.0
    data: str = ""  # folder of generated data; "" for the default
    nodes: tuple[int, ...] = (1, 2)  # of one slot each; at most as many as there are cores
    repetitions: int = 3  # the best counts
    queries: tuple[int, ...] = tuple(range(1, 23))


def scale_check(parameters: ScaleCheck, seed: int, advance: Advance) -> Sequence[Row]:
    """Each query's time on this machine, and as the model predicts it."""
    model = ScaleModel(shipped_recordings())
    texts = load_queries(parameters.queries)
    rows: list[Row] = []
    for nodes in parameters.nodes:
        # Nodes of one machine share files: nothing is fetched.
        machines = Machines(nodes=nodes, slots=1, gbit_s=1e9, rtt_ms=0.2, request_ms=0.0)
        predicted = predict(model, parameters.scale, machines, seed, tasks=nodes)
        measured = _measured(parameters, texts, nodes)
        advance(1 / len(parameters.nodes))
        for number in texts:
            panel = _panel(nodes)
            rows.append(Point(panel=panel, series="measured", x=number, y=measured[number]))
            found_s = predicted[f"q{number}"]
            rows.append(Point(panel=panel, series="predicted", x=number, y=found_s))
    return rows


def _panel(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def as_recorded(tasks: int) -> dict[str, Any]:
    """Options of `connect` for plans as they were recorded, with so many tasks per stage."""
    adaptive = [rule.name for rule in RULES if rule.phase is Phase.ADAPTIVE]
    return {
        "partitions": tasks,
        "single_task_rows": 1,
        "disabled_optimizations": ["one_task", "coalesced_tasks", *adaptive],
    }


def best_times(
    session: Session, folder: Path, texts: dict[int, str], tasks: int, repetitions: int
) -> dict[int, float]:
    """The shortest time of each query, in seconds, over TPC-H's tables from the files in a folder.

    The session has the options of `as_recorded`.
    """
    load_tables(session, find_tables(folder), Silent(), partitions=tasks, replicas=1)
    best: dict[int, float] = {}
    for _ in range(repetitions + 1):  # the first one makes plans
        for number, text in texts.items():
            began_s = time.perf_counter()
            session.sql(text).to_arrow()
            took_s = time.perf_counter() - began_s
            best[number] = min(took_s, best.get(number, took_s))
    return best


def _measured(parameters: ScaleCheck, texts: dict[int, str], nodes: int) -> dict[int, float]:
    folder = tpch_folder(parameters.scale, parameters.data)
    with minishark.connect(nodes=nodes, executors_per_node=1, **as_recorded(nodes)) as session:
        return best_times(session, folder, texts, nodes, parameters.repetitions)


def _error(nodes: int) -> Finding:
    def read(rows: Sequence[Row]) -> float:
        sums = {
            series: sum(
                row.y
                for row in rows
                if isinstance(row, Point) and (row.panel, row.series) == (_panel(nodes), series)
            )
            for series in ("predicted", "measured")
        }
        if not sums["measured"]:
            raise LookupError
        return 100 * (sums["predicted"] / sums["measured"] - 1)

    return Finding(
        f"predicted over measured, all queries, {_panel(nodes)} (%)", "", read, "{:+.0f}"
    )


EXPERIMENTS = (
    Experiment(
        name="scale-check",
        title="The predictions of `scale` beside measurements on this machine",
        source="beyond the papers",
        kind="live",
        parameters=ScaleCheck(),
        quick=ScaleCheck(scale=0.0, nodes=(1,), repetitions=1, queries=(1, 6)),
        run=scale_check,
        chart=Chart(x="TPC-H query", y="Response time (s)", style="lines", category="Q{:g}"),
        findings=(_error(1), _error(2)),
    ),
)
