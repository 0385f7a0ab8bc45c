"""The example programs of partitioned jobs, and of Canary, do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import minishark
from minishark_lab.applications import kmeans, logistic, pagerank

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_kmeans() -> None:
    """The centers that the points were made around are found again."""
    kmeans = _example("kmeans")
    with minishark.connect(in_process=True, nodes=2) as session:
        found = kmeans.run(session, count=4_000)
    assert np.allclose(kmeans.CENTERS, found, atol=0.2)


@pytest.mark.slow
def test_partitioned_etl(tmp_path: Path) -> None:
    """Files for each country and month, without the rows that were wrong."""
    etl = _example("partitioned_etl")
    with minishark.connect(in_process=True, nodes=2) as session:
        ((orders, _, large),) = etl.run(session, tmp_path)
    folders = sorted(str(p.relative_to(tmp_path / "orders")) for p in tmp_path.glob("orders/*/*"))
    expected = [f"country={c}/month=2026-0{m}" for c in ("de", "fr", "it") for m in (1, 2, 3)]
    assert expected == folders
    assert 0 < large < orders < 400


@pytest.mark.slow
def test_anywhere() -> None:
    """The answer is plain DuckDB's over all measurements at once."""
    example = _example("anywhere")
    with minishark.connect(in_process=True, nodes=2) as session:
        found = example.run(session, rows=2_000)
    with duckdb.connect() as connection:
        every = pa.table({"id": range(example.PARTITIONS * 2_000)})
        connection.register("measurements", example.measure(every))
        expected = connection.sql(example.DAYS).fetchall()
    assert expected == [tuple(row) for row in found]
    assert len(expected) == 5


@pytest.mark.slow
def test_canary_logistic() -> None:
    """The weights are those of plain NumPy over the same query's rows."""
    example = _example("canary_logistic")
    with minishark.connect(in_process=True, nodes=2) as session:
        weights, share = example.run(session, count=4_000)
        points = example.points_of(session.sql(example.FEATURES).to_arrow())
    expected = logistic.sequential(points, 200, 1e-4)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert share > 0.65


def test_canary_kmeans() -> None:
    """The centers that the points were made around, and each point belongs to one."""
    example = _example("canary_kmeans")
    with minishark.connect(in_process=True, nodes=2) as session:
        centers, members = example.run(session, count=4_000)
    whole = example.array_of(example.points(4_000))
    np.testing.assert_allclose(centers, kmeans.sequential(whole, example.START, 50, 1e-9))
    assert np.allclose(example.CENTERS, centers, atol=0.2)
    assert 4_000 == sum(members)


def test_canary_pagerank() -> None:
    """The ranks that a query joins to pages are those of plain NumPy over the same links."""
    example = _example("canary_pagerank")
    with minishark.connect(in_process=True, nodes=2) as session:
        best = example.run(session, count=5_000, pages=300)
        table = session.sql("SELECT rank FROM ranks ORDER BY vertex").to_arrow()
        edges = example.edges_of(session.table("edges").to_arrow())
    ranks = table["rank"].to_numpy()
    expected = pagerank.sequential(edges, len(ranks), 100, 1e-8)
    np.testing.assert_allclose(ranks, expected, rtol=1e-9)
    assert ranks.max() == best[0][1]
    assert "page-00000" == best[0][0]
