"""The file service of a node or session: one thread that serves files to other hosts.

It is the only access of other hosts to a node's storage, and requires an allowed key (tcp) or the
same user (ipc). Its memory is bounded: at most `_TRANSFERS_MAX` transfers, each with a record batch
in memory and as many chunks in flight as the reader granted; at most `_REPLICATIONS_MAX` files that
are being fetched.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import zmq

from minishark.cluster import wire
from minishark.cluster.connections import MALFORMED
from minishark.errors import ClusterError
from minishark.worker.paths import StorePaths
from sparrow_core.protocol.errors import InsecureTransport
from sparrow_core.runtime.transport.keys import (
    Keys,
    answer_admission,
    check_private,
    split_endpoint,
)

CHUNK_BYTES = 1 << 20
_TRANSFERS_MAX = 256
_CREDIT_MAX = 64
_TRANSFER_SILENCE_MAX_S = 30.0
_TICK_MS = 500
_WORKERS = 4
_REPLICATIONS_MAX = 256


@dataclass(slots=True)
class _Transfer:
    """A file that is being sent to a peer."""

    chunks: Iterator[tuple[memoryview, bool]]  # those left, each with whether it is the last
    credit: int  # how many more chunks the peer has granted
    heard_s: float  # when it granted some the last time, on the monotonic clock


class Service:
    """Serves the files of one store."""

    def __init__(
        self,
        endpoint: str,
        paths: StorePaths,
        store_name: str,
        *,
        bind: str | None = None,
        keys: Keys | None = None,
    ) -> None:
        """Bind the socket to `endpoint` (or `bind`, for another interface); `start` serves."""
        # `self.endpoint` is the actual address, over tcp with the public key.
        self._paths = paths
        self._store_name = store_name
        self._keys = keys
        self._transfers: dict[bytes, _Transfer] = {}
        self._finished: queue.SimpleQueue[tuple[bytes, wire.Reply]] = queue.SimpleQueue()
        self._working = 0
        self._stopping = False
        # Answers requests for a session's events; None for other requests.
        self.shared: Callable[[wire.Request], wire.Reply | None] = lambda _: None
        self._context = zmq.Context()
        self._zap: zmq.Socket[bytes] | None = None
        self._socket = self._context.socket(zmq.ROUTER)
        self._poller = zmq.Poller()
        try:
            self.endpoint = self._bind(endpoint, bind or endpoint)
        except (zmq.ZMQError, InsecureTransport) as error:
            self._context.destroy(linger=0)
            raise ClusterError(f"Can't listen at {endpoint}: {error}") from error
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_r, zmq.POLLIN)
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="minishark-replication")
        self._thread = threading.Thread(target=self._loop, name="minishark-service", daemon=True)

    def _bind(self, endpoint: str, bind: str) -> str:
        self._socket.setsockopt(zmq.LINGER, 0)
        if endpoint.startswith("ipc://"):
            check_private(Path(endpoint.removeprefix("ipc://")))
            self._socket.bind(endpoint)
            return endpoint
        if self._keys is None:
            raise InsecureTransport("tcp needs keys (see `minishark cluster keygen`)")
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")
        self._poller.register(self._zap, zmq.POLLIN)
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(self._keys.secret))
        self._socket.setsockopt(zmq.ZAP_DOMAIN, b"minishark")
        self._socket.bind(bind)
        if endpoint.endswith(":*"):
            endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return f"{endpoint}/{self._keys.public}"

    def start(self) -> None:
        self._thread.start()

    # Hooks, called on the service's thread

    def answer(self, request: wire.Request) -> wire.Reply:
        """Answer a request that is not about files."""
        reply = self.shared(request)
        if reply is not None:
            return reply
        return wire.Failure(f"{self._store_name} does not answer {type(request).__name__}.")

    def work(self, request: wire.Request) -> Callable[[], wire.Reply] | None:
        """A function that answers a long request, for a worker thread; None for other requests."""
        del request
        return None

    def tidy(self) -> None:
        """Clean up; called twice a second."""

    # The loop

    def _loop(self) -> None:
        ticked_s = 0.0
        while not self._stopping:
            for ready, _ in self._poller.poll(_TICK_MS):
                if ready is self._socket:
                    self._receive()
                elif ready is self._zap:
                    assert self._zap is not None
                    assert self._keys is not None
                    self._zap.send_multipart(
                        answer_admission(self._zap.recv_multipart(), self._keys)
                    )
                else:
                    os.read(self._wake_r, 4096)
            self._send_finished()
            if (now := time.monotonic()) - ticked_s >= _TICK_MS / 1e3:
                ticked_s = now
                for peer, transfer in list(self._transfers.items()):
                    if now - transfer.heard_s > _TRANSFER_SILENCE_MAX_S:
                        del self._transfers[peer]
                self._tidy()

    def _tidy(self) -> None:
        try:
            self.tidy()
        except OSError:
            pass  # the next call tries again
        except Exception:  # noqa: BLE001 - one session's data must not end the service
            traceback.print_exc()

    def _receive(self) -> None:
        peer, *frames = self._socket.recv_multipart()
        try:
            request = wire.decode_request(frames[0] if frames else b"")
        except MALFORMED:
            self._reply(peer, wire.Failure("Malformed request."))
            return
        match request:
            case wire.Fetch():
                self._begin(peer, request)
            case wire.Credit(count):
                self._continue(peer, count)
            case _:
                self._answer(peer, request)

    def _answer(self, peer: bytes, request: wire.Request) -> None:
        try:
            long = self.work(request)
            if long is None:
                self._reply(peer, self.answer(request))
                return
        except (OSError, ClusterError) as error:
            self._reply(peer, wire.Failure(str(error)))
            return
        except Exception as error:  # noqa: BLE001 - one bad request must not end the service
            traceback.print_exc()
            self._reply(peer, wire.Failure(f"{type(error).__name__}: {error}"))
            return
        if self._working >= _REPLICATIONS_MAX:
            self._reply(peer, wire.Failure(f"{self._store_name} is fetching too many files."))
            return
        self._working += 1
        self._workers.submit(self._work, peer, long)

    def _work(self, peer: bytes, long: Callable[[], wire.Reply]) -> None:
        try:
            reply = long()
        except Exception as error:  # noqa: BLE001 - the peer waits for a reply in any case
            reply = wire.Failure(f"{type(error).__name__}: {error}")
        self._finished.put((peer, reply))
        self._wake()

    def _send_finished(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                peer, reply = self._finished.get_nowait()
                self._working -= 1
                assert self._working >= 0
                self._reply(peer, reply)

    def _reply(self, peer: bytes, reply: wire.Reply) -> None:
        with contextlib.suppress(zmq.ZMQError):  # the peer is gone
            self._socket.send_multipart([peer, wire.encode_message(reply)], zmq.NOBLOCK)

    # Files

    def path(self, name: str) -> PurePosixPath:
        """Validate a path relative to the store; ClusterError if it leads outside."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ClusterError(f"Invalid path in a node's storage: {name!r}.")
        return path

    def _begin(self, peer: bytes, request: wire.Fetch) -> None:
        if len(self._transfers) >= _TRANSFERS_MAX:
            self._reply(peer, wire.Failure(f"{self._store_name} is sending too many files."))
            return
        try:
            found = self._paths.find(str(self.path(request.file)), (self._store_name,))
            if found is None:
                missing = f"{self._store_name} has no {request.file}"
                self._reply(peer, wire.Failure(missing, missing=True))
                return
            chunks = _ended(_chunks(found, request.first, request.last))
            self._transfers[peer] = _Transfer(chunks, 0, time.monotonic())
            self._continue(peer, request.credit)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the service
            self._fail(peer, error)

    def _continue(self, peer: bytes, credit: int) -> None:
        transfer = self._transfers.get(peer)
        if transfer is None:
            return  # late credit, for a transfer whose last chunk has been sent
        transfer.heard_s = time.monotonic()
        transfer.credit = min(_CREDIT_MAX, transfer.credit + credit)
        try:
            while transfer.credit > 0:
                chunk, last = next(transfer.chunks)
                transfer.credit -= 1
                self._socket.send_multipart(
                    [peer, wire.encode_message(wire.Chunk(last)), chunk], zmq.NOBLOCK, copy=False
                )
                if last:
                    del self._transfers[peer]
                    return
        except Exception as error:  # noqa: BLE001 - one bad request must not end the service
            self._fail(peer, error)

    def _fail(self, peer: bytes, error: Exception) -> None:
        self._transfers.pop(peer, None)
        self._reply(peer, wire.Failure(str(error)))

    # The end

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"\0")

    def stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._context.destroy(linger=0)
        # A late worker must not write to a file that reuses the descriptor.
        wake_w, self._wake_w = self._wake_w, -1
        os.close(wake_w)
        os.close(self._wake_r)
        where, key = split_endpoint(self.endpoint)
        if key is None:
            Path(where.removeprefix("ipc://")).unlink(missing_ok=True)


def _chunks(path: Path, first: int, last: int | None) -> Iterator[memoryview]:
    """Record batches of a file as an Arrow stream, in chunks; one batch at a time in memory."""
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, reader.schema) as writer:
        for number in range(first, reader.num_record_batches if last is None else last):
            writer.write_batch(reader.get_batch(number))
            if buffer.tell() >= CHUNK_BYTES:
                yield from _taken(buffer)
    yield from _taken(buffer)


def _taken(buffer: io.BytesIO) -> Iterator[memoryview]:
    """Empty a buffer, and return its content in chunks."""
    data = memoryview(buffer.getvalue())
    buffer.seek(0)
    buffer.truncate()
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def _ended(chunks: Iterator[memoryview]) -> Iterator[tuple[memoryview, bool]]:
    """Each chunk, and whether it is the last."""
    before = next(chunks)
    for chunk in chunks:
        yield before, False
        before = chunk
    yield before, True
