"""Answers that are read piece by piece."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from processes import until

import minishark
from minishark.errors import TaskFailedError
from minishark.session.session import Session

WIDE = "SELECT id, repeat('text ' || id, 30) AS words FROM rows ORDER BY id % 7, id"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Executors that are processes, so that what is mapped here was mapped by the front end."""
    with minishark.connect(
        nodes=1, executors_per_node=2, single_task_rows=0, disabled_optimizations=["collapse"]
    ) as session:
        session.create_table("rows", pa.table({"id": range(30_000)}), partitions=3)
        yield session


def mapped_files() -> set[str]:
    """Files of queries that this process has mapped, and that have been deleted.

    Arrow's threads, which have read ahead, let go of them a moment later than the reader.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = (line.partition("/")[2] for line in lines if line.endswith("(deleted)"))
    return {file for file in found if "/queries/" in file}


def test_batches_are_the_answer(session: Session) -> None:
    """All batches together are what `to_arrow` gives: rows, order, names, types."""
    for sql in (
        WIDE,
        "SELECT 1 AS a",
        "SELECT id AS b FROM rows WHERE id < 0",
        "FROM rows LIMIT 10",
    ):
        frame = session.sql(sql)
        expected = frame.to_arrow()
        batches = list(frame.to_batches())
        assert expected == pa.Table.from_batches(batches, expected.schema)
        assert (sql != "SELECT 1 AS a") == (frame.metrics().tasks > 0)


@pytest.mark.slow
def test_stored_rows_are_the_answer(session: Session) -> None:
    """Columns of a stored table are handed out without tasks, in the types that users get."""
    session.sql(
        "CREATE TABLE typed AS SELECT i, (i % 7)::VARCHAR AS few, 'x' || i AS many, "
        "i % 2 = 0 AS o, CASE WHEN i % 5 > 0 THEN i / 3 END::DECIMAL(9, 2) AS d, [i, NULL] AS l, "
        "i::HUGEINT AS h, uuid() AS u FROM range(40000) t(i)"
    )
    for sql, has_tasks in (
        ("FROM rows", False),
        ("SELECT i, few, many, o, d, l FROM typed", False),
        ("SELECT o AS a, I AS b, few AS a, i AS c FROM (SELECT few, i, o FROM typed)", False),
        ("SELECT count(*) FROM rows", True),
        ("SELECT i, i + 1 FROM typed", True),
        ("SELECT i, h FROM typed", True),  # only DuckDB converts these
        ("SELECT u FROM typed", True),
        ("SELECT i FROM typed WHERE i > 3", True),
    ):
        frame = session.sql(sql)
        expected = frame.to_arrow()
        batches = list(frame.to_batches())
        assert frame.schema == expected.schema
        assert expected == pa.Table.from_batches(batches, expected.schema)
        assert has_tasks == (frame.metrics().tasks > 0)
    session.sql("DROP TABLE typed")


def test_stored_rows_outlive_their_table(session: Session) -> None:
    """A table that is dropped while its rows are read is read to its end."""
    session.create_table("passing", pa.table({"id": range(300_000)}), partitions=3)
    batches = session.sql("FROM passing").to_batches()
    first = next(batches)
    session.sql("DROP TABLE passing")
    assert 300_000 == first.num_rows + sum(batch.num_rows for batch in batches)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pieces_are_freed_when_they_have_been_read(session: Session) -> None:
    """Files are deleted before the first row is read, and unmapped one by one after."""
    before = mapped_files()
    batches = session.sql(WIDE).to_batches()
    rows = next(batches).num_rows
    assert 2 == len(mapped_files() - before)
    for batch in itertools.islice(batches, 10_000):
        rows += batch.num_rows
    del batch
    assert 30_000 == rows
    until(lambda: not mapped_files() - before, "their memory is free")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_reader_may_stop_early(session: Session) -> None:
    """What has not been read is let go of with the iterator."""
    before = mapped_files()
    batches = session.sql(WIDE).to_batches()
    next(batches)
    batches.close()
    del batches
    until(lambda: not mapped_files() - before, "their memory is free")


def test_errors_come_with_the_first_batch(session: Session) -> None:
    """A query that fails while it runs fails before it gives rows."""
    with pytest.raises(TaskFailedError):
        next(session.sql("SELECT error('no ' || id) FROM rows").to_batches())
