"""Links: bodies arrive once and in order at each peer, whatever the network does to packets.

A link numbers its packets, keeps what is not acknowledged and sends it again after a while. Packets
that come too early wait, within a bound; duplicates are dropped. All bodies for a peer that one
`on_message` makes travel in one packet. Acknowledgements ride on packets, or follow with the timer.

A peer that restarts (a controller takes another's place) is a new incarnation: `born` is greater.
Both directions of the link begin anew, what was not acknowledged is gone, and `restarted` names the
peer. Between workers links live no longer than an epoch: what an earlier one sent is out of date,
and two workers need not remember each other while one of them is thought dead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from msgspec import Struct, structs

from canary_core.protocol.messages import Body, Packet
from canary_core.values import Frames
from machine_kit.addresses import Address
from machine_kit.machine import Envelope

IN_FLIGHT_MAX = 1024  # packets that are not acknowledged; more wait
ACK_AFTER = 32  # packets; else the timer acknowledges
RESEND_S = 0.2
RESEND_MAX_S = 0.8
RESEND_AT_ONCE_MAX = 64
UNKNOWN = -1


class _Sent(Struct):
    packet: Packet
    at: float
    wait_s: float
    size: int


class _Link:
    """One peer: what it has not acknowledged, and what has come from it."""

    def __init__(self, session: int = 0) -> None:
        self.born = UNKNOWN
        self.session = session  # how many links to this peer there were before
        self.peer_session = 0
        self.last_sent = 0
        self.sent: deque[_Sent] = deque()
        self.backlog: deque[Packet] = deque()
        self.received = 0
        self.early: dict[int, Packet] = {}
        self.unacknowledged = 0  # packets received since the last acknowledgement
        self.bytes_in_flight = 0


class Links:
    """All links of a machine."""

    def __init__(self, address: Address, born: int) -> None:
        self.epoch = 0
        self.restarted: list[Address] = []
        self._address = address
        self._born = born
        self._links: dict[Address, _Link] = {}
        self._pending: dict[Address, tuple[list[Body], list[memoryview]]] = {}

    def post(self, to: Address, body: Body, frames: Frames = ()) -> None:
        """Queue a body; `flush` sends it."""
        bodies, buffers = self._pending.setdefault(to, ([], []))
        bodies.append(body)
        buffers.extend(frames)

    @property
    def has_pending(self) -> bool:
        """Whether bodies wait for `flush`."""
        return bool(self._pending)

    def flush(self, now: float) -> list[Envelope]:
        """Packets of all that was posted."""
        out: list[Envelope] = []
        pending, self._pending = self._pending, {}
        for to, (bodies, frames) in pending.items():
            link = self._link(to)
            link.last_sent += 1
            packet = self._packet(link, link.last_sent, tuple(bodies), tuple(frames))
            link.backlog.append(packet)
            out += self._send(to, link, now)
        return out

    def receive(self, packet: Packet, now: float) -> tuple[list[Packet], list[Envelope]]:
        """Take a packet; returns those whose turn has come, and what to send for it."""
        link = self._link(packet.sender)
        if packet.born < link.born:
            return [], []  # of an incarnation that is gone
        if packet.born > link.born:
            if link.born != UNKNOWN:
                self._links[packet.sender] = link = _Link(link.session + 1)
                self.restarted.append(packet.sender)
            link.born = packet.born
        if packet.to_born not in {UNKNOWN, self._born}:
            return [], [self._acknowledge(packet.sender, link)]  # meant for a predecessor
        if packet.session < link.peer_session:
            return [], []  # sent before its sender knew of this incarnation
        if packet.session > link.peer_session:
            link.peer_session, link.received = packet.session, 0
            link.early.clear()
        self._on_ack(link, packet.ack)
        out = self._send(packet.sender, link, now)
        return self._take(link, packet, out), out

    def tick(self, now: float) -> list[Envelope]:
        """Acknowledge what was not, and send again what was not acknowledged for long."""
        out: list[Envelope] = []
        for to, link in self._links.items():
            for sent in islice(link.sent, RESEND_AT_ONCE_MAX):
                if now < sent.at + sent.wait_s:
                    break
                sent.at, sent.wait_s = now, min(2 * sent.wait_s, RESEND_MAX_S)
                packet = structs.replace(sent.packet, ack=link.received, to_born=link.born)
                out.append(Envelope(to, packet))
                link.unacknowledged = 0
            if link.unacknowledged:
                out.append(self._acknowledge(to, link))
        return out

    def begin(self, epoch: int, keeps: Callable[[Address], bool]) -> None:
        """Forget what was posted and not flushed, and the links that do not outlive an epoch."""
        self.epoch = epoch
        self._pending.clear()
        self._links = {peer: link for peer, link in self._links.items() if keeps(peer)}

    def is_idle(self, peer: Address) -> bool:
        """Whether the peer has acknowledged all."""
        link = self._links.get(peer)
        return link is None or not (link.sent or link.backlog)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that peers have not acknowledged, those that wait for their turn included."""
        return sum(link.bytes_in_flight for link in self._links.values())

    def _link(self, peer: Address) -> _Link:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link()
        return link

    def _send(self, to: Address, link: _Link, now: float) -> list[Envelope]:
        out: list[Envelope] = []
        while link.backlog and len(link.sent) < IN_FLIGHT_MAX:
            packet = link.backlog.popleft()
            size = sum(frame.nbytes for frame in packet.frames)
            link.bytes_in_flight += size
            link.sent.append(_Sent(packet, now, RESEND_S, size))
            link.unacknowledged = 0
            if (packet.ack, packet.to_born) != (link.received, link.born):  # it has waited
                packet = structs.replace(packet, ack=link.received, to_born=link.born)
            out.append(Envelope(to, packet))
        return out

    @staticmethod
    def _on_ack(link: _Link, ack: int) -> None:
        while link.sent and link.sent[0].packet.seq <= ack:
            link.bytes_in_flight -= link.sent.popleft().size

    def _take(self, link: _Link, packet: Packet, out: list[Envelope]) -> list[Packet]:
        if not packet.seq:
            return []
        link.unacknowledged += 1
        if packet.seq > link.received and packet.seq <= link.received + 2 * IN_FLIGHT_MAX:
            link.early[packet.seq] = packet
        ready: list[Packet] = []
        while (following := link.early.pop(link.received + 1, None)) is not None:
            link.received += 1
            ready.append(following)
        if link.unacknowledged >= ACK_AFTER:
            out.append(self._acknowledge(packet.sender, link))
        return ready

    def _acknowledge(self, to: Address, link: _Link) -> Envelope:
        link.unacknowledged = 0
        return Envelope(to, self._packet(link, 0, (), ()))

    def _packet(self, link: _Link, seq: int, bodies: tuple[Body, ...], frames: Frames) -> Packet:
        return Packet(
            sender=self._address,
            born=self._born,
            to_born=link.born,
            session=link.session,
            seq=seq,
            ack=link.received,
            epoch=self.epoch,
            bodies=bodies,
            frames=frames,
        )
