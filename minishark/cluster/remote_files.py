"""Files on other hosts: fetched chunk by chunk from the services that store them.

Flow control by credit: the reader grants credit for a few chunks and renews it as it reads, so that
neither side has more than those in memory.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterable

import pyarrow as pa
import zmq

from minishark.cluster import wire
from minishark.cluster.connections import Connections, NoAnswerError
from minishark.errors import ClusterError
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.store import InputMissingError

_CREDIT = 8  # chunks
_ANSWER_MAX_S = 4.0
_SILENCE_MAX_S = 10.0  # between chunks
_REPLICATION_MAX_S = 300.0
_DEAD_S = 2.0
_UNWANTED_MAX = 10_000  # files; more are left until their session ends
_PROBE_S = 0.5
_CREDIT_MESSAGE = wire.encode_message(wire.Credit(1))


class RemoteFiles:
    """Fetches and replicates files of other hosts; a `worker.store.Fetcher`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._silent: dict[str, float] = {}  # when a service did not answer, by its address
        self._unwanted: dict[str, None] = {}
        self._holders: dict[str, None] = {}  # services that may have some of these
        self._lock = threading.Lock()  # guards the two above

    def fetch(self, source: StoreLocation, item: FileSlice) -> pa.Table:
        try:
            self._check_silent(source)
            with self._connections.socket(source.service) as socket:
                socket.send(
                    wire.encode_message(wire.Fetch(item.file, item.first, item.last, _CREDIT))
                )
                stream = _ChunkStream(self._connections, socket)
                with pa.PythonFile(stream, mode="r") as file, pa.ipc.open_stream(file) as reader:
                    table = reader.read_all()
                stream.finish()
                return table
        except NoAnswerError as error:
            self._silent[source.service] = time.monotonic()
            raise InputMissingError(f"{source.name}: {error}") from error
        except (ClusterError, pa.ArrowException) as error:
            raise InputMissingError(f"{source.name}: {error}") from error

    def _check_silent(self, source: StoreLocation) -> None:
        """Fail fast for a service that did not answer before, unless it does now."""
        # Each task that reads from a dead node would wait for the full timeout otherwise.
        since = self._silent.get(source.service)
        if since is None:
            return
        if time.monotonic() < since + _PROBE_S:
            raise InputMissingError(f"{source.name} does not answer")
        self._connections.call(source.service, wire.Hello(wire.own_versions()), _PROBE_S)
        self._silent.pop(source.service, None)

    def replicate(self, file: str, source: StoreLocation, target: StoreLocation) -> None:
        try:
            self._check_silent(target)
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
                self._holders.update((each.service, None) for each in holders)

    def remove_unwanted(self) -> None:
        """Have other hosts delete what they were to delete soon; to be called now and then."""
        with self._lock:
            files, holders = tuple(self._unwanted), tuple(self._holders)
            self._unwanted.clear()
            self._holders.clear()
        if files:
            # Who does not answer removes them with the session.
            self._connections.call_all(holders, wire.RemoveCopies(files), _ANSWER_MAX_S)

    def _awaited(self, socket: zmq.Socket[bytes], target: StoreLocation) -> wire.Reply:
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


class _ChunkStream(io.RawIOBase):
    """The chunks of a file as a stream for pyarrow."""

    def __init__(self, connections: Connections, socket: zmq.Socket[bytes]) -> None:
        self._connections = connections
        self._socket = socket
        self._chunk = memoryview(b"")
        self._last = False
        self._patience_s = _ANSWER_MAX_S

    def read(self, size: int = -1) -> bytes:
        """The next bytes; fewer than `size` only at the end."""
        parts = []
        while size and (self._chunk or self._next()):
            part = self._chunk if size < 0 else self._chunk[:size]
            self._chunk = self._chunk[len(part) :]
            size -= len(part) if size > 0 else 0
            parts.append(part)
        return b"".join(parts)

    def _next(self) -> bool:
        """Receive the next chunk; whether there is one."""
        if self._last:
            return False
        header, *frames = self._connections.receive(self._socket, self._patience_s)
        self._patience_s = _SILENCE_MAX_S
        match self._connections.decoded(header):
            case wire.Chunk(last) if frames:
                self._last = last
            case wire.Failure(message):
                raise InputMissingError(message)
            case other:
                raise InputMissingError(f"unexpected reply {other}")
        if not self._last:
            self._socket.send(_CREDIT_MESSAGE)
        self._chunk = memoryview(frames[0])
        return bool(self._chunk) or self._next()

    def finish(self) -> None:
        while self._next():
            self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True
