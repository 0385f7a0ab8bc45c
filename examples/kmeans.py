"""K-means over partitioned points: each iteration maps the partitions, SQL merges the sums.

Run it with `python examples/kmeans.py`. The points are cached in the cluster; each iteration sends
only the centers to the tasks, and a sum per center and partition back.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

import minishark
from minishark import DataFrame, Session

CENTERS = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])
SUMS = "center BIGINT, n BIGINT, x DOUBLE, y DOUBLE"


def points(count: int, seed: int = 7) -> pa.Table:
    """Points around four centers, the same for each seed."""
    rng = np.random.default_rng(seed)
    xy = CENTERS[rng.integers(len(CENTERS), size=count)] + rng.normal(size=(count, 2))
    return pa.table({"x": xy[:, 0], "y": xy[:, 1]})


def nearest_sums(centers: np.ndarray) -> Callable[[pa.Table], pa.Table]:
    """A function over a partition: count and sum of the points nearest to each center."""

    def over_partition(rows: pa.Table) -> pa.Table:
        xy = np.column_stack([rows["x"].to_numpy(), rows["y"].to_numpy()])
        distances = ((xy[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        n = np.bincount(nearest, minlength=len(centers))
        sums = [np.bincount(nearest, weights=xy[:, i], minlength=len(centers)) for i in (0, 1)]
        return pa.table({"center": range(len(centers)), "n": n, "x": sums[0], "y": sums[1]})

    return over_partition


def kmeans(frame: DataFrame, centers: np.ndarray, iterations: int) -> np.ndarray:
    """Centers that are the means of the points nearest to them.

    Args:
        frame: points with columns `x` and `y`.
        centers: initial centers, one row each.
        iterations: steps at most.
    """
    for _ in range(iterations):
        sums = frame.map_partitions(nearest_sums(centers), SUMS)
        merged = sums.group_by("center").sum("n", "x", "y").order_by("center").to_arrow()
        n, x, y = (merged.column(i).to_numpy().astype(float) for i in (1, 2, 3))
        moved = np.where(
            n[:, None] > 0, np.column_stack([x, y]) / np.maximum(n, 1)[:, None], centers
        )
        if np.allclose(moved, centers):
            return moved
        centers = moved
    return centers


def run(session: Session, count: int = 20_000, partitions: int = 4) -> np.ndarray:
    """Recover the four centers."""
    frame = session.create_dataframe(points(count)).repartition(partitions).persist()
    start = np.array([[1.0, 1.0], [5.0, 1.0], [1.0, 5.0], [5.0, 5.0]])
    return kmeans(frame, start, iterations=10)


if __name__ == "__main__":
    with minishark.connect() as found:
        for center in run(found):
            print("center at ({:.2f}, {:.2f})".format(*center))
