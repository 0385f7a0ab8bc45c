"""The contract of the sans-IO state machines.

A machine's state changes only in `on_message`, and the returned envelopes are its only effect: no
clock, no random numbers of its own, no socket, no thread. A timer is an envelope to itself with a
delay. Drivers (ZeroMQ, in-memory, simulator) deliver messages and make no decision. Messages
between processes may be lost, delayed, duplicated or reordered; within a process they arrive once
and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from machine_kit.addresses import Address

In_contra = TypeVar("In_contra", contravariant=True)


class Message(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of all messages."""

    @property
    def may_wait(self) -> bool:
        """Whether it may wait a little for another message to the same process."""
        return False


class Tick(Message, frozen=True):
    """The periodic timer of a machine; a driver starts it with generation 0."""

    generation: int


class Envelope(Struct, frozen=True, gc=False):
    """A message to be delivered after `delay_s`; a machine's only output."""

    to: Address
    msg: Message
    delay_s: float = 0.0


class Figure(Struct, frozen=True):
    """A metric of a part of a machine, which `labels` identify."""

    name: str
    labels: dict[str, str]
    value: float
    kind: str = "gauge"  # or "counter"


class Machine(Protocol[In_contra]):
    """A sans-IO state machine; `inputs` is the union of the messages that it takes.

    Small helpers of drivers, which have no invariants of their own, inherit from it.
    """

    inputs: ClassVar[Any]

    def on_message(self, msg: In_contra, now: float) -> list[Envelope]:
        """Take a message at time `now` (seconds of a monotonic clock); returns what to send."""

    def gauges(self) -> dict[str, float]:
        """Sizes of internal tables, by name, for metrics; none by default."""
        return {}

    def check(self) -> None:
        """Assert the invariants, if there are any; for tests and simulation."""
        return  # with no statement, a type checker would take it for abstract


Tap: TypeAlias = Callable[[Address, Message, Sequence[Envelope], float], None]
"""Called with each message that a machine has taken, its answers, and when that was."""
