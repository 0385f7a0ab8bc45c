"""Ray datasets into tables and back, beside what Ray takes for the same bytes.

    python benchmarks/ray_data.py [--gigabytes 1] [--rounds 3]

Starts a Ray cluster of its own on this machine, which has a minishark node with one executor. Rows
are four columns of eight bytes. `put` and `get` are Ray's: the same tables into its object store by
this program, and out of it into this program's memory. `in` is `create_table(dataset)`, `back` is
`to_ray_dataset()` of the table, `query` that of a filter that keeps all rows. The first round is
cold: the object store's pages are touched for the first time.

CPU seconds are those of all processes of this program and of Ray, per gigabyte.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import minishark
from minishark_lab.harness.parameters import Count, Positive
from minishark_lab.harness.script import Options, run_script

_BLOCKS = 16


def _cpu_s() -> dict[int, float]:
    found = {}
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[process.pid] = times.user + times.system
    return found


def _timed(name: str, size: int, run: Callable[[], Any]) -> Any:
    before, began = _cpu_s(), time.perf_counter()
    result = run()
    seconds, after = time.perf_counter() - began, _cpu_s()
    cpu_s = sum(now - before.get(pid, 0.0) for pid, now in after.items())
    figures = f"{size / seconds / 1e6:6.0f} MB/s, CPU {cpu_s * 1e9 / size:.2f} s/GB"
    print(f"  {name:<6}{figures}", flush=True)
    return result


def _table(number: int, rows: int) -> pa.Table:
    random = np.random.default_rng(number)
    return pa.table(
        {
            "id": np.arange(number * rows, (number + 1) * rows),
            "price": random.random(rows),
            "number": random.integers(0, 1 << 40, rows),
            "share": random.random(rows),
        }
    )


def _got(references: list[Any]) -> None:
    """All values in this program's memory."""
    import ray

    for reference in references:
        for column in ray.get(reference).columns:
            for chunk in column.chunks:
                np.array(chunk.to_numpy(), copy=True)


@dataclass(frozen=True, kw_only=True)
class RayDataOptions(Options):
    gigabytes: Positive = 1.0
    rounds: Count = 3


def main(options: RayDataOptions) -> None:
    """Run all rounds."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    import ray.data

    rows = int(options.gigabytes * 1e9 / _BLOCKS / 32)
    tables = [_table(number, rows) for number in range(_BLOCKS)]
    size = sum(table.nbytes for table in tables)
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            num_cpus=2,
            object_store_memory=5 * size,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )
        try:
            with minishark.connect("ray", nodes=1, cpus_per_node=1) as session:
                for number in range(options.rounds):
                    print(f"round {number + 1}", flush=True)
                    _round(session, size, tables)
                    gc.collect()
        finally:
            ray.shutdown()


def _round(session: Any, size: int, tables: list[pa.Table]) -> None:
    import ray

    references = _timed("put", size, lambda: [ray.put(table) for table in tables])
    _timed("get", size, lambda: _got(references))
    data = ray.data.from_arrow_refs(references)
    _timed("in", size, lambda: session.create_table("t", data, replace=True))
    back = _timed("back", size, lambda: session.sql("FROM t").to_ray_dataset())
    query = session.sql("FROM t WHERE id >= 0")
    queried = _timed("query", size, query.to_ray_dataset)
    rows = sum(table.num_rows for table in tables)
    assert (back.count(), queried.count()) == (rows, rows)


if __name__ == "__main__":
    run_script(main, quick={"gigabytes": 0.01, "rounds": 1})
