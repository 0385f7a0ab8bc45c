"""Files on other hosts: fetched chunk by chunk from the services that store them.

One request to each host names all that a task reads from there, so that the number of files costs
no round trips. Flow control by credit: the reader grants credit for as many chunks as the link
takes and renews it as it reads, so that neither side has more than those in memory.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from machine_kit.endpoint import Socket
from machine_kit.keys import split_endpoint
from minishark.cluster import sealed, wire
from minishark.cluster.connections import Connections, NoAnswerError
from minishark.cluster.links import Link
from minishark.cluster.service import CODEC
from minishark.errors import ClusterError
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.store import InputMissingError, RawSink

_ANSWER_MAX_S = 4.0
_SILENCE_MAX_S = 10.0  # between chunks
_REPLICATION_MAX_S = 300.0
_DEAD_S = 2.0
_UNWANTED_MAX = 10_000  # files; more are left until their session ends
_REMOVALS_MAX = 5  # times that a silent service is asked again to remove files
_PROBE_S = 0.5
_UNSEALED_S = 60.0
_HOSTS_AT_ONCE = 8
_REDIRECTIONS_MAX = 3
_QUEUE_MAX_S = 60.0  # until the source is asked to send a file that others are to pass on
_QUEUE_STEP_S = 0.05

Received = Callable[[wire.Chunk, memoryview], None]


class RemoteFiles:
    """Fetches and replicates files of other hosts; a `worker.store.Fetcher`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._silent: dict[str, float] = {}  # when a service did not answer, by its address
        self._links: dict[str, Link] = {}
        # Services whose port for sealed transfers is of no use, and when it is tried again.
        self._unsealed: dict[str, float] = {}
        self._received: Counter[str] = Counter()  # bytes on the wire, by the sender's name
        self._unwanted: dict[str, None] = {}
        self._holders: dict[str, None] = {}  # services that may have some of these
        self._unheard: dict[str, int] = {}  # how often services did not answer that
        self._lock = threading.Lock()  # guards the six above

    def take_received(self) -> dict[str, int]:
        with self._lock:
            received, self._received = dict(self._received), Counter()
        return received

    def fetch(
        self, slices: Sequence[tuple[StoreLocation, FileSlice]]
    ) -> list[pa.Table | InputMissingError]:
        groups: dict[str, list[int]] = {}
        for number, (source, _) in enumerate(slices):
            groups.setdefault(source.service, []).append(number)
        tables: list[pa.Table | InputMissingError] = [_UNASKED] * len(slices)

        def ask(numbers: list[int]) -> None:
            items = [slices[number][1] for number in numbers]
            answers = self._fetch_from(slices[numbers[0]][0], items)
            for number, answer in zip(numbers, answers, strict=True):
                tables[number] = answer

        if len(groups) == 1:
            ask(*groups.values())
        elif groups:
            with ThreadPoolExecutor(min(_HOSTS_AT_ONCE, len(groups)), "minishark-fetch") as pool:
                list(pool.map(ask, groups.values()))
        return tables

    def _fetch_from(
        self, source: StoreLocation, items: Sequence[FileSlice]
    ) -> list[pa.Table | InputMissingError]:
        parts = tuple(wire.Part(item.file, item.first, item.last) for item in items)
        held = _Streams(len(parts))
        try:
            self._transfer(source.service, source.name, wire.Fetch(parts=parts, credit=0), held.put)
        except InputMissingError as error:
            return [error if isinstance(t, InputMissingError) else t for t in held.tables("")]
        return held.tables(source.name)

    def copy(self, source: StoreLocation, file: str, sink: RawSink, reader: str = "") -> None:
        put = _into(sink, source.name)
        whole = wire.Fetch(parts=(wire.Part(file),), credit=0, whole=True)
        ours = msgspec.structs.replace(whole, reader=reader)
        deadline = time.monotonic() + _QUEUE_MAX_S
        for _ in range(_REDIRECTIONS_MAX):
            other = self._transfer(source.service, source.name, ours, put)
            while other is not None and not other.service and time.monotonic() < deadline:
                if self._connections.interrupted.wait(_QUEUE_STEP_S):
                    raise InputMissingError(f"{source.name}: interrupted")
                other = self._transfer(source.service, source.name, ours, put)
            if other is None or (other.service and self._copied_from(other, source.name, sink)):
                return
        self._transfer(source.service, source.name, whole, put)  # it can't refuse this

    def _copied_from(self, other: wire.Elsewhere, name: str, sink: RawSink) -> bool:
        """Whether a copy of a file could be fetched from where it was said to be."""
        whole = wire.Fetch(parts=(wire.Part(other.file),), credit=0, whole=True)
        try:
            return self._transfer(other.service, name, whole, _into(sink, name)) is None
        except InputMissingError:  # its host is gone, or has removed it
            sink.restart()
            return False

    def announce(self, source: StoreLocation, file: str, reader: str, copy: str) -> None:
        with self._connections.socket(source.service) as socket:
            socket.send(wire.encode_message(wire.Holds(file, reader, copy)))

    @property
    def is_interrupted(self) -> bool:
        return self._connections.interrupted.is_set()

    def _transfer(
        self, service: str, name: str, request: wire.Fetch, received: Received
    ) -> wire.Elsewhere | None:
        """Fetch, and pass on each chunk; None, or where else to ask."""
        try:
            self._check_silent(service, name)
            with self._connections.socket(service) as socket:
                reader = _Reader(self._connections, socket, self._link(service))
                try:
                    return self._read(reader, service, request, received)
                finally:
                    with self._lock:
                        self._received[name] += reader.wire_bytes
        except NoAnswerError as error:
            if not self.is_interrupted:  # which says nothing of the service
                self._silent[service] = time.monotonic()
            raise InputMissingError(f"{name}: {error}", is_silent=True) from error
        except (ClusterError, pa.ArrowException, ValueError) as error:
            raise InputMissingError(f"{name}: {error}") from error

    def _read(
        self, reader: _Reader, service: str, request: wire.Fetch, received: Received
    ) -> wire.Elsewhere | None:
        """Run a fetch: over a connection of its own if that is offered and can be had."""
        again_s = self._unsealed.get(service, 0.0)
        can = sealed.is_available() and time.monotonic() >= again_s
        answer = reader.run(msgspec.structs.replace(request, sealed=can), received)
        if not isinstance(answer, wire.Sealed):
            return answer
        try:
            reader.take_up(answer, service, received)
        except sealed.NotReachedError:
            self._avoid_sealed(service)
            return self._read(reader, service, request, received)
        except sealed.BrokenError as error:
            if not self.is_interrupted:  # something between may cut such connections again
                self._avoid_sealed(service)
            raise NoAnswerError(str(error)) from error
        return None

    def _avoid_sealed(self, service: str) -> None:
        with self._lock:
            self._unsealed[service] = time.monotonic() + _UNSEALED_S

    def _link(self, service: str) -> Link:
        with self._lock:
            return self._links.setdefault(service, Link())

    def _check_silent(self, service: str, name: str) -> None:
        """Fail fast for a service that did not answer before, unless it does now."""
        # Each task that reads from a dead node would wait for the full timeout otherwise.
        since = self._silent.get(service)
        if since is None:
            return
        if time.monotonic() < since + _PROBE_S:
            raise InputMissingError(f"{name} does not answer", is_silent=True)
        self._connections.call(service, wire.Hello(wire.own_versions()), _PROBE_S)
        self._silent.pop(service, None)

    def replicate(self, file: str, source: StoreLocation, target: StoreLocation) -> None:
        try:
            self._check_silent(target.service, target.name)
            with self._connections.socket(target.service) as socket:
                socket.send(wire.encode_message(wire.Replicate(file, source)))
                reply = self._awaited(socket, target)
        except NoAnswerError as error:
            self._silent[target.service] = time.monotonic()
            raise OSError(f"{target.name} can't take a replica: {error}") from error
        except (InputMissingError, ClusterError) as error:
            raise OSError(f"{target.name} can't take a replica: {error}") from error
        if not isinstance(reply, wire.Done):
            raise OSError(f"{target.name} can't take a replica: {reply}")

    def remove_soon(self, holders: Iterable[StoreLocation], file: str) -> None:
        with self._lock:
            if len(self._unwanted) < _UNWANTED_MAX:
                self._unwanted[file] = None
                self._holders.update((store.service, None) for store in holders)

    def remove_unwanted(self) -> None:
        """Have other hosts delete what they were to delete soon; to be called now and then."""
        with self._lock:
            files, holders = tuple(self._unwanted), tuple(self._holders)
            self._unwanted.clear()
            self._holders.clear()
        if files:
            replies = self._connections.call_all(holders, wire.RemoveCopies(files), _ANSWER_MAX_S)
            self._ask_again(files, [holder for holder in holders if holder not in replies])
            for service in replies:
                self._unheard.pop(service, None)

    def _ask_again(self, files: Sequence[str], silent: Sequence[str]) -> None:
        """Who is busy is asked a few times more; others remove the files with the session."""
        with self._lock:
            for service in silent:
                self._unheard[service] = self._unheard.get(service, 0) + 1
                if self._unheard[service] <= _REMOVALS_MAX:
                    self._holders[service] = None
            if self._holders and len(self._unwanted) + len(files) <= _UNWANTED_MAX:
                self._unwanted.update(dict.fromkeys(files))

    def _awaited(self, socket: Socket, target: StoreLocation) -> wire.Reply:
        """Wait for the reply to a long request, as long as the service answers others."""
        deadline = time.monotonic() + _REPLICATION_MAX_S
        frames: list[bytes] = []
        while not frames:
            try:
                frames = self._connections.receive(socket, _DEAD_S)
            except NoAnswerError:
                if self._connections.interrupted.is_set() or time.monotonic() > deadline:
                    raise
                self._connections.call(target.service, wire.Hello(wire.own_versions()), _DEAD_S)
        return self._connections.decoded(frames[0])


_UNASKED = InputMissingError("not asked for")


class _Reader:
    """The reader's side of one fetch."""

    def __init__(self, connections: Connections, socket: Socket, link: Link) -> None:
        self._connections = connections
        self._socket = socket
        self._link = link
        self.wire_bytes = 0

    def run(self, request: wire.Fetch, received: Received) -> wire.Elsewhere | wire.Sealed | None:
        link, credit = self._link, self._link.credit
        asked_s = time.monotonic()
        self._send(msgspec.structs.replace(request, credit=credit, link_bytes_s=link.bytes_s))
        patience_s = _ANSWER_MAX_S
        began_s = 0.0
        first_bytes = 0
        while True:
            frames = self._connections.receive_frames(self._socket, patience_s)
            now = time.monotonic()
            header = self._connections.decoded(frames[0].bytes)
            if isinstance(header, wire.Elsewhere | wire.Sealed):
                return header
            if isinstance(header, wire.Failure):
                raise InputMissingError(header.message)
            if not isinstance(header, wire.Chunk) or len(frames) != 2:
                raise InputMissingError(f"unexpected reply {header}")
            self.wire_bytes += len(frames[1])
            if patience_s == _ANSWER_MAX_S:
                link.answered(now - asked_s)
                began_s, first_bytes = now, self.wire_bytes
                patience_s = _SILENCE_MAX_S
            if not header.last:
                self._send(wire.Credit(1, link.bytes_s))
            chunk = memoryview(frames[1].buffer)
            received(header, _plain(header, chunk))
            if header.last:
                link.transferred(self.wire_bytes - first_bytes, now - began_s)
                return None

    def take_up(self, offer: wire.Sealed, service: str, received: Received) -> None:
        """Receive what is offered over a connection of its own; raises as `sealed.receive`."""
        where, _ = split_endpoint(service)
        host = where.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        began_s, before = time.monotonic(), self.wire_bytes

        def counted(header: wire.Chunk, chunk: memoryview) -> None:
            self.wire_bytes += len(chunk)
            received(header, chunk)

        sealed.receive(host, offer, counted, self._connections.interrupted.is_set)
        self._link.transferred(self.wire_bytes - before, time.monotonic() - began_s)

    def _send(self, request: wire.Request) -> None:
        self._socket.send(wire.encode_message(request))


def _plain(header: wire.Chunk, chunk: memoryview) -> memoryview:
    """A chunk as it was before it was compressed."""
    if not header.raw:
        return chunk
    return memoryview(CODEC.decompress(pa.py_buffer(chunk), header.raw)).cast("B")


@dataclass(slots=True)
class _Stream:
    """A part that is being received."""

    buffer: pa.Buffer
    filled: int = 0


class _Streams:
    """Parts of files as they arrive: each an Arrow stream in one buffer, which its table maps."""

    def __init__(self, count: int) -> None:
        self._streams: list[_Stream | str] = ["it was not sent"] * count

    def put(self, header: wire.Chunk, chunk: memoryview) -> None:
        if header.problem:
            self._streams[header.part] = header.problem
            return
        stream = self._streams[header.part]
        if isinstance(stream, str):
            stream = self._streams[header.part] = _Stream(pa.allocate_buffer(header.size))
        end = stream.filled + len(chunk)
        memoryview(stream.buffer).cast("B")[stream.filled : end] = chunk
        stream.filled = end

    def tables(self, name: str) -> list[pa.Table | InputMissingError]:
        """The table of each part, or why it did not come from the store `name`."""
        return [_table(name, stream) for stream in self._streams]


def _table(name: str, stream: _Stream | str) -> pa.Table | InputMissingError:
    if isinstance(stream, str):
        return InputMissingError(f"{name}: {stream}")
    if stream.filled < stream.buffer.size:
        return InputMissingError(f"{name}: it was not sent completely")
    try:
        return pa.ipc.open_stream(pa.BufferReader(stream.buffer)).read_all()
    except (pa.ArrowException, OSError) as error:
        return InputMissingError(f"{name}: {error}")


def _into(sink: RawSink, name: str) -> Received:
    """Pass on the chunks of a whole file."""

    def put(header: wire.Chunk, chunk: memoryview) -> None:
        if header.problem:
            raise InputMissingError(f"{name}: {header.problem}")
        sink.write(chunk, header.size)

    return put
