"""Large transfers beside ZeroMQ: chunks sealed with AES-GCM, over TCP connections of their own.

CURVE's cipher is the largest part of what a byte costs on a fast link; AES takes a tenth of it,
where the processor has instructions for it. A reader that asks for files over CURVE gets an offer
(`wire.Sealed`): a port, a ticket and a key. It connects there, shows the ticket, and gets what it
has asked for. Nobody gets a byte without a ticket, or can read or change one without the key.

    reader ──▶ ticket
    sender ──▶ the lengths of header and chunk, 4 bytes each; header, sealed; chunk, sealed; ...

Each transfer has a key of its own, and nonces count what it seals, so none is used twice with a key
(NIST SP 800-38D, 8.2.1); what is left out, repeated or moved does not open. Lengths are
authenticated with the header. The last header says that it is the last: nothing can be cut off.

Both ends need the package cryptography. Without it, where the port can't be reached, and for a
while after a transfer has broken off, everything goes through ZeroMQ.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from machine_kit.endpoint import Endpoint
from minishark.cluster import wire
from minishark.cluster.connections import MALFORMED
from minishark.cluster.links import CHUNK_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    Chunks = Iterable[tuple[wire.Chunk, memoryview]]

_TICKET_BYTES = 16
_LENGTHS = struct.Struct("!II")
_TAG_BYTES = 16
_HEADER_BYTES_MAX = 64 << 10
_OFFERS_MAX = 32  # that are waiting for their reader or being sent
_STRANGERS_MAX = 32  # connections that have not shown a ticket yet
_TICKET_S = 4.0  # until an offer is void, and a connection without a ticket is closed
_SILENCE_S = 10.0  # without a byte, after which the other side is given up
_CONNECT_S = 1.0
_STEP_S = 0.1  # after which an interruption is noticed at the latest
_AT_ONCE_BYTES = 256 << 10  # to be woken for each packet takes longer than to open a chunk


class NotReachedError(Exception):
    """The sender's port can't be reached, or nothing comes from there."""


class BrokenError(Exception):
    """A transfer has ended before its last chunk, or something in it was changed."""


@lru_cache(1)
def is_available() -> bool:
    """Whether this process can seal and open."""
    return importlib.util.find_spec("cryptography") is not None


class Sender:
    """Listens on a port that the system chooses, and sends what was offered.

    Whoever waits at `sockets` lets readers in; each is served on a thread of its own.
    """

    def __init__(self, host: str, sockets: Endpoint) -> None:
        """Listen on an interface; OSError if that can't be."""
        self._listener = socket.create_server((host, 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._offers: dict[bytes, tuple[bytes, Chunks, float]] = {}  # by ticket, until when
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()  # guards the two above
        self._sending = 0
        self._strangers = threading.BoundedSemaphore(_STRANGERS_MAX)
        sockets.watch(self._listener.fileno(), self._accept)

    def offer(self, chunks: Chunks) -> wire.Sealed | None:
        """Have chunks ready for a reader, which gets this; None if there are too many by now."""
        until_s = time.monotonic() + _TICKET_S
        offer = wire.Sealed(self.port, secrets.token_bytes(_TICKET_BYTES), secrets.token_bytes(32))
        with self._lock:
            if len(self._offers) + self._sending >= _OFFERS_MAX:
                return None
            self._offers[offer.ticket] = (offer.key, chunks, until_s)
        return offer

    def tidy(self) -> None:
        """Drop what nobody has come for, with the files that it keeps mapped."""
        now = time.monotonic()
        with self._lock:
            for ticket in [t for t, (_, _, until_s) in self._offers.items() if until_s < now]:
                del self._offers[ticket]

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:  # the peer is gone already
            return
        except OSError:  # too many files are open, and the peer still waits
            time.sleep(_STEP_S)
            return
        if not self._strangers.acquire(blocking=False):
            peer.close()
            return
        with self._lock:
            self._open.add(peer)
        try:
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()
        except RuntimeError:  # the system has no more threads
            self._strangers.release()
            self._close(peer)

    def _serve(self, peer: socket.socket) -> None:
        try:
            found = self._admitted(peer)
        finally:
            self._strangers.release()
        try:
            if found is not None:
                key, chunks, _ = found
                _send(peer, _cipher(key), chunks)
        except OSError:  # the reader is gone
            pass
        finally:
            if found is not None:
                with self._lock:
                    self._sending -= 1
            self._close(peer)

    def _admitted(self, peer: socket.socket) -> tuple[bytes, Chunks, float] | None:
        ticket = bytearray(_TICKET_BYTES)
        try:
            peer.settimeout(_TICKET_S)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # With a time limit, a socket does not block, and MSG_WAITALL has no effect.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _TICKET_BYTES)
            if peer.recv_into(ticket) < _TICKET_BYTES:
                return None
        except OSError:
            return None
        with self._lock:
            found = self._offers.pop(bytes(ticket), None)
            self._sending += found is not None
        return found

    def _close(self, peer: socket.socket) -> None:
        with self._lock:
            self._open.discard(peer)
        peer.close()

    def stop(self) -> None:
        """Close all connections, and drop what was offered; nobody waits at the sockets now."""
        self._listener.close()
        with self._lock:
            self._offers.clear()
            for peer in self._open:
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - optional

    return AESGCM(key)


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _send(peer: socket.socket, cipher: AESGCM, chunks: Chunks) -> None:
    peer.settimeout(_SILENCE_S)
    for number, (header, chunk) in zip(itertools.count(0, 2), chunks, strict=False):
        told = wire.encode_message(header)
        lengths = _LENGTHS.pack(len(told), len(chunk))
        head = cipher.encrypt(_nonce(number), told, lengths)
        peer.sendall(lengths + head)
        sealed = memoryview(cipher.encrypt(_nonce(number + 1), chunk, None))
        while sealed:  # `sendall` would limit the time for all of it
            sealed = sealed[peer.send(sealed) :]


def receive(
    host: str,
    offer: wire.Sealed,
    received: Callable[[wire.Chunk, memoryview], None],
    is_interrupted: Callable[[], bool],
) -> None:
    """Take up an offer of a service on `host`: pass on each chunk.

    Raises:
        NotReachedError: before anything came.
        BrokenError: something has been received, but not all, or nobody wants it any more.
    """
    try:
        peer = socket.create_connection((host, offer.port), _CONNECT_S)
    except OSError as error:
        raise NotReachedError(f"{host}:{offer.port} can't be reached: {error}") from error
    with peer:
        _Receiver(peer, _cipher(offer.key), is_interrupted).run(offer.ticket, received)


class _Receiver:
    """The reader's side of one transfer."""

    def __init__(
        self, peer: socket.socket, cipher: AESGCM, is_interrupted: Callable[[], bool]
    ) -> None:
        self._peer = peer
        self._cipher = cipher
        self._is_interrupted = is_interrupted
        self._has_begun = False  # a byte has come
        self._woken_at = 1

    def run(self, ticket: bytes, received: Callable[[wire.Chunk, memoryview], None]) -> None:
        self._peer.settimeout(_STEP_S)
        buffer = memoryview(bytearray(CHUNK_BYTES + _TAG_BYTES))
        try:
            self._peer.sendall(ticket)
        except OSError as error:
            raise NotReachedError(str(error)) from error
        for number in itertools.count(0, 2):
            lengths = bytes(self._filled(buffer[: _LENGTHS.size]))
            head_bytes, chunk_bytes = _LENGTHS.unpack(lengths)
            if head_bytes > _HEADER_BYTES_MAX or chunk_bytes > CHUNK_BYTES:
                raise BrokenError("a chunk is too large")
            head = self._filled(buffer[: head_bytes + _TAG_BYTES])
            header = self._header(self._opened(number, head, lengths))
            chunk = self._filled(buffer[: chunk_bytes + _TAG_BYTES])
            plain = self._opened(number + 1, chunk, None)
            received(header, memoryview(plain))
            if header.last:
                return

    @staticmethod
    def _header(told: bytes) -> wire.Chunk:
        try:
            header = wire.decode_reply(told)
        except MALFORMED as error:
            raise BrokenError(f"malformed header: {error}") from error
        if not isinstance(header, wire.Chunk):
            raise BrokenError(f"unexpected message {header}")
        return header

    def _opened(self, number: int, sealed: memoryview, lengths: bytes | None) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional

        try:
            return self._cipher.decrypt(_nonce(number), sealed, lengths)
        except InvalidTag as error:
            raise BrokenError("a chunk was changed on its way") from error

    def _filled(self, view: memoryview) -> memoryview:
        """The next bytes."""
        filled = 0
        at_once = _AT_ONCE_BYTES
        deadline = time.monotonic() + _SILENCE_S
        while filled < len(view):
            if self._is_interrupted():
                raise BrokenError("interrupted")
            self._wake_at(min(at_once, len(view) - filled))
            try:
                got = self._peer.recv_into(view[filled:])
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise self._ended(f"no byte within {_SILENCE_S:g} s") from None
                at_once = 1  # a slow link: what has come counts
                continue
            except OSError as error:
                raise self._ended(str(error)) from error
            if not got:
                raise self._ended("the connection was closed")
            filled += got
            self._has_begun = True
            deadline = time.monotonic() + _SILENCE_S
        return view

    def _wake_at(self, count: int) -> None:
        """Have the kernel wake this thread for so many bytes at least."""
        if count != self._woken_at:
            self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._woken_at = count

    def _ended(self, why: str) -> Exception:
        return BrokenError(why) if self._has_begun else NotReachedError(why)
