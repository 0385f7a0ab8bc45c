"""Parts of Parquet files that one task reads one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

import minishark
from minishark.model.expressions import Column
from minishark.sources.filesystems import StoredFile
from minishark.sources.hive import FolderKeys
from minishark.sources.parquet import ParquetPart

A = ParquetPart(
    file=StoredFile("a.parquet", 100, "1"),
    options=(),
    own=(Column("x", "BIGINT"),),
    fills=False,
    keys=FolderKeys(),
    rows=10,
    bytes=100,
    is_typical=True,
)
B = replace(A, file=StoredFile("b.parquet", 100, "1"), rows=7, is_typical=False)


def cut(first: int, last: int) -> ParquetPart:
    return replace(A, rows=last - first, bytes=last - first, range=(first, last), file_rows=10)


def test_what_is_left_of_a_file_is_read_at_once() -> None:
    """All of it as a whole file, without a number for each row."""
    assert ParquetPart.joined([cut(2, 4), cut(4, 9)]) == [cut(2, 9)]
    (whole,) = ParquetPart.joined([cut(0, 4), cut(4, 10)])
    assert (whole.range, whole.rows) == (None, 10)  # type: ignore[attr-defined]
    assert ParquetPart.joined([cut(0, 4), cut(5, 10)]) == [cut(0, 4), cut(5, 10)]


def test_whole_files_that_are_read_alike_are_one_scan() -> None:
    (both,) = ParquetPart.joined([cut(0, 5), cut(5, 10), B])
    assert isinstance(both, ParquetPart)
    assert [file.path for file in both.files()] == ["a.parquet", "b.parquet"]
    assert both.relation(["/a", "/b"]).sql.count("read_parquet") == 1
    assert both.rows == 17


@pytest.mark.parametrize(
    "other",
    [
        replace(B, options=(("binary_as_string", "true"),)),
        replace(B, fills=True),
        replace(B, own=(Column("x", "INTEGER"),)),
        replace(B, range=(0, 3), file_rows=7),
        replace(B, keys=FolderKeys((Column("k", "BIGINT"),), {"k": [1]}, {"k": ["1"]})),
    ],
)
def test_files_that_are_read_in_other_ways_stay_apart(other: ParquetPart) -> None:
    assert ParquetPart.joined([A, other]) == [A, other]


def test_a_query_over_files_is_one_task_with_all_threads(tmp_path: Path) -> None:
    """As over tables: nothing moves on one machine."""
    with duckdb.connect() as connection:
        for i in range(3):
            connection.execute(
                f"COPY (SELECT range AS x, range % 7 AS k FROM range({i}, 400000, 3)) "
                f"TO '{tmp_path}/{i}.parquet'"
            )
    with minishark.connect(nodes=2, in_process=True) as session:
        frame = session.sql(f"SELECT k, sum(x) FROM '{tmp_path}/*.parquet' GROUP BY k")
        assert sum(row[1] for row in frame.to_arrow().to_pandas().itertuples(index=False)) == sum(
            range(400_000)
        )
        assert (frame.metrics().stages, frame.metrics().tasks) == (1, 1)


def test_types_are_those_of_the_first_file_in_every_task(tmp_path: Path) -> None:
    """DuckDB takes those of the first that it is given: a task may begin with another."""
    sums = {"BIGINT": 0, "SMALLINT": 0}
    with duckdb.connect() as connection:
        for i, type_ in enumerate(["BIGINT", *["SMALLINT"] * 7, "BIGINT"]):
            base = 4_000_000_000 if type_ == "BIGINT" else 0
            connection.execute(
                f"COPY (SELECT ({base} + range)::{type_} AS x FROM range(20000)) "
                f"TO '{tmp_path}/{i}.parquet'"
            )
            sums[type_] += 20_000 * base + sum(range(20_000))
    other = replace(A, file=StoredFile("c.parquet", 100, "1"), is_typical=False)
    assert ParquetPart.joined([B, other]) == [B, other]
    with minishark.connect(
        nodes=2, in_process=True, single_task_rows=0, disabled_optimizations=["one_task"]
    ) as session:
        frame = session.sql(f"SELECT sum(x) AS s FROM '{tmp_path}/*.parquet'")
        assert frame.to_arrow().to_pylist() == [{"s": sum(sums.values())}]
        assert frame.metrics().tasks > 1
