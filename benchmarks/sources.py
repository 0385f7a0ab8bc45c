"""Reading sources, beside the library that reads each best alone.

    python benchmarks/sources.py csv --scale 1.4 --json csv.json

`delta` and `postgres` load lineitem from a Delta table of 16 files and from PostgreSQL, beside
deltalake's own scan and beside one COPY by the same driver into DuckDB. `postgres` needs a server
with a role that may create tables: its connection string is the variable BENCHMARK_DSN.

`csv` loads TPC-H's lineitem from one CSV file (1 GB at scale 1.4): `session.create_table`, in
parallel tasks, beside DuckDB's CREATE TABLE AS with as many threads, both in memory and with the
file in the page cache. Both times, wall and CPU, are told, and the ratios of medians; runs
alternate. The tables are compared by their row count and by sums, and the exit status is 1 if they
differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
from common import CpuClock, Steps, parser_of, tables_of, timed, write_json

import minishark
from minishark.expressions import quote_text

_CHECK = (
    "SELECT count(*), sum(l_extendedprice), min(l_shipdate), max(l_comment), sum(length(l_comment))"
)


def main(arguments: Sequence[str]) -> int:
    parser = parser_of(__doc__, repetitions=3)
    parser.add_argument("source", choices=sorted(COMMANDS), help="what is read")
    parser.add_argument("--quoted", action="store_true", help="with quotes around all CSV values")
    options = parser.parse_args(arguments)
    report, is_right = COMMANDS[options.source](options)
    write_json(options.json, report)
    return 0 if is_right else 1


def read_csv(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """A large CSV file into memory."""
    reporter = Steps()
    lineitem = tables_of(options)["lineitem"]
    with tempfile.TemporaryDirectory() as folder, minishark.connect() as session:
        file = Path(folder) / "lineitem.csv"
        quotes = ", FORCE_QUOTE *" if options.quoted else ""
        reporter.step("Writing the file")
        target = quote_text(str(file))
        duckdb.execute(f"COPY (FROM {quote_text(lineitem)}) TO {target} (HEADER{quotes})")
        with duckdb.connect(config={"threads": session.total_slots}) as native:

            def ours() -> None:
                session.create_table("loaded", file, replace=True)

            def theirs() -> None:
                native.execute(f"CREATE OR REPLACE TABLE loaded AS FROM read_csv({target})")

            runs = compared(ours, theirs, options.repetitions, reporter)
            expected = native.execute(f"{_CHECK} FROM loaded").fetchall()
        found = [tuple(row) for row in session.sql(f"{_CHECK} FROM loaded").collect()]
        size = file.stat().st_size
    print(f"{size / 1e9:.2f} GB of CSV, {found[0][0]:,} rows")
    return {"bytes": size, "runs": runs}, found == expected


def read_delta(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """A Delta table into memory."""
    from deltalake import DeltaTable, write_deltalake

    from minishark.sources.delta import DeltaSource

    reporter = Steps()
    lineitem = tables_of(options)["lineitem"]
    with tempfile.TemporaryDirectory() as folder, minishark.connect() as session:
        reporter.step("Writing the table")
        rows = duckdb.sql(f"FROM {quote_text(lineitem)}").to_arrow_table()
        step = -(-rows.num_rows // 16)
        for first in range(0, rows.num_rows, step):
            write_deltalake(folder, rows.slice(first, step), mode="append")
        with duckdb.connect(config={"threads": session.total_slots}) as native:

            def ours() -> None:
                session.create_table("loaded", DeltaSource(folder), replace=True)

            def theirs() -> None:
                scanned = DeltaTable(folder).scan()  # noqa: F841 - DuckDB finds it by its name
                native.execute("CREATE OR REPLACE TABLE loaded AS FROM scanned")

            runs = compared(ours, theirs, options.repetitions, reporter)
            expected = native.execute(f"{_CHECK} FROM loaded").fetchall()
        found = [tuple(row) for row in session.sql(f"{_CHECK} FROM loaded").collect()]
    return {"runs": runs}, found == expected


def read_postgres(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """A table of PostgreSQL into memory. `numeric` is cast from text on both sides."""
    import adbc_driver_postgresql.dbapi as adbc

    from minishark.sources.postgres import PostgresSource

    reporter = Steps()
    lineitem = tables_of(options)["lineitem"]
    dsn = os.environ["BENCHMARK_DSN"]
    columns = duckdb.sql(f"DESCRIBE FROM {quote_text(lineitem)}").fetchall()
    types = {"VARCHAR": "text", "BIGINT": "bigint", "INTEGER": "int", "DATE": "date"}
    named = [(name, type_, types.get(type_, type_)) for name, type_, *_ in columns]
    table = "benchmark_lineitem"
    with minishark.connect() as session, adbc.connect(dsn, autocommit=True) as connection:
        reporter.step("Filling the table")
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {table}, {table}_text")
            rows = duckdb.sql(
                f"SELECT COLUMNS(*)::VARCHAR FROM {quote_text(lineitem)}"
            ).to_arrow_table()
            cursor.adbc_ingest(f"{table}_text", rows)
            casts = ", ".join(f"{name}::{type_} AS {name}" for name, _, type_ in named)
            cursor.execute(f"CREATE TABLE {table} AS SELECT {casts} FROM {table}_text")
            cursor.execute(f"DROP TABLE {table}_text")
            cursor.execute(f"VACUUM ANALYZE {table}")
        try:
            with duckdb.connect(config={"threads": session.total_slots}) as native:

                def ours() -> None:
                    source = PostgresSource(dsn, "public", table)
                    session.create_table("loaded", source, replace=True)

                def theirs() -> None:
                    texts = ", ".join(
                        f"{name}::text" if "DECIMAL" in kind else name for name, kind, _ in named
                    )
                    casts = ", ".join(f"{name}::{kind} AS {name}" for name, kind, _ in named)
                    with connection.cursor() as reading:
                        reading.execute(f"SELECT {texts} FROM {table}")
                        read = reading.fetch_record_batch()  # noqa: F841 - found by its name
                        native.execute(
                            f"CREATE OR REPLACE TABLE loaded AS SELECT {casts} FROM read"
                        )

                runs = compared(ours, theirs, options.repetitions, reporter)
                expected = native.execute(f"{_CHECK} FROM loaded").fetchall()
            found = [tuple(row) for row in session.sql(f"{_CHECK} FROM loaded").collect()]
        finally:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE IF EXISTS {table}, {table}_text")
    return {"runs": runs}, found == expected


def compared(
    ours: Callable[[], None], theirs: Callable[[], None], repetitions: int, reporter: Steps
) -> dict[str, list[list[float]]]:
    """Wall and CPU seconds of each run, which alternate; prints medians and ratios."""
    clock = CpuClock()
    found: dict[str, list[list[float]]] = {"minishark": [], "peer": []}
    for repetition in range(repetitions):
        reporter.step(f"Repetition {repetition + 1} of {repetitions}")
        for name, run in (("minishark", ours), ("peer", theirs)):
            before_s = clock.now_s()
            wall_s = timed(run)
            found[name].append([wall_s, clock.now_s() - before_s])
    for place, what in enumerate(("wall", "CPU")):
        own, peer = (
            statistics.median(run[place] for run in found[name]) for name in ("minishark", "peer")
        )
        print(f"{what}: minishark {own:.2f} s, peer {peer:.2f} s, ratio {own / peer:.2f}")
    return found


COMMANDS: dict[str, Callable[[argparse.Namespace], tuple[dict[str, Any], bool]]] = {
    "csv": read_csv,
    "delta": read_delta,
    "postgres": read_postgres,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
