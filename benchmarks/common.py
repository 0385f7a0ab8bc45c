"""What benchmark scripts share: options, TPC-H data, DuckDB beside minishark, and reports."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from minishark.tpch.locations import default_data_folder
from minishark.tpch.run import versions
from minishark.tpch.tables import tpch_tables
from minishark_lab.tpch_data import Silent, tpch_folder

__all__ = [
    "CpuClock", "Silent", "Steps", "command", "native_duckdb", "parser_of", "process_clock",
    "tables_of", "timed", "write_json",
]  # fmt: skip


class Steps(Silent):
    """Reports steps and warnings of loading on stderr, but no progress."""

    def step(self, title: str) -> None:
        print(title, file=sys.stderr, flush=True)

    def warning(self, text: str) -> None:
        print(f"Warning: {text}", file=sys.stderr, flush=True)


def parser_of(doc: str | None, *, repetitions: int | None = None) -> argparse.ArgumentParser:
    """A parser with the options that all scripts on TPC-H data have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H's scale factor")
    parser.add_argument("--data", type=Path, default=default_data_folder(), metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE")
    if repetitions is not None:
        parser.add_argument("--repetitions", type=int, default=repetitions)
    return parser


def tables_of(options: argparse.Namespace) -> dict[str, str]:
    """TPC-H's tables at the chosen scale (name to Parquet pattern); generated if need be."""
    return tpch_tables(tpch_folder(options.scale, str(options.data)))


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
        import psutil

        parents = [psutil.Process(), *map(psutil.Process, others)]
        children = [child for each in parents for child in each.children(recursive=True)]
        pids = {each.pid for each in (*parents, *children)}.difference(without)
        self._clocks = [process_clock(pid) for pid in pids]

    def now_s(self) -> float:
        return sum(map(time.clock_gettime, self._clocks))


def process_clock(pid: int) -> int:
    """The CPU clock of a process, as `clock_getcpuclockid` makes it on Linux."""
    return (~pid << 3) | 2


def command() -> str:
    """The command line of this script, to be quoted beside its figures."""
    script = Path(sys.argv[0]).name
    return shlex.join(["python", f"benchmarks/{script}", *sys.argv[1:]])


def write_json(file: Path | None, report: Mapping[str, Any]) -> None:
    """Write a report with the command and the versions of everything, if a file was asked for."""
    if file is not None:
        full = {"command": command(), "versions": versions(), **report}
        file.write_bytes(msgspec.json.format(msgspec.json.encode(full), indent=2) + b"\n")
