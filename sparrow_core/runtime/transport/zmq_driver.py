"""The ZeroMQ driver: the in-memory driver plus an inbox and one socket per peer process.

A process binds one PULL socket and connects a PUSH socket to each peer when it first has a message
for it. All messages of one turn of the loop to a peer travel in one frame: msgpack [protocol
version, sender's endpoint, [[machine, message], ...]]. What may wait rides with the next frame, and
a node's first reservation for a job is not sent if it is cancelled in the same turn: each frame
wakes a process. Sockets reconnect unnoticed, so there is no handshake: every frame has the version.
A frame of another version is not decoded, and its sender is told ours by a frame without messages.

Messages to full or dead peers and malformed frames are dropped and counted; machines tolerate loss.
That a peer's process has ended is noticed where somebody wants to know: its host refuses
connections, which a busy or suspended process and a cut network do not. Bounds: frames by
`_HIGH_WATER_MARK` per peer and direction, peers by `_PEERS_MAX`. The loop also watches file
descriptors, such as a parent's pipe.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from machine_kit.addresses import Address
from machine_kit.endpoint import Endpoint, Socket
from machine_kit.errors import TransportError
from machine_kit.keys import Keys
from machine_kit.local_driver import LocalDriver
from machine_kit.machine import Machine, Message
from machine_kit.refusal import refuses
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.messages import PROTOCOL_VERSION, CancelReservations, Reserve

_HIGH_WATER_MARK = 10_000  # frames, for each peer
_PEERS_MAX = 2_000
_FRAMES_PER_TURN = 1_000
_WAIT_S = 0.01  # of messages that may
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_PEER = {
    zmq.LINGER: 0,
    zmq.RECONNECT_IVL: 5,
    zmq.RECONNECT_IVL_MAX: 100,
}
# After a cut of the network TCP repeats what it had sent ever more rarely: a new connection is
# faster. Handshakes that are not answered are begun anew for the same reason.
_OVER_TCP = {
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 5_000,
    zmq.CONNECT_TIMEOUT: 2_000,
}
_REFUSED_MIN = 3  # attempts to connect that fail, after which it is looked why
_REFUSED_WITHIN_S = 1.0
_REFUSAL_S = 0.1


class _Frame(msgspec.Struct, array_like=True):
    """A frame; its first two fields are the same in every protocol version."""

    version: int
    sender: str
    messages: msgspec.Raw


@dataclass(slots=True)
class _Link:
    """The connection to a peer; `failures` are the last attempts to connect that failed."""

    endpoint: str
    peer: Socket
    monitor: Socket | None = None
    failures: deque[float] = field(default_factory=lambda: deque(maxlen=_REFUSED_MIN))


class ZmqDriver(LocalDriver):
    """Delivers between the machines that it hosts and those of other processes."""

    def __init__(
        self,
        endpoint: str,
        keys: Keys | None = None,
        bind: str | None = None,
        *,
        on_incompatible: Callable[[str, int], None] | None = None,
        on_gone: Callable[[str], None] | None = None,
    ) -> None:
        """Bind the inbox.

        Args:
            endpoint: Where peers reach this process: `ipc://path`, or `tcp://host:port` (port "*":
                any free one). `self.endpoint` is this, over tcp with the public key.
            keys: Needed for tcp, to listen as well as to connect.
            bind: Where to listen over tcp if it is not `endpoint`, e.g. `tcp://0.0.0.0:7077`.
            on_incompatible: Called in the loop, once per peer of another protocol version, with
                its endpoint and version.
            on_gone: Called in the loop with the endpoint of a peer whose process has ended.

        Raises:
            SparrowError: The endpoint cannot be bound, has no keys though it is of tcp, or is a
                socket file in a folder open to others.
        """
        super().__init__(endpoint)
        self.malformed = 0
        self.overflowed = 0
        self.incompatible: dict[str, int] = {}
        self._on_incompatible = on_incompatible
        self._on_gone = on_gone
        self._sockets = Endpoint(keys, sockets_max=3 * _PEERS_MAX + 16)  # two to monitor each
        try:
            self._inbox, self.endpoint = self._sockets.listen(
                zmq.PULL, endpoint, self._receive, bind=bind, options={zmq.RCVHWM: _HIGH_WATER_MARK}
            )
        except TransportError as error:
            self._sockets.close()
            raise SparrowError(str(error)) from error
        self.watch, self.unwatch = self._sockets.watch, self._sockets.unwatch
        self._peers: OrderedDict[str, _Link] = OrderedDict()
        self._outbox: dict[str, list[tuple[str, Message]]] = {}
        self._waiting: dict[str, list[tuple[str, Message]]] = {}  # for a frame to ride with
        self._waiting_until = math.inf
        self._encoder = msgspec.msgpack.Encoder()
        self._frames = msgspec.msgpack.Decoder(_Frame)
        self._bodies = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}

    def host(self, name: str, machine: Machine[Any]) -> Address:
        self._decoders[name] = msgspec.msgpack.Decoder(machine.inputs)
        return super().host(name, machine)

    def forget(self, endpoint: str) -> None:
        """Drop the socket of a dead peer, and all messages to it."""
        self._outbox.pop(endpoint, None)
        self._waiting.pop(endpoint, None)
        self._close_peer(endpoint)

    def _close_peer(self, endpoint: str) -> None:
        link = self._peers.pop(endpoint, None)
        if link is not None:
            self._sockets.drop(link.peer, link.monitor)

    def counters(self) -> dict[str, int]:
        return {
            **super().counters(),
            "frames_malformed": self.malformed,
            "messages_overflowed": self.overflowed,
            "connections_refused": self._sockets.refused,
            "peers_incompatible": len(self.incompatible),
        }

    def _wake(self) -> None:
        self._sockets.wake()

    def _wait(self, timeout_s: float) -> None:
        self._sockets.wait(timeout_s)

    def _on_link(self, link: _Link, events: list[int]) -> None:
        """Something happened to the connection to a peer."""
        for event in events:
            if event == zmq.Event.CONNECTED:
                link.failures.clear()
            else:
                link.failures.append(time.monotonic())
        if len(link.failures) < _REFUSED_MIN or self._on_gone is None:
            return
        # Where the network is cut, connections are not refused, but time out.
        recent = link.failures[0] > time.monotonic() - _REFUSED_WITHIN_S
        if recent and refuses(link.endpoint, _REFUSAL_S):
            self.forget(link.endpoint)
            self._on_gone(link.endpoint)

    def _receive(self, inbox: Socket) -> None:
        for _ in range(_FRAMES_PER_TURN):
            try:
                body = inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._accept(body)
            # To be told that there is none takes three times as long as to ask.
            if not int(inbox.get(zmq.EVENTS)) & zmq.POLLIN:
                return

    def _accept(self, body: bytes) -> None:
        """Decode a frame; a malformed message does not affect the others in it."""
        try:
            frame = self._frames.decode(body)
            if frame.version != PROTOCOL_VERSION:
                self._refuse(frame)
                return
            messages = self._bodies.decode(frame.messages)
        except _MALFORMED:
            self.malformed += 1
            return
        if self._on_gone is not None and frame.sender not in self._peers:
            self._outbox.setdefault(frame.sender, [])  # connect, to notice its end
        for name, raw in messages:
            decoder = self._decoders.get(name)
            if decoder is None:
                self.undeliverable += 1
                continue
            try:
                self._local.append((name, decoder.decode(raw)))
            except _MALFORMED:
                self.malformed += 1

    def _refuse(self, frame: _Frame) -> None:
        """Tell a peer of another version ours, and call back once per peer."""
        if frame.messages != b"\x90":  # else it is itself such an answer
            self._outbox.setdefault(frame.sender, [])
        if frame.sender not in self.incompatible and len(self.incompatible) < _PEERS_MAX:
            self.incompatible[frame.sender] = frame.version
            if self._on_incompatible is not None:
                self._on_incompatible(frame.sender, frame.version)

    def _timeout_s(self) -> float:
        return min(super()._timeout_s(), max(0.0, self._waiting_until - time.monotonic()))

    def _queue_remote(self, endpoint: str, name: str, msg: Message) -> None:
        messages = self._outbox.get(endpoint)
        if messages is None and msg.may_wait:
            self._waiting.setdefault(endpoint, []).append((name, msg))
            self._waiting_until = min(self._waiting_until, time.monotonic() + _WAIT_S)
            return
        if messages is None:
            messages = self._outbox[endpoint] = self._waiting.pop(endpoint, [])
        elif type(msg) is CancelReservations:
            made = [
                other
                for to, other in messages
                if to == name and type(other) is Reserve and other.job_id == msg.job_id
            ]
            # If there were earlier ones, the node may have asked, and this answers it.
            if made and msg.count == sum(reserve.count for reserve in made):
                for reserve in made:
                    messages.remove((name, reserve))
                if not messages and endpoint in self._peers:
                    del self._outbox[endpoint]
                return
        messages.append((name, msg))

    def _send(self) -> None:
        if self._waiting_until < math.inf and (
            self._stopping or self._waiting_until <= time.monotonic()
        ):
            for endpoint, messages in self._waiting.items():
                self._outbox[endpoint] = messages + self._outbox.get(endpoint, [])
            self._waiting, self._waiting_until = {}, math.inf
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for endpoint, messages in outbox.items():
            frame = self._encoder.encode((PROTOCOL_VERSION, self.endpoint, messages))
            try:
                self._peer(endpoint).send(frame, zmq.NOBLOCK)
            except zmq.Again:
                self.overflowed += len(messages)
            except (zmq.ZMQError, TransportError, ValueError):  # a bad address, or no socket
                self.undeliverable += len(messages)

    def _peer(self, endpoint: str) -> Socket:
        link = self._peers.get(endpoint)
        if link is None:
            return self._connect(endpoint)
        self._peers.move_to_end(endpoint)
        return link.peer

    def _connect(self, endpoint: str) -> Socket:
        while len(self._peers) >= _PEERS_MAX:
            self._close_peer(next(iter(self._peers)))
        options = {**_PEER, zmq.SNDHWM: _HIGH_WATER_MARK}
        peer = self._sockets.connected(zmq.PUSH, endpoint, options, _OVER_TCP)
        link = self._peers[endpoint] = _Link(endpoint, peer)
        if self._on_gone is not None:
            events = zmq.Event.CONNECTED | zmq.Event.CONNECT_RETRIED
            link.monitor = self._sockets.monitor(
                peer, events, lambda events: self._on_link(link, events)
            )
        return peer

    def close(self) -> None:
        """Close all sockets and remove the socket file, after `run` has returned."""
        self._sockets.close()
