"""Tables that belong to the cluster, as the sessions of this process see and change them.

The planning database and the catalog in memory know each by a name such as `"shared.orders"`. Its
files are in folders that nodes keep when the session ends; what other sessions have made of it is
read before each statement (`read`). A version that a statement has made counts when the cluster's
catalog has it, if that still has the version before (`commit`).
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from minishark.cluster.backend import CALLS_FOLDER, Files
from minishark.cluster.shared.client import DoubtfulChangeError, SharedTablesClient
from minishark.cluster.shared.records import FOLDER, SharedPartition, SharedTable, TableChange
from minishark.cluster.wire import own_user
from minishark.errors import ConflictError
from minishark.model.catalog import Catalog, Table
from minishark.tables.deltas import replaced_meanwhile, versions

SCHEMA = "shared"
PREFIX = f"{SCHEMA}."
"""How the names of these tables start, as queries know them."""

_numbers = itertools.count()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Table).decode


def is_shared(name: str) -> bool:
    """Whether a table of that name belongs to the cluster, if it has such."""
    return name.lower().startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class _Held:
    """A table as the cluster has it, and as this process does."""

    shared: SharedTable
    table: Table


@dataclass(slots=True, kw_only=True)
class SharedTables:
    """The tables that belong to a cluster.

    Attributes:
        client: asks the cluster.
        files: where they are.
        catalog: all tables of the process.
        is_named: whether the process has named one: until then, nobody asks what others have done.
    """

    client: SharedTablesClient
    files: Files
    catalog: Catalog
    is_named: bool = False
    _held: Mapping[str, _Held] = field(default_factory=dict)  # by names in lower case
    _sent: dict[str, None] = field(default_factory=dict)  # folders that the cluster may know
    _doubtful: dict[str, None] = field(default_factory=dict)  # files of changes that may count
    # Versions of the catalog that are over, with the folders of what may still read them.
    _read: dict[int, frozenset[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _reads: threading.Lock = field(default_factory=threading.Lock)  # guards `_read`

    def __post_init__(self) -> None:
        self.client.oldest = self._oldest

    def folder(self) -> str:
        """A new folder for a load."""
        return f"{FOLDER}/{self.files.store_name}-{next(_numbers)}"

    def is_own(self, folder: str) -> bool:
        """Whether a folder is for a shared table."""
        return folder.startswith(f"{FOLDER}/")

    def may_remove(self, folder: str) -> bool:
        """Whether nobody else can know a folder."""
        return folder not in self._sent

    def leave(self, folder: str) -> None:
        """Have a folder no longer, which stays on the nodes."""
        self.client.leave(folder)

    def may_retire(self, file: str) -> bool:
        """Whether nobody else can know a file that this process does not need any more."""
        return file not in self._doubtful

    def homes(self, name: str) -> Mapping[str, str]:
        """The storage folders of the nodes that have files of a table."""
        held = self._held.get(name.lower())
        return {} if held is None else held.shared.homes

    # What others have done

    def read(self) -> list[tuple[str, Table | None]]:
        """What has changed since the last time: names with tables, None for those that are gone."""
        with self._lock:
            before = self.client.catalog
            self.client.read()
            now = self.client.catalog
            if now is before:
                return []
            if self._held:
                with self._reads:
                    self._read[before.version] = self._reading()
            held: dict[str, _Held] = {}
            for name, shared in now.tables.items():
                old = self._held.get(name)
                held[name] = old if old and old.shared is shared else _known(shared, old)
            new = [
                version.table
                for name, version in held.items()
                if version is not self._held.get(name)
            ]
            gone = [old.table.name for name, old in self._held.items() if name not in held]
            self._held = held
            self._sent.update((table.folder, None) for table in new)
            return [*((name, None) for name in gone), *((table.name, table) for table in new)]

    def _reading(self) -> frozenset[str]:
        """The folders of what is running."""
        lasting = {self.files.folder(CALLS_FOLDER), *(table.folder for table in self.catalog)}
        return self.files.open_folders - lasting

    def _oldest(self) -> int:
        """The oldest version of the cluster's catalog that something still reads; -1 for none."""
        now = self._reading()
        with self._reads:
            self._read = {v: then for v, then in self._read.items() if then & now}
            return min(self._read, default=self.client.catalog.version if now else -1)

    # What this process does

    def commit(
        self,
        changes: Iterable[tuple[Table | None, Table | None]],
        *,
        homes: Callable[[str], Mapping[str, str]],
        whatever: bool = False,
    ) -> dict[str, Table]:
        """Make tables what they are to be, all at once.

        Args:
            changes: each table as it is known, and as it is to be; None for no table.
            homes: gives nodes' storage folders when a load began, by its folder.
            whatever: whether they may have changed meanwhile.

        Returns:
            the new ones by name, with the replicas that they have.

        Raises:
            ConflictError: another session has changed one; nothing has changed.
            ClusterError: the cluster does not answer.
        """
        pairs = [(old, None if new is None else self._on_nodes(new)) for old, new in changes]
        with self._lock:
            asked = [self._change(old, new, homes, whatever=whatever) for old, new in pairs]
            files = [part.files for _, new in pairs if new is not None for part in new.partitions]
            folders = [new.folder for _, new in pairs if new is not None]
            first = [folder for folder in folders if folder not in self._sent]
            self._sent.update(dict.fromkeys(folders))
            try:
                self.client.change(asked)
            except ConflictError:
                for folder in first:
                    self._sent.pop(folder, None)
                raise
            except DoubtfulChangeError:
                self._doubtful.update((file, None) for some in files for file in some)
                raise
            held = dict(self._held)
            for change, (_, new) in zip(asked, pairs, strict=True):
                held.pop(change.name.lower(), None)
                if change.table is not None and new is not None:
                    held[change.name.lower()] = _Held(change.table, new)
            self._held = held
        return {new.name: new for _, new in pairs if new is not None}

    def _on_nodes(self, table: Table) -> Table:
        """A table without what only this process has of it."""
        own = self.files.store_name
        partitions = []
        for part in table.partitions:
            nodes = tuple(node for node in part.locations if node != own)
            if not nodes:
                raise ConflictError(replaced_meanwhile(table.name))
            deltas = tuple(replace(delta, held=()) for delta in part.deltas)
            partitions.append(replace(part, locations=nodes, deltas=deltas))
        for delta in (delta for part in table.partitions for delta in part.deltas):
            if own in delta.held:
                self.files.remove_copy(delta.file, own)
        return replace(table, partitions=tuple(partitions))

    def _change(
        self,
        old: Table | None,
        new: Table | None,
        homes: Callable[[str], Mapping[str, str]],
        *,
        whatever: bool,
    ) -> TableChange:
        table = new or old
        assert table is not None, "one of them is there"
        known = self._held.get(table.name.lower())
        expected: str | None = ""
        if whatever:
            expected = None
        elif old is not None:
            if known is None or not known.table.same_rows(old):
                raise ConflictError(replaced_meanwhile(old.name))
            expected = known.shared.content
        made = None if new is None else self._shared(new, homes(new.folder))
        return TableChange(table.name, expected, made)

    def _shared(self, table: Table, homes: Mapping[str, str]) -> SharedTable:
        now = time.time()
        nodes = {node for part in table.partitions for node in part.locations}
        at = {**self.files.homes(), **homes}
        return SharedTable(
            name=table.name,
            owner=own_user(),
            created_s=now,
            changed_s=now,
            rows=table.rows,
            replica_bytes=table.bytes,
            replicas=table.replicas,
            content=secrets.token_hex(8),
            partitions=tuple(SharedPartition(p.files, p.locations) for p in table.partitions),
            homes={node: home for node, home in at.items() if node in nodes},
            described=_encode(table),
        )


def _known(shared: SharedTable, old: _Held | None) -> _Held:
    """A table as the process knows it from now on."""
    if old is not None and old.shared.content == shared.content:
        table = old.table
    else:
        table = replace(_decode(shared.described), version=next(versions))
    partitions = tuple(
        replace(part, locations=at.nodes)
        for part, at in zip(table.partitions, shared.partitions, strict=True)
    )
    return _Held(shared, replace(table, partitions=partitions))
