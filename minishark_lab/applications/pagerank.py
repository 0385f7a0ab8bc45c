"""PageRank over a 2-D vertex cut.

The edges are cut into a grid of blocks, and the vertices into as many slices. Vertex v is in slice
v mod (rows * columns), which lives at row `slice // columns` and column `slice % columns`; an edge
is in the block at the row of its source and the column of its target. So a slice sends its shares
of rank along its row only, and receives sums from its column only: rows + columns messages, where a
cut of the edges by one end would need rows * columns. A block has *mirrors* of the vertices that
its edges touch, no others; shares and sums travel for mirrors only.

                 column 0      column 1
        row 0   [block 0]     [block 1]     slice 0 sends to blocks 0 and 1 (its row),
        row 1   [block 2]     [block 3]     and receives from blocks 0 and 2 (its column).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from canary_core.driver import Run, Value

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Edges = tuple[Ints, Ints]

DAMPING = 0.85


@dataclass(frozen=True)
class Grid:
    """A 2-D vertex cut of a graph with vertices 0 to `vertices` - 1."""

    vertices: int
    rows: int
    columns: int

    @property
    def slices(self) -> int:
        return self.rows * self.columns

    def size(self, number: int) -> int:
        """How many vertices a slice has."""
        return len(range(number, self.vertices, self.slices))

    def block(self, sources: Ints, targets: Ints) -> Ints:
        """The number of each edge's block."""
        row = sources % self.slices // self.columns
        column = targets % self.slices % self.columns
        return row * self.columns + column

    def row(self, number: int) -> range:
        """The blocks, or slices, in the same row."""
        first = number // self.columns * self.columns
        return range(first, first + self.columns)

    def column(self, number: int) -> range:
        """The blocks, or slices, in the same column."""
        return range(number % self.columns, self.slices, self.columns)

    def neighbours(self, number: int) -> list[int]:
        """The blocks, or slices, in the same row or column."""
        return sorted({*self.row(number), *self.column(number)})


def grid_of(vertices: int, partitions: int) -> Grid:
    """The grid of that many blocks that is nearest to a square."""
    rows = next(n for n in range(math.isqrt(partitions), 0, -1) if partitions % n == 0)
    return Grid(vertices, rows, partitions // rows)


def make_edges(partition: int, count: int, vertices: int) -> Edges:
    """Random edges of one partition, the same on each call.

    Few vertices have most in-edges, and one in ten has no out-edges.
    """
    rng = np.random.default_rng((13, partition))
    sources = rng.integers(vertices, size=count)
    sources -= (sources % 10 == 3) * (sources % 10)
    # A product with a number that has no factor in common with most sizes scatters popular ones.
    popular = (vertices * rng.random(count) ** 3).astype(np.int64)
    return sources, popular * 7919 % vertices


def by_block(grid: Grid, edges: Edges) -> list[Edges]:
    """The edges of each block."""
    block = grid.block(*edges)
    order = np.argsort(block, kind="stable")
    bounds = np.searchsorted(block[order], np.arange(1, grid.slices))
    split = (np.split(ends[order], bounds) for ends in edges)
    return list(zip(*split, strict=True))


@dataclass(frozen=True)
class Mirrors:
    """The vertices of one slice that one block has edges of; positions within the slice.

    Attributes:
        degrees: How many edges of the block each source has.
    """

    sources: Ints
    degrees: Ints
    targets: Ints


@dataclass(frozen=True)
class Block:
    """Edges by mirrors, sorted by target.

    Attributes:
        mirrors: One for each slice of the block's row (sources) or column (targets).
        column: The slices of its column.
        source: The place of each edge's source among all source mirrors of the block.
        starts: Where each target mirror's edges begin.
        cuts: Where the target mirrors of one slice end and those of the next begin.
    """

    mirrors: dict[int, Mirrors]
    column: range
    source: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    cuts: npt.NDArray[np.intp]


def make_block(grid: Grid, parts: Sequence[Edges], number: int) -> Block:
    """The block of that number, from its edges."""
    sources, targets = (np.concatenate([edges[end] for edges in parts]) for end in (0, 1))
    in_row, in_column = grid.row(number), grid.column(number)
    # Sorted by slice, then position: mirrors of one slice are neighbours.
    reach = -(-grid.vertices // grid.slices)
    source_keys = sources % grid.slices % grid.columns * reach + sources // grid.slices
    target_keys = targets % grid.slices // grid.columns * reach + targets // grid.slices
    order = np.lexsort((source_keys, target_keys))
    mirrored, source = np.unique(source_keys[order], return_inverse=True)
    aimed, starts = np.unique(target_keys[order], return_index=True)
    degrees = np.bincount(source, minlength=len(mirrored))
    source_cuts = np.searchsorted(mirrored, reach * np.arange(1, grid.columns))
    target_cuts = np.searchsorted(aimed, reach * np.arange(1, grid.rows))
    of_row = dict(zip(in_row, np.split(mirrored % reach, source_cuts), strict=True))
    degrees_of = dict(zip(in_row, np.split(degrees, source_cuts), strict=True))
    of_column = dict(zip(in_column, np.split(aimed % reach, target_cuts), strict=True))
    none = np.empty(0, np.int64)
    mirrors = {
        at: Mirrors(of_row.get(at, none), degrees_of.get(at, none), of_column.get(at, none))
        for at in grid.neighbours(number)
    }
    return Block(mirrors, in_column, source, starts, target_cuts)


@dataclass(frozen=True)
class Slice:
    """Vertices of one slice, and where their mirrors are.

    Attributes:
        out: Per block of the row, the positions whose shares it needs.
        into: Per block of the column, in order, the positions that it has sums for.
        scale: 1 / out-degree of each vertex, 0 for a dangling one.
        dangling: Positions of vertices without out-edges.
    """

    vertices: int
    out: dict[int, Ints]
    into: list[Ints]
    scale: Floats
    dangling: npt.NDArray[np.intp]


def make_slice(grid: Grid, sent: Sequence[Mirrors], number: int) -> Slice:
    """The slice of that number, from what its neighbours have mirrors of, in their order."""
    mirrors = dict(zip(grid.neighbours(number), sent, strict=True))
    degree = np.zeros(grid.size(number))
    for block in grid.row(number):
        degree[mirrors[block].sources] += mirrors[block].degrees
    scale = np.divide(1.0, degree, out=np.zeros_like(degree), where=degree > 0)
    return Slice(
        grid.vertices,
        {block: mirrors[block].sources for block in grid.row(number)},
        [mirrors[block].targets for block in grid.column(number)],
        scale,
        np.flatnonzero(degree == 0),
    )


@dataclass(frozen=True)
class Ranks:
    """The ranks of a slice, how much they moved, and the rank of its dangling vertices."""

    values: Floats
    moved: float
    dangling: float


def first_ranks(part: Slice) -> Ranks:
    """All ranks are equal."""
    values = np.full(len(part.scale), 1.0 / part.vertices)
    return Ranks(values, math.inf, float(values[part.dangling].sum()))


def shares(part: Slice, ranks: Ranks) -> dict[int, Floats]:
    """What each vertex gives to each of its targets, for the blocks of the row."""
    share = ranks.values * part.scale
    return {block: share[positions] for block, positions in part.out.items()}


def block_sums(block: Block, pieces: Sequence[Floats]) -> dict[int, Floats]:
    """The sums of what target mirrors receive, for the slices of the column.

    Args:
        block: Of the grid.
        pieces: Shares from the slices of the row, in their order.
    """
    share = np.concatenate(pieces)
    if len(block.source):
        share = np.add.reduceat(share[block.source], block.starts)
    # Without an edge there is no share either, and reduceat would refuse.
    return dict(zip(block.column, np.split(share, block.cuts), strict=True))


def next_ranks(part: Slice, ranks: Ranks, pieces: Sequence[Floats], dangling: float) -> Ranks:
    """The ranks after an iteration.

    Args:
        part: The slice.
        ranks: Before it.
        pieces: Sums from the blocks of the column, in their order.
        dangling: The rank of all dangling vertices, which goes to all vertices alike.
    """
    received = np.zeros(len(part.scale))
    for positions, piece in zip(part.into, pieces, strict=True):
        received[positions] += piece
    received += dangling / part.vertices
    received *= DAMPING
    received += (1.0 - DAMPING) / part.vertices
    moved = float(np.abs(received - ranks.values).sum())
    return Ranks(received, moved, float(received[part.dangling].sum()))


@dataclass(frozen=True)
class Cut:
    """Handles of a graph that is cut: its blocks and slices."""

    grid: Grid
    blocks: Value
    slices: Value


def cut(run: Run, edges: Value, vertices: int) -> Cut:
    """Cut a graph into a grid of as many blocks as the program has partitions: part of a driver.

    Args:
        run: The driver's.
        edges: Partitions of sources and targets in any order; both are numbers of vertices.
        vertices: How many there are.
    """
    grid, number = grid_of(vertices, run.partitions), run.load(int)
    scattered = run.scatter(partial(by_block, grid), edges)
    blocks = run.gather(partial(make_block, grid), scattered, number)
    slices = run.gather(partial(make_slice, grid), run.scatter(_mirrors, blocks), number)
    return Cut(grid, blocks, slices)


def rank(run: Run, graph: Cut, iterations: int, tolerance: float = 0.0) -> Value:
    """The ranks by slice after some iterations: part of a driver. `in_order` sorts them.

    Whether an iteration was the last is decided while the blocks sum up the next: nobody waits for
    the signal, and at the end some sums have been made in vain.

    Args:
        run: The driver's.
        graph: As `cut` made it.
        iterations: At most so many.
        tolerance: It ends when all ranks together change by less.
    """
    ranks = run.map(first_ranks, graph.slices)
    totals = run.reduce(np.add, run.map(_totals, ranks))
    rows, columns = run.routes(graph.grid.row), run.routes(graph.grid.column)
    is_small = partial(_is_small, tolerance)
    for _ in range(iterations):
        along_rows = run.scatter(shares, graph.slices, ranks, along=rows)
        along_columns = run.scatter(block_sums, graph.blocks, along_rows, along=columns)
        before = run.broadcast(totals)
        if run.signal(is_small, totals):
            break
        ranks = run.map(_next_ranks, graph.slices, ranks, along_columns, before)
        totals = run.reduce(np.add, run.map(_totals, ranks))
    return run.map(_values, ranks)


def _mirrors(block: Block) -> dict[int, Mirrors]:
    return block.mirrors


def _totals(ranks: Ranks) -> Floats:
    return np.array([ranks.moved, ranks.dangling])


def _next_ranks(part: Slice, ranks: Ranks, pieces: Sequence[Floats], totals: Floats) -> Ranks:
    return next_ranks(part, ranks, pieces, float(totals[1]))


def _is_small(tolerance: float, totals: Floats) -> bool:
    return bool(totals[0] < tolerance)


def _values(ranks: Ranks) -> Floats:
    return ranks.values


def in_order(grid: Grid, slices: Sequence[Floats]) -> Floats:
    """The ranks of all vertices, by vertex."""
    ranks = np.empty(grid.vertices)
    for number, values in enumerate(slices):
        ranks[number :: grid.slices] = values
    return ranks


def sequential(edges: Edges, vertices: int, iterations: int, tolerance: float = 0.0) -> Floats:
    """The same in plain NumPy, over all edges at once."""
    sources, targets = edges
    degree = np.bincount(sources, minlength=vertices)
    dangling = degree == 0
    scale = np.divide(1.0, degree, out=np.zeros(vertices), where=~dangling)
    ranks = np.full(vertices, 1.0 / vertices)
    for _ in range(iterations):
        received = np.bincount(targets, weights=(ranks * scale)[sources], minlength=vertices)
        spread = ranks[dangling].sum() / vertices
        moved = (1.0 - DAMPING) / vertices + DAMPING * (received + spread)
        change = np.abs(moved - ranks).sum()
        ranks = moved
        if change < tolerance:
            break
    return ranks
