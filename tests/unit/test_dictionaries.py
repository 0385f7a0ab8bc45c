"""Text columns with few values are stored as dictionaries."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest

from minishark.worker.dictionaries import Parts

ROWS = 20_000
GROUPS = pytest.mark.parametrize("rows", [8_192, ROWS])


def _parts(table: pa.Table, rows: int) -> list[pa.Table]:
    """What is stored of a table that comes in groups of so many rows."""
    groups = (table.slice(first, rows) for first in range(0, len(table), rows))
    parts = Parts(groups, table.schema)
    stored = []
    for part in parts:
        stored.append(pa.concat_tables(part.tables))
        assert part.schema == stored[-1].schema
        for position in part.dictionaries:
            values = {tuple(c.dictionary.to_pylist()) for c in stored[-1].column(position).chunks}
            assert {tuple(part.dictionaries[position].to_pylist())} == values
    if len(stored) > 1:
        stored.append(pa.concat_tables(parts.joined(stored, part)))
        assert part.dictionaries.keys() == {
            i for i, kind in enumerate(stored[-1].schema.types) if pa.types.is_dictionary(kind)
        }
    return stored


def _assert_same(table: pa.Table, stored: pa.Table) -> None:
    assert table.to_pylist() == stored.to_pylist()
    assert duckdb.from_arrow(table).fetchall() == duckdb.from_arrow(stored).fetchall()


def _texts(values: int, chunks: int = 3) -> pa.ChunkedArray:
    found = [f"v{i % values:05}" if i % 7 else None for i in range(ROWS)]
    random.Random(values).shuffle(found)
    size = -(-ROWS // chunks)
    return pa.chunked_array([found[i : i + size] for i in range(0, ROWS, size)], pa.string())


@pytest.mark.sample(3)
@GROUPS
@pytest.mark.parametrize(
    ("values", "kind"), [(1, pa.int8()), (127, pa.int8()), (128, pa.int16()), (1_024, pa.int16())]
)
def test_values_are_sorted_and_indices_small(values: int, kind: pa.DataType, rows: int) -> None:
    """All batches share one sorted dictionary without NULL, in one part if all come at once."""
    table = pa.table({"n": range(ROWS), "x": _texts(values), "m": range(ROWS)})
    stored = _parts(table, rows)
    if rows == ROWS or values < 200:
        assert [ROWS] == list(map(len, stored))
    assert pa.dictionary(kind, pa.string()) == stored[-1].schema.field("x").type
    expected = [f"v{i:05}" for i in range(values)]
    assert expected == stored[-1].column("x").chunk(0).dictionary.to_pylist()
    _assert_same(table, stored[-1])


def test_values_that_come_late() -> None:
    """A value that the first rows lack starts a part; all rows are written again with all values.

    Also where these are fewer than a dictionary is worth its while for.
    """
    late = ["b", None] * (ROWS // 2 - 5) + ["a"] * 9 + ["c"]
    table = pa.table({"x": late, "y": ["y"] * ROWS, "z": pa.array(range(ROWS))})
    stored = _parts(table, 9_000)
    assert [18_000, 2_000, ROWS] == list(map(len, stored))
    assert ["a", "b", "c"] == stored[-1].column("x").chunk(0).dictionary.to_pylist()
    assert ["y"] == stored[-1].column("y").chunk(0).dictionary.to_pylist()
    _assert_same(table, stored[-1])


def test_more_and_more_values() -> None:
    """Parts know the values of those before; a column with too many becomes plain again."""
    many = [f"{i // 10:04}" for i in range(ROWS)]
    table = pa.table({"x": [text[1:] for text in many], "y": many, "z": [t[1] for t in many]})
    stored = _parts(table, 8_192)
    assert [8_192, ROWS - 8_192, ROWS] == list(map(len, stored))
    wide, narrow = (pa.dictionary(kind, pa.string()) for kind in (pa.int16(), pa.int8()))
    assert [wide, wide, narrow] == stored[0].schema.types
    assert [wide, pa.string(), narrow] == stored[-1].schema.types
    _assert_same(table, stored[-1])


@GROUPS
def test_many_values_stay_text(rows: int) -> None:
    """Also where each chunk has few."""
    clustered = [f"{i // 10:05}" for i in range(ROWS)]
    chunks = [clustered[i : i + 5_000] for i in range(0, ROWS, 5_000)]
    table = pa.table({"x": _texts(1_025), "y": pa.chunked_array(chunks)})
    assert table == _parts(table, rows)[-1]


@GROUPS
def test_columns_without_values(rows: int) -> None:
    """NULL stays NULL where there is nothing else, in a chunk or in all."""
    none = pa.nulls(ROWS // 2, pa.string())
    half = pa.chunked_array([none, pa.array(["b", "ä", "", None] * (ROWS // 8))])
    table = pa.table({"x": pa.chunked_array([none, none]), "y": half})
    stored = _parts(table, rows)[-1]
    assert ["", "b", "ä"] == stored.column("y").chunk(0).dictionary.to_pylist()
    assert 0 == len(stored.column("x").chunk(0).dictionary)
    _assert_same(table, stored)


def test_small_tables_and_other_columns_stay() -> None:
    """A dictionary is worth its while only for many rows of text; those that were there stay."""
    small = pa.table({"x": _texts(3)}).slice(0, 8_000)
    assert [small] == _parts(small, ROWS)
    none = small.slice(0, 0)
    assert [0] == list(map(len, _parts(none, ROWS)))
    kinds = pa.dictionary(pa.uint8(), pa.string())
    table = pa.table(
        {"x": _texts(3).cast(pa.binary()), "n": range(ROWS), "enum": _texts(3).cast(kinds)}
    )
    assert [table] == _parts(table, ROWS)
