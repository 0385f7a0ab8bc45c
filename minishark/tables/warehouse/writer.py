"""What tasks do to write a table: their rows become Parquet files with Iceberg's field ids.

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

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from minishark.errors import ConstraintError, DataError, DataValueError, ResourceError

WRITTEN = (("file", "BLOB"),)
"""What `WriteRows` returns: a row for each file."""


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file as its task describes it to the front end; numbers of columns are field ids."""

    path: str
    size: int  # in bytes
    partition: tuple[bytes | None, ...]  # the values in Iceberg's single-value serialization
    # What Iceberg keeps of a file besides: its rows, and counts and bounds of its columns.
    record_count: int
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: list[int]

    def described(self, schema: Any, spec: Any) -> Any:
        """The file as pyiceberg describes it, given the table's columns and partitions."""
        from pyiceberg import manifest  # noqa: PLC0415 - an extra
        from pyiceberg.conversions import from_bytes  # noqa: PLC0415
        from pyiceberg.typedef import Record  # noqa: PLC0415

        types = [field.field_type for field in spec.partition_type(schema).fields]
        values = [
            None if value is None else from_bytes(type_, value)
            for type_, value in zip(types, self.partition, strict=True)
        ]
        statistics = msgspec.structs.asdict(self)
        for own in ("path", "size", "partition"):
            del statistics[own]
        return manifest.DataFile.from_args(
            content=manifest.DataFileContent.DATA,
            file_path=self.path,
            file_format=manifest.FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=self.size,
            sort_order_id=None,
            spec_id=spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics,
        )


# DuckDB's own size: a unit of its parallel scans, and small enough for bounds to exclude some.
_ROW_GROUP_ROWS = 122_880
_FILE_BYTES = 512 << 20  # Iceberg's default for `write.target-file-size-bytes`
_OPEN_FILES_MAX = 64  # of one task; of more partitions, the file written to longest ago is closed
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRows:
    """Writes rows as data files of a table."""

    table: str  # what messages call it
    location: str  # the folder of its data files, as a URI
    schema: str  # the table's columns: Iceberg's JSON
    spec: str  # how rows are partitioned: Iceberg's JSON
    write_id: str  # what the names of the files begin with
    properties: dict[str, str]  # the table's properties
    io: dict[str, str]  # how its files are reached

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        """Write all rows; a table with the columns `WRITTEN`."""
        with contextlib.ExitStack() as stack:
            writing = stack.enter_context(_Writing(self))
            for chunk in _chunks(rows):
                writing.write(chunk)
            files = writing.finished()
        described = [msgspec.msgpack.encode(file) for file in files]
        return (pa.table({"file": pa.array(described, pa.binary())}),)


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
        from pyiceberg.io import load_file_io  # noqa: PLC0415 - an extra, and only writers need it
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415
        from pyiceberg.partitioning import PartitionSpec  # noqa: PLC0415
        from pyiceberg.schema import Schema  # noqa: PLC0415

        self.target = target
        self.io = load_file_io(dict(target.io), target.location)
        self.schema = Schema.model_validate_json(target.schema)
        self.spec = PartitionSpec.model_validate_json(target.spec)
        self.arrow = schema_to_pyarrow(self.schema)
        self._open: dict[tuple[Any, ...], _File] = {}
        self._files: list[DataFile] = []
        size = target.properties.get("write.target-file-size-bytes")
        self._most_bytes = int(size) if size else _FILE_BYTES

    def write(self, rows: pa.Table) -> None:
        rows = _stored(rows, self.arrow, self.target.table)
        if self.spec.is_unpartitioned():
            self._write((), rows)
            return
        from minishark.tables.warehouse.partitions import divided  # noqa: PLC0415 - needs the extra

        for key, part in divided(rows, self.spec, self.schema):
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
        del self._open[key]

    def serialized(self, key: tuple[Any, ...]) -> tuple[bytes | None, ...]:
        """The values of a partition."""
        from pyiceberg.conversions import to_bytes  # noqa: PLC0415

        types = [field.field_type for field in self.spec.partition_type(self.schema).fields]
        return tuple(
            None if value is None else to_bytes(type_, value)  # type: ignore[arg-type]
            for type_, value in zip(types, key, strict=True)
        )

    def finished(self) -> list[DataFile]:
        """The complete files."""
        for key in [*self._open]:
            self._close(key)
        return self._files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for file in self._open.values():
            file.remove()
        if kind is not None:
            for described in self._files:
                with contextlib.suppress(Exception):
                    self.io.delete(described.path)


class _File:
    """A data file that is being written."""

    def __init__(self, writing: _Writing, key: tuple[Any, ...]) -> None:
        from pyiceberg.typedef import Record  # noqa: PLC0415

        target = writing.target
        self._writing = writing
        self._key = key
        folder = target.location
        if key:
            folder += f"/{writing.spec.partition_to_path(Record(*key), writing.schema)}"
        self.path = f"{folder}/{target.write_id}-{uuid.uuid4().hex[:12]}.parquet"
        codec = target.properties.get("write.parquet.compression-codec", "zstd")
        level = target.properties.get("write.parquet.compression-level")
        rows = target.properties.get("write.parquet.row-group-limit")
        self._group_rows = int(rows) if rows else _ROW_GROUP_ROWS
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        with _naming(self.path):
            self._sink = writing.io.new_output(self.path).create(overwrite=True)
            self._writer = pq.ParquetWriter(
                self._sink,
                writing.arrow,
                compression="none" if codec == "uncompressed" else codec,
                compression_level=int(level) if level else None,
                store_decimal_as_integer=True,
            )

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        assert self._writer is not None, "it is open"
        with _naming(self.path):
            self._writer.write_table(rows, row_group_size=self._group_rows)

    def finished(self) -> DataFile:
        """Close the file; its description, with bounds and counts."""
        from pyiceberg.io.pyarrow import (  # noqa: PLC0415
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )

        assert self._writer is not None, "it is open"
        with _naming(self.path):
            self._writer.close()
            size = self.size
            self._sink.close()
        schema = self._writing.schema
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=self._writer.writer.metadata,
            stats_columns=compute_statistics_plan(schema, self._writing.target.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        return DataFile(
            path=self.path,
            size=size,
            partition=self._writing.serialized(self._key),
            **statistics.to_serialized_dict(),
        )

    def remove(self) -> None:
        """Close and remove the file, which is not complete."""
        for step in (self._close_writer, self._close_sink, self._delete):
            with contextlib.suppress(Exception):
                step()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _close_sink(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def _delete(self) -> None:
        self._writing.io.delete(self.path)


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
