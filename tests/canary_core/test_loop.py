"""What a process sends for the packets of its machines."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from test_mailbox import received

from canary_core.protocol.messages import Farewell, Packet
from canary_core.runtime.loop import PacketLoop, decode
from canary_core.runtime.mailbox import Mailbox
from sparrow_core.protocol.ids import address
from sparrow_core.protocol.machine import Envelope


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
