"""Reading sources, beside the library that reads each best alone.

    python benchmarks/sources.py csv --scale 1.4 --json csv.json

`delta` and `postgres` load lineitem from a Delta table of 16 files and from PostgreSQL, beside
deltalake's own scan and beside one COPY by the same driver into DuckDB. `postgres` needs a server
with a role that may create tables: its connection string is the variable BENCHMARK_DSN.

`objects` loads and queries lineitem's files of an S3 server on this machine (moto), beside pyarrow.
moto is one Python process that answers with at most some hundred MB a second, and shares the cores
with both; its CPU time is not counted. Every session is new, so that nothing is on the host yet;
the second query finds what the first one fetched.

`csv` loads TPC-H's lineitem from one CSV file (1 GB at scale 1.4): `session.create_table`, in
parallel tasks, beside DuckDB's CREATE TABLE AS with as many threads, both in memory and with the
file in the page cache. Both times, wall and CPU, are told, and the ratios of medians; runs
alternate. The tables are compared by their row count and by sums, and the exit status is 1 if they
differ.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import duckdb

import minishark
from minishark.model.expressions import quote_text
from minishark.session.session import Session
from minishark_lab.harness.clocks import CpuClock, Steps, timed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, described, run_script

Runs: TypeAlias = dict[str, list[list[float]]]
"""Wall and CPU seconds of each run, by whose it is: "minishark" or "peer"."""

_CHECK = (
    "SELECT count(*), sum(l_extendedprice), min(l_shipdate), max(l_comment), sum(length(l_comment))"
)


@dataclass(frozen=True, kw_only=True)
class SourcesOptions(TpchOptions):
    repetitions: Count = 3
    source: Annotated[str, described("what is read", choices=sorted(COMMANDS), positional=True)]
    quoted: Annotated[bool, described("with quotes around all CSV values")] = False


def main(options: SourcesOptions) -> int:
    report, is_right = COMMANDS[options.source](options)
    options.write(report)
    return 0 if is_right else 1


def read_csv(options: SourcesOptions) -> tuple[dict[str, Any], bool]:
    """A large CSV file into memory."""
    reporter = Steps()
    lineitem = options.tables()["lineitem"]
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


def read_delta(options: SourcesOptions) -> tuple[dict[str, Any], bool]:
    """A Delta table into memory."""
    from deltalake import DeltaTable, write_deltalake

    from minishark.sources.delta import DeltaSource

    reporter = Steps()
    lineitem = options.tables()["lineitem"]
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


def read_postgres(options: SourcesOptions) -> tuple[dict[str, Any], bool]:
    """A table of PostgreSQL into memory. `numeric` is cast from text on both sides."""
    import adbc_driver_postgresql.dbapi as adbc

    from minishark.sources.postgres import PostgresSource

    reporter = Steps()
    lineitem = options.tables()["lineitem"]
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


BUCKET = "benchmark"
KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "not-a-secret"}
Q6 = (
    "SELECT sum(l_extendedprice * l_discount) FROM {} WHERE l_shipdate >= DATE '1994-01-01' AND "
    "l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24"
)
Q6_COLUMNS = ["l_extendedprice", "l_discount", "l_shipdate", "l_quantity"]


def read_objects(options: SourcesOptions) -> tuple[dict[str, Any], bool]:
    """Parquet files of an S3 server into memory, and a query over them where they are."""
    import pyarrow.dataset as ds
    from pyarrow import fs

    reporter = Steps()
    uri = f"s3://{BUCKET}/lineitem/*.parquet"
    runs: dict[str, Runs] = {
        name: {"minishark": [], "peer": []} for name in ("load", "Q6", "Q6 again")
    }
    answers: list[object] = []
    with object_server() as (url, server):
        size = uploaded(url, options.tables()["lineitem"])
        store = fs.S3FileSystem(
            access_key=KEYS["aws_access_key_id"],
            secret_key=KEYS["aws_secret_access_key"],
            endpoint_override=url,
            region="us-east-1",
        )
        storage = {**KEYS, "aws_endpoint_url": url, "aws_region": "us-east-1"}

        def dataset() -> ds.Dataset:
            return ds.dataset(f"{BUCKET}/lineitem", filesystem=store, format="parquet")

        def peer_query() -> None:
            with duckdb.connect() as connection:
                connection.register("lineitem", dataset().to_table(columns=Q6_COLUMNS))
                answers.extend(connection.sql(Q6.format("lineitem")).fetchall())

        def query(session: Session) -> None:
            rows = session.sql(Q6.format(quote_text(uri))).collect()
            answers.extend(tuple(row) for row in rows)

        for repetition in range(options.repetitions):
            reporter.step(f"Repetition {repetition + 1} of {options.repetitions}")
            clock = CpuClock(without=[server])
            runs["load"]["peer"].append(measured(lambda: dataset().to_table(), clock))
            for name in ("Q6", "Q6 again"):
                runs[name]["peer"].append(measured(peer_query, clock))
            with minishark.connect(storage_options=storage) as session:
                clock = CpuClock(without=[server])
                load = measured(partial(session.create_table, "lineitem", uri), clock)
                runs["load"]["minishark"].append(load)
            with minishark.connect(storage_options=storage) as session:
                clock = CpuClock(without=[server])
                for name in ("Q6", "Q6 again"):
                    runs[name]["minishark"].append(measured(partial(query, session), clock))
                    if name == "Q6":
                        fetched = fetched_bytes(session)
    for name, found in runs.items():
        tell(found, f"{name}, ")
    print(f"Q6 fetched {fetched / size:.0%} of {size >> 20} MiB")
    return {"bytes": size, "fetched": fetched, "runs": runs}, len(set(answers)) == 1


@contextlib.contextmanager
def object_server() -> Iterator[tuple[str, int]]:
    """The address of an S3 server in a process of its own, and the process's number."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as process:
        try:
            for _ in range(200):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()


def uploaded(url: str, pattern: str) -> int:
    """Store files below `lineitem/`; their bytes."""
    import boto3

    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **KEYS)
    client.create_bucket(Bucket=BUCKET)
    files = [Path(file) for (file,) in duckdb.sql(f"FROM glob({quote_text(pattern)})").fetchall()]
    for file in files:
        client.upload_file(str(file), BUCKET, f"lineitem/{file.name}")
    return sum(file.stat().st_size for file in files)


def fetched_bytes(session: Session) -> int:
    """What is on this host of the store's files."""
    folder = session._runtime.cluster.scratch / "objects"  # noqa: SLF001 - no API tells it
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("data*"))


def compared(
    ours: Callable[[], object], theirs: Callable[[], object], repetitions: int, reporter: Steps
) -> Runs:
    """The times of runs, which alternate; prints medians and ratios."""
    clock = CpuClock()
    found: Runs = {"minishark": [], "peer": []}
    for repetition in range(repetitions):
        reporter.step(f"Repetition {repetition + 1} of {repetitions}")
        for name, run in (("minishark", ours), ("peer", theirs)):
            found[name].append(measured(run, clock))
    tell(found)
    return found


def measured(run: Callable[[], object], clock: CpuClock) -> list[float]:
    """Wall and CPU seconds."""
    before_s = clock.now_s()
    wall_s = timed(run)
    return [wall_s, clock.now_s() - before_s]


def tell(found: Runs, title: str = "") -> None:
    for place, what in enumerate(("wall", "CPU")):
        own, peer = (
            statistics.median(run[place] for run in found[name]) for name in ("minishark", "peer")
        )
        print(f"{title}{what}: minishark {own:.2f} s, peer {peer:.2f} s, ratio {own / peer:.2f}")


COMMANDS: dict[str, Callable[[SourcesOptions], tuple[dict[str, Any], bool]]] = {
    "csv": read_csv,
    "delta": read_delta,
    "objects": read_objects,
    "postgres": read_postgres,
}


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "repetitions": 1})
