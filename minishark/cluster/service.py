"""The file service of a node or session: one thread that serves files to other hosts.

It is the only access of other hosts to a node's storage, and requires an allowed key (tcp) or the
same user (ipc). Its memory is bounded: at most `_TRANSFERS_MAX` transfers, each with a record batch
in memory and as many chunks in flight as the reader granted; what `sealed` sends beside them; at
most `_REPLICATIONS_MAX` files that are being fetched.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec
import pyarrow as pa
import zmq

from machine_kit.endpoint import Endpoint
from machine_kit.errors import TransportError
from machine_kit.keys import Keys
from machine_kit.peers import Peers
from minishark.cluster import sealed, wire
from minishark.cluster.connections import MALFORMED
from minishark.cluster.links import CREDIT_MAX, Compression, Processor, chunk_bytes
from minishark.errors import ClusterError
from minishark.worker.paths import StorePaths
from minishark.worker.seals import is_intact

_TRANSFERS_MAX = 256
_PARTS_MAX = 100_000  # of one fetch
_TRANSFER_SILENCE_MAX_S = 30.0
_TICK_S = 0.5
_LOOK_S = 0.1  # between looks at how busy the processors are
_SEALED_BYTES_MIN = 4 << 20  # less is sent sooner than a connection is made
_COPIED_BYTES = 64 << 10  # below, it costs less to copy a chunk than to hand it over
_COMPRESSED_BYTES_MIN = 4 << 10
_INDICES_MAX = 1024
_MAGIC_BYTES = 8
_NOTHING = memoryview(b"")
CODEC = pa.Codec("lz4_raw")
_WORKERS = 4
_REPLICATIONS_MAX = 256
_READERS_AT_ONCE = 2
_SENDING_MAX_S = 10.0  # after which a reader that has not told of its copy counts no more
_SPREADS_MAX = 1024
_COPIES_MAX = 64  # of a file, that are known


@dataclass(slots=True, kw_only=True)
class _Transfer:
    """Parts of files that are being sent to a peer."""

    chunks: Iterator[tuple[wire.Chunk, memoryview]] = field(default_factory=lambda: iter(()))
    credit: int = 0  # how many more chunks the peer has granted
    link_bytes_s: float = 0.0  # the bandwidth that it has measured
    compression: Compression = field(default_factory=Compression)
    has_begun: bool = False  # a chunk was made


@dataclass(slots=True)
class _Spread:
    """How far a whole file has spread to other hosts."""

    sending: dict[str, float] = field(default_factory=dict)  # readers, with when they asked
    # Services that have a copy, with its name there, in turn.
    copies: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=_COPIES_MAX))


def change_files(
    paths: StorePaths, node: str, request: wire.MakeFolder | wire.RemoveFolder | wire.RemoveFile
) -> None:
    """Make or remove folders, or remove a file, in the storage of a node or session."""
    for path in request.paths:
        match request:
            case wire.MakeFolder():
                paths.make(path, (node,))
            case wire.RemoveFolder():
                paths.remove(path, (node,))
            case wire.RemoveFile():
                paths.remove_file(path, node)


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
        self._transfers: dict[bytes, _Transfer] = {}
        self._readers = Peers[bytes]()  # who granted credit for them
        self._spreads: OrderedDict[str, _Spread] = OrderedDict()  # by file
        self._processor = Processor()
        self._finished: queue.SimpleQueue[tuple[bytes, wire.Reply]] = queue.SimpleQueue()
        self._working = 0
        self._stopping = False
        # Answers requests for a session's events; None for other requests.
        self.shared: Callable[[wire.Request], wire.Reply | None] = lambda _: None
        self._sockets = Endpoint(keys)
        try:
            self._socket, self.endpoint = self._sockets.listen(
                zmq.ROUTER, endpoint, lambda _: self._receive(), bind=bind
            )
        except TransportError as error:
            self._sockets.close()
            raise ClusterError(f"Can't listen at {endpoint}: {error}") from error
        self._sealed: sealed.Sender | None = None
        if not endpoint.startswith("ipc://") and sealed.is_available():
            host = (bind or endpoint).removeprefix("tcp://").rpartition(":")[0]
            with contextlib.suppress(OSError):  # all goes through ZeroMQ then
                self._sealed = sealed.Sender(host.strip("[]*"), self._sockets)
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="minishark-replication")
        self._thread = threading.Thread(target=self._loop, name="minishark-service", daemon=True)

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

    def in_background(self, function: Callable[[str], bool], argument: str) -> Future[bool]:
        """Call a function that may take long on a worker thread."""
        return self._workers.submit(function, argument)

    # The loop

    def _loop(self) -> None:
        ticked_s = looked_s = 0.0
        while not self._stopping:
            self._sockets.wait(_TICK_S)
            self._send_finished()
            if (now := time.monotonic()) - looked_s >= _LOOK_S:
                looked_s = now
                self._processor.seen(*_scheduled())
            if now - ticked_s >= _TICK_S:
                ticked_s = now
                for peer in self._readers.silent(now, _TRANSFER_SILENCE_MAX_S):
                    self._end(peer)
                if self._sealed is not None:
                    self._sealed.tidy()
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
            case wire.Credit(count, link_bytes_s):
                self._continue(peer, count, link_bytes_s)
            case wire.Holds():
                self._note(request)
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
        self._sockets.wake()

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
        if not 0 < len(request.parts) <= _PARTS_MAX:
            self._reply(peer, wire.Failure("Ask for 1 to 100,000 parts at a time."))
            return
        if request.reader:
            other = self._elsewhere(request.parts[0].file, request.reader)
            if other is not None:
                self._reply(peer, other)
                return
        transfer = _Transfer()
        transfer.chunks = self._chunks(request, transfer)
        try:
            offer = self._offered(request, transfer)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the service
            self._fail(peer, error)
            return
        if offer is not None:
            self._reply(peer, offer)
            return
        self._transfers[peer] = transfer
        self._continue(peer, request.credit, request.link_bytes_s)

    def _offered(self, request: wire.Fetch, transfer: _Transfer) -> wire.Sealed | None:
        """What the reader gets if it is to have a connection for much data on a fast link."""
        link_bytes_s = request.link_bytes_s
        if not request.sealed or self._sealed is None:
            return None
        if transfer.compression.pays(link_bytes_s, self._processor.share):
            return None
        first = next(transfer.chunks)
        transfer.chunks = itertools.chain([first], transfer.chunks)
        if first[0].size * len(request.parts) < _SEALED_BYTES_MIN:
            return None
        transfer.link_bytes_s = math.inf
        return self._sealed.offer(transfer.chunks)

    def _elsewhere(self, file: str, reader: str) -> wire.Elsewhere | None:
        """Where a reader that will serve a whole file gets it, if not here and now."""
        spread = self._spreads.setdefault(file, _Spread())
        while len(self._spreads) > _SPREADS_MAX:
            self._spreads.popitem(last=False)
        now = time.monotonic()
        spread.sending = {r: at for r, at in spread.sending.items() if now - at < _SENDING_MAX_S}
        if len(spread.sending) < _READERS_AT_ONCE:
            spread.sending[reader] = now
            return None
        if not spread.copies or spread.copies[0][0] == reader:
            return wire.Elsewhere()
        spread.copies.rotate()
        return wire.Elsewhere(*spread.copies[0])

    def _note(self, copy: wire.Holds) -> None:
        spread = self._spreads.get(copy.file)
        if spread is not None:
            spread.sending.pop(copy.reader, None)
            if (copy.reader, copy.copy) not in spread.copies:
                spread.copies.append((copy.reader, copy.copy))

    def _chunks(
        self, request: wire.Fetch, transfer: _Transfer
    ) -> Iterator[tuple[wire.Chunk, memoryview]]:
        """What a fetch gets; files are opened as their turn comes."""
        for number, part in enumerate(request.parts):
            final = number == len(request.parts) - 1
            try:
                file = self._paths.find(str(self.path(part.file)), (self._store_name,))
                if file is None:
                    missing = f"{self._store_name} has no {part.file}"
                    yield wire.Chunk(last=final, part=number, problem=missing), _NOTHING
                    continue
                if not is_intact(file, again=request.whole):
                    damaged = f"{self._store_name} has {part.file}, but damaged"
                    yield wire.Chunk(last=final, part=number, problem=damaged), _NOTHING
                    continue
                ranges = [_mapped(file)] if request.whole else _stream(file, part)
            except (OSError, ClusterError, pa.ArrowException) as error:
                yield wire.Chunk(last=final, part=number, problem=str(error)), _NOTHING
                continue
            size = sum(map(len, ranges))
            left = size
            for piece in _pieces(ranges, transfer):
                left -= len(piece)
                yield wire.Chunk(last=final and not left, part=number, size=size), piece

    def _continue(self, peer: bytes, credit: int, link_bytes_s: float) -> None:
        transfer = self._transfers.get(peer)
        if transfer is None:
            return  # late credit, for a transfer whose last chunk has been sent
        self._readers.heard(peer, time.monotonic())
        transfer.link_bytes_s = link_bytes_s
        transfer.credit = min(CREDIT_MAX, transfer.credit + credit)
        try:
            while transfer.credit > 0:
                header, chunk = self._packed(*next(transfer.chunks), transfer)
                transfer.credit -= 1
                frames: list[bytes | memoryview] = [peer, wire.encode_message(header), chunk]
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=len(chunk) < _COPIED_BYTES)
                if header.last:
                    self._end(peer)
                    return
        except Exception as error:  # noqa: BLE001 - one bad request must not end the service
            self._fail(peer, error)

    def _packed(
        self, header: wire.Chunk, chunk: memoryview, transfer: _Transfer
    ) -> tuple[wire.Chunk, memoryview]:
        """A chunk as it is sent: compressed, if that pays on its way."""
        compression, processor = transfer.compression, self._processor.share
        small = len(chunk) < _COMPRESSED_BYTES_MIN
        if small or not compression.pays(transfer.link_bytes_s, processor):
            return header, chunk
        began_s = time.thread_time()
        packed = memoryview(CODEC.compress(pa.py_buffer(chunk))).cast("B")
        compression.compressed(len(chunk), len(packed), time.thread_time() - began_s)
        if len(packed) >= len(chunk):
            return header, chunk
        return msgspec.structs.replace(header, raw=len(chunk)), packed

    def _fail(self, peer: bytes, error: Exception) -> None:
        self._end(peer)
        self._reply(peer, wire.Failure(str(error)))

    def _end(self, peer: bytes) -> None:
        """A transfer is over."""
        self._transfers.pop(peer, None)
        self._readers.forget(peer)

    # The end

    def stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._sockets.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._workers.shutdown(wait=False, cancel_futures=True)
        if self._sealed is not None:
            self._sealed.stop()
        self._sockets.close()


def _scheduled() -> tuple[int, int]:
    """For how many nanoseconds this thread has run, and waited to run, if Linux tells."""
    try:
        ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return int(ran), int(waited)


def _pieces(ranges: Sequence[memoryview], transfer: _Transfer) -> Iterator[memoryview]:
    """The bytes of a part in chunks as the link takes them; an empty one if there are none."""
    for view in [some for some in ranges if some] or [_NOTHING]:
        start = 0
        while start == 0 or start < len(view):
            size = chunk_bytes(transfer.link_bytes_s, first=not transfer.has_begun)
            transfer.has_begun = True
            yield view[start : start + size]
            start += size


def _mapped(path: Path) -> memoryview:
    return memoryview(pa.memory_map(str(path)).read_buffer()).cast("B")


def _stream(path: Path, part: wire.Part) -> list[memoryview]:
    """Record batches of a file as the bytes of an Arrow stream: ranges of the file itself.

    A file has the messages of a stream after its magic number (Arrow columnar format, "IPC File
    Format").
    """
    status = path.stat()
    index = _index(str(path), status.st_ino, status.st_mtime_ns)
    last = index.batches if part.last is None else part.last
    if not 0 <= part.first <= last <= index.batches:
        raise ClusterError(f"{part.file} has {index.batches} batches, not {part.first} to {last}.")
    data = _mapped(path)
    ranges: list[tuple[int, int]] = []
    number = 0
    for is_batch, start, end in index.messages:
        is_asked_for = part.first <= number < last if is_batch else number < max(last, 1)
        number += is_batch
        if is_asked_for and ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        elif is_asked_for:
            ranges.append((start, end))
    return [data[start:end] for start, end in ranges]


@dataclass(frozen=True, slots=True)
class _Index:
    """The messages of an Arrow file: whether each is a record batch, where it starts and ends."""

    messages: tuple[tuple[bool, int, int], ...]
    batches: int


@lru_cache(_INDICES_MAX)
def _index(path: str, inode: int, changed_ns: int) -> _Index:
    """The messages of a file, which does not change; a new one of its name has other numbers."""
    del inode, changed_ns
    mapped = pa.memory_map(path)
    batches = pa.ipc.open_file(mapped).num_record_batches
    mapped.seek(_MAGIC_BYTES)
    reader = pa.ipc.MessageReader.open_stream(mapped)
    messages = []
    start = _MAGIC_BYTES
    with contextlib.suppress(StopIteration):
        while True:
            kind = reader.read_next_message().type
            messages.append((kind == "record batch", start, mapped.tell()))
            start = mapped.tell()
    return _Index(tuple(messages), batches)
