"""The catalog of shared tables: what counts is never lost, whoever owns it and whatever is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from minishark.cluster import wire
from minishark.cluster.jobs.machine import Holding
from minishark.cluster.jobs.records import Holder
from minishark.cluster.shared import records
from minishark.cluster.shared.keeper import TablesKeeper, WantedFiles
from minishark.cluster.shared.records import (
    SharedPartition,
    SharedTable,
    TableCatalog,
    TableChange,
)
from minishark.worker.protocol import StoreLocation

NODES = ("a", "b", "c")


def table(name: str, content: str = "", **fields: Any) -> SharedTable:
    """A table of two partitions on two of three nodes each."""
    given = {
        "partitions": (
            SharedPartition((f"shared/{name}/0",), ("a", "b")),
            SharedPartition((f"shared/{name}/1",), ("b", "c")),
        ),
        "homes": {node: f"{node}1" for node in NODES},
        **fields,
    }
    return SharedTable(
        name=name,
        owner="me",
        created_s=1.0,
        changed_s=1.0,
        rows=1,
        replica_bytes=1,
        replicas=2,
        content=content or name,
        described=b"",
        **given,
    )


def after(catalog: TableCatalog, *changes: TableChange) -> TableCatalog:
    """The catalog after changes that must succeed."""
    new = records.changed(catalog, ("u", catalog.version), changes, 2.0)
    assert isinstance(new, TableCatalog), new
    return new


def change_of(name: str) -> wire.ChangeTables:
    """A new table of that name."""
    return wire.ChangeTables((name, 0), (TableChange(name, "", table(name)),))


# Nodes with a network that loses requests and replies


@dataclass
class Network:
    """Three nodes, each with its own belief who owns the catalog."""

    rng: random.Random
    loss: float
    keepers: dict[str, TablesKeeper] = field(default_factory=dict)
    believed: dict[str, tuple[int, str]] = field(default_factory=dict)  # incarnation, owner
    elected: tuple[int, str] = (1, "a")
    silent: set[str] = field(default_factory=set)  # nodes that nothing comes to
    meanwhile: Callable[[str], None] = lambda _: None  # called when a request has come to a node

    def __post_init__(self) -> None:
        for node in NODES:
            self.believed[node] = self.elected
            self.keepers[node] = TablesKeeper(
                jobs=cast("Any", Believer(self, node)),
                location=StoreLocation(node, "host", node, node, node),
                connections=cast("Any", Sender(self)),
                schedulers=list,
            )

    def elect(self) -> None:
        """Another node owns the catalog, which not all hear of at once."""
        self.elected = (self.elected[0] + 1, self.rng.choice(NODES))
        for node in (self.elected[1], *self.rng.sample(NODES, self.rng.randrange(3))):
            self.believed[node] = self.elected


@dataclass
class Believer:
    """What a node's jobs say of the catalog's holders."""

    network: Network
    node: str

    def holding(self, _: str) -> Holding:
        incarnation, owner = self.network.believed[self.node]
        others = tuple(Holder(node, node, node) for node in NODES if node != self.node)
        return Holding(
            uid="u",
            incarnation=incarnation,
            owner=owner,
            is_mine=owner == self.node,
            others=others,
            majority=2,
        )


@dataclass
class Sender:
    """Delivers requests, or not."""

    network: Network

    def ask(self, requests: Mapping[str, wire.Request], _: float) -> dict[str, wire.Reply]:
        network, replies = self.network, {}
        for node, request in requests.items():
            if node not in network.silent and network.rng.random() >= network.loss:
                reply = network.keepers[node].answer(request)
                assert reply is not None
                network.meanwhile(node)
                if network.rng.random() >= network.loss:
                    replies[node] = reply
        return replies


@given(seed=st.integers(0, 1 << 32), loss=st.sampled_from((0.0, 0.2, 0.5)))
def test_what_counts_is_never_lost(seed: int, loss: float) -> None:
    """Owners change, and go on after others have taken over; messages are lost on both ways."""
    rng = random.Random(seed)
    network = Network(rng, loss)
    added, counts = list[str](), list[int]()
    for number in range(40):
        if rng.random() < 0.2:
            network.elect()
        keeper = network.keepers[rng.choice(NODES)]
        name = f"t{number}"
        reply = keeper.change(wire.ChangeTables((name, 0), (TableChange(name, "", table(name)),)))
        if isinstance(reply, wire.Done):
            added.append(name)
        known = keeper._copy.catalog.tables.get("counter")
        before = 0 if known is None else int(known.content)
        change = TableChange(
            "counter", str(before) if before else "", table("counter", str(before + 1))
        )
        reply = keeper.change(wire.ChangeTables((f"c{number}", 0), (change,)))
        if isinstance(reply, wire.Done):
            counts.append(before + 1)
    network.loss = 0.0
    network.elect()
    owner = network.keepers[network.elected[1]]
    assert wire.Done() == owner.change(wire.ChangeTables(("end", 0), ()))
    catalog = owner._copy.catalog
    assert set(added) <= catalog.tables.keys()
    assert len(set(counts)) == len(counts), "two writers have followed the same version"
    assert counts == sorted(counts)
    assert max(counts, default=0) <= int(catalog.tables["counter"].content if counts else 0)
    for keeper in network.keepers.values():
        assert catalog == keeper._copy.catalog


def test_an_owner_that_others_have_followed_can_make_nothing_count() -> None:
    """It asks holders that have promised more."""
    network = Network(random.Random(0), 0.0)
    first = wire.ChangeTables(("1", 0), (TableChange("t", "", table("t")),))
    assert wire.Done() == network.keepers["a"].change(first)
    for node in ("b", "c"):
        network.believed[node] = (2, "b")
    second = wire.ChangeTables(("2", 0), (TableChange("t", None, None),))
    assert wire.Done() == network.keepers["b"].change(second)
    third = wire.ChangeTables(("3", 0), (TableChange("t", "t", table("t", "new")),))
    assert wire.NotOwner() == network.keepers["a"].change(third)
    assert {} == network.keepers["c"]._copy.catalog.tables


def test_an_owner_that_is_followed_during_a_change_does_not_count_itself() -> None:
    """It has promised to follow another, which can't have heard of the change."""
    network, replies = Network(random.Random(0), 0.0), list[wire.Reply]()
    assert wire.Done() == network.keepers["a"].change(change_of("first"))

    def follow(node: str) -> None:
        """When `b` has taken the change, `c` becomes the owner, and does not reach `b`."""
        assert node == "b"
        network.meanwhile = lambda _: None
        network.believed["c"] = (2, "c")
        network.silent = {"b"}
        replies.append(network.keepers["c"].change(change_of("second")))
        network.silent = set()

    network.meanwhile = follow
    assert wire.NotOwner() == network.keepers["a"].change(change_of("third"))
    assert [wire.Done()] == replies


def test_a_change_that_is_asked_for_again_is_made_once() -> None:
    """The reply may have been lost, and others may have made many changes meanwhile."""
    network = Network(random.Random(0), 0.0)
    owner, changes = network.keepers["a"], (TableChange("t", None, table("t")),)
    request = wire.ChangeTables(("me", 1), changes)
    assert wire.Done() == owner.change(request)
    for number in range(300):
        assert wire.Done() == owner.change(wire.ChangeTables((f"{number % 9}", number), changes))
    assert [wire.Done()] * 2 == [owner.change(request) for _ in range(2)]
    assert 301 == owner._copy.catalog.tables["t"].number


# What follows from changes


@settings(max_examples=settings.default.max_examples // 4)
@given(
    steps=st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=12),
    behind=st.integers(0, 12),
)
def test_news_lead_from_any_catalog_to_the_last(steps: list[tuple[str, bool]], behind: int) -> None:
    """Those who have an earlier one get what has changed only."""
    catalogs = [TableCatalog(order=(1, 0))]
    for i, (name, is_there) in enumerate(steps):
        new = table(name, f"{name}{i}") if is_there else None
        catalogs.append(after(catalogs[-1], TableChange(name, None, new)))
    last, earlier = catalogs[-1], catalogs[min(behind, len(catalogs) - 1)]
    assert last == earlier.after(last.news(earlier.order))
    assert last == TableCatalog().after(last.news())
    assert TableCatalog(order=(1, 99)).after(last.news(earlier.order)) is None


def test_a_change_must_follow_what_it_was_made_of() -> None:
    """Else nothing of it counts."""
    catalog = after(TableCatalog(), TableChange("t", "", table("t", "1")))
    for expected in ("", "2"):
        changes = [TableChange("u", "", table("u")), TableChange("t", expected, table("t", "3"))]
        assert isinstance(records.changed(catalog, ("x", 0), changes, 2.0), str)


def test_replicas_that_move_while_a_change_is_made_count() -> None:
    """A partition with more files is where all of them are; one in the same files where it was."""
    catalog = after(TableCatalog(), TableChange("t", "", table("t", "1")))
    catalog = catalog.located("t", 0, ("b", "c"), "c1")
    first, second = catalog.tables["t"].partitions
    changed = SharedPartition((*first.files, "shared/t/delta"), ("a", "b"))
    moved = SharedPartition(second.files, ("a", "b"))
    new = after(catalog, TableChange("t", "1", table("t", "2", partitions=(changed, moved))))
    assert [("b",), ("b", "c")] == [part.nodes for part in new.tables["t"].partitions]
    nowhere = SharedPartition((*first.files, "shared/t/delta"), ("a",))
    lost = TableChange("t", "1", table("t", "2", partitions=(nowhere, moved)))
    assert isinstance(records.changed(catalog, ("x", 0), [lost], 2.0), str)


def test_files_of_former_versions_stay_until_nobody_reads_them() -> None:
    """Or until they have stayed for too long."""
    catalog = after(TableCatalog(), TableChange("t", "", table("t", "1")))
    catalog = after(catalog, TableChange("t", "1", None))
    assert ("shared/t/0", "shared/t/1") == catalog.retired[0].files
    assert {"shared/t": ("0", "1")} == records.wanted_files(catalog)
    assert () == catalog.released(1, 0.0)
    assert catalog.retired == catalog.released(2, 0.0) == catalog.released(1, 3.0)
    assert {} == records.wanted_files(records.without(catalog, catalog.retired))


def test_replicas_are_made_again_when_nodes_are_gone() -> None:
    """A node that has started again under its name has lost what it had."""
    catalog = after(TableCatalog(), TableChange("t", "", table("t", "1")))
    assert catalog is records.emptied(catalog, {"a": "a1", "c": "c1"})
    found = records.copies(catalog, ("a", "c"), ("a", "c"))
    assert [(0, "a", "c"), (1, "c", "a")] == sorted((c.index, c.source, c.target) for c in found)
    empty = records.emptied(catalog, {"a": "a2", "b": "b1", "c": "c1"})
    assert [("b",), ("b", "c")] == [part.nodes for part in empty.tables["t"].partitions]
    (copy,) = records.copies(empty, ("a", "b", "c"), ("a", "b", "c"))
    assert (0, "b", "a") == (copy.index, copy.source, copy.target)
    assert records.needed(catalog, "b", ("a", "c"))
    assert not records.needed(catalog.located("t", 0, ("b", "a", "c"), "c1"), "a", ("b", "c"))


def test_a_node_removes_what_nobody_wants(tmp_path: Any) -> None:
    """Not at once, as it may be about to be committed, and nothing of a session that lives."""
    for name in ("s-1-0/x", "s-1-0/y", "s-2-0/x", "s-3-0/x"):
        file = tmp_path / "shared" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    wanted, files = {"shared/s-1-0": ("x",)}, WantedFiles([tmp_path])
    later = (tmp_path / "shared/s-1-0/y").stat().st_mtime + 10

    def left() -> list[str]:
        return sorted(str(p.relative_to(tmp_path / "shared")) for p in tmp_path.glob("shared/*/*"))

    files.keep(wanted, ["s-3"], later)
    assert ["s-1-0/x", "s-1-0/y", "s-2-0/x", "s-3-0/x"] == left()
    files.keep(wanted, ["s-3"], later)
    assert ["s-1-0/x", "s-1-0/y", "s-3-0/x"] == left()
    for _ in range(2):
        files.keep(wanted, ["s-3"], later + 3600)
    assert ["s-1-0/x", "s-3-0/x"] == left()
    assert not (tmp_path / "shared/s-2-0").exists()
    assert files.has_any
