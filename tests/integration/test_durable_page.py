"""The tutorial about work that outlives its program tells what happens."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minishark.cluster.launch import stop_cluster
from minishark.errors import ClusterError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "durable.md"
_LIMIT_S = 600


def _counts(printed: str) -> list[int]:
    return [int(line) for line in printed.splitlines() if line.isdecimal()]


@pytest.mark.slow
def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as a reader would; programs are the files that their first lines name."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "etl"
    folder.mkdir()
    text = PAGE.read_text().replace("/tmp/etl", str(folder))
    printed = []
    try:
        for kind, block in re.findall(
            r"^```(python|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE
        ):
            if kind == "python":
                (folder / block.split()[1].rstrip(",")).write_text(block)
                continue
            ran = subprocess.run(
                ["bash", "-ec", block],
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
                timeout=_LIMIT_S,
                check=True,
            )
            printed.append(ran.stdout)
    finally:
        with contextlib.suppress(ClusterError):  # the page has stopped it
            stop_cluster("default")
    _, killed, again, submitted, shared, folder_kept = printed
    (before,), (after,), (by_job,) = map(_counts, (killed, again, submitted))
    assert 100 <= before < 404 <= after == by_job <= 404 + 5
    assert {str(number) for number in range(400)} == {*(folder / "calls").read_text().split()}
    assert "396 rows, 4 rejected" in again
    assert "shared.prices  400" in shared
    assert "396 prices, at most 399.5" in shared
    first, second = re.findall(r"10 rows by (\d+) tasks", folder_kept)
    assert int(first) > 0 == int(second)
