"""The fixed tree of a reduction.

Rounding makes sums of floats depend on their order. So the order is a property of the indices
alone: node [low, high) combines [low, middle) and [middle, high), where middle - low is the
greatest power of two below the width. A complete subtree of indices that lie at one worker is
combined there; which worker that is, and when pieces arrive, never changes the result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

Node = tuple[int, int]


def middle(low: int, high: int) -> int:
    """Where a node of at least two leaves is split."""
    return low + (1 << ((high - low - 1).bit_length() - 1))


def combine(
    fn: Callable[[Any, Any], Any], pieces: Mapping[Node, Any], low: int, high: int
) -> tuple[list[tuple[Node, Any]], bool]:
    """Combine what `pieces` have of a node; returns maximal nodes, and whether they are all of it.

    `pieces` are values of disjoint nodes of the tree.
    """
    return _combined(fn, sorted(pieces.items(), key=itemgetter(0)), low, high)


def _combined(
    fn: Callable[[Any, Any], Any], pieces: list[tuple[Node, Any]], low: int, high: int
) -> tuple[list[tuple[Node, Any]], bool]:
    if len(pieces) < 2:  # the other nodes below are not here: a worker has few of many leaves
        return pieces, [(low, high)] == [node for node, _ in pieces]
    split = middle(low, high)
    cut = bisect_left(pieces, split, key=lambda piece: piece[0][0])
    left, left_whole = _combined(fn, pieces[:cut], low, split)
    right, right_whole = _combined(fn, pieces[cut:], split, high)
    if left_whole and right_whole:
        return [((low, high), fn(left[0][1], right[0][1]))], True
    return left + right, False
