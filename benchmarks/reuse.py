"""What reuse of outputs saves, and what it costs, in CPU time of all processes.

    python benchmarks/reuse.py changed [--files 100] [--rows 1000000] [--rounds 3]
    python benchmarks/reuse.py fresh [--scale 0.2] [--rounds 5]

`changed`: a query scans many Parquet files, filters, joins a small table and groups; then one file
is replaced, and it is asked again. The second run is told as a share of the first one. Each round
has another filter, so that nothing of an earlier round is taken.

`fresh`: the 22 queries of TPC-H in stages, each for the first time, beside sessions without reuse;
the figure is the median of the pairs' ratios, and its range.

Sessions take turns on one running cluster of two nodes. The answers of all are compared with those
of DuckDB, or with each other where sums of floats may differ in their last digits; the exit status
is 1 if they differ.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pyarrow as pa

import minishark
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.model.expressions import quote_text
from minishark.session.session import Session
from minishark_lab.harness.clocks import CpuClock
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, described, run_script

_KINDS = ("off", "session", "cluster")
_COMPARED = ("off", "cluster")
_SETTLED_S = 2.2  # until a file's times tell which it is


@dataclass(frozen=True, kw_only=True)
class ReuseOptions(TpchOptions):
    """The options of the script."""

    what: Annotated[
        str, described("what is measured", choices=("changed", "fresh"), positional=True)
    ]
    files: Annotated[Count, described("that are scanned")] = 100
    rows: Annotated[Count, described("of each file")] = 1_000_000
    rounds: Count = 3


def main(options: ReuseOptions) -> int:
    """Measure what is asked for."""
    with _cluster() as record:
        report, is_right = _MEASURES[options.what](options, record)
    options.write(report)
    return 0 if is_right else 1


@contextmanager
def _cluster() -> Iterator[ClusterRecord]:
    record = start_cluster(StartOptions(name="reusebenchmark", nodes=2))
    try:
        yield record
    finally:
        stop_cluster("reusebenchmark")


@contextmanager
def _sessions(record: ClusterRecord, *kinds: str) -> Iterator[dict[str, Session]]:
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(
                minishark.connect(record.address, single_task_rows=0, reuse=kind, prints=False)
            )
            for kind in kinds
        }


def _cpu_s(record: ClusterRecord, call: Callable[[], Any]) -> tuple[float, Any]:
    clock = CpuClock(node.pid for node in record.nodes)
    before = clock.now_s()
    value = call()
    time.sleep(0.3)  # what is told to homes in the background counts, too
    return clock.now_s() - before, value


# One file of many is replaced


def _write(folder: Path, number: int, rows: int, version: int) -> None:
    name = folder / f"{number:04}.parquet"
    draft = name.with_suffix(".draft")
    first = number * rows
    duckdb.execute(f"""
        COPY (
            SELECT i AS id, (hash(i + {version}) % 1000)::INTEGER AS shop,
                (hash(i * 7 + {version}) % 100000)::DECIMAL(12, 2) AS price,
                'item ' || hash(i * 3 + {version}) % 500 AS item
            FROM range({first}, {first + rows}) n(i)
        ) TO {quote_text(str(draft))} (FORMAT parquet)""")
    draft.rename(name)


def _asked(folder: Path, bound: int) -> str:
    return (
        "SELECT region, item, count(*) AS n, sum(price) AS total "
        f"FROM read_parquet('{folder}/sales/*.parquet') s "
        f"JOIN read_parquet('{folder}/shops.parquet') p USING (shop) "
        f"WHERE price > {bound} AND length(item) % 3 <> 1 "
        "GROUP BY region, item ORDER BY total DESC, region, item LIMIT 100"
    )


def changed(options: ReuseOptions, record: ClusterRecord) -> tuple[dict[str, Any], bool]:
    """One file of many is replaced, and the query is asked again."""
    figures: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _KINDS}
    tasks: dict[str, int] = {}
    is_right = True
    with tempfile.TemporaryDirectory() as name, _sessions(record, *_KINDS) as sessions:
        folder = Path(name)
        (folder / "sales").mkdir()
        for number in range(options.files):
            _write(folder / "sales", number, options.rows, 0)
        duckdb.execute(
            "COPY (SELECT i::INTEGER AS shop, 'region ' || i % 9 AS region FROM range(1000) n(i)) "
            f"TO '{folder}/shops.parquet' (FORMAT parquet)"
        )
        time.sleep(_SETTLED_S)
        for turn in range(options.rounds + 1):  # the first one is not counted
            sql = _asked(folder, 1000 * turn)
            first = {kind: _cpu_s(record, _answer(sessions[kind], sql)) for kind in _KINDS}
            _write(folder / "sales", turn * 7 % options.files, options.rows, turn + 1)
            time.sleep(_SETTLED_S)
            again = {kind: _cpu_s(record, _answer(sessions[kind], sql)) for kind in _KINDS}
            expected = duckdb.sql(sql).fetchall()
            for kind in _KINDS:
                rows, tasks[kind] = again[kind][1]
                is_right &= rows == expected and first[kind][1][0] == first["off"][1][0]
                if turn:
                    figures[kind].append((first[kind][0], again[kind][0]))
    for kind, pairs in figures.items():
        one, two = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        shares = sorted(after / before for before, after in pairs)
        print(
            f"{kind:<9}first {one:6.2f} s, again {two:6.2f} s: "
            f"{statistics.median(shares):6.1%} ({shares[0]:.1%} to {shares[-1]:.1%}), "
            f"{tasks[kind]} tasks"
        )
    print("answers are DuckDB's" if is_right else "answers differ")
    return {"cpu_s": figures}, is_right


def _answer(session: Session, sql: str) -> Callable[[], tuple[list[Any], int]]:
    def ask() -> tuple[list[Any], int]:
        frame = session.sql(sql)
        rows = [tuple(row) for row in frame.collect()]
        return rows, frame.metrics().tasks

    return ask


# Nothing can be taken


def fresh(options: ReuseOptions, record: ClusterRecord) -> tuple[dict[str, Any], bool]:
    """The 22 queries, each for the first time, with and without names for their outputs."""
    tables = {
        name: duckdb.sql(f"FROM {quote_text(path)}").to_arrow_table()
        for name, path in options.tables().items()
    }
    ratios: list[float] = []
    by_query: dict[int, list[float]] = {}
    is_right = True
    for turn in range(options.rounds + 1):  # the first one is not counted
        taken = dict.fromkeys(_COMPARED, 0.0)
        with _sessions(record, *_COMPARED) as sessions:
            for session in sessions.values():
                for name, rows in tables.items():  # in another order: nothing of them is known
                    first = turn % len(rows)
                    ordered = pa.concat_tables([rows.slice(first), rows.slice(0, first)])
                    session.create_table(name, ordered)
            for number, query in load_queries(range(1, QUERY_COUNT + 1)).items():
                kinds = _COMPARED if (turn + number) % 2 else _COMPARED[::-1]
                one = {kind: _cpu_s(record, _answer(sessions[kind], query)) for kind in kinds}
                is_right &= _alike(*(one[kind][1][0] for kind in _COMPARED))
                for kind in _COMPARED:
                    taken[kind] += one[kind][0]
                if turn:
                    by_query.setdefault(number, []).append(one["cluster"][0] / one["off"][0])
        if turn:
            ratios.append(taken["cluster"] / taken["off"])
            print(f"off {taken['off']:.2f} s, cluster {taken['cluster']:.2f} s", flush=True)
    ratios.sort()
    print(
        f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) times the CPU time"
    )
    print(*(f"{n}: {statistics.median(some):.2f}" for n, some in by_query.items()))
    print("answers are the same" if is_right else "answers differ")
    return {"ratios": ratios, "by_query": by_query}, is_right


def _alike(one: list[Any], other: list[Any]) -> bool:
    def rounded(rows: list[Any]) -> list[str]:
        cells = ([f"{c:.6g}" if isinstance(c, float) else str(c) for c in row] for row in rows)
        return sorted(map(str, cells))

    return rounded(one) == rounded(other)


_MEASURES: Mapping[str, Callable[[ReuseOptions, ClusterRecord], tuple[dict[str, Any], bool]]] = {
    "changed": changed,
    "fresh": fresh,
}


if __name__ == "__main__":
    run_script(main, quick={"files": 10, "rows": 1000, "rounds": 1, "scale": 0.01})
