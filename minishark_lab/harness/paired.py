"""Placements beside each other in one run: how much longer queries take, and how sure that is.

All are given the same queries at the same times. A run is cut into *blocks*, each with all
placements close to each other in time, so that what else the machine does meets them alike.
Intervals are over blocks: queries within one depend on each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from minishark_lab.harness.findings import Reading, value
from minishark_lab.harness.lengths import rise_or_fall
from minishark_lab.harness.rows import Point, Response, Row, interval, response

OBSERVED = "response times (ms)"
_IDEAL_OF = "ideal of {}"
MEDIANS, TAILS = "medians", "95th percentiles"
ALL = 0.0  # the x of the mean over all queries, which have numbers from 1 on
BLOCKS_MIN = 8
_PARTS = 5  # of a block, whose means are to show no trend


class Asked(NamedTuple):
    """An answered query: its number, its response time, and what that would be without waiting."""

    number: int
    took_s: float
    ideal_s: float


Blocks = Sequence[Sequence[Asked]]
"""What one placement's queries took, by block, in order of arrival."""


def comparison(
    by_placement: Mapping[str, Blocks], *, settled: bool, numbers: Sequence[int], where: str = ""
) -> Iterator[Row]:
    """Rows of all placements, beside their ideal and, but for the first, beside that.

    Args:
        by_placement: by the names of series.
        settled: whether the run was long enough.
        numbers: the queries.
        where: how the names of panels begin, if there are several comparisons.
    """
    stays = {name: settled and has_settled(blocks) for name, blocks in by_placement.items()}
    took = {name: _times(blocks, numbers, _TOOK) for name, blocks in by_placement.items()}
    ideal = {name: _times(blocks, numbers, _IDEAL) for name, blocks in by_placement.items()}
    first = next(iter(by_placement))
    for name, times in took.items():
        yield from _responses(where + OBSERVED, name, times, settled=stays[name])
    yield from _responses(where + OBSERVED, _IDEAL_OF.format(first), ideal[first], settled=True)
    for what, percent in ((MEDIANS, 50.0), (TAILS, 95.0)):
        for name, fine in stays.items():
            panel = where + _over_ideal(what)
            yield from _ratios(panel, name, took[name], ideal[name], percent, settled=fine)
        for name, fine in stays.items():
            panel, both = where + _over(what, first), fine and stays[first]
            if name != first:
                yield from _ratios(panel, name, took[name], took[first], percent, settled=both)


def over_ideal(what: str, series: str, where: str = "") -> Reading:
    """The finding of `what` over the ideal, the mean of all queries."""
    return value(series, ALL, where + _over_ideal(what))


def over_first(what: str, series: str, first: str, where: str = "") -> Reading:
    """The finding of `what` over the first placement's."""
    return value(series, ALL, where + _over(what, first))


def in_words(rows: Sequence[Row]) -> str:
    """What the comparisons with the first placement say."""
    first = rows[0].series
    medians, tails = (
        {
            (row.panel.removesuffix(_over(what, first)), row.series): row
            for row in rows
            if isinstance(row, Point) and row.panel.endswith(_over(what, first)) and row.x == ALL
        }
        for what in (MEDIANS, TAILS)
    )
    return "\n".join(
        where + _sentence(name, first, median, tails[where, name])
        for (where, name), median in medians.items()
    )


def _sentence(name: str, first: str, median: Point, tail: Point) -> str:
    if not median.settled:
        return (
            f"Not settled: queues grew or shrank while {name} was compared with {first}, or the "
            "run was too short. Run it again with less else on the machine, at a lower load, or "
            "for longer."
        )
    times = f"{median.low:.2f} to {median.high:.2f} times"
    if median.low <= 1 <= median.high:
        return f"This run can't tell {name} from {first}: queries take {times} as long."
    return (
        f"With {name}, queries take {median.y:.2f} times as long as with {first} (medians, 95 % "
        f"interval {times}), and {tail.y:.2f} times at the 95th percentile ({tail.low:.2f} to "
        f"{tail.high:.2f})."
    )


def _over_ideal(what: str) -> str:
    return f"{what} over the ideal's (times)"


def _over(what: str, first: str) -> str:
    return f"{what} over those of {first} (times)"


# Panels of which the end of the name says that they need no plot.
FIGURES = tuple(map(_over_ideal, (MEDIANS, TAILS)))
_TOOK: Callable[[Asked], float] = attrgetter("took_s")
_IDEAL: Callable[[Asked], float] = attrgetter("ideal_s")
_Times = Mapping[int, Sequence[Sequence[float]]]  # of each query, by block


def _times(blocks: Blocks, numbers: Sequence[int], time_of: Callable[[Asked], float]) -> _Times:
    return {
        number: [[time_of(each) for each in block if each.number == number] for block in blocks]
        for number in numbers
    }


def _responses(panel: str, name: str, times: _Times, *, settled: bool) -> Iterator[Response]:
    for number, blocks in times.items():
        if own := [time_s for block in blocks for time_s in block]:
            yield response(panel, name, number, own, settled=settled)


def _ratios(
    panel: str, name: str, more: _Times, less: _Times, percent: float, *, settled: bool
) -> Iterator[Point]:  # fmt: skip
    """The points of all queries together, and of each; what has not settled is no ratio at all."""
    for x, numbers in ((ALL, tuple(more)), *((float(each), (each,)) for each in more)):
        low, y, high = _ratio(more, less, numbers, percent) if settled else (math.nan,) * 3
        yield Point(panel=panel, series=name, x=x, y=y, low=low, high=high, settled=settled)


def _ratio(
    more: _Times, less: _Times, numbers: Sequence[int], percent: float
) -> tuple[float, float, float]:
    """By how much a percentile is higher, within its 95 % confidence interval.

    The geometric mean over blocks and queries of its ratio within a block: what slows down a whole
    block cancels out.
    """
    logs = []
    for block in range(len(more[numbers[0]])):
        pairs = [(more[number][block], less[number][block]) for number in numbers]
        own = [
            math.log(np.percentile(above, percent) / np.percentile(below, percent))
            for above, below in pairs
            if above and below
        ]
        if own:
            logs.append(statistics.fmean(own))
    if not logs:
        return (math.nan,) * 3
    mean, half = interval(logs)
    return math.exp(mean - half), math.exp(mean), math.exp(mean + half)


def has_settled(blocks: Blocks) -> bool:
    """Whether queues neither grew nor shrank: within blocks, and from each to the next."""
    if len(blocks) < BLOCKS_MIN or not all(blocks):
        return False
    numbers = dict.fromkeys(each.number for block in blocks for each in block)
    # Queries differ in length: each counts by its own median.
    usual = {
        number: float(np.median([time_s for block in own for time_s in block]))
        for number, own in _times(blocks, tuple(numbers), _TOOK).items()
    }
    relative = [[each.took_s / usual[each.number] for each in block] for block in blocks]
    parts = [
        [float(part.mean()) for part in np.array_split(block, min(_PARTS, len(block)))]
        for block in relative
    ]
    medians = [float(np.median(block)) for block in relative]
    return not rise_or_fall(parts) and not rise_or_fall([medians])
