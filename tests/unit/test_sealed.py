"""Large transfers over connections of their own: who gets what, and what happens to bent bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from machine_kit.endpoint import Endpoint
from machine_kit.keys import Keys, generate
from minishark.cluster import links, sealed, service, wire
from minishark.cluster.connections import Connections
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.store import InputMissingError, Store

FILE = "s-1/0.arrow"
CHUNKS = [
    (wire.Chunk(last=False, part=0, size=9), memoryview(b"secret")),
    (wire.Chunk(last=True, part=0, size=9), memoryview(b"two")),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for long."""
    monkeypatch.setattr(sealed, "_SILENCE_S", 2.0)


@pytest.fixture
def sender() -> Iterator[sealed.Sender]:
    """One that has nothing to send yet."""
    sockets, is_over = Endpoint(), threading.Event()

    def wait() -> None:
        while not is_over.is_set():
            sockets.wait(1.0)

    made = sealed.Sender("127.0.0.1", sockets)
    thread = threading.Thread(target=wait)
    thread.start()
    yield made
    is_over.set()
    sockets.wake()
    thread.join()
    made.stop()
    sockets.close()


def received(offer: wire.Sealed) -> list[bytes]:
    """What comes."""
    found: list[bytes] = []
    sealed.receive("127.0.0.1", offer, lambda _, chunk: found.append(bytes(chunk)), lambda: False)
    return found


def told(port: int, *pieces: bytes) -> bytes:
    """What somebody gets who connects and says that, until the connection is closed."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), 5.0) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in pieces:
            peer.sendall(data)
            time.sleep(0.01 * (data != pieces[-1]))
        with contextlib.suppress(ConnectionResetError):  # what it has said was not read
            while some := peer.recv(1 << 16):
                found += some
    return found


def test_an_offer_is_taken_up_once(sender: sealed.Sender) -> None:
    """Whoever comes later with the ticket gets nothing; nothing is legible on the way."""
    offer = sender.offer(CHUNKS)
    assert offer is not None
    assert [b"secret", b"two"] == received(offer)
    assert b"" == told(sender.port, offer.ticket)
    again = sender.offer(CHUNKS)
    assert again is not None
    assert (offer.key, offer.ticket) != (again.key, again.ticket)
    seen = told(sender.port, again.ticket)
    assert len(seen) > len(b"secrettwo")
    assert b"secret" not in seen
    assert repr(again.key) not in repr(again)
    assert repr(again.ticket) not in repr(again)


def test_strangers_get_nothing(sender: sealed.Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those with another ticket, with a part of one, or who say nothing; nor after a while."""
    monkeypatch.setattr(sealed, "_TICKET_S", 0.2)
    offer = sender.offer(CHUNKS)
    assert offer is not None
    for data in (bytes(16), offer.ticket[:15], b""):
        assert b"" == told(sender.port, data)
    monkeypatch.setattr(sealed, "_TICKET_S", 5.0)
    assert told(sender.port, offer.ticket[:7], offer.ticket[7:]), "a ticket may come in pieces"
    monkeypatch.setattr(sealed, "_TICKET_S", 0.0)
    old = sender.offer(CHUNKS)
    assert old is not None
    sender.tidy()
    assert b"" == told(sender.port, old.ticket)


def test_nothing_is_left_of_a_sender_that_stops(sender: sealed.Sender) -> None:
    """Whoever is connected hears of it at once; what was offered is not kept."""
    assert sender.offer(CHUNKS) is not None
    with socket.create_connection(("127.0.0.1", sender.port), 5.0) as peer:
        _wait(lambda: bool(sender._open))
        sender.stop()
        assert b"" == peer.recv(1)
    assert not sender._offers
    _wait(lambda: not sender._open)


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_offers_are_bounded(sender: sealed.Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further readers are served otherwise."""
    monkeypatch.setattr(sealed, "_OFFERS_MAX", 2)
    found = [sender.offer(CHUNKS) for _ in range(3)]
    assert [False, False, True] == [each is None for each in found]
    assert found[0] is not None
    received(found[0])


def test_nothing_can_be_changed_on_the_way(sender: sealed.Sender) -> None:
    """A bent, missing, repeated or moved message is noticed, wherever it is; so is another key."""
    offer = sender.offer(CHUNKS)
    assert offer is not None
    seen = told(sender.port, offer.ticket)
    head, chunk = (int.from_bytes(seen[i : i + 4]) for i in (0, 4))
    first = 8 + head + 16 + chunk + 16
    bent = [seen[:i] + bytes([seen[i] ^ 1]) + seen[i + 1 :] for i in range(len(seen))]
    bent += [seen[first:], seen[:first] * 2 + seen[first:], seen[:first], seen[:-1]]
    for data in bent:
        with pytest.raises((sealed.BrokenError, sealed.NotReachedError)):
            received(wire.Sealed(_relayed(data), offer.ticket, offer.key))
    with pytest.raises(sealed.BrokenError, match="was changed"):
        received(wire.Sealed(_relayed(seen), offer.ticket, bytes(32)))
    assert [b"secret", b"two"] == received(wire.Sealed(_relayed(seen), offer.ticket, offer.key))


def _relayed(data: bytes) -> int:
    """The port where somebody says that to the next who comes."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as peer:
            peer.recv(16, socket.MSG_WAITALL)
            peer.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


@pytest.fixture
def keys() -> Keys:
    """Of all."""
    made = generate()
    return Keys(made.public, made.secret, (made.public,))


@pytest.fixture
def source(tmp_path: Path, keys: Keys) -> Iterator[tuple[Service, StoreLocation]]:
    """The node n0, which serves files over tcp."""
    paths = StorePaths(tmp_path / "memory", tmp_path / "disk")
    for path in (paths.memory, paths.disk):
        path.mkdir()
    paths.make("s-1", ("n0",))
    serving = Service("tcp://127.0.0.1:*", paths, "n0", keys=keys)
    serving.start()
    yield serving, StoreLocation("n0", "far", "", "", serving.endpoint)
    serving.stop()


def test_large_files_come_sealed(
    tmp_path: Path,
    keys: Keys,
    source: tuple[Service, StoreLocation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where both can; else, and on slow links, over ZeroMQ. What comes is the same."""
    offers: list[wire.Sealed | None] = []
    serving, location = source
    assert serving._sealed is not None
    offer = serving._sealed.offer

    def noted(chunks: sealed.Chunks) -> wire.Sealed | None:
        offers.append(offer(chunks))
        return offers[-1]

    monkeypatch.setattr(serving._sealed, "offer", noted)
    monkeypatch.setattr(links.Compression, "pays", lambda *_: False)
    written = pa.table({"x": pa.array(range(400_000), pa.int64())})
    paths = StorePaths(tmp_path / "memory", tmp_path / "disk")
    Store(paths, "n0").write(FILE, written.schema, [written.to_batches(100_000)])
    connections = Connections(keys)
    files = RemoteFiles(connections)

    def fetched(item: FileSlice) -> pa.Table | InputMissingError:
        (found,) = files.fetch([(location, item)])
        return found

    whole = FileSlice(FILE, ("n0",))
    try:
        assert fetched(whole) == written
        assert fetched(FileSlice(FILE, ("n0",), 1, 2)) == written.slice(100_000, 100_000)
        assert 0 == len(offers), "these are not large"
        monkeypatch.setattr(service, "_SEALED_BYTES_MIN", 1 << 20)
        assert fetched(whole) == written
        assert 1 == len(offers)
        assert files.take_received()["n0"] >= 2 * written.nbytes
        with monkeypatch.context() as patch:
            patch.setattr(sealed, "is_available", lambda: False)
            assert fetched(whole) == written
            patch.setattr(sealed, "is_available", lambda: True)
            patch.setattr(links.Compression, "pays", lambda *_: True)
            assert fetched(whole) == written
        assert 1 == len(offers)
        serving._sealed.stop()
        assert fetched(whole) == written, "the port can't be reached"
        assert {location.service} == files._unsealed.keys()
    finally:
        connections.close()


def test_a_sender_that_stops_half_way(
    keys: Keys, source: tuple[Service, StoreLocation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as one that does not answer: the next location is asked, and soon ZeroMQ."""
    serving, location = source
    monkeypatch.setattr(service, "_SEALED_BYTES_MIN", 0)
    monkeypatch.setattr(serving, "_chunks", lambda *_: iter(CHUNKS[:1]))
    connections = Connections(keys)
    files = RemoteFiles(connections)
    try:
        (found,) = files.fetch([(location, FileSlice(FILE, ("n0",)))])
        assert isinstance(found, InputMissingError)
        assert found.is_silent
        assert {location.service} == files._unsealed.keys()
    finally:
        connections.close()


def test_a_fetch_that_fails_at_once(
    keys: Keys, source: tuple[Service, StoreLocation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with it, the service tells the reader and answers the next request."""
    serving, location = source

    def fails() -> Iterator[tuple[wire.Chunk, memoryview]]:
        yield from ()
        raise ValueError("something else")

    monkeypatch.setattr(serving, "_chunks", lambda *_: fails())
    connections = Connections(keys)
    try:
        for _ in range(2):
            (found,) = RemoteFiles(connections).fetch([(location, FileSlice(FILE, ("n0",)))])
            assert "something else" in str(found)
    finally:
        connections.close()
