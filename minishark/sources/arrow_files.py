"""Arrow IPC files (Feather), which tasks map into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from minishark.errors import DataError, OptionError
from minishark.model.expressions import Schema
from minishark.model.predicates import Pushed
from minishark.sources.contract import Split
from minishark.sources.filesystems import FileReplacedError, StoredFile, stat_file
from minishark.sources.formats import (
    FileFormat,
    Found,
    Needed,
    Options,
    Reach,
    columns_of,
    without_keys,
)
from minishark.sources.hive import FolderKeys

_BATCHES_TOLD = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowBatches(Split):
    """Record batches of an Arrow file that follow one another."""

    file: StoredFile
    own: Schema  # the columns that files have themselves
    keys: FolderKeys  # the columns of its folders
    first: int  # the first batch
    last: int  # the one after the last
    rows: int | None
    bytes: int

    def made_of(self) -> tuple[Sequence[StoredFile], object]:
        return (self.file,), (self.own, self.keys, self.first, self.last)

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        table = _table(self.file, self.first, self.last)
        names = None if pushed.columns is None else {name.lower() for name in pushed.columns}
        for column in self.own:
            if column.name not in table.column_names:
                table = table.append_column(column.name, pa.nulls(len(table)))
        for column in self.keys.columns:
            value = self.keys.values[column.name][0]
            constant = pa.repeat(pa.scalar(value), len(table))
            table = table.append_column(column.name, constant)
        if names is not None:
            table = table.select([name for name in table.column_names if name.lower() in names])
        _check(table, self.file.path)
        return table.to_reader()


def _table(file: StoredFile, first: int, last: int) -> pa.Table:
    if stat_file(file.path).version != file.version:
        raise FileReplacedError(f"{file.path} was replaced; run the query again.")
    with _opened(file.path) as reader:
        batches = [reader.get_batch(i) for i in range(first, last)]
        return pa.Table.from_batches(batches, reader.schema)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """A file's reader; DataError if it is none, or a batch that is read meanwhile is damaged."""
    try:
        with pa.ipc.open_file(pa.memory_map(path)) as reader:
            yield reader
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is no Arrow file, or is damaged: {error}") from error


def _check(table: pa.Table, path: str) -> None:
    """See that a file's buffers hold what they should; DataError if not.

    Arrow trusts its buffers: an offset that points outside them would be followed, into other
    memory of this process. What is numbers and dates costs nothing, texts some 0.5 ms a megabyte.
    """
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise DataError(f"{path} is a damaged Arrow file: {error}") from error


@dataclass(slots=True)
class ArrowFormat(FileFormat):
    """Arrow files; columns are united by name."""

    options: Options

    def __post_init__(self) -> None:
        unknown = [n for n in self.options if n not in ("union_by_name", "hive_partitioning")]
        if unknown:
            raise OptionError(f"Arrow files are read without options such as {unknown[0]}.")

    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        with reach.held(files, ()) as paths:
            headers = [_header(path) for path in paths]
        try:
            schema = pa.unify_schemas([part for part, _ in headers], promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(f"{files[0].path} and others have unlike columns: {error}") from error
        empty = schema.remove_metadata().empty_table()
        connection.register("minishark_arrow", empty)
        try:
            columns = columns_of(connection, "minishark_arrow")
        finally:
            connection.unregister("minishark_arrow")
        return Found(files, columns, sum(rows for _, rows in headers))

    def divide(self, found: Found, needed: Needed, reach: Reach) -> Sequence[Split]:
        own, keys = without_keys(found.own, needed.keys), needed.keys
        return [
            split
            for index in needed.chosen
            for split in _cut(found.files[index], own, keys, index, needed.tasks_of_each)
        ]


def _header(path: str) -> tuple[pa.Schema, int]:
    """The columns of a file, and its rows, about."""
    with _opened(path) as reader:
        count = reader.num_record_batches
        rows = reader.get_batch(0).num_rows * count if count else 0
        return reader.schema, rows


def _cut(
    file: StoredFile, columns: Schema, keys: FolderKeys, index: int, most: int
) -> Iterator[Split]:
    with _opened(file.path) as reader:
        count = reader.num_record_batches
        counts = [reader.get_batch(i).num_rows for i in range(min(count, _BATCHES_TOLD))]
    cuts = max(1, min(most, count))
    ends = [count * (i + 1) // cuts for i in range(cuts)]
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        yield ArrowBatches(
            file=file,
            own=columns,
            keys=keys.of(index),
            first=first,
            last=last,
            rows=sum(counts[first:last]) if count <= _BATCHES_TOLD else None,
            bytes=file.bytes * (last - first) // max(1, count),
        )
