"""How many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those that it is not kept from, as `taskset` and containers do; all where that is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
