"""A machine's periodic timer: one chain of ticks, and what the clock says of the time between.

Timers are messages, and a driver or a second host may deliver one twice: each would begin a chain
of its own. So ticks are counted, and one that is not awaited is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from machine_kit.addresses import Address
from machine_kit.machine import Envelope, Message, Tick


class Ticks:
    """The ticks of one machine.

    Attributes:
        interval_s: Between two ticks.
        stall_s: For how long the process did not run before the last tick, as when it was stopped:
            no time in which others were silent. 0 for less than an interval.
    """

    def __init__(
        self, to: Address, interval_s: float, make: Callable[[int], Message] = Tick
    ) -> None:
        """Expect the tick of generation 0, which a driver sends, or the one that `begin` makes.

        `to` is the machine's own address; `make` makes the message of a generation.
        """
        self.interval_s = interval_s
        self.stall_s = 0.0
        self._to = to
        self._make = make
        self._generation = 0
        self._last_at: float | None = None

    def begin(self, now: float) -> Envelope:
        """Begin anew: ticks that are on their way are void."""
        self._last_at = now
        return self.next()

    def is_due(self, generation: int, now: float) -> bool:
        """Whether a tick that has come is the one that is awaited; then `next` is to be sent."""
        if generation != self._generation:
            return False
        late_s = 0.0 if self._last_at is None else now - self._last_at - self.interval_s
        self.stall_s = late_s if late_s > self.interval_s else 0.0
        self._last_at = now
        return True

    def next(self) -> Envelope:
        """The next tick."""
        self._generation += 1
        return Envelope(self._to, self._make(self._generation), self.interval_s)
