"""Columns of stored rows in the types in which users get them, where that needs no DuckDB."""

from __future__ import annotations

import contextlib
import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_Convert = Callable[[pa.Array], pa.Array]


class ChosenColumns(msgspec.Struct, frozen=True):
    """Which columns of stored tables are wanted, and as what."""

    positions: tuple[int, ...]  # in the files
    schema: pa.Schema  # their names and types for users

    def of(self, stored: pa.Table) -> Iterator[pa.RecordBatch] | None:
        """The columns of a file's rows; None if it has values that only DuckDB converts."""
        part = stored.select(self.positions)
        types = zip(part.schema.types, self.schema.types, strict=True)
        needed = [_conversion(has, wants) for has, wants in types]
        conversions = [conversion for conversion in needed if conversion is not None]
        return (
            _converted(part, conversions, self.schema) if len(conversions) == len(needed) else None
        )


def _converted(
    table: pa.Table, conversions: Sequence[_Convert], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in table.to_batches():
        columns = [
            convert(column) for convert, column in zip(conversions, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _conversion(stored: pa.DataType, needed: pa.DataType) -> _Convert | None:
    """How to get values of one type from those of another; None if only DuckDB can."""
    if pa.types.is_dictionary(needed):  # each partition may have other values
        return None
    if stored == needed:
        return _unchanged
    if pa.types.is_dictionary(stored) and stored.value_type == needed:
        return _decoded
    if isinstance(stored, pa.Bool8Type) and pa.types.is_boolean(needed):
        return _truth
    is_short = pa.types.is_decimal32(stored) or pa.types.is_decimal64(stored)
    if is_short and needed == pa.decimal128(stored.precision, stored.scale):
        return partial(_cast, to=needed)
    return None


def _unchanged(values: pa.Array) -> pa.Array:
    return values


def _decoded(values: pa.Array) -> pa.Array:
    return values.dictionary_decode()


def _truth(values: pa.Array) -> pa.Array:
    return values.storage.cast(pa.bool_())


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    return values.cast(to)


def integers(values: Sequence[int] | NDArray[np.int64]) -> pa.Array:
    """A column of BIGINTs: `pa.array` would import pandas for it, which takes half a second."""
    if isinstance(values, np.ndarray):
        data = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    else:
        data = pa.py_buffer(array("q", values))
    return pa.Array.from_buffers(pa.int64(), len(values), [None, data])


def as_numbers(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """The values of a column of whole numbers; 0 for NULL. `to_numpy` would import pandas, too."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [np.from_dlpack(c.fill_null(0) if c.null_count else c) for c in chunks]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def flags(values: NDArray[np.bool_]) -> pa.Array:
    """A column of BOOLEANs, without pandas as above."""
    data = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, data])


def column_of(values: Sequence[Any]) -> pa.Array:
    """Python values as `pa.array` has them; without pandas, if all are integers, floats or texts.

    Raises:
        pa.ArrowException: they can't be a column.
    """
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) == 1 and (plain := _PLAIN.get(kinds.pop())) is not None:
        with contextlib.suppress(OverflowError):  # others than BIGINTs
            type_, buffers = plain(values)
            has = np.fromiter((value is not None for value in values), np.bool_, len(values))
            validity = None if has.all() else flags(has).buffers()[1]
            return pa.Array.from_buffers(type_, len(values), [validity, *buffers])
    return pa.array(values)


def _of_integers(values: Sequence[int | None]) -> tuple[pa.DataType, list[pa.Buffer]]:
    return pa.int64(), [pa.py_buffer(array("q", [value or 0 for value in values]))]


def _of_floats(values: Sequence[float | None]) -> tuple[pa.DataType, list[pa.Buffer]]:
    data = array("d", [0.0 if value is None else value for value in values])
    return pa.float64(), [pa.py_buffer(data)]


def _of_texts(values: Sequence[str | None]) -> tuple[pa.DataType, list[pa.Buffer]]:
    encoded = [(value or "").encode() for value in values]
    ends = array("i", itertools.accumulate(map(len, encoded), initial=0))
    return pa.string(), [pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]


_PLAIN: Mapping[type, Callable[[Sequence[Any]], tuple[pa.DataType, list[pa.Buffer]]]] = {
    int: _of_integers,
    float: _of_floats,
    str: _of_texts,
}


def no_texts() -> pa.Array:
    """A column of VARCHARs without rows, without pandas as above."""
    return integers(()).cast(pa.string())
