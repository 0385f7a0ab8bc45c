"""Key figures of experiments, computed from rows, beside those of the papers.

A finding needs certain rows; if other parameters than the paper's do not produce them, it is left
out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minishark_lab.harness.rows import Point, Row, interval

Reading = Callable[[Sequence[Row]], float]
NOT_SETTLED = "not settled"  # in the place of a ratio


@dataclass(frozen=True)
class Finding:
    """A key figure of an experiment."""

    what: str
    paper: str  # the paper's figure; "" for none
    # Computes it from rows; raises LookupError if they lack what it needs. NaN has not settled.
    here: Reading
    form: str = "{:.1f}"


def available(
    findings: Sequence[Finding], runs: Sequence[Sequence[Row]]
) -> list[tuple[str, str, str]]:
    """Description, paper's figure and ours, of each finding that the rows of all runs allow.

    With several runs, ours is the mean of theirs, with its 95 % confidence interval: a ratio of two
    series has less noise than its parts, as runs have the same jobs. Those of runs that have not
    settled are marked.
    """
    lines = []
    for each in findings:
        try:
            mean, half = interval([each.here(rows) for rows in runs])
        except LookupError:
            continue
        here = with_interval(each.form, mean, half)
        early = here != NOT_SETTLED and not _has_settled(each, runs)
        lines.append((each.what, each.paper, f"{here} (!)" if early else here))
    return lines


def _has_settled(finding: Finding, runs: Sequence[Sequence[Row]]) -> bool:
    """Whether the finding needs no row that has not settled."""
    try:
        for rows in runs:
            finding.here([row for row in rows if row.settled])
    except LookupError:
        return False
    return True


def with_interval(form: str, mean: float, half: float) -> str:
    """A figure, and half of its interval's width unless that is unknown."""
    if math.isnan(mean):
        return NOT_SETTLED
    text = form.format(mean)
    return text if math.isnan(half) else f"{text} ± {form.format(half)}"


def _row(rows: Sequence[Row], series: str, x: float, panel: str) -> Row:
    """The row of a series at x, in the first panel with this prefix; LookupError if none."""
    for row in rows:
        at_x = math.isclose(row.x, x, abs_tol=1e-9)
        if at_x and row.series == series and row.panel.startswith(panel):
            return row
    raise LookupError(f"no row of {series!r} at {x:g} in {panel!r}")


def value(series: str, x: float, panel: str = "", field: str = "p50_ms") -> Reading:
    """The value of a point, or a field of a response."""

    def read(rows: Sequence[Row]) -> float:
        row = _row(rows, series, x, panel)
        found: float = row.y if isinstance(row, Point) else getattr(row, field)
        return found

    return read


def constant(number: float) -> Reading:
    return lambda _: number


def times(more: Reading, less: Reading) -> Reading:
    return lambda rows: more(rows) / less(rows)


def percent_over(more: Reading, less: Reading) -> Reading:
    return lambda rows: 100 * (more(rows) / less(rows) - 1)


def percent(share: Reading) -> Reading:
    """By how many percent a ratio exceeds 1."""
    return lambda rows: 100 * (share(rows) - 1)


def percent_under(less: Reading, more: Reading) -> Reading:
    return lambda rows: 100 * (1 - less(rows) / more(rows))


def over_all_x(more: tuple[str, str], less: tuple[str, str], field: str = "p50_ms") -> Reading:
    """The mean over all x of the ratio of two series; each is (panel, series)."""

    def read(rows: Sequence[Row]) -> float:
        panel, series = more
        xs = [row.x for row in rows if row.series == series and row.panel.startswith(panel)]
        if not xs:
            raise LookupError(f"no row of {series!r} in {panel!r}")
        return statistics.fmean(
            value(series, x, panel, field)(rows) / value(less[1], x, less[0], field)(rows)
            for x in xs
        )

    return read


def mean_between(series: str, begin: float, end: float) -> Reading:
    """The mean of a line's points between two x."""

    def read(rows: Sequence[Row]) -> float:
        line = [row for row in rows if isinstance(row, Point) and row.series == series]
        ys = [row.y for row in line if begin <= row.x <= end]
        if not ys or max(row.x for row in line) < end:
            raise LookupError(f"no points of {series!r} from {begin:g} to {end:g}")
        return statistics.fmean(ys)

    return read


def quantile(series: str, share: float) -> Reading:
    """A quantile of a distribution; `series` is a prefix of its name."""

    def read(rows: Sequence[Row]) -> float:
        xs = [
            row.x
            for row in rows
            if isinstance(row, Point) and row.series.startswith(series) and row.y >= share
        ]
        if not xs:
            raise LookupError(f"no distribution of {series!r}")
        return min(xs)

    return read
