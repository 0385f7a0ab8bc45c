"""The applications on Ray: one actor per worker; a call each per iteration, pieces by reference."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import psutil
import ray

from minishark_lab.applications import pagerank
from minishark_lab.canary.cases import Case, Floats, Measured, edges, is_graph, summed, vertices
from minishark_lab.canary.peer import cpu_s_of_family, serve


class Sums:
    """Some partitions of logistic regression or k-means."""

    def __init__(self, case: Case, worker: int) -> None:
        self._kind = summed(case)
        self._parts = [self._kind.load(each) for each in case.partitions_of(worker)]

    def local(self, parameters: Floats) -> Floats:
        total = self._kind.local(self._parts[0], parameters)
        for part in self._parts[1:]:
            total += self._kind.local(part, parameters)
        return total

    def ready(self) -> None:
        """Answered when the partitions are there."""


class Graph:
    """Some blocks and slices of PageRank; a list of pieces has one item per worker."""

    def __init__(self, case: Case, worker: int) -> None:
        self._case = case
        self._grid = pagerank.grid_of(vertices(case), case.partitions)
        self._own = case.partitions_of(worker)
        self._blocks: dict[int, pagerank.Block] = {}
        self._slices: dict[int, pagerank.Slice] = {}
        self._ranks: dict[int, pagerank.Ranks] = {}

    def _split(self, pieces: dict[Any, Any]) -> Any:
        """By the worker of the receiver, which is the second of each key."""
        parts = [
            {key: piece for key, piece in pieces.items() if self._case.worker_of(key[1]) == to}
            for to in range(self._case.workers)
        ]
        return tuple(parts) if len(parts) > 1 else parts[0]

    def cut(self) -> Any:
        pieces = {}
        for each in self._own:
            for block, part in enumerate(pagerank.by_block(self._grid, edges(self._case, each))):
                pieces[each, block] = part
        return self._split(pieces)

    def build(self, *pieces: dict[Any, Any]) -> Any:
        known = _merged(pieces)
        for b in self._own:
            parts = [known[each, b] for each in range(self._case.partitions)]
            self._blocks[b] = pagerank.make_block(self._grid, parts, b)
        return self._split(
            {(b, k): each for b in self._own for k, each in self._blocks[b].mirrors.items()}
        )

    def connect(self, *pieces: dict[Any, Any]) -> float:
        known = _merged(pieces)
        for k in self._own:
            mirrors = [known[b, k] for b in self._grid.neighbours(k)]
            self._slices[k] = pagerank.make_slice(self._grid, mirrors, k)
            self._ranks[k] = pagerank.first_ranks(self._slices[k])
        return sum(each.dangling for each in self._ranks.values())

    def shares(self) -> Any:
        pieces = {}
        for k in self._own:
            for b, piece in pagerank.shares(self._slices[k], self._ranks[k]).items():
                pieces[k, b] = piece
        return self._split(pieces)

    def sums(self, *pieces: dict[Any, Any]) -> Any:
        known, sent = _merged(pieces), {}
        for b in self._own:
            found = pagerank.block_sums(self._blocks[b], [known[k, b] for k in self._grid.row(b)])
            sent.update({(b, k): piece for k, piece in found.items()})
        return self._split(sent)

    def move(self, dangling: float, *pieces: dict[Any, Any]) -> tuple[float, float]:
        known = _merged(pieces)
        for k in self._own:
            mine = [known[b, k] for b in self._grid.column(k)]
            self._ranks[k] = pagerank.next_ranks(self._slices[k], self._ranks[k], mine, dangling)
        ranks = self._ranks.values()
        return sum(each.dangling for each in ranks), sum(each.moved for each in ranks)

    def values(self) -> dict[int, Floats]:
        return {k: each.values for k, each in self._ranks.items()}


def _merged(pieces: tuple[dict[Any, Any], ...]) -> dict[Any, Any]:
    return {key: piece for some in pieces for key, piece in some.items()}


def run(case: Case) -> Measured:
    if not ray.is_initialized():
        ray.init(num_cpus=case.workers, include_dashboard=False, log_to_driver=False)
    return _graph(case) if is_graph(case) else _sums(case)


def _sums(case: Case) -> Measured:
    kind = summed(case)
    actor = ray.remote(num_cpus=1)(Sums)
    actors = [actor.remote(case, each) for each in range(case.workers)]
    ray.get([each.ready.remote() for each in actors])
    wall_s, cpu_s = time.perf_counter(), cpu_s_of_family(psutil.Process())
    parameters = kind.first
    for _ in range(case.iterations):
        totals = ray.get([each.local.remote(parameters) for each in actors])
        moved = kind.step(parameters, sum(totals[1:], totals[0]))
        converged = kind.distance(moved, parameters) < 0.0
        parameters = moved
        if converged:
            break
    wall_s = time.perf_counter() - wall_s
    cpu_s = cpu_s_of_family(psutil.Process()) - cpu_s
    for each in actors:
        ray.kill(each)
    return Measured(wall_s, cpu_s, np.ravel(parameters).tolist())


def _graph(case: Case) -> Measured:
    actor, workers = ray.remote(num_cpus=1)(Graph), range(case.workers)
    actors = [actor.remote(case, each) for each in workers]

    def exchanged(sent: list[Any]) -> list[list[Any]]:
        """What each worker receives of what each has sent."""
        lists = sent if case.workers > 1 else [[each] for each in sent]
        return [[each[to] for each in lists] for to in workers]

    def call(name: str, inputs: list[list[Any]]) -> list[Any]:
        return [
            getattr(each, name).options(num_returns=case.workers).remote(*given)
            for each, given in zip(actors, inputs, strict=True)
        ]

    nothing: list[list[Any]] = [[] for _ in workers]
    mirrors = exchanged(call("build", exchanged(call("cut", nothing))))
    dangling = sum(
        ray.get([a.connect.remote(*given) for a, given in zip(actors, mirrors, strict=True)])
    )
    wall_s, cpu_s = time.perf_counter(), cpu_s_of_family(psutil.Process())
    for _ in range(case.iterations):
        taken = exchanged(call("sums", exchanged(call("shares", nothing))))
        told = ray.get(
            [a.move.remote(dangling, *given) for a, given in zip(actors, taken, strict=True)]
        )
        dangling, moved = (sum(each[place] for each in told) for place in (0, 1))
        if moved < 0.0:
            break
    wall_s = time.perf_counter() - wall_s
    cpu_s = cpu_s_of_family(psutil.Process()) - cpu_s
    values = _merged(tuple(ray.get([each.values.remote() for each in actors])))
    grid = pagerank.grid_of(vertices(case), case.partitions)
    for each in actors:
        ray.kill(each)
    result = pagerank.in_order(grid, [values[k] for k in range(grid.slices)])
    return Measured(wall_s, cpu_s, result.tolist())


if __name__ == "__main__":
    serve(run)
    ray.shutdown()
