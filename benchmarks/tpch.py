"""The 22 TPC-H queries on minishark, beside DuckDB with native tables and DuckDB over Arrow.

    python benchmarks/tpch.py --scale 1 --repetitions 5 --json tpch.json

All three hold the tables in memory and use the same number of threads. Their runs alternate, query
by query and repetition by repetition, so that other load affects all of them alike. Quote ratios,
because times depend on the machine. Answers are compared before anything is measured, and the
exit status is 1 if one differs.

With `--cpu`, CPU time is measured as well: of all processes for minishark, of this one for DuckDB.
It says something on a busy machine, too. Everything in stages, with a task for each partition that
is worth it:

    python benchmarks/tpch.py --cpu --nodes 4 --partitions 8 --task-threads 1 --single-task-rows 0
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import duckdb
import msgspec
import pyarrow as pa

import minishark
from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark.cli.tpch.tables import default_replicas, load_tables
from minishark.compiler.physical.options import SINGLE_TASK_ROWS
from minishark.errors import MinisharkError
from minishark.query.answers import differences, output_order
from minishark.session.session import Session
from minishark_lab.harness.clocks import CpuClock, Steps, native_duckdb, timed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, command, described, run_script
from minishark_lab.tpch.reference import create_views
from minishark_lab.tpch.run import versions

ENGINES = MINISHARK, NATIVE, ARROW = "minishark", "duckdb_native", "duckdb_arrow"
# The newest Arrow layout that DuckDB writes: small decimals take 8 bytes instead of 16.
ARROW_LAYOUT = "1.5"
_SETTLING_S = 0.02

Answer = Callable[[str], pa.Table]


class Measurement(msgspec.Struct, frozen=True):
    """A query's times by engine, one per repetition, and its stages and tasks."""

    query: int
    times_s: dict[str, list[float]]
    cpu_s: dict[str, list[float]]
    stages: int
    tasks: int

    def best_s(self, engine: str) -> float:
        return min(self.times_s[engine])

    def median_s(self, engine: str) -> float:
        return statistics.median(self.times_s[engine])

    def mean_cpu_s(self, engine: str) -> float:
        return statistics.mean(self.cpu_s[engine])

    def ratio(self, other: str) -> float:
        """Best time of minishark / best time of the other engine."""
        return self.best_s(MINISHARK) / self.best_s(other)


@dataclass(frozen=True, kw_only=True)
class QueriesOptions(TpchOptions):
    repetitions: Count = 5
    task_threads: Annotated[
        Count | None, described("1: queries run in stages; default: see connect()")
    ] = None
    partitions: Annotated[Count | None, described("of tables and shuffles")] = None
    single_task_rows: Count = SINGLE_TASK_ROWS
    disable: tuple[str, ...] = ()
    cpu: Annotated[bool, described("measure CPU time, too (Linux)")] = False
    queries: str = "1-22"
    nodes: Count = 2
    executors: Count = 1


def main(options: QueriesOptions) -> int:
    queries = load_queries(parse_selection(options.queries))
    reporter = Steps()
    reporter.step("Making data")
    tables = options.tables()
    with ExitStack() as stack:
        session = stack.enter_context(
            minishark.connect(
                nodes=options.nodes,
                executors_per_node=options.executors,
                task_threads=options.task_threads,
                partitions=options.partitions,
                single_task_rows=options.single_task_rows,
                disabled_optimizations=options.disable,
            )
        )
        clock = CpuClock() if options.cpu else None
        load_tables(session, tables, reporter, replicas=default_replicas(options.nodes))
        reporter.step("Loading DuckDB")
        native = stack.enter_context(native_duckdb(tables, session.total_slots))
        over_arrow = stack.enter_context(_over_arrow(tables, session.total_slots))
        engines: dict[str, Answer] = {
            MINISHARK: lambda text: session.sql(text).to_arrow(),
            NATIVE: lambda text: native.sql(text).to_arrow_table(),
            ARROW: lambda text: over_arrow.sql(text).to_arrow_table(),
        }
        reporter.step("Comparing the answers")
        wrong = _wrong(native, engines, queries)
        reporter.step("Measuring")
        measured = [
            _measure(number, text, engines, options.repetitions, clock, session)
            for number, text in queries.items()
            if number not in wrong
        ]
        parameters = {
            "scale": options.scale,
            "repetitions": options.repetitions,
            "nodes": options.nodes,
            "executors": options.executors,
            "threads": session.total_slots,
            "task threads": options.task_threads or session.total_slots,
            "partitions": options.partitions or session.total_slots,
            "single task rows": options.single_task_rows,
            "cpus": os.cpu_count(),
        }
    _print(parameters, measured, wrong)
    if options.cpu and measured:
        _print_cpu(measured)
    report = {
        "parameters": parameters,
        "queries": measured,
        "totals": _totals(measured) if measured else {},
        "wrong": {str(number): sentences for number, sentences in wrong.items()},
    }
    options.write(report)
    return 1 if wrong else 0


def _over_arrow(tables: Mapping[str, str], threads: int) -> duckdb.DuckDBPyConnection:
    """DuckDB over Arrow tables in this process's memory."""
    connection = duckdb.connect(config={"threads": threads})
    with duckdb.connect(config={"threads": threads}) as reader:
        reader.execute(f"SET arrow_output_version = '{ARROW_LAYOUT}'")
        create_views(reader, tables)
        for name in tables:
            connection.register(name, reader.sql(f"FROM {name}").to_arrow_table())
    return connection


def _wrong(
    reference: duckdb.DuckDBPyConnection, engines: Mapping[str, Answer], queries: Mapping[int, str]
) -> dict[int, list[str]]:
    """Wrong answers, by query."""
    wrong = {}
    for number, text in queries.items():
        expected = engines[NATIVE](text)
        order = output_order(reference, text, expected.column_names)
        try:
            found = differences(expected, engines[MINISHARK](text), ordered_by=order)
        except MinisharkError as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            wrong[number] = found
    return wrong


def _measure(
    number: int,
    text: str,
    engines: Mapping[str, Answer],
    repetitions: int,
    clock: CpuClock | None,
    session: Session,
) -> Measurement:
    times_s: dict[str, list[float]] = {name: [] for name in engines}
    cpu_s: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(repetitions):
        for name, answer in engines.items():
            now_s = clock.now_s if clock and name == MINISHARK else time.process_time
            begun_s = now_s()
            times_s[name].append(timed(lambda ask=answer: ask(text)))
            if clock:
                time.sleep(_SETTLING_S)  # what a query leaves to be done is its own
                cpu_s[name].append(now_s() - begun_s)
    frame = session.sql(text)
    frame.to_arrow()
    metrics = frame.metrics()
    return Measurement(number, times_s, cpu_s, metrics.stages, metrics.tasks)


def _totals(measured: Sequence[Measurement]) -> dict[str, dict[str, float]]:
    """Totals by engine; ratios are minishark / engine."""
    totals = {}
    for engine in ENGINES:
        best_s = sum(m.best_s(engine) for m in measured)
        ratios = [m.ratio(engine) for m in measured]
        totals[engine] = {
            "best_s": best_s,
            "median_s": sum(m.median_s(engine) for m in measured),
            "geometric_mean_s": statistics.geometric_mean(m.best_s(engine) for m in measured),
            "ratio_of_totals": sum(m.best_s(MINISHARK) for m in measured) / best_s,
            "geometric_mean_of_ratios": statistics.geometric_mean(ratios),
        }
    return totals


def _print(
    parameters: Mapping[str, object],
    measured: Sequence[Measurement],
    wrong: Mapping[int, list[str]],
) -> None:
    """Print Markdown for the documentation."""
    print(f"    {command()}\n")
    print(", ".join(f"{name} {value}" for name, value in parameters.items()), end="; ")
    print(", ".join(f"{name} {value}" for name, value in versions().items()), end=".\n")
    print("Times in ms, best (median).\n")
    print("| query | minishark | DuckDB native | DuckDB over Arrow | / native | / Arrow |")
    print("|---|---:|---:|---:|---:|---:|")
    for measurement in measured:
        cells = [
            f"{1000 * measurement.best_s(engine):.1f} ({1000 * measurement.median_s(engine):.1f})"
            for engine in ENGINES
        ]
        cells += [f"{measurement.ratio(engine):.2f}" for engine in (NATIVE, ARROW)]
        print(f"| Q{measurement.query} | {' | '.join(cells)} |")
    if measured:
        _print_totals(_totals(measured))
    for number, sentences in wrong.items():
        print(f"\nQuery {number} is wrong and was not measured: {' '.join(sentences)}")


def _print_cpu(measured: Sequence[Measurement]) -> None:
    print("\nCPU time of all processes in ms, mean.\n")
    print("| query | minishark | DuckDB native | / native | stages | tasks |")
    print("|---|---:|---:|---:|---:|---:|")
    total = dict.fromkeys((MINISHARK, NATIVE), 0.0)
    for each in measured:
        own_s, native_s = (each.mean_cpu_s(engine) for engine in total)
        total[MINISHARK] += own_s
        total[NATIVE] += native_s
        times = f"{1000 * own_s:.1f} | {1000 * native_s:.1f} | {own_s / native_s:.2f}"
        print(f"| Q{each.query} | {times} | {each.stages} | {each.tasks} |")
    stages, tasks = sum(each.stages for each in measured), sum(each.tasks for each in measured)
    times = " | ".join(f"{1000 * total_s:.0f}" for total_s in total.values())
    print(f"| total | {times} | {total[MINISHARK] / total[NATIVE]:.2f} | {stages} | {tasks} |")


def _print_totals(totals: Mapping[str, Mapping[str, float]]) -> None:
    cells = [
        f"{1000 * totals[engine]['best_s']:.0f} ({1000 * totals[engine]['median_s']:.0f})"
        for engine in ENGINES
    ]
    cells += [f"{totals[engine]['ratio_of_totals']:.2f}" for engine in (NATIVE, ARROW)]
    print(f"| total | {' | '.join(cells)} |")
    cells = [f"{1000 * totals[engine]['geometric_mean_s']:.1f}" for engine in ENGINES]
    cells += [f"{totals[engine]['geometric_mean_of_ratios']:.2f}" for engine in (NATIVE, ARROW)]
    print(f"| geometric mean | {' | '.join(cells)} |")


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "repetitions": 1, "queries": "1,6"})
