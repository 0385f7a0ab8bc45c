"""The contract of the state machines.

A machine changes only in `on_message`, and the envelopes that this returns are its only effect: no
clock, no randomness of its own, no socket, no thread. A timer is an envelope to oneself with a
delay. Drivers (ZeroMQ, in memory, simulator) deliver; they decide nothing. Between any two
machines messages may be lost, late or doubled, except between machines of one process, where they
arrive in order.
"""

from typing import Any, ClassVar, Protocol, TypeVar

from msgspec import Struct

from sparrow_core.protocol.ids import Address
from sparrow_core.protocol.messages import Message

In_contra = TypeVar("In_contra", contravariant=True)


class Envelope(Struct, frozen=True, gc=False):
    """A message on its way; a machine's only output."""

    to: Address
    msg: Message
    delay_s: float = 0.0


class Figure(Struct, frozen=True):
    """A number for an operator to see, about a part of a machine that `labels` name."""

    name: str
    labels: dict[str, str]
    value: float
    kind: str = "gauge"  # or "counter"


class Machine(Protocol[In_contra]):
    """A sans-IO state machine; `inputs` is the union that its messages are decoded with."""

    inputs: ClassVar[Any]

    def on_message(self, msg: In_contra, now: float) -> list[Envelope]:
        """Take one message at time `now` (seconds of any steady clock) and say what to send."""
        ...

    def gauges(self) -> dict[str, float]:
        """How much there is of what, for an operator to see."""
        ...

    def check(self) -> None:
        """Assert the invariants; for tests and simulation."""
        ...
