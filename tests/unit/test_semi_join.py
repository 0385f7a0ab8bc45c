"""Rows of Arrow tables that have one of some integers as their key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.compiler.hints import InputKeyFilter
from minishark.worker.helpers import Helpers
from minishark.worker.semi_join import semi_joined

TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
ALL = ("k", "n", "s", "d", "f")


@pytest.fixture(scope="module")
def helpers() -> Iterator[Helpers]:
    """Threads that share the work."""
    helpers = Helpers()
    yield helpers
    helpers.close()


def table_of(keys: list[int | None], type_: pa.DataType, chunk: int) -> pa.Table:
    """Rows of several types, in chunks with dictionaries of their own."""
    tables = []
    for first in range(0, max(1, len(keys)), chunk):
        some = keys[first : first + chunk]
        numbers = range(first, first + len(some))
        texts = [f"{first // 2} {i % 3}" if i % 5 else None for i in numbers]
        columns = {
            "k": pa.array(some, type_),
            "n": pa.array([None if i % 7 == 0 else i for i in numbers], pa.int64()),
            "s": pa.array([f"text {i}" for i in numbers], pa.string()),
            "d": pa.array(texts, pa.string()).dictionary_encode(),
            "f": pa.array([i / 2 for i in numbers], pa.float64()),
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def wanted(
    low: int, high: int, most: float = 1.0, columns: tuple[str, ...] = ALL
) -> InputKeyFilter:
    """A filter of `k`."""
    return InputKeyFilter(
        input="in0",
        column="k",
        keys="cte0",
        key="c0",
        columns=columns,
        low=low,
        high=high,
        copied_max=most,
    )


@given(
    type_=st.sampled_from(TYPES),
    key_type=st.sampled_from(TYPES),
    base=st.sampled_from([0, 1, 60, 100]),
    offsets=st.lists(st.none() | st.integers(0, 27), max_size=60),
    found=st.lists(st.none() | st.integers(0, 127), max_size=20),
    chunk=st.integers(1, 30),
    threads=st.integers(1, 3),
)
def test_rows_with_a_key_are_kept(
    helpers: Helpers,
    type_: pa.DataType,
    key_type: pa.DataType,
    base: int,
    offsets: list[int | None],
    found: list[int | None],
    chunk: int,
    threads: int,
) -> None:
    """In their order, with NULLs; of all types, in any chunks, on any number of threads."""
    keys = [None if offset is None else base + offset for offset in offsets]
    table = table_of(keys, type_, chunk)
    present = [key for key in keys if key is not None] or [0]
    kept = semi_joined(
        table,
        wanted(min(present), max(present)),
        pa.chunked_array([pa.array(found[:5], key_type), pa.array(found[5:], key_type)]),
        helpers,
        threads=threads,
        bytes_max=1 << 30,
    )
    rows = [row for row in table.to_pylist() if row["k"] is None or row["k"] in found]
    assert rows == kept.to_pylist()
    assert table.schema == kept.schema


@pytest.mark.parametrize("base", [-(2**63), -5, 0, 3, 2**40, 2**63 - 40])
def test_keys_may_be_any_integers(helpers: Helpers, base: int) -> None:
    """As long as they are near each other."""
    table = table_of([base + i for i in range(40)], pa.int64(), 7)
    keys = pa.chunked_array([[base + 3, base + 39, -(2**63), 2**63 - 1]], pa.int64())
    kept = semi_joined(table, wanted(base, base + 39), keys, helpers, threads=2, bytes_max=1 << 30)
    assert {base + 3, base + 39} == set(kept.column("k").to_pylist()) - {-(2**63)}
    assert (base == -(2**63)) == (kept.num_rows == 3)


def test_all_rows_are_given_where_most_are_wanted(helpers: Helpers) -> None:
    """To copy them takes longer than to read them; or memory would not do."""
    table = table_of([*range(100)], pa.int32(), 30)
    keys = pa.chunked_array([range(10)], pa.int32())

    def kept(most: float, bytes_max: int) -> int:
        filter_ = wanted(0, 99, most)
        found = semi_joined(table, filter_, keys, helpers, threads=2, bytes_max=bytes_max)
        return found.num_rows

    assert 10 == kept(0.2, 1 << 20)
    assert 100 == kept(0.05, 1 << 20)
    assert 100 == kept(0.2, 10)


def test_columns_of_other_types_are_left_alone(helpers: Helpers) -> None:
    """Whatever a plan believed."""
    table = pa.table({"k": pa.array([1.0, 2.0])})
    keys = pa.chunked_array([[1]], pa.int64())
    filter_ = wanted(1, 2, columns=("k",))
    assert table == semi_joined(table, filter_, keys, helpers, threads=1, bytes_max=1 << 20)


def test_many_rows_come_in_few_batches(helpers: Helpers) -> None:
    """DuckDB divides its work by them."""
    table = pa.table({"k": np.arange(1_000_000) % 1000})
    table = pa.Table.from_batches(table.to_batches(10_000))
    keys = pa.chunked_array([np.arange(100)])
    filter_ = wanted(0, 999, columns=("k",))
    kept = semi_joined(table, filter_, keys, helpers, threads=2, bytes_max=1 << 30)
    assert 100_000 == kept.num_rows
    assert 2 == kept.column("k").num_chunks
