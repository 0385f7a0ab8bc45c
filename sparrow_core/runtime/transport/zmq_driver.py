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

import contextlib
import math
import os
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from machine_kit.addresses import Address
from machine_kit.local_driver import LocalDriver
from machine_kit.machine import Machine, Message
from sparrow_core.protocol.errors import InsecureTransport, SparrowError
from sparrow_core.protocol.messages import PROTOCOL_VERSION, CancelReservations, Reserve
from sparrow_core.runtime.transport.keys import (
    Keys,
    answer_admission,
    check_private,
    secure_client,
    secure_server,
    split_endpoint,
)
from sparrow_core.runtime.transport.refusal import refuses

_HIGH_WATER_MARK = 10_000  # frames, for each peer
_PEERS_MAX = 2_000
_FRAMES_PER_TURN = 1_000
_WAIT_S = 0.01  # of messages that may
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_RECONNECT_MS = 5
_RECONNECT_MAX_MS = 100
# After a cut of the network TCP repeats what it had sent ever more rarely: a new connection is
# faster. Handshakes that are not answered are begun anew for the same reason.
_HEARTBEAT_MS = 2_000
_SILENCE_MS = 5_000
_HANDSHAKE_MS = 2_000
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
    peer: zmq.Socket[bytes]
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
            InsecureTransport: tcp without keys, or a socket file in a folder open to others.
            SparrowError: The endpoint cannot be bound.
        """
        super().__init__(endpoint)
        self.malformed = 0
        self.overflowed = 0
        self.refused = 0
        self.incompatible: dict[str, int] = {}
        self._on_incompatible = on_incompatible
        self._on_gone = on_gone
        self._monitors: dict[zmq.Socket[bytes], _Link] = {}
        self._keys = keys
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 3 * _PEERS_MAX + 16)  # with two to monitor each
        self._zap: zmq.Socket[bytes] | None = None
        self._inbox = self._context.socket(zmq.PULL)
        self._poller = zmq.Poller()
        try:
            self.endpoint = self._bind(endpoint, bind or endpoint)
        except InsecureTransport:
            self._release()
            raise
        except zmq.ZMQError as error:
            self._release()
            raise SparrowError(f"cannot listen at {endpoint}: {error}") from error
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(self._wake_r, zmq.POLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        self._peers: OrderedDict[str, zmq.Socket[bytes]] = OrderedDict()
        self._outbox: dict[str, list[tuple[str, Message]]] = {}
        self._waiting: dict[str, list[tuple[str, Message]]] = {}  # for a frame to ride with
        self._waiting_until = math.inf
        self._encoder = msgspec.msgpack.Encoder()
        self._frames = msgspec.msgpack.Decoder(_Frame)
        self._bodies = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}

    def _bind(self, endpoint: str, bind: str) -> str:
        """Bind the inbox; returns the endpoint to tell peers."""
        self._inbox.setsockopt(zmq.LINGER, 0)
        self._inbox.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
        if endpoint.startswith("ipc://"):
            check_private(Path(endpoint.removeprefix("ipc://")))
            self._inbox.bind(endpoint)
            return endpoint
        if self._keys is None:
            raise InsecureTransport(f"{endpoint}: tcp needs keys (see `sparrow keygen`)")
        # Must be bound before the first connection, which is authenticated here.
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")
        self._poller.register(self._zap, zmq.POLLIN)
        secure_server(self._inbox, self._keys, b"sparrow")
        self._inbox.bind(bind)
        if endpoint.endswith(":*"):
            endpoint = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        return f"{endpoint}/{self._keys.public}"

    def host(self, name: str, machine: Machine[Any]) -> Address:
        self._decoders[name] = msgspec.msgpack.Decoder(machine.inputs)
        return super().host(name, machine)

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call back in the loop while `fd` is readable, or at end of file.

        Must be called before `run` or from the loop.
        """
        self._watched[fd] = on_readable
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        del self._watched[fd]
        self._poller.unregister(fd)

    def forget(self, endpoint: str) -> None:
        """Drop the socket of a dead peer, and all messages to it."""
        self._outbox.pop(endpoint, None)
        self._waiting.pop(endpoint, None)
        peer = self._peers.pop(endpoint, None)
        if peer is not None:
            self._close_peer(peer)

    def _close_peer(self, peer: zmq.Socket[bytes]) -> None:
        for monitor in [m for m, link in self._monitors.items() if link.peer is peer]:
            del self._monitors[monitor]
            self._poller.unregister(monitor)
            peer.disable_monitor()
            monitor.close(0)
        peer.close()

    def counters(self) -> dict[str, int]:
        return {
            **super().counters(),
            "frames_malformed": self.malformed,
            "messages_overflowed": self.overflowed,
            "connections_refused": self.refused,
            "peers_incompatible": len(self.incompatible),
        }

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full, so the loop wakes anyway; or closed
            os.write(self._wake_w, b"\0")

    def _wait(self, timeout_s: float) -> None:
        timeout_ms = None if timeout_s == math.inf else math.ceil(timeout_s * 1000)
        for ready, _ in self._poller.poll(timeout_ms):
            if ready is self._inbox:
                self._receive()
            elif ready == self._wake_r:
                os.read(self._wake_r, 4096)
            elif ready is self._zap:
                self._admit(self._zap.recv_multipart())
            elif ready in self._watched:
                self._watched[ready]()
            elif ready in self._monitors:
                self._on_link(ready, self._monitors[ready])

    def _on_link(self, monitor: zmq.Socket[bytes], link: _Link) -> None:
        """Something happened to the connection to a peer."""
        while monitor.poll(0):
            if _event_of(monitor) == zmq.Event.CONNECTED:
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

    def _admit(self, request: list[bytes]) -> None:
        assert self._keys is not None
        assert self._zap is not None
        answer = answer_admission(request, self._keys)
        self.refused += answer[2] != b"200"
        self._zap.send_multipart(answer)

    def _receive(self) -> None:
        for _ in range(_FRAMES_PER_TURN):
            try:
                body = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._accept(body)
            # To be told that there is none takes three times as long as to ask.
            if not int(self._inbox.get(zmq.EVENTS)) & zmq.POLLIN:
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
            except (zmq.ZMQError, InsecureTransport, ValueError):  # a bad address, or no socket
                self.undeliverable += len(messages)

    def _peer(self, endpoint: str) -> zmq.Socket[bytes]:
        peer = self._peers.get(endpoint)
        if peer is None:
            return self._connect(endpoint)
        self._peers.move_to_end(endpoint)
        return peer

    def _connect(self, endpoint: str) -> zmq.Socket[bytes]:
        where, key = split_endpoint(endpoint)
        if key is not None and self._keys is None:
            raise InsecureTransport(f"{endpoint}: tcp needs keys")
        while len(self._peers) >= _PEERS_MAX:
            self._close_peer(self._peers.popitem(last=False)[1])
        peer = self._context.socket(zmq.PUSH)
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
        peer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        peer.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        if key is not None and self._keys is not None:
            peer.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            peer.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
            peer.setsockopt(zmq.CONNECT_TIMEOUT, _HANDSHAKE_MS)
            secure_client(peer, key, self._keys)
        if self._on_gone is not None:
            events = zmq.Event.CONNECTED | zmq.Event.CONNECT_RETRIED
            monitor = peer.get_monitor_socket(events)
            self._monitors[monitor] = _Link(endpoint, peer)
            self._poller.register(monitor, zmq.POLLIN)
        try:
            peer.connect(where)
        except zmq.ZMQError:
            self._close_peer(peer)
            raise
        self._peers[endpoint] = peer
        return peer

    def close(self) -> None:
        """Close all sockets and remove the socket file, after `run` has returned."""
        self._release()
        remove_socket(self.endpoint)

    def _release(self) -> None:
        self._context.destroy(linger=0)
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._wake_w = -1  # a late `post` must not write to a reused descriptor


def _event_of(monitor: zmq.Socket[bytes]) -> int:
    """The next event of a socket's monitor: 16 bits, before 32 of a value, in the first frame."""
    # As `zmq.utils.monitor` says, which imports asyncio: an eighth of a node's time to start.
    event, _ = struct.unpack("=hi", monitor.recv_multipart()[0])
    return int(event)


def remove_socket(endpoint: str) -> None:
    """Remove the file of an ipc endpoint, if there is one."""
    if endpoint.startswith("ipc://"):
        Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
