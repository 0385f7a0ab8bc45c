"""The loop of a process of a program: delivers packets between its machines and other processes.

In each turn it takes what the sockets bring, then what its machines have sent themselves in the
last turn. A worker that always has a task to run thus hears of messages after each batch of tasks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from canary_core.protocol.messages import Packet
from canary_core.runtime.mailbox import Frames, Mailbox, route_of
from machine_kit.addresses import Address, address, endpoint_of
from machine_kit.errors import TransportError
from machine_kit.local_driver import LocalDriver
from machine_kit.machine import Envelope

_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(tuple[str, Packet]).decode
# Who is at both ends, how often the link began anew, and the epoch: between workers, links (and
# with them the numbers of packets) begin anew with each epoch.
_Link = tuple[Address, int, int, int, int]
_SUSPENDED_S = 4.0  # without a turn, though timers come many times a second
_AFTERWARDS_S = 10.0
_LOOK_AGAIN_S = 1.0
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class PacketLoop(LocalDriver):
    """Delivers between the machines that it hosts and those of other processes."""

    def __init__(
        self,
        mailbox: Mailbox,
        on_lost: Callable[[str], None] = lambda _: None,
        waits_for: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Make a loop.

        Args:
            mailbox: To and from which it delivers.
            on_lost: Told the endpoint of a process that has died, or has been silent for seconds.
            waits_for: Whether one that is merely suspended is to be waited for.
        """
        super().__init__(mailbox.route.endpoint)
        self.malformed = 0
        self._mailbox = mailbox
        self._on_lost = on_lost
        self._waits_for = waits_for
        self._awaited: dict[str, float] = {}  # suspended processes, and when to look again
        self._sent: dict[_Link, int] = {}  # the last number, by link
        self._waited_at = time.monotonic()
        self._resumed_at = -math.inf

    def _wake(self) -> None:
        self._mailbox.wake()

    def _wait(self, timeout_s: float) -> None:
        now = time.monotonic()
        if now - self._waited_at > _SUSPENDED_S:
            self._resumed_at = now
        self._waited_at = now
        for frames in self._mailbox.receive(timeout_s):
            self._accept(frames)
        for route in self._mailbox.lost():
            self._sent = {
                k: n for k, n in self._sent.items() if endpoint_of(k[0]) != route.endpoint
            }
            self._lose(route.endpoint)
        for endpoint in [endpoint for endpoint, due in self._awaited.items() if due <= now]:
            self._lose(endpoint)

    def _lose(self, endpoint: str) -> None:
        """A connection is broken: tell so, or look again until a packet comes or it has ended."""
        self._awaited.pop(endpoint, None)
        if self._waits_for(endpoint) and self._mailbox.is_listening(route_of(endpoint)):
            self._awaited[endpoint] = time.monotonic() + _LOOK_AGAIN_S
        else:
            self._on_lost(endpoint)

    @property
    def was_suspended(self) -> bool:
        """Whether this process was, a moment ago: connections break then though nobody died."""
        return time.monotonic() - self._resumed_at < _AFTERWARDS_S

    def _accept(self, frames: Frames) -> None:
        try:
            name, packet = decode(frames[0])
        except _MALFORMED:
            self.malformed += 1
            return
        if len(frames) > 1:
            structs.force_setattr(packet, "frames", tuple(frames[1:]))  # nobody has seen it yet
        if self._awaited:
            self._awaited.pop(endpoint_of(packet.sender), None)
        self._local.append((name, packet))

    def _route(self, envelope: Envelope) -> None:
        if not envelope.delay_s and endpoint_of(envelope.to) == self.endpoint:
            self._posted.append(envelope)  # for the next turn, after what the sockets bring
        else:
            super()._route(envelope)

    def _take_posted(self) -> None:
        for _ in range(len(self._posted)):
            super()._route(self._posted.popleft())

    def _queue_remote(self, endpoint: str, name: str, msg: Any) -> None:
        packet: Packet = self._unsent(address(endpoint, name), msg)
        header = _encode((name, structs.replace(packet, frames=()) if packet.frames else packet))
        try:
            self._mailbox.send(route_of(endpoint), header, packet.frames)
        except (TransportError, ValueError):  # no route from here: as if it were lost
            self.undeliverable += 1

    def _unsent(self, to: Address, packet: Packet) -> Packet:
        """The packet, or its acknowledgement alone if it was sent before.

        A machine repeats what is not acknowledged, for instance while its peer is in a long task.
        But sockets lose nothing while their connection lives.
        """
        link = (to, packet.born, packet.to_born, packet.session, packet.epoch)
        if packet.seq > self._sent.get(link, 0):
            self._sent[link] = packet.seq
            return packet
        return structs.replace(packet, seq=0, bodies=(), frames=())

    def close(self, linger_s: float = 0.0) -> None:
        """Close the sockets, after `run` has returned."""
        self._mailbox.close(linger_s)
