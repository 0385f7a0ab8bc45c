"""benchmarks/nightly.py: everything runs, what fails is told, and the page has the counts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def nightly(script: Callable[[str], ModuleType]) -> ModuleType:
    """The script as a module."""
    return script("nightly")


def _python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def test_the_page_tells_of_each_job(nightly: ModuleType, tmp_path: Path) -> None:
    """After a command that fails, the job's others are left out, but not the other jobs."""
    counts = r"^(\d+ \w+)$"
    jobs = (
        nightly.Job("one", (_python("print('1 failed'); exit(3)"), _python("print(2)")), counts),
        nightly.Job("two", (_python("print('7 passed')"), _python("print('0 lost')")), counts),
    )
    page = tmp_path / "nightly.md"
    assert 1 == nightly.main(nightly.NightlyOptions(logs=tmp_path), jobs, page)
    rows = re.findall(r"^\| (one|two) \| (\w+) \| (.*?) \| 0 \|", page.read_text(), re.MULTILINE)
    assert [("one", "failed", "1 failed"), ("two", "passed", "7 passed, 0 lost")] == rows
    assert 0 == nightly.main(nightly.NightlyOptions(logs=tmp_path, only=("two",)), jobs, page)
    assert "| one |" not in page.read_text()
    assert re.search(r"^Begun at commit [0-9a-f]{10}", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("job", "printed", "counts"),
    [
        ("all tests", "==== 2 failed, 9 passed in 61.20s (0:01:01) ====", "2 failed, 9 passed"),
        ("TPC-DS", "99 of 99 correct.", "99 of 99 correct"),
        ("simulation", "histories                   95\nwrong    0", "histories 95, wrong 0"),
        (
            "ratchet",
            "| figure | a | b | ratio |\n| start | 1 | 2 | 0.5 | 0.1 | |",
            "start 0.5",
        ),
    ],
)
def test_counts_are_found(
    nightly: ModuleType, tmp_path: Path, job: str, printed: str, counts: str
) -> None:
    """The patterns fit what the commands print."""
    (pattern,) = (each.counts for each in nightly.JOBS if each.name == job)
    command = _python(f"print({printed!r})")
    assert counts == nightly.run(nightly.Job("x", (command,), pattern), tmp_path).counts
