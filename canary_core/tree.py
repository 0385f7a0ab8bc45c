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


# --- between many partitions -------------------------------------------------------------------

STAR_MAX = 128  # partitions, or workers, that one worker serves without help
FAN = 16  # a power of two, so that a relay's block is a node of the reduction's tree


def share_of(count: int) -> int:
    """How many of `count` workers one of them tells what all are to know."""
    return -(-count // FAN) if count > STAR_MAX else 1


def is_relayed(size: int) -> bool:
    """Whether what goes between a single and a group of this size passes through relays.

    A broadcast to a thousand workers would be as many messages of one worker, a reduction as many
    for one. So partitions whose index is a multiple of FAN (FAN², ...) are relays of the FAN (FAN²,
    ...) partitions from there. It follows from the size alone, so that all workers agree.
    """
    return size > STAR_MAX


def block_of(index: int, size: int) -> Node:
    """The partitions for which one is a relay; itself alone, if it is none."""
    width = 1
    while index % (width * FAN) == 0 and width * FAN < size:
        width *= FAN
    return index, min(index + width, size)


def first_block(index: int, size: int) -> Node:
    """The smallest block of a relay that a partition is in."""
    low = index - index % FAN
    return low, min(low + FAN, size)


def above(index: int, size: int) -> int | None:
    """The relay to which one sends what it has of its block; None: to the single."""
    width = 1
    while index % (width * FAN) == 0:
        width *= FAN
        if width >= size:
            return None
    start = index - index % (width * FAN)
    return start if width * FAN < size else None


def below(index: int | None, size: int) -> list[int]:
    """The partitions to which a relay sends what it was sent; None: the single."""
    width = 1
    if index is None:
        while width * FAN < size:
            width *= FAN
        return list(range(0, size, width))
    low, high = block_of(index, size)
    heads: list[int] = []
    while low + width < high:
        heads += range(low + width, min(low + width * FAN, high), width)
        width *= FAN
    return heads
