"""What somebody at a prompt waits for, beside DuckDB in the same run.

    python benchmarks/prompt.py [pandas] [first] [start] [--rows 1000000] [--repetitions 7]

- pandas: rows with decimals, dates, times and text as a pandas frame: `to_pandas()` beside the
  `df()` of DuckDB, which has as many threads as the session has slots. "query" sorts by a computed
  key, so that rows are not only copied.
- first: the first rows of a table of so many rows, as the shell shows them; beside all of them.
- start: processes from nothing to an answer: `minishark sql "SELECT 42"`, also with a table; Python
  that imports duckdb and asks the same, as DuckDB's own shell is not on PyPI; and Python alone.
  Peak memory is that of the largest process.

The engines take turns; medians count. CPU time is that of all processes of an engine.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import duckdb

import minishark
from minishark_lab.harness.clocks import CpuClock
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, command, described, run_script

_ROWS = """
    SELECT i AS id, (i * 7 % 1000003 / 100)::DECIMAL(15, 2) AS price,
        (i % 97)::DECIMAL(12, 2) AS tax, DATE '2020-01-01' + (i % 1000)::INTEGER AS day,
        TIMESTAMP '2020-01-01' + to_seconds(i) AS at,
        'customer ' || (i % 5000) AS name, i * 1.5::DOUBLE AS weight, nullif(i % 10, 3) AS kind
    FROM range({rows}) t(i)
"""
_QUERIES = {
    "table": "FROM t",
    "query": "SELECT *, price * tax AS product FROM t WHERE id % 100 > 0 ORDER BY hash(id)",
}
# A small process of its own, as a child's peak begins with that of its parent.
_LAUNCHER = """
import os, sys, time
null = os.open(os.devnull, os.O_WRONLY)
began = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ,
                     file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
_, status, usage = os.wait4(pid, 0)
elapsed = time.perf_counter() - began
assert status == 0, sys.argv
print(elapsed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


_SECTIONS = ("pandas", "first", "start")


@dataclass(frozen=True, kw_only=True)
class PromptOptions(Options):
    sections: Annotated[tuple[str, ...], described(choices=_SECTIONS, positional=True)] = ()
    rows: Count = 1_000_000
    repetitions: Count = 7


def main(options: PromptOptions) -> None:
    sections = options.sections or _SECTIONS
    figures: dict[str, float] = {}
    if "pandas" in sections or "first" in sections:
        figures |= _in_session(options.rows, options.repetitions, sections)
    if "start" in sections:
        figures |= _starts(options.repetitions)
    print(f"    {command()}\n\n| what | figure |\n|---|---:|")
    for name, figure in figures.items():
        print(f"| {name} | {figure:.2f} |")
    options.write({"figures": figures})


def _in_session(rows: int, repetitions: int, sections: Sequence[str]) -> dict[str, float]:
    figures: dict[str, float] = {}
    with minishark.connect() as session:
        plain = duckdb.connect(config={"threads": session.total_slots})
        plain.execute(f"CREATE TABLE t AS {_ROWS.format(rows=rows)}")
        session.create_table("t", plain.sql("FROM t").to_arrow_table())
        clock = CpuClock()
        if "pandas" in sections:
            for name, sql in _QUERIES.items():
                engines = {
                    "minishark": lambda sql=sql: session.sql(sql).to_pandas(),
                    "DuckDB": lambda sql=sql: plain.sql(sql).df(),
                }
                found = {engine: call() for engine, call in engines.items()}
                assert found["minishark"].equals(found["DuckDB"]), "the frames differ"
                del found
                figures |= _compared(f"pandas, {name}", engines, clock, repetitions)
        if "first" in sections:
            frame = session.sql("FROM t")
            shown = {"first rows": lambda: frame.limit(41).to_arrow(), "all rows": frame.to_arrow}
            figures |= _compared("shell", shown, clock, repetitions)
    return figures


def _compared(
    what: str, engines: Mapping[str, Callable[[], object]], clock: CpuClock, repetitions: int
) -> dict[str, float]:
    """Medians of wall and CPU time, in milliseconds, and their ratios."""
    times: dict[str, list[tuple[float, float]]] = {engine: [] for engine in engines}
    for _ in range(repetitions):
        for engine, call in engines.items():
            wall, cpu = time.perf_counter(), clock.now_s()
            call()
            times[engine].append((time.perf_counter() - wall, clock.now_s() - cpu))
    figures = {}
    medians = []
    for engine, pairs in times.items():
        wall, cpu = (statistics.median(each) for each in zip(*pairs, strict=True))
        figures |= {f"{what}, {engine}, ms": wall * 1e3, f"{what}, {engine}, CPU ms": cpu * 1e3}
        medians.append((wall, cpu))
    figures[f"{what}, ratio"] = medians[0][0] / medians[1][0]
    figures[f"{what}, ratio of CPU"] = medians[0][1] / medians[1][1]
    return figures


def _starts(repetitions: int) -> dict[str, float]:
    duck = "import duckdb; print(duckdb.sql('SELECT 42'))"
    command = [sys.executable, "-m", "minishark.cli", "sql"]
    commands = {
        "minishark sql": [*command, "SELECT 42"],
        "minishark sql with a table": [*command, "SELECT count(*) FROM region"],
        "duckdb in Python": [sys.executable, "-c", duck],
        "Python": [sys.executable, "-c", "print(42)"],
    }
    figures: dict[str, list[list[float]]] = {name: [] for name in commands}
    for _ in range(repetitions):
        for name, arguments in commands.items():
            figures[name].append(_run(arguments))
    medians = {
        name: [statistics.median(each) for each in zip(*found, strict=True)]
        for name, found in figures.items()
    }
    report = {}
    for name, (wall, cpu, peak) in medians.items():
        report |= {f"{name}, ms": wall * 1e3, f"{name}, CPU ms": cpu * 1e3, f"{name}, MB": peak}
    report["start, ratio"] = medians["minishark sql"][0] / medians["duckdb in Python"][0]
    return report


def _run(arguments: list[str]) -> list[float]:
    """Elapsed and CPU time of a process with its children, in seconds, and its peak in MB."""
    found = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, *arguments], capture_output=True, check=True
    )
    return [float(figure) for figure in found.stdout.split()]


if __name__ == "__main__":
    run_script(main, quick={"rows": 10000, "repetitions": 1})
