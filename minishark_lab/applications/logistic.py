"""Logistic regression by gradient descent, with L2 regularization.

Points are stored one feature a row, as Arrow has them: an array of shape (features, points).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from canary_core.driver import Run, Value

Floats = npt.NDArray[np.float64]

RATE = 1.0
DECAY = 1e-4


@dataclass(frozen=True)
class Points:
    """A partition: features of shape (features, points), and labels 0.0 or 1.0."""

    features: Floats
    labels: Floats


def make_points(partition: int, count: int, features: int = 20) -> Points:
    """Random points of one partition, the same on each call; the last feature is constant."""
    rng = np.random.default_rng((7, partition))
    x = rng.normal(size=(features, count))
    x[-1] = 1.0
    planted = np.linspace(-1.0, 1.0, features)
    noisy = planted @ x + rng.logistic(size=count)
    return Points(x, (noisy > 0).astype(np.float64))


def gradient(points: Points, weights: Floats) -> Floats:
    """The sum over the points of the gradient of their loss, and at the end their number."""
    x, y = points.features, points.labels
    error = weights @ x
    # In place: a partition's temporary arrays then stay in the cache.
    np.negative(error, out=error)
    with np.errstate(over="ignore"):  # 1 / (1 + inf) is right
        np.exp(error, out=error)
    error += 1.0
    np.reciprocal(error, out=error)
    error -= y
    return np.append(x @ error, float(len(y)))


def step(weights: Floats, total: Floats) -> Floats:
    """The weights after a step against the mean gradient."""
    moved: Floats = weights - RATE * (total[:-1] / total[-1] + DECAY * weights)
    return moved


def distance(a: Floats, b: Floats) -> float:
    """The largest change of a weight."""
    return float(np.abs(a - b).max())


def fit(run: Run, points: Value, weights: Value, iterations: int, tolerance: float = 0.0) -> Value:
    """The weights, a single, after some iterations: part of a driver.

    Args:
        run: The driver's.
        points: Partitions of `Points`.
        weights: To begin with, a single.
        iterations: At most so many.
        tolerance: It ends when no weight changes by as much.
    """
    for _ in range(iterations):
        total = run.reduce(np.add, run.map(gradient, points, run.broadcast(weights)))
        before, weights = weights, run.map(step, weights, total)
        if run.signal(partial(_is_near, tolerance), weights, before):
            break
    return weights


def _is_near(tolerance: float, a: Floats, b: Floats) -> bool:
    return distance(a, b) < tolerance


def sequential(points: Points, iterations: int, tolerance: float = 0.0) -> Floats:
    """The same in plain NumPy, over all points at once."""
    weights = np.zeros(len(points.features))
    for _ in range(iterations):
        moved = step(weights, gradient(points, weights))
        change = distance(moved, weights)
        weights = moved
        if change < tolerance:
            break
    return weights
