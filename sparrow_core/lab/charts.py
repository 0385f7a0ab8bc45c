"""Plots of rows, like those in the papers; needs matplotlib (the extra `bench`)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from sparrow_core.lab.experiment import Chart
from sparrow_core.lab.rows import Point, Response, Row
from sparrow_core.protocol.errors import SparrowError

_PANEL_INCHES = (4.6, 3.6)
_COLUMNS_MAX = 3
_STYLE: Any = {
    "font.size": 9.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 8.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "sparrow",
}
_SPREAD = 0.12  # share of the distance between two x, so that error bars do not overlap
_FEW = 15  # lines with at most this many points have markers


def require_matplotlib() -> None:
    """Raise SparrowError if it is not installed: before an experiment runs, not after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SparrowError("plots need matplotlib: pip install 'minishark[bench]'")


def draw(chart: Chart, title: str, rows: Sequence[Row]) -> Any:
    require_matplotlib()
    import matplotlib as mpl  # noqa: PLC0415 - heavy, and optional
    from matplotlib.figure import Figure  # noqa: PLC0415

    drawn = (row.panel for row in rows if row.panel not in chart.figures)
    panels = list(dict.fromkeys(drawn))
    columns = min(len(panels), _COLUMNS_MAX)
    lines = -(-len(panels) // columns)
    with mpl.rc_context(_STYLE):
        size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * lines + 0.4)
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, fontsize=10)
        first = None
        for place, panel in enumerate(panels, 1):
            axes = figure.add_subplot(lines, columns, place, sharey=first)
            first = axes if chart.same_y else None
            _draw_panel(axes, chart, panel, [row for row in rows if row.panel == panel])
    return figure


def save(figure: Any, file: Any) -> None:
    """Write a figure, reproducibly."""
    import matplotlib as mpl  # noqa: PLC0415 - heavy, and optional

    metadata = {"Date": None} if str(file).endswith(".svg") else {"Software": None}
    with mpl.rc_context(_STYLE):
        figure.savefig(file, metadata=metadata, dpi=110)


def _draw_panel(axes: Any, chart: Chart, panel: str, rows: Sequence[Row]) -> None:
    axes.set_title(panel, fontsize=9)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    names = list(dict.fromkeys(row.series for row in rows))
    shift = _shifts(chart, rows, len(names))
    for number, name in enumerate(names):
        own = [row for row in rows if row.series == name]
        _draw_series(axes, chart, name, own, partial(shift, number))
    if not chart.log_y:
        axes.set_ylim(bottom=0)
    axes.legend()


def _shifts(chart: Chart, rows: Sequence[Row], series: int) -> Callable[[int, float], float]:
    """Shifts the points of different series apart, where they have error bars."""
    places = sorted({row.x for row in rows})
    if chart.style != "responses" or len(places) < 2:
        return lambda _, x: x
    middle = (series - 1) / 2
    if chart.log_x:
        gap = min(math.log(b / a) for a, b in pairwise(places))
        return lambda number, x: x * math.exp((number - middle) * gap * _SPREAD)
    gap = min(b - a for a, b in pairwise(places))
    return lambda number, x: x + (number - middle) * gap * _SPREAD


def _draw_series(
    axes: Any, chart: Chart, name: str, rows: Sequence[Row], shift: Callable[[float], float]
) -> None:
    xs = [shift(row.x) for row in rows]
    responses = [row for row in rows if isinstance(row, Response)]
    points = [row for row in rows if isinstance(row, Point)]
    if responses:
        medians = [row.p50_ms for row in responses]
        below = [row.p50_ms - row.p5_ms for row in responses]
        above = [row.p95_ms - row.p50_ms for row in responses]
        axes.errorbar(
            xs, medians, yerr=[below, above], label=name, marker="o", markersize=3,
            linewidth=1, elinewidth=0.7, capsize=1.5,
        )  # fmt: skip
    elif chart.style == "steps":
        axes.step(xs, [row.y for row in points], where="post", label=name, linewidth=1.2)
    elif any(math.isfinite(row.low) for row in points):
        ys = [row.y for row in points]
        bars = [[row.y - row.low for row in points], [row.high - row.y for row in points]]
        axes.errorbar(
            xs, ys, yerr=bars, label=name, fmt="x", markersize=5, elinewidth=0.8, capsize=2
        )
    else:
        marker = "o" if len(points) <= _FEW else None
        axes.plot(
            xs, [row.y for row in points], label=name, linewidth=1.2, marker=marker, markersize=3
        )
