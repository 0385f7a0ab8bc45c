"""The tables of a session: loading them into the cluster, and forgetting them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from minishark.catalog import Catalog, Table
from minishark.cluster.backend import Cluster, Placement
from minishark.cluster.load import TableLayout, TableLoader, TableSource
from minishark.cluster.source import SourceSize, arrow_table, files_source, memory_source
from minishark.errors import CatalogError, OptionError
from minishark.execution.statistics import merge_statistics
from minishark.execution.task import FileSlice
from minishark.sql.planning import PlanningDatabase

PARTITIONS_MAX = 4096
_SMALL_TABLE_ROWS = 20_000
_SMALL_TABLE_BYTES = 1 << 20


def check_partitions(count: int | None) -> None:
    """Raise OptionError unless `count` is None or a number of partitions that makes sense."""
    if count is not None and not _is_whole_number(count, PARTITIONS_MAX):
        raise OptionError(f"partitions must be a whole number from 1 to {PARTITIONS_MAX}.")


def _is_whole_number(value: object, most: int) -> bool:
    """Whether a user passed a whole number from 1 to `most`, whatever the type hints say."""
    return isinstance(value, int) and 1 <= value <= most


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
        if not name or "\0" in name:
            raise CatalogError("A table needs a name, without zero bytes.")
        if name in self.catalog and not replace:
            raise CatalogError(f"There is a table called {name!r} already; pass replace=True.")
        if self.planning.has_view(name):
            raise CatalogError(f"There is a view called {name!r}; drop it first.")
        check_partitions(partitions)
        if not _is_whole_number(replicas, PARTITIONS_MAX):
            raise OptionError("replicas must be a whole number, at least 1.")
        folder = self.cluster.folder(f"tables/{next(self._numbers)}")
        passing = (f"{folder}-source", f"{folder}-buckets")
        try:
            for needed in (folder, *passing):
                self.cluster.make_folder(needed)
            pieces = partitions or self.partitions
            source, size = self._source(data, passing[0], pieces)
            keys = _keys(name, partition_by, source)
            layout = self._layout(keys, partitions, replicas, size)
            table = self._load(name, folder, source, layout, on_progress)
        except BaseException:
            self.cluster.remove_folder(folder)
            raise
        finally:
            for passed in passing:
                self.cluster.remove_folder(passed)
        self._publish(table, replace=replace)

    def drop(self, name: str) -> None:
        """Remove a table and free its memory.

        Raises:
            CatalogError: there is no such table.
        """
        with self._lock:
            table = self.catalog.remove(name)
            self.planning.remove_table(name)
        self.cluster.remove_folder(_folder(table))

    def read(self, name: str) -> pa.Table:
        """All rows of a table, memory-mapped."""
        partitions = self.catalog.get(name).partitions
        return self.cluster.store().read(tuple(FileSlice(p.file, p.holders) for p in partitions))

    def _source(self, data: Any, folder: str, pieces: int) -> tuple[TableSource, SourceSize]:
        if isinstance(data, str | Path):
            return files_source(data, self.planning, pieces)
        return memory_source(
            arrow_table(data),
            self.cluster.store(),
            folder,
            self.cluster.holder,
            self.planning,
            pieces,
        )

    def _layout(
        self, keys: tuple[str, ...], partitions: int | None, replicas: int, size: SourceSize
    ) -> TableLayout:
        small = size.bytes <= _SMALL_TABLE_BYTES and (size.rows or 0) <= _SMALL_TABLE_ROWS
        count = partitions or (1 if small and not keys else self.partitions)
        nodes = len(self.cluster.nodes)
        return TableLayout(keys, count, nodes if count == 1 else min(replicas, nodes))

    def _load(
        self,
        name: str,
        folder: str,
        source: TableSource,
        layout: TableLayout,
        on_progress: Callable[[int, int], None] | None,
    ) -> Table:
        loader = TableLoader(self.cluster.backend, self.placement(), on_progress)
        loaded = loader.load(folder, source, layout)
        if loaded.on_disk:
            self.warn(f"Shared memory is full: table {name} lies on disk, which is slower.")
        connection = self.planning.connection()
        try:
            columns = [(column.name, column.type) for column in source.schema]
            size = sum(partition.bytes for partition in loaded.partitions)
            statistics = merge_statistics(connection, loaded.measured, columns, size)
        finally:
            connection.close()
        return Table(name, source.schema, loaded.partitions, layout.partition_by, statistics)

    def _publish(self, table: Table, *, replace: bool) -> None:
        with self._lock:
            replaced = self.catalog.get(table.name) if table.name in self.catalog else None
            if replaced is not None and not replace:
                self.cluster.remove_folder(_folder(table))
                raise CatalogError(f"There is a table called {table.name!r} already.")
            self.catalog.add(table)
            self.planning.put_table(table)
        self.planning.refresh()
        if replaced is not None:
            self.cluster.remove_folder(_folder(replaced))


def _keys(
    name: str, partition_by: str | Sequence[str] | None, source: TableSource
) -> tuple[str, ...]:
    wanted = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    found = {column.name.lower(): column.name for column in source.schema}
    for key in wanted:
        if key.lower() not in found:
            columns = ", ".join(found.values())
            raise CatalogError(f"Table {name} has no column {key!r}; its columns are {columns}.")
    return tuple(found[key.lower()] for key in wanted)


def _folder(table: Table) -> str:
    return table.partitions[0].file.rpartition("/")[0]
