"""The applications equal plain NumPy, and do not depend on how they are cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary_core import Run, Value, run_sequentially
from canary_core.machines.controller import Settings
from canary_core.protocol.messages import Move
from minishark_lab.applications import kmeans, logistic, pagerank
from minishark_lab.canary.cluster import CONTROLLER, SimulatedRun
from minishark_lab.simulator.network import Network

PARTITIONS = (1, 2, 3, 4, 8, 12)


@pytest.mark.parametrize("partitions", PARTITIONS)
def test_logistic_regression(partitions: int) -> None:
    """Weights as over all points at once; the planted ones are found."""

    def driver(run: Run) -> Value:
        points = run.load(partial(logistic.make_points, count=2000, features=5))
        return logistic.fit(run, points, run.single(np.zeros(5)), 300, 1e-6)

    parts = [logistic.make_points(each, 2000, 5) for each in range(partitions)]
    whole = logistic.Points(
        np.concatenate([part.features for part in parts], axis=1),
        np.concatenate([part.labels for part in parts]),
    )
    weights = run_sequentially(driver, partitions=partitions)
    np.testing.assert_allclose(weights, logistic.sequential(whole, 300, 1e-6), rtol=1e-9)
    np.testing.assert_allclose(weights, np.linspace(-1, 1, 5), atol=0.4)


@pytest.mark.parametrize("partitions", PARTITIONS)
def test_kmeans(partitions: int) -> None:
    """Centers as over all points at once; it ends when nothing moves."""
    first = kmeans.make_points(99, 6, 3, 4).T[:4].copy()

    def driver(run: Run) -> Value:
        points = run.load(partial(kmeans.make_points, count=500, dimensions=3, clusters=4))
        return kmeans.fit(run, points, run.single(first), 100, 1e-12)

    parts = [kmeans.make_points(each, 500, 3, 4) for each in range(partitions)]
    whole = np.concatenate(parts, axis=1)
    centers = run_sequentially(driver, partitions=partitions)
    np.testing.assert_allclose(centers, kmeans.sequential(whole, first, 100, 1e-12), rtol=1e-9)
    np.testing.assert_allclose(centers, kmeans.move(centers, kmeans.sums(whole, centers)))


def test_a_center_without_points_stays() -> None:
    """Instead of becoming 0 / 0."""
    points, centers = np.zeros((2, 5)), np.array([[0.0, 0.0], [9.0, 9.0]])
    moved = kmeans.move(centers, kmeans.sums(points, centers))
    np.testing.assert_array_equal(moved, centers)


@dataclass(frozen=True)
class Graph:
    """Edges as lists, and in how many partitions they are loaded."""

    vertices: int
    edges: list[tuple[int, int]]
    partitions: int

    def part(self, index: int) -> pagerank.Edges:
        own = np.array(self.edges[index :: self.partitions], np.int64).reshape(-1, 2)
        return own[:, 0], own[:, 1]

    def driver(self, iterations: int, tolerance: float, run: Run) -> Value:
        graph = pagerank.cut(run, run.load(self.part), self.vertices)
        return pagerank.rank(run, graph, iterations, tolerance)

    def in_order(self, slices: Any) -> np.ndarray:
        parts = slices if self.partitions > 1 else [slices]
        return pagerank.in_order(pagerank.grid_of(self.vertices, self.partitions), parts)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs with all that is special: no edges, loops, repeated edges, dangling vertices."""
    vertices = draw(st.integers(1, 30))
    vertex = st.integers(0, vertices - 1)
    edges = draw(st.lists(st.tuples(vertex, vertex), max_size=60))
    return Graph(vertices, edges, draw(st.integers(1, 12)))


def _expected(graph: Graph, iterations: int, tolerance: float = 0.0) -> np.ndarray:
    both = np.array(graph.edges, np.int64).reshape(-1, 2)
    return pagerank.sequential((both[:, 0], both[:, 1]), graph.vertices, iterations, tolerance)


@settings(deadline=None)
@given(graphs(), st.integers(0, 6))
def test_pagerank_over_any_cut(graph: Graph, iterations: int) -> None:
    """Ranks as over all edges at once; they add up to 1."""
    found = run_sequentially(partial(graph.driver, iterations, 0.0), partitions=graph.partitions)
    ranks = graph.in_order(found)
    np.testing.assert_allclose(ranks, _expected(graph, iterations), rtol=1e-9)
    assert ranks.sum() == pytest.approx(1)


def test_pagerank_ends_when_ranks_stay() -> None:
    """After as many iterations as plain NumPy takes, and equal to a dense power iteration."""
    sources, targets = pagerank.make_edges(0, 3000, 200)
    graph = Graph(200, list(zip(sources.tolist(), targets.tolist(), strict=True)), 6)
    ranks = graph.in_order(run_sequentially(partial(graph.driver, 1000, 1e-10), partitions=6))
    np.testing.assert_allclose(ranks, _expected(graph, 1000, 1e-10), rtol=1e-9)
    matrix = np.zeros((200, 200))
    np.add.at(matrix, (targets, sources), 1.0)
    degree = matrix.sum(axis=0)
    matrix = np.where(degree > 0, matrix / np.maximum(degree, 1), 1 / 200)
    dense = np.full(200, 1 / 200)
    for _ in range(200):
        dense = 0.15 / 200 + 0.85 * matrix @ dense
    np.testing.assert_allclose(ranks, dense, atol=1e-9)


@pytest.mark.parametrize(("partitions", "rows"), [(1, 1), (4, 2), (6, 2), (7, 1), (12, 3), (16, 4)])
def test_a_slice_meets_its_row_and_column_only(partitions: int, rows: int) -> None:
    """That is what the cut is for: rows + columns messages instead of rows * columns."""
    grid = pagerank.grid_of(100, partitions)
    assert (rows, partitions) == (grid.rows, grid.slices)
    for number in range(partitions):
        assert len(grid.neighbours(number)) == grid.rows + grid.columns - 1
        assert number in grid.row(number)
        assert number in grid.column(number)
    assert 100 == sum(grid.size(number) for number in range(partitions))


def test_mirrors_are_no_more_than_the_edges_need() -> None:
    """A block has mirrors of the ends of its edges, each once."""
    grid = pagerank.grid_of(50, 4)
    edges = pagerank.make_edges(0, 40, 50)
    for number, part in enumerate(pagerank.by_block(grid, edges)):
        block = pagerank.make_block(grid, [part], number)
        mirrored = sum(len(each.sources) for each in block.mirrors.values())
        aimed = sum(len(each.targets) for each in block.mirrors.values())
        assert (len(np.unique(part[0])), len(np.unique(part[1]))) == (mirrored, aimed)


@pytest.mark.parametrize("moves", [0, 20])
def test_pagerank_is_the_same_to_the_bit_at_many_workers(moves: int) -> None:
    """Whoever has which partition, and also while they move."""
    sources, targets = pagerank.make_edges(0, 3000, 300)
    graph = Graph(300, list(zip(sources.tolist(), targets.tolist(), strict=True)), 9)
    driver = partial(graph.driver, 10, 0.0)
    expected = run_sequentially(driver, partitions=9)
    network = Network(delay_s=0.01)
    run = SimulatedRun(
        driver, Settings(partitions=9, workers=3), workers=3, network=network, wire=True
    )
    for number in range(moves):
        at = list(run.workers)[number % 3]
        run.world.post(CONTROLLER, Move(9, number % 9, at), 0.02 * number)
    for ours, theirs in zip(run.result(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert run.progress is not None
    assert (moves > 0) == (run.progress.moves > 0)
