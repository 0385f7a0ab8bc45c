"""The rows of a stored file without those that were deleted since, and the numbers of its rows.

Few rows are deleted from a file (`tables/deltas.py` bounds them), so what is left is mostly slices
of the mapped file; only where deleted rows are dense, those that stay are copied.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.model.catalog import ROW_NUMBER, Constants, RowNumbers
from minishark.sources.arrow_types import readable
from minishark.worker.columns import integers

_FAST = 1  # zlib's level
_LISTED, _LISTED_MAX = b"\0", 128  # so few rows are listed by their numbers, after a mark
_COUNTS_MAX = 256  # that are remembered: each write asks for those of all files of its table
_SLICE_ROWS_MIN = 128
"""If slices have that many rows on average, they are cheaper than a copy."""


def row_numbers(deleted: RowNumbers) -> NDArray[np.int64]:
    """The rows of a file that are noted, in ascending order."""
    if not deleted:
        return np.empty(0, np.int64)
    if deleted.startswith(_LISTED):
        return np.frombuffer(deleted, np.uint32, offset=len(_LISTED)).astype(np.int64)
    marks = np.unpackbits(np.frombuffer(zlib.decompress(deleted), np.uint8))
    return np.flatnonzero(marks.view(np.bool_))  # numbers are searched more slowly


def packed(rows: NDArray[np.int64]) -> RowNumbers:
    """Rows of a file, the first being 0, as they are noted; at most a bit for each that it has."""
    if not len(rows):
        return b""
    if len(rows) <= _LISTED_MAX:
        return _LISTED + np.sort(rows).astype(np.uint32).tobytes()
    marks = np.zeros(int(rows.max()) + 1, np.bool_)
    marks[rows] = True
    return zlib.compress(np.packbits(marks).tobytes(), _FAST)


def without_first(deleted: RowNumbers, count: int) -> RowNumbers:
    """The same rows as they are counted without the first ones of the file."""
    if not deleted or not count:
        return deleted
    later = row_numbers(deleted) - count
    return packed(later[np.searchsorted(later, 0) :])


def without_deleted(table: pa.Table, deleted: RowNumbers) -> pa.Table:
    """The rows of a file but for those of these numbers, in their order."""
    return without_rows_of(table, row_numbers(deleted))


def without_rows_of(table: pa.Table, gone: NDArray[np.int64]) -> pa.Table:
    """Rows but for those at these places, which ascend, in their order."""
    return readable(pa.Table.from_batches(_left(table, gone), table.schema))


def takeable(table: pa.Table) -> pa.Table:
    """The same rows in types that Arrow can take single rows of: it can't of views."""
    for position, field in enumerate(table.schema):
        if "_view" in str(field.type):
            kind = _without_views(field.type)
            table = table.set_column(
                position, field.with_type(kind), table.column(position).cast(kind)
            )
    return table


def _without_views(kind: pa.DataType) -> pa.DataType:
    if kind == pa.binary_view():
        return pa.binary()
    if kind == pa.string_view():
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        value = kind.value_field
        return pa.list_(value.with_type(_without_views(value.type)), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        value = kind.value_field
        return pa.list_(value.with_type(_without_views(value.type)))
    return kind


def _left(table: pa.Table, gone: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in table.to_batches():
        low, high = np.searchsorted(gone, (first, first + len(batch)))
        here = gone[low:high] - first
        first += len(batch)
        if not len(here):
            yield batch
            continue
        starts, ends = _runs(here)
        if len(starts) * _SLICE_ROWS_MIN > len(batch) - len(here):
            stays = np.ones(len(batch), np.bool_)
            stays[here] = False
            yield batch.take(integers(np.flatnonzero(stays)))
            continue
        for start, end in zip([0, *ends.tolist()], [*starts.tolist(), len(batch)], strict=True):
            if end > start:
                yield batch.slice(start, end - start)


def _runs(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where runs of consecutive numbers begin, and where they have ended."""
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    return numbers[np.concatenate(([0], breaks + 1))], numbers[np.append(breaks, -1)] + 1


@functools.lru_cache(_COUNTS_MAX)
def row_counts(deleted: RowNumbers) -> tuple[int, int]:
    """How many rows are noted, and how many runs of consecutive ones."""
    numbers = row_numbers(deleted)
    return len(numbers), int(np.count_nonzero(np.diff(numbers) > 1)) + bool(len(numbers))


def with_constants(table: pa.Table, constants: Constants) -> pa.Table:
    """The rows of a file with further columns that have one value each.

    The batches share the memory of the longest one's.
    """
    most = max(map(len, table.to_batches()), default=0)
    row = pa.ipc.open_stream(constants).read_all()
    same = takeable(row).combine_chunks().take(integers(np.zeros(most, np.int64)))
    for field, values in zip(same.schema, same.columns, strict=True):
        whole = values.combine_chunks()
        chunks = [whole.slice(0, len(batch)) for batch in table.to_batches()]
        table = table.append_column(field, pa.chunked_array(chunks, field.type))
    return table


def further_constants(before: Constants, column: pa.Table) -> Constants:
    """The constants of a file that lacks one more column: the only one of a row."""
    row = column
    if before:
        row = pa.ipc.open_stream(before).read_all()
        row = row.append_column(column.schema[0], column.columns[0])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_table(row)
    return bytes(sink.getvalue())


def with_numbers(table: pa.Table, first: int) -> pa.Table:
    """The rows of a file with their numbers, counted from `first`, as a further column."""
    ends = np.cumsum([0, *map(len, table.to_batches())]) + first
    chunks = [integers(np.arange(start, end)) for start, end in itertools.pairwise(ends.tolist())]
    return table.append_column(ROW_NUMBER, pa.chunked_array(chunks, pa.int64()))
