"""Patches: what becomes of rows of a stored partition, by their numbers.

A patch has a row for each row that a statement changes: its number, what becomes of it, and the new
values of the columns that the statement sets. The partition's other columns are taken as they are
stored: no value passes DuckDB, nor is text encoded anew, but for what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.model.catalog import PATCH_DELETES, PATCH_SETS
from minishark.worker.columns import as_numbers, flags, integers
from minishark.worker.dictionaries import without_dictionaries
from minishark.worker.visible_rows import takeable


class ChangedTwiceError(Exception):
    """A patch has several rows with the same number."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The rows of a partition after a change, batch by batch, and the new values in it."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    new: pa.Table  # of the columns that are set


def changed(
    rows: pa.Table,
    columns: Sequence[int],
    patch: pa.Table | None = None,
    values: pa.Table | None = None,
) -> Changed:
    """The rows of a partition after a change, in one layout.

    Args:
        rows: the partition's rows; with a patch, the last column has their numbers, which ascend.
        columns: the positions of the columns that are set.
        patch: the numbers of some rows, what becomes of each, and the values of `columns`.
        values: whether each row is changed, and the values of `columns` in all rows.

    Raises:
        ChangedTwiceError: the patch says two things of a row.
    """
    if patch is not None:
        return _patched(rows, columns, patch)
    new = rows.slice(0, 0)
    if values is not None:
        for i, column in enumerate(columns):
            kind = _plain(rows.schema.field(column))
            rows = rows.set_column(column, kind, values.column(1 + i).cast(kind.type))
        marks = as_numbers(values.column(0)).view(np.bool_)
        new = values.select(range(1, values.num_columns))
        new = new if marks.all() else takeable(new).filter(flags(marks))
    rows = rows.unify_dictionaries()  # deltas have longer ones than the partition's own file
    return Changed(rows.schema, iter(rows.to_batches()), new)


def _plain(field: pa.Field) -> pa.Field:
    is_coded = pa.types.is_dictionary(field.type)
    return field.with_type(field.type.value_type) if is_coded else field


def _patched(rows: pa.Table, columns: Sequence[int], patch: pa.Table) -> Changed:
    last = rows.num_columns - 1
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

    new = patch.select(range(2, 2 + len(columns)))
    is_set = kinds == PATCH_SETS
    new = new if is_set.all() else new.filter(flags(is_set))
    return Changed(plain.schema.remove(last), batches(), new)


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
        arrays = batch.columns
        for i, column in enumerate(columns):
            old = arrays[column]
            new = pa.concat_arrays(patch.column(2 + i).chunks).cast(old.type)
            arrays[column] = new if is_whole else _replaced(old, places, is_set, new)
        batch = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
    gone = places[kinds == PATCH_DELETES]
    if len(gone) == count:
        return
    if len(gone):
        stays = np.ones(count, np.bool_)
        stays[gone] = False
        batch = batch.filter(flags(stays))
    yield batch


def _replaced(
    old: pa.Array, places: NDArray[np.int64], is_set: NDArray[np.bool_], new: pa.Array
) -> pa.Array:
    """Values of which those at some places are replaced, where that is said of them."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    marks = np.zeros(len(old), np.bool_)
    marks[places[is_set]] = True
    some = new if is_set.all() else new.filter(flags(is_set))
    try:
        return pc.replace_with_mask(old, flags(marks), some)
    except pa.ArrowNotImplementedError:  # for nested types
        taken = np.arange(len(old))
        taken[places[is_set]] = len(old) + np.arange(len(some))
        return pa.concat_arrays([old, some]).take(integers(taken))
