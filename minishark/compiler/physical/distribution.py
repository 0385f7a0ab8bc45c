"""Pure functions on distributions: how they follow rows through operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minishark.compiler.physical.plan import Distribution, Hashed, Replicated, Single, Spread


def in_one_task(distribution: Distribution) -> bool:
    return isinstance(distribution, Single | Replicated)


def positions_of(sources: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Input column -> the output columns that are it; `sources` holds -1 for computed columns."""
    positions: dict[int, tuple[int, ...]] = {}
    for position, source in enumerate(sources):
        positions[source] = (*positions.get(source, ()), position)
    positions.pop(-1, None)
    return positions


def moved(distribution: Distribution, positions: Mapping[int, tuple[int, ...]]) -> Distribution:
    """`distribution` after columns moved; hashed on a column that is gone, rows are just spread."""
    if not isinstance(distribution, Hashed):
        return distribution
    keys = tuple(
        frozenset(place for column in sorted(key) for place in positions.get(column, ()))
        for key in distribution.keys
    )
    return Hashed(keys, distribution.partitions) if all(keys) else Spread(distribution.partitions)


def hashed_alike(left: Distribution, right: Distribution) -> bool:
    """Whether equal rows of two relations are in partitions with the same number."""
    if not isinstance(left, Hashed) or not isinstance(right, Hashed):
        return False
    pairs = zip(left.keys, right.keys, strict=False)
    return len(left.keys) == len(right.keys) and all(a & b for a, b in pairs)


def set_distribution(left: Distribution, right: Distribution) -> Distribution:
    """The distribution of a set operation whose inputs are side by side."""
    if isinstance(left, Replicated) and isinstance(right, Replicated):
        return Replicated()
    if isinstance(left, Single | Replicated):
        return Single()
    if isinstance(left, Hashed) and isinstance(right, Hashed) and hashed_alike(left, right):
        keys = tuple(a & b for a, b in zip(left.keys, right.keys, strict=True))
        return Hashed(keys, left.partitions)
    return Spread(left.partitions)
