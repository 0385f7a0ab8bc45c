"""What work costs on a machine: the figures that the planner estimates time with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """CPU time in nanoseconds or seconds, as the fields' names say.

    The defaults were fitted to single-threaded queries over Arrow in memory on one machine; those
    of another are measured (`query/calibration.py`). They are rough on purpose: row counts are
    estimates too.
    """

    scanned_ns: float = 1.0  # per value
    computed_ns: float = 5.0  # per value of an expression
    matched_ns: float = 50.0  # per value that a function or a pattern tests
    built_ns: float = 100.0  # per row of a hash table, of joins or groups
    probed_ns: float = 5.0  # per row
    grouped_ns: float = 2.5  # per value of groups and aggregates
    sorted_ns: float = 100.0  # per row
    moved_ns: float = 20.0  # per row that is written and read again
    put_out_ns: float = 5.0  # per value of the result
    stage_s: float = 5e-3  # the latency of one more stage in sequence: placing, binding, storing
    task_s: float = 3e-3  # of all processes together, for a task, besides DuckDB's work
    beside: float = 0.8  # the speed of a core beside busy ones, which share memory and caches


REFERENCE = Costs()
