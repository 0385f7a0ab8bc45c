"""Modules of the user's that are edited while executors live."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster

_PROGRAM = """
import sys
import minishark
import rates

with minishark.connect(sys.argv[1], reuse=sys.argv[2], single_task_rows=0) as session:
    print(list(session.map(rates.paid, [1, 2], reuse=sys.argv[2] != "off")))
    frame = session.create_dataframe([(1,), (2,)], ["a"])
    print([row.b for row in frame.map_rows(lambda row: rates.paid(row.a), "b BIGINT").collect()])
    session.udf.register("paid", rates.paid, "BIGINT", ["BIGINT"])
    print([row[0] for row in session.sql("SELECT paid(r.i) FROM range(1, 3) AS r(i)").collect()])
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules, where programs and executors find them."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, modules: Path) -> Iterator[ClusterRecord]:
    """A cluster of two nodes with one executor each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        patch.syspath_prepend(modules)
        yield start_cluster(StartOptions(name="editing", nodes=2))
        stop_cluster("editing")


@pytest.mark.slow
@pytest.mark.parametrize("reuse", ["cluster", "off"])
def test_a_program_that_is_run_again_calls_what_its_modules_say_now(
    running: ClusterRecord, modules: Path, reuse: str
) -> None:
    """Calls, functions over rows and in SQL; also of a module that another one imports."""
    (modules / "rates.py").write_text("import factors\ndef paid(x): return x * factors.RATE\n")
    environment = {**os.environ, "PYTHONPATH": f"{modules}{os.pathsep}{Path.cwd()}"}
    for rate in (2, 30):
        (modules / "factors.py").write_text(f"RATE = {rate}\n")
        run = subprocess.run(
            [sys.executable, "-c", _PROGRAM, running.address, reuse],
            cwd=modules,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert [str([rate, 2 * rate])] * 3 == run.stdout.splitlines(), run.stderr
