"""Canary: iterative programs whose workers spawn their own tasks (after Qu et al., EuroSys'18).

A controller hands out *data*, by a partition map; every worker runs a copy of the driver program
and derives from it what to run on the partitions that it has, so nobody is asked for each task.
"""

from __future__ import annotations

from canary_core.driver import Run, State, Value
from canary_core.sequential import run_sequentially

__all__ = ["Run", "State", "Value", "run_sequentially"]
