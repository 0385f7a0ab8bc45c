"""The work of `durable_program.py` on another engine, as its own users would write it.

    python benchmarks/durable_peers.py pyspark|dask|ray|ray-checkpoint DATA OUT

All score the comments of lineitem with the same function; PySpark runs the 22 queries, too. Started
again, a script begins anew. Only `ray-checkpoint` skips the rows that an earlier run has written:
Ray Data tells them by a column of ids, which DATA/identified has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
from durable_program import scored

from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark.cli.tpch.tables import find_tables

_COLUMNS = ["l_orderkey", "l_linenumber", "l_comment"]
_CORES = 2


def _pyspark(data: Path, out: Path) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{_CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", _CORES)
        .getOrCreate()
    )
    for name in find_tables(data):
        spark.read.parquet(str(data / name)).createOrReplaceTempView(name)

    def scores(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from scored(pa.table(batch)).to_batches()

    comments = spark.table("lineitem").select(*_COLUMNS)
    kinds = dict(comments.dtypes)
    schema = ", ".join(f"{name} {kinds.get(name, 'bigint')}" for name in (*_COLUMNS[:2], "score"))
    comments.mapInArrow(scores, schema).write.mode("overwrite").parquet(str(out / "scores"))
    for number, text in load_queries(parse_selection("1-22")).items():
        answer = spark.sql(text.rstrip().rstrip(";"))
        answer.write.mode("overwrite").parquet(str(out / f"{number}.parquet"))
    spark.stop()


def _dask(data: Path, out: Path) -> None:
    import dask.dataframe as dd
    from distributed import Client

    def scores(rows: pd.DataFrame) -> pd.DataFrame:
        return scored(pa.Table.from_pandas(rows, preserve_index=False)).to_pandas()

    with Client(n_workers=_CORES, threads_per_worker=1, dashboard_address=None):
        comments = dd.read_parquet(str(data / "lineitem"), columns=_COLUMNS)
        kinds = {**comments.dtypes[_COLUMNS[:2]].to_dict(), "score": "int64"}
        scored_rows = comments.map_partitions(scores, meta=kinds)
        scored_rows.to_parquet(str(out / "scores"), write_index=False)


def _ray(data: Path, out: Path) -> None:
    import ray

    ray.init(num_cpus=_CORES, include_dashboard=False, logging_level="error")
    comments = ray.data.read_parquet(str(data / "lineitem"), columns=_COLUMNS)
    comments.map_batches(scored, batch_format="pyarrow").write_parquet(str(out / "scores"))


def _ray_checkpoint(data: Path, out: Path) -> None:
    import ray
    from ray.data.checkpoint import CheckpointConfig

    def scores(rows: pa.Table) -> pa.Table:
        return scored(rows).append_column("id", rows["id"])

    ray.init(num_cpus=_CORES, include_dashboard=False, logging_level="error")
    ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
        id_column="id",
        checkpoint_path=str(out / "checkpoint"),
        delete_checkpoint_on_success=False,
    )
    comments = ray.data.read_parquet(str(data / "identified"))
    comments.map_batches(scores, batch_format="pyarrow").write_parquet(str(out / "scores"))


ENGINES: dict[str, Callable[[Path, Path], None]] = {
    "pyspark": _pyspark,
    "dask": _dask,
    "ray": _ray,
    "ray-checkpoint": _ray_checkpoint,
}

if __name__ == "__main__":
    # Their workers import the function that scores.
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    ENGINES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
