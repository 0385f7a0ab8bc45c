"""Machines one by one: links, the driver's copy, partitions, routing, snapshots, messages."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_core import Run, values
from canary_core.errors import InvalidCall
from canary_core.machines.exchange import Exchange
from canary_core.machines.links import IN_FLIGHT_MAX, Links
from canary_core.machines.partition import Partition, TaskError, drain, has_more
from canary_core.machines.replica import Replica
from canary_core.machines.snapshot_placement import SnapshotPlacement
from canary_core.machines.snapshot_store import (
    SnapshotStore,
    keep_message,
    kept,
    restored,
    snapshot_of,
)
from canary_core.policy.placement import recopy
from canary_core.protocol.messages import (
    Body,
    Entry,
    Farewell,
    HeldSnapshot,
    Packet,
    Pieces,
    Suspect,
    TellTrail,
)
from canary_core.stages import Stage
from machine_kit.addresses import Address
from machine_kit.machine import Envelope

A, B, C = Address("a#worker"), Address("b#worker"), Address("c#worker")

# --- links -------------------------------------------------------------------------------------


class Pair:
    """Two ends, and a network that does what a random generator says."""

    def __init__(self, rng: Random, loss: float, duplication: float) -> None:
        self.rng, self.loss, self.duplication = rng, loss, duplication
        self.now = 0.0
        self.ends = {A: Links(A, 0), B: Links(B, 0)}
        self.flying: list[Envelope] = []
        self.got: dict[Address, list[Body]] = {A: [], B: []}

    def send(self, envelopes: list[Envelope]) -> None:
        for each in envelopes:
            if self.rng.random() >= self.loss:
                self.flying += [each] * (2 if self.rng.random() < self.duplication else 1)

    def deliver_one(self) -> None:
        envelope = self.flying.pop(self.rng.randrange(len(self.flying)))
        assert isinstance(envelope.msg, Packet)
        ready, out = self.ends[envelope.to].receive(envelope.msg, self.now)
        self.got[envelope.to] += [body for packet in ready for body in packet.bodies]
        self.send(out)

    def tick(self) -> None:
        self.now += 0.05
        for end in self.ends.values():
            self.send(end.tick(self.now))

    def settle(self) -> None:
        """A network that is good again: everything arrives in the end."""
        self.loss = self.duplication = 0.0
        for _ in range(400):
            self.tick()
            while self.flying:
                self.deliver_one()


@given(st.integers(0, 1 << 32), st.floats(0, 0.6), st.floats(0, 0.5))
def test_bodies_arrive_once_and_in_order(seed: int, loss: float, duplication: float) -> None:
    rng = Random(seed)
    pair = Pair(rng, loss, duplication)
    sent: dict[Address, list[Body]] = {A: [], B: []}
    for number in range(60):
        here, there = (A, B) if rng.random() < 0.5 else (B, A)
        body = Suspect(number)
        sent[there].append(body)
        pair.ends[here].post(there, body)
        if rng.random() < 0.7:
            pair.send(pair.ends[here].flush(pair.now))
        for _ in range(rng.randrange(3)):
            if pair.flying:
                pair.deliver_one()
        if rng.random() < 0.2:
            pair.tick()
    for end in pair.ends.values():
        pair.send(end.flush(pair.now))
    pair.settle()
    assert sent == pair.got
    assert all(end.is_idle(peer) for end, peer in zip(pair.ends.values(), (B, A), strict=True))
    assert 0 == pair.ends[A].bytes_in_flight


def test_what_is_not_acknowledged_is_bounded() -> None:
    """More waits for its turn."""
    links = Links(A, 0)
    for number in range(IN_FLIGHT_MAX + 50):
        links.post(B, Suspect(number))
        out = links.flush(0.0)
    assert [] == out


def test_bodies_of_one_call_travel_in_one_packet() -> None:
    links = Links(A, 0)
    links.post(B, Suspect(1), (memoryview(b"x"),))
    links.post(B, Suspect(2), (memoryview(b"y"),))
    (envelope,) = links.flush(0.0)
    assert isinstance(envelope.msg, Packet)
    assert (Suspect(1), Suspect(2)) == envelope.msg.bodies
    assert b"xy" == b"".join(envelope.msg.frames)


def test_a_restarted_peer_is_noticed_and_hears_nothing_old() -> None:
    """The link begins anew in both directions."""
    a, old = Links(A, 0), Links(B, 1)
    a.post(B, Suspect(1))
    (first,) = a.flush(0.0)
    assert isinstance(first.msg, Packet)
    old.receive(first.msg, 0.0)
    (ack,) = old.tick(0.1)
    a.receive(ack.msg, 0.1)  # type: ignore[arg-type]
    a.post(B, Suspect(2))
    (second,) = a.flush(0.2)
    new = Links(B, 2)
    ready, (answer,) = new.receive(second.msg, 0.2)  # type: ignore[arg-type]
    assert [] == ready
    a.receive(answer.msg, 0.3)  # type: ignore[arg-type]
    assert [B] == a.restarted
    a.post(B, Suspect(3))
    (third,) = a.flush(0.4)
    ready, _ = new.receive(third.msg, 0.4)  # type: ignore[arg-type]
    assert [(Suspect(3),)] == [packet.bodies for packet in ready]


def test_packets_survive_the_wire() -> None:
    links = Links(A, 3)
    body = Pieces(stage=1, digest=2, size=4, targets=(0,), versions=(1,), frames=2)
    links.post(B, body, values.dumps({0: {1: np.arange(5000.0)}}))
    (envelope,) = links.flush(0.0)
    wire = msgspec.msgpack.encode(envelope.msg)
    back = msgspec.msgpack.decode(wire, type=Packet)
    assert envelope.msg == back
    assert (np.arange(5000.0) == values.loads(back.frames)[0][1]).all()


# --- the driver's copy -------------------------------------------------------------------------


def replica(driver: Any, partitions: int = 2, **options: Any) -> Replica:
    given_options = {"signals": {}, "retain_from": 0, "cut_every": None}
    return Replica(driver, partitions, **(given_options | options))


def _looping(run: Run) -> Any:
    v = run.load(int)
    while not run.signal(lambda x: x, run.reduce(max, v)):
        v = run.map(abs, v)
    return v


def test_a_driver_stops_where_it_may_go_no_further() -> None:
    copy = replica(lambda run: [run.single(n) for n in range(10)])
    assert copy.advance(4)
    assert 4 == copy.end
    assert not copy.returned
    copy.advance(100)
    assert 11 == copy.end
    assert copy.returned
    assert not copy.advance(200)


def test_a_driver_waits_for_a_signal() -> None:
    copy = replica(_looping)
    copy.advance(100)
    assert (3, 2) == (copy.end, copy.waiting)
    assert not copy.advance(100)
    copy.signals[2] = False
    copy.advance(100)
    assert (6, 5) == (copy.end, copy.waiting)


def test_a_fresh_copy_with_the_signals_is_where_the_old_one_was() -> None:
    """And keeps no steps of stages before it."""
    signals = {2: False, 5: False, 8: False}
    whole, late = (
        replica(_looping, signals=signals),
        replica(_looping, signals=signals, retain_from=7),
    )
    for copy in (whole, late):
        copy.advance(100)
    assert (whole.end, whole.waiting, whole.digest) == (late.end, late.waiting, late.digest)
    for size, track in whole.tracks.items():
        assert track.end == late.tracks[size].end
        assert track.end == track.base + len(track.steps)
        kept_stages = [step[4].index for step in late.tracks[size].steps]
        assert all(stage >= 7 for stage in kept_stages)


def test_what_is_over_everywhere_is_forgotten() -> None:
    """But for the last digest, by which a copy that has ended there is compared."""
    copy = replica(lambda run: [run.single(n) for n in range(10)])
    copy.advance(100)
    copy.prune(6)
    assert copy.digest_of(4) is None
    assert copy.digest_of(5) is not None
    assert 6 == copy.tracks[1].base
    assert "single(int)" == copy.stage_at(7).call


def test_cuts_are_at_multiples_and_where_they_are_demanded() -> None:
    copy = replica(lambda run: [run.single(n) for n in range(20)], cut_every=8)
    copy.demand_cut(11)
    copy.advance(100)
    assert {8: {1: 8}, 11: {1: 11}, 16: {1: 16}} == copy.cuts


def test_a_driver_that_catches_everything_is_thrown_away_all_the_same() -> None:
    """Its attempts to go on are refused."""
    refused = []

    def driver(run: Run) -> Any:
        try:
            run.signal(bool, run.single(1))
        finally:
            try:
                run.single(2)
            except InvalidCall as error:
                refused.append(error)

    copy = replica(driver)
    copy.advance(100)
    copy.close()
    assert 1 == len(refused)


# --- partitions --------------------------------------------------------------------------------


class Recorded:
    """Effects that are written down."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def send(self, stage: Stage, index: int, pieces: Any) -> None:
        self.sent.append((stage.call, pieces))

    def relay(self, stage: Stage, index: int, value: Any) -> None:
        self.sent.append((f"relay {index} of {stage.call}", value))

    def tell(self, stage: Stage, value: Any) -> None:
        self.sent.append((stage.call, value))

    def give_back(self, stage: Stage, index: int, size: int, parts: list[Any]) -> None:
        self.sent.append((f"{stage.call} {size} {index}", parts))

    def read(self, table: str, index: int, partitions: int) -> Any:
        return (table, index, partitions)


def test_steps_that_do_not_need_what_is_missing_run_around_it() -> None:
    """A step that waits for other workers holds back only what reads its value."""
    ran = []

    def note(name: str) -> Any:
        return lambda *_: ran.append(name)

    def driver(run: Run) -> Any:
        v = run.load(int)
        w = run.broadcast(run.single(1))
        run.map(note("reads it"), v, w)
        run.map(note("does not"), v)
        return v

    copy, effects, part = replica(driver), Recorded(), Partition(2, 0)
    copy.advance(100)
    drain(part, copy, effects, 100)
    assert ["does not"] == ran
    part.deliver(2, 0, 1)
    drain(part, copy, effects, 100)
    assert ["does not", "reads it"] == ran
    assert not part.blocked
    assert not has_more(part, copy)


def test_an_update_waits_for_earlier_readers_of_its_state() -> None:
    """Values never change, states do: their order is the program's."""
    seen = []

    def driver(run: Run) -> Any:
        state = run.state(lambda v: [v], run.load(int))
        w = run.broadcast(run.single(1))
        run.map(lambda s, w: seen.append(list(s)), state, w)
        run.update(lambda s: s.append(9), state)
        run.map(lambda s: seen.append(list(s)), state)
        return state

    copy, effects, part = replica(driver), Recorded(), Partition(2, 0)
    copy.advance(100)
    drain(part, copy, effects, 100)
    assert [] == seen
    part.deliver(3, 0, 1)
    drain(part, copy, effects, 100)
    assert [[0], [0, 9]] == seen


def test_values_are_freed_when_the_driver_drops_them() -> None:
    def driver(run: Run) -> Any:
        v = run.load(int)
        for _ in range(50):
            v = run.map(abs, v)
        return v

    copy, part = replica(driver), Partition(2, 0)
    copy.advance(100)
    drain(part, copy, Recorded(), 1000)
    assert len(part.values) <= 2


def test_no_more_than_the_limit_is_run() -> None:
    copy, part = replica(lambda run: [run.load(int) for _ in range(10)]), Partition(2, 0)
    copy.advance(100)
    assert 3 == drain(part, copy, Recorded(), 3)
    assert 3 == part.pc
    assert has_more(part, copy)


def test_a_function_that_raises_names_its_stage() -> None:
    copy, part = replica(lambda run: run.load(lambda i: 1 // i)), Partition(2, 0)
    copy.advance(100)
    with pytest.raises(TaskError) as caught:
        drain(part, copy, Recorded(), 10)
    assert (0, 0) == (caught.value.stage.index, caught.value.index)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# --- routing by maps of different age ----------------------------------------------------------


def _pieces(version: int) -> tuple[Pieces, values.Frames]:
    frames = values.dumps({0: {5: "piece"}})
    body = Pieces(stage=3, digest=1, size=4, targets=(0,), versions=(version,), frames=len(frames))
    return body, frames


def _exchange(*rows: tuple[Address, int]) -> tuple[Exchange, Links]:
    links = Links(A, 0)
    exchange = Exchange(A, links)
    for worker, version in rows:
        exchange.map.learn(Entry(4, 0, worker, version))
    return exchange, links


def _posted(links: Links) -> list[tuple[Address, Body]]:
    return [
        (each.to, body)
        for each in links.flush(0.0)
        if isinstance(each.msg, Packet)
        for body in each.msg.bodies
    ]


def test_data_for_a_partition_that_is_here_are_delivered() -> None:
    exchange, links = _exchange((A, 1))
    exchange.add(Partition(4, 0))
    exchange.receive(*_pieces(1))
    assert {3: {5: "piece"}} == exchange.parts[4, 0].inbox
    assert [] == _posted(links)


@pytest.mark.parametrize("rows", [[], [(A, 2)], [(B, 1)]])
def test_data_that_come_before_their_partition_are_held(rows: list[tuple[Address, int]]) -> None:
    """It is on its way here: by our map, or by that of the sender, which is newer."""
    exchange, links = _exchange(*rows)
    exchange.receive(*_pieces(2))
    assert [] == _posted(links)
    exchange.add(Partition(4, 0))
    assert {3: {5: "piece"}} == exchange.parts[4, 0].inbox


def test_data_that_come_too_late_are_forwarded_with_our_version() -> None:
    """The sender did not know that the partition has moved on."""
    exchange, links = _exchange((A, 1), (B, 2))
    exchange.receive(*_pieces(1))
    ((to, body),) = _posted(links)
    assert to == B
    assert isinstance(body, Pieces)
    assert (2,) == body.versions


def test_held_data_follow_a_partition_that_goes_elsewhere() -> None:
    exchange, links = _exchange((A, 2))
    exchange.receive(*_pieces(2))
    exchange.map.learn(Entry(4, 0, C, 3))
    exchange.forward_held()
    assert [C] == [to for to, _ in _posted(links)]


def test_older_rows_are_ignored() -> None:
    exchange, _ = _exchange((B, 2), (C, 1))
    assert exchange.map.owner((4, 0)) == B


# --- snapshots ---------------------------------------------------------------------------------


def _part() -> Partition:
    part = Partition(4, 1)
    part.pc = 7
    part.values = {0: "loaded", 2: np.arange(3000.0), 4: {"state": [1]}}
    part.states = {4: None}
    return part


def test_a_snapshot_restores_a_partition() -> None:
    """What was loaded is loaded again; a state is a copy of its own."""
    part = _part()
    snapshot, frames = snapshot_of(part, [0], (1, 4), {})
    part.values[4]["state"].append(2)
    back = restored(part.key, 9, snapshot, frames)
    assert [0] == back.reload
    assert (back.values[2] == part.values[2]).all()
    assert {"state": [1]} == back.values[4]
    assert (7, 9, [4]) == (back.pc, back.position, list(back.states))


def test_values_that_a_keeper_has_are_not_sent_again() -> None:
    """They never change; states are sent each time."""
    part, store = _part(), SnapshotStore()
    first = snapshot_of(part, [0], (1, 4), {})
    body, flat = keep_message(part.key, 9, *first)
    store.store(9, part.key, *kept(body, flat))
    part.pc = 8
    second = snapshot_of(part, [0], (1, 4), {})
    again, less = keep_message(part.key, 12, *second, stored=frozenset(first[0].blobs))
    assert 1 == len(less)
    store.store(12, part.key, *kept(again, less))
    store.retain(12)
    back = restored(part.key, 12, *store.get(12, part.key))
    assert (back.values[2] == part.values[2]).all()


def test_a_snapshot_with_a_gap_is_not_counted() -> None:
    """The keeper had dropped what the sender thinks it has."""
    part, store = _part(), SnapshotStore()
    snapshot, frames = snapshot_of(part, [0], (1, 4), {})
    body, flat = keep_message(part.key, 9, snapshot, frames, stored=frozenset(snapshot.blobs))
    store.store(9, part.key, *kept(body, flat))
    assert [] == store.inventory()


def test_a_stage_can_be_restored_when_each_partition_has_a_holder() -> None:
    placement = SnapshotPlacement()
    placement.note(A, [HeldSnapshot(8, 2, (0, 1)), HeldSnapshot(8, 1, (0,))], {8: (1, 2)})
    assert (8, 0) == (placement.latest(1), placement.latest(2))
    placement.note(B, [HeldSnapshot(8, 2, (0, 1)), HeldSnapshot(8, 1, (0,))], {8: (1, 2)})
    placement.note(B, [HeldSnapshot(16, 2, (0,))], {16: (1, 2)})
    assert (8, 8) == (placement.latest(1), placement.latest(2))
    assert A == placement.holder(8, (2, 0), A)
    placement.lose(A)
    assert B == placement.holder(8, (2, 0), A)
    placement.lose(B)
    assert 0 == placement.latest(1)
    assert "" == placement.holder(8, (2, 0), A)


def test_a_snapshot_is_copied_where_holders_are_missing() -> None:
    """To the host that has none, in equal shares, and not to more workers than there are."""
    hosts = {A: "one", B: "one", C: "two"}
    held = {(4, 0): (A,), (4, 1): (A, C), (4, 2): (C,), (4, 3): (C,), (4, 4): (), (4, 5): ("x",)}
    assert {(A, C): [(4, 0)], (C, A): [(4, 2)], (C, B): [(4, 3)]} == recopy(held, hosts, 2)
    assert [(4, 0), (4, 1)] == recopy(held, hosts, 3)[A, B]
    assert {} == recopy(held, {A: "one"}, 2)
    assert {} == recopy(held, hosts, 1)


def test_messages_are_small_arrays_on_the_wire() -> None:
    """The order of fields is the format."""
    assert b"\x91\xa9TellTrail" == msgspec.msgpack.encode(TellTrail())
    assert b"\x91\xa8Farewell" == msgspec.msgpack.encode(Farewell())
