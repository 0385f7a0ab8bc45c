"""Parts of a source in groups, each of which a task reads.

Even groups keep all tasks busy until the end. Steady ones stay the same where parts beside them are
replaced, added or removed, so that their outputs have the same names as before: a group begins
where the digest of a part's own key says so, and not where bytes before it have summed up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

Part = TypeVar("Part")

_LONGEST = 4  # a group has at most so many times the parts that it has on average, about


def steady_groups(
    parts: Sequence[Part], count: int, key: Callable[[Part], str]
) -> list[list[Part]]:
    """Parts that follow one another, in `count` groups or up to about twice as many.

    Args:
        parts: the parts, in order.
        count: how many groups are useful.
        key: tells a part from others, also when its contents have changed.
    """
    # A power of two: the borders stay the same while there are about so many parts.
    every = 1 << max(0, (len(parts) // max(1, count)).bit_length() - 1)
    groups: list[list[Part]] = []
    for part in parts:
        if not groups or len(groups[-1]) >= _LONGEST * every or _digest(key(part)) % every == 0:
            groups.append([])
        groups[-1].append(part)
    return groups


def _digest(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
