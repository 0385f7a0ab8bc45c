"""The shell as a user meets it: on a terminal, in a pipe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import psutil
import pytest

from minishark.cli.tpch.locations import sample_folder
from minishark.cli.tpch.queries import load_queries

sys.path.insert(0, str(Path(__file__).parent))

from terminal import terminal

LONG = (
    "SELECT sum(a.l_tax * b.l_tax) FROM lineitem a, lineitem b, lineitem c WHERE a.l_tax < c.l_tax;"
)


_ONE_NODE = ("--nodes", "1")
_RANGE = ("FROM range(1000000)", "-f", "csv")
_REGION = sample_folder() / "region.parquet"


def _revenue() -> str:
    with duckdb.connect() as plain:
        plain.execute(f"CREATE VIEW lineitem AS FROM '{sample_folder()}/lineitem.parquet'")
        ((revenue,),) = plain.sql(load_queries([6])[6]).fetchall()
    return str(revenue)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is the terminal of this test")
def test_a_session_on_a_terminal(tmp_path: Path) -> None:
    """TPC-H over the offered sample; an error; a cancelled query; a lost executor; nothing left."""
    with terminal(tmp_path) as shell:
        shell.wait_for("Load the bundled TPC-H sample? [Y/n]")
        shell.press("Enter")
        shell.wait_for("2 nodes · ")
        shell.type(".tpch 6")
        assert _revenue() in shell.wait_for("1 row in ")
        shell.type("SELECT n_nam FROM nation;")
        lines = shell.wait_for('Candidate bindings: "n_name"').splitlines()
        line = next(line for line in lines if line.startswith("LINE 1: SELECT n_nam FROM"))
        assert "^^^^^" == lines[lines.index(line) + 1].strip()
        shell.type(LONG)
        shell.wait_for("0 of ")
        shell.wait_for("Ctrl-C cancels")
        shell.press("C-\\")
        shell.wait_for("Killed executor")
        for _ in range(3):  # the impatient press it again
            shell.press("C-c")
        shell.wait_for("Cancelled.")
        shell.resize(60, 30)
        shell.type(".kill-executor node-1")
        shell.wait_for("Killed executor node-1-e0")
        shell.type("SELECT r_regionkey + 40 AS answer FROM region")
        shell.type("ORDER BY 1 DESC;")
        assert "answer\nBIGINT\n──────\n    44\n    43\n" in shell.wait_for("5 rows in ")
        shell.type("never finished")
        shell.press("C-c")
        shell.wait_for("...>\nminishark>")
        shell.type(".quit")
        assert "0" == shell.exit_status()
    history = (tmp_path / "state/minishark/history").read_text()
    assert "+.tpch 6\n" in history
    for process in psutil.process_iter(["environ"]):
        assert str(tmp_path) != (process.info["environ"] or {}).get("HOME"), process


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@pytest.mark.slow
def test_stdin_that_is_no_terminal_is_run() -> None:
    """Statements and commands come from a pipe, answers go to one, without colour or progress."""
    done = subprocess.run(
        [sys.executable, "-m", "minishark.cli", *_ONE_NODE, "--data", str(_REGION)],
        input="SELECT min(r_name) AS r FROM region;\n.mode jsonlines\nSELECT 1 AS a;\nSELEC",
        capture_output=True, text=True, check=False, timeout=60, env=_environment(),
    )  # fmt: skip
    assert (1, 'r\n──────\nAFRICA\n1 row\n{"a":1}\n') == (done.returncode, done.stdout)
    assert [
        "Loading region",
        'Error: Parser Error: syntax error at or near "SELEC"',
        "Did you mean SELECT instead of SELEC?",
        "LINE 1: SELEC",
        "        ^^^^^",
        "(stdin, line 4)",
    ] == done.stderr.splitlines()


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error() -> None:
    """`minishark sql ... | head -1` ends quietly, as if by SIGPIPE."""
    command = [sys.executable, "-m", "minishark.cli", "sql", *_ONE_NODE, *_RANGE]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert "range\n" == child.stdout.readline()
        child.stdout.close()
        assert "" == child.stderr.read()
    assert 141 == child.returncode
