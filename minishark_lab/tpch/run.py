"""A whole TPC-H run: make the data, load it, run the queries both ways, compare with DuckDB."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from minishark.cli.tpch.locations import default_data_folder, scale_folder
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries
from minishark.cli.tpch.tables import default_replicas, load_tables, tpch_tables
from minishark.compiler.physical.options import PlannerOptions
from minishark.errors import MinisharkError
from minishark.query.answers import differences
from minishark.session.connect import connect
from minishark_lab.tpch.generate import default_parts, generate
from minishark_lab.tpch.reference import Reference
from minishark_lab.tpch.report import QueryOutcome, Report, Runs

if TYPE_CHECKING:
    from minishark.cli.console import Reporter
    from minishark.session.session import Session

_PACKAGES = ("minishark", "duckdb", "pyarrow", "pyzmq")


class TpchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run."""

    scale: float = 0.1
    queries: tuple[int, ...] = tuple(range(1, QUERY_COUNT + 1))  # in the order in which they run
    nodes: int = 2
    executors: int = 1  # executors of each node
    partitions: int | None = None  # of each large table; None for the session's default
    replicas: int | None = None  # replicas of each partition; None for 2, or 1 on one node
    placement: str = "sparrow"  # a placement policy of `minishark.connect`
    repetitions: int = 1
    data: Path | None = None  # the folder of generated data; None for the default one
    cluster: str | None = None  # name or address of a running cluster; None starts a local one
    memory_limit: int | None = None  # of the local cluster, in bytes; None for 75 %


def run_tpch(options: TpchOptions, reporter: Reporter) -> Report:
    """Run TPC-H; a query that fails or answers wrongly is in the report, and the run goes on."""
    queries = load_queries(options.queries)
    tables = tpch_tables(_make_data(options, reporter))
    reporter.step("Starting the cluster")
    with connect(
        options.cluster,
        nodes=None if options.cluster else options.nodes,
        executors_per_node=None if options.cluster else options.executors,
        placement=options.placement,
        partitions=options.partitions,
        memory_limit=options.memory_limit,
    ) as session:
        load_s = _load(session, tables, options, reporter)
        with Reference(tables, session.total_slots) as reference:
            reporter.step("Running the queries")
            outcomes = []
            for number, text in queries.items():
                outcome = _run_query(session, reference, number, text, options.repetitions)
                outcomes.append(outcome)
                reporter.progress(len(outcomes), len(queries))
                reporter.detail(_one_line(outcome))
                for warning in dict.fromkeys((*outcome.planned.warnings, *outcome.staged.warnings)):
                    reporter.warning(f"Query {number}: {warning}")
        parameters = _parameters(options, session.total_slots)
        return Report(parameters, versions(), load_s, tuple(outcomes))


def versions() -> dict[str, str]:
    installed = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def _make_data(options: TpchOptions, reporter: Reporter) -> Path:
    root = options.data or default_data_folder()
    made = scale_folder(root, options.scale).is_dir()
    verb = "Reading" if made else "Making"
    reporter.step(f"{verb} TPC-H data at scale {options.scale:g}")
    parts = default_parts(options.scale)
    folder = generate(options.scale, root, parts=parts, on_progress=reporter.progress)
    reporter.detail(f"The data is in {folder}.")
    return folder


def _load(
    session: Session, tables: Mapping[str, str], options: TpchOptions, reporter: Reporter
) -> float:
    start = time.perf_counter()
    replicas = options.replicas or default_replicas(options.nodes)
    load_tables(session, tables, reporter, partitions=options.partitions, replicas=replicas)
    load_s = time.perf_counter() - start
    reporter.detail(f"Loaded the tables in {load_s:.2f} s.")
    for warning in session.warnings:
        reporter.warning(warning)
    return load_s


def _run_query(
    session: Session, reference: Reference, number: int, text: str, repetitions: int
) -> QueryOutcome:
    answers = [reference.run(text) for _ in range(repetitions)]
    expected = answers[0][0]
    order = reference.order(text, expected)
    # The same cluster and tables serve both ways: only the planner's options differ.
    planned = _run_all(session, text, repetitions, expected, order)
    with planned_in_stages(session):
        staged = _run_all(session, text, repetitions, expected, order)
    return QueryOutcome(number, tuple(time_s for _, time_s in answers), planned, staged)


@contextlib.contextmanager
def planned_in_stages(session: Session) -> Iterator[None]:
    """Run all queries of the block in stages over the nodes, however small their tables."""
    planner = session._runtime.engine.planner  # noqa: SLF001 - useful for comparisons only
    with planner.planned_with(PlannerOptions.eager(planner.options.partitions)):
        yield


def _run_all(
    session: Session, text: str, repetitions: int, expected: pa.Table, order: tuple[int, ...]
) -> Runs:
    """All repetitions; each answer must be right, and the first error ends them."""
    runs = Runs()
    try:
        for _ in range(repetitions):
            start = time.perf_counter()
            frame = session.sql(text)
            actual = frame.to_arrow()
            time_s = time.perf_counter() - start
            metrics = frame.metrics()
            wrong = runs.differences or tuple(differences(expected, actual, ordered_by=order))
            runs = Runs(
                times_s=(*runs.times_s, time_s),
                rows=actual.num_rows,
                stages=metrics.stages,
                tasks=metrics.tasks,
                constrained_tasks=metrics.constrained_tasks,
                local_tasks=metrics.local_tasks,
                planning_s=metrics.planning_s,
                differences=wrong,
                warnings=metrics.warnings,
            )
    except MinisharkError as error:
        failure = f"{type(error).__name__}: {error}"
        return msgspec.structs.replace(runs, differences=(failure,))
    return runs


def _one_line(outcome: QueryOutcome) -> str:
    planned, staged = outcome.planned, outcome.staged
    wrong = (*planned.differences, *staged.differences)
    return (
        f"Query {outcome.number}: {planned.rows} rows in {1000 * planned.best_s:.1f} ms, of which "
        f"{1000 * planned.planning_s:.1f} ms planning; {1000 * staged.best_s:.1f} ms in "
        f"{staged.stages} stages; {wrong[0] if wrong else 'correct'}"
    )


def _parameters(options: TpchOptions, slots: int) -> dict[str, Any]:
    resolved = msgspec.structs.replace(
        options,
        replicas=options.replicas or default_replicas(options.nodes),
        data=options.data or default_data_folder(),
    )
    parameters = msgspec.structs.asdict(resolved) | {"data": str(resolved.data)}
    return parameters | {"slots": slots, "cpus": os.cpu_count()}
