"""What tasks do to write a table: their rows become Parquet files with field ids.

A `WriteRows` travels to executors as the function of a query's last stage. Nobody reads the files
before a commit names them; those of failed attempts are left behind until the front end, or VACUUM,
removes them.
"""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from minishark.errors import ConstraintError, DataError, DataValueError, ResourceError
from minishark.tables.warehouse.contract import Layout

WRITTEN = (("file", "BLOB"),)
"""What `WriteRows` returns: a row for each file."""


# DuckDB's own size: a unit of its parallel scans, and small enough for bounds to exclude some.
_ROW_GROUP_ROWS = 122_880
_FILE_BYTES = 512 << 20  # Iceberg's default for `write.target-file-size-bytes`
_OPEN_FILES_MAX = 64  # of one task; of more partitions, the file written to longest ago is closed
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRows:
    """Writes rows as data files of a table."""

    table: str  # what messages call it
    layout: Layout
    write_id: str  # what the names of the files begin with

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        """Write all rows; a table with the columns `WRITTEN`."""
        with contextlib.ExitStack() as stack:
            writing = stack.enter_context(_Writing(self))
            for chunk in _chunks(rows):
                writing.write(chunk)
            files = writing.finished()
        return (pa.table({"file": pa.array(files, pa.binary())}),)


def _chunks(rows: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The rows, in tables of at least a row group's size but for the last one."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in rows:
        held.append(batch)
        count += batch.num_rows
        if count >= _ROW_GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if count:
        yield pa.Table.from_batches(held)


class _Writing:
    """The files that a task has open, by partition; a context manager that removes unfinished."""

    def __init__(self, target: WriteRows) -> None:
        self.target, self.layout = target, target.layout
        self._open: dict[tuple[Any, ...], _File] = {}
        self._paths: list[str] = []
        self._files: list[bytes] = []
        size = self.layout.options.get("write.target-file-size-bytes")
        self._most_bytes = int(size) if size else _FILE_BYTES

    def write(self, rows: pa.Table) -> None:
        rows = _stored(rows, self.layout.arrow, self.target.table)
        for key, part in self.layout.divided(rows):
            self._write(key, part)

    def _write(self, key: tuple[Any, ...], rows: pa.Table) -> None:
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= _OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            file = _File(self, key)
        self._open[key] = file  # the last one, as it was used last
        file.write(rows)
        if file.size >= self._most_bytes:
            self._close(key)

    def _close(self, key: tuple[Any, ...]) -> None:
        self._files.append(self._open[key].finished())
        self._paths.append(self._open.pop(key).path)

    def finished(self) -> list[bytes]:
        """The complete files, as the layout describes them."""
        for key in [*self._open]:
            self._close(key)
        return self._files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for file in self._open.values():
            file.remove()
        if kind is not None:
            for path in self._paths:
                with contextlib.suppress(Exception):
                    self.layout.delete(path)


class _File:
    """A data file that is being written."""

    def __init__(self, writing: _Writing, key: tuple[Any, ...]) -> None:
        target, layout = writing.target, writing.layout
        self._layout, self._key = layout, key
        folder = f"{layout.location}/{layout.folder(key)}".rstrip("/")
        self.path = f"{folder}/{target.write_id}-{uuid.uuid4().hex[:12]}.parquet"
        self._measured: Any = None
        codec = layout.options.get("write.parquet.compression-codec", "zstd")
        level = layout.options.get("write.parquet.compression-level")
        rows = layout.options.get("write.parquet.row-group-limit")
        self._group_rows = int(rows) if rows else _ROW_GROUP_ROWS
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        with _naming(self.path):
            self._sink = layout.create(self.path)
            self._writer = pq.ParquetWriter(
                self._sink,
                layout.arrow,
                compression="none" if codec == "uncompressed" else codec,
                compression_level=int(level) if level else None,
                store_decimal_as_integer=True,
                write_page_checksum=True,
            )

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        assert self._writer is not None, "it is open"
        with _naming(self.path):
            self._writer.write_table(rows, row_group_size=self._group_rows)
        self._measured = self._layout.measured(rows, self._measured)

    def finished(self) -> bytes:
        """Close the file; its description, with bounds and counts."""
        assert self._writer is not None, "it is open"
        with _naming(self.path):
            self._writer.close()
            size = self.size
            self._sink.close()
        footer = self._writer.writer.metadata
        return self._layout.described(self.path, size, self._key, footer, self._measured)

    def remove(self) -> None:
        """Close and remove the file, which is not complete."""
        for opened in self._writer, self._sink:
            if opened is not None:
                with contextlib.suppress(Exception):
                    opened.close()
        with contextlib.suppress(Exception):
            self._layout.delete(self.path)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors of writing that name the file."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL or "No space left" in str(error):
            raise ResourceError(f"The disk is full: can't write {path}.") from error
        raise DataError(f"Can't write {path}: {error}") from error


def _stored(rows: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    """The rows in the types in which they are stored."""
    arrays = []
    for field_, column in zip(schema, rows.columns, strict=True):
        if not field_.nullable and column.null_count:
            raise ConstraintError(
                f"NOT NULL constraint failed: column {field_.name!r} of table {table} got a NULL."
            )
        try:
            arrays.append(_as_type(column, field_.type))
        except pa.ArrowException as error:
            raise DataValueError(
                f"Can't store column {field_.name!r} of {table}: {error}"
            ) from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _as_type(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    if column.type == type_:
        return column
    if isinstance(type_, pa.UuidType) or pa.types.is_fixed_size_binary(type_):
        return pa.chunked_array([_uuids(column.combine_chunks())]).cast(type_)
    return column.cast(type_)


def _uuids(column: pa.Array) -> pa.Array:
    """UUIDs, which DuckDB gives as text, as bytes."""
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    digits = pc.replace_substring(pc.fill_null(column, "0" * 32), "-", "")
    data = bytes.fromhex("".join(digits.to_pylist()))
    validity = column.is_valid()
    buffers = [validity.buffers()[1] if column.null_count else None, pa.py_buffer(data)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(column), buffers)
