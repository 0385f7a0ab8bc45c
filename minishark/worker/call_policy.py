"""What is done about calls of a user's function that fail, or end the process that they run in.

    call ──► returns ──────────────────────────────────────────► its rows
      ▲  └─► raises, or takes too long ─► retries left? ─► waits ─┐
      │                                        │ none             │
      └────────────────────────────────────────┼──────────────────┘
                                               └─► on_error: raised, or `Failed`: set aside

Time and chance are arguments: nothing here waits, calls or writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from minishark.worker.functions import FunctionFailedError

BACKOFF_MAX_S = 60.0
"""No wait before another call is longer."""

_DEATHS_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """What is done about calls that fail.

    Attributes:
        on_error: "raise" ends the job, "null" gives NULLs, "quarantine" sets the rows aside.
        retries: how many times a call is repeated before it counts as failed.
        backoff_s: how long to wait before it is repeated, twice as long each time.
        timeout_s: how long a call may take; None for any time.
        concurrency: how many calls of an async function run at a time in a task.
    """

    on_error: str = "raise"
    retries: int = 0
    backoff_s: float = 0.1
    timeout_s: float | None = None
    concurrency: int = 1

    @property
    def raises(self) -> bool:
        """Whether a call that fails ends the job."""
        return self.on_error == "raise"

    def delay_s(self, failures: int, chance: float) -> float | None:
        """How long to wait before a call is repeated; None if it is not.

        Args:
            failures: how many times it has failed.
            chance: from 0 to 1: calls that failed together are not to be repeated together.
        """
        if failures > self.retries:
            return None
        # The exponent has a bound of its own: floats have.
        delay_s = min(BACKOFF_MAX_S, self.backoff_s * 2.0 ** min(failures - 1, 32))
        return delay_s * (1.0 + chance) / 2.0


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that failed for good."""

    kind: str  # the type of the exception
    message: str
    attempts: int  # how many times it was called

    @classmethod
    def of(cls, error: Exception, attempts: int) -> Failed:
        """The last exception of a call."""
        if isinstance(error, FunctionFailedError):  # what was returned is not what was declared
            return cls("minishark.errors.FunctionError", str(error), attempts)
        kind = type(error)
        is_plain = kind.__module__ in ("builtins", "__main__")
        name = kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"
        text = str(error).encode("utf-8", "backslashreplace").decode()
        return cls(name, text, attempts)


@dataclass(frozen=True, slots=True)
class InFlight:
    """The calls that ran in a process that died: numbers from `first` to below `end`."""

    first: int
    end: int
    digest: bytes  # of the rows around the first


class Guilt(Enum):
    """Whether a call has ended the processes that died."""

    NONE = "none"
    SUSPECTED = "suspected"
    """One died while it ran, perhaps beside others: it had better run alone."""
    GUILTY = "guilty"
    """Two died while it ran, once alone."""


def guilt(number: int, digest: bytes, deaths: Sequence[InFlight]) -> Guilt:
    """Whether call `number`, of rows with a digest, has ended the processes that died."""
    there = [death for death in deaths if death.first <= number < death.end]
    if not there:
        return Guilt.NONE
    alone = any(death.end - death.first == 1 and death.digest == digest for death in there)
    return Guilt.GUILTY if alone and len(there) >= _DEATHS_MAX else Guilt.SUSPECTED


KILLED = Failed(
    "minishark.errors.TasksLostError",
    f"The executor died {_DEATHS_MAX} times while this ran.",
    _DEATHS_MAX,
)
"""What is said of a call that has ended its processes."""
