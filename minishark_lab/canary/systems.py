"""Runs cases on each system, in processes of its own with one BLAS thread each."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from minishark.errors import ExecutionError
from minishark_lab.canary.cases import Case, Measured

_LIMIT_S = 600.0
_TEXT_MAX = 2000
# A worker has one core: threads of BLAS beside it would compete with the other workers.
_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYSPARK_PYTHON": sys.executable,
}  # fmt: skip
_MODULES = {
    "NumPy": ("plain",),
    "sequential": ("plain", "in turn"),
    "minishark": ("own",),
    "mpi4py": ("mpi",),
    "Ray": ("ray_actors",),
    "PySpark": ("spark",),
}
_PACKAGES = {"mpi4py": "mpi4py", "Ray": "ray", "PySpark": "pyspark"}


def installed_peers() -> list[str]:
    """Systems beside minishark that can be run here: mpi4py (with an mpiexec), Ray, PySpark."""
    found = [name for name, package in _PACKAGES.items() if importlib.util.find_spec(package)]
    return [name for name in found if name != "mpi4py" or _mpiexec()]


def run_cases(system: str, cases: Sequence[Case]) -> list[Measured]:
    """Run cases of one number of workers on a system: NumPy, minishark, or an installed peer.

    Raises:
        ExecutionError: It failed, or took too long.
    """
    module, *more = _MODULES[system]
    with tempfile.TemporaryDirectory(prefix="minishark-bench-") as folder:
        asked, told = Path(folder, "cases.json"), Path(folder, "measured.json")
        asked.write_bytes(msgspec.json.encode(cases))
        python = [sys.executable, "-m", f"minishark_lab.canary.{module}"]
        command = [*python, str(asked), str(told), *more]
        if system == "mpi4py":
            command = [_mpiexec(), "-n", str(cases[0].workers), *command]
        _run(system, command)
        return msgspec.json.decode(told.read_bytes(), type=list[Measured])


def _run(system: str, command: list[str]) -> None:
    environment = {
        **os.environ,
        **_ONE_THREAD,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ExecutionError(f"{system} took more than {_LIMIT_S:.0f} s.") from error
    if done.returncode:
        raise ExecutionError(f"{system} failed:\n{done.stderr[-_TEXT_MAX:]}")


def _mpiexec() -> str:
    """The mpiexec that was installed beside this Python; "" for none."""
    file = Path(sysconfig.get_path("scripts"), "mpiexec")
    return str(file) if file.exists() else ""
