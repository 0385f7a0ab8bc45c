"""K-means: Lloyd's iterations from given centers.

Points are stored one dimension a row, as Arrow has them: an array of shape (dimensions, points).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from canary_core.driver import Run, Value

Floats = npt.NDArray[np.float64]


def make_points(partition: int, count: int, dimensions: int = 20, clusters: int = 10) -> Floats:
    """Random points of one partition around hidden centers, the same on each call."""
    hidden = np.random.default_rng(11).uniform(-10.0, 10.0, size=(dimensions, clusters))
    rng = np.random.default_rng((11, partition))
    nearest = rng.integers(clusters, size=count)
    return hidden[:, nearest] + rng.normal(size=(dimensions, count))


def first_centers(points: Floats, clusters: int) -> Floats:
    """The first points, as centers of shape (clusters, dimensions)."""
    return np.ascontiguousarray(points[:, :clusters].T)


def nearest_center(points: Floats, centers: Floats) -> npt.NDArray[np.intp]:
    """The number of each point's nearest center."""
    # |x - c|^2 without |x|^2, which is the same for all centers.
    distances: Floats = (-2.0 * centers) @ points
    distances += np.square(centers).sum(axis=1)[:, None]
    nearest: npt.NDArray[np.intp] = distances.argmin(axis=0)
    return nearest


def sums(points: Floats, centers: Floats) -> Floats:
    """Per center the sum of its points and, in the last column, their number."""
    nearest = nearest_center(points, centers)
    clusters = len(centers)
    columns = [np.bincount(nearest, weights=row, minlength=clusters) for row in points]
    return np.column_stack([*columns, np.bincount(nearest, minlength=clusters)])


def move(centers: Floats, total: Floats) -> Floats:
    """Each center at the mean of its points; one without points stays."""
    count = total[:, -1:]
    means = total[:, :-1] / np.maximum(count, 1.0)
    return np.where(count > 0.0, means, centers)


def distance(a: Floats, b: Floats) -> float:
    """The largest change of a coordinate."""
    return float(np.abs(a - b).max())


def fit(run: Run, points: Value, centers: Value, iterations: int, tolerance: float = 0.0) -> Value:
    """The centers, a single, after some iterations: part of a driver.

    Args:
        run: The driver's.
        points: Partitions of shape (dimensions, points).
        centers: To begin with, a single.
        iterations: At most so many.
        tolerance: It ends when no coordinate changes by as much.
    """
    for _ in range(iterations):
        total = run.reduce(np.add, run.map(sums, points, run.broadcast(centers)))
        before, centers = centers, run.map(move, centers, total)
        if run.signal(partial(_is_near, tolerance), centers, before):
            break
    return centers


def _is_near(tolerance: float, a: Floats, b: Floats) -> bool:
    return distance(a, b) < tolerance


def sequential(points: Floats, centers: Floats, iterations: int, tolerance: float = 0.0) -> Floats:
    """The same in plain NumPy, over all points at once."""
    for _ in range(iterations):
        moved = move(centers, sums(points, centers))
        change = distance(moved, centers)
        centers = moved
        if change < tolerance:
            break
    return centers
