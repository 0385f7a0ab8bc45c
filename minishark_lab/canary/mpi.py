"""The applications on mpi4py: `mpiexec -n WORKERS python -m minishark_lab.canary.mpi`.

One process per worker; sums by Allreduce, pieces of ranks by Alltoallv, from and to NumPy's memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from minishark_lab.applications import pagerank
from minishark_lab.canary.cases import Case, Floats, Measured, edges, is_graph, summed, vertices
from minishark_lab.canary.peer import serve

Pieces = Mapping[tuple[int, int], Floats]  # by sender and receiver, of blocks and slices
_COMM = MPI.COMM_WORLD


def run(case: Case) -> Measured:
    """All ranks call this; all have the result."""
    iterate = _ranks(case) if is_graph(case) else _parameters(case)
    _COMM.Barrier()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = iterate()
    took = np.array([time.process_time() - cpu_s])
    _COMM.Barrier()
    wall_s = time.perf_counter() - wall_s
    _COMM.Allreduce(MPI.IN_PLACE, took)
    return Measured(wall_s, float(took[0]), np.ravel(result()).tolist())


def _parameters(case: Case) -> Callable[[], Callable[[], Floats]]:
    kind = summed(case)
    parts = [kind.load(each) for each in case.partitions_of(_COMM.rank)]

    def iterate() -> Callable[[], Floats]:
        parameters = kind.first
        for _ in range(case.iterations):
            total = kind.local(parts[0], parameters)
            for part in parts[1:]:
                total += kind.local(part, parameters)
            _COMM.Allreduce(MPI.IN_PLACE, total)
            moved = kind.step(parameters, total)
            converged = kind.distance(moved, parameters) < 0.0
            parameters = moved
            if converged:
                break
        return lambda: parameters

    return iterate


class _Exchange:
    """Sends pieces to the ranks that need them; their sizes are the same in each iteration."""

    def __init__(self, case: Case, sent: Mapping[tuple[int, int], int]) -> None:
        everyone: dict[tuple[int, int], int] = {}
        for each in _COMM.allgather(sent):
            everyone.update(each)
        owner = case.worker_of
        self._send = [
            [key for key in sorted(sent) if owner(key[1]) == rank != _COMM.rank]
            for rank in range(_COMM.size)
        ]
        self._receive = [
            [
                key for key in sorted(everyone)
                if owner(key[0]) == rank != _COMM.rank == owner(key[1])
            ]
            for rank in range(_COMM.size)
        ]  # fmt: skip
        self._stay = [key for key in sorted(sent) if owner(key[1]) == _COMM.rank]
        self._out = [sum(everyone[key] for key in keys) for keys in self._send]
        self._in = [sum(everyone[key] for key in keys) for keys in self._receive]
        self._received = np.empty(sum(self._in))
        arriving = [key for keys in self._receive for key in keys]
        cuts = np.cumsum([everyone[key] for key in arriving])[:-1]
        self._views = dict(zip(arriving, np.split(self._received, cuts), strict=False))

    def __call__(self, pieces: Pieces) -> Pieces:
        leaving = [pieces[key] for keys in self._send for key in keys]
        flat = np.concatenate(leaving) if leaving else np.empty(0)
        _COMM.Alltoallv([flat, self._out], [self._received, self._in])
        return {**self._views, **{key: pieces[key] for key in self._stay}}


def _ranks(case: Case) -> Callable[[], Callable[[], Floats]]:
    grid = pagerank.grid_of(vertices(case), case.partitions)
    own = case.partitions_of(_COMM.rank)
    blocks, slices = _cut(case, grid, own)
    out = _Exchange(case, {(k, b): len(at) for k in own for b, at in slices[k].out.items()})
    back = _Exchange(
        case,
        {(b, k): len(blocks[b].mirrors[k].targets) for b in own for k in grid.column(b)},
    )

    def iterate() -> Callable[[], Floats]:
        ranks = {k: pagerank.first_ranks(slices[k]) for k in own}
        for _ in range(case.iterations):
            spread = np.array(
                [
                    sum(each.dangling for each in ranks.values()),
                    max(r.moved for r in ranks.values()),
                ]
            )
            _COMM.Allreduce(MPI.IN_PLACE, spread)
            if spread[1] < 0.0:
                break
            given = out({(k, b): piece for k in own
                         for b, piece in pagerank.shares(slices[k], ranks[k]).items()})  # fmt: skip
            sums = {}
            for b in own:
                pieces = pagerank.block_sums(blocks[b], [given[k, b] for k in grid.row(b)])
                sums.update({(b, k): piece for k, piece in pieces.items()})
            taken = back(sums)
            for k in own:
                mine = [taken[b, k] for b in grid.column(k)]
                ranks[k] = pagerank.next_ranks(slices[k], ranks[k], mine, float(spread[0]))
        return lambda: _gathered(grid, ranks)

    return iterate


def _cut(
    case: Case, grid: pagerank.Grid, own: list[int]
) -> tuple[dict[int, pagerank.Block], dict[int, pagerank.Slice]]:
    """This rank's blocks and slices."""
    cut = [pagerank.by_block(grid, edges(case, each)) for each in own]
    sent = _COMM.alltoall(
        [{b: [each[b] for each in cut] for b in case.partitions_of(to)} for to in range(_COMM.size)]
    )
    blocks = {
        b: pagerank.make_block(grid, [part for some in sent for part in some[b]], b) for b in own
    }
    mirrors = _COMM.alltoall(
        [
            {(b, k): blocks[b].mirrors[k] for b in own for k in blocks[b].mirrors
             if case.worker_of(k) == to}
            for to in range(_COMM.size)
        ]
    )  # fmt: skip
    known: dict[tuple[int, int], Any] = {
        key: each for some in mirrors for key, each in some.items()
    }
    slices = {
        k: pagerank.make_slice(grid, [known[b, k] for b in grid.neighbours(k)], k) for k in own
    }
    return blocks, slices


def _gathered(grid: pagerank.Grid, ranks: Mapping[int, pagerank.Ranks]) -> Floats:
    values: dict[int, Floats] = {}
    for some in _COMM.allgather({k: each.values for k, each in ranks.items()}):
        values.update(some)
    return pagerank.in_order(grid, [values[k] for k in range(grid.slices)])


if __name__ == "__main__":
    serve(run, answers=_COMM.rank == 0)
