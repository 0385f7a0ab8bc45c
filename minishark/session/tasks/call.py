"""A call of a user's function, and how it is to run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from minishark.cluster.job_events import JobId
from minishark.errors import OptionError
from minishark.session.tasks.functions import Function
from minishark.worker.protocol import FileSlice, PythonOutcome


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How calls run.

    Attributes:
        prefers: nodes to run on; others only after a while, or if none of these is alive.
        retries: how often a call that raised is tried again; lost executors do not count.
        timeout_s: seconds after which a running call is given up; None for no limit.
        reuse: whether what calls return is kept, and calls that were made before are not repeated.
        group: of which map it is; calls of a group share slots with others as one. Empty for calls
            that are submitted alone: together, those of a session are one group.
    """

    prefers: tuple[str, ...] = ()
    retries: int = 0
    timeout_s: float | None = None
    reuse: bool = False
    group: str = ""

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise OptionError("retries can't be negative.")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise OptionError("timeout must be more than 0 seconds.")


class Receiver(Protocol):
    """Whoever is told how a call has ended, on the cluster's IO thread; must not block."""

    def returned(self, outcome: PythonOutcome, node: str) -> None:
        """The call has returned or raised."""

    def failed(self, error: Exception) -> None:
        """The call could not be run."""


class Nesting(Protocol):
    """The calls that a running call has submitted, which run in its stead while it waits."""

    def add(self, calls: Sequence[Call]) -> None:
        """These calls are submitted, or run again."""

    def help(self) -> None:
        """The running call waits for one of these."""

    def ended(self, call: Call) -> None:
        """A call has ended, or was cancelled."""

    def taken_back(self, call: Call) -> None:
        """A call that had been sent has come back."""


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """A call, and where it is.

    Attributes:
        keeps: what must not be freed before the call is over.
        name: says what is called with what; empty for a result that is not kept.
        task: its job and number there, once it is sent.
        sent_at: when it was.
        wait_s: seconds after which it may run on nodes that it does not prefer.
        ran_s: how long it ran, in seconds, once it has.
        is_pending: whether it waits in this process.
        is_over: whether it has ended, or was cancelled.
        losses: how often what it has returned was lost before it was read.
    """

    receiver: Receiver
    function: Function
    options: CallOptions
    payload: bytes
    files: tuple[FileSlice, ...]
    retries: int
    keeps: tuple[object, ...] = ()
    name: str = ""
    nested_in: Nesting | None = None
    task: tuple[Sent, int] | None = None
    sent_at: float = 0.0
    wait_s: float = math.inf
    ran_s: float | None = None
    is_pending: bool = True
    is_over: bool = False
    losses: int = 0


@dataclass(slots=True, eq=False)
class Sent:
    """A job under way, and its calls by task."""

    calls: dict[int, Call]
    job_id: JobId | None = None
