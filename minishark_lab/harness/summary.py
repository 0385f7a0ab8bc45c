"""Tables for a terminal: one line per series, one column per x."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minishark_lab.harness.experiment import AnyExperiment
from minishark_lab.harness.findings import available, with_interval
from minishark_lab.harness.rows import Point, Response, Row, across

_COLUMNS_MAX = 12
_PARTS = 5  # columns for lines with more than _COLUMNS_MAX points
_PERCENTILES = (5, 50, 95)


@dataclass(frozen=True)
class Table:
    """A title, a header and lines of cells."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def summary(experiment: AnyExperiment, runs: Sequence[Sequence[Row]]) -> list[Table]:
    """A table per panel, and one of the key figures beside the paper's, of one or several runs."""
    rows = across(runs)
    panels = dict.fromkeys(row.panel for row in rows)
    tables = [
        _panel(experiment, panel, [row for row in rows if row.panel == panel]) for panel in panels
    ]
    if late := [row for row in rows if isinstance(row, Response) and row.unfinished]:
        lines = tuple(
            (", ".join(filter(None, (row.panel, row.series))), f"{row.x:g}",
             f"{row.unfinished:,} of {row.jobs:,}")
            for row in late
        )  # fmt: skip
        title = "Jobs that had not ended when the run did, and are in no figure"
        tables.append(Table(title, ("", experiment.chart.x, "jobs"), lines))
    if early := unsettled(rows):
        title = "Not settled (!): queues had not forgotten how the run began, or rose, or fell"
        tables.append(Table(title, ("", experiment.chart.x), early))
    if findings := available(experiment.findings, runs):
        tables.append(Table(experiment.source, ("figure", "paper", "here"), tuple(findings)))
    return tables


def conclusion(experiment: AnyExperiment, runs: Sequence[Sequence[Row]]) -> str:
    """What the rows of all runs say, if the experiment puts that into words."""
    return "" if experiment.conclusion is None else experiment.conclusion(across(runs))


def unsettled(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """The series and x of rows that have not settled."""
    found: dict[str, dict[float, None]] = {}
    for row in rows:
        if not row.settled:
            found.setdefault(row.series, {})[row.x] = None
    return tuple((series, ", ".join(f"{x:g}" for x in xs)) for series, xs in found.items())


def _panel(experiment: AnyExperiment, panel: str, rows: Sequence[Row]) -> Table:
    chart = experiment.chart
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.series, []).append(row)
    what = "" if panel.endswith(chart.figures) else chart.y
    title = ", ".join(filter(None, (panel, what if chart.style != "steps" else chart.x)))
    if chart.style == "steps":
        header = tuple(f"{percent}th percentile" for percent in _PERCENTILES)
        cells = {name: _percentiles(line) for name, line in lines.items()}
        return _table(title, "", header, cells)
    title += ", median ± 95 % interval (95th percentile)" if isinstance(rows[0], Response) else ""
    xs = {row.x for row in rows}
    if not isinstance(rows[0], Response):  # formulas have more points than simulations
        xs = min(({row.x for row in line} for line in lines.values()), key=len)
    if len(xs) <= _COLUMNS_MAX:
        header = tuple(map(chart.label, sorted(xs)))
        cells = {
            name: [_at(line, x, chart.unit_ms) for x in sorted(xs)] for name, line in lines.items()
        }
        return _table(title, chart.x, header, cells)
    low, high = min(xs), max(xs)
    edges = [low + (high - low) * part / _PARTS for part in range(_PARTS + 1)]
    spans = list(itertools.pairwise(edges))
    header = tuple(f"{begin:g} to {end:g}" for begin, end in spans)
    cells = {name: [_mean(line, *span) for span in spans] for name, line in lines.items()}
    return _table(f"{title}, mean", chart.x, header, cells)


def _table(title: str, x: str, header: tuple[str, ...], cells: dict[str, list[str]]) -> Table:
    return Table(title, (x, *header), tuple((name, *line) for name, line in cells.items()))


def _at(line: Sequence[Row], x: float, unit_ms: float) -> str:
    """The value of a line at x; for lines of points, between those at its sides."""
    row = min(line, key=lambda each: abs(each.x - x))
    if isinstance(row, Response):
        if row.x != x:
            return ""
        shown = "{:,.0f}" if unit_ms == 1 else "{:,.1f}"
        median = with_interval(shown, row.p50_ms / unit_ms, row.p50_ci_ms / unit_ms)
        return f"{median} ({shown.format(row.p95_ms / unit_ms)}){_mark(row)}"
    if row.x == x:
        return _with_bounds(row)
    points = sorted((each.x, each.y) for each in line if isinstance(each, Point))
    xs, ys = ([pair[part] for pair in points] for part in (0, 1))
    return f"{np.interp(x, xs, ys):.4g}" if xs[0] <= x <= xs[-1] else ""


def _with_bounds(row: Point) -> str:
    """The point, with its interval: its bounds, where it is not in the middle."""
    above, below = row.high - row.y, row.y - row.low
    if math.isnan(row.y) or math.isnan(row.low) or math.isclose(above, below, rel_tol=0.01):
        return with_interval("{:.4g}", row.y, (row.high - row.low) / 2) + _mark(row)
    return f"{row.y:.3g} ({row.low:.3g} to {row.high:.3g}){_mark(row)}"


def _mark(row: Row) -> str:
    """What has not settled is marked, where something stands in its place at all."""
    return "" if row.settled or (isinstance(row, Point) and math.isnan(row.y)) else " !"


def _mean(line: Sequence[Row], begin: float, end: float) -> str:
    ys = [row.y for row in line if isinstance(row, Point) and begin <= row.x <= end]
    return f"{statistics.fmean(ys):.4g}" if ys else ""


def _percentiles(line: Sequence[Row]) -> list[str]:
    points = [row for row in line if isinstance(row, Point)]
    return [
        f"{min(point.x for point in points if point.y >= percent / 100):.4g}"
        for percent in _PERCENTILES
    ]
