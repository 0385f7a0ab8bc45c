"""The applications as programs of a session of minishark: one executor per worker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import psutil

import minishark
from canary_core.driver import Run, Value
from minishark_lab.applications import kmeans, logistic, pagerank
from minishark_lab.canary.cases import Case, Measured, edges, is_graph, summed, vertices
from minishark_lab.canary.peer import cpu_s_of_family, serve

Stamp = tuple[float, float]


def run(case: Case) -> Measured:
    """The case on a cluster of its own, which has started before the iterations are measured."""
    with minishark.connect(nodes=1, executors_per_node=case.workers) as session:
        program = session.program(driver_of(case, os.getpid()), partitions=case.partitions)
        result, began, ended = program.result()
    return Measured(
        ended[0] - began[0], ended[1] - began[1], np.ravel(array_of(case, result)).tolist()
    )


def array_of(case: Case, result: Any) -> Any:
    """The result of a driver in the order of the sequential program's."""
    if not is_graph(case):
        return result
    slices = result if case.partitions > 1 else [result]
    return pagerank.in_order(pagerank.grid_of(vertices(case), case.partitions), slices)


def driver_of(case: Case, front_end: int) -> Callable[[Run], Any]:
    """A driver that returns the result and when its iterations began and ended."""

    def driver(run: Run) -> tuple[Value, Value, Value]:
        iterate, data = _prepare(case, run)
        began = run.map(partial(_began, front_end), run.reduce(_either, run.map(_nothing, data)))
        # No partition's iterations begin before all partitions are there.
        result = iterate(run.map(_first_of, data, run.broadcast(began)))
        last = run.reduce(_either, run.map(_nothing, result))
        return result, began, run.map(partial(_ended, front_end), last)

    return driver


def _prepare(case: Case, run: Run) -> tuple[Callable[[Value], Value], Value]:
    """The iterations as a function of their data, and the data."""
    if is_graph(case):
        graph = pagerank.cut(run, run.load(partial(edges, case)), vertices(case))

        def iterate(slices: Value) -> Value:
            return pagerank.rank(run, replace(graph, slices=slices), case.iterations)

        return iterate, graph.slices
    kind = summed(case)
    fit = kmeans.fit if case.application == "k-means" else logistic.fit

    def iterate_sums(data: Value) -> Value:
        return fit(run, data, run.single(kind.first), case.iterations)

    return iterate_sums, run.load(kind.load)


def _began(front_end: int, after: object) -> Stamp:
    """Now, on a clock that all processes of the machine share, and the session's CPU time.

    To learn the CPU time of all processes takes a millisecond or two: that is over before.
    """
    del after
    cpu_s = cpu_s_of_family(psutil.Process(front_end))
    return time.perf_counter(), cpu_s


def _ended(front_end: int, after: object) -> Stamp:
    """The same; the CPU time is learnt when the clock has been read."""
    del after
    now_s = time.perf_counter()
    return now_s, cpu_s_of_family(psutil.Process(front_end))


def _nothing(part: object) -> None:
    """That a part is there."""
    del part


def _either(a: None, b: None) -> None:
    """That both are there."""
    del a, b


def _first_of(value: Any, after: object) -> Any:
    del after
    return value


if __name__ == "__main__":
    serve(run)
