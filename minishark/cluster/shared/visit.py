"""A look at the tables that belong to a cluster, for commands."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from machine_kit.keys import Keys
from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.jobs.members import may_hold
from minishark.cluster.joining import peer_session
from minishark.cluster.shared.client import SharedTablesClient
from minishark.cluster.shared.records import SharedTable


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table that belongs to a cluster, and the fewest live nodes that have a partition."""

    table: SharedTable
    replicas: int


def tables_of(address: str, keys_folder: str | Keys | None) -> list[ListedTable]:
    """The tables that belong to a cluster, by their names.

    Raises:
        ClusterError: it does not answer.
    """
    with peer_session(address, keys_folder) as (_, connections, sparrow):
        jobs = JobsClient(connections, lambda: may_hold(sparrow.nodes()))
        client = SharedTablesClient(
            session=f"visit-{secrets.token_hex(4)}", connections=connections, jobs=jobs
        )
        client.read()
        homes = {holder.name: holder.home for holder in may_hold(sparrow.nodes())}
    tables = client.catalog.tables
    return [ListedTable(tables[name], _fewest(tables[name], homes)) for name in sorted(tables)]


def _fewest(table: SharedTable, homes: dict[str, str]) -> int:
    live = {node for node, home in table.homes.items() if homes.get(node) == home}
    return min(sum(node in live for node in part.nodes) for part in table.partitions)
