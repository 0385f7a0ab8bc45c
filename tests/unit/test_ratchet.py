"""The arithmetic of benchmarks/ratchet.py: what is worse, and what is noise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ratchet() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("ratchet", ROOT / "benchmarks" / "ratchet.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def samples(slower: float, spread: float) -> tuple[list[float], list[float]]:
    """Pairs of times on a machine that drifts by a factor of two; one side is slower."""
    rng = Random(1)
    drift = [1 + i / 40 for i in range(40)]
    ours = [slower * each * rng.uniform(1 - spread, 1 + spread) for each in drift]
    return ours, [each * rng.uniform(1 - spread, 1 + spread) for each in drift]


@pytest.mark.parametrize(
    ("slower", "spread", "verdict"),
    [
        (1.0, 0.01, ""),
        (0.8, 0.01, ""),
        (1.02, 0.001, ""),
        (1.05, 0.01, "worse"),
        (1.5, 0.3, "worse"),
        (1.04, 0.3, "not certain: more --rounds"),
    ],
)
def test_worse_is_told_from_noise(
    ratchet: ModuleType, slower: float, spread: float, verdict: str
) -> None:
    """Drift cancels out; a difference counts where it exceeds 3 % and the pairs' own noise."""
    assert verdict == ratchet._verdict(*ratchet._ratio(*samples(slower, spread)))


def test_equal_times_have_no_noise(ratchet: ModuleType) -> None:
    """A ratio of one, exactly."""
    assert (1.0, 0.0) == ratchet._ratio([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])


def test_noise_of_a_record_adds_in_quadrature(ratchet: ModuleType) -> None:
    """A quotient of ratios has the relative noise of both."""
    found = ratchet._quotients({"start": (2.0, 0.06)}, {"start": (1.0, 0.04)})
    assert {"start": pytest.approx((2.0, 0.1))} == found


def test_a_missing_record_is_told_of(
    ratchet: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One sentence says how to make it."""
    monkeypatch.setattr(ratchet, "RECORD", tmp_path / "none.json")
    with pytest.raises(SystemExit, match="run --record at a checkout of the release"):
        ratchet.main([])
