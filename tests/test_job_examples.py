"""The example programs of partitioned jobs do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np

import minishark

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kmeans() -> None:
    """The centers that the points were made around are found again."""
    kmeans = _example("kmeans")
    with minishark.connect(in_process=True, nodes=2) as session:
        found = kmeans.run(session, count=4_000)
    assert np.allclose(kmeans.CENTERS, found, atol=0.2)


def test_partitioned_etl(tmp_path: Path) -> None:
    """Files for each country and month, without the rows that were wrong."""
    etl = _example("partitioned_etl")
    with minishark.connect(in_process=True, nodes=2) as session:
        ((orders, _, large),) = etl.run(session, tmp_path)
    folders = sorted(str(p.relative_to(tmp_path / "orders")) for p in tmp_path.glob("orders/*/*"))
    expected = [f"country={c}/month=2026-0{m}" for c in ("de", "fr", "it") for m in (1, 2, 3)]
    assert expected == folders
    assert 0 < large < orders < 400
