"""Items that are numbers, or have an order: their figures, and the greatest of them."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minishark.dataframe.doors import doors
from minishark.errors import OptionError
from minishark.session.tasks.partitions import Partitioned


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of numbers; those of none are NaN.

    Attributes:
        n: how many.
        mu: their mean.
        m2: the sum of the squares of their distances from the mean.
        least: the least.
        greatest: the greatest.
    """

    n: int = 0
    mu: float = 0.0
    m2: float = 0.0
    least: float = math.inf
    greatest: float = -math.inf

    @classmethod
    def of(cls, numbers: Iterator[float]) -> Summary:
        """The figures of numbers, in one pass (Welford's algorithm)."""
        n, mu, m2, least, greatest = 0, 0.0, 0.0, math.inf, -math.inf
        for number in numbers:
            n += 1
            distance = number - mu
            mu += distance / n
            m2 += distance * (number - mu)
            least, greatest = min(least, number), max(greatest, number)
        return cls(n, mu, m2, least, greatest)

    def merged(self, other: Summary) -> Summary:
        """The figures of both (Chan, Golub and LeVeque, 1979)."""
        n = self.n + other.n
        if not n:
            return self
        distance = other.mu - self.mu
        return Summary(
            n,
            self.mu + distance * other.n / n,
            self.m2 + other.m2 + distance * distance * self.n * other.n / n,
            min(self.least, other.least),
            max(self.greatest, other.greatest),
        )

    def count(self) -> int:
        """How many numbers there are."""
        return self.n

    def mean(self) -> float:
        """Their mean."""
        return self.mu if self.n else math.nan

    def sum(self) -> float:
        """Their sum."""
        return self.mu * self.n

    def min(self) -> float:
        """The least."""
        return self.least

    def max(self) -> float:
        """The greatest."""
        return self.greatest

    def variance(self) -> float:
        """Their variance as a population."""
        return self.m2 / self.n if self.n else math.nan

    def stdev(self) -> float:
        """Their standard deviation as a population."""
        return math.sqrt(self.variance())

    def sampleVariance(self) -> float:  # noqa: N802 - PySpark's name
        """Their variance as a sample."""
        return self.m2 / (self.n - 1) if self.n > 1 else math.nan

    def sampleStdev(self) -> float:  # noqa: N802 - PySpark's name
        """Their standard deviation as a sample."""
        return math.sqrt(self.sampleVariance())


@doors
class Figures(Partitioned):
    """The methods of items that are numbers, or have an order."""

    def stats(self) -> Summary:
        """Count, mean, variance, least and greatest of numbers, in one pass.

        Examples:
            >>> session.parallelize([1.0, 2.0, 3.0], 2).stats().mean()
            2.0
        """
        summary = Summary()
        for part in self.actions("stats", Summary.of):
            summary = summary.merged(part)
        return summary

    def mean(self) -> float:
        """The mean of numbers."""
        return self.stats().mean()

    def mean_approx(self, timeout: int, confidence: float = 0.95) -> float:
        """The mean of numbers: exact, whatever `timeout` and `confidence` are."""
        del timeout, confidence
        return self.mean()

    def sum_approx(self, timeout: int, confidence: float = 0.95) -> float:
        """The sum of numbers: exact, whatever `timeout` and `confidence` are."""
        del timeout, confidence
        return self.stats().sum()

    def variance(self) -> float:
        """The variance of numbers as a population."""
        return self.stats().variance()

    def stdev(self) -> float:
        """The standard deviation of numbers as a population."""
        return self.stats().stdev()

    def sample_variance(self) -> float:
        """The variance of numbers as a sample."""
        return self.stats().sampleVariance()

    def sample_stdev(self) -> float:
        """The standard deviation of numbers as a sample."""
        return self.stats().sampleStdev()

    def max(self, key: Callable[[Any], Any] | None = None) -> Any:
        """The greatest item, by a key if there is one.

        Raises:
            OptionError: there is no item.
        """
        return self._extreme("max", key)

    def min(self, key: Callable[[Any], Any] | None = None) -> Any:
        """The least item, by a key if there is one.

        Raises:
            OptionError: there is no item.
        """
        return self._extreme("min", key)

    def _extreme(self, label: str, key: Callable[[Any], Any] | None) -> Any:
        choose = partial(max if label == "max" else min, key=key)
        candidates = self.chained(label, lambda items: _of_some(choose, items))
        if not candidates:
            raise OptionError(f"{label}() needs items; none is left.")
        return choose(candidates)

    def top(self, count: int, key: Callable[[Any], Any] | None = None) -> list[Any]:
        """The greatest items, the greatest first."""
        most = self.chained("top", lambda items: heapq.nlargest(count, items, key=key))
        return heapq.nlargest(count, most, key=key)

    def take_ordered(self, count: int, key: Callable[[Any], Any] | None = None) -> list[Any]:
        """The least items, the least first."""
        least = self.chained("take_ordered", lambda items: heapq.nsmallest(count, items, key=key))
        return heapq.nsmallest(count, least, key=key)

    def histogram(self, buckets: int | Sequence[float]) -> tuple[list[float], list[int]]:
        """How many numbers are in each bucket.

        Args:
            buckets: how many of equal width from the least to the greatest; or their bounds, of
                which the last is included.

        Returns:
            the bounds, and the counts.

        Raises:
            OptionError: there are not two bounds, or they are not sorted.
        """
        if isinstance(buckets, int):
            summary = self.stats()
            width = (summary.greatest - summary.least) / buckets
            limits = [summary.least + i * width for i in range(buckets)] + [summary.greatest]
        else:
            limits = list(buckets)
        if len(limits) < 2 or limits != sorted(limits):
            raise OptionError(
                "histogram() takes a number of buckets, or at least two sorted bounds."
            )
        counts = [0] * (len(limits) - 1)
        for part in self.actions("histogram", partial(_counted, limits)):
            counts = [a + b for a, b in zip(counts, part, strict=True)]
        return limits, counts


def _of_some(choose: Callable[[Any], Any], items: Iterator[Any]) -> list[Any]:
    listed = list(items)
    return [choose(listed)] if listed else []


def _counted(limits: Sequence[float], items: Iterator[float]) -> list[int]:
    counts = [0] * (len(limits) - 1)
    for item in items:
        if limits[0] <= item <= limits[-1]:
            counts[min(bisect_right(limits, item) - 1, len(counts) - 1)] += 1
    return counts
