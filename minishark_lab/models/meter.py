"""Counts messages and reservations of a simulated cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from machine_kit.addresses import Address, endpoint_of
from machine_kit.machine import Envelope, Message
from minishark_lab.simulator.network import is_local
from minishark_lab.simulator.world import World
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import AssignTasks, CancelReservations, GetTasks, Reserve


class Meter:
    """Counts the messages of a world from now on."""

    def __init__(self, world: World) -> None:
        self.network: Counter[str] = Counter()  # between nodes, schedulers and clients, by type
        self.local: Counter[str] = Counter()  # between the processes of a node
        self.reserved = self.bound = 0  # reservations that were sent, tasks that were bound
        # Tasks that node monitors asked for; `late` when all of their job had been bound already.
        self.requested = self.late = 0
        self.waited_s = 0.0  # slot time spent waiting for answers
        self._asked: dict[tuple[Address, JobId], dict[int, tuple[int, float]]] = {}
        self._drained: dict[JobId, None] = {}
        world.taps.append(self._tap)

    @property
    def useless(self) -> int:
        """Reservations that got no task."""
        return self.reserved - self.bound

    @property
    def removed(self) -> int:
        """Useless reservations that were withdrawn before a node asked for them."""
        return self.useless - self.late

    def _tap(self, to: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        self._on_answer(to, msg, now)
        for envelope in out:
            self._count(to, envelope)
            match envelope.msg:
                case Reserve(count=count):
                    self.reserved += count
                case GetTasks():
                    self._on_request(to, envelope.msg, now)
                case AssignTasks(tasks=tasks):
                    self.bound += len(tasks)
                    if not envelope.msg.claim.waiting:
                        self._drained[envelope.msg.job_id] = None

    def _count(self, sender: Address, envelope: Envelope) -> None:
        here, there = endpoint_of(sender), endpoint_of(envelope.to)
        if here != there:
            counter = self.local if is_local(here, there) else self.network
            counter[type(envelope.msg).__name__] += 1

    def _on_request(self, node: Address, msg: GetTasks, now: float) -> None:
        self.requested += msg.count
        if msg.job_id in self._drained:
            self.late += msg.count
        self._asked.setdefault((node, msg.job_id), {})[msg.request] = (msg.count, now)

    def _on_answer(self, node: Address, msg: Message, now: float) -> None:
        match msg:
            case AssignTasks():
                asked = self._asked.get((node, msg.job_id), {})
                answered = [asked.pop(msg.request)] if msg.request in asked else []
            case CancelReservations():
                answered = list(self._asked.pop((node, msg.job_id), {}).values())
            case _:
                return
        self.waited_s += sum(count * (now - at) for count, at in answered)
