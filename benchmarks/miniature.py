"""How often DuckDB chooses the same join tree on miniatures as on the real data.

Usage: python benchmarks/miniature.py FOLDER [FOLDER ...] [--caps 600000,200000] [--queries queries]

Each FOLDER holds TPC-H as Parquet, one folder a table. For every folder and cap on the largest
miniature's rows it prints the time to make all eight, and for each query whether the join tree
(join types, shape, tables at the leaves, build sides) is the same as over native tables of the
real data.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pyarrow as pa

from minishark.compiler.sql.miniature import Miniatures
from minishark.model.catalog import TableStatistics
from minishark.worker.statistics import merge_statistics, partition_statistics, text_sample
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, described, run_script

TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")
DISABLED = (
    "statistics_propagation,compressed_materialization,partial_aggregate_pushdown,"
    "late_materialization,join_filter_pushdown"
)
PLAN = (
    "SELECT json_serialize_plan($1, optimize := true, skip_null := true, "
    "skip_empty := true, skip_default := true)"
)
Columns = tuple[tuple[str, str], ...]


def connect(threads: int = 2) -> duckdb.DuckDBPyConnection:
    """A connection whose Arrow output has the layout that the executors hold."""
    con = duckdb.connect(config={"threads": threads})
    con.execute("SET arrow_output_version = '1.5'")
    return con


def join_trees(con: duckdb.DuckDBPyConnection, queries: dict[str, str]) -> dict[str, str]:
    """Each query's join tree, as one line of text."""
    con.execute("SET debug_verify_column_bindings = true")
    con.execute(f"SET disabled_optimizers = '{DISABLED}'")
    trees = {}
    for name, text in queries.items():
        (row,) = con.execute(PLAN, [text.strip().rstrip(";")]).fetchall()
        reply = json.loads(row[0])
        if reply.get("error"):
            raise SystemExit(f"{name}: {reply['error_message']}")
        trees[name] = " ".join(_tree(plan) for plan in reply["plans"])
    return trees


def _tree(node: dict[str, Any]) -> str:
    kind = node["type"].removeprefix("LOGICAL_")
    below = [_tree(child) for child in node.get("children", [])]
    if kind == "GET":
        return str((node.get("function_data") or {}).get("table", "function"))
    if "JOIN" in kind:
        kind = node.get("join_type", "INNER")
    elif len(below) == 1 and kind != "AGGREGATE_AND_GROUP_BY":
        return below[0]
    return f"{kind}({', '.join(below)})" if below else kind


def measured(folder: Path, table: str) -> tuple[Columns, TableStatistics, float]:
    """A table's columns and statistics, and the seconds that these took on one core."""
    with closing(connect(threads=1)) as con:
        rows = con.execute(f"DESCRIBE FROM '{folder}/{table}/*.parquet'").fetchall()
        columns = tuple((str(row[0]), str(row[1])) for row in rows)
        parts, spent_s, size = [], 0.0, 0
        for data in _partitions(con, folder / table):
            con.register("part", data)
            start_s = time.perf_counter()
            sample = text_sample(data)
            if sample is not None:
                con.register("sample", sample)
            name = None if sample is None else "sample"
            parts.append(partition_statistics(con, "part", columns, name))
            spent_s += time.perf_counter() - start_s
            size += data.nbytes
        start_s = time.perf_counter()
        statistics = merge_statistics(parts, columns, size)
        return columns, statistics, spent_s + time.perf_counter() - start_s


def _partitions(con: duckdb.DuckDBPyConnection, folder: Path) -> Iterator[pa.Table]:
    for file in sorted(folder.glob("*.parquet")):
        yield con.sql(f"FROM '{file}'").to_arrow_table()


def real_trees(folder: Path, queries: dict[str, str]) -> dict[str, str]:
    """The join trees over native tables of the real data."""
    with closing(connect()) as con:
        for table in TABLES:
            con.execute(f"CREATE TABLE {table} AS FROM '{folder}/{table}/*.parquet'")
        return join_trees(con, queries)


def compare(folder: Path, caps: Sequence[int], queries: dict[str, str]) -> None:
    """Print the agreement of one folder's miniatures at each cap."""
    real = real_trees(folder, queries)
    known = {table: measured(folder, table) for table in TABLES}
    times = ", ".join(f"{table} {known[table][2]:.3f}" for table in TABLES)
    print(f"{folder}: statistics, seconds on one core: {times}")
    for cap in caps:
        with closing(connect()) as con:
            miniatures = Miniatures(cap)
            for table, (columns, statistics, _) in known.items():
                miniatures.put(table, columns, statistics)
            start_s = time.perf_counter()
            miniatures.fill(con)
            made_s = time.perf_counter() - start_s
            trees = join_trees(con, queries)
        same = sum(trees[name] == real[name] for name in queries)
        print(f"  cap {cap}: {same} of {len(queries)} the same; made in {made_s:.3f} s")
        for name in queries:
            if trees[name] != real[name]:
                print(f"    {name} real      {real[name]}\n    {name} miniature {trees[name]}")


@dataclass(frozen=True, kw_only=True)
class MiniatureOptions(Options):
    folders: Annotated[tuple[Path, ...], described(positional=True)]
    caps: tuple[Count, ...] = (600000,)
    queries: Path = Path("queries")


def main(options: MiniatureOptions) -> None:
    queries = {file.stem: file.read_text() for file in sorted(options.queries.glob("q*.sql"))}
    for folder in options.folders:
        compare(folder, options.caps, queries)


if __name__ == "__main__":
    run_script(main)
