"""Results of experiments: rows of plain values, which become lines of a CSV file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

from sparrow_core.sim.workload import percentile

__all__ = [
    "Point", "Response", "Row", "distribution", "mean_and_interval", "percentile", "response",
]  # fmt: skip

_BATCHES = 20
_STUDENT = 2.093  # the 97.5 % quantile for as many batches


@dataclass(frozen=True, kw_only=True)
class Response:
    """Response times of the jobs of one run, in milliseconds."""

    panel: str
    series: str
    x: float
    jobs: int
    mean_ms: float  # their mean; `ci_ms` is half the width of its 95 % confidence interval
    ci_ms: float
    p5_ms: float  # the 5th percentile; likewise `p50_ms` and `p95_ms`
    p50_ms: float
    p95_ms: float


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


Row = Response | Point


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
    centre = sum(means) / _BATCHES
    spread = sum((each - centre) ** 2 for each in means) / (_BATCHES - 1)
    return mean, _STUDENT * math.sqrt(spread / _BATCHES)


def response(panel: str, series: str, x: float, times_s: Iterable[float]) -> Response:
    """Summarize response times of jobs, given in order of arrival."""
    times_ms = [1000 * float(each) for each in times_s]
    mean, interval = mean_and_interval(times_ms)
    ranked = sorted(times_ms)
    p5, p50, p95 = (percentile(ranked, percent) for percent in (5, 50, 95))
    return Response(
        panel=panel, series=series, x=x, jobs=len(ranked), mean_ms=mean, ci_ms=interval,
        p5_ms=p5, p50_ms=p50, p95_ms=p95,
    )  # fmt: skip


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
