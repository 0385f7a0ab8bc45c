"""Requests to the services of nodes: sockets that are used again, and waits with a limit."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import msgspec
import zmq

from minishark.cluster.wire import Reply, Request, decode_reply, encode_message
from minishark.errors import ClusterError
from sparrow_core.protocol.errors import InsecureTransport
from sparrow_core.runtime.transport.keys import Keys, split_endpoint

_IDLE_MAX = 8  # sockets kept for each service
_STEP_MS = 100
_CLOSE_S = 5.0
_HEARTBEAT_MS = 2_000


class NoAnswerError(Exception):
    """A service did not answer in time."""


class Connections:
    """Speaks to services from any thread.

    A socket has one request at a time. One whose request was not answered is closed, so that a late
    answer meets nobody.
    """

    def __init__(self, keys: Keys | None = None) -> None:
        """Without keys, services are reached over ipc only."""
        self.interrupted = threading.Event()
        self._keys = keys
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 4096)
        self._idle: dict[str, list[zmq.Socket[bytes]]] = {}
        self._lock = threading.Condition()  # guards the three around it
        self._in_use = 0
        self._closed = False

    @contextlib.contextmanager
    def socket(self, service: str) -> Iterator[zmq.Socket[bytes]]:
        """A socket to a service; kept for later if nothing goes wrong.

        Raises:
            ClusterError: the address makes no sense, or tcp is used without keys.
        """
        taken = self._take(service)
        try:
            yield taken
        except BaseException:
            self._throw_away(taken)
            raise
        self._give_back(service, taken)

    def _take(self, service: str) -> zmq.Socket[bytes]:
        with self._lock:
            if self._closed:
                raise ClusterError("The connection to the cluster is closed; connect again.")
            idle = self._idle.get(service)
            taken = idle.pop() if idle else self._connected(service)
            self._in_use += 1
            return taken

    def _give_back(self, service: str, socket: zmq.Socket[bytes]) -> None:
        with self._lock:
            idle = self._idle.setdefault(service, [])
            if self._closed or len(idle) >= _IDLE_MAX:
                socket.close(0)
            else:
                idle.append(socket)
            self._in_use -= 1
            self._lock.notify_all()

    def _throw_away(self, socket: zmq.Socket[bytes]) -> None:
        with self._lock:
            socket.close(0)
            self._in_use -= 1
            self._lock.notify_all()

    def _connected(self, service: str) -> zmq.Socket[bytes]:
        try:
            where, key = split_endpoint(service)
        except InsecureTransport as error:
            raise ClusterError(f"No address of a service: {error}") from error
        if key is not None and self._keys is None:
            raise ClusterError(f"{service}: tcp needs the cluster's keys; pass keys=FOLDER.")
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        if key is not None and self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, key)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(self._keys.public))
            socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(self._keys.secret))
        socket.connect(where)
        return socket

    def call(self, service: str, request: Request, timeout_s: float) -> Reply:
        """Ask one service.

        Raises:
            NoAnswerError: it does not answer in time, or with what is no answer.
            ClusterError: the address makes no sense.
        """
        with self.socket(service) as socket:
            socket.send(encode_message(request))
            return self.decoded(self.receive(socket, timeout_s)[0])

    def call_all(
        self, services: Sequence[str], request: Request, timeout_s: float
    ) -> dict[str, Reply]:
        """Ask several services at once; the answers of those that answer in time, and sensibly."""
        waiting: dict[zmq.Socket[bytes], str] = {}
        found: dict[str, Reply] = {}
        poller = zmq.Poller()
        message = encode_message(request)
        try:
            for service in dict.fromkeys(services):
                waiting[self._take(service)] = service
            for socket in waiting:
                poller.register(socket, zmq.POLLIN)
                socket.send(message)
            deadline = time.monotonic() + timeout_s
            while waiting and time.monotonic() < deadline and not self.interrupted.is_set():
                for socket, _ in poller.poll(_STEP_MS):
                    answer = socket.recv_multipart()
                    poller.unregister(socket)
                    service = waiting.pop(socket)
                    try:
                        found[service] = self.decoded(answer[0])
                    except NoAnswerError:
                        self._throw_away(socket)
                    else:
                        self._give_back(service, socket)
        finally:
            for socket in waiting:
                self._throw_away(socket)
        return found

    @staticmethod
    def decoded(frame: bytes) -> Reply:
        """A reply.

        Raises:
            NoAnswerError: it is none.
        """
        try:
            reply: Reply = decode_reply(frame)
        except MALFORMED as error:
            raise NoAnswerError(f"an answer that is none: {error}") from error
        return reply

    def receive(self, socket: zmq.Socket[bytes], timeout_s: float) -> list[bytes]:
        """The frames of the next reply.

        Raises:
            NoAnswerError: none comes in time, or somebody interrupts the wait.
        """
        deadline = time.monotonic() + timeout_s
        while not socket.poll(_STEP_MS):
            if self.interrupted.is_set():
                raise NoAnswerError("interrupted")
            if time.monotonic() > deadline:
                raise NoAnswerError(f"no answer within {timeout_s:g} s")
        return socket.recv_multipart()

    def close(self) -> None:
        """Make what is under way fail, and close all; may be called twice."""
        self.interrupted.set()
        with self._lock:
            self._closed = True
            if self._lock.wait_for(lambda: not self._in_use, _CLOSE_S):
                self._context.destroy(linger=0)


MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no message."""
