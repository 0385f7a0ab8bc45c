"""The 99 TPC-DS queries on minishark, in stages, beside DuckDB with native tables.

    python benchmarks/tpcds.py FOLDER --nodes 2 --partitions 4 --repetitions 3

`FOLDER` has the tables as Parquet files and the queries, as `benchmarks/tpcds_data.py` makes them.
Answers are compared before anything is measured (rows as a bag: many queries have ties within their
ORDER BY), and the exit status is 1 if one differs. Both hold the tables in memory and use the same
number of cores; their runs alternate. CPU time is that of all processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import duckdb
import msgspec

import minishark
from minishark.errors import MinisharkError
from minishark.query.answers import differences
from minishark.session.session import Session
from minishark_lab.harness.clocks import CpuClock, native_duckdb, timed
from minishark_lab.harness.parameters import Count, Natural
from minishark_lab.harness.script import Options, command, described, run_script


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Mean times of a query in seconds, minishark's and DuckDB's, and its stages and tasks."""

    query: str
    wall_s: tuple[float, float]
    cpu_s: tuple[float, float]
    stages: int
    tasks: int


@dataclass(frozen=True, kw_only=True)
class TpcdsOptions(Options):
    folder: Annotated[Path, described(positional=True)]
    nodes: Count = 2
    executors: Count = 1
    partitions: Count = 4
    single_task_rows: Natural = 0
    disable: tuple[str, ...] = ()
    repetitions: Annotated[Natural, described("0: compare answers only")] = 3


def main(options: TpcdsOptions) -> int:
    tables = {file.stem: str(file) for file in sorted(options.folder.glob("*.parquet"))}
    queries = {file.stem: file.read_text() for file in sorted(options.folder.glob("q*.sql"))}
    if not tables or not queries:
        sys.exit(f"{options.folder} has no tables or no queries; see benchmarks/tpcds_data.py.")
    wrong: dict[str, list[str]] = {}
    figures: list[Figures] = []
    with (
        minishark.connect(
            nodes=options.nodes,
            executors_per_node=options.executors,
            partitions=options.partitions,
            single_task_rows=options.single_task_rows,
            task_threads=1,
            disabled_optimizations=options.disable,
        ) as session,
        closing(native_duckdb(tables, session.total_slots)) as native,
    ):
        clock = CpuClock()
        for name, file in tables.items():
            session.create_table(name, file)
        for name, text in queries.items():
            found = _differences(session, native, text)
            if found:
                wrong[name] = found
            elif options.repetitions:
                figures.append(_measure(name, text, session, native, clock, options.repetitions))
    _print(figures, len(queries), wrong)
    options.write({"queries": figures, "wrong": wrong})
    return 1 if wrong else 0


def _differences(session: Session, native: duckdb.DuckDBPyConnection, text: str) -> list[str]:
    try:
        return differences(native.sql(text).to_arrow_table(), session.sql(text).to_arrow())
    except MinisharkError as error:
        return [f"{type(error).__name__}: {error}"]


def _measure(
    name: str,
    text: str,
    session: Session,
    native: duckdb.DuckDBPyConnection,
    clock: CpuClock,
    repetitions: int,
) -> Figures:
    wall_s, cpu_s = [0.0, 0.0], [0.0, 0.0]
    engines = (
        (clock.now_s, lambda: session.sql(text).to_arrow()),
        (time.process_time, lambda: native.sql(text).to_arrow_table()),
    )
    for _ in range(repetitions):
        for i, (now_s, answer) in enumerate(engines):
            begun_s = now_s()
            wall_s[i] += timed(answer) / repetitions
            cpu_s[i] += (now_s() - begun_s) / repetitions
    frame = session.sql(text)
    frame.to_arrow()
    metrics = frame.metrics()
    return Figures(
        query=name,
        wall_s=(wall_s[0], wall_s[1]),
        cpu_s=(cpu_s[0], cpu_s[1]),
        stages=metrics.stages,
        tasks=metrics.tasks,
    )


def _print(figures: Sequence[Figures], queries: int, wrong: dict[str, list[str]]) -> None:
    print(f"    {command()}\n")
    print(f"{queries - len(wrong)} of {queries} correct.")
    for name, sentences in wrong.items():
        print(f"{name} is wrong: {' '.join(sentences)}")
    if not figures:
        return
    print("\nMean times in ms.\n")
    print("| query | wall | DuckDB | ratio | CPU | DuckDB | ratio | stages | tasks |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for each in figures:
        print(_row(each.query, each.wall_s, each.cpu_s, each.stages, each.tasks))
    wall_s = (sum(each.wall_s[0] for each in figures), sum(each.wall_s[1] for each in figures))
    cpu_s = (sum(each.cpu_s[0] for each in figures), sum(each.cpu_s[1] for each in figures))
    stages, tasks = sum(each.stages for each in figures), sum(each.tasks for each in figures)
    print(_row("total", wall_s, cpu_s, stages, tasks))


def _row(
    name: str, wall_s: tuple[float, float], cpu_s: tuple[float, float], stages: int, tasks: int
) -> str:
    cells = [
        f"{1e3 * own:.1f} | {1e3 * other:.1f} | {own / other:.2f}" for own, other in (wall_s, cpu_s)
    ]
    return f"| {name} | {' | '.join(cells)} | {stages} | {tasks} |"


if __name__ == "__main__":
    run_script(main, quick={"repetitions": 0})
