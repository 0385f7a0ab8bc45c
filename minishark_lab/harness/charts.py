"""Plots of rows, like those in the papers; needs matplotlib (the extra `bench`)."""

from __future__ import annotations

import importlib.util
import math
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from minishark_lab.harness.experiment import Chart, ExperimentError
from minishark_lab.harness.rows import Point, Response, Row

_PANEL_INCHES = (4.2, 3.2)
_COLUMNS_MAX = 3
_LETTERS_PER_INCH = 13  # of a title, at its size
# Okabe and Ito's colours, which colour-blind readers can tell apart; markers and dashes differ too,
# for print without colours.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
_MARKERS = "osD^vP*X"
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_STYLE: Any = {
    "font.size": 9.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 8.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "sparrow",
    "pdf.fonttype": 42,  # text stays text
}
_SPREAD = 0.12  # share of the distance between two x, so that error bars do not overlap
_SIMULATED = ", simulated"  # end of the name of a series that is beside a formula's
_FEW = 15  # lines with at most this many points have markers


def require_matplotlib() -> None:
    """Raise ExperimentError if it is not installed: before an experiment runs, not after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ExperimentError("plots need matplotlib: pip install 'minishark[lab]'")


def draw(chart: Chart, title: str, rows: Sequence[Row], runs: int = 1) -> Any:
    """A figure of the rows of one or several runs, with a legend and a note of what bars mean."""
    require_matplotlib()
    import matplotlib as mpl  # noqa: PLC0415 - heavy, and optional
    from matplotlib.figure import Figure  # noqa: PLC0415

    drawn = [row for row in rows if not row.panel.endswith(chart.figures)]
    panels = list(dict.fromkeys(row.panel for row in drawn))
    names = list(dict.fromkeys(row.series for row in drawn))
    columns = min(len(panels), _COLUMNS_MAX)
    lines = -(-len(panels) // columns)
    width = _PANEL_INCHES[0] * columns
    with mpl.rc_context(_STYLE):
        size = (width, _PANEL_INCHES[1] * lines + 0.9)
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(_wrapped(title, width), fontsize=10)
        first = None
        for place, panel in enumerate(panels, 1):
            axes = figure.add_subplot(lines, columns, place, sharey=first)
            first = axes if chart.same_y else None
            own = [row for row in drawn if row.panel == panel]
            _draw_panel(axes, chart, _wrapped(panel, _PANEL_INCHES[0]), own, names)
            _draw_marks(axes, chart, panel, rows)
        if not chart.log_y:  # when all is drawn, because a limit ends the search for the other
            for axes in figure.axes:
                axes.set_ylim(bottom=0)
        _add_legend(figure, width, _wrapped(_note(drawn, runs), width * 1.2))
    return figure


def save(figure: Any, file: Any) -> None:
    """Write a figure, reproducibly."""
    import matplotlib as mpl  # noqa: PLC0415 - heavy, and optional

    kind = str(file).rpartition(".")[2]
    metadata = {
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
        "png": {"Software": None},
    }[kind]
    with mpl.rc_context(_STYLE):
        figure.savefig(file, metadata=metadata, dpi=110)


def _wrapped(text: str, inches: float) -> str:
    width = int(inches * _LETTERS_PER_INCH)
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, width))


def _note(rows: Sequence[Row], runs: int) -> str:
    """What points and bars are."""
    note = _bars(rows, runs)
    return note if all(row.settled for row in rows) else f"{note} Hollow: not settled.".lstrip()


def _bars(rows: Sequence[Row], runs: int) -> str:
    over = f"over {runs} runs" if runs > 1 else "by batches of one run"
    bounded = any(isinstance(row, Point) and math.isfinite(row.low) for row in rows)
    if any(isinstance(row, Response) for row in rows):
        parts = ["Points: medians of jobs; thin bars: from the 5th to the 95th percentile"]
        if any(isinstance(row, Response) and row.p50_ci_ms > 0 for row in rows):
            parts.append(f"thick bars: 95 % confidence intervals of the medians, {over}")
        if bounded:
            parts.append("bars of ratios: their 95 % confidence intervals")
        return "; ".join(parts) + "."
    return (
        f"Bars: 95 % confidence intervals, {over if runs > 1 else 'of one run'}." if bounded else ""
    )


def _add_legend(figure: Any, width: float, note: str) -> None:
    """One legend for all panels, below them, and what their bars mean."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label:
                handles.setdefault(label, handle)
    if not handles:
        return
    longest = max(map(len, handles)) + 7
    columns = max(1, min(len(handles), int(width * 13 / longest)))
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False,
        title=note, title_fontsize=7,
    )  # fmt: skip


def _draw_panel(
    axes: Any, chart: Chart, title: str, rows: Sequence[Row], names: Sequence[str]
) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    if chart.log_x:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    if chart.log_y:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    places = sorted({row.x for row in rows})
    if len(places) == 1:
        axes.set_xticks(places)  # series stand beside each other there
    if chart.category:
        axes.set_xticks(places, [chart.label(x) for x in places])
        axes.set_xlim(min(places) - 0.6, max(places) + 0.6)
        axes.grid(visible=False, axis="x")
    shown = [name for name in names if any(row.series == name for row in rows)]
    shift = _shifts(chart, rows, len(shown))
    for number, name in enumerate(shown):
        own = [row for row in rows if row.series == name]
        # A series looks alike in all panels, and a simulation like its formula, without the line.
        formula = name.removesuffix(_SIMULATED)
        place = names.index(formula if formula in names else name)
        style = {
            "color": _COLOURS[place % len(_COLOURS)],
            "marker": _MARKERS[place % len(_MARKERS)],
            "linestyle": "none" if chart.category else _DASHES[place % len(_DASHES)],
        }
        _draw_series(axes, chart, style, own, partial(shift, number))


def _plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis 600 and 1,000, not with powers of ten."""
    from matplotlib.ticker import LogFormatter  # noqa: PLC0415 - heavy, and optional

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:,.10g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain())


def _draw_marks(axes: Any, chart: Chart, panel: str, rows: Sequence[Row]) -> None:
    """The paper's values."""
    for mark in chart.marks:
        if not panel.startswith(mark.panel):
            continue
        try:
            y = mark.y(rows)
        except LookupError:
            continue
        axes.plot(
            [mark.x], [y], linestyle="none", marker="_", markersize=16, markeredgewidth=2,
            color="black", label=mark.label, zorder=5,
        )  # fmt: skip


def _shifts(chart: Chart, rows: Sequence[Row], series: int) -> Callable[[int, float], float]:
    """Shifts the points of different series apart, where they have error bars."""
    places = sorted({row.x for row in rows})
    if chart.style != "responses":
        return lambda _, x: x
    middle = (series - 1) / 2
    if len(places) == 1:
        return lambda number, x: x * (1 + (number - middle) * _SPREAD / 2)
    if chart.log_x:
        gap = min(math.log(b / a) for a, b in pairwise(places))
        return lambda number, x: x * math.exp((number - middle) * gap * _SPREAD)
    gap = min(b - a for a, b in pairwise(places))
    return lambda number, x: x + (number - middle) * gap * _SPREAD


def _draw_series(
    axes: Any,
    chart: Chart,
    style: dict[str, Any],
    rows: Sequence[Row],
    shift: Callable[[float], float],
) -> None:
    xs = [shift(row.x) for row in rows]
    name = rows[0].series
    responses = [row for row in rows if isinstance(row, Response)]
    points = [row for row in rows if isinstance(row, Point)]
    if responses:
        unit_ms = chart.unit_ms
        medians = [row.p50_ms / unit_ms for row in responses]
        below = [(row.p50_ms - row.p5_ms) / unit_ms for row in responses]
        above = [(row.p95_ms - row.p50_ms) / unit_ms for row in responses]
        axes.errorbar(
            xs, medians, yerr=[below, above], label=name, markersize=3.5,
            linewidth=1, elinewidth=0.6, capsize=1.5, **style,
        )  # fmt: skip
        known = [0.0 if math.isnan(row.p50_ci_ms) else row.p50_ci_ms for row in responses]
        halves = [half / unit_ms for half in known]
        axes.errorbar(xs, medians, yerr=halves, fmt="none", ecolor=style["color"], elinewidth=2.5)
    elif chart.style == "steps":
        axes.step(
            xs, [row.y for row in points], where="post", label=name, linewidth=1.2,
            color=style["color"], linestyle=style["linestyle"],
        )  # fmt: skip
    elif any(math.isfinite(row.low) for row in points):
        ys = [row.y for row in points]
        bounds = [(0.0, 0.0) if math.isnan(row.low) else (row.y - row.low, row.high - row.y)
                  for row in points]  # fmt: skip
        line = style if len(points) <= _FEW else {**style, "marker": None}
        if name.endswith(_SIMULATED):
            line = {**line, "linestyle": "none"}  # beside a formula's line
        axes.errorbar(
            xs, ys, yerr=list(zip(*bounds, strict=True)), label=name, markersize=4, linewidth=1,
            elinewidth=1, capsize=2, **line,
        )  # fmt: skip
    else:
        line = style if len(points) <= _FEW else {**style, "marker": None}
        axes.plot(xs, [row.y for row in points], label=name, linewidth=1.2, markersize=3.5, **line)
    early = [(x, row) for x, row in zip(xs, rows, strict=True) if not row.settled]
    if early:
        heights = [row.y if isinstance(row, Point) else row.p50_ms / chart.unit_ms
                   for _, row in early]  # fmt: skip
        axes.plot(
            [x for x, _ in early], heights, linestyle="none", marker=style["marker"], markersize=5,
            markerfacecolor="white", markeredgecolor=style["color"], zorder=4,
        )  # fmt: skip
