"""Tables for a terminal: one line per series, one column per x."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sparrow_core.lab.experiment import AnyExperiment
from sparrow_core.lab.findings import available
from sparrow_core.lab.rows import Point, Response, Row

_COLUMNS_MAX = 12
_PARTS = 5  # columns for lines with more than _COLUMNS_MAX points
_PERCENTILES = (5, 50, 95)


@dataclass(frozen=True)
class Table:
    """A title, a header and lines of cells."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def summary(experiment: AnyExperiment, rows: Sequence[Row]) -> list[Table]:
    """A table per panel, and one of the key figures beside the paper's."""
    panels = dict.fromkeys(row.panel for row in rows)
    tables = [
        _panel(experiment, panel, [row for row in rows if row.panel == panel]) for panel in panels
    ]
    if findings := available(experiment.findings, rows):
        tables.append(Table(experiment.source, ("figure", "paper", "here"), tuple(findings)))
    return tables


def _panel(experiment: AnyExperiment, panel: str, rows: Sequence[Row]) -> Table:
    chart = experiment.chart
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.series, []).append(row)
    title = ", ".join(filter(None, (panel, chart.y if chart.style != "steps" else chart.x)))
    if chart.style == "steps":
        header = tuple(f"{percent}th percentile" for percent in _PERCENTILES)
        cells = {name: _percentiles(line) for name, line in lines.items()}
        return _table(title, "", header, cells)
    title += ", median (95th percentile)" if isinstance(rows[0], Response) else ""
    xs = {row.x for row in rows}
    if not isinstance(rows[0], Response):  # formulas have more points than simulations
        xs = min(({row.x for row in line} for line in lines.values()), key=len)
    if len(xs) <= _COLUMNS_MAX:
        header = tuple(f"{x:g}" for x in sorted(xs))
        cells = {name: [_at(line, x) for x in sorted(xs)] for name, line in lines.items()}
        return _table(title, chart.x, header, cells)
    low, high = min(xs), max(xs)
    edges = [low + (high - low) * part / _PARTS for part in range(_PARTS + 1)]
    spans = list(itertools.pairwise(edges))
    header = tuple(f"{begin:g} to {end:g}" for begin, end in spans)
    cells = {name: [_mean(line, *span) for span in spans] for name, line in lines.items()}
    return _table(f"{title}, mean", chart.x, header, cells)


def _table(title: str, x: str, header: tuple[str, ...], cells: dict[str, list[str]]) -> Table:
    return Table(title, (x, *header), tuple((name, *line) for name, line in cells.items()))


def _at(line: Sequence[Row], x: float) -> str:
    """The value of a line at x, or for points, nearest to x."""
    row = min(line, key=lambda each: abs(each.x - x))
    if isinstance(row, Response):
        return f"{row.p50_ms:,.0f} ({row.p95_ms:,.0f})" if row.x == x else ""
    return f"{row.y:.4g}"


def _mean(line: Sequence[Row], begin: float, end: float) -> str:
    ys = [row.y for row in line if isinstance(row, Point) and begin <= row.x <= end]
    return f"{statistics.fmean(ys):.4g}" if ys else ""


def _percentiles(line: Sequence[Row]) -> list[str]:
    points = [row for row in line if isinstance(row, Point)]
    return [
        f"{min(point.x for point in points if point.y >= percent / 100):.4g}"
        for percent in _PERCENTILES
    ]
