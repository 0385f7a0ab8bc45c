"""Tables of the warehouse as sources of rows with their places."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from minishark.model.catalog import ROW_NUMBER, ColumnStatistics, TableStatistics
from minishark.model.expressions import Column
from minishark.model.predicates import Pushed
from minishark.sources.contract import PlacedSplit, Snapshot, Source, Split
from minishark.sources.mapped_parquet import MappedColumn, MappedParquet
from minishark.worker.columns import integers

PLACE_SHIFT = 32  # bits of a row's number for which row of its place it is; those above tell that

_numbers = itertools.count()


class LocatedRows(Snapshot):
    """The rows of a snapshot, or of some of its places, with their numbers (`ROW_NUMBER`).

    A number tells the place, and which row it is of all that were ever written there.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        numbers: Mapping[str, int],
        places: frozenset[str] | None = None,
    ) -> None:
        """The rows of some places, or of all.

        Args:
            snapshot: has the rows.
            numbers: those of all places.
            places: some of them.
        """
        self._snapshot, self._place_numbers, self._places = snapshot, numbers, places
        self.version = f"{snapshot.version} located {next(_numbers)}"
        self.schema = (*snapshot.schema, Column(ROW_NUMBER, "BIGINT"))
        measured = snapshot.statistics
        if measured is not None:
            number = ColumnStatistics(distinct=measured.rows)
            self.statistics = TableStatistics(
                measured.rows, measured.bytes, (*measured.columns, number)
            )

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        own = tuple(predicate for predicate in pushed.predicates if predicate.column != ROW_NUMBER)
        inner = self._snapshot.splits(Pushed(predicates=own), tasks)
        return [split for split in map(self._located, inner) if split is not None]

    def _located(self, split: Split) -> Split | None:
        if isinstance(split, MappedParquet):
            parts = [
                replace(part, columns=(*part.columns, self._number(part.place)))
                for part in split.file_parts
                if self._has(part.place)
            ]
            return MappedParquet(split.name, parts, split.access) if parts else None
        assert isinstance(split, PlacedSplit), "tables of warehouses have no other splits"
        return LocatedFile(split, self._first(split.path)) if self._has(split.path) else None

    def _has(self, place: str) -> bool:
        return self._places is None or place in self._places

    def _first(self, place: str) -> int:
        return self._place_numbers[place] << PLACE_SHIFT

    def _number(self, place: str) -> MappedColumn:
        return MappedColumn(name=ROW_NUMBER, type="BIGINT", first_row=self._first(place))


class LocatedFile(Split):
    """A split of rows in one place, with the column `ROW_NUMBER`.

    Rows are counted as they are read, which is always in the same order.
    """

    def __init__(self, split: PlacedSplit, first: int) -> None:
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
            numbers = integers(np.arange(first, last))
            yield pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema)
            first = last


@dataclass(frozen=True, slots=True)
class FixedSource(Source):
    """One snapshot."""

    name: str
    snapshot: Snapshot

    def resolve(self) -> Snapshot:
        return self.snapshot
