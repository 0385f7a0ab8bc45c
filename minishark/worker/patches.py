"""Patches: what becomes of rows of a stored partition, by their numbers.

A patch has a row for each row that a statement changes: its number, what becomes of it, and the new
values of the columns that the statement sets. The partition's other columns are taken as they are
stored: no value passes DuckDB, nor is text encoded anew, but for what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.model.catalog import PATCH_DELETES, PATCH_SETS
from minishark.worker.columns import as_numbers, flags, integers
from minishark.worker.dictionaries import without_dictionaries
from minishark.worker.visible_rows import takeable


class ChangedTwiceError(Exception):
    """A patch has several rows with the same number."""


def patched(
    rows: pa.Table, patch: pa.Table, columns: Sequence[int]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a partition after a change, batch by batch.

    Args:
        rows: the partition's rows; the last column has their numbers, which ascend.
        patch: the numbers of some of them, what becomes of each, and the values of `columns`.
        columns: the positions of the columns that are set.

    Raises:
        ChangedTwiceError: the patch says two things of a row.
    """
    last = rows.num_columns - 1
    # Deltas have longer dictionaries than the partition's own file.
    plain = takeable(without_dictionaries(rows, columns)).unify_dictionaries()
    patch = takeable(patch).combine_chunks()
    numbers = as_numbers(patch.column(0))
    steps = np.diff(numbers)
    if len(steps) and steps.min() <= 0:
        patch = patch.take(integers(np.argsort(numbers, kind="stable")))
        numbers = as_numbers(patch.column(0))
        if not np.diff(numbers).all():
            raise ChangedTwiceError
    kinds = as_numbers(patch.column(1))
    schema = plain.schema.remove(last)

    def batches() -> Iterator[pa.RecordBatch]:
        for numbered in plain.to_batches():
            own, batch = as_numbers(numbered.column(last)), numbered.remove_column(last)
            first, end = np.searchsorted(numbers, (own[0], own[-1] + 1)) if len(own) else (0, 0)
            if first == end:
                yield batch
                continue
            places = numbers[first:end] - own[0]
            if own[-1] - own[0] >= len(own):  # some were deleted before
                places = np.searchsorted(own, numbers[first:end])
            here = patch.slice(first, end - first)
            yield from _changed(batch, places, kinds[first:end], here, columns)

    return schema, batches()


def _changed(
    batch: pa.RecordBatch,
    places: NDArray[np.int64],
    kinds: NDArray[np.int8],
    patch: pa.Table,
    columns: Sequence[int],
) -> Iterator[pa.RecordBatch]:
    """A batch with new values at `places`, without the rows that are deleted."""
    count = len(batch)
    is_set = kinds == PATCH_SETS
    if columns and is_set.any():
        is_whole = len(places) == count and bool(is_set.all())
        taken = np.arange(count)
        taken[places[is_set]] = count + np.flatnonzero(is_set)
        arrays = batch.columns
        for i, column in enumerate(columns):
            old = arrays[column]
            new = pa.concat_arrays(patch.column(2 + i).chunks).cast(old.type)
            arrays[column] = new if is_whole else pa.concat_arrays([old, new]).take(integers(taken))
        batch = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
    gone = places[kinds == PATCH_DELETES]
    if len(gone) == count:
        return
    if len(gone):
        stays = np.ones(count, np.bool_)
        stays[gone] = False
        batch = batch.filter(flags(stays))
    yield batch
