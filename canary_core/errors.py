"""The exceptions of this package.

CanaryError
├── InvalidCall        a driver used `run` wrongly; raised in the driver, where it stands
├── TaskFailed         a function raised on a partition: stage, call, partition, traceback
├── DriverFailed       the driver itself raised: stage, traceback
├── ProgramDiverged    copies of the driver took different ways: stage, calls
├── WorkersLost        no worker came, or none is left
├── ControllerLost     a worker has not heard from the controller for too long
└── ProgramCancelled   the program was ended before its result
"""

from __future__ import annotations


class CanaryError(Exception):
    """Base of all errors of this package."""


class InvalidCall(CanaryError):  # noqa: N818 - a condition, not an error name
    """A call of `run` that no program can make: sizes that differ, a handle of another run."""


class TaskFailed(CanaryError):  # noqa: N818 - a condition, not an error name
    """A function raised on a partition; `__cause__` is what it raised, if that could be pickled.

    Attributes:
        stage: The stage's number, counted from 0 in the order of the driver's calls.
        call: The call of `run`, such as "map(step)".
        partition: The index of the partition.
        traceback: Of the exception, as text, where the function ran.
    """

    def __init__(
        self, message: str, *, stage: int, call: str, partition: int, traceback: str
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.call = call
        self.partition = partition
        self.traceback = traceback


class DriverFailed(CanaryError):  # noqa: N818 - a condition, not an error name
    """The driver raised; `__cause__` is what it raised, if that could be pickled.

    Attributes:
        stage: How many stages it had recorded.
        traceback: Of the exception, as text, where the driver's copy ran.
    """

    def __init__(self, message: str, *, stage: int, traceback: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.traceback = traceback


class ProgramDiverged(CanaryError):  # noqa: N818 - a condition, not an error name
    """Copies of the driver made different calls: it depends on more than its signals.

    Attributes:
        stage: The first stage that differs, as far as is known.
        calls: What the copies called there, by worker.
    """

    def __init__(self, message: str, *, stage: int, calls: dict[str, str]) -> None:
        super().__init__(message)
        self.stage = stage
        self.calls = calls


class WorkersLost(CanaryError):  # noqa: N818 - a condition, not an error name
    """No worker came in time, or all have died."""


class ControllerLost(CanaryError):  # noqa: N818 - a condition, not an error name
    """The controller has died and no other has taken its place in time."""


class ProgramCancelled(CanaryError):  # noqa: N818 - a condition, not an error name
    """The program was ended before it had a result."""
