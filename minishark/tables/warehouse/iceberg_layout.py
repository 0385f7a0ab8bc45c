"""How the files of an Iceberg table are written: field ids, partitions, counts and bounds.

What the rows of a partitioned table are divided by: Iceberg's specification, "Partitioning".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import manifest
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform
from pyiceberg.typedef import Record

from minishark.tables.warehouse.partitions import Coded, coded, grouped

_UNITS = {
    HourTransform: "hour",
    DayTransform: "day",
    MonthTransform: "month",
    YearTransform: "year",
}


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

    def decoded(self, schema: IcebergSchema, spec: PartitionSpec) -> manifest.DataFile:
        """The file as pyiceberg describes it, given the table's columns and partitions."""
        types = [field.field_type for field in spec.partition_type(schema).fields]
        values = [
            None if value is None else from_bytes(type_, value)  # type: ignore[arg-type]
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


@dataclass(frozen=True)
class IcebergLayout:
    """A `Layout` by Iceberg's schema and partition spec."""

    location: str
    schema_json: str
    spec_json: str
    options: dict[str, str]  # the table's properties
    io_properties: dict[str, str]  # how its files are reached

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.location, self.schema_json, self.spec_json, self.options, self.io_properties)
        return IcebergLayout, own  # without what was derived

    @cached_property
    def schema(self) -> IcebergSchema:
        return IcebergSchema.model_validate_json(self.schema_json)

    @cached_property
    def spec(self) -> PartitionSpec:
        return PartitionSpec.model_validate_json(self.spec_json)

    @cached_property
    def arrow(self) -> pa.Schema:
        return schema_to_pyarrow(self.schema)

    @cached_property
    def _io(self) -> FileIO:
        return load_file_io(dict(self.io_properties), self.location)

    def divided(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        if self.spec.is_unpartitioned():
            yield (), rows
        else:
            yield from divided(rows, self.spec, self.schema)

    def folder(self, partition: tuple[Any, ...]) -> str:
        return self.spec.partition_to_path(Record(*partition), self.schema) if partition else ""

    def measured(self, rows: pa.Table, so_far: Any) -> None:
        """The footer has all."""

    def described(
        self, path: str, size: int, partition: tuple[Any, ...], footer: Any, measured: Any
    ) -> bytes:
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(self.schema, self.options),
            parquet_column_mapping=parquet_path_to_id_mapping(self.schema),
        )
        types = [field.field_type for field in self.spec.partition_type(self.schema).fields]
        values = tuple(
            None if value is None else to_bytes(type_, value)  # type: ignore[arg-type]
            for type_, value in zip(types, partition, strict=True)
        )
        file = DataFile(path=path, size=size, partition=values, **statistics.to_serialized_dict())
        return msgspec.msgpack.encode(file)

    def file(self, described: bytes) -> manifest.DataFile:
        return msgspec.msgpack.decode(described, type=DataFile).decoded(self.schema, self.spec)

    def create(self, path: str) -> Any:
        return self._io.new_output(path).create(overwrite=True)

    def delete(self, path: str) -> None:
        self._io.delete(path)

    def remove_written(self, write_id: str) -> None:
        with contextlib.suppress(Exception):
            for uri, _ in listed(self._io, self.location):
                if uri.rpartition("/")[2].startswith(write_id):
                    self._io.delete(uri)


def divided(
    rows: pa.Table, spec: PartitionSpec, schema: IcebergSchema
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, with the partition's values as Iceberg stores them.

    Args:
        rows: with the columns of `schema`.
        spec: how they are partitioned.
        schema: the table's columns.
    """
    yield from grouped(rows, [_coded(rows, field, schema) for field in spec.fields])


def _coded(rows: pa.Table, field: PartitionField, schema: IcebergSchema) -> Coded:
    source = schema.find_field(field.source_id)
    column = rows.column(source.name).combine_chunks()
    unit = _UNITS.get(type(field.transform))
    if unit is not None and not pa.types.is_date(column.type):
        column = pc.floor_temporal(column, unit=unit)  # fewer values to be transformed one by one
    transform = field.transform.transform(source.field_type)
    return coded(
        column,
        lambda distinct: [
            transform(partition_record_value(field, value, schema))
            for value in distinct.to_pylist()
        ],
    )


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
