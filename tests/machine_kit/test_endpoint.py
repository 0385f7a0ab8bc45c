"""Where a process listens, and what its loop waits for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from machine_kit.endpoint import Endpoint, Socket, Sockets
from machine_kit.errors import InsecureTransport, TransportError
from machine_kit.keys import Keys, generate
from machine_kit.refusal import is_listening, refuses

ANY_PORT = "tcp://127.0.0.1:*"
PEER = {zmq.LINGER: 0, zmq.RECONNECT_IVL: 5}
WAIT_S = 20.0


class Listener:
    """An endpoint that notes what comes."""

    def __init__(self, keys: Keys | None = None) -> None:
        self.endpoint = Endpoint(keys)
        self.received: list[bytes] = []

    def listen(self, endpoint: str) -> str:
        return self.endpoint.listen(zmq.PULL, endpoint, self._receive)[1]

    def _receive(self, inbox: Socket) -> None:
        self.received.append(inbox.recv())

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "it has not come"
            self.endpoint.wait(0.05)


@pytest.fixture
def opened() -> Iterator[list[Sockets | Socket]]:
    """What is closed afterwards."""
    sockets: list[Sockets | Socket] = []
    yield sockets
    for each in reversed(sockets):
        each.close()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder for sockets."""
    tmp_path.chmod(0o700)
    return tmp_path


def test_messages_come_over_ipc(private: Path, opened: list[Sockets | Socket]) -> None:
    """Each calls back; the file of the socket is gone at the end."""
    here, there = Listener(), Sockets()
    opened.append(there)
    where = here.listen(f"ipc://{private}/a.sock")
    peer = there.connected(zmq.PUSH, where, PEER)
    opened.append(peer)
    peer.send(b"hello")
    here.wait_until(lambda: here.received)
    assert [b"hello"] == here.received
    assert is_listening(where)
    assert not refuses(where)
    here.endpoint.close()
    assert not (private / "a.sock").exists()
    assert not is_listening(where)
    assert refuses(where)


def test_whoever_is_on_the_list_is_admitted(opened: list[Sockets | Socket]) -> None:
    """By any of an endpoint's inboxes; others are counted, and nothing of theirs comes."""
    friend, stranger = generate(), generate()
    pair = generate()
    here = Listener(Keys(pair.public, pair.secret, (friend.public,)))
    opened.append(here.endpoint)
    places = [here.listen(ANY_PORT) for _ in range(2)]
    assert all(place.endswith(f"/{pair.public}") for place in places)
    for keys, name in ((stranger, b"stranger"), (friend, b"friend")):
        sockets = Sockets(keys)
        opened.append(sockets)
        for place in places:
            peer = sockets.connected(zmq.PUSH, place, PEER)
            opened.append(peer)
            peer.send(name)
    here.wait_until(lambda: here.endpoint.refused >= 2 and len(here.received) == 2)
    assert [b"friend", b"friend"] == here.received


def test_the_server_is_known_by_its_key(opened: list[Sockets | Socket]) -> None:
    """What is sent to another key at the same port does not arrive."""
    friend, pair, other = generate(), generate(), generate()
    here = Listener(Keys(pair.public, pair.secret, (friend.public,)))
    sockets = Sockets(friend)
    opened += [here.endpoint, sockets]
    place = here.listen(ANY_PORT)
    wrong = sockets.connected(zmq.PUSH, place.replace(pair.public, other.public), PEER)
    wrong.send(b"for another")
    right = sockets.connected(zmq.PUSH, place, PEER)
    right.send(b"for you")
    opened += [wrong, right]
    here.wait_until(lambda: here.received)
    assert [b"for you"] == here.received


def test_what_is_insecure_is_refused(tmp_path: Path, opened: list[Sockets | Socket]) -> None:
    """Tcp without keys on either side, a folder that is open to others, and nonsense."""
    here, keyless = Endpoint(), Sockets()
    opened += [here, keyless]
    with pytest.raises(InsecureTransport, match="tcp needs keys"):
        here.listen(zmq.PULL, ANY_PORT, lambda _: None)
    tmp_path.chmod(0o755)
    with pytest.raises(InsecureTransport, match="0700"):
        here.listen(zmq.PULL, f"ipc://{tmp_path}/a.sock", lambda _: None)
    with pytest.raises(InsecureTransport, match="tcp needs keys"):
        keyless.connected(zmq.PUSH, f"tcp://127.0.0.1:9/{generate().public}", PEER)
    with pytest.raises(InsecureTransport, match="neither"):
        keyless.connected(zmq.PUSH, "tcp://127.0.0.1:9", PEER)


def test_what_cannot_be_is_an_error(private: Path, opened: list[Sockets | Socket]) -> None:
    """A folder that is not there, and sockets that are closed."""
    here = Endpoint()
    opened.append(here)
    with pytest.raises(TransportError, match="cannot listen at"):
        here.listen(zmq.PULL, f"ipc://{private}/none/a.sock", lambda _: None)
    closed = Sockets()
    closed.close()
    with pytest.raises(TransportError, match="cannot connect to"):
        closed.connected(zmq.PUSH, f"ipc://{private}/a.sock", PEER)


def test_another_thread_wakes_the_loop(private: Path) -> None:
    """However often it does; after the end it has no effect."""
    here = Endpoint()
    here.listen(zmq.PULL, f"ipc://{private}/a.sock", lambda _: None)
    waker = threading.Thread(target=lambda: [here.wake() for _ in range(100_000)])
    waker.start()
    here.wait(WAIT_S)
    waker.join()
    here.close()
    descriptor = os.open(private / "file", os.O_CREAT | os.O_RDWR)  # may be the pipe's number
    here.wake()
    assert 0 == os.fstat(descriptor).st_size
    os.close(descriptor)


def test_files_are_watched(opened: list[Sockets | Socket]) -> None:
    """Until that is ended; a callback may end it for another that is ready, too."""
    here = Endpoint()
    opened.append(here)
    read, write = zip(*(os.pipe() for _ in range(2)), strict=True)
    called: list[int] = []

    def on_readable(number: int) -> None:
        called.append(number)
        for each in read:
            here.unwatch(each)

    for number, each in enumerate(read):
        here.watch(each, lambda number=number: on_readable(number))  # type: ignore[misc]
        os.write(write[number], b"x")
    here.wait(WAIT_S)
    here.wait(0.0)
    assert 1 == len(called)
    for each in (*read, *write):
        os.close(each)


def test_the_end_of_a_peer_is_noticed(private: Path, opened: list[Sockets | Socket]) -> None:
    """By a monitor, which goes with the socket that it is for."""
    here, there = Endpoint(), Listener()
    opened.append(here)
    where = there.listen(f"ipc://{private}/a.sock")
    peer = here.connected(zmq.PUSH, where, PEER)
    told: list[int] = []
    events = zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED
    monitor = here.monitor(peer, events, told.extend)
    peer.send(b"hello")
    there.wait_until(lambda: there.received)
    assert [] == told
    there.endpoint.close()
    deadline = time.monotonic() + WAIT_S
    while zmq.Event.DISCONNECTED not in told:
        assert time.monotonic() < deadline
        here.wait(0.05)
    here.drop(peer, monitor)
    assert peer.closed
    assert monitor.closed
    here.wait(0.0)
