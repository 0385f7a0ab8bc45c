"""The arithmetic of benchmarks/ratchet.py: what is worse, and what is noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ratchet(script: Callable[[str], ModuleType]) -> ModuleType:
    """The script as a module."""
    return script("ratchet")


def samples(slower: float, spread: float) -> tuple[list[float], list[float]]:
    """Pairs of times on a machine that drifts by a factor of two; one side is slower."""
    rng = Random(1)
    drift = [1 + i / 40 for i in range(40)]
    ours = [slower * each * rng.uniform(1 - spread, 1 + spread) for each in drift]
    return ours, [each * rng.uniform(1 - spread, 1 + spread) for each in drift]


def compared(ratchet: ModuleType, *tries: tuple[float, float]) -> Any:
    """A figure that was measured so often: how much slower, and how spread."""
    found = ratchet.Compared()
    for slower, spread in tries:
        ours, theirs = samples(slower, spread)
        found.add([(0.0, each) for each in ours], [(0.0, each) for each in theirs])
    return found


@pytest.mark.parametrize(
    ("tries", "worse"),
    [
        ([(1.0, 0.01)], False),
        ([(0.8, 0.01)], False),
        ([(1.1, 0.01)], False),
        ([(1.2, 0.01)], True),
        ([(1.5, 0.3), (1.5, 0.3), (1.5, 0.3)], True),
        ([(1.2, 0.01), (1.2, 0.01), (1.1, 0.01)], False),
        ([(1.2, 2.0)], False),
    ],
)
def test_a_loss_is_one_that_repeats(
    ratchet: ModuleType, tries: list[tuple[float, float]], worse: bool
) -> None:
    """Drift cancels out; a figure is above the limit each time, and is a loss beyond noise."""
    assert worse == compared(ratchet, *tries).is_worse(1.15)


def test_what_is_worse_is_measured_again(
    ratchet: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, as long as it is; what is not worse is left alone."""
    asked, slower = (
        [],
        {"load": iter((1.3, 1.3, 1.3)), "start": iter((1.3, 1.0)), "shuffle": iter((1.0,))},
    )

    def measure(*arguments: Any) -> dict[str, Any]:
        asked.append(list(arguments[-1]))
        return {name: ([(0.0, next(slower[name]))] * 3, [(0.0, 1.0)] * 3) for name in arguments[-1]}

    monkeypatch.setattr(ratchet, "_measure", measure)
    found = ratchet._compare((None, None), {}, [], 3, dict.fromkeys(slower, 1.15))
    assert [["load", "start", "shuffle"], ["load", "start"], ["load"]] == asked
    worse = {name: each.is_worse(1.15) for name, each in found.items()}
    assert {"load": True, "start": False, "shuffle": False} == worse


def test_equal_times_have_no_noise(ratchet: ModuleType) -> None:
    """A ratio of one, exactly."""
    assert (1.0, 0.0) == ratchet._ratio([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])


def test_an_allowance_raises_one_limit(ratchet: ModuleType) -> None:
    """That of its figure; without a reason, or for no figure, it is refused."""
    allowance = {"figure": "load", "at_most": 1.3, "reason": "Statistics are measured."}
    limits = ratchet._limits({"allowances": [allowance]}, 0.15)
    assert {"load": 1.3, "shuffle": 1.15} == {name: limits[name] for name in ("load", "shuffle")}
    for wrong in ({"figure": "laod"}, {"reason": ""}):
        with pytest.raises(SystemExit, match="needs a figure and a reason"):
            ratchet._limits({"allowances": [{**allowance, **wrong}]}, 0.15)


def test_a_commit_that_is_not_there_is_told_of(
    ratchet: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, and it is no failure."""
    assert 0 == ratchet.main(["--quick", "--against", "no-such-tag"])
    assert "skipped, as no-such-tag is not in the history of this clone" in capsys.readouterr().out


def test_the_page_of_releases_is_current(ratchet: ModuleType) -> None:
    """It is written from what was recorded."""
    assert ratchet.HISTORY.read_text() == ratchet.history(json.loads(ratchet.RECORD.read_text()))
