"""Tables of the warehouse as sources of rows with their places."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import Column, quote_text
from minishark.sources.contract import PlacedSplit, Pushed, Snapshot, Source, Split
from minishark.sources.mapped_parquet import MappedColumn, MappedParquet
from minishark.tables.warehouse.dml import FILE, ROW

_numbers = itertools.count()


class LocatedRows(Snapshot):
    """The rows of a snapshot, or of some of its files, with the columns `FILE` and `ROW`.

    `ROW` is a row's number in its file, among all that were ever written there.
    """

    def __init__(self, snapshot: Snapshot, files: frozenset[str] | None = None) -> None:
        self._snapshot, self._files = snapshot, files
        self.version = f"{snapshot.version} located {next(_numbers)}"
        self.schema = (*snapshot.schema, Column(FILE, "VARCHAR"), Column(ROW, "BIGINT"))
        known = snapshot.statistics
        if known is not None:
            places = (ColumnStatistics(), ColumnStatistics())
            self.statistics = TableStatistics(known.rows, known.bytes, (*known.columns, *places))

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        own = tuple(each for each in pushed.predicates if each.column not in (FILE, ROW))
        found = self._snapshot.splits(Pushed(predicates=own), tasks)
        return [split for split in map(self._located, found) if split is not None]

    def _located(self, split: Split) -> Split | None:
        if isinstance(split, MappedParquet):
            parts = [
                replace(part, columns=(*part.columns, *_places(part.place)))
                for part in split.file_parts
                if self._has(part.place)
            ]
            return MappedParquet(split.name, parts, split.access) if parts else None
        assert isinstance(split, PlacedSplit), "tables of warehouses have no other splits"
        return LocatedFile(split) if self._has(split.path) else None

    def _has(self, path: str) -> bool:
        return self._files is None or path in self._files


def _places(path: str) -> tuple[MappedColumn, MappedColumn]:
    return (
        MappedColumn(name=FILE, type="VARCHAR", constant=quote_text(path), named=()),
        MappedColumn(name=ROW, type="BIGINT", is_row_number=True),
    )


class LocatedFile(Split):
    """A split of rows in one place, with the columns `FILE` and `ROW`.

    Rows are counted as they are read, which is always in the same order.
    """

    def __init__(self, split: PlacedSplit) -> None:
        self._split = split
        self.rows, self.bytes = split.rows, split.bytes

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        reader = self._split.read(Pushed())
        schema = reader.schema.append(pa.field(FILE, pa.string()))
        schema = schema.append(pa.field(ROW, pa.int64()))
        names = schema.names if pushed.columns is None else list(pushed.columns)
        batches = (batch.select(names) for batch in self._batches(reader, schema))
        return pa.RecordBatchReader.from_batches(pa.schema(map(schema.field, names)), batches)

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in reader:
            last = first + batch.num_rows
            paths = pa.repeat(pa.scalar(self._split.path, pa.string()), batch.num_rows)
            numbers = pa.array(range(first, last), pa.int64())
            yield pa.RecordBatch.from_arrays([*batch.columns, paths, numbers], schema=schema)
            first = last


@dataclass(frozen=True, slots=True)
class FixedSource(Source):
    """One snapshot."""

    name: str
    snapshot: Snapshot

    def resolve(self) -> Snapshot:
        return self.snapshot
