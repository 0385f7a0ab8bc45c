"""The 22 TPC-H queries under a memory limit: peak memory, and whether the answers are right.

    python benchmarks/memory.py --scale 10 --memory-limit 4GiB
    python benchmarks/memory.py --scale 1 --memory-limit 400MiB

Answers are compared with those of plain DuckDB over the same Parquet files, computed first in a
separate process. While tables load and queries run, memory is sampled: the anonymous memory of the
nodes' processes (proportional set size, so that shared pages count once), plus the nodes' files in
shared memory. Page cache is not counted, because the system reclaims it. The limit covers the
nodes; the client, which is this process, is shown beside. The exit status is 1 if an answer differs
or a query fails.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import duckdb
import msgspec
import psutil
import pyarrow as pa

import minishark
from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark.cli.tpch.tables import load_tables
from minishark.errors import MinisharkError
from minishark.query.answers import differences, output_order
from minishark.worker.memory import parse_size
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, described, run_script
from minishark_lab.tpch.data import Silent
from minishark_lab.tpch.reference import create_views

_SAMPLE_S = 0.1
_MIB = 1 << 20


class Peak(msgspec.Struct, frozen=True):
    """Maxima while something ran, or a sample, in bytes.

    Attributes:
        nodes: processes and shared memory at the same moment: what the limit covers.
        stored: files in shared memory.
        disk: files on disk, including spills.
    """

    nodes: int = 0
    processes: int = 0
    stored: int = 0
    client: int = 0
    disk: int = 0


class Step(msgspec.Struct, frozen=True):
    """One query, or the loading of the tables (query 0)."""

    query: int
    elapsed_s: float
    peak: Peak
    problem: str = ""

    def line(self) -> str:
        name = f"Q{self.query}" if self.query else "load"
        sizes = [getattr(self.peak, field) // _MIB for field in Peak.__struct_fields__]
        cells = "  ".join(f"{size:>9,}" for size in sizes)
        return f"{name:>5}  {self.elapsed_s:>8.2f}  {cells}  {self.problem or 'ok'}"


HEADER = (
    f"{'':>5}  {'s':>8}  "
    + "  ".join(f"{name:>9}" for name in ("nodes", "processes", "shared", "client", "disk"))
    + "  (MiB at most)"
)


class Sampler:
    """Samples a session's memory in a thread; a context manager."""

    def __init__(self, session: minishark.Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._peak = Peak()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            found = self._sample()
            with self._lock:
                fields = Peak.__struct_fields__
                self._peak = Peak(*(max(getattr(self._peak, f), getattr(found, f)) for f in fields))

    def _sample(self) -> Peak:
        me = psutil.Process()
        nodes = self._session.nodes()
        processes = sum(_anonymous_bytes(child.pid) for child in me.children(recursive=True))
        stored = sum(node.stored_bytes for node in nodes)
        disk = sum(node.disk_bytes for node in nodes)
        return Peak(processes + stored, processes, stored, _anonymous_bytes(me.pid), disk)

    def take(self) -> Peak:
        """The peak since the last call."""
        with self._lock:
            peak, self._peak = self._peak, Peak()
            return peak


def _anonymous_bytes(pid: int) -> int:
    """A process's proportional share of anonymous memory; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("Pss_Anon:")]
    return int(found[0]) * 1024 if found else 0


def reference_answers(
    tables: dict[str, str], queries: dict[int, str], limit: int
) -> dict[int, pa.Table]:
    """Plain DuckDB's answers, computed in another process to keep its memory apart."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_answers, (tables, queries, limit))


def _answers(tables: dict[str, str], queries: dict[int, str], limit: int) -> dict[int, pa.Table]:
    config = {"memory_limit": f"{limit}B", "arrow_lossless_conversion": "false"}
    with duckdb.connect(config=config) as connection:
        connection.execute("SET enable_progress_bar = false")
        create_views(connection, tables)
        return {n: connection.sql(text).to_arrow_table() for n, text in queries.items()}


def measured(number: int, sampler: Sampler, run: Callable[[], str]) -> Step:
    """Measure a call, which returns its problem, if any."""
    sampler.take()
    started = time.perf_counter()
    try:
        problem = run()
    except MinisharkError as error:
        problem = f"{type(error).__name__}: {error}"
    elapsed_s = time.perf_counter() - started
    time.sleep(2 * _SAMPLE_S)
    return Step(number, elapsed_s, sampler.take(), problem)


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(TpchOptions):
    memory_limit: str = "400MiB"
    nodes: Count = 2
    executors: Annotated[Count, described("of each node")] = 1
    partitions: Annotated[Count | None, described("of tables and shuffles")] = None
    queries: str = "1-22"


def run_all(tables: dict[str, str], queries: dict[int, str], options: MemoryOptions) -> list[Step]:
    expected = reference_answers(tables, queries, parse_size(options.memory_limit))
    steps = []
    with (
        minishark.connect(
            nodes=options.nodes,
            executors_per_node=options.executors,
            memory_limit=options.memory_limit,
            partitions=options.partitions,
        ) as session,
        Sampler(session) as sampler,
        duckdb.connect() as connection,
    ):
        create_views(connection, tables)

        def load() -> str:
            replicas = min(2, options.nodes)
            load_tables(session, tables, Silent(), partitions=None, replicas=replicas)
            return ""

        def query(number: int) -> str:
            answer = session.sql(queries[number]).to_arrow()
            order = output_order(connection, queries[number], answer.column_names)
            return " ".join(differences(expected[number], answer, ordered_by=order))

        print(HEADER)
        for number in (0, *queries):
            step = measured(number, sampler, load if not number else lambda n=number: query(n))
            steps.append(step)
            print(step.line(), flush=True)
        for warning in session.warnings:
            print(warning)
    return steps


def main(options: MemoryOptions) -> int:
    tables = options.tables()
    queries = dict(load_queries(parse_selection(options.queries)))
    steps = run_all(tables, queries, options)
    limit, most = parse_size(options.memory_limit), max(step.peak.nodes for step in steps)
    right = sum(not step.problem for step in steps if step.query)
    print(f"{right} of {len(queries)} correct; at most {most / _MIB:,.0f} MiB of "
          f"{limit / _MIB:,.0f} MiB ({most / limit:.0%}).")  # fmt: skip
    options.write({"cpus": os.cpu_count(), "steps": steps})
    return 0 if right == len(queries) and not steps[0].problem else 1


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "queries": "1,6"})
