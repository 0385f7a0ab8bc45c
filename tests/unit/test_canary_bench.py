"""The comparison of Canary's applications: what is shown, and what fails it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from minishark.cli.app import run
from minishark.errors import ExecutionError, OptionError
from minishark_lab.canary import systems
from minishark_lab.canary.cases import APPLICATIONS, Case, sequential
from minishark_lab.canary.experiment import Applications, applications, verdict
from minishark_lab.canary.plain import in_turn
from minishark_lab.canary.systems import installed_peers, run_cases
from minishark_lab.harness.rows import Point


@pytest.mark.parametrize("application", APPLICATIONS)
@pytest.mark.parametrize("partitions", [1, 5])
def test_drivers_equal_numpy(application: str, partitions: int) -> None:
    """Over the same data."""
    case = Case(application=application, count=2000, partitions=partitions, iterations=4)
    np.testing.assert_allclose(in_turn(case).array(), sequential(case).array(), rtol=1e-9)


def test_partitions_are_dealt_out() -> None:
    """Each worker has a contiguous part, and each partition one worker."""
    case = Case(application="PageRank", count=1, partitions=7, workers=3)
    own = [case.partitions_of(worker) for worker in range(3)]
    assert list(range(7)) == [each for part in own for each in part]
    assert max(map(len, own)) - min(map(len, own)) <= 1


def _rows(**wrong: float) -> list[Point]:
    found = []
    for application in APPLICATIONS:
        for system in ("NumPy", "minishark"):
            kinds = {"wall time": 2.0, "CPU time": 3.0, "differs from NumPy's result": 0.0}
            for kind, y in (kinds | wrong).items():
                found.append(Point(panel=f"{application}, {kind}", series=system, x=10, y=y))
    return found


def test_the_verdict_is_a_line_for_each_application() -> None:
    """With wall and CPU time of each system."""
    told = verdict(_rows())
    assert told.passed
    lines = told.text.splitlines()
    assert "minishark" in lines[0]
    for application, line in zip(APPLICATIONS, lines[1:], strict=False):
        assert line.startswith(application)
        assert 2 == line.count("2.00 (3.00)")


def test_a_wrong_result_fails_it() -> None:
    """It is named."""
    told = verdict(_rows(**{"differs from NumPy's result": 1.0}))
    assert not told.passed
    assert "k-means, differs from NumPy's result, 10: minishark" in told.text


def test_mistakes_are_told() -> None:
    """Before anything starts."""
    with pytest.raises(OptionError, match="1 or more"):
        applications(replace(Applications(), workers=0), 1, lambda _: None)


def test_a_system_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it wrote to stderr."""
    monkeypatch.setitem(systems._MODULES, "Ray", ("no_such_module",))
    case = Case(application="PageRank", count=10, partitions=1)
    with pytest.raises(ExecutionError, match=r"(?s)Ray failed:.*no_such_module"):
        run_cases("Ray", [case])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_applications_are_shown_live(capsys: pytest.CaptureFixture[str]) -> None:
    """Right, beside NumPy."""
    assert 0 == run(["bench", "canary", "--quick"])
    assert "all results are right" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("peer", installed_peers())
def test_installed_peers_are_right(peer: str) -> None:
    """The comparison would be worth little otherwise."""
    cases = [
        Case(application=each, count=3000, partitions=4, iterations=3) for each in APPLICATIONS
    ]
    for case, one in zip(cases, run_cases(peer, cases), strict=True):
        np.testing.assert_allclose(one.array(), sequential(case).array(), rtol=1e-9)
