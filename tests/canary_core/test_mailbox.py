"""Mailboxes: multipart messages over ipc and over tcp with keys, and deaths of peers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from canary_core.runtime.mailbox import Frames, Mailbox, Route, route_of
from machine_kit.errors import InsecureTransport
from machine_kit.keys import Keys, generate

_ANY_PORT = "tcp://127.0.0.1:*"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a short path."""
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


def _keys() -> Keys:
    keys = generate()
    return structs.replace(keys, allowed=(keys.public,))


def received(
    mailbox: Mailbox, count: int = 1, timeout_s: float = 10.0, wait_s: float = 0.05
) -> list[Frames]:
    found: list[Frames] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        found += mailbox.receive(wait_s)
    return found


@pytest.mark.parametrize("hosts", [("one", "one"), ("one", "other")])
@pytest.mark.parametrize("has_ring", [False, True])
def test_messages_arrive_once_and_in_order(
    folder: Path, hosts: tuple[str, str], has_ring: bool
) -> None:
    """By ring or ipc on a host and over tcp between hosts, with empty, small and large buffers."""
    keys = _keys()
    rings = folder if has_ring else None
    left = Mailbox(folder / "l.sock", hosts[0], tcp=_ANY_PORT, keys=keys, rings=rings)
    right = Mailbox(folder / "r.sock", hosts[1], tcp=_ANY_PORT, keys=keys)
    large = os.urandom(3 << 20)
    for number in range(300):
        left.send(right.route, f"{number}".encode(), [b"", b"x" * number] if number % 2 else [])
    left.send(right.route, b"large", [memoryview(large), b"end"])
    found = received(right, 301)
    assert [f"{n}" for n in range(300)] == [bytes(each[0]).decode() for each in found[:300]]
    assert [2 * (n % 2) for n in range(300)] == [len(each) - 1 for each in found[:300]]
    assert [b"large", large, b"end"] == [bytes(frame) for frame in found[300]]
    left.close()
    right.close()
    assert [] == list(folder.iterdir())


def test_what_does_not_fit_in_a_ring_goes_by_the_socket(folder: Path) -> None:
    """A message longer than the ring, and those while it is full, arrive once, in any order."""
    left = Mailbox(folder / "l.sock", rings=folder)
    right = Mailbox(folder / "r.sock")
    left.send(right.route, b"first")
    assert [[b"first"]] == received(right)
    sent = [os.urandom(n) for n in (9 << 20, *[1 << 20] * 20)]
    for each in sent:
        left.send(right.route, each[:8], [each])
    found = received(right, len(sent))
    assert sorted(each[:8] for each in sent) == sorted(bytes(header) for header, _ in found)
    assert {bytes(buffer) for _, buffer in found} == set(sent)
    left.send(right.route, b"last")
    assert [[b"last"]] == received(right)
    left.close()
    right.close()


def test_a_sleeping_reader_of_a_ring_is_woken(folder: Path) -> None:
    """Long before the end of its wait, however often it has gone to sleep."""
    left, right = Mailbox(folder / "l.sock", rings=folder), Mailbox(folder / "r.sock")
    told = threading.Thread(target=_ping, args=(left, right.route, 20))
    began_s = time.monotonic()
    told.start()
    assert [[b"ping"]] * 20 == received(right, 20, timeout_s=20.0, wait_s=10.0)
    told.join()
    assert time.monotonic() < began_s + 5
    left.close()
    right.close()


def test_who_waits_is_known_through_rings(folder: Path) -> None:
    """Of a process that is reached by sockets, it is not: it may wait."""
    left, right = Mailbox(folder / "l.sock", rings=folder), Mailbox(folder / "r.sock", rings=folder)
    assert left.is_awaited(right.route)
    left.send(right.route, b"first")
    assert [[b"first"]] == received(right)
    assert not left.is_awaited(right.route)
    assert not right.has_mail
    waiting = threading.Thread(target=right.receive, args=(20.0,))
    waiting.start()
    deadline = time.monotonic() + 10
    while not left.is_awaited(right.route) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert left.is_awaited(right.route)
    left.send(right.route, b"second")
    waiting.join()
    assert not left.is_awaited(right.route)
    left.send(right.route, b"third")
    assert right.has_mail
    left.close()
    right.close()


def _ping(mailbox: Mailbox, to: Route, count: int) -> None:
    for _ in range(count):
        time.sleep(0.01)
        mailbox.send(to, b"ping")


def test_a_stranger_is_not_admitted(folder: Path) -> None:
    """A key that is not on the list reaches nobody, and neither does a process without keys."""
    inside = Mailbox(folder / "i.sock", "one", tcp=_ANY_PORT, keys=_keys())
    stranger = Mailbox(folder / "s.sock", "other", tcp=_ANY_PORT, keys=_keys())
    stranger.send(inside.route, b"let me in")
    assert [] == received(inside, timeout_s=1.0)
    bare = Mailbox(folder / "b.sock", "third")
    with pytest.raises(InsecureTransport):
        bare.send(inside.route, b"let me in")
    with pytest.raises(InsecureTransport):
        Mailbox(folder / "c.sock", tcp=_ANY_PORT)
    for mailbox in (inside, stranger, bare):
        mailbox.close()


def test_a_socket_needs_a_private_folder(folder: Path) -> None:
    """Others could read and write messages."""
    folder.chmod(0o755)
    with pytest.raises(InsecureTransport, match="0700"):
        Mailbox(folder / "m.sock")


_PEER = """
import sys, time
from pathlib import Path
from canary_core.runtime.mailbox import Mailbox, route_of
mailbox = Mailbox(Path(sys.argv[1]))
mailbox.send(route_of(sys.argv[2]), mailbox.route.endpoint.encode())
while True:
    mailbox.receive(1.0)
"""


@pytest.mark.slow
def test_the_death_of_a_peer_is_noticed_at_once(folder: Path) -> None:
    """Whoever has sent it a message learns of it, and once more only by another message."""
    own = Mailbox(folder / "o.sock")
    peer = subprocess.Popen([sys.executable, "-c", _PEER, folder / "p.sock", own.route.endpoint])
    ((name,),) = received(own, timeout_s=30.0)
    route = route_of(bytes(name).decode())
    own.send(route, b"hello")
    own.receive(0.3)
    assert [] == own.lost()
    peer.send_signal(signal.SIGKILL)
    peer.wait()
    lost: list[Route] = []
    began_s = time.monotonic()
    while not lost and time.monotonic() < began_s + 10:
        own.receive(0.05)
        lost += own.lost()
    assert [route] == lost
    assert time.monotonic() < began_s + 1
    own.receive(0.2)
    assert [] == own.lost()
    assert not own.is_listening(route)
    own.send(route, b"to nobody")  # is dropped
    own.receive(0.2)
    assert [route] == own.lost()
    own.close()


def test_wake_ends_a_wait(folder: Path) -> None:
    """Also before the wait begins, and after the end it does nothing."""
    mailbox = Mailbox(folder / "m.sock")
    mailbox.wake()
    began_s = time.monotonic()
    assert [] == mailbox.receive(10.0)
    assert time.monotonic() < began_s + 5
    mailbox.close()
    mailbox.wake()
