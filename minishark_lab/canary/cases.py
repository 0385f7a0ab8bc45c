"""What is measured: an application, its size, and how it is cut into partitions.

Logistic regression and k-means have one shape, `Summed`: each partition adds its part to a sum,
from which the next parameters follow. PageRank exchanges pieces between blocks and slices. Each
system runs both shapes with the kernels of `minishark_lab.applications`, so that what differs is
the system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from minishark_lab.applications import kmeans, logistic, pagerank

Floats = npt.NDArray[np.float64]

APPLICATIONS = ("logistic regression", "k-means", "PageRank")
FEATURES = 20
CLUSTERS = 10
DEGREE = 20


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one application."""

    application: str  # one of APPLICATIONS
    count: int  # points, or edges, in all partitions together
    partitions: int  # into which they are cut
    workers: int = 2  # processes that hold them
    iterations: int = 20

    def partitions_of(self, worker: int) -> list[int]:
        """Contiguous partitions of one of the workers."""
        return [each for each in range(self.partitions) if self.worker_of(each) == worker]

    def worker_of(self, partition: int) -> int:
        return partition * self.workers // self.partitions


class Measured(msgspec.Struct, frozen=True):
    """The iterations of one case: wall time, CPU time of all workers, and the result."""

    wall_s: float
    cpu_s: float
    result: list[float]

    def array(self) -> Floats:
        return np.array(self.result)


@dataclass(frozen=True)
class Summed:
    """An application whose partitions add to a sum, from which the next parameters follow."""

    load: Callable[[int], Any]  # a partition, by number
    first: Floats  # the parameters before the first iteration
    local: Callable[[Any, Floats], Floats]  # a partition's part of the sum
    step: Callable[[Floats, Floats], Floats]  # the next parameters, from parameters and sum
    distance: Callable[[Floats, Floats], float]  # between parameters, for the test of convergence


def summed(case: Case) -> Summed:
    """Logistic regression or k-means of that size."""
    count = case.count // case.partitions
    if case.application == "logistic regression":
        return Summed(
            partial(logistic.make_points, count=count, features=FEATURES), np.zeros(FEATURES),
            logistic.gradient, logistic.step, logistic.distance,
        )  # fmt: skip
    first = kmeans.make_points(10**6, CLUSTERS, FEATURES, CLUSTERS)
    return Summed(
        partial(kmeans.make_points, count=count, dimensions=FEATURES, clusters=CLUSTERS),
        kmeans.first_centers(first, CLUSTERS), kmeans.sums, kmeans.move, kmeans.distance,
    )  # fmt: skip


def is_graph(case: Case) -> bool:
    return case.application == "PageRank"


def vertices(case: Case) -> int:
    return max(1, case.count // DEGREE)


def edges(case: Case, partition: int) -> pagerank.Edges:
    """The edges that one partition loads, before they are cut into blocks."""
    return pagerank.make_edges(partition, case.count // case.partitions, vertices(case))


def sequential(case: Case) -> Measured:
    """The case in plain NumPy, over all data at once."""
    data = _whole(case)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = _sequential(case, data)
    return Measured(
        time.perf_counter() - wall_s, time.process_time() - cpu_s, np.ravel(result).tolist()
    )


def _whole(case: Case) -> Any:
    if is_graph(case):
        parts: Sequence[Any] = [edges(case, each) for each in range(case.partitions)]
        return tuple(np.concatenate([part[end] for part in parts]) for end in (0, 1))
    parts = list(map(summed(case).load, range(case.partitions)))
    if case.application == "k-means":
        return np.concatenate(parts, axis=1)
    return logistic.Points(
        np.concatenate([part.features for part in parts], axis=1),
        np.concatenate([part.labels for part in parts]),
    )


def _sequential(case: Case, data: Any) -> Floats:
    if is_graph(case):
        return pagerank.sequential(data, vertices(case), case.iterations)
    if case.application == "k-means":
        return kmeans.sequential(data, summed(case).first, case.iterations)
    return logistic.sequential(data, case.iterations)
