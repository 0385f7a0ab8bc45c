"""Results of experiments: rows of plain values, which become lines of a CSV file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from minishark_lab.simulator.workload import percentile

__all__ = [
    "Point", "Response", "Row", "across", "distribution", "interval", "mean_and_interval",
    "percentile", "response",
]  # fmt: skip

_BATCHES = 20
_BATCH_MIN = 50  # jobs of a batch, for its percentiles to mean something


@dataclass(frozen=True, kw_only=True)
class Response:
    """Response times of jobs, in milliseconds; `_ci` is half a 95 % confidence interval's width."""

    panel: str
    series: str
    x: float
    jobs: int  # that were measured
    unfinished: int = 0  # of these, jobs that had not ended when the run did: they are in no figure
    mean_ms: float
    ci_ms: float  # of the mean
    p5_ms: float  # the 5th percentile; likewise `p50_ms` and `p95_ms`
    p50_ms: float
    p50_ci_ms: float = math.nan
    p95_ms: float
    p95_ci_ms: float = math.nan
    settled: bool = True  # see `lengths`; also where nothing is to settle


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a curve, with its 95 % confidence interval from `low` to `high`."""

    panel: str
    series: str
    x: float
    y: float
    _: KW_ONLY
    low: float = math.nan
    high: float = math.nan
    settled: bool = True


Row = Response | Point


def across(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of several runs with different random numbers as one each, with intervals."""
    if len(runs) == 1:
        return list(runs[0])
    same: dict[tuple[str, str, float], list[Row]] = {}
    for rows in runs:
        for row in rows:
            same.setdefault((row.panel, row.series, row.x), []).append(row)
    return [_merged(rows) for rows in same.values()]


def _merged(rows: Sequence[Row]) -> Row:
    points = [row for row in rows if isinstance(row, Point)]
    if points:
        mean, half = interval([row.y for row in points])
        if not half:  # formulas and counts are the same in all runs
            return points[0]
        settled = all(row.settled for row in points)
        return replace(points[0], y=mean, low=mean - half, high=mean + half, settled=settled)
    found = [row for row in rows if isinstance(row, Response)]
    mean_ms, ci_ms = interval([row.mean_ms for row in found])
    p50_ms, p50_ci_ms = interval([row.p50_ms for row in found])
    p95_ms, p95_ci_ms = interval([row.p95_ms for row in found])
    return replace(
        found[0],
        jobs=sum(row.jobs for row in found),
        unfinished=sum(row.unfinished for row in found),
        settled=all(row.settled for row in found),
        p5_ms=statistics.fmean(row.p5_ms for row in found),
        mean_ms=mean_ms, ci_ms=ci_ms,
        p50_ms=p50_ms, p50_ci_ms=p50_ci_ms,
        p95_ms=p95_ms, p95_ci_ms=p95_ci_ms,
    )  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of independent values, and half the width of its 95 % confidence interval.

    NaN with fewer than two values.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, _student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution."""
    exact = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    # From 11 on, the first terms of its expansion in 1 / freedom are right to 0.003.
    if freedom <= len(exact):
        return exact[freedom - 1]
    return 1.96 + 2.373 / freedom + 2.8 / freedom**2


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of a time series, and half the width of its 95 % confidence interval.

    By batch means, because successive response times are correlated.
    """
    count = len(values)
    mean = sum(values) / count
    size = count // _BATCHES
    if size == 0:
        return mean, math.nan
    means = [sum(values[i * size : (i + 1) * size]) / size for i in range(_BATCHES)]
    return mean, interval(means)[1]


def response(
    panel: str,
    series: str,
    x: float,
    times_s: Iterable[float],
    *,
    unfinished: int = 0,
    settled: bool = True,
) -> Response:
    """Summarize response times of jobs, given in order of arrival; intervals by batch means."""
    times_ms = [1000 * float(each) for each in times_s]
    mean, half = mean_and_interval(times_ms)
    ranked = sorted(times_ms)
    p5, p50, p95 = (percentile(ranked, percent) for percent in (5, 50, 95))
    return Response(
        panel=panel, series=series, x=x, jobs=len(ranked) + unfinished, unfinished=unfinished,
        mean_ms=mean, ci_ms=half, p5_ms=p5,
        p50_ms=p50, p50_ci_ms=_percentile_interval(times_ms, 50),
        p95_ms=p95, p95_ci_ms=_percentile_interval(times_ms, 95), settled=settled,
    )  # fmt: skip


def _percentile_interval(values: Sequence[float], percent: float) -> float:
    """Half the width of a percentile's interval, by those of batches; NaN if they are short."""
    size = len(values) // _BATCHES
    if size < _BATCH_MIN:
        return math.nan
    batches = (sorted(values[i * size : (i + 1) * size]) for i in range(_BATCHES))
    return interval([percentile(batch, percent) for batch in batches])[1]


def distribution(
    panel: str, series: str, values: Iterable[float], points: int = 100
) -> list[Point]:
    """A cumulative distribution function, as points."""
    ranked = sorted(values)
    if not ranked:
        return []
    points = min(points, len(ranked))
    shares = [step / points for step in range(points + 1)]
    last = len(ranked) - 1
    return [
        Point(panel=panel, series=series, x=ranked[round(share * last)], y=share)
        for share in shares
    ]
