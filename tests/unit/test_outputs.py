"""Outputs of nodes: homes, leases, and what goes when there is no room."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from minishark.cluster import wire
from minishark.cluster.connections import Connections
from minishark.cluster.outputs import (
    FOLDER,
    HeldOutputs,
    HomeIndex,
    SharedOutputs,
    answered,
    homes_of,
)
from minishark.model.events.figures import TaskFigures
from minishark.query.reuse import Reuse
from minishark.worker.protocol import KeptOutput, StoreLocation, TaskOutcome
from minishark.worker.seals import checksum

NODES = tuple(f"node-{i}" for i in range(5))


def output(file: str | None = None, inline: bytes | None = None, size: int = 10) -> KeptOutput:
    """An output in a file or a message."""
    outcome = TaskOutcome(figures=TaskFigures(rows=1, bytes=size), file=file, inline=inline)
    return KeptOutput(outcome=outcome, node="n", identity="i", made_s=0.0)


def test_names_are_spread_over_homes_and_few_move_with_a_node() -> None:
    """Those of the node that has gone, and no others."""
    names = [f"name-{i}" for i in range(2_000)]
    before = {name: homes_of(name, NODES, 2) for name in names}
    assert all(count > 300 for count in Counter(first for first, _ in before.values()).values())
    after = {name: homes_of(name, NODES[1:], 1)[0] for name in names}
    moved = {name for name in names if before[name][0] != after[name]}
    assert {name for name in names if before[name][0] == NODES[0]} == moved
    assert all(after[name] == before[name][1] for name in moved)
    assert homes_of("name", (), 2) == []


def test_a_home_is_bounded() -> None:
    """By count and by bytes; the least recently used go."""
    index = HomeIndex(entries_max=3)
    for number in range(3):
        index.keep({str(number): output("f")})
    assert ["0"] == list(index.find(["0", "9"]))
    index.keep({"3": output("f")})
    assert {"0", "2", "3"} == set(index.find(map(str, range(5))))
    small = HomeIndex(bytes_max=10_000)
    for number in range(5):
        small.keep({str(number): output(inline=b"x" * 4_000)})
    assert {"3"} | {"4"} == set(small.find(map(str, range(5)))) | {"3"}


class Homes:
    """Nodes that answer at once; only those that live."""

    def __init__(self, count: int) -> None:
        self.live = [StoreLocation(f"n{i}", "host", "", "", f"at-{i}") for i in range(count)]
        self.of = {node.service: HomeIndex() for node in self.live}
        self.silent: set[str] = set()

    def ask(self, requests: Mapping[str, wire.Request], _: float) -> dict[str, wire.Reply]:
        """The replies of nodes."""
        nothing = HeldOutputs(roots=(), limit_bytes=0)
        replies = {
            at: answered(asked, self.of[at], nothing)
            for at, asked in requests.items()
            if at not in self.silent
        }
        return {at: reply for at, reply in replies.items() if reply is not None}

    def slots(self, there: int) -> int:
        """What a session plans for that begins when there are so many slots."""
        session = SharedOutputs("s", cast("Connections", self), lambda: self.live)
        slots = session.slots(there)
        session.close()
        return slots


def test_plans_are_made_for_the_slots_that_there_were() -> None:
    """Also when a node has died, and with it the home that knew; not when half are gone."""
    for gone in range(4):
        homes = Homes(4)
        assert homes.slots(3) == 3
        assert homes.slots(4) == 4, "another node has joined"
        del homes.live[gone]
        assert homes.slots(3) == 4
        assert homes.slots(2) == 4
        assert homes.slots(1) == 1, "these are too few to plan for four"
        assert homes.slots(2) == 2


def test_who_plans_while_homes_are_silent_has_no_number_forgotten() -> None:
    """A session that finds a node dead, and homes silent, plans for fewer: later ones do not."""
    homes = Homes(4)
    assert homes.slots(4) == 4
    homes.silent = {*homes.of}
    assert homes.slots(3) == 3
    homes.silent = {at for at, home in homes.of.items() if home.find(["slots"])}
    assert len(homes.silent) == 2
    assert homes.slots(3) == 3
    for at in homes.silent:  # one answers
        homes.silent = {at}
        assert homes.slots(3) == 4
        assert homes.slots(5) == 5, "it has grown"
        homes.silent = set()
        assert homes.slots(4) == 5
        assert homes.slots(2) == 2
        assert homes.slots(4) == 4


def held(tmp_path: Path, limit_bytes: int) -> HeldOutputs:
    """A node's outputs: six files of 64 KiB, each older than the next."""
    for root in ("memory", "disk"):
        (tmp_path / root / FOLDER).mkdir(parents=True)
    for number in range(6):
        path = tmp_path / "memory" / FOLDER / f"{number}.arrow"
        path.write_bytes(b"x" * 65_536)
        os.utime(path, (1_000 + number, 1_000 + number))
    return HeldOutputs(roots=(tmp_path / "memory", tmp_path / "disk"), limit_bytes=limit_bytes)


def left(tmp_path: Path) -> set[str]:
    """The numbers of the files that are left."""
    return {path.stem for path in (tmp_path / "memory" / FOLDER).iterdir()}


def test_least_recently_used_files_go_and_leased_ones_stay(tmp_path: Path) -> None:
    """Until their sessions have read them, or are gone."""
    found = held(tmp_path, 4 * 3 * 65_536)
    files = [f"{FOLDER}/{number}.arrow" for number in (0, 1, 9)]
    assert tuple(files[:2]) == found.lease("s-a", files)
    assert (files[1],) == found.lease("s-b", files[1:2])
    os.utime(tmp_path / "memory" / files[0], (1_000, 1_000))
    os.utime(tmp_path / "memory" / files[1], (1_001, 1_001))
    found.tidy(10.0)
    assert {"0", "1", "5"} == left(tmp_path)
    found.limit_bytes = 0
    found.tidy(10.5)  # too soon
    assert {"0", "1", "5"} == left(tmp_path)
    found.release("s-a", files[:1])
    found.tidy(20.0)
    assert {"1"} == left(tmp_path)
    found.end("s-a")
    found.tidy(30.0)
    assert {"1"} == left(tmp_path)
    found.end("s-b")
    found.tidy(40.0)
    assert set() == left(tmp_path)


def test_tables_come_first(tmp_path: Path) -> None:
    """What they take is not there for outputs."""
    found = held(tmp_path, 1 << 20)
    found.tidy(10.0)
    assert 4 == len(left(tmp_path))
    table = tmp_path / "memory" / "s-a"
    table.mkdir()
    (table / "0.arrow").write_bytes(b"x" * 700_000)
    found.tidy(20.0)
    assert 1 == len(left(tmp_path))


def test_a_checksum_finds_flipped_bits_and_moved_pages(tmp_path: Path) -> None:
    """Wherever they are, and files that end early."""
    path = tmp_path / "a"
    data = bytearray(random.Random(1).randbytes(3 * 4096 + 100))
    path.write_bytes(data)
    sound = checksum(path)
    assert sound == checksum(path)
    for place in (0, 5_000, len(data) - 1):
        damaged = bytearray(data)
        damaged[place] ^= 16
        path.write_bytes(damaged)
        assert sound != checksum(path)
    for other in (data[4096:8192] + data[:4096] + data[8192:], data[:-1], data[:4096], b""):
        path.write_bytes(other)
        assert sound != checksum(path)


class Nodes:
    """What nodes know and have."""

    def __init__(self) -> None:
        self.known: dict[str, KeptOutput] = {}
        self.gone: set[str] = set()
        self.released: list[str] = []

    def find(self, names: object) -> dict[str, KeptOutput]:
        return {name: self.known[name] for name in names if name in self.known}  # type: ignore[attr-defined]

    def lease(self, outputs: dict[str, KeptOutput]) -> frozenset[str]:
        return frozenset(n for n, each in outputs.items() if each.outcome.file not in self.gone)

    def release(self, outputs: object) -> None:
        self.released += [each.outcome.file for each in outputs]  # type: ignore[attr-defined]

    def keep(self, outputs: dict[str, KeptOutput]) -> None:
        self.known.update(outputs)

    def close(self) -> None:
        """Nothing is queued."""


def test_a_session_takes_what_nodes_have() -> None:
    """Also of others; what a node has no more is no longer known."""
    nodes = Nodes()
    reuse = Reuse(folder=FOLDER, quota_bytes=1 << 30, remove=lambda _: None, shared=nodes)
    other = Reuse(folder=FOLDER, quota_bytes=1 << 30, remove=lambda _: None, shared=nodes)
    reuse.keep({"a": output("fa"), "b": output("fb"), "c": output(inline=b"c")})
    assert {"a", "b", "c"} == set(other.take(["a", "b", "c", "d"]))
    other.give(["a"])
    assert ["fa"] == nodes.released
    nodes.gone.add("fb")
    assert {"a"} == set(other.take(["a", "b"]))
    assert {"a"} == set(reuse.take(["a", "b"]))


def test_who_waits_for_an_output_is_told_that_another_session_has_it() -> None:
    """Who has claimed it may have found it there, too; not if its node has it no more."""
    nodes = Nodes()
    reuse = Reuse(folder=FOLDER, quota_bytes=1 << 30, remove=lambda _: None, shared=nodes)
    other = Reuse(folder=FOLDER, quota_bytes=1 << 30, remove=lambda _: None, shared=nodes)
    told: list[tuple[str, KeptOutput | None]] = []
    for name in ("a", "b"):
        assert reuse.claim(name, "one", lambda _: None)
        assert not reuse.claim(name, "two", lambda each, name=name: told.append((name, each)))  # type: ignore[misc]
    made = {"a": output("fa"), "b": output("fb")}
    other.keep(made)
    nodes.gone.add("fb")
    assert {"a"} == set(reuse.take(["a", "b"]))
    assert [("a", made["a"])] == told
    reuse.disclaim({"a": "one", "b": "one"})
    assert [("a", made["a"]), ("b", None)] == told


def test_who_waits_for_an_output_is_told() -> None:
    """Once it is there, or its query gives up; one of them may compute it then."""
    reuse = Reuse(folder=FOLDER, quota_bytes=1 << 30, remove=lambda _: None)
    told: list[tuple[str, KeptOutput | None]] = []
    assert reuse.claim("x", "one", lambda each: told.append(("one", each)))
    assert reuse.claim("x", "one", lambda each: told.append(("one", each)))
    assert not reuse.claim("x", "two", lambda each: told.append(("two", each)))
    reuse.disclaim({"x": "two"})  # who waits can't give it up
    assert [] == told
    reuse.disclaim({"x": "one"})
    assert [("two", None)] == told
    assert reuse.claim("x", "two", lambda each: told.append(("two", each)))
    assert not reuse.claim("x", "three", lambda each: told.append(("three", each)))
    made = output("f")
    reuse.keep({"x": made})
    assert ("three", made) == told[-1]
    assert not reuse.claim("x", "four", lambda each: told.append(("four", each)))
    assert ("four", made) == told[-1]


def test_what_is_read_stays_and_the_rest_goes_over_the_quota() -> None:
    """Least recently used ones first."""
    removed: list[str] = []
    lock = threading.Lock()

    def remove(files: object) -> None:
        with lock:
            removed.extend(file for file, _ in files)  # type: ignore[attr-defined]

    reuse = Reuse(folder=FOLDER, quota_bytes=5_000, remove=remove)
    reuse.keep({"a": output("fa"), "b": output("fb"), "c": output("fc")})
    assert {"a"} == set(reuse.take(["a"]))
    reuse.keep({"d": output("fd"), "e": output("fe")})
    assert ["fb"] == removed
    reuse.make_room()
    assert {"fb", "fc", "fd", "fe"} == set(removed)
    reuse.give(["a"])
    reuse.make_room()
    assert "fa" in removed
    assert 0 == reuse.bytes
