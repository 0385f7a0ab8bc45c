"""The ZeroMQ driver: the in-memory driver plus one inbox and a socket for each peer process.

A process binds one PULL socket and connects a PUSH to each peer when it first has something to
say. What one turn of the loop has for a peer travels in one frame: msgpack [sender's endpoint,
[[machine, message], ...]]. A full or dead peer loses messages, which machines survive; so does a
malformed frame (counted). The loop also watches file descriptors: a parent's pipe, children.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from sparrow_core.errors import SparrowError
from sparrow_core.ids import Address, endpoint_of, name_of
from sparrow_core.machine import Envelope, Machine
from sparrow_core.messages import Message
from sparrow_core.transport.local_driver import LocalDriver

_HIGH_WATER_MARK = 10_000  # frames, for each peer
_FRAMES_PER_TURN = 1_000
_RECONNECT_MS = 5
_RECONNECT_MAX_MS = 500
_Frame = tuple[str, list[tuple[str, msgspec.Raw]]]


class ZmqDriver(LocalDriver):
    """Delivers between the machines that it hosts and those of other processes."""

    def __init__(self, endpoint: str) -> None:
        """Bind the inbox at `endpoint` (ipc://path or tcp://host:port).

        Raises:
            SparrowError: The endpoint cannot be bound.
        """
        super().__init__(endpoint)
        self.malformed = 0
        self.overflowed = 0
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.LINGER, 0)
        self._inbox.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
        try:
            self._inbox.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise SparrowError(f"cannot listen at {endpoint}: {error}") from error
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(self._wake_r, zmq.POLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        self._peers: dict[str, zmq.Socket[bytes]] = {}
        self._outbox: dict[str, list[tuple[str, Message]]] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._frames = msgspec.msgpack.Decoder(_Frame)
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}

    def host(self, name: str, machine: Machine[Any]) -> Address:
        """Host a machine under a name; starts its periodic timer if it has one."""
        self._decoders[name] = msgspec.msgpack.Decoder(machine.inputs)
        return super().host(name, machine)

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call back in the loop while `fd` is readable (end of file counts).

        To be called before `run`, or from the loop.
        """
        self._watched[fd] = on_readable
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`."""
        del self._watched[fd]
        self._poller.unregister(fd)

    def forget(self, endpoint: str) -> None:
        """A peer is gone for good: drop its socket and what waits for it."""
        self._outbox.pop(endpoint, None)
        peer = self._peers.pop(endpoint, None)
        if peer is not None:
            peer.close()

    def _signal(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: the loop will wake anyway
            os.write(self._wake_w, b"\0")

    def _wait(self, timeout_s: float) -> None:
        timeout_ms = None if timeout_s == math.inf else math.ceil(timeout_s * 1000)
        for ready, _ in self._poller.poll(timeout_ms):
            if ready is self._inbox:
                self._receive()
            elif ready == self._wake_r:
                os.read(self._wake_r, 4096)
            elif ready in self._watched:
                self._watched[ready]()

    def _receive(self) -> None:
        for _ in range(_FRAMES_PER_TURN):
            try:
                body = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._accept(body)
            except msgspec.MsgspecError:
                self.malformed += 1

    def _accept(self, body: bytes) -> None:
        _, messages = self._frames.decode(body)
        for name, raw in messages:
            decoder = self._decoders.get(name)
            if decoder is None:
                self.undeliverable += 1
            else:
                self._local.append((name, decoder.decode(raw)))

    def _queue_remote(self, envelope: Envelope) -> None:
        messages = self._outbox.setdefault(endpoint_of(envelope.to), [])
        messages.append((name_of(envelope.to), envelope.msg))

    def _send(self) -> None:
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for endpoint, messages in outbox.items():
            peer = self._peers.get(endpoint) or self._connect(endpoint)
            try:
                peer.send(self._encoder.encode((self.endpoint, messages)), zmq.NOBLOCK)
            except zmq.Again:
                self.overflowed += len(messages)

    def _connect(self, endpoint: str) -> zmq.Socket[bytes]:
        peer = self._peers[endpoint] = self._context.socket(zmq.PUSH)
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
        peer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        peer.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        peer.connect(endpoint)
        return peer

    def close(self) -> None:
        """Close all sockets and remove the socket file; after `run` has returned."""
        self._context.destroy(linger=0)
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._wake_w = -1  # a late `post` must not write to what gets this number next
        remove_socket(self.endpoint)


def remove_socket(endpoint: str) -> None:
    """Remove the file of an ipc endpoint, if there is one."""
    if endpoint.startswith("ipc://"):
        Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
