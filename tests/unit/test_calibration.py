"""What work costs on a machine is measured once, and kept."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path

import pytest

from minishark.compiler.physical.costs import REFERENCE, Costs
from minishark.query import calibration

KEPT = replace(REFERENCE, scanned_ns=2.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    monkeypatch.setenv(calibration.CACHE_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[Costs]:
    """What has been measured."""
    found: list[Costs] = []

    def measured() -> Costs:
        found.append(KEPT)
        return KEPT

    monkeypatch.setattr(calibration, "measured", measured)
    return found


def known() -> Costs:
    """The costs, as a new process gets them."""
    return calibration.read_or_measured()


def test_measurements_are_like_the_reference() -> None:
    """All figures are above zero, and within what machines differ by."""
    found = calibration.measured()
    for value, reference in zip(astuple(found), astuple(REFERENCE), strict=True):
        assert reference / 8 <= value <= reference * 8


def test_the_machine_of_the_reference_has_its_costs() -> None:
    """A slower one has higher costs of the same kind, and disturbed measurements are bounded."""
    times = calibration._REFERENCE_TIMES
    assert REFERENCE == calibration._scaled(times)
    slow = calibration._scaled(replace(times, trivial_s=2 * times.trivial_s))
    doubled = {"stage_s": 2 * REFERENCE.stage_s, "task_s": 2 * REFERENCE.task_s}
    assert replace(REFERENCE, **doubled) == slow
    assert REFERENCE.sorted_ns / 8 == calibration._scaled(replace(times, sorted_ns=-1.0)).sorted_ns


def test_users_without_a_home_folder_have_costs(
    monkeypatch: pytest.MonkeyPatch, measurements: list[Costs]
) -> None:
    """They are measured by each process."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(calibration.CACHE_VARIABLE)
    monkeypatch.setattr(Path, "home", no_home)
    assert [KEPT, KEPT] == [known(), known()] == measurements


def test_costs_are_measured_once(folder: Path, measurements: list[Costs]) -> None:
    """The next process reads them from the cache folder, which holds nothing else."""
    assert [KEPT, KEPT, KEPT] == [known() for _ in range(3)]
    assert [KEPT] == measurements
    assert [calibration.cache_file()] == [file for file in folder.rglob("*") if file.is_file()]


@pytest.mark.parametrize("text", ["", "{}x", '{"scanned_ns": "fast"}'])
def test_what_cannot_be_read_is_measured_again(measurements: list[Costs], text: str) -> None:
    """As if it were not there."""
    calibration.cache_file().parent.mkdir()
    calibration.cache_file().write_text(text)
    assert KEPT == known() == known()
    assert [KEPT] == measurements


def test_a_cache_that_cannot_be_written_is_no_error(
    folder: Path, measurements: list[Costs]
) -> None:
    """Then each process measures."""
    (folder / "minishark").write_text("a file in place of the folder")
    assert KEPT == known() == known()
    assert [KEPT, KEPT] == measurements


def test_other_versions_and_machines_have_other_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not share a file."""
    files = [calibration.cache_file()]
    monkeypatch.setattr(calibration, "usable_cores", lambda: 1000)
    files.append(calibration.cache_file())
    monkeypatch.setattr("duckdb.__version__", "0.0")
    files.append(calibration.cache_file())
    assert 3 == len(set(files))
