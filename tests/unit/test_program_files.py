"""Which rows of a stored table are a program's partition."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.errors import CatalogError, DataError
from minishark.worker.paths import StorePaths
from minishark.worker.program_files import ProgramFiles, keep_part, row_range, serving
from minishark.worker.protocol import FileSlice, StoredPartition
from minishark.worker.store import Store


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 9))
def test_partitions_are_the_table_in_its_order(rows: list[int], count: int) -> None:
    """Together they are all rows; equal counts keep the stored partitions, others are even."""
    every = [(part, row) for part, size in enumerate(rows) for row in range(size)]
    found, sizes = [], []
    for index in range(count):
        part = row_range(rows, index, count)
        read = [each for each in every if part.first <= each[0] < part.last]
        mine = read[part.offset : part.offset + part.length]
        assert 0 <= part.first < part.last <= len(rows)
        assert part.length == len(mine)
        found += mine
        sizes.append(len(mine))
    assert every == found
    if len(rows) == count:
        assert rows == sizes
    else:
        assert max(sizes) - min(sizes) <= 1


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory) -> ProgramFiles:
    """A store with a table of three partitions, and the folder of a program."""
    paths = StorePaths(tmp_path_factory.mktemp("memory"), tmp_path_factory.mktemp("disk"))
    paths.make("tables/0", ("n0",))
    paths.make("programs/0", ("n0",))
    store = Store(paths, "n0")
    stored = []
    for index, values in enumerate(([0, 1, 2], [], [3, 4, 5, 6])):
        rows = pa.table({"x": pa.array(values, pa.int64())})
        store.write(f"tables/0/{index}.arrow", rows.schema, [rows.to_batches()])
        stored.append(
            StoredPartition((FileSlice(f"tables/0/{index}.arrow", ("n0",)),), len(values))
        )
    return ProgramFiles(store, "programs/0", {"t": tuple(stored)})


def test_partitions_are_mapped_not_copied(files: ProgramFiles) -> None:
    """Names are case-insensitive; no Arrow memory is allocated for the rows."""
    before = pa.total_allocated_bytes()
    parts = [files.table("T", index, 3).column("x") for index in range(3)]
    assert [[0, 1, 2], [], [3, 4, 5, 6]] == [part.to_pylist() for part in parts]
    parts = [files.table("t", index, 2).column("x") for index in range(2)]
    assert [[0, 1, 2], [3, 4, 5, 6]] == [part.to_pylist() for part in parts]
    assert before == pa.total_allocated_bytes()


def test_an_unknown_table_is_an_error(files: ProgramFiles) -> None:
    """The message has the known ones."""
    with pytest.raises(CatalogError, match=r"'u'.*tables are: t"):
        files.table("u", 0, 1)


def test_parts_are_kept_as_files(files: ProgramFiles) -> None:
    """Tables and batches; no two attempts share a file; nothing else becomes a table."""
    rows = pa.table({"x": [1, 2]})
    with serving(files):
        kept = [keep_part(0, rows), keep_part(0, rows.to_batches()[0]), keep_part(1, rows[:0])]
        with pytest.raises(DataError, match="not a list"):
            keep_part(0, [1, 2])
    assert [2, 2, 0] == [part.rows for part in kept]
    assert 3 == len({part.file for part in kept})
    for part, expected in zip(kept, (rows, rows, rows[:0]), strict=True):
        assert expected == files.store.read((FileSlice(part.file, (part.node,)),))
