"""A task's rows on their way from DuckDB to a file, in groups that fit into memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import duckdb
import pyarrow as pa

_FEWER = 2
_KIND = re.compile(r"(\w[\w ]*) Error: ")
_KINDS: dict[str, type[duckdb.Error]] = {
    "Constraint": duckdb.ConstraintException,
    "Conversion": duckdb.ConversionException,
    "Invalid Input": duckdb.InvalidInputException,
    "Out of Range": duckdb.OutOfRangeException,
    "Out of Memory": duckdb.OutOfMemoryException,
    "IO": duckdb.IOException,
    "INTERRUPT": duckdb.InterruptException,
    "FATAL": duckdb.FatalException,
    "INTERNAL": duckdb.InternalException,
}


def batches_of(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches that have rows.

    Raises:
        duckdb.Error: the query failed; Arrow's reader turns that into an OSError with the message.
    """
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:
            kind = _KIND.match(str(error))
            if kind is None or getattr(error, "errno", None) is not None:
                raise
            raise _KINDS.get(kind[1], duckdb.Error)(str(error)) from error
        if batch.num_rows:
            yield batch


def grouped(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches in their order, in groups of at least `most_bytes`, but for the last one."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= most_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def even_batches(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    """A table in batches of about `rows` rows, copied if its chunks are much smaller."""
    chunks = table.to_batches(rows)
    if len(chunks) * rows <= _FEWER * table.num_rows:
        yield from chunks
        return
    for first in range(0, table.num_rows, rows):
        yield from table.slice(first, rows).combine_chunks().to_batches()
