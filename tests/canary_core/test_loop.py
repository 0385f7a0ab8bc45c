"""What a process sends for the packets of its machines."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from msgspec import structs
from test_mailbox import received

from canary_core.protocol.messages import Farewell, Packet
from canary_core.runtime.loop import PacketLoop, decode
from canary_core.runtime.mailbox import Mailbox, Route
from machine_kit.addresses import address
from machine_kit.machine import Envelope


@pytest.fixture
def ends() -> Iterator[tuple[PacketLoop, Mailbox]]:
    """A loop that sends, and the mailbox of another process."""
    with tempfile.TemporaryDirectory() as folder:
        loop, other = PacketLoop(Mailbox(Path(folder, "l.sock"))), Mailbox(Path(folder, "r.sock"))
        yield loop, other
        loop.close()
        other.close()


def test_a_packet_is_sent_once_for_each_epoch(ends: tuple[PacketLoop, Mailbox]) -> None:
    """Repeated, it is an acknowledgement of its epoch; a new epoch counts packets from 1 again."""
    loop, other = ends
    to = address(other.route.endpoint, "worker")
    first = Packet(
        sender=loop.address("worker"), born=1, to_born=-1, session=0, seq=1, ack=0, epoch=1,
        bodies=(Farewell(),),
    )  # fmt: skip
    repeated = structs.replace(first, ack=7)
    restarted = structs.replace(first, session=1)
    second = structs.replace(first, epoch=2)
    for packet in (first, repeated, restarted, second):
        loop._route(Envelope(to, packet))
    found = [decode(each[0])[1] for each in received(other, 4)]
    assert [first, structs.replace(repeated, seq=0, bodies=()), restarted, second] == found


class _Broken(Mailbox):
    """A mailbox to which a test says what is lost."""

    broken: ClassVar[list[Route]] = []
    alive: ClassVar[set[Route]] = set()

    def lost(self) -> list[Route]:
        found = list(self.broken)
        self.broken.clear()
        return found

    def is_listening(self, route: Route) -> bool:
        return route in self.alive


def test_whoever_is_waited_for_is_lost_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are lost at once; one that was heard of meanwhile is not suspected any more."""
    monkeypatch.setattr("canary_core.runtime.loop._LOOK_AGAIN_S", 0.0)
    awaited, other = Route("", "ipc:///a"), Route("", "ipc:///b")
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        mailbox = _Broken(Path(folder, "m.sock"))
        loop = PacketLoop(mailbox, lost.append, awaited.endpoint.__eq__)
        mailbox.alive.update([awaited, other])
        mailbox.broken.extend([awaited, other])
        loop._wait(0.0)
        assert [other.endpoint] == lost
        loop._accept([memoryview(_header(awaited))])
        mailbox.alive.clear()
        loop._wait(0.0)
        assert [other.endpoint] == lost
        mailbox.alive.add(awaited)
        mailbox.broken.append(awaited)
        loop._wait(0.0)
        loop._wait(0.0)
        assert [other.endpoint] == lost
        mailbox.alive.clear()
        loop._wait(0.0)
        assert [other.endpoint, awaited.endpoint] == lost
        loop.close()


def _header(sender: Route) -> bytes:
    packet = Packet(
        sender=address(sender.endpoint, "worker"), born=1, to_born=-1, session=0, seq=0, ack=0,
        epoch=1,
    )  # fmt: skip
    return msgspec.msgpack.encode(("worker", packet))
