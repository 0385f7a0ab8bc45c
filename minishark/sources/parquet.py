"""Parquet files, which tasks read in ranges of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import duckdb

from minishark.expressions import Schema, quote_text
from minishark.sources.contract import FileSplit, Pushed, Relation, Split
from minishark.sources.filesystems import StoredFile
from minishark.sources.formats import (
    FileFormat,
    Found,
    Options,
    Reach,
    call,
    columns_of,
    filled,
    without_keys,
)
from minishark.sources.hive import FolderKeys
from minishark.sources.parquet_parts import FilePart

ROW_NUMBER = "file_row_number"
_RANGE_ROWS = 122_880  # a row group of DuckDB's
_COUNTED_MAX = 256  # files whose rows are counted before any is chosen; of more, some are
_METADATA = FilePart(columns=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetPart(FileSplit):
    """A Parquet file, or a range of its rows."""

    file: StoredFile
    options: tuple[tuple[str, str], ...]  # of the reader
    own: Schema  # the file's own columns, those of its folders left out
    fills: bool  # whether columns are NULL that the file does not have
    keys: FolderKeys  # the columns of its folders
    rows: int | None
    bytes: int
    range: tuple[int, int] | None = None  # the first row, and the one after the last

    def files(self) -> Sequence[StoredFile]:
        return (self.file,)

    def parts(self, pushed: Pushed) -> Sequence[FilePart]:
        return (FilePart(columns=pushed.columns, rows=self.range),)

    def relation(self, paths: Sequence[str]) -> Relation:
        options = {**dict(self.options), "hive_partitioning": "false"}
        if self.range is not None:
            options[ROW_NUMBER] = "true"
        read = call("read_parquet", paths, options)
        if self.range is not None:
            first, last = self.range
            read = (
                f"(SELECT * EXCLUDE ({ROW_NUMBER}) FROM {read} "
                f"WHERE {ROW_NUMBER} >= {first} AND {ROW_NUMBER} < {last})"
            )
        if self.fills:
            read = filled(self.own, read)
        return Relation(self.keys.select([column.name for column in self.own], read))


@dataclass(slots=True)
class ParquetFormat(FileFormat):
    """Parquet files; with the option `union_by_name`, of different columns."""

    options: Options
    _counts: dict[StoredFile, int] = field(default_factory=dict)

    @property
    def _unites(self) -> bool:
        return self.options.get("union_by_name") == "true"

    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        # The first file says what all have, unless they are united.
        some = files if self._unites else files[:1]
        with reach.held(some, [_METADATA] * len(some)) as paths:
            options = {**self.options, "hive_partitioning": "false"}
            own = columns_of(connection, call("read_parquet", paths, options))
        # Metadata of remote files is fetched: of those only that are read.
        counted = files[:1] if files[0].is_remote else files[:_COUNTED_MAX]
        rows = sum(self._counted(connection, counted, reach))
        share = sum(file.bytes for file in files) / max(1, sum(file.bytes for file in counted))
        return Found(files, own, int(rows * share))

    def _counted(
        self, connection: duckdb.DuckDBPyConnection, files: Sequence[StoredFile], reach: Reach
    ) -> list[int]:
        """The number of rows of each file."""
        new = [file for file in files if file not in self._counts]
        if new:
            with reach.held(new, [_METADATA] * len(new)) as paths:
                listed = ", ".join(map(quote_text, paths))
                sql = f"SELECT file_name, num_rows FROM parquet_file_metadata([{listed}])"
                found = dict(connection.execute(sql).fetchall())
            counts = {f: int(found[path]) for f, path in zip(new, paths, strict=True)}
            self._counts = {**self._counts, **counts}
        return [self._counts[file] for file in files]

    def divide(
        self, found: Found, chosen: Sequence[int], keys: FolderKeys, tasks: int, reach: Reach
    ) -> Sequence[Split]:
        current = {*found.files}
        self._counts = {f: n for f, n in self._counts.items() if f in current}
        with reach.connect() as connection:
            counts = self._counted(connection, [found.files[i] for i in chosen], reach)
        most = -(-tasks // len(chosen))
        if any(column.name.lower() == ROW_NUMBER for column in found.own):
            most = 1
        options = {n: v for n, v in self.options.items() if n != "union_by_name"}
        splits: list[Split] = []
        for index, rows in zip(chosen, counts, strict=True):
            part = ParquetPart(
                file=found.files[index],
                options=tuple(options.items()),
                own=without_keys(found.own, keys),
                fills=self._unites,
                keys=keys.of(index),
                rows=rows,
                bytes=found.files[index].bytes,
            )
            splits += _cut(part, rows, min(most, -(-rows // _RANGE_ROWS)))
        return splits


def _cut(part: ParquetPart, rows: int, cuts: int) -> Iterator[ParquetPart]:
    if cuts <= 1:
        yield part
        return
    ends = [rows * (i + 1) // cuts for i in range(cuts)]
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        size = part.bytes * (last - first) // rows
        yield replace(part, rows=last - first, bytes=size, range=(first, last))
