"""PageRank as a program of partitions, from a table of links back to a table of ranks.

Run it with `python examples/canary_pagerank.py`. Queries number the pages, and join the ranks to
them; in between, the edges are cut into a grid of blocks (`minishark_lab/applications/pagerank.py`)
that exchange pieces of ranks along their rows and columns. See docs/canary.md.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

import minishark
from canary_core import Run
from minishark import Session
from minishark_lab.applications import pagerank

PAGES = """
    SELECT page, row_number() OVER (ORDER BY page) - 1 AS vertex
    FROM (SELECT source AS page FROM links UNION SELECT target FROM links)
"""
EDGES = """
    SELECT s.vertex AS source, t.vertex AS target
    FROM links JOIN pages AS s ON links.source = s.page JOIN pages AS t ON links.target = t.page
"""
BEST = """
    SELECT page, rank FROM pages JOIN ranks USING (vertex) ORDER BY rank DESC, page LIMIT 5
"""


def links(count: int, pages: int, seed: int = 5) -> pa.Table:
    """Random links between pages, of which a few are popular; some have no links."""
    rng = np.random.default_rng(seed)
    source = rng.integers(pages * 9 // 10, size=count)
    target = (pages * rng.random(count) ** 3).astype(int)
    names = np.array([f"page-{number:05}" for number in range(pages)])
    return pa.table({"source": names[source], "target": names[target]})


def edges_of(rows: pa.Table) -> pagerank.Edges:
    """A partition of the table as arrays."""
    return rows["source"].to_numpy(), rows["target"].to_numpy()


def ranks_of(grid: pagerank.Grid, values: np.ndarray, number: int) -> pa.Table:
    """A slice of ranks as rows."""
    return pa.table({"vertex": np.arange(number, grid.vertices, grid.slices), "rank": values})


def rank(vertices: int, run: Run) -> object:
    """The driver: ranks, as partitions of a table."""
    edges = run.map(edges_of, run.table("edges"))
    graph = pagerank.cut(run, edges, vertices)
    ranks = pagerank.rank(run, graph, iterations=100, tolerance=1e-8)
    return run.map(partial(ranks_of, graph.grid), ranks, run.load(int))


def run(session: Session, count: int = 50_000, pages: int = 2_000) -> list[tuple[str, float]]:
    """The best pages and their ranks."""
    session.create_table("links", links(count, pages))
    session.create_table("pages", session.sql(PAGES))
    session.create_table("edges", session.sql(EDGES))
    vertices = session.table("pages").count()
    session.program(partial(rank, vertices), partitions=4, into="ranks").result()
    return [(row[0], row[1]) for row in session.sql(BEST).collect()]


if __name__ == "__main__":
    with minishark.connect() as found:
        for page, value in run(found):
            print(f"{page}  {value:.6f}")
