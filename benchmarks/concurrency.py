"""Throughput with concurrent users: TPC-H queries on one minishark session, and on DuckDB.

    python benchmarks/concurrency.py --scale 1 --users 1,2,4,8 --seconds 20 --json concurrency.json

Each user runs the 22 queries one after the other in random order. On minishark, all users are
threads that share a session; on DuckDB, each has its own connection to one database with as many
threads as minishark has slots. The two engines take turns.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

import minishark
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import load_tables
from minishark_lab.harness.clocks import native_duckdb
from minishark_lab.harness.parameters import Count, Positive
from minishark_lab.harness.script import TpchOptions, command, described, run_script
from minishark_lab.tpch.data import Silent
from minishark_lab.tpch.run import versions

Answer = Callable[[str], object]
MINISHARK, DUCKDB = "minishark", "DuckDB"


class Load(msgspec.Struct):
    """Response times of a number of users on one engine, over all rounds."""

    users: int
    engine: str
    seconds: float = 0.0
    times_s: list[float] = []

    @property
    def queries_per_s(self) -> float:
        return len(self.times_s) / self.seconds

    def percentile_s(self, percent: int) -> float:
        return statistics.quantiles(self.times_s, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True, kw_only=True)
class ConcurrencyOptions(TpchOptions):
    users: tuple[Count, ...] = (1, 2, 4, 8)
    seconds: Annotated[Positive, described("per engine and number of users")] = 20.0
    rounds: Count = 2


def main(options: ConcurrencyOptions) -> int:
    tables = options.tables()
    texts = list(load_queries(range(1, 23)).values())
    with minishark.connect() as session, native_duckdb(tables, session.total_slots) as database:
        load_tables(session, tables, Silent(), replicas=2)
        loads = []
        for users in options.users:
            ours, theirs = Load(users, MINISHARK), Load(users, DUCKDB)
            for _ in range(options.rounds):
                answers = [lambda text: session.sql(text).to_arrow()] * users
                _run(ours, answers, texts, options.seconds / options.rounds)
                cursors = [database.cursor() for _ in range(users)]
                answers = [lambda text, c=c: c.sql(text).to_arrow_table() for c in cursors]
                _run(theirs, answers, texts, options.seconds / options.rounds)
                for cursor in cursors:
                    cursor.close()
            loads += [ours, theirs]
    _print(loads)
    options.write({"loads": loads})
    return 0


def _run(load: Load, answers: Sequence[Answer], texts: Sequence[str], seconds: float) -> None:
    """One round of all users; queries that have begun are finished and counted."""
    started = time.perf_counter()
    end = started + seconds
    errors: list[Exception] = []
    lock = threading.Lock()

    def user(number: int, answer: Answer) -> None:
        order = random.Random(number)
        try:
            while time.perf_counter() < end:
                for text in order.sample(texts, len(texts)):
                    before = time.perf_counter()
                    if before >= end:
                        break
                    answer(text)
                    with lock:
                        load.times_s.append(time.perf_counter() - before)
        except Exception as error:  # noqa: BLE001 - raised again on the main thread
            errors.append(error)

    threads = [threading.Thread(target=user, args=item) for item in enumerate(answers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    load.seconds += time.perf_counter() - started


def _print(loads: Sequence[Load]) -> None:
    print(f"    {command()}\n")
    print(", ".join(f"{name} {value}" for name, value in versions().items()), end=".\n\n")
    print("| users | minishark, queries/s | DuckDB | ratio | p50, ms | DuckDB | p95, ms | DuckDB |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for ours, theirs in zip(loads[::2], loads[1::2], strict=True):
        cells = [
            f"{ours.users}",
            f"{ours.queries_per_s:.1f}",
            f"{theirs.queries_per_s:.1f}",
            f"{ours.queries_per_s / theirs.queries_per_s:.2f}",
        ]
        for percent in (50, 95):
            cells += [f"{1000 * load.percentile_s(percent):.0f}" for load in (ours, theirs)]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "users": [1, 2], "seconds": 1.0, "rounds": 1})
