"""Costs of the parts of a query: start, planning, a stage, shuffle, loading.

    python benchmarks/micro.py --scale 1 --json micro.json

- start: from a new Python process, with all imports, to the first answer; beside plain duckdb.
- planning: from a query's text to its stages, for the 22 TPC-H queries, new and repeated texts. The
  first one includes making the planner's miniatures of the tables.
- stage: time of a stage beyond its slowest task, over the stages of the 22 queries, which run in
  stages here (task_threads=1).
- shuffle: all rows of a table of `--shuffle-mb` in memory are exchanged by a key, as for aggregates
  that can't be computed in two phases.
- repartition: the same rows are partitioned by another key into a new table; each byte is read,
  divided, written, read again and stored with statistics.
- load: Parquet to replicated partitions, beside DuckDB's CREATE TABLE AS from the same files; as
  the rows come, which is the default, and divided by TPC-H's keys.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import duckdb
from ratchet import ROOT, Contestant

import minishark
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import load_tables
from minishark_lab.harness.clocks import native_duckdb, timed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, command, run_script
from minishark_lab.tpch.data import Silent


@dataclass(frozen=True, kw_only=True)
class MicroOptions(TpchOptions):
    repetitions: Count = 5
    shuffle_mb: Count = 1024


def main(options: MicroOptions) -> int:
    tables = options.tables()
    figures: dict[str, float] = {}
    for name, contestant in (("minishark", Contestant(ROOT)), ("duckdb", Contestant(None))):
        times = [contestant.start()[0] for _ in range(options.repetitions)]
        figures[f"start, {name}, ms"] = 1000 * statistics.median(times)
    with minishark.connect() as session:
        figures |= _loading(session, tables, options.repetitions)
        figures |= _planning(session)
    with minishark.connect(task_threads=1) as session:
        load_tables(session, tables, Silent(), replicas=2)
        figures |= _stages(session, options.repetitions)
    with minishark.connect(task_threads=1, disabled_optimizations=["one_task"]) as session:
        figures |= _shuffling(session, options.shuffle_mb << 20, options.repetitions)
    print(f"    {command()}\n")
    print("| what | figure |\n|---|---:|")
    for name, figure in figures.items():
        print(f"| {name} | {figure:.2f} |")
    options.write({"figures": figures})
    return 0


def _loading(
    session: minishark.Session, tables: dict[str, str], repetitions: int
) -> dict[str, float]:
    """Load all tables repeatedly; the session keeps the last ones."""
    times: dict[str, list[float]] = {"as they come": [], "by key": [], "DuckDB": []}
    for number in range(repetitions):
        for kind in ("as they come", "by key"):
            for name in tables if number or kind == "by key" else ():
                session.drop_table(name)
            started = time.perf_counter()
            if kind == "by key":
                load_tables(session, tables, Silent(), replicas=2)
            else:
                for name, path in tables.items():
                    session.create_table(name, path, replicas=2)
            times[kind].append(time.perf_counter() - started)
        times["DuckDB"].append(timed(lambda: native_duckdb(tables, session.total_slots).close()))
    found = {f"load, {kind}, s": min(taken) for kind, taken in times.items()}
    theirs = found["load, DuckDB, s"]
    return {
        **found,
        "load as they come / DuckDB": found["load, as they come, s"] / theirs,
        "load by key / DuckDB": found["load, by key, s"] / theirs,
    }


def _planning(session: minishark.Session) -> dict[str, float]:
    texts = load_queries(range(1, 23)).values()
    first, *new = [_planned_s(session, text) for text in texts]
    again = [_planned_s(session, text) for text in texts]
    return {
        "planning, first text after loads, ms": 1000 * first,
        "planning, new text, median ms": 1000 * statistics.median(new),
        "planning, new text, slowest ms": 1000 * max(new),
        "planning, repeated text, median ms": 1000 * statistics.median(again),
    }


def _planned_s(session: minishark.Session, text: str) -> float:
    return timed(lambda: session.sql(text).plan_text("stages"))


def _stages(session: minishark.Session, repetitions: int) -> dict[str, float]:
    beyond = []
    for text in load_queries(range(1, 23)).values():
        for _ in range(repetitions):
            frame = session.sql(text)
            frame.to_arrow()
            beyond += [s.elapsed_s - max(s.run_s) for s in frame.metrics().by_stage if s.tasks <= 2]
    return {"stage beyond its slowest task, median ms": 1000 * statistics.median(beyond)}


def _shuffling(session: minishark.Session, size: int, repetitions: int) -> dict[str, float]:
    """A table of eight columns of random 64-bit integers."""
    rows = size // 64
    columns = ", ".join(f"hash(i, {number}) >> 1 AS c{number}" for number in range(8))
    with duckdb.connect() as database:
        table = database.sql(f"SELECT {columns} FROM range({rows}) t(i)").to_arrow_table()
    session.create_table("wide", table, replicas=1)
    del table
    firsts = ", ".join(f"any_value(c{number})" for number in range(1, 8))
    shuffled, kept_again = [], []
    for _ in range(repetitions):
        started = time.perf_counter()
        frame = session.sql(f"SELECT c0 % 64, {firsts} FROM wide GROUP BY 1")
        frame.to_arrow()
        shuffled.append(time.perf_counter() - started)
        moved, _ = frame.metrics().by_stage
        assert moved.bytes >= size
        started = time.perf_counter()
        kept = session.table("wide").persist(1, partition_by="c0")
        kept.count()
        kept_again.append(time.perf_counter() - started)
        kept.unpersist()
    session.drop_table("wide")
    return {
        "shuffle, best GB/s": size / min(shuffled) / 1e9,
        "repartition, best GB/s": size / min(kept_again) / 1e9,
    }


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "repetitions": 1, "shuffle_mb": 128})
