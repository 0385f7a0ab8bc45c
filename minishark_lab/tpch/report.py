"""The result of a TPC-H run: as data, as a table, as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """All repetitions of a query under one planner setting; counts are the last repetition's."""

    times_s: tuple[float, ...] = ()  # seconds of each repetition, from SQL text to Arrow table
    rows: int = 0
    stages: int = 0
    tasks: int = 0
    constrained_tasks: int = 0  # tasks with preferred nodes
    local_tasks: int = 0  # those of them that ran on a preferred node
    planning_s: float = 0.0
    differences: tuple[str, ...] = ()  # from DuckDB's answer, or the error of the failed query
    warnings: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        return not self.differences

    @property
    def best_s(self) -> float:
        """Seconds of the fastest repetition; 0 if the query failed."""
        return min(self.times_s, default=0.0)

    @property
    def median_s(self) -> float:
        """Median seconds of the repetitions; 0 if the query failed."""
        return statistics.median(self.times_s) if self.times_s else 0.0


class QueryOutcome(msgspec.Struct, frozen=True):
    """One query, run both ways."""

    number: int
    duckdb_times_s: tuple[float, ...]  # of each repetition, over the same Parquet files
    planned: Runs  # the runs as the planner chooses
    staged: Runs  # the runs in stages over the nodes, however small the tables

    @property
    def correct(self) -> bool:
        """Whether both answers equal DuckDB's."""
        return self.planned.correct and self.staged.correct

    @property
    def duckdb_best_s(self) -> float:
        return min(self.duckdb_times_s)


class Report(msgspec.Struct, frozen=True):
    """A whole run."""

    parameters: dict[str, Any]  # with defaults resolved, and the size of the machine
    versions: dict[str, str]
    load_s: float  # seconds that loading the eight tables took
    outcomes: tuple[QueryOutcome, ...]

    @property
    def all_correct(self) -> bool:
        """Whether all answers, of both ways, equal DuckDB's."""
        return all(outcome.correct for outcome in self.outcomes)

    @property
    def correct(self) -> int:
        """How many answers equal DuckDB's, planned as the planner chooses."""
        return sum(outcome.planned.correct for outcome in self.outcomes)

    @property
    def correct_in_stages(self) -> int:
        return sum(outcome.staged.correct for outcome in self.outcomes)

    @property
    def verdict(self) -> str:
        """The last line, such as `22 of 22 correct, 22 of 22 correct in stages`."""
        of = f"of {len(self.outcomes)} correct"
        return f"{self.correct} {of}, {self.correct_in_stages} {of} in stages"

    def to_json(self) -> bytes:
        """The whole report, with every repetition and the totals, as indented JSON."""
        # A query has the fields of its runs as planned, and those of its runs in stages below
        # `staged`; so have the totals.
        fields = msgspec.to_builtins(self)
        queries = fields.pop("outcomes")
        fields["queries"] = [query | query.pop("planned") for query in queries]
        fields["totals"] = {
            **_totals([outcome.planned for outcome in self.outcomes]),
            "duckdb_best_s": sum(outcome.duckdb_best_s for outcome in self.outcomes),
            "staged": _totals([outcome.staged for outcome in self.outcomes]),
        }
        fields["correct"] = self.correct
        fields["correct_in_stages"] = self.correct_in_stages
        return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def print_report(report: Report, console: Console) -> None:
    """Print the table, every difference from DuckDB's answers, and the verdict as the last line."""
    reasons = [
        Text(f"Query {outcome.number} is wrong{where}: {difference}", style="red")
        for outcome in report.outcomes
        for where, runs in (("", outcome.planned), (" in stages", outcome.staged))
        for difference in runs.differences
    ]
    console.print(Group(_table(report), Text(_caption(report), style="dim"), *reasons))
    console.print(report.verdict, style="bold green" if report.all_correct else "bold red")


def _table(report: Report) -> Table:
    repeated = report.parameters["repetitions"] > 1
    gap = 0 if repeated else 1  # all columns fit into 80 characters
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0), show_footer=True)
    duckdb_s = sum(outcome.duckdb_best_s for outcome in report.outcomes)
    planned = _totals([outcome.planned for outcome in report.outcomes])
    staged = _totals([outcome.staged for outcome in report.outcomes])
    median = [("\nmedian", _milliseconds(planned["median_s"]))] if repeated else []
    for header, footer in (
        ("\nquery", "total"),
        ("\nrows", ""),
        ("\nms", _milliseconds(planned["best_s"])),
        *median,
        ("DuckDB\nms", _milliseconds(duckdb_s)),
        ("\nratio", _ratio(planned["best_s"], duckdb_s)),
        ("staged\nms", _milliseconds(staged["best_s"])),
        ("\nstages", str(staged["stages"])),
        ("\ntasks", str(staged["tasks"])),
        ("\nlocal", _percent(staged["local_tasks"], staged["constrained_tasks"])),
        ("\ncorrect", str(sum(outcome.correct for outcome in report.outcomes))),
    ):
        table.add_column(header, footer, justify="right", no_wrap=True)
    for outcome in report.outcomes:
        table.add_row(*_cells(outcome, repeated=repeated))
    return table


def _cells(outcome: QueryOutcome, *, repeated: bool) -> list[RenderableType]:
    planned, staged = outcome.planned, outcome.staged
    return [
        f"Q{outcome.number}",
        f"{planned.rows:,}",
        _milliseconds(planned.best_s),
        *([_milliseconds(planned.median_s)] if repeated else []),
        _milliseconds(outcome.duckdb_best_s),
        _ratio(planned.best_s, outcome.duckdb_best_s),
        _milliseconds(staged.best_s),
        str(staged.stages),
        str(staged.tasks),
        _percent(staged.local_tasks, staged.constrained_tasks),
        Text("yes", style="green") if outcome.correct else Text("NO", style="bold red"),
    ]


def _caption(report: Report) -> str:
    asked = report.parameters
    alone = sum(outcome.planned.tasks == 1 for outcome in report.outcomes)
    runs = (
        f"best of {asked['repetitions']} runs"
        if asked["repetitions"] > 1
        else "one cold run of each query (try --repetitions 5)"
    )
    return (
        f"TPC-H at scale {asked['scale']:g}, {runs}; tables in memory, "
        f"{asked['slots']} slots.\n"
        f"ms: as the planner chooses; it ran {alone} of {len(report.outcomes)} queries "
        "as a single task.\n"
        f"DuckDB: over the Parquet files, {asked['slots']} threads. "
        "ratio: ms / DuckDB's.\n"
        f"staged: split into stages over {asked['nodes']} nodes, {asked['placement']} placement.\n"
        "local: tasks that ran on a preferred node, of those that have one.\n"
    )


def _totals(runs: Sequence[Runs]) -> dict[str, Any]:
    names = ("best_s", "median_s", "stages", "tasks", "constrained_tasks", "local_tasks")
    return {name: sum(getattr(run, name) for run in runs) for name in names}


def _milliseconds(time_s: float) -> str:
    decimals = 1 if time_s < 1 else 0
    return f"{time_s * 1000:,.{decimals}f}" if time_s else "-"


def _ratio(time_s: float, reference_s: float) -> str:
    return f"{time_s / reference_s:.2f}" if time_s and reference_s else "-"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
