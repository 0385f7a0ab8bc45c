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
        assert frame.metrics().tasks > 0


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
