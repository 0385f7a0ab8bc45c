"""The tables of a session: loading them into the cluster, and forgetting them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from minishark.catalog import Catalog, Table
from minishark.cluster.backend import Cluster, Placement
from minishark.compiler.physical.options import PARTITIONS_MAX, check_partitions, is_whole_number
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.errors import CatalogError, OptionError, PartitionsLostError
from minishark.expressions import Schema
from minishark.query.inputs import lost_partitions
from minishark.tables.load import LoadedTable, TableLayout, TableLoader, TableSource
from minishark.tables.replication import Replicator
from minishark.tables.sources import SourceSize, arrow_table, files_source, memory_source
from minishark.worker.protocol import FileSlice
from minishark.worker.statistics import merge_statistics
from minishark.worker.store import InputMissingError

_SMALL_TABLE_ROWS = 20_000
_SMALL_TABLE_BYTES = 1 << 20
_READS_MAX = 5


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that a table was made of, by size and time, and how it was to lie."""

    data: str | Path
    stamps: tuple[tuple[str, int, int], ...]
    partition_by: tuple[str, ...]
    partitions: int
    replicas: int


@dataclass(slots=True)
class Tables:
    """Loads tables into a cluster, and tells the catalog and the planning database of them.

    Attributes:
        cluster: where they lie.
        planning: what plans statements over them.
        placement: how loading tasks are placed now.
        partitions: how many partitions a table has by default.
        warn: takes sentences for the user.
        catalog: what is loaded.
    """

    cluster: Cluster
    planning: PlanningDatabase
    placement: Callable[[], Placement]
    partitions: int
    warn: Callable[[str], None]
    catalog: Catalog = field(default_factory=Catalog)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _origins: dict[str, _Files] = field(default_factory=dict)  # by folder
    _same_as: dict[str, str] = field(default_factory=dict)  # loads again by what they repeat
    _homes: dict[str, dict[str, str]] = field(default_factory=dict)  # of nodes, by folder
    _restoring: threading.Lock = field(default_factory=threading.Lock)

    def create(
        self,
        name: str,
        data: Any,
        *,
        partition_by: str | Sequence[str] | None = None,
        partitions: int | None = None,
        replicas: int = 2,
        replace: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load a table; `Session.create_table` says what the arguments mean."""
        self.check_new(name, replace=replace)
        check_layout(partitions, replicas)
        self._create(name, data, partition_by, partitions, replicas, replace, on_progress)

    def _create(
        self,
        name: str,
        data: Any,
        partition_by: str | Sequence[str] | None,
        partitions: int | None,
        replicas: int,
        replace: bool,
        on_progress: Callable[[int, int], None] | None = None,
        content: str | None = None,
    ) -> None:
        with self.folder() as folder, self.passing(folder) as passing:
            pieces = partitions or self.partitions
            source, size = self._source(data, passing[0], pieces)
            keys = named_columns(name, partition_by, [column.name for column in source.schema])
            layout = self.layout(keys, partitions, replicas, size)
            stamps = _stamps(source.files)
            table = self.load(name, folder, source, layout, on_progress)
            if source.files:
                wanted = (keys, len(table.partitions), layout.replicas)
                self._origins[folder] = _Files(data, stamps, *wanted)
            if content is not None:
                self.repeats(table, content)
            self.publish(table, replace=replace)

    def check_new(self, name: str, *, replace: bool) -> None:
        """Raise CatalogError if no table can have that name."""
        if not name or "\0" in name:
            raise CatalogError("A table needs a name, without zero bytes.")
        if name in self.catalog and not replace:
            raise CatalogError(f"There is a table called {name!r} already; pass replace=True.")
        if self.planning.has_view(name):
            raise CatalogError(f"There is a view called {name!r}; drop it first.")

    @contextlib.contextmanager
    def folder(self) -> Iterator[str]:
        """A new table's folder on every node; removed again if the table is not made."""
        folder = self.cluster.folder(f"tables/{next(self._numbers)}")
        self._homes[folder] = self.cluster.homes()
        try:
            self.cluster.make_folder(folder)
            yield folder
        except BaseException:
            self._forget(folder)
            raise

    @contextlib.contextmanager
    def passing(self, folder: str) -> Iterator[tuple[str, str]]:
        """Folders that a table needs only while it is made."""
        passing = (f"{folder}-source", f"{folder}-buckets")
        try:
            for needed in passing:
                self.cluster.make_folder(needed)
            yield passing
        finally:
            for passed in passing:
                self.cluster.remove_folder(passed)

    def drop(self, name: str) -> None:
        """Remove a table and free its memory.

        Raises:
            CatalogError: there is no such table.
        """
        with self._lock:
            table = self.catalog.remove(name)
            self.planning.remove_table(name)
        self._forget(table.folder)

    def _forget(self, folder: str) -> None:
        self._origins.pop(folder, None)
        self._same_as.pop(folder, None)
        self._homes.pop(folder, None)
        self.cluster.remove_folder(folder)

    def read(self, name: str) -> pa.Table:
        """All rows of a table, memory-mapped.

        Raises:
            CatalogError: there is no such table, or it is dropped meanwhile.
        """
        for _ in range(_READS_MAX - 1):
            table = self.catalog.get(name)
            try:
                return self._stored_rows(table)
            except (InputMissingError, OSError) as error:
                if self.is_current(table):  # else it was replaced, or healed
                    self._restored(table, error)
        return self._stored_rows(self.catalog.get(name))

    def _stored_rows(self, table: Table) -> pa.Table:
        slices = tuple(FileSlice(p.file, p.locations) for p in table.partitions)
        return self.cluster.store().read(slices)

    def _restored(self, table: Table, error: InputMissingError | OSError) -> None:
        lost = isinstance(error, InputMissingError) and lost_partitions(table, error.files)
        if not lost:
            raise error
        self.restore(lost)

    # What was lost

    def replicator(self) -> Replicator:
        """Who keeps the replicas of all tables at what they shall be."""
        return Replicator(
            self.cluster,
            lambda: tuple(self.catalog),
            lambda table: self._homes.get(table.folder, {}),
            self._moved,
        )

    def _moved(self, table: Table, index: int, found: Sequence[str], gone: Sequence[str]) -> None:
        """Other nodes hold a partition now."""
        with self._lock:
            if not self.is_current(table):
                return
            current = self.catalog.get(table.name)
            held = [n for n in current.partitions[index].locations if n not in gone]
            self.catalog.add(current.held_by(index, tuple(dict.fromkeys((*held, *found)))))

    def is_current(self, table: Table) -> bool:
        """Whether the table of that name is still the same load, whoever holds it."""
        return table.name in self.catalog and self.catalog.get(table.name).folder == table.folder

    def content(self, table: Table) -> str:
        """What tells a table's rows from those of other loads, but for loads that repeat one."""
        return self._same_as.get(table.folder, table.folder)

    def repeats(self, table: Table, content: str) -> None:
        """A table that is about to be published has the same rows as one before, which was lost."""
        self._same_as[table.folder] = content

    def restore(self, lost: PartitionsLostError) -> None:
        """Load a table again whose partitions are lost, if its files are what they were.

        Raises:
            PartitionsLostError: they are not, or it was not made of files.
        """
        with self._restoring:
            table = self.catalog.get(lost.table)
            if not any(partition.file in lost.files for partition in table.partitions):
                return  # another thread was faster
            origin = self._origins.get(table.folder)
            if origin is None:
                raise lost
            if _stamps(tuple(file for file, _, _ in origin.stamps)) != origin.stamps:
                why = f", and {origin.data} has changed since"
                raise PartitionsLostError(lost.table, lost.partitions, lost.files, why)
            self.warn(f"Table {table.name} was lost with its nodes, and is loaded again.")
            self._create(
                table.name,
                origin.data,
                origin.partition_by,
                origin.partitions,
                origin.replicas,
                replace=True,
                content=self.content(table),
            )

    def _source(self, data: Any, folder: str, pieces: int) -> tuple[TableSource, SourceSize]:
        if isinstance(data, str | Path):
            return files_source(data, self.planning, pieces)
        return memory_source(
            arrow_table(data),
            self.cluster.store(),
            folder,
            self.cluster.store_name,
            self.planning,
            pieces,
        )

    def layout(
        self, keys: tuple[str, ...], partitions: int | None, replicas: int, size: SourceSize
    ) -> TableLayout:
        """How a table is laid out whose user wants this; small ones lie whole on every node."""
        small = size.bytes <= _SMALL_TABLE_BYTES and (size.rows or 0) <= _SMALL_TABLE_ROWS
        count = partitions or (1 if small and not keys else self.partitions)
        return TableLayout(keys, count, self.copies(count, replicas))

    def copies(self, partitions: int, replicas: int) -> int:
        """On how many nodes each partition lies; a single one lies on all."""
        nodes = len(self.cluster.nodes)
        return max(nodes, replicas) if partitions == 1 else replicas

    def load(
        self,
        name: str,
        folder: str,
        source: TableSource,
        layout: TableLayout,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Table:
        """Load a source into `folder`, as a table that nobody knows yet."""
        loader = TableLoader(
            self.cluster.backend,
            lambda: self._place(folder),
            self.cluster.lost_nodes,
            folder,
            source,
            layout,
            on_progress,
        )
        return self.described(
            name, source.schema, layout.partition_by, loader.load(), layout.replicas
        )

    def _place(self, folder: str) -> Placement:
        """How tasks are placed that load a table, on nodes that have its folders."""
        placement = self.placement()
        for needed in (folder, f"{folder}-buckets"):
            self.cluster.make_folder(needed)
        return placement

    def described(
        self,
        name: str,
        schema: Schema,
        keys: tuple[str, ...],
        loaded: LoadedTable,
        replicas: int,
    ) -> Table:
        """A table that was stored, with its statistics."""
        if loaded.on_disk:
            self.warn(
                f"There is no room in shared memory: table {name} lies on disk, which is slower."
            )
        connection = self.planning.connection()
        try:
            columns = [(column.name, column.type) for column in schema]
            size = sum(partition.bytes for partition in loaded.partitions)
            statistics = merge_statistics(connection, loaded.measured, columns, size)
        finally:
            connection.close()
        return Table(name, schema, loaded.partitions, keys, statistics, replicas)

    def publish(self, table: Table, *, replace: bool) -> None:
        """Make a table known.

        Raises:
            CatalogError: there is one of its name, which it shall not replace.
        """
        with self._lock:
            replaced = self.catalog.get(table.name) if table.name in self.catalog else None
            if replaced is not None and not replace:
                raise CatalogError(f"There is a table called {table.name!r} already.")
            self.catalog.add(table)
            self.planning.put_table(table)
        if replaced is not None:
            self._forget(replaced.folder)


def check_layout(partitions: int | None, replicas: int) -> None:
    """Raise OptionError for numbers of partitions or replicas that make no sense."""
    check_partitions(partitions)
    if not is_whole_number(replicas, PARTITIONS_MAX):
        raise OptionError("replicas must be a whole number, at least 1.")


def named_columns(
    table: str, wanted: str | Sequence[str] | None, columns: Sequence[str]
) -> tuple[str, ...]:
    """The columns that a user names, as they are written in the table.

    Raises:
        CatalogError: there is none of that name.
    """
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted or ())
    found = {column.lower(): column for column in columns}
    for name in names:
        if name.lower() not in found:
            known = ", ".join(found.values())
            raise CatalogError(f"Table {table} has no column {name!r}; its columns are {known}.")
    return tuple(found[name.lower()] for name in names)


def _stamps(files: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    """Files with their sizes and times of change; those that are gone have none."""
    found = []
    for file in files:
        try:
            status = Path(file).stat()
        except OSError:
            continue
        found.append((file, status.st_size, status.st_mtime_ns))
    return tuple(found)
