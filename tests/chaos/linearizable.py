"""Whether a table behaved as one copy: is there an order of what happened that explains it?

Sessions that share a table record what they asked and saw. A history is linearizable (Herlihy and
Wing, TOPLAS 1990) if each operation can be given a moment between its begin and its end, so that
one after the other gives what was seen: then no write is lost, no table is seen half, and no older
answer comes after a newer one. The search is Wing and Gong's with the memory of Lowe (2017), as in
Porcupine.

A table is a set of numbers, each of which is added once at most. An operation whose outcome nobody
knows, as its session was killed, may have happened at any time after it began, or never.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["add", "remove", "read"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a session asked, and when; `numbers` are those added, removed, or seen."""

    kind: Kind
    numbers: frozenset[int]
    began_s: float
    ended_s: float = math.inf  # infinite if nobody knows whether it happened

    def __str__(self) -> str:
        end = "never told" if math.isinf(self.ended_s) else f"{self.ended_s:.3f} s"
        return f"{self.kind} {sorted(self.numbers)} from {self.began_s:.3f} s to {end}"


def unexplained(history: Sequence[Operation], before: Collection[int] = ()) -> str:
    """Why no order explains what was seen; empty if there is one.

    Args:
        history: the operations on a table, in any order; without those that have failed, as these
            may not have happened. A read that never ended tells nothing, and is left out.
        before: what was in the table before.
    """
    known = [each for each in history if each.kind != "read" or not math.isinf(each.ended_s)]
    known.sort(key=lambda each: each.began_s)
    bits = {number: 1 << i for i, number in enumerate(_numbers(known, before))}
    masks = [sum(bits[number] for number in each.numbers) for each in known]
    return _Search(known, masks).run(sum(bits[number] for number in before))


def _numbers(history: Iterable[Operation], before: Collection[int]) -> list[int]:
    return sorted({*before, *(number for each in history for number in each.numbers)})


class _Search:
    """Goes through orders, each from its first operation on."""

    def __init__(self, history: Sequence[Operation], masks: Sequence[int]) -> None:
        self._history = history
        self._masks = masks
        self._must = sum(1 << i for i, o in enumerate(history) if not math.isinf(o.ended_s))

    def run(self, rows: int) -> str:
        """Whether some order explains all; else the first that the longest one does not."""
        stack, seen, best = [(0, rows)], {(0, rows)}, 0
        while stack:
            done, rows = stack.pop()
            done = self._with_reads(done, rows)
            if done & self._must == self._must:
                return ""
            if (done & self._must).bit_count() > (best & self._must).bit_count():
                best = done
            for i in self._next(done):
                operation, mask = self._history[i], self._masks[i]
                if operation.kind == "read":
                    continue  # it does not see these rows: something has to happen before
                after = rows | mask if operation.kind == "add" else rows & ~mask
                state = (done | 1 << i, after)
                if state not in seen:
                    seen.add(state)
                    stack.append(state)
        left = min(
            (o for i, o in enumerate(self._history) if self._must & ~best & 1 << i),
            key=lambda operation: operation.ended_s,
        )
        count = (best & self._must).bit_count()
        return f"{count} of {self._must.bit_count()} operations can be ordered, but not: {left}"

    def _next(self, done: int) -> list[int]:
        """What may be next: what began before all that is left has ended."""
        left = [i for i in range(len(self._history)) if not done >> i & 1]
        first_end_s = min(self._history[i].ended_s for i in left)
        return [i for i in left if self._history[i].began_s <= first_end_s]

    def _with_reads(self, done: int, rows: int) -> int:
        """With the reads that may be next and see these rows: they are in nobody's way."""
        while True:
            left = ~done & ((1 << len(self._history)) - 1)
            if not left:
                return done
            seen = [
                i
                for i in self._next(done)
                if self._history[i].kind == "read" and self._masks[i] == rows
            ]
            if not seen:
                return done
            for i in seen:
                done |= 1 << i
