"""Requests to the file services of nodes and sessions: pooled sockets, and waits with a timeout."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import zmq

from machine_kit.endpoint import Socket, Sockets
from machine_kit.errors import TransportError
from machine_kit.keys import Keys
from machine_kit.refusal import refuses
from minishark.cluster.wire import Reply, Request, decode_reply, encode_message
from minishark.errors import ClusterError

_IDLE_MAX = 8  # sockets kept for each service
_IDLE_S = 60.0  # and for how long: one to a node that has left would try to connect for ever
_STEP_MS = 100
_DOUBT_S = 0.15  # without an answer, after which it is looked whether the process has ended
_REFUSAL_S = 0.1
_CLOSE_S = 5.0
# Not less silence: while a chunk is on its way over a slow link, no answer can come.
_PEER = {zmq.LINGER: 0, zmq.HEARTBEAT_IVL: 2_000, zmq.HEARTBEAT_TIMEOUT: 5_000}
_OVER_TCP = {zmq.CONNECT_TIMEOUT: 2_000}


class NoAnswerError(Exception):
    """A service did not answer in time."""


class Connections:
    """A pool of sockets to services, for use by any thread.

    A socket has one request at a time. After a timeout it is closed, so that a late reply can't be
    taken for the reply to the next request.
    """

    def __init__(self, keys: Keys | None = None) -> None:
        """Create an empty pool; without keys, services are reached over ipc only."""
        self.interrupted = threading.Event()
        self._sockets = Sockets(keys)
        self._lock = threading.Condition()  # guards the following
        self._idle: dict[str, list[tuple[Socket, float]]] = {}  # each with since when
        self._looked_s = 0.0  # when old ones among them were looked for
        self._in_use = 0
        self._closed = False

    @contextlib.contextmanager
    def socket(self, service: str) -> Iterator[Socket]:
        """A socket to a service; returned to the pool unless the block raises."""
        acquired = self._acquire(service)
        usable = False
        try:
            yield acquired
            usable = True
        except zmq.ZMQError as error:  # it is being closed
            raise ClusterError(f"Can't reach {service}: {error}") from error
        finally:
            self._release(service, acquired, usable=usable)

    def _acquire(self, service: str) -> Socket:
        with self._lock:
            if self._closed:
                raise ClusterError("The connection to the cluster is closed; connect again.")
            idle = self._idle.get(service)
            acquired = idle.pop()[0] if idle else self._connected(service)
            self._in_use += 1
            return acquired

    def _release(self, service: str, socket: Socket, *, usable: bool) -> None:
        with self._lock:
            idle = self._idle.setdefault(service, [])
            if usable and not self._closed and len(idle) < _IDLE_MAX:
                idle.append((socket, time.monotonic()))
            else:
                socket.close(0)
            self._in_use -= 1
            self._lock.notify_all()
            self._close_old(time.monotonic())

    def _close_old(self, now: float) -> None:
        """Close sockets that nobody has needed for long. The lock is held."""
        if self._closed or now < self._looked_s + _IDLE_S / 2:
            return
        self._looked_s = now
        for service, idle in list(self._idle.items()):
            for socket, since in idle:
                if now > since + _IDLE_S:
                    socket.close(0)
            idle[:] = [opened for opened in idle if not opened[0].closed]
            if not idle:
                del self._idle[service]

    def _connected(self, service: str) -> Socket:
        try:
            return self._sockets.connected(zmq.DEALER, service, _PEER, _OVER_TCP)
        except TransportError as error:
            raise ClusterError(f"Invalid service address, or no keys=FOLDER: {error}") from error

    def call(self, service: str, request: Request, timeout_s: float) -> Reply:
        with self.socket(service) as socket:
            socket.send(encode_message(request))
            return self.decoded(self.receive(socket, timeout_s)[0])

    def call_all(
        self, services: Sequence[str], request: Request, timeout_s: float
    ) -> dict[str, Reply]:
        """The replies of several services to one request, as `ask` gives them."""
        return self.ask(dict.fromkeys(services, request), timeout_s)

    def ask(self, requests: Mapping[str, Request], timeout_s: float) -> dict[str, Reply]:
        """The replies of several services, asked concurrently, by service."""
        # Services that do not answer in time, or with a malformed reply, are left out; at once if
        # their processes have ended.
        waiting: dict[Socket, str] = {}
        replies: dict[str, Reply] = {}
        poller = zmq.Poller()
        try:
            for service in requests:
                waiting[self._acquire(service)] = service
            messages: dict[int, bytes] = {}  # by the identity of the request
            for socket, service in waiting.items():
                poller.register(socket, zmq.POLLIN)
                request = requests[service]
                if id(request) not in messages:
                    messages[id(request)] = encode_message(request)
                socket.send(messages[id(request)])
            deadline = time.monotonic() + timeout_s
            doubt_s = time.monotonic() + _DOUBT_S
            while waiting and time.monotonic() < deadline and not self.interrupted.is_set():
                if time.monotonic() > doubt_s:
                    for socket in ended(waiting, min(deadline, doubt_s + _DOUBT_S)):
                        poller.unregister(socket)
                        self._release(waiting.pop(socket), socket, usable=False)
                    doubt_s = time.monotonic() + _DOUBT_S
                for socket, _ in poller.poll(_STEP_MS):
                    answer = socket.recv_multipart()
                    poller.unregister(socket)
                    service = waiting.pop(socket)
                    with contextlib.suppress(NoAnswerError):
                        replies[service] = self.decoded(answer[0])
                    self._release(service, socket, usable=service in replies)
        except zmq.ZMQError as error:  # they are being closed
            raise ClusterError(f"Can't reach services: {error}") from error
        finally:
            for socket, service in waiting.items():
                self._release(service, socket, usable=False)
        return replies

    @staticmethod
    def decoded(frame: bytes) -> Reply:
        try:
            reply: Reply = decode_reply(frame)
        except MALFORMED as error:
            raise NoAnswerError(f"malformed reply: {error}") from error
        return reply

    def receive(self, socket: Socket, timeout_s: float) -> list[bytes]:
        self._await(socket, timeout_s)
        return socket.recv_multipart()

    def receive_frames(self, socket: Socket, timeout_s: float) -> list[zmq.Frame]:
        """As `receive`, without a copy of what was received."""
        self._await(socket, timeout_s)
        return socket.recv_multipart(copy=False)

    def _await(self, socket: Socket, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not socket.poll(_STEP_MS):
            if self.interrupted.is_set():
                raise NoAnswerError("interrupted")
            if time.monotonic() > deadline:
                raise NoAnswerError(f"no answer within {timeout_s:g} s")

    def close(self) -> None:
        self.interrupted.set()
        with self._lock:
            self._closed = True
            # Destroying the context under a socket that another thread uses would crash.
            if self._lock.wait_for(lambda: not self._in_use, _CLOSE_S):
                self._sockets.close()


MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of the decoders for malformed messages."""


def ended(waiting: dict[Socket, str], until_s: float) -> Iterator[Socket]:
    """Sockets to services whose processes have ended; the others go to the end.

    Hosts behind a cut network take a while each: there may be no time to look at all.
    """
    for socket, service in list(waiting.items()):
        if time.monotonic() > until_s:
            return
        if refuses(service, _REFUSAL_S):
            yield socket
        else:
            waiting[socket] = waiting.pop(socket)
