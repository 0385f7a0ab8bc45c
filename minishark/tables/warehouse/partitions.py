"""What the rows of a partitioned table are divided by (Iceberg's specification, "Partitioning")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform

_UNITS = {
    HourTransform: "hour",
    DayTransform: "day",
    MonthTransform: "month",
    YearTransform: "year",
}


def divided(
    rows: pa.Table, spec: PartitionSpec, schema: IcebergSchema
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, with the partition's values as Iceberg stores them.

    Args:
        rows: with the columns of `schema`.
        spec: how they are partitioned.
        schema: the table's columns.
    """
    columns = [_coded(rows, field, schema) for field in spec.fields]
    combined = np.stack([codes for codes, _ in columns], axis=1)
    kept, number = np.unique(combined, axis=0, return_inverse=True)
    number = number.reshape(-1)
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=len(kept))).tolist()
    for codes, first, last in zip(kept.tolist(), [0, *ends[:-1]], ends, strict=True):
        key = tuple(values[code] for code, (_, values) in zip(codes, columns, strict=True))
        yield key, rows.take(pa.array(order[first:last]))


def _coded(
    rows: pa.Table, field: PartitionField, schema: IcebergSchema
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[Any]]:
    """The partition value of each row, as an index into the list of all of them."""
    source = schema.find_field(field.source_id)
    column = rows.column(source.name).combine_chunks()
    unit = _UNITS.get(type(field.transform))
    if unit is not None and not pa.types.is_date(column.type):
        column = pc.floor_temporal(column, unit=unit)  # fewer values to be transformed one by one
    coded = column.dictionary_encode(null_encoding="encode")
    transform = field.transform.transform(source.field_type)
    found = [
        transform(partition_record_value(field, value, schema))
        for value in coded.dictionary.to_pylist()
    ]
    numbers: dict[Any, int] = {}
    of_value = np.array([numbers.setdefault(value, len(numbers)) for value in found], np.int64)
    return of_value[coded.indices.to_numpy(zero_copy_only=False)], list(numbers)
