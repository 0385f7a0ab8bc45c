"""The front of a served session: where clients connect, and what strangers are held to.

    client ──▶ front ──▶ gRPC, at a socket in a folder of the user's own

gRPC reads the first message of a call whole before anybody in Python hears of the call, and takes
any number of connections. So it stands behind a front, which ends TLS, passes bytes on as they
come, and takes a connection for a stranger's until a call on it has shown a valid credential. Of
HTTP/2 the front reads only where frames begin (RFC 9113, 4.1): enough to count calls and refusals.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import logging
import os
import select
import socket
import ssl
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from minishark.cluster.folders import locked_folder
from minishark.errors import OptionError
from minishark.session.page.certificate import Certificate

_LOG = logging.getLogger("minishark.front")

STRANGERS_MAX = 32
STRANGER_BYTES = 1 << 20  # that are passed on of a stranger
STRANGER_S = 10.0
_STRANGER_CALLS = 16
_HASTY_S = 1.0  # for which no stranger makes way for another
_LOOK_S = 1.0
_ADDRESSES_MAX = 4096  # whose refusals are remembered
_FIRST_BUFFER_BYTES, _BUFFER_BYTES = 16 << 10, 256 << 10
_TURNS = 16  # of one direction, before the other one has its turn
_BACKLOG = 128
# A host that is gone without a word is noticed after a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_SOCKET_PATH_MAX = 103  # bytes; Linux takes four more
_PREFACE_BYTES, _FRAME_HEADER_BYTES = 24, 9
_HEADERS, _END_STREAM = 1, 1
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_PAUSE_MS = -1  # where file descriptors stand
_HELD_MS = 100  # between two looks whether what is held back may go on
_OVER = -1
_Look: TypeAlias = Callable[[memoryview], int]


class Refusals:
    """Calls by address that were refused, of which so many in a minute may be.

    At first as many are at once; the memory of them fades at that rate.
    """

    def __init__(self, per_minute: float) -> None:
        """None yet."""
        self._per_minute = per_minute
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # and when it was so
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, address: str, now: float) -> None:
        """A call from there was refused."""
        network = _network(address)
        with self._lock:
            count = self._count(network, now)
            self._counts[network] = (min(count, 2 * self._per_minute) + 1, now)
            self._counts.move_to_end(network)
            if len(self._counts) > _ADDRESSES_MAX:
                self._counts.popitem(last=False)
        if count <= self._per_minute - 1 < count + 1:
            _LOG.warning("Too many calls from %s without a valid credential.", address)

    def are_too_many(self, address: str, now: float) -> bool:
        """Whether no more is heard from there for now."""
        with self._lock:
            return self._count(_network(address), now) > self._per_minute - 1

    def _count(self, network: str, now: float) -> float:
        count, then = self._counts.get(network, (0.0, now))
        return max(0.0, count - (now - then) * self._per_minute / 60)


def _network(address: str) -> str:
    """Whose an address is: a host of IPv6 has as many as it likes in its network."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        mapped = ip.ipv4_mapped
        return str(mapped or ipaddress.ip_network((ip, 64), strict=False))
    return address


class Frames:
    """The frames of one direction of an HTTP/2 connection, of which only the headers are read."""

    def __init__(self, preface_bytes: int = 0) -> None:
        """None yet; a client's begin after a preface."""
        self._skipped = preface_bytes
        self._header = bytearray()

    def feed(self, data: memoryview) -> Iterator[tuple[int, int, int, int]]:
        """The type, flags and stream of the frames that begin in the next bytes.

        And where their headers end: who stops there goes on with the bytes from there.
        """
        place = 0
        while True:
            passed = min(self._skipped, len(data) - place)
            place += passed
            self._skipped -= passed
            missing = _FRAME_HEADER_BYTES - len(self._header)
            self._header += data[place : place + missing]
            place = min(len(data), place + missing)
            if len(self._header) < _FRAME_HEADER_BYTES:
                return
            header, self._header = bytes(self._header), bytearray()
            self._skipped = int.from_bytes(header[:3])
            yield header[3], header[4], int.from_bytes(header[5:]) & 0x7FFFFFFF, place


class _Way:
    """One direction: what was read and is not sent yet."""

    def __init__(self, source: socket.socket, sink: socket.socket, look: _Look) -> None:
        self._source = source
        self._sink = sink
        self._look = look
        self._buffer = bytearray(_FIRST_BUFFER_BYTES)
        self._held = memoryview(b"")  # of what was read, until it may go on
        self._left = memoryview(b"")

    def pass_on(self, awaited: dict[int, int]) -> bool:
        """Pass on what has come; False at the end. `awaited` is told what to wait for."""
        for _ in range(_TURNS):
            if not self._left and not self._held:
                try:
                    count = self._source.recv_into(self._buffer)
                except _BLOCKED as error:
                    awaited[self._source.fileno()] |= _direction(error, select.POLLIN)
                    return True
                if not count:
                    return False
                self._held = memoryview(self._buffer)[:count]
                if count == len(self._buffer) < _BUFFER_BYTES:  # there is much to come
                    self._buffer = bytearray(_BUFFER_BYTES)
            if not self._left:
                passed = self._look(self._held)
                if passed == _OVER:
                    return False
                if not passed:
                    if awaited[_PAUSE_MS]:
                        awaited[_PAUSE_MS] = _HELD_MS
                    return True
                self._left, self._held = self._held[:passed], self._held[passed:]
            try:
                sent = self._sink.send(self._left)
            except _BLOCKED as error:
                awaited[self._sink.fileno()] |= _direction(error, select.POLLOUT)
                return True
            self._left = self._left[sent:]
        awaited[_PAUSE_MS] = 0  # there may be more, in TLS also such that no poll tells of
        return True


def _direction(error: Exception, plain: int) -> int:
    """What to wait for; TLS may want to write where it is to read, and the other way round."""
    match error:
        case ssl.SSLWantReadError():
            return select.POLLIN
        case ssl.SSLWantWriteError():
            return select.POLLOUT
    return plain


class _Passage:
    """A connection of a client, and the one to the server behind it."""

    def __init__(self, client: socket.socket, address: str, refusals: Refusals) -> None:
        self.client = client
        self._server = socket.socket(socket.AF_UNIX)
        self._address = address
        self.began_s = time.monotonic()
        self.is_known = False
        self._refusals = refusals
        self._bytes = 0
        self._calls = 0
        self._asked = Frames(_PREFACE_BYTES)
        self._answered = Frames()
        self._streams: set[int] = set()  # that have been answered, if only in part

    def end(self) -> None:
        """Have `run` return, from any thread."""
        for side in (self.client, self._server):
            with contextlib.suppress(OSError):  # that of an SSLSocket would take the keys off first
                socket.socket.shutdown(side, socket.SHUT_RDWR)

    def run(self, behind: Path, name: Path) -> None:
        """Pass on until one side ends; OSError if one breaks off."""
        if isinstance(self.client, ssl.SSLSocket):
            self.client.settimeout(STRANGER_S)
            self.client.do_handshake()
        server = self._server
        server.bind(str(name))  # gRPC names its peer so
        try:
            server.connect(str(behind))
        finally:
            name.unlink()
        self.client.settimeout(0)
        server.settimeout(0)
        ways = _Way(self.client, server, self._asks), _Way(server, self.client, self._answers)
        while True:
            awaited = {self.client.fileno(): 0, server.fileno(): 0, _PAUSE_MS: -1}
            for way in ways:
                if not way.pass_on(awaited):
                    return
            pause_ms = awaited.pop(_PAUSE_MS)
            poll = select.poll()
            for fileno, events in awaited.items():
                if events:
                    poll.register(fileno, events)
            poll.poll(pause_ms)

    def close(self) -> None:
        """Close both, also for a child process that was forked meanwhile and has them, too."""
        self.end()
        self.client.close()
        self._server.close()

    def _asks(self, data: memoryview) -> int:
        """How much of this the client may send now."""
        if self.is_known:
            return len(data)
        if self._calls > _STRANGER_CALLS:  # which wait for the answers to those before
            return _OVER if len(self._streams) >= _STRANGER_CALLS else 0
        for kind, _, _, place in self._asked.feed(data):
            self._calls += kind == _HEADERS
            if self._calls > _STRANGER_CALLS:
                return place
        self._bytes += len(data)
        return len(data) if self._bytes <= STRANGER_BYTES else _OVER

    def _answers(self, data: memoryview) -> int:
        """How much of this the client may be answered now: all of it."""
        if self.is_known:
            return len(data)
        now = time.monotonic()
        for kind, flags, stream, _ in self._answered.feed(data):
            if kind != _HEADERS:
                continue
            if flags & _END_STREAM and stream not in self._streams:  # nothing but an error
                self._refusals.add(self._address, now)
            self._streams.add(stream)
        return len(data)


class Front:
    """Listens for clients, each of which is served on a thread of its own.

    Attributes:
        port: where it listens.
        location: where the server is to listen.
    """

    def __init__(
        self, host: str, port: int, refusals: Refusals, certificate: Certificate | None = None
    ) -> None:
        """Bind the socket, and accept nobody yet.

        Raises:
            OSError: it can't listen there, or there is no place for temporary files.
            OptionError: the path of temporary files is too long for sockets.
        """
        self._refusals = refusals
        self._certificate = certificate
        self._passages: dict[str, _Passage] = {}
        self._names = itertools.count(1)
        self._changed = threading.Condition()  # guards the two above; strangers have become fewer
        self._is_stopped = False
        with contextlib.ExitStack() as undo:
            self._listener = undo.enter_context(listening(host, port))
            self._listener.settimeout(_LOOK_S)
            self.port: int = self._listener.getsockname()[1]
            folder, _ = locked_folder(Path(tempfile.gettempdir()), undo)
            self._behind = folder / "grpc.sock"
            if len(os.fsencode(self._behind)) > _SOCKET_PATH_MAX:
                raise OptionError(
                    f"{folder.parent} is too long a path for sockets: set TMPDIR to a shorter one."
                )
            self._undo = undo.pop_all()
        # Arrow reads it as an address, and gives it to gRPC, which reads one again.
        self.location = f"grpc+unix://{quote(quote(str(self._behind)))}"
        self._thread = threading.Thread(target=self._listen, name="minishark-front", daemon=True)

    def start(self) -> None:
        """Accept clients."""
        self._thread.start()

    def names(self) -> frozenset[str]:
        """Those of the connections that are open; `name_of` has them from gRPC."""
        with self._changed:
            return frozenset(self._passages)

    def known(self, name: str) -> None:
        """A call on that connection has shown a valid credential."""
        passage = self._passages.get(name)
        if passage is not None and not passage.is_known:
            with self._changed:
                passage.is_known = True
                self._changed.notify_all()

    def close(self) -> None:
        """Accept nobody from now on; connections stay."""
        self._is_stopped = True
        with contextlib.suppress(OSError):  # wakes the thread that waits for clients
            self._listener.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End all connections."""
        self.close()
        with self._changed:
            for passage in self._passages.values():
                passage.end()
            self._changed.wait_for(lambda: not self._passages, _LOOK_S)
        self._undo.close()

    def _listen(self) -> None:
        while not self._is_stopped:
            try:
                client, address = self._listener.accept()
            except TimeoutError:
                self._end_slow_strangers()
            except OSError:  # too many files are open, or it is closed
                time.sleep(_LOOK_S / 10)
            else:
                self._end_slow_strangers()
                self._admit(client, address[0])

    def _admit(self, client: socket.socket, address: str) -> None:
        if self._refusals.are_too_many(address, time.monotonic()):
            client.close()
            return
        self._make_room()
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if self._certificate is not None:
                client = self._certificate.context().wrap_socket(
                    client, server_side=True, do_handshake_on_connect=False
                )
            passage = _Passage(client, address, self._refusals)
        except OSError:  # it is gone already, or too many files are open
            client.close()
            return
        with self._changed:
            name = str(next(self._names))
            self._passages[name] = passage
        try:
            threading.Thread(target=self._serve, args=(name, passage), daemon=True).start()
        except RuntimeError:  # the system has no more threads
            self._over(name, passage)

    def _serve(self, name: str, passage: _Passage) -> None:
        try:
            passage.run(self._behind, self._behind.with_name(name))
        except OSError:  # also such of TLS: one side is gone
            pass
        finally:
            self._over(name, passage)

    def _over(self, name: str, passage: _Passage) -> None:
        with self._changed:
            passage.close()
            del self._passages[name]
            self._changed.notify_all()

    def _strangers(self) -> list[_Passage]:
        """The oldest first."""
        return [passage for passage in self._passages.values() if not passage.is_known]

    def _make_room(self) -> None:
        """Wait until there are few strangers; the oldest must go if it has had its time."""
        with self._changed:
            while len(strangers := self._strangers()) >= STRANGERS_MAX and not self._is_stopped:
                had_s = time.monotonic() - strangers[0].began_s
                if had_s >= _HASTY_S:
                    strangers[0].end()
                self._changed.wait(max(_HASTY_S / 10, _HASTY_S - had_s))

    def _end_slow_strangers(self) -> None:
        before_s = time.monotonic() - STRANGER_S
        with self._changed:
            for passage in self._strangers():
                if passage.began_s < before_s:
                    passage.end()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        OSError: it can't.
    """
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    is_any = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(place, family=family, backlog=_BACKLOG, dualstack_ipv6=is_any)


def name_of(peer: str) -> str:
    """The name of the connection that gRPC knows as this peer."""
    return peer.rpartition("/")[2]
