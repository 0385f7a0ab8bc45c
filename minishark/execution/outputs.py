"""Stores what tasks put out: pieces, results, buckets, partitions of tables."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from minishark.execution.store import Store
from minishark.execution.task import BucketSlice, StageTask, TaskOutcome, TaskPayload
from minishark.execution.writing import StoredFile

BATCH_ROWS = 122_880
"""Rows of a stored record batch: DuckDB's own row group size, which its scans like best."""

INLINE_BYTES_MAX = 1 << 20
"""Results up to this size travel in the outcome instead of through the store."""

_DICTIONARY_ROWS_MIN = 8_192
_DICTIONARY_VALUES_MAX = 1_024
_MERGED_SLICE_ROWS = 8_192
_attempts = itertools.count()


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a task's rows go.

    Attributes:
        store: the files of the task's node.
        buffer_bytes: how much of them is held before it is written.
    """

    store: Store
    buffer_bytes: int

    def piece(self, stage: StageTask, task: TaskPayload, table: pa.Table) -> TaskOutcome:
        """Store rows that another stage reads; cut into slices of their own where that is asked."""
        file = _file(stage, task)
        batches = table.to_batches()
        if stage.cuts:
            table = table.rename_columns([name for name, _ in output_columns(stage)])
            batches = table.to_batches(max(1, min(BATCH_ROWS, -(-len(table) // stage.cuts))))
        stored = self.store.write(file, table.schema, [batches])
        slices = [BucketSlice(i, i + 1, batch.num_rows) for i, batch in enumerate(batches)]
        return _outcome(stored, file, tuple(slices) if stage.cuts else ())

    def result(self, stage: StageTask, task: TaskPayload, table: pa.Table) -> TaskOutcome:
        """Rows for the front end: in the outcome, or stored where there are many."""
        if table.nbytes > INLINE_BYTES_MAX:
            return self.piece(stage, task, table)
        return TaskOutcome(table.num_rows, table.nbytes, None, stream(table))

    def partition(
        self, stage: StageTask, task: TaskPayload, table: pa.Table, statistics: bytes
    ) -> TaskOutcome:
        """Store a partition of a table, and its replicas."""
        file = _file(stage, task)
        compact = _compact(table)
        stored = self.store.write(file, compact.schema, [compact.to_batches(BATCH_ROWS)])
        return TaskOutcome(
            stored.rows,
            stored.bytes,
            file,
            statistics=statistics,
            on_disk=stored.on_disk,
            holders=self.store.replicate(stored, file, task.replicas),
        )

    def buckets(
        self, stage: StageTask, task: TaskPayload, rows: pa.RecordBatchReader
    ) -> TaskOutcome:
        """Store rows by the numbers in their last column, for the tasks of another stage."""
        buckets: list[list[pa.RecordBatch]] = [[] for _ in range(stage.buckets)]
        schema = rows.schema.remove(len(rows.schema) - 1)
        for batch in rows:
            for number, piece in _divided(batch):
                buckets[number].append(piece)
        groups = [_merged(batches, schema) for batches in buckets]
        file = _file(stage, task)
        stored = self.store.write(file, schema, groups)
        slices = []
        first = 0
        for group in groups:
            last = first + len(group)
            slices.append(BucketSlice(first, last, sum(b.num_rows for b in group)))
            first = last
        return _outcome(stored, file, tuple(slices))


def output_columns(stage: StageTask) -> list[tuple[str, str]]:
    """Names and types of the columns that a stage puts out, as users know them."""
    return list(stage.columns if stage.function is None else stage.function.returns)


def _compact(table: pa.Table) -> pa.Table:
    """Text columns with few different values as dictionaries, which DuckDB reads faster."""
    if table.num_rows < _DICTIONARY_ROWS_MIN:
        return table
    table = table.combine_chunks()
    for position, field in enumerate(table.schema):
        if not pa.types.is_string(field.type):
            continue
        column = table.column(position)
        if pc.count_distinct(column[:_DICTIONARY_ROWS_MIN]).as_py() > _DICTIONARY_VALUES_MAX:
            continue
        encoded = column.combine_chunks().dictionary_encode()
        if len(encoded.dictionary) <= _DICTIONARY_VALUES_MAX:
            table = table.set_column(position, field.name, encoded)
    return table


def _divided(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket, without the bucket column; rows keep their order within a bucket."""
    last = batch.num_columns - 1
    numbers = batch.column(last)
    counts = {item["values"]: item["counts"] for item in pc.value_counts(numbers).to_pylist()}
    rows = batch.remove_column(last)
    if len(counts) > 1:
        rows = rows.take(pc.array_sort_indices(numbers))
    first = 0
    for number in sorted(counts):
        yield number, rows.slice(first, counts[number])
        first += counts[number]


def _merged(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Small batches joined into larger ones, which cost less to scan."""
    rows = sum(batch.num_rows for batch in batches)
    if len(batches) < 2 or rows / len(batches) >= _MERGED_SLICE_ROWS:
        return batches
    merged: list[pa.RecordBatch] = (
        pa.Table.from_batches(batches, schema).combine_chunks().to_batches(BATCH_ROWS)
    )
    return merged


def _file(stage: StageTask, task: TaskPayload) -> str:
    """A name that no other attempt at the task uses, in this process or another.

    An attempt that was given up may go on; what it writes replaces nothing.
    """
    attempt = f"{os.getpid()}-{next(_attempts)}"
    return f"{stage.folder}/{stage.prefix}{task.index}-{attempt}.arrow"


def _outcome(stored: StoredFile, file: str, buckets: tuple[BucketSlice, ...] = ()) -> TaskOutcome:
    return TaskOutcome(stored.rows, stored.bytes, file, buckets=buckets, on_disk=stored.on_disk)


def stream(table: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
