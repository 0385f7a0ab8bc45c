"""Why processes died, as far as the system tells, and when to restart them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

_DELAY_S = 0.1
_DELAY_MAX_S = 5.0
_DOUBLINGS_MAX = 6
_QUICK_S = 3.0
_STEADY_S = 10.0
_CGROUPS = Path("/sys/fs/cgroup")
_MIB = 1 << 20


def oom_kills() -> int:
    """Number of OOM kills so far, in this control group or else on this machine.

    0 if the system does not count them.
    """
    try:
        cgroup = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        return 0
    for file in (_CGROUPS / cgroup / "memory.events", Path("/proc/vmstat")):
        try:
            counters = dict(line.split()[:2] for line in file.read_text().splitlines())
            return int(counters["oom_kill"])
        except (OSError, KeyError, ValueError):
            continue
    return 0


def describe_exit(status: int | None, peak_bytes: int, *, out_of_memory: bool) -> str:
    """How a process ended, for messages.

    Args:
        status: its exit status; negative for a signal, None if it still runs.
        peak_bytes: its peak resident memory; 0 if unknown.
        out_of_memory: whether there were OOM kills while it ran.
    """
    if status is None:
        return "still running"
    peak = f", peak memory {peak_bytes // _MIB} MiB" if peak_bytes else ""
    if status >= 0:
        return f"exit status {status}{peak}"
    if status == -signal.SIGKILL and out_of_memory:
        return f"killed by the kernel as memory ran out (SIGKILL){peak}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # most real-time signals have no name
        name = f"signal {-status}"
    return f"killed by {name}{peak}"


def wait_for_child(pid: int) -> tuple[int, int] | None:
    """Reap a child if it is dead; returns its exit status and peak memory in bytes."""
    try:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else has reaped it
        return -signal.SIGKILL, 0
    if not ended:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit


class Respawns:
    """Restarts of a process, with exponential backoff.

    Attributes:
        count: how often it died.
    """

    def __init__(self, quick_max: int | None = None) -> None:
        """No death yet.

        Args:
            quick_max: how often in a row it may die right after its start before it is given up;
                None for no limit. A process that has worked for seconds is always restarted.
        """
        self.count = 0
        self._early = 0
        self._quick = 0
        self._quick_max = quick_max
        self._started_at = 0.0

    def started(self, now: float) -> None:
        self._started_at = now

    def died(self, now: float) -> float | None:
        """The process died; returns the seconds until its restart, None to give it up."""
        lived_s = now - self._started_at
        self.count += 1
        self._quick = self._quick + 1 if lived_s <= _QUICK_S else 0
        self._early = self._early + 1 if lived_s <= _STEADY_S else 1
        if self._quick_max is not None and self._quick > self._quick_max:
            return None
        return min(_DELAY_S * 2.0 ** min(self._early - 1, _DOUBLINGS_MAX), _DELAY_MAX_S)
