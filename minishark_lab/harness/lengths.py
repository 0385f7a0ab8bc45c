"""How long an experiment has to run, and whether what it measured has settled.

One rule for all experiments of queues in a steady state. A *relaxation time* is what the slowest
queue takes to forget how the run began (`models.analysis`). A run has three of them before
measuring, which leaves a twentieth of what the empty start takes off, and ten while. Where it was
shorter, or what was measured has a trend all the same, it has *not settled*, and its rows say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SETTLING = 3.0  # relaxation times before measuring
MEASURED = 10.0  # while
ENOUGH = 2.0  # of either, for medians that compare placements
_BATCHES_MAX = 20
_BATCHES_MIN = 5
_BATCH_MIN = 10  # jobs
_TREND = 3.0  # standard deviations of Kendall's S: one run in 370 shows that by chance


@dataclass(frozen=True)
class RunLength:
    """Jobs of a run, of which the first are not measured; or milliseconds, all of them."""

    jobs: int
    warm_up: int
    relaxation: float  # jobs that come in a relaxation time
    enough: float = ENOUGH  # relaxation times while measuring

    def has_settled(self, times_s: Sequence[float]) -> bool:
        """Whether the run was long enough, and what was measured has no trend.

        Args:
            times_s: response times of the measured jobs, in order of arrival.
        """
        return self.is_enough and not has_trend(times_s, self.relaxation)

    @property
    def is_enough(self) -> bool:
        """Whether it is so long that queues forget how it began, and are seen in many states."""
        waited = self.warm_up >= ENOUGH * self.relaxation
        return waited and self.jobs - self.warm_up >= self.enough * self.relaxation


def spread(values: Sequence[float]) -> float:
    """The mean square over the mean, as relaxation times ask for."""
    return sum(each * each for each in values) / sum(values)


def run_length(
    relaxation: float, *, jobs: int, jobs_max: float = math.inf, measured: float = MEASURED
) -> RunLength:
    """The length that the rule asks for.

    Args:
        relaxation: jobs that come in a relaxation time.
        jobs: measured at least, after at least a quarter as many others.
        jobs_max: of the whole run; two thirds of them at most are not measured.
        measured: relaxation times while measuring.
    """
    warm_up = max(jobs / 4, SETTLING * relaxation)
    total = max(2, round(min(jobs_max, warm_up + max(jobs, measured * relaxation))))
    return RunLength(total, round(min(warm_up, total * 2 // 3)), relaxation, min(measured, ENOUGH))


def has_trend(times_s: Sequence[float], relaxation: float) -> bool:
    """Whether successive medians rise or fall more than chance allows.

    The medians are of batches of a relaxation time at least: shorter ones depend on each other.
    """
    size = max(_BATCH_MIN, math.ceil(relaxation), len(times_s) // _BATCHES_MAX)
    count = len(times_s) // size
    if count < _BATCHES_MIN:
        return False  # too few to tell; the length does
    medians = np.median(np.reshape(times_s[len(times_s) - count * size :], (count, size)), axis=1)
    return rise_or_fall([medians.tolist()])


def rise_or_fall(series: Sequence[Sequence[float]]) -> bool:
    """Whether values rise or fall within series more than chance allows, in most alike.

    Mann and Kendall's test; of several series, Hirsch's with their scores added.
    """
    score = variance = 0.0
    for values in series:
        count = len(values)
        later, earlier = np.tril_indices(count, -1)
        score += float(np.sign(np.take(values, later) - np.take(values, earlier)).sum())
        variance += count * (count - 1) * (2 * count + 5) / 18
    return abs(score) > _TREND * math.sqrt(variance)
