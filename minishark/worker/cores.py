"""The number of usable CPU cores."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The CPUs that this process may use (`taskset`, containers); all of them where unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
