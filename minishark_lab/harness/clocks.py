"""Time, and what is measured beside minishark."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping

import duckdb
import psutil

from minishark_lab.tpch.data import Silent


class Steps(Silent):
    """Reports steps and warnings of loading on stderr, but no progress."""

    def step(self, title: str) -> None:
        print(title, file=sys.stderr, flush=True)

    def warning(self, text: str) -> None:
        print(f"Warning: {text}", file=sys.stderr, flush=True)


def native_duckdb(tables: Mapping[str, str], threads: int) -> duckdb.DuckDBPyConnection:
    """DuckDB with the tables in its own format, in memory."""
    connection = duckdb.connect(config={"threads": threads})
    for name, path in tables.items():
        connection.execute(f"CREATE TABLE {name} AS FROM read_parquet('{path}')")
    return connection


def timed(call: Callable[[], object]) -> float:
    """How long a call takes, in seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class CpuClock:
    """CPU time of this process, of `others`, and of all that these have started, in seconds.

    Not of the processes `without`. The kernel counts nanoseconds; what /proc tells is in hundredths
    of a second.
    """

    def __init__(self, others: Iterable[int] = (), without: Iterable[int] = ()) -> None:
        parents = [psutil.Process(), *map(psutil.Process, others)]
        children = [child for each in parents for child in each.children(recursive=True)]
        pids = {each.pid for each in (*parents, *children)}.difference(without)
        self._clocks = [process_clock(pid) for pid in pids]

    def now_s(self) -> float:
        return sum(map(time.clock_gettime, self._clocks))


def process_clock(pid: int) -> int:
    """The CPU clock of a process, as `clock_getcpuclockid` makes it on Linux."""
    return (~pid << 3) | 2
