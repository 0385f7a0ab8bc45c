"""docs/debugging.md shows what works: all of its blocks run, one after the other."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparrow_core.observe.message_log import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "debugging.md"
_LIMIT_S = 100.0


def _shell(block: str, folder: Path) -> str:
    """What a block of commands prints; the first that fails ends it."""
    commands = f'set -e\nminishark() {{ python -m minishark.cli "$@"; }}\n{block}'
    commands = commands.replace("sparrow audit", "python -m sparrow_core.cli audit")
    done = subprocess.run(
        ["/bin/bash", "-c", commands],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": str(folder),
        },
        capture_output=True, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _run(text: str, folder: Path) -> list[str]:
    """What each block of the page prints; those of Python share their names."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = []
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(block, str(PAGE), "exec"), names)
            printed.append(output.getvalue())
        else:
            assert "sh" == language
            printed.append(_shell(block, folder))
    return printed


@pytest.mark.slow
def test_the_blocks_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each does what the page says: plans, payloads, events, messages, stacks, a history."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    printed = _run(PAGE.read_text(), tmp_path)
    (plans, payloads, happened, _, events, messages, started, stack, history, tables, files) = (
        printed
    )
    assert "  | SELECT " in plans
    assert "queue ms" in plans
    assert re.search(r"^task 0 of 0-: SELECT ", payloads, re.MULTILINE)
    assert "task 0 ran on " in happened
    assert '"sql":"SELECT ' in events
    assert "no task has failed" in events
    assert re.search(r" -> \S+ SubmitJob\(", messages)
    assert re.search(r" <- TaskResults\(", messages)
    assert '"executors": [' in started
    assert "most recent call first" in stack
    assert re.search(r"^\d+\.\d{6} \S+ <- ", history, re.MULTILINE)
    assert "replicas=2" in tables
    assert "no node has died" in files
