"""The applications on PySpark: mapPartitions over cached partitions, parameters by broadcast."""

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

from minishark_lab.applications import pagerank
from minishark_lab.canary.cases import Case, Measured, edges, is_graph, summed, vertices
from minishark_lab.canary.peer import cpu_s_of_family, serve


@cache
def _context(workers: int) -> SparkContext:
    settings = SparkConf().setMaster(f"local[{workers}]").setAppName("canary")
    settings.set("spark.ui.enabled", "false").set("spark.driver.memory", "4g")
    settings.set("spark.ui.showConsoleProgress", "false")
    context = SparkContext(conf=settings)
    context.setLogLevel("ERROR")
    context.parallelize(range(8 * workers), 8 * workers).foreach(_tune)
    return context


def _nothing(_: zipimport.zipimporter) -> None: ...


def _tune(_: int) -> None:
    """Spare the tasks of this worker, which is reused, two things that take 0.17 s of each."""
    # Since Python 3.10 this reads Spark's own zip files again.
    setattr(zipimport.zipimporter, "invalidate_caches", _nothing)  # noqa: B010 - it is patched
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
    """Blocks stay at the workers; ranks, which are small, travel by way of the Spark driver.

    That is several times faster than joins of ranks with blocks, with two shuffles per iteration.
    """
    context, count = _context(case.workers), case.partitions
    grid = pagerank.grid_of(vertices(case), count)
    blocks = (
        context.parallelize(range(count), count)
        .flatMap(lambda each: enumerate(pagerank.by_block(grid, edges(case, each))))
        .groupByKey(count)
        .map(lambda each: (each[0], pagerank.make_block(grid, list(each[1]), each[0])))
        .persist(StorageLevel.MEMORY_ONLY)
    )
    mirrors = blocks.mapValues(lambda block: block.mirrors).collectAsMap()
    slices = [
        pagerank.make_slice(grid, [mirrors[b][k] for b in grid.neighbours(k)], k)
        for k in range(count)
    ]
    ranks = list(map(pagerank.first_ranks, slices))
    wall_s, cpu_s = time.perf_counter(), cpu_s_of_family(psutil.Process())
    for _ in range(case.iterations):
        ranks = _iteration(grid, blocks, slices, ranks)
        if sum(each.moved for each in ranks) < 0.0:
            break
    wall_s = time.perf_counter() - wall_s
    cpu_s = cpu_s_of_family(psutil.Process()) - cpu_s
    blocks.unpersist(blocking=True)
    result = pagerank.in_order(grid, [each.values for each in ranks])
    return Measured(wall_s, cpu_s, result.tolist())


def _iteration(
    grid: pagerank.Grid, blocks: Any, slices: list[pagerank.Slice], ranks: list[pagerank.Ranks]
) -> list[pagerank.Ranks]:
    given = [pagerank.shares(part, each) for part, each in zip(slices, ranks, strict=True)]
    by_block = [[given[k][b] for k in grid.row(b)] for b in range(grid.slices)]
    sent = blocks.context.broadcast(by_block)
    summed_up = blocks.mapPartitions(
        lambda part: [(b, pagerank.block_sums(block, sent.value[b])) for b, block in part]
    ).collectAsMap()
    sent.unpersist()
    dangling = sum(each.dangling for each in ranks)
    return [
        pagerank.next_ranks(
            slices[k], ranks[k], [summed_up[b][k] for b in grid.column(k)], dangling
        )
        for k in range(grid.slices)
    ]


if __name__ == "__main__":
    serve(run)
