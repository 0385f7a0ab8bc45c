"""Tables of the warehouse as sources: current and earlier versions, and rows with their places."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from minishark.catalog import ROW_NUMBER, ColumnStatistics, TableStatistics
from minishark.expressions import Column
from minishark.sources.contract import Pushed, Snapshot, Source, Split
from minishark.sources.iceberg import IcebergFile, IcebergSnapshot, IcebergSource
from minishark.sources.mapped_parquet import MappedColumn, MappedParquet

FILE_SHIFT = 32  # bits of a row's number for its place in a file; those above tell the file

_numbers = itertools.count()


def as_it_is(table: Any) -> StaticTable:
    """A table that stays as it is now; `table` is pyiceberg's."""
    from pyiceberg.catalog.noop import NoopCatalog  # noqa: PLC0415 - an extra

    return StaticTable(
        table.name(), table.metadata, table.metadata_location, table.io, NoopCatalog("fixed")
    )


@dataclass(slots=True, kw_only=True)
class WarehouseSource(Source):
    """The current rows of a table, or those of an earlier version."""

    name: str
    current: Callable[[], Any]  # gives pyiceberg's table as it is now
    snapshot_id: int | None = None
    timestamp: datetime | None = None
    _known: tuple[Any, IcebergSource] | None = field(default=None, repr=False)

    def resolve(self) -> IcebergSnapshot:
        table = self.current()
        known = self._known
        if known is None or known[0] is not table.metadata:
            source = IcebergSource(
                as_it_is(table),
                snapshot_id=self.snapshot_id,
                timestamp=self.timestamp,
                name=self.name,
            )
            known = self._known = (table.metadata, source)
        return known[1].resolve()


class LocatedRows(Snapshot):
    """The rows of a snapshot, or of some of its files, with their numbers (`ROW_NUMBER`).

    A number tells the file, and the row's place among all that were ever written there.
    """

    def __init__(
        self,
        snapshot: IcebergSnapshot,
        places: Mapping[str, int],
        files: frozenset[str] | None = None,
    ) -> None:
        """The rows of some files, or all.

        Args:
            snapshot: has the rows.
            places: the numbers of all files, by their paths.
            files: the paths of some.
        """
        self._snapshot, self._places, self._files = snapshot, places, files
        self.version = f"{snapshot.version} located {next(_numbers)}"
        self.schema = (*snapshot.schema, Column(ROW_NUMBER, "BIGINT"))
        known = snapshot.statistics
        if known is not None:
            number = ColumnStatistics(distinct=known.rows)
            self.statistics = TableStatistics(known.rows, known.bytes, (*known.columns, number))

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        own = tuple(each for each in pushed.predicates if each.column != ROW_NUMBER)
        found = self._snapshot.splits(Pushed(predicates=own), tasks)
        return [split for split in map(self._located, found) if split is not None]

    def _located(self, split: Split) -> Split | None:
        if isinstance(split, MappedParquet):
            parts = [
                replace(part, columns=(*part.columns, self._number(part.named_in_deletes)))
                for part in split.file_parts
                if self._has(part.named_in_deletes)
            ]
            return MappedParquet(split.name, parts, split.access) if parts else None
        assert isinstance(split, IcebergFile), "Iceberg has no other splits"
        return LocatedFile(split, self._first(split.path)) if self._has(split.path) else None

    def _has(self, path: str) -> bool:
        return self._files is None or path in self._files

    def _first(self, path: str) -> int:
        return self._places[path] << FILE_SHIFT

    def _number(self, path: str) -> MappedColumn:
        return MappedColumn(name=ROW_NUMBER, type="BIGINT", first_row=self._first(path))


class LocatedFile(Split):
    """A file that pyiceberg reads, with the column `ROW_NUMBER`.

    Rows are counted as they are read, which is always in the same order.
    """

    def __init__(self, split: IcebergFile, first: int) -> None:
        self._split, self._first = split, first
        self.rows, self.bytes = split.rows, split.bytes

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        reader = self._split.read(Pushed())
        schema = reader.schema.append(pa.field(ROW_NUMBER, pa.int64()))
        names = schema.names if pushed.columns is None else list(pushed.columns)
        batches = (batch.select(names) for batch in self._batches(reader, schema))
        return pa.RecordBatchReader.from_batches(pa.schema(map(schema.field, names)), batches)

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        first = self._first
        for batch in reader:
            last = first + batch.num_rows
            numbers = pa.array(range(first, last), pa.int64())
            yield pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema)
            first = last


@dataclass(frozen=True, slots=True)
class FixedSource(Source):
    """One snapshot."""

    name: str
    snapshot: Snapshot

    def resolve(self) -> Snapshot:
        return self.snapshot


def remove_files(io: Any, location: str, prefix: str) -> None:
    """Remove the files below a folder whose names begin so, as far as that is possible.

    Args:
        io: pyiceberg's access to files.
        location: the folder's URI.
        prefix: how the names begin.
    """
    with contextlib.suppress(Exception):
        for uri, _ in listed(io, location):
            if uri.rpartition("/")[2].startswith(prefix):
                io.delete(uri)


def listed(io: Any, location: str) -> list[tuple[str, float]]:
    """The files below a folder, and when they were last changed, in seconds since 1970.

    Raises:
        OSError: it can't be listed.
    """
    from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to import

    scheme, host, path = io.parse_location(location, io.properties)
    system = io.fs_by_scheme(scheme, host)
    prefix = location.removesuffix(path)
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    return [
        (f"{prefix}{info.path}", info.mtime.timestamp() if info.mtime is not None else 0.0)
        for info in system.get_file_info(selector)
        if info.is_file
    ]
