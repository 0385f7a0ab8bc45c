"""A process's mailbox: multipart messages over ZeroMQ, and through shared memory on its host.

The first frame of a message is its header, the others are buffers that follow it without being
copied into it (pickle protocol 5). One inbox for each transport, one outgoing socket for each peer,
and a ring (runtime/ring.py) for each peer of the same host, which also has a socket: that tells of
deaths, wakes the peer if it sleeps, and takes messages that don't fit in the ring. Messages between
two processes arrive once as long as both live, and in order but for those that overtake a large
one. Everything but `wake` belongs to one thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import zmq

from canary_core.runtime.ring import IS_SUPPORTED, RingReader, RingWriter, default_capacity
from machine_kit.endpoint import Endpoint, Socket
from machine_kit.keys import Keys, check_private
from machine_kit.refusal import is_listening

Data = bytes | memoryview
Frames = list[memoryview]

# No limit of their own: what may be on its way is bounded by how far workers run ahead.
_INBOX = {zmq.RCVHWM: 0}
_PEER = {
    zmq.LINGER: 0,
    zmq.SNDHWM: 0,
    # Answered by ZeroMQ's own thread: also in a long task, but not by a suspended process.
    zmq.HEARTBEAT_IVL: 1_000,
    zmq.HEARTBEAT_TIMEOUT: 8_000,
    zmq.RECONNECT_IVL: 5,
    zmq.RECONNECT_IVL_MAX: 100,
}
_EVENTS, _POLLIN, _RCVMORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
_BATCH = 256  # messages of one turn, so that a flood does not keep the loop from its tasks
_MESSAGE, _RING, _WAKE = b"\0", b"\1", b"\2"  # what a socket brings, by its first byte
_SPIN_S = 1e-3  # peers are awaited so long before a sleep: to be woken takes a tenth of that
_CROWDED_S = 5e-4  # to yield takes a microsecond if nobody else needs the core, or a whole slice
_CROWDED_FOR_S = 0.01
_SOCKETS_S = 1e-3  # while there is something to do, sockets are looked at this often


@dataclass(frozen=True, slots=True)
class Route:
    """Where a process receives messages.

    Attributes:
        host: processes with the same host reach each other over ipc.
        ipc: `ipc://path`.
        tcp: `tcp://host:port/<public key>`; empty if there is only one host.
    """

    host: str
    ipc: str
    tcp: str = ""

    @property
    def endpoint(self) -> str:
        """The route as text, which is the first part of the addresses of a process's machines."""
        return f"{self.host}|{self.ipc}|{self.tcp}"


@lru_cache(4096)
def route_of(endpoint: str) -> Route:
    """The inverse of `Route.endpoint`; ValueError for other texts."""
    host, ipc, tcp = endpoint.split("|")
    return Route(host, ipc, tcp)


class Mailbox:
    """Sends to routes, and receives what others send to its own."""

    def __init__(
        self,
        ipc: Path,
        host: str = "",
        *,
        tcp: str = "",
        keys: Keys | None = None,
        rings: Path | None = None,
    ) -> None:
        """Bind the inboxes.

        Args:
            ipc: The socket's path, in a folder of mode 0700.
            host: An id of this host.
            tcp: `tcp://address:port` ("*": any free port), to be reached from other hosts.
            keys: Needed for tcp.
            rings: A folder in shared memory, of mode 0700, for rings to peers of this host; without
                it, all is sent by sockets.

        Raises:
            TransportError: It can't be listened there.
            InsecureTransport: tcp without keys, or a socket in a folder open to others.
        """
        check_private(ipc)
        self._folder = rings if IS_SUPPORTED else None
        self._writers: dict[str, RingWriter] = {}  # by ipc
        self._readers: dict[str, RingReader] = {}
        self._rings_made = 0
        self._no_files = select.poll()
        self._looked_at = self._crowded_until = 0.0
        self._lost: list[Route] = []
        self._ipc = ipc
        self._taken: list[Frames] = []  # what sockets have brought
        self._peers: dict[str, tuple[Socket, Socket]] = {}  # each with its monitor
        self._sockets = Endpoint(keys)
        try:
            _, own = self._sockets.listen(zmq.PULL, f"ipc://{ipc}", self._take, options=_INBOX)
            if tcp:
                _, tcp = self._sockets.listen(zmq.PULL, tcp, self._take, options=_INBOX)
        except BaseException:
            self.close()
            raise
        self.route = Route(host, own, tcp)

    def send(self, to: Route, header: Data, buffers: Sequence[Data] = ()) -> None:
        """Send a message; one to a dead process is dropped in the end.

        Large buffers are not copied: they must not change until they are on their way.

        Raises:
            InsecureTransport: The route is not authenticated, or leads to another host while this
                process has no keys.
        """
        where = self._endpoint_of(to)
        before = self._peers.get(where)
        peer = self._add_peer(where, to) if before is None else before[0]
        ring = self._writers.get(where)
        if ring is not None and ring.write((header, *buffers)):
            if ring.must_wake():
                peer.send(_WAKE, zmq.NOBLOCK)
        elif buffers:
            peer.send_multipart([_MESSAGE + header, *buffers], zmq.NOBLOCK, copy=False)
        else:
            peer.send(_MESSAGE + header, zmq.NOBLOCK)

    def _add_peer(self, where: str, route: Route) -> Socket:
        peer = self._sockets.connected(zmq.PUSH, where, _PEER)
        # Retried: nobody listens. Who sends here knows the address from somebody who did.
        events = zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED
        monitor = self._sockets.monitor(peer, events, lambda _: self._disconnect(where, route))
        self._peers[where] = (peer, monitor)
        if self._folder is not None and where == route.ipc:
            self._rings_made += 1
            path = self._folder / f"{self._ipc.stem}-{self._rings_made}.ring"
            with contextlib.suppress(OSError):  # no room: the socket does
                self._writers[where] = RingWriter(path, default_capacity())
                names = [os.fsencode(path), self.route.ipc.encode()]
                peer.send_multipart([_RING, *names], zmq.NOBLOCK)
        return peer

    def is_listening(self, route: Route) -> bool:
        """Whether a process that seems to be lost is merely suspended, or was."""
        return is_listening(self._endpoint_of(route))

    def _endpoint_of(self, to: Route) -> str:
        return to.ipc if to.host == self.route.host else to.tcp

    def receive(self, timeout_s: float) -> list[Frames]:
        """The messages that have come; waits for one at most so long, or until `wake`."""
        received: list[Frames] = []
        self._take_from_rings(received)
        if not received and timeout_s:
            self._await(received, timeout_s)
        if time.monotonic() - self._looked_at >= _SOCKETS_S:
            self._look_at_sockets(received, 0.0)
        return received

    def _await(self, received: list[Frames], timeout_s: float) -> None:
        """Wait for messages, first awake."""
        if self._folder is not None and self._readers:
            for reader in self._readers.values():
                reader.wait()
            self._spin(received, min(timeout_s, _SPIN_S))
        if not received:
            for reader in self._readers.values():
                reader.sleep()
            if self.has_mail:
                timeout_s = 0.0
            self._look_at_sockets(received, timeout_s)
        for reader in self._readers.values():
            reader.awake()
        self._take_from_rings(received)

    @property
    def has_mail(self) -> bool:
        """Whether a ring has a message; one that a socket brings is not seen."""
        return any(reader.has_more for reader in self._readers.values())

    def is_awaited(self, route: Route) -> bool:
        """Whether a process waits for messages; one that is reached by a socket may wait."""
        ring = self._writers.get(self._endpoint_of(route))
        return ring is None or ring.is_awaited

    def _take_from_rings(self, received: list[Frames]) -> None:
        for reader in self._readers.values():
            reader.take(received, _BATCH)

    def _spin(self, received: list[Frames], limit_s: float) -> None:
        """Wait for rings without a sleep; whoever needs the core, or Python's lock, has it.

        Where others need the core, one that sleeps is woken sooner than one that yields has its
        turn again: for a while, nothing is awaited in this way.
        """
        now = time.monotonic()
        end = now + limit_s
        while not received and self._crowded_until <= now < end:
            os.sched_yield()
            self._no_files.poll(0)  # gives up Python's lock; time.sleep(0) takes a timer's slack
            self._take_from_rings(received)
            before, now = now, time.monotonic()
            if now - before > _CROWDED_S:
                self._crowded_until = now + _CROWDED_FOR_S

    def _look_at_sockets(self, received: list[Frames], timeout_s: float) -> None:
        self._sockets.wait(timeout_s)
        received += self._taken
        self._taken.clear()
        self._looked_at = time.monotonic()

    def _disconnect(self, where: str, route: Route) -> None:
        """A process has died: it must not be called for ever."""
        self._lost.append(route)
        self._sockets.drop(*self._peers.pop(where))
        if (writer := self._writers.pop(where, None)) is not None:
            writer.close()
        reader = self._readers.get(where)
        if reader is not None and reader.is_abandoned:  # else it was suspended, or has reconnected
            reader.take(self._taken, math.inf)
            self._readers.pop(where).close()

    def _take(self, inbox: Socket) -> None:
        for _ in range(_BATCH):
            first = memoryview(inbox.recv())
            frames = [first[1:]]
            while inbox.get(_RCVMORE):
                frames.append(inbox.recv(copy=False).buffer)
            if first[:1] == _MESSAGE:
                self._taken.append(frames)
            elif first[:1] == _RING and len(frames) == 3:
                path, where = frames[1:]
                self._open(Path(os.fsdecode(bytes(path))), bytes(where).decode())
            if not int(inbox.get(_EVENTS)) & _POLLIN:
                return

    def _open(self, path: Path, where: str) -> None:
        earlier = self._readers.pop(where, None)
        if earlier is not None:
            earlier.take(self._taken, math.inf)
            earlier.close()
        with contextlib.suppress(FileNotFoundError):  # its writer has closed it again
            self._readers[where] = RingReader(path)

    def lost(self) -> list[Route]:
        """Processes whose connection broke since the last call, or could not be made.

        That is at once if a process dies, and after seconds if it is suspended or its host is gone.
        """
        lost, self._lost = self._lost, []
        return lost

    def wake(self) -> None:
        """Make `receive` return soon. Thread-safe."""
        self._sockets.wake()

    def close(self, linger_s: float = 0.0) -> None:
        """Close everything, and remove the files; what is not sent yet has `linger_s`."""
        for writer in self._writers.values():
            writer.close()
        for reader in self._readers.values():
            reader.close()
        self._writers.clear()
        self._readers.clear()
        self._sockets.close(linger_s)
