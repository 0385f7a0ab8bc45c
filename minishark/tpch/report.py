"""What a TPC-H run found, as data, as a table and as JSON."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text


class QueryOutcome(msgspec.Struct, frozen=True):
    """One query's runs; where they differ, what is not a time is of the last one.

    Attributes:
        number: From 1 to 22.
        duckdb_times_s: DuckDB's time for each repetition, over views of the same Parquet files.
        times_s: minishark's, from SQL text to Arrow table.
        rows: How many rows the answer has.
        stages: How many stages the query ran in.
        tasks: How many tasks these had.
        constrained_tasks: How many of the tasks name preferred nodes.
        local_tasks: How many of those ran on one of them.
        planning_s: The part of the time that went into planning.
        differences: What distinguishes the answer from DuckDB's; or the error, if there is none.
        warnings: What the engine warned of.
    """

    number: int
    duckdb_times_s: tuple[float, ...]
    times_s: tuple[float, ...] = ()
    rows: int = 0
    stages: int = 0
    tasks: int = 0
    constrained_tasks: int = 0
    local_tasks: int = 0
    planning_s: float = 0.0
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        """Whether the answer equals DuckDB's."""
        return not self.differences


class Report(msgspec.Struct, frozen=True):
    """A whole run.

    Attributes:
        parameters: What was asked for, and what followed from it.
        versions: Of minishark, its main dependencies, Python and the platform.
        load_s: How long it took to load the eight tables.
        outcomes: One a query.
    """

    parameters: dict[str, Any]
    versions: dict[str, str]
    load_s: float
    outcomes: tuple[QueryOutcome, ...]

    @property
    def correct(self) -> int:
        """How many answers equal DuckDB's."""
        return sum(outcome.correct for outcome in self.outcomes)

    @property
    def all_correct(self) -> bool:
        """Whether all answers equal DuckDB's."""
        return self.correct == len(self.outcomes)

    @property
    def verdict(self) -> str:
        """The last line, such as `22 of 22 correct`."""
        return f"{self.correct} of {len(self.outcomes)} correct"

    def to_json(self) -> bytes:
        """The whole report, with every repetition and the totals, as indented JSON."""
        fields = msgspec.to_builtins(self)
        fields["queries"] = fields.pop("outcomes")
        fields["totals"] = _totals(self.outcomes)
        fields["correct"] = self.correct
        return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def print_report(report: Report, console: Console) -> None:
    """Prints the table, what is wrong if something is, and the verdict as the last line."""
    console.print(_render(report))
    console.print(report.verdict, style="bold green" if report.all_correct else "bold red")


def _render(report: Report) -> RenderableType:
    wrong = [outcome for outcome in report.outcomes if not outcome.correct]
    reasons = [
        Text(f"Query {outcome.number} is wrong: {sentence}", style="red")
        for outcome in wrong
        for sentence in outcome.differences
    ]
    return Group(_table(report), Text(_caption(report), style="dim"), *reasons)


def _table(report: Report) -> Table:
    repeated = any(len(outcome.times_s) > 1 for outcome in report.outcomes)
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),  # all columns fit into 80 characters
        show_footer=True,
    )
    totals = _totals(report.outcomes)
    footers = {
        "query": "total",
        "ms": _milliseconds(totals["best_s"]),
        "median ms": _milliseconds(totals["median_s"]),
        "DuckDB ms": _milliseconds(totals["duckdb_best_s"]),
        "ratio": _ratio(totals["best_s"], totals["duckdb_best_s"]),
        "stages": str(totals["stages"]),
        "tasks": str(totals["tasks"]),
        "local": _share(totals["local_tasks"], totals["constrained_tasks"]),
        "correct": str(report.correct),
    }
    headers = ["query", "rows", "ms", "median ms", "DuckDB ms", "ratio", "stages", "tasks"]
    for header in [*headers, "local", "correct"]:
        if repeated or header != "median ms":
            table.add_column(header, footers.get(header, ""), justify="right", no_wrap=True)
    for outcome in report.outcomes:
        cells = _cells(outcome)
        if not repeated:
            del cells[3]
        table.add_row(*cells)
    return table


def _cells(outcome: QueryOutcome) -> list[RenderableType]:
    best, duckdb_best = _best(outcome.times_s), _best(outcome.duckdb_times_s)
    return [
        f"Q{outcome.number}",
        f"{outcome.rows:,}",
        _milliseconds(best),
        _milliseconds(_median(outcome.times_s)),
        _milliseconds(duckdb_best),
        _ratio(best, duckdb_best),
        str(outcome.stages),
        str(outcome.tasks),
        _share(outcome.local_tasks, outcome.constrained_tasks),
        Text("yes", style="green") if outcome.correct else Text("NO", style="bold red"),
    ]


def _caption(report: Report) -> str:
    asked = report.parameters
    once = ", each query run once: code and caches are cold, --repetitions 5 shows more"
    best = f", best of {asked['repetitions']}" if asked["repetitions"] > 1 else once
    return (
        f"TPC-H at scale {asked['scale']:g}{best}.\n"
        f"minishark: {asked['nodes']} nodes x {asked['executors']} executors, "
        f"{asked['placement']} placement, tables in memory.\n"
        f"DuckDB: {asked['slots']} threads, reading the Parquet files anew for each query.\n"
        "ratio: minishark's time / DuckDB's; below 1, minishark is faster.\n"
        "local: the share of the tasks with preferred nodes that ran on one of them.\n"
    )


def _totals(outcomes: tuple[QueryOutcome, ...]) -> dict[str, Any]:
    return {
        "best_s": sum(_best(outcome.times_s) for outcome in outcomes),
        "median_s": sum(_median(outcome.times_s) for outcome in outcomes),
        "duckdb_best_s": sum(_best(outcome.duckdb_times_s) for outcome in outcomes),
        "stages": sum(outcome.stages for outcome in outcomes),
        "tasks": sum(outcome.tasks for outcome in outcomes),
        "constrained_tasks": sum(outcome.constrained_tasks for outcome in outcomes),
        "local_tasks": sum(outcome.local_tasks for outcome in outcomes),
    }


def _best(times_s: tuple[float, ...]) -> float:
    return min(times_s, default=0.0)


def _median(times_s: tuple[float, ...]) -> float:
    return statistics.median(times_s) if times_s else 0.0


def _milliseconds(time_s: float) -> str:
    return f"{time_s * 1000:,.1f}" if time_s else "-"


def _ratio(time_s: float, reference_s: float) -> str:
    return f"{time_s / reference_s:.2f}" if time_s and reference_s else "-"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
