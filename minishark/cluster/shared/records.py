"""What a cluster knows of the tables that belong to it. Pure.

A catalog is all tables at a moment. Each change gives it the next version. What sessions know of a
table beyond what nodes need is `described`, which only they read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import structs

from minishark.cluster.replicas import lacks_replicas, missing_copies

FOLDER = "shared"
"""Of a node's storage: has a folder for each load of a shared table."""

RETIRED_MAX_S = 600.0
"""After so long, files of former versions go, whoever reads them: their query is planned again."""

_CHANGED_MAX = 256

Uid: TypeAlias = tuple[str, int]
"""Of a change: by whom, who makes one after the other, and their how many."""

Order: TypeAlias = tuple[int, int]
"""Of two catalogs, that of the higher one is the later: the ballot that wrote it, its version."""

NEVER: Order = (-1, -1)


class SharedPartition(msgspec.Struct, frozen=True, array_like=True):
    """The files of a partition, its own one first, and the nodes that have all of them."""

    files: tuple[str, ...]
    nodes: tuple[str, ...]


class SharedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that belongs to the cluster.

    Attributes:
        owner: the user who created it, as their program said.
        created_s: when, in seconds since 1970.
        changed_s: when its rows or columns changed last.
        number: how often they did.
        replica_bytes: the size of one replica.
        content: names its rows and columns; another after each change, but not if replicas move.
        homes: the folders of the nodes that have files, which are new when a node starts again.
        described: all else, as sessions write and read it.
        at: the catalog's version when it changed last, be it replicas only.
    """

    described: bytes
    name: str
    owner: str
    created_s: float
    changed_s: float
    rows: int
    replica_bytes: int
    replicas: int
    content: str
    partitions: tuple[SharedPartition, ...]
    homes: dict[str, str]
    number: int = 1
    at: int = 0

    @property
    def files(self) -> Iterator[str]:
        """All its files."""
        return (file for partition in self.partitions for file in partition.files)


class TableChange(msgspec.Struct, frozen=True, array_like=True):
    """A table's next version, or its end.

    Attributes:
        name: the table's.
        expected: the content that it must have now; "" if there must be none, None for any or none.
        table: what is to be; None for no table.
    """

    name: str
    expected: str | None
    table: SharedTable | None


class Retired(msgspec.Struct, frozen=True, array_like=True):
    """Files that the catalog of that version has no more, since a time in seconds since 1970."""

    at: int
    since_s: float
    files: tuple[str, ...]


class News(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog for whoever has an earlier one: that of `since`, or none.

    `names` are those of all tables, `tables` what has changed; the rest is as in `TableCatalog`.
    """

    order: Order
    since: Order
    names: tuple[str, ...]
    tables: tuple[SharedTable, ...]
    retired: tuple[Retired, ...] = ()
    changed: tuple[Uid, ...] = ()


class TableCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """All tables that belong to a cluster, at a moment.

    Attributes:
        order: later catalogs have higher ones.
        tables: by their names in lower case.
        retired: files that some session may still read.
        changed: the last change of each who makes some, so that one that is asked for twice is
            made once, whatever others have changed meanwhile; of the last few hundred.
    """

    order: Order = (0, 0)
    tables: dict[str, SharedTable] = {}
    retired: tuple[Retired, ...] = ()
    changed: tuple[Uid, ...] = ()

    @property
    def version(self) -> int:
        """Counts changes."""
        return self.order[1]

    def news(self, since: Order = NEVER) -> News:
        """It for somebody who has the catalog of that order; of another ballot, all is new."""
        known = since[1] if since[0] == self.order[0] else -1
        return News(
            order=self.order,
            since=since if known >= 0 else NEVER,
            names=tuple(self.tables),
            tables=tuple(table for table in self.tables.values() if table.at > known),
            retired=self.retired,
            changed=self.changed,
        )

    def after(self, news: News) -> TableCatalog | None:
        """What somebody has after news; None if they are for who knows more."""
        if news.since not in (NEVER, self.order):
            return None
        new = {table.name.lower(): table for table in news.tables}
        known = {} if news.since == NEVER else self.tables
        tables = {name: new.get(name) or known[name] for name in news.names}
        return TableCatalog(
            order=news.order, tables=tables, retired=news.retired, changed=news.changed
        )

    def followed(self, ballot: int) -> TableCatalog:
        """The same tables as the next version, which a ballot writes."""
        return structs.replace(self, order=(ballot, self.version + 1))

    def located(self, name: str, index: int, nodes: tuple[str, ...], home: str) -> TableCatalog:
        """The next version, in which other nodes have a partition, the last in that folder."""
        table = self.tables[name]
        partitions = list(table.partitions)
        partitions[index] = structs.replace(partitions[index], nodes=nodes)
        homes = {nodes[-1]: home, **table.homes}
        return self._with(structs.replace(table, partitions=tuple(partitions), homes=homes))

    def _with(self, table: SharedTable) -> TableCatalog:
        new = self.followed(self.order[0])
        tables = {**self.tables, table.name.lower(): structs.replace(table, at=new.version)}
        return structs.replace(new, tables=tables)

    def released(self, version: int, before_s: float) -> tuple[Retired, ...]:
        """What nobody reads who knows that version, or has been retired for too long."""
        return tuple(r for r in self.retired if r.at <= version or r.since_s < before_s)


def changed(
    catalog: TableCatalog, uid: Uid, changes: Sequence[TableChange], at_s: float
) -> TableCatalog | str:
    """The catalog after changes, all of them, or a sentence that says why there is none."""
    who, number = uid
    if number <= dict(catalog.changed).get(who, -1):
        return catalog
    new = catalog.followed(catalog.order[0])
    tables = dict(catalog.tables)
    for change in changes:
        key, old = change.name.lower(), catalog.tables.get(change.name.lower())
        content = "" if old is None else old.content
        if change.expected is not None and content != change.expected:
            return f"Table {change.name} was changed or replaced by another session."
        if change.table is None:
            tables.pop(key, None)
            continue
        table = _relocated(change.table, old)
        if table is None:
            return f"Replicas of {change.name} moved meanwhile."
        number = 1 if old is None else old.number + 1
        if old is not None:
            table = structs.replace(table, owner=old.owner, created_s=old.created_s)
        tables[key] = structs.replace(table, at=new.version, number=number)
    left = {file for table in tables.values() for file in table.files}
    names = (change.name.lower() for change in changes)
    before = (catalog.tables[name] for name in names if name in catalog.tables)
    gone = tuple(file for table in before for file in table.files if file not in left)
    retired = (*catalog.retired, Retired(new.version, at_s, gone)) if gone else catalog.retired
    others = (last for last in catalog.changed if last[0] != who)
    last_changes = (*others, uid)[-_CHANGED_MAX:]
    return structs.replace(new, tables=tables, retired=retired, changed=last_changes)


def _relocated(table: SharedTable, old: SharedTable | None) -> SharedTable | None:
    """A table whose replicas may have moved while it was made; None if a partition has none."""
    if old is None:
        return table
    known = {partition.files[0]: partition for partition in old.partitions}
    partitions = []
    for partition in table.partitions:
        before = known.get(partition.files[0])
        if before is not None:
            same = before.files == partition.files
            nodes = tuple(n for n in before.nodes if same or n in partition.nodes)
            if partition.nodes and not nodes:
                return None
            partition = structs.replace(partition, nodes=nodes)  # noqa: PLW2901
        partitions.append(partition)
    is_version = any(partition.files[0] in known for partition in table.partitions)
    homes = {**table.homes, **old.homes} if is_version else table.homes
    return structs.replace(table, partitions=tuple(partitions), homes=homes)


class Copy(msgspec.Struct, frozen=True):
    """A copy of a partition that a node is to have."""

    table: str
    index: int
    partition: SharedPartition
    source: str
    target: str


def emptied(catalog: TableCatalog, homes: Mapping[str, str]) -> TableCatalog:
    """The next version without the replicas of nodes that have started again; it, if none has.

    Args:
        catalog: the catalog.
        homes: the folder of each live node.
    """
    for table in catalog.tables.values():
        gone = {n for n, home in table.homes.items() if n in homes and homes[n] != home}
        if gone:
            partitions = tuple(
                structs.replace(part, nodes=tuple(n for n in part.nodes if n not in gone))
                for part in table.partitions
            )
            left = {node: home for node, home in table.homes.items() if node not in gone}
            new = structs.replace(table, partitions=partitions, homes=left)
            return emptied(catalog._with(new), homes)  # noqa: SLF001 - of this module
    return catalog


def copies(catalog: TableCatalog, staying: Sequence[str], live: Collection[str]) -> Iterator[Copy]:
    """What is to be copied, so that each partition has the replicas that its table is to have.

    Args:
        catalog: with replicas on nodes that have not started again (`emptied`).
        staying: the live nodes that take replicas, in order.
        live: those, and nodes that drain, from which it can be copied.
    """
    for name, table in catalog.tables.items():
        for index, partition in enumerate(table.partitions):
            missing = missing_copies(partition.nodes, index, table.replicas, staying, live)
            for source, target in missing:
                yield Copy(name, index, partition, source, target)


def needed(catalog: TableCatalog, node: str, staying: Collection[str]) -> bool:
    """Whether a node has replicas that too few others have which stay."""
    return any(
        node in partition.nodes and lacks_replicas(partition.nodes, table.replicas, staying)
        for table in catalog.tables.values()
        for partition in table.partitions
    )


def wanted_files(catalog: TableCatalog) -> dict[str, tuple[str, ...]]:
    """The names of all files that some session may read, by their folders."""
    folders: dict[str, list[str]] = {}
    retired = (file for gone in catalog.retired for file in gone.files)
    current = (file for table in catalog.tables.values() for file in table.files)
    for file in (*current, *retired):
        folder, _, name = file.rpartition("/")
        folders.setdefault(folder, []).append(name)
    return {folder: tuple(names) for folder, names in folders.items()}


def without(catalog: TableCatalog, gone: Iterable[Retired]) -> TableCatalog:
    """The next version, when files are gone."""
    done = set(gone)
    left = tuple(retired for retired in catalog.retired if retired not in done)
    return structs.replace(catalog.followed(catalog.order[0]), retired=left)
