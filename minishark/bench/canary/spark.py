"""The applications on PySpark, by mapPartitions and joins of cached, co-partitioned RDDs."""

from __future__ import annotations

import gc
import operator
import time
import zipimport
from functools import cache
from typing import Any

import numpy as np
import psutil
from pyspark import SparkConf, SparkContext, StorageLevel

from canary_core.applications import pagerank
from minishark.bench.canary.cases import Case, Floats, Measured, edges, is_graph, summed, vertices
from minishark.bench.canary.peer import cpu_s_of_family, serve


@cache
def _context(workers: int) -> SparkContext:
    settings = SparkConf().setMaster(f"local[{workers}]").setAppName("canary")
    settings.set("spark.ui.enabled", "false").set("spark.driver.memory", "4g")
    settings.set("spark.ui.showConsoleProgress", "false")
    context = SparkContext(conf=settings)
    context.setLogLevel("ERROR")
    context.parallelize(range(8 * workers), 8 * workers).foreach(_tune)
    return context


def _tune(_: int) -> None:
    """Spare the tasks of this worker, which is reused, two things that take 0.17 s of each."""
    # Since Python 3.10 this reads Spark's own zip files again.
    zipimport.zipimporter.invalidate_caches = lambda _: None  # type: ignore[method-assign]
    gc.freeze()  # each task ends with a full collection, over all that NumPy has imported
    time.sleep(0.05)  # so that each worker has some of these tasks


def run(case: Case) -> Measured:
    return _graph(case) if is_graph(case) else _sums(case)


def _sums(case: Case) -> Measured:
    context, kind = _context(case.workers), summed(case)
    numbers = context.parallelize(range(case.partitions), case.partitions)
    parts = numbers.map(kind.load).persist(StorageLevel.MEMORY_ONLY)
    parts.count()
    local = kind.local

    def totals_of(sent: Any) -> Any:
        return parts.mapPartitions(lambda part: [local(each, sent.value) for each in part])

    wall_s, cpu_s = time.perf_counter(), cpu_s_of_family(psutil.Process())
    parameters = kind.first
    for _ in range(case.iterations):
        sent = context.broadcast(parameters)
        moved = kind.step(parameters, totals_of(sent).reduce(operator.add))
        sent.unpersist()
        converged = kind.distance(moved, parameters) < 0.0
        parameters = moved
        if converged:
            break
    wall_s = time.perf_counter() - wall_s
    cpu_s = cpu_s_of_family(psutil.Process()) - cpu_s
    parts.unpersist(blocking=True)
    return Measured(wall_s, cpu_s, np.ravel(parameters).tolist())


def _graph(case: Case) -> Measured:
    context, count = _context(case.workers), case.partitions
    grid = pagerank.grid_of(vertices(case), count)
    blocks, slices, ranks = _cut(case, context, grid)
    dangling = ranks.map(lambda each: each[1].dangling).sum()
    blocks.count()
    wall_s, cpu_s = time.perf_counter(), cpu_s_of_family(psutil.Process())
    for _ in range(case.iterations):
        moved = _iteration(blocks, slices, ranks, dangling).cache()
        told = moved.map(lambda each: np.array([each[1].dangling, each[1].moved]))
        dangling, change = told.reduce(operator.add)
        ranks.unpersist()
        ranks = moved
        if change < 0.0:
            break
    wall_s = time.perf_counter() - wall_s
    cpu_s = cpu_s_of_family(psutil.Process()) - cpu_s
    values: dict[int, Floats] = ranks.mapValues(lambda each: each.values).collectAsMap()
    result = pagerank.in_order(grid, [values[k] for k in range(count)])
    return Measured(wall_s, cpu_s, result.tolist())


def _cut(case: Case, context: SparkContext, grid: pagerank.Grid) -> tuple[Any, Any, Any]:
    """Cached blocks, slices and first ranks, by number; all have the same partitioner."""
    count = case.partitions
    blocks = (
        context.parallelize(range(count), count)
        .flatMap(lambda each: enumerate(pagerank.by_block(grid, edges(case, each))))
        .groupByKey(count)
        .map(
            lambda each: (each[0], pagerank.make_block(grid, list(each[1]), each[0])),
            preservesPartitioning=True,
        )
        .cache()
    )
    slices = (
        blocks.flatMap(lambda each: [(k, (each[0], seen)) for k, seen in each[1].mirrors.items()])
        .groupByKey(count)
        .map(
            lambda each: (each[0], pagerank.make_slice(grid, _sorted(each[1]), each[0])),
            preservesPartitioning=True,
        )
        .cache()
    )
    ranks = slices.mapValues(pagerank.first_ranks).cache()
    return blocks, slices, ranks


def _sorted(pieces: Any) -> list[Any]:
    """Pieces by the number of their sender, which comes with each."""
    return [piece for _, piece in sorted(pieces, key=operator.itemgetter(0))]


def _iteration(blocks: Any, slices: Any, ranks: Any, dangling: float) -> Any:
    """The next ranks, not computed yet."""
    count = blocks.getNumPartitions()
    held = slices.join(ranks, count)
    given = held.flatMap(
        lambda each: [(b, (each[0], piece)) for b, piece in pagerank.shares(*each[1]).items()]
    ).groupByKey(count)

    def sums_of(each: Any) -> list[Any]:
        number, (block, pieces) = each
        found = pagerank.block_sums(block, _sorted(pieces))
        return [(k, (number, piece)) for k, piece in found.items()]

    taken = blocks.join(given, count).flatMap(sums_of).groupByKey(count)
    return held.join(taken, count).mapValues(
        lambda each: pagerank.next_ranks(*each[0], _sorted(each[1]), dangling)
    )


if __name__ == "__main__":
    serve(run)
