"""What a session tells the node that answers for shared tables while its queries run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from minishark.cluster import wire
from minishark.cluster.connections import NoAnswerError
from minishark.cluster.shared.client import SharedTablesClient
from minishark.cluster.shared.records import TableCatalog


class Nodes:
    """Three nodes, of which one owns the catalog; they note who says that it reads."""

    def __init__(self) -> None:
        self.owner: str | None = "at-0"
        self.silent: set[str] = set()
        self.told: list[tuple[str, int]] = []

    def call(self, service: str, request: wire.GetTables, _: float) -> wire.Reply:
        """The reply of a node."""
        if service in self.silent:
            raise NoAnswerError
        if service != self.owner:
            return wire.NotOwner()
        self.told.append((service, request.version))
        return wire.TableNews(TableCatalog().followed(1).news())

    def find_held(self, _: str) -> Any:
        """Who owns the catalog."""
        holders = [SimpleNamespace(home=f"n{i}", service=f"at-{i}") for i in range(3)]
        owner = None if self.owner is None else self.owner.replace("at-", "n")
        return SimpleNamespace(holders=holders, owner=owner)


def test_a_session_renews_its_lease_with_whoever_owns_the_catalog_now() -> None:
    """Also within a statement: a new owner forgets sessions that it has not heard of in 30 s."""
    nodes = Nodes()
    client = SharedTablesClient(
        session="s",
        connections=cast("Any", nodes),
        jobs=cast("Any", nodes),
        oldest=lambda: 7,
    )
    client.renew()
    assert [] == nodes.told, "it has read no table"
    client.read()
    client.renew()
    nodes.owner = "at-1"  # the former one says so
    client.renew()
    nodes.owner, nodes.silent = "at-2", {"at-1"}  # it has died
    client.renew()
    nodes.owner = None  # nobody owns it yet
    client.renew()
    nodes.owner = "at-0"
    client.renew()
    assert [("at-0", 7)] * 2 + [("at-1", 7), ("at-2", 7), ("at-0", 7)] == nodes.told
