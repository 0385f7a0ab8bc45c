"""Rows of stored files without those that were deleted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.model.catalog import ROW_NUMBER
from minishark.worker.visible_rows import (
    further_constants,
    packed,
    row_counts,
    row_numbers,
    with_constants,
    with_numbers,
    without_deleted,
    without_first,
)

TABLE = pa.table(
    {
        "n": range(3000),
        "s": pa.array([f"s{i % 5}" for i in range(3000)]).dictionary_encode(),
        "b": [i % 3 == 0 for i in range(3000)],
        "l": [[i, None] for i in range(3000)],
    }
)
BATCHES = pa.Table.from_batches(TABLE.combine_chunks().to_batches(1000))


@given(st.lists(st.tuples(st.integers(0, 2999), st.integers(1, 400)), max_size=6))
def test_deleted_rows_are_left_out(runs: list[tuple[int, int]]) -> None:
    """Single ones and runs, over batches, with the numbers of those that stay."""
    gone = {i for start, count in runs for i in range(start, min(3000, start + count))}
    deleted = packed(np.array(sorted(gone), np.int64))
    assert sorted(gone) == row_numbers(deleted).tolist()
    assert row_counts(deleted) == (len(gone), len(gone - {i + 1 for i in gone}))
    left = [i for i in range(3000) if i not in gone]
    found = without_deleted(with_numbers(BATCHES, 50), deleted)
    assert [50 + i for i in left] == found.column(ROW_NUMBER).to_pylist()
    assert (
        BATCHES.take(pa.array(left, pa.int64())).to_pylist() == found.drop(ROW_NUMBER).to_pylist()
    )


@given(st.sets(st.integers(0, 2999)), st.integers(0, 3000))
def test_rows_count_from_a_later_one(gone: set[int], first: int) -> None:
    """Those before it are none of them any more."""
    deleted = packed(np.array(sorted(gone), np.int64))
    later = row_numbers(without_first(deleted, first)).tolist()
    assert [row - first for row in sorted(gone) if row >= first] == later


@pytest.mark.parametrize(("deleted", "copied"), [([5, 2500], 0), (range(0, 1000, 2), 1)])
def test_only_batches_with_dense_gaps_are_copied(deleted: list[int], copied: int) -> None:
    """Slices keep the memory of the file."""
    numbers = BATCHES.column("n")
    found = without_deleted(BATCHES, packed(np.array(deleted, np.int64))).column("n")
    stored = {chunk.buffers()[1].address for chunk in numbers.chunks}
    other = {chunk.buffers()[1].address for chunk in found.chunks} - stored
    assert copied == len(other)


@pytest.mark.parametrize("rows", [BATCHES, BATCHES.slice(0, 0), BATCHES.schema.empty_table()])
def test_columns_that_a_file_lacks_are_the_same_in_all_rows(rows: pa.Table) -> None:
    values = {
        "i": pa.array([42], pa.int32()),
        "z": pa.array([None], pa.string()),
        "w": pa.array(["v"], pa.string_view()),
        "y": pa.array([[1, None]], pa.list_(pa.int64())),
        "u": pa.array([{"a": 1, "b": "x"}]),
        "t": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
    }
    constants = b""
    for name, value in values.items():
        constants = further_constants(constants, pa.table({name: value}))
    filled = with_constants(rows, constants)
    assert filled.column_names == [*rows.column_names, *values]
    assert filled.select(rows.column_names).equals(rows)
    for name, value in values.items():
        assert filled.column(name).to_pylist() == value.to_pylist() * rows.num_rows
