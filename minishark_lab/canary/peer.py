"""A system that is measured in a process of its own: cases come as JSON, so do its measurements."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from minishark_lab.canary.cases import Case, Measured

_CPU_OF_PROCESS = 2  # CPUCLOCK_SCHED


def serve(run: Callable[[Case], Measured], *, answers: bool = True) -> None:
    """Run the cases of a file (the first argument), and write what was measured to the second.

    Args:
        run: Runs a case.
        answers: Whether this process writes; of MPI's ranks, one does.
    """
    cases = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[Case])
    measured = [run(case) for case in cases]
    if answers:
        Path(sys.argv[2]).write_bytes(msgspec.json.encode(measured))


def cpu_s_of_family(process: psutil.Process) -> float:
    """CPU time of a process and all its descendants so far, also of those that have ended."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error, OSError):
            ended = each.cpu_times()
            total += ended.children_user + ended.children_system
            # Linux's CPU clock of another process counts nanoseconds, psutil hundredths.
            total += time.clock_gettime(~each.pid << 3 | _CPU_OF_PROCESS)
    return total
