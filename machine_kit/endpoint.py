"""Where a process listens and what its loop waits for: the only place that makes ZeroMQ's sockets.

Over ipc, sockets are files in folders of mode 0700. Over tcp all is encrypted and both sides are
authenticated (CURVE): the server by the key in its address, clients by the allow-list, about which
ZeroMQ asks at inproc://zeromq.zap.01 (ZAP, RFC 27). What becomes of messages is the users' affair:
the ZeroMQ driver, the file service, the mailbox of a program, and the connections to services.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import zmq

from machine_kit.errors import InsecureTransport, TransportError
from machine_kit.keys import Keys, check_private, split_endpoint

Socket: TypeAlias = zmq.Socket[bytes]
Options: TypeAlias = Mapping[zmq.SocketOption, int]

_ADMISSION = "inproc://zeromq.zap.01"
_DOMAIN = b"machines"
_WAKES = 4096


class Sockets:
    """Makes sockets that connect; any thread may, if each is used by one at a time."""

    def __init__(self, keys: Keys | None = None, *, sockets_max: int = 4096) -> None:
        """Make none yet; without `keys`, they connect over ipc only."""
        self._keys = keys
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, sockets_max)

    def connected(
        self, kind: int, endpoint: str, options: Options, over_tcp: Options | None = None
    ) -> Socket:
        """A socket of a kind that connects to an endpoint.

        Args:
            kind: zmq.PUSH or the like.
            endpoint: Where its peer listens, over tcp with the peer's public key.
            options: Options of ZeroMQ.
            over_tcp: More of them for tcp.

        Raises:
            InsecureTransport: It is no such endpoint, or needs keys.
            TransportError: There are too many sockets, all are closed, or the address is none.
        """
        where, key = split_endpoint(endpoint)
        if key is not None and self._keys is None:
            raise InsecureTransport(f"{endpoint}: tcp needs keys")
        try:
            peer = self._context.socket(kind)
        except zmq.ZMQError as error:
            raise TransportError(f"cannot connect to {endpoint}: {error}") from error
        try:
            _set(peer, options)
            if key is not None and self._keys is not None:
                _set(peer, over_tcp or {})
                peer.setsockopt(zmq.CURVE_SERVERKEY, key)
                peer.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(self._keys.public))
                peer.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(self._keys.secret))
            peer.connect(where)
        except zmq.ZMQError as error:
            peer.close(0)
            raise TransportError(f"cannot connect to {endpoint}: {error}") from error
        return peer

    def close(self, linger_s: float = 0.0) -> None:
        """Close all sockets; what is not sent yet has `linger_s`."""
        self._context.destroy(linger=round(linger_s * 1000))


class Endpoint(Sockets):
    """Sockets that listen, and the wait for them; all but `wake` belongs to one thread.

    Attributes:
        refused: Connections of which the key was not allowed.
    """

    def __init__(self, keys: Keys | None = None, *, sockets_max: int = 4096) -> None:
        super().__init__(keys, sockets_max=sockets_max)
        self.refused = 0
        self._admission: Socket | None = None
        self._files: list[str] = []
        self._poller = zmq.Poller()
        self._watched: dict[Any, Callable[[], None]] = {}
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self.watch(self._wake_r, self._on_wake)

    def listen(
        self,
        kind: int,
        endpoint: str,
        on_readable: Callable[[Socket], None],
        *,
        bind: str | None = None,
        options: Options | None = None,
    ) -> tuple[Socket, str]:
        """Listen at an endpoint.

        Args:
            kind: zmq.PULL or the like.
            endpoint: `ipc://path`, or `tcp://host:port` (port "*": any free one).
            on_readable: Called with the socket while it has messages.
            bind: Where to listen over tcp if it is not `endpoint`, such as `tcp://0.0.0.0:7077`.
            options: Options of ZeroMQ.

        Returns:
            The socket, and the endpoint to tell peers: over tcp with the public key.

        Raises:
            InsecureTransport: tcp without keys, or a socket file in a folder open to others.
            TransportError: The endpoint cannot be bound.
        """
        inbox = self._context.socket(kind)
        inbox.setsockopt(zmq.LINGER, 0)
        _set(inbox, options or {})
        try:
            public = self._bind(inbox, endpoint, bind or endpoint)
        except (zmq.ZMQError, TransportError) as error:
            inbox.close(0)
            if isinstance(error, TransportError):
                raise
            raise TransportError(f"cannot listen at {endpoint}: {error}") from error
        self.watch(inbox, lambda: on_readable(inbox))
        return inbox, public

    def _bind(self, inbox: Socket, endpoint: str, bind: str) -> str:
        if endpoint.startswith("ipc://"):
            check_private(Path(endpoint.removeprefix("ipc://")))
            inbox.bind(endpoint)
            self._files.append(endpoint)
            return endpoint
        if self._keys is None:
            raise InsecureTransport(f"{endpoint}: tcp needs keys")
        if self._admission is None:  # before the first connection, which is authenticated there
            self._admission = self._context.socket(zmq.REP)
            self._admission.bind(_ADMISSION)
            self.watch(self._admission, self._admit)
        inbox.setsockopt(zmq.CURVE_SERVER, 1)
        inbox.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(self._keys.secret))
        inbox.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        inbox.bind(bind)
        if endpoint.endswith(":*"):
            endpoint = inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        return f"{endpoint}/{self._keys.public}"

    def _admit(self) -> None:
        assert self._admission is not None, "it is being asked"
        assert self._keys is not None, "there are some for tcp"
        version, request_id, *_, credentials = self._admission.recv_multipart()
        is_known = credentials.hex() in self._keys.allowed
        self.refused += not is_known
        status = (b"200", b"OK") if is_known else (b"400", b"not on the allow-list")
        self._admission.send_multipart([version, request_id, *status, b"", b""])

    def watch(self, source: Socket | int, on_readable: Callable[[], None]) -> None:
        """Call back in `wait` while a socket or a file can be read, or at its end."""
        self._watched[source] = on_readable
        self._poller.register(source, zmq.POLLIN)

    def unwatch(self, source: Socket | int) -> None:
        del self._watched[source]
        self._poller.unregister(source)

    def monitor(self, peer: Socket, events: int, on_events: Callable[[list[int]], None]) -> Socket:
        """Call back in `wait` with what happens to a connection; `drop` ends that.

        Returns:
            What `drop` needs.
        """
        monitor = peer.get_monitor_socket(events)
        self.watch(monitor, lambda: on_events(_events(monitor)))
        return monitor

    def drop(self, peer: Socket, monitor: Socket | None) -> None:
        """Close the socket to a peer, and what monitors it."""
        if monitor is not None:
            self.unwatch(monitor)
            peer.disable_monitor()
            monitor.close(0)
        peer.close()

    def wait(self, timeout_s: float) -> None:
        """Wait for something to happen, at most so long, and call back for all that has."""
        timeout_ms = None if timeout_s == math.inf else math.ceil(timeout_s * 1000)
        for ready, _ in self._poller.poll(timeout_ms):
            on_readable = self._watched.get(ready)
            if on_readable is not None:  # else one before it has dropped it
                on_readable()

    def wake(self) -> None:
        """Make `wait` return soon. Thread-safe."""
        with contextlib.suppress(OSError):  # full, so it wakes anyway; or closed
            os.write(self._wake_w, b"\0")

    def _on_wake(self) -> None:
        os.read(self._wake_r, _WAKES)

    def close(self, linger_s: float = 0.0) -> None:
        """Close all sockets, and remove their files; what is not sent yet has `linger_s`."""
        super().close(linger_s)
        wake_w, self._wake_w = self._wake_w, -1  # a late `wake` must not write to another file
        os.close(wake_w)
        os.close(self._wake_r)
        for endpoint in self._files:
            remove_socket(endpoint)


def _set(socket: Socket, options: Options) -> None:
    for option, value in options.items():
        socket.setsockopt(option, value)


def _events(monitor: Socket) -> list[int]:
    """What a socket's monitor tells: 16 bits, before 32 of a value, in the first frame of each."""
    # As `zmq.utils.monitor` says, which imports asyncio: an eighth of a node's time to start.
    numbers = []
    while monitor.poll(0):
        event, _ = struct.unpack("=hi", monitor.recv_multipart()[0])
        numbers.append(int(event))
    return numbers


def remove_socket(endpoint: str) -> None:
    """Remove the file of an ipc endpoint, if there is one."""
    if endpoint.startswith("ipc://"):
        Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
