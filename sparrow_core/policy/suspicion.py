"""How long a peer may be silent before it is suspected: what was usual so far decides.

An accrual failure detector (Hayashibara, Defago, Yared, Katayama, SRDS 2004) on the sampled
distribution of the intervals between signs of life (Satzger, Pietzowski, Trumler, Ungerer: *A new
adaptive accrual failure detector*, SAC 2007), not on a normal one: pauses of busy machines are rare
and long. A silence is unusual if it is longer, by a margin, than all but a few recent intervals.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_WINDOW = 1000  # intervals that are remembered
_OUTLIERS = 2  # of these are not yet usual: one long stall is no habit
_MARGIN = 1.5


class Suspicion:
    """The intervals between signs of life of one peer, which is asked for them regularly."""

    def __init__(self, least_s: float, most_s: float) -> None:
        """Nothing is known yet.

        Args:
            least_s: No silence shorter than this is suspicious, however regular the peer was.
            most_s: One that is longer than both always is, however irregular the peer was.
        """
        self._least_s = least_s
        self._most_s = most_s
        self._heard_at: float | None = None
        self._gaps: deque[float] = deque()
        self._sorted: list[float] = []

    def begin(self, now: float) -> None:
        """The peer is asked from now on: what was before is no silence."""
        self._heard_at = now

    def heard(self, now: float) -> None:
        """A sign of life."""
        if self._heard_at is not None:
            gap_s = max(0.0, now - self._heard_at)
            self._gaps.append(gap_s)
            insort(self._sorted, gap_s)
            if len(self._gaps) > _WINDOW:
                del self._sorted[bisect_left(self._sorted, self._gaps.popleft())]
        self._heard_at = now

    def forgive(self, stall_s: float, now: float) -> None:
        """This process did not run for so long, and heard nobody."""
        if self._heard_at is not None:
            self._heard_at = min(now, self._heard_at + stall_s)

    @property
    def limit_s(self) -> float:
        """The shortest silence that is suspicious now."""
        if len(self._sorted) <= _OUTLIERS:
            return self._least_s
        usual_s = _MARGIN * self._sorted[-1 - _OUTLIERS]
        return max(self._least_s, min(self._most_s, usual_s))

    def is_silent(self, now: float) -> bool:
        """Whether the peer is suspected."""
        return self._heard_at is not None and now - self._heard_at >= self.limit_s
