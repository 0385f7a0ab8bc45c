"""Files of an S3 server on this machine (moto): loads and queries beside pyarrow's.

    python benchmarks/object_stores.py --scale 0.5

Each case runs in turn, as often as `--repetitions` says: the medians are compared. moto is one
Python process that answers with at most some hundred MB a second, and shares the cores with both.
Every session is new, so that nothing is on the host yet; the second query finds what the first one
fetched.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pyarrow.dataset as ds
from common import parser_of, tables_of, write_json
from pyarrow import fs

import minishark
from minishark.session.session import Session

KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "not-a-secret"}
BUCKET = "benchmark"
Q6 = (
    "SELECT sum(l_extendedprice * l_discount) FROM {} WHERE l_shipdate >= DATE '1994-01-01' AND "
    "l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24"
)
Q6_COLUMNS = ["l_extendedprice", "l_discount", "l_shipdate", "l_quantity"]


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of an S3 server in a process of its own."""
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
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def uploaded(url: str, pattern: str) -> int:
    """Store files below `lineitem/`; their bytes."""
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **KEYS)
    client.create_bucket(Bucket=BUCKET)
    files = [Path(file) for (file,) in duckdb.sql(f"FROM glob('{pattern}')").fetchall()]
    for file in files:
        client.upload_file(str(file), BUCKET, f"lineitem/{file.name}")
    return sum(file.stat().st_size for file in files)


def fetched_bytes(session: Session) -> int:
    """What is on this host of the store's files."""
    folder = session._runtime.cluster.scratch / "objects"  # noqa: SLF001 - no API tells it
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("data*"))


def main() -> None:
    parser = parser_of(__doc__, repetitions=5)
    parser.add_argument("--nodes", type=int, default=2)
    options = parser.parse_args()
    uri = f"s3://{BUCKET}/lineitem/*.parquet"
    figures: dict[str, list[float]] = {}
    fetched: dict[str, int] = {}

    def measure(name: str, run: Callable[..., object], *arguments: object) -> object:
        began_s = time.perf_counter()
        answer = run(*arguments)
        figures.setdefault(name, []).append(time.perf_counter() - began_s)
        return answer

    with server() as url:
        size = uploaded(url, tables_of(options)["lineitem"])
        store = fs.S3FileSystem(
            access_key=KEYS["aws_access_key_id"],
            secret_key=KEYS["aws_secret_access_key"],
            endpoint_override=url,
            region="us-east-1",
        )
        storage = {**KEYS, "aws_endpoint_url": url, "aws_region": "us-east-1"}

        def dataset() -> ds.Dataset:
            return ds.dataset(f"{BUCKET}/lineitem", filesystem=store, format="parquet")

        def pyarrow_query() -> object:
            with duckdb.connect() as connection:
                connection.register("lineitem", dataset().to_table(columns=Q6_COLUMNS))
                return connection.sql(Q6.format("lineitem")).fetchall()

        def query(session: Session) -> object:
            return [tuple(row) for row in session.sql(Q6.format(f"'{uri}'")).collect()]

        for number in range(options.repetitions):
            measure("load: pyarrow", lambda: dataset().to_table())
            with minishark.connect(nodes=options.nodes, storage_options=storage) as session:
                measure("load: minishark", session.create_table, "lineitem", uri)
            expected = measure("Q6: pyarrow and DuckDB", pyarrow_query)
            with minishark.connect(nodes=options.nodes, storage_options=storage) as session:
                assert expected == measure("Q6: minishark", query, session)
                fetched["Q6"] = fetched_bytes(session)
                assert expected == measure("Q6 again: minishark", query, session)
            print(f"{number + 1} of {options.repetitions}", file=sys.stderr, flush=True)
    medians = {name: statistics.median(times) for name, times in figures.items()}
    for name, seconds in medians.items():
        print(f"{name:24} {seconds:7.3f} s")
    load = medians["load: minishark"] / medians["load: pyarrow"]
    read = medians["Q6: minishark"] / medians["Q6: pyarrow and DuckDB"]
    print(f"load / pyarrow           {load:7.2f}")
    print(f"Q6 / pyarrow and DuckDB  {read:7.2f}")
    print(f"Q6 fetched {fetched['Q6'] / size:.0%} of {size >> 20} MiB")
    if options.json:
        write_json(options.json, {"seconds": figures, "load": load, "q6": read})


if __name__ == "__main__":
    main()
