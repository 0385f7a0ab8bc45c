"""K-means as a program of partitions; a query says which points belong to which center.

Run it with `python examples/canary_kmeans.py`. `examples/kmeans.py` does the same with a job per
iteration; here the iterations run in the workers. See docs/canary.md.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import minishark
from canary_core import Run
from minishark import Session
from minishark_lab.applications import kmeans

CENTERS = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])
START = np.array([[1.0, 1.0], [5.0, 1.0], [1.0, 5.0], [5.0, 5.0]])
MEMBERS = """
    SELECT center, count(*) AS points
    FROM (
        SELECT id, arg_min(center, (p.x - c.x) ** 2 + (p.y - c.y) ** 2) AS center
        FROM points AS p CROSS JOIN centers AS c
        GROUP BY id
    )
    GROUP BY center ORDER BY center
"""


def points(count: int, seed: int = 7) -> pa.Table:
    """Points around four centers, the same for each seed."""
    rng = np.random.default_rng(seed)
    xy = CENTERS[rng.integers(len(CENTERS), size=count)] + rng.normal(size=(count, 2))
    return pa.table({"id": np.arange(count), "x": xy[:, 0], "y": xy[:, 1]})


def array_of(rows: pa.Table) -> np.ndarray:
    """A partition of the table as an array of shape (2, points)."""
    return np.stack([rows["x"].to_numpy(), rows["y"].to_numpy()])


def cluster(run: Run) -> object:
    """The driver: the centers after at most 50 iterations."""
    parts = run.map(array_of, run.table("points"))
    return kmeans.fit(run, parts, run.single(START), iterations=50, tolerance=1e-9)


def run(session: Session, count: int = 20_000) -> tuple[np.ndarray, list[int]]:
    """The centers, and how many points belong to each."""
    session.create_table("points", points(count), partition_by="id")
    centers = session.program(cluster, partitions=4).result()
    columns = {"center": range(len(centers)), "x": centers[:, 0], "y": centers[:, 1]}
    session.create_table("centers", pa.table(columns))
    return centers, [row[1] for row in session.sql(MEMBERS).collect()]


if __name__ == "__main__":
    with minishark.connect() as found:
        for center, members in zip(*run(found), strict=True):
            print("center at ({:.2f}, {:.2f})".format(*center), f"of {members} points")
