"""Semi-join filters: the rows of an Arrow table whose key is among some integers.

Keys are looked up in an array with a byte for each integer of the column's range, which takes a
tenth of the time of a hash table. Only matching rows are copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.compiler.hints import InputKeyFilter
from minishark.worker.columns import integers
from minishark.worker.helpers import Batches, Helpers
from minishark.worker.outputs import BATCH_ROWS

_SAMPLES = 32
_SAMPLE_ROWS = 1024
_COUNTED_FROM_0 = 1 << 16
"""Up to here the array begins at 0: an offset saves memory, but costs a subtraction per row."""


def semi_joined(
    table: pa.Table,
    wanted: InputKeyFilter,
    keys: pa.ChunkedArray,
    helpers: Helpers,
    *,
    threads: int,
    bytes_max: int,
) -> pa.Table:
    """The rows of `table` that have one of `keys`, in their order.

    Rows whose key is NULL are kept, too: some joins compare NULLs. The keys are integers of any
    type.

    Returns:
        `table` itself if too large a share of it matches, or more than `bytes_max` by estimate.
    """
    column = table.column(wanted.column)
    if not pa.types.is_integer(column.type):
        return table
    marks = _Marks.of(keys, wanted.low, wanted.high)
    share = _share(column, marks)
    if share > wanted.copied_max or share * table.nbytes > bytes_max:
        return table
    search = partial(_found, position=wanted.columns.index(wanted.column), marks=marks)
    return pa.Table.from_batches(helpers.each(search, table.to_batches(), threads), table.schema)


@dataclass(frozen=True, slots=True)
class _Marks:
    """Which integers are keys."""

    base: int  # the integer of the first mark
    marks: NDArray[np.bool_]  # whether each integer is a key

    @classmethod
    def of(cls, keys: pa.ChunkedArray, low: int, high: int) -> _Marks:
        """Marks for the keys between two bounds."""
        base = 0 if 0 <= low <= _COUNTED_FROM_0 else low
        marks = np.zeros(high - base + 1, np.bool_)
        for chunk in keys.chunks:
            values = _values(chunk.drop_null())
            values = values[(values >= low) & (values <= high)]
            marks[values - base] = True
        return cls(base, marks)

    def found(self, column: pa.Array) -> NDArray[np.bool_]:
        """Whether each value of a column of integers is a key; NULLs count as such."""
        values = _values(column)
        if self.base:
            values = values - self.base
        marked = np.take(self.marks, values, mode="clip")  # NULLs may be any integers
        if column.null_count:
            marked |= column.is_null().to_numpy(zero_copy_only=False)
        return marked


def _share(column: pa.ChunkedArray, marks: _Marks) -> float:
    """The estimated share of a column's values that are keys."""
    apart = max(_SAMPLE_ROWS, len(column) // _SAMPLES)
    samples = (column.slice(first, _SAMPLE_ROWS) for first in range(0, len(column), apart))
    marked = [marks.found(chunk) for sample in samples for chunk in sample.chunks]
    return sum(map(np.count_nonzero, marked)) / max(1, sum(map(len, marked)))


def _found(batches: Batches, position: int, marks: _Marks) -> Batches:
    """The matching rows, merged into batches of a useful size."""
    kept: Batches = []
    small: Batches = []
    for batch in batches:
        rows = np.flatnonzero(marks.found(batch.column(position)))
        if not len(rows):
            continue
        if small and not _have_same_dictionaries(small[-1], batch):
            kept.append(pa.concat_batches(small))
            small = []
        small.append(batch.take(integers(rows)))
        if sum(map(len, small)) >= BATCH_ROWS:
            kept.append(pa.concat_batches(small))
            small = []
    return [*kept, pa.concat_batches(small)] if small else kept


def _have_same_dictionaries(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    pairs = zip(one.columns, other.columns, strict=True)
    return all(
        a.dictionary.equals(b.dictionary) for a, b in pairs if pa.types.is_dictionary(a.type)
    )


def _values(column: pa.Array) -> NDArray[np.int64]:
    """The values of a column of integers, without a copy if possible; any where one is NULL."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    _, data = column.buffers()
    if data is None:
        return np.empty(0, np.int64)
    values = np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)
    return values.astype(np.int64, copy=False)
