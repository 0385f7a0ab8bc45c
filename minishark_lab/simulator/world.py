"""The discrete-event simulator: drives production machines in simulated time.

As in reality, an address's endpoint is its process; the part of it before a "-" is the process's
node. Messages within a process arrive at once and in order, messages between processes go through
the simulated network. Ties in time are broken by order of sending, so a seed reproduces a run
exactly.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Collection
from random import Random
from typing import Any, get_args

import msgspec

from machine_kit.addresses import Address
from machine_kit.addresses import endpoint_of as read_endpoint
from machine_kit.machine import Envelope, Machine, Message, Tap, Tick
from minishark_lab.simulator.network import Network, host_of, is_local

endpoint_of = functools.lru_cache(4096)(read_endpoint)  # each message asks several times

Trace = Callable[[float, Address, Message], None]


class World:
    """Simulated time, machines, and the network between them."""

    def __init__(
        self,
        seed: int,  # of the network and of `rng`, which machines share
        network: Network | None = None,
        *,
        wire: bool = False,  # encode and decode messages, as the ZeroMQ driver does
        checked: bool = False,  # call a machine's `check` after each message
        trace: Trace | None = None,  # called with each delivered message
    ) -> None:
        self.now = 0.0
        self.events = 0
        self.rng = Random(seed)
        self.machines: dict[Address, Machine[Any]] = {}
        self.taps: list[Tap] = []
        self._cuts: list[tuple[frozenset[str], float, bool]] = []
        self._links: list[tuple[frozenset[str], float]] = []  # that are cut
        self._frozen: dict[str, float] = {}
        self._drifts: dict[str, tuple[float, float]] = {}
        self._network = network or Network()
        self._network_rng = Random(f"network {seed}")
        self._wire = wire
        self._checked = checked
        self._trace = trace
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Callable[[], None] | tuple[Address, Message]]] = []

    def host(self, at: Address, machine: Machine[Any]) -> Address:
        """Host a machine; starts its periodic timer if it has one."""
        self.machines[at] = machine
        if Tick in get_args(machine.inputs):
            self.post(at, Tick(0))
        return at

    def kill(self, endpoint: str) -> None:
        """Kill a process: its machines are gone."""
        for at in [at for at in self.machines if endpoint_of(at) == endpoint]:
            del self.machines[at]
        self._frozen.pop(endpoint, None)

    def cut_off(self, hosts: Collection[str], until_s: float, *, one_way: bool = False) -> None:
        """Network partition: until then, no message passes between these hosts and others.

        A host is the part of an endpoint before a "-": a node with its executors, or a scheduler.

        Args:
            hosts: Those on one side.
            until_s: When the link heals.
            one_way: Only what these hosts send is lost; what is sent to them arrives.
        """
        self._cuts.append((frozenset(hosts), until_s, one_way))

    def separate(self, host: str, other: str, until_s: float) -> None:
        """Until then, no message passes between these two hosts; others hear both."""
        self._links.append((frozenset((host, other)), until_s))

    def freeze(self, endpoint: str, until_s: float) -> None:
        """Stop a process (SIGSTOP) until then; its messages and timers are delivered afterwards."""
        self._frozen[endpoint] = until_s

    def frozen_until(self, endpoint: str) -> float:
        """When a process goes on that is stopped; a time in the past for others."""
        return self._frozen.get(endpoint, 0.0) if self._frozen else 0.0

    def drift(self, host: str, rate: float) -> None:
        """From now on a host's clock runs faster or slower: by `rate` seconds a second."""
        self._drifts[host] = (rate, self.clock_s(host) - self.now * rate)

    def clock_s(self, endpoint: str) -> float:
        """What a process takes for the time."""
        if not self._drifts or (drift := self._drifts.get(host_of(endpoint))) is None:
            return self.now
        rate, offset_s = drift
        return self.now * rate + offset_s

    def post(self, to: Address, msg: Message, delay_s: float = 0.0) -> None:
        """Deliver a message, bypassing the network."""
        heapq.heappush(self._heap, (self.now + delay_s, next(self._order), (to, msg)))

    def call(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at_s, next(self._order), action))

    def run(self, until_s: float, *, done: Callable[[], bool] = lambda: False) -> None:
        """Process events until a time, or until `done` (called before each event)."""
        heap = self._heap
        while heap and heap[0][0] <= until_s and not done():
            self.now, _, event = heapq.heappop(heap)
            self.events += 1
            if isinstance(event, tuple):
                self._deliver(*event)
            else:
                event()

    def _deliver(self, to: Address, msg: Message) -> None:
        machine = self.machines.get(to)
        if machine is None:
            return  # its process is dead
        here = endpoint_of(to)
        if self._frozen and (frozen_until_s := self.frozen_until(here)) > self.now:
            self.call(frozen_until_s, lambda: self._deliver_late(machine, to, msg))
            return
        if self._trace is not None:
            self._trace(self.now, to, msg)
        now = self.clock_s(here) if self._drifts else self.now
        envelopes = machine.on_message(msg, now)
        for tap in self.taps:
            tap(to, msg, envelopes, self.now)
        for envelope in envelopes:
            self._send(here, envelope)
        if self._checked:
            machine.check()

    def _deliver_late(self, machine: Machine[Any], to: Address, msg: Message) -> None:
        """Deliver what a stopped process has not read, unless it was killed with it."""
        if self.machines.get(to) is machine:
            self._deliver(to, msg)

    def _send(self, here: str, envelope: Envelope) -> None:
        there = endpoint_of(envelope.to)
        if here == there:
            self.post(envelope.to, envelope.msg, envelope.delay_s)
            return
        if self.is_cut(here, there):
            return
        msg = self._over_the_wire(envelope) if self._wire else envelope.msg
        local = is_local(here, there)
        for delay_s in self._network.delays_s(self._network_rng, local=local):
            self.post(envelope.to, msg, delay_s + envelope.delay_s)

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Whether a message from one process does not reach the other now."""
        if not (self._cuts or self._links):
            return False
        here, there = host_of(sender), host_of(receiver)
        if here == there:
            return False
        self._cuts = [cut for cut in self._cuts if self.now < cut[1]]
        self._links = [link for link in self._links if self.now < link[1]]
        if any(pair == {here, there} for pair, _ in self._links):
            return True
        return any(
            (here in inside) > (there in inside) if one_way
            else (here in inside) != (there in inside)
            for inside, _, one_way in self._cuts
        )  # fmt: skip

    def _over_the_wire(self, envelope: Envelope) -> Message:
        machine = self.machines.get(envelope.to)
        if machine is None:
            return envelope.msg
        body = msgspec.msgpack.encode(envelope.msg)
        decoded: Message = msgspec.msgpack.decode(body, type=machine.inputs)
        assert decoded == envelope.msg
        return decoded
