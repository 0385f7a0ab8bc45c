"""Text columns with few values are stored as dictionaries."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest

from minishark.execution.dictionaries import compact_batches

ROWS = 20_000
HELD = pytest.mark.parametrize("most_bytes", [0, 9_999, 1 << 20])


def _stored(table: pa.Table, most_bytes: int = 1 << 20, rows: int = 5_000) -> pa.Table:
    schema, batches = compact_batches(table, rows, most_bytes)
    return pa.Table.from_batches(batches, schema)


def _texts(values: int, rows: int = ROWS, chunks: int = 3) -> pa.ChunkedArray:
    found = [f"v{i % values:05}" if i % 10 else None for i in range(rows)]
    random.Random(values).shuffle(found)
    size = -(-rows // chunks)
    return pa.chunked_array([found[i : i + size] for i in range(0, rows, size)], pa.string())


@HELD
@pytest.mark.parametrize(
    ("values", "kind"), [(1, pa.int8()), (127, pa.int8()), (128, pa.int16()), (1_024, pa.int16())]
)
def test_values_are_sorted_and_indices_small(
    values: int, kind: pa.DataType, most_bytes: int
) -> None:
    """All batches share one sorted dictionary without NULL, whatever could be held."""
    table = pa.table({"n": range(ROWS), "x": _texts(values), "m": range(ROWS)})
    found = _stored(table, most_bytes)
    assert pa.dictionary(kind, pa.string()) == found.schema.field("x").type
    dictionaries = {tuple(chunk.dictionary.to_pylist()) for chunk in found.column("x").chunks}
    assert {tuple(f"v{i:05}" for i in range(values))} == dictionaries
    assert table.to_pylist() == found.to_pylist()
    assert duckdb.from_arrow(table).fetchall() == duckdb.from_arrow(found).fetchall()


@HELD
def test_many_values_stay_text(most_bytes: int) -> None:
    """Also where the first rows have few, or each chunk has."""
    clustered = [f"{i // 10:05}" for i in range(ROWS)]
    chunks = [clustered[i : i + 5_000] for i in range(0, ROWS, 5_000)]
    late = ["a"] * 10_000 + [str(i) for i in range(10_000)]
    table = pa.table({"x": _texts(1_025), "y": pa.chunked_array(chunks), "z": late})
    assert table == _stored(table, most_bytes)


@HELD
def test_columns_without_values(most_bytes: int) -> None:
    """NULL stays NULL where there is nothing else, in a chunk or in all."""
    none = pa.nulls(ROWS, pa.string())
    half = pa.chunked_array([none, pa.array(["b", "ä", "", None] * (ROWS // 4))])
    table = pa.table({"x": pa.chunked_array([none, none]), "y": half})
    found = _stored(table, most_bytes)
    assert ["", "b", "ä"] == found.column("y").chunk(0).dictionary.to_pylist()
    assert table.to_pylist() == found.to_pylist()
    assert duckdb.from_arrow(table).fetchall() == duckdb.from_arrow(found).fetchall()


def test_small_tables_and_other_columns_stay() -> None:
    """A dictionary is worth its while only for many rows of text."""
    small = pa.table({"x": _texts(3, 8_000)})
    assert small == _stored(small)
    binary = pa.table({"x": _texts(3).cast(pa.binary()), "n": range(ROWS)})
    assert binary == _stored(binary)
