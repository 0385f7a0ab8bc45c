"""The documentation says what the code does, and the example runs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_documented_protocol_is_current() -> None:
    """`python docs/generate.py` would change nothing."""
    page = ROOT / "docs" / "sparrow.md"
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))["generate"]
    assert generate(page.read_text()) == page.read_text(), "run: python docs/generate.py"


def test_the_page_of_pysparks_names_is_current() -> None:
    """Every name of PySpark's is there, or the page has a reason why not."""
    page = ROOT / "docs" / "pyspark.md"
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))["generate_pyspark"]
    assert generate(page.read_text()) == page.read_text(), "run: python docs/generate.py"


def test_every_message_has_a_sender_and_a_receiver() -> None:
    """But for timers' first messages, which drivers make, nothing is sent by nobody."""
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    sent = generator["senders"]()
    text = "\n".join(generator["protocol"]())
    assert 0 < text.count("(from: ")
    for name in ("SubmitJob", "Reserve", "GetTasks", "AssignTasks", "RunTasks", "TaskResults"):
        assert sent[name], name
        assert f"**{name}** (from: " in text


@pytest.mark.slow
def test_the_example_framework_runs() -> None:
    """Sleeping tasks and multiplying ones, on a cluster of its own; no job fails."""
    for kind in ("sleep", "float"):
        done = subprocess.run(
            [
                sys.executable, str(ROOT / "examples" / "sleep_and_float.py"),
                "--kind", kind, "--nodes", "1", "--slots", "2", "--jobs", "5", "--tasks", "3",
                "--task-ms", "10",
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (0, "") == (done.returncode, done.stderr)
        assert done.stdout.startswith("5 jobs: response ")
        assert done.stdout.endswith("0 failed\n")
