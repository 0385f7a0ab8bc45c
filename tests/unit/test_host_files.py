from __future__ import annotations

import itertools
import random
import threading
from functools import partial
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.errors import DataError
from minishark.sources import filesystems
from minishark.sources.filesystems import StoreAccess, StoredFile
from minishark.sources.parquet_parts import FilePart, metadata_range, needed_ranges
from minishark.worker import host_files
from minishark.worker.host_files import (
    FetchInterruptedError,
    HostFiles,
    merged,
    requests_for,
    without,
)

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda r: (r[0], sum(r))))
ROWS = 20_000


def covered(ranges: list[tuple[int, int]]) -> set[int]:
    return {i for first, last in ranges for i in range(first, last)}


@given(RANGES, RANGES, st.integers(0, 10))
def test_ranges_are_sets_of_bytes(
    some: list[tuple[int, int]], others: list[tuple[int, int]], apart: int
) -> None:
    left = without(some, others)
    assert covered(left) == covered(some) - covered(others)
    assert sum(last - first for first, last in left) == len(covered(left))
    joined = merged(some, apart)
    assert covered(joined) >= covered(some)
    assert all(b[0] - a[1] > apart for a, b in itertools.pairwise(joined))


def test_requests_are_few_and_not_too_large() -> None:
    size = 100 << 20
    assert covered_length(requests_for([(0, size)])) == size
    assert max(last - first for first, last in requests_for([(0, size)])) <= 8 << 20
    assert [(0, 2000)] == requests_for([(0, 10), (20, 2000)])


def covered_length(ranges: list[tuple[int, int]]) -> int:
    return sum(last - first for first, last in ranges)


class Store:
    """Stands for an object store: counts what is asked for."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.read: list[tuple[str, int, int]] = []

    def file(self, name: str, data: bytes, version: str = '"1"') -> StoredFile:
        path = f"s3://bucket/{name}"
        self.data[path] = data
        return StoredFile(path, len(data), version)

    def read_range(self, file: StoredFile, first: int, last: int, access: StoreAccess) -> bytes:
        self.read.append((file.path, first, last))
        return self.data[file.path][first:last]

    @property
    def bytes(self) -> int:
        return sum(last - first for _, first, last in self.read)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    found = Store()
    monkeypatch.setattr(host_files, "read_range", found.read_range)
    return found


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Four row groups of six columns that do not compress, one of them nested."""
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT i, hash(i) AS a, hash(i + 1) AS b, hash(i + 2)::VARCHAR AS text, "
            "{'x': hash(i + 3), 'y': [hash(i + 4)]} AS nested, hash(i + 5) AS c "
            f"FROM range({ROWS}) r(i)) TO '{path}' (ROW_GROUP_SIZE {ROWS // 4})"
        )
    return path.read_bytes()


def test_only_needed_columns_and_row_groups_are_fetched(
    store: Store, parquet: bytes, tmp_path: Path
) -> None:
    file = store.file("a.parquet", parquet)
    held = HostFiles(tmp_path / "objects")
    with duckdb.connect() as connection:
        for columns in (("a",), ("nested",), ("text", "c"), ("i",)):
            before = store.bytes
            with held.held([file], [FilePart(columns)]) as (path,):
                text = ", ".join(columns)
                query = f"SELECT count(*), bit_xor(hash({text})) FROM "
                found = connection.sql(f"{query} '{path}'").fetchall()
            again = store.bytes
            assert again - before < len(parquet) * 0.7
            with held.held([file], [FilePart(columns)]):
                assert again == store.bytes
            whole = tmp_path / "whole.parquet"
            whole.write_bytes(parquet)
            assert found == connection.sql(f"{query} '{whole}'").fetchall()
    with held.held([file]) as (path,):
        assert parquet == Path(path).read_bytes()
    assert store.bytes < len(parquet) * 1.1


def test_rows_select_row_groups(store: Store, parquet: bytes, tmp_path: Path) -> None:
    file = store.file("a.parquet", parquet)
    part = FilePart(("a",), (ROWS // 4, ROWS // 2))
    with HostFiles(tmp_path / "objects").held([file], [part]) as (path,):
        found = duckdb.sql(
            f"SELECT bit_xor(a) FROM read_parquet('{path}', file_row_number = true) "
            f"WHERE file_row_number >= {ROWS // 4} AND file_row_number < {ROWS // 2}"
        ).fetchall()
    expected = duckdb.sql(
        f"SELECT bit_xor(hash(i)) FROM range({ROWS // 4}, {ROWS // 2}) r(i)"
    ).fetchall()
    assert expected == found


def test_what_is_not_a_column_chunk_is_always_needed(parquet: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet)
    metadata = pq.read_metadata(path)
    everything = needed_ranges(metadata, len(parquet), FilePart())
    assert [(0, len(parquet))] == everything
    nothing = needed_ranges(metadata, len(parquet), FilePart(columns=()))
    assert covered_length(nothing) < len(parquet) // 10
    assert nothing[0][0] == 0
    assert nothing[-1][1] == len(parquet)
    assert metadata_range(len(parquet), parquet[-8:])[0] <= len(parquet) - metadata.serialized_size


def test_long_metadata_is_fetched(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    columns = ", ".join(f"i AS a_column_with_a_long_name_{n}" for n in range(2000))
    duckdb.sql(f"COPY (SELECT {columns} FROM range(3) r(i)) TO '{path}'")
    file = store.file("wide.parquet", path.read_bytes())
    assert pq.read_metadata(path).serialized_size > 128 << 10
    with HostFiles(tmp_path / "objects").metadata([file]) as (local,):
        assert 2000 == pq.read_metadata(local).num_columns


@pytest.mark.parametrize("data", [b"", b"x", b"PAR1 no Parquet file at all PAR1"])
def test_a_file_that_is_no_parquet_is_named(store: Store, tmp_path: Path, data: bytes) -> None:
    held = HostFiles(tmp_path / "objects")
    with (
        pytest.raises(DataError, match=r"s3://bucket/a\.parquet: it is not a Parquet file"),
        held.metadata([store.file("a.parquet", data)]),
    ):
        pass


def test_threads_fetch_a_file_once(store: Store, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(20 << 20)
    file = store.file("a.csv.gz", data)
    found = []

    def read() -> None:
        with HostFiles(tmp_path / "objects").held([file]) as (path,):
            assert path.endswith(".csv.gz")
            found.append(Path(path).read_bytes() == data)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [True] * 4 == found
    assert len(data) == store.bytes


def test_another_version_is_another_file(store: Store, tmp_path: Path) -> None:
    held = HostFiles(tmp_path / "objects")
    old = store.file("a.csv", b"old")
    with held.held([old]) as (path,):
        new = store.file("a.csv", b"newer", '"2"')
        with held.held([new]) as (other,):
            assert b"newer" == Path(other).read_bytes()
        assert b"old" == Path(path).read_bytes()


def test_the_least_recently_used_files_make_room(store: Store, tmp_path: Path) -> None:
    held = HostFiles(tmp_path / "objects", limit_bytes=350_000)
    files = [store.file(f"{i}.csv", bytes([i]) * 100_000) for i in range(5)]
    with held.held(files[:1]) as (path,):
        for file in [*files[1:], files[1]]:
            with held.held([file]):
                pass
        assert bytes(100_000) == Path(path).read_bytes()  # it is in use
    assert 6 == len(store.read)
    with held.held([files[4]]):
        assert 6 == len(store.read)


def test_a_task_that_is_to_end_fetches_no_more(store: Store, tmp_path: Path) -> None:
    held = HostFiles(tmp_path / "objects", is_interrupted=lambda: len(store.read) > 2)
    with pytest.raises(FetchInterruptedError), held.held([store.file("a", bytes(500 << 20))]):
        pass
    assert len(store.read) < 20


def test_nothing_is_made_in_a_folder_that_is_gone(store: Store, tmp_path: Path) -> None:
    held = HostFiles(tmp_path / "session" / "objects")
    with pytest.raises(FileNotFoundError), held.held([store.file("a", b"a")]):
        pass
    assert not (tmp_path / "session").exists()


def test_local_files_keep_their_paths(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a")
    files = filesystems.list_files(path)
    with HostFiles(tmp_path / "objects").held(files) as paths:
        assert [str(path)] == paths
    assert not (tmp_path / "objects").exists()


@pytest.mark.parametrize("compression", ["snappy", "zstd", "uncompressed"])
def test_what_was_not_fetched_can_not_be_read(tmp_path: Path, compression: str) -> None:
    """A page header of zeros is an error: if DuckDB read more than is needed, nobody got zeros."""
    path = tmp_path / "a.parquet"
    columns = "i, hash(i) AS h, 'abc' || i AS s, i % 5 AS k, [i] AS l, i % 2 = 0 AS b"
    duckdb.sql(f"COPY (SELECT {columns} FROM range(9000) r(i)) TO '{path}' "
               f"(ROW_GROUP_SIZE 3000, COMPRESSION {compression})")  # fmt: skip
    data = bytearray(path.read_bytes())
    needed = needed_ranges(pq.read_metadata(path), len(data), FilePart(columns=()))
    for first, last in without([(0, len(data))], needed):
        data[first:last] = bytes(last - first)
    path.write_bytes(data)
    with duckdb.connect() as connection:
        for name in "ihsklb":
            with pytest.raises(duckdb.Error):
                connection.sql(f"SELECT bit_xor(hash({name})) FROM '{path}'").fetchall()


def test_calls_are_made_at_once_and_answered_in_order() -> None:
    both = threading.Barrier(2, timeout=10)

    def call(number: int) -> int:
        both.wait()
        return number

    assert list(range(6)) == filesystems.at_once([partial(call, i) for i in range(6)], 2)
    assert [] == filesystems.at_once([])


def test_the_first_error_does_not_wait_for_other_calls() -> None:
    going_on = threading.Event()

    def fail() -> None:
        message = "it failed"
        raise DataError(message)

    with pytest.raises(DataError, match="it failed"):
        filesystems.at_once([going_on.wait, fail, fail], 2)
    going_on.set()
