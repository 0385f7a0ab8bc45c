"""Stores the output of tasks: pieces, results, buckets, partitions of tables."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import pyarrow as pa
from msgspec import structs

from minishark.model.events.figures import TaskFigures
from minishark.worker.dictionaries import Part, Parts
from minishark.worker.protocol import BucketSlice, FileSlice, StageTask, TaskOutcome, TaskPayload
from minishark.worker.seals import Seal
from minishark.worker.store import Store
from minishark.worker.streaming import batches_of, even_batches, grouped
from minishark.worker.writing import StoredFile, mapped

BATCH_ROWS = 122_880
"""Rows of a stored record batch: DuckDB's own row group size, which it scans fastest."""

INLINE_BYTES_MAX = 1 << 20
"""Results below this size travel in the outcome instead of through the store."""

_MERGED_SLICE_ROWS = 8_192
_LARGE_BUFFER_BYTES = 16 << 20
_attempts = itertools.count()


def attempt_name(task: TaskPayload) -> str:
    """A name that is unique among all attempts at the task, on all hosts.

    An attempt that was given up may still be running; what it writes must replace nothing.
    """
    return f"{task.index}-{_token_of(os.getpid())}-{next(_attempts)}"


@lru_cache(1)
def _token_of(_process: int) -> str:
    """What tells processes apart: in containers, those of several hosts have the same numbers.

    It is made when it is asked for, as executors are copies of a process that has imported this.
    """
    return secrets.token_hex(4)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a task's rows go."""

    store: Store  # the files of the task's node
    buffer_bytes: int  # how many bytes are buffered before they are written
    attempt: Callable[[TaskPayload], str] = attempt_name  # names each attempt at a task

    @property
    def batch_rows(self) -> int:
        """How many rows are read at a time: fewer where little memory may hold them."""
        return BATCH_ROWS if self.buffer_bytes >= _LARGE_BUFFER_BYTES else BATCH_ROWS // 8

    def _file(self, stage: StageTask, task: TaskPayload) -> str:
        if task.name:
            return f"{stage.kept}/{task.name}-{self.attempt(task)}.arrow"
        return f"{stage.folder}/{stage.prefix}{self.attempt(task)}.arrow"

    def piece(self, stage: StageTask, task: TaskPayload, rows: pa.RecordBatchReader) -> TaskOutcome:
        """Rows that another stage reads; cut into slices if the stage asks for it."""
        return self._put_out(stage, task, rows, stage.hints.inline_bytes)

    def result(
        self, stage: StageTask, task: TaskPayload, rows: pa.RecordBatchReader
    ) -> TaskOutcome:
        """Rows for the front end."""
        return self._put_out(stage, task, rows, INLINE_BYTES_MAX)

    def _put_out(
        self, stage: StageTask, task: TaskPayload, rows: pa.RecordBatchReader, inline_bytes: int
    ) -> TaskOutcome:
        """Rows in the outcome, if they take less than `inline_bytes`; else stored."""
        groups = grouped(batches_of(rows), self.buffer_bytes)
        first = next(groups, [])
        size = sum(batch.nbytes for batch in first)
        # A first group that is not full is the only one.
        if size < min(inline_bytes, self.buffer_bytes):
            return _inline(first, rows.schema, size)
        filled = filter(None, chain([first], groups))
        return self._stored(stage, task, rows.schema, filled)

    def _stored(
        self,
        stage: StageTask,
        task: TaskPayload,
        schema: pa.Schema,
        groups: Iterator[list[pa.RecordBatch]],
    ) -> TaskOutcome:
        file = self._file(stage, task)
        if not stage.cuts:
            stored = self.store.write(file, schema, groups, _seal(task))
            return _outcome(stored, file)
        named = _named(stage, schema)
        counts: list[int] = []
        cut = _cut(groups, named, stage.cuts, counts)
        stored = self.store.write(file, named, cut, _seal(task))
        slices = [BucketSlice(i, i + 1, count) for i, count in enumerate(counts)]
        return _outcome(stored, file, tuple(slices))

    def partition(
        self,
        stage: StageTask,
        task: TaskPayload,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> tuple[str, StoredFile]:
        """Store a partition of a table; the file's name, and what was stored."""
        named = _named(stage, schema)
        batches = iter(batches)
        groups = chain(
            itertools.islice(grouped(batches, self.buffer_bytes), 1),  # most texts' values are here
            grouped(batches, min(self.buffer_bytes, _LARGE_BUFFER_BYTES)),
        )
        tables = (
            pa.Table.from_batches(group, schema).rename_columns(named.names) for group in groups
        )
        parts = Parts(tables, named)
        written: list[tuple[str, StoredFile]] = []

        def write(part: Part, tables: Iterator[pa.Table]) -> None:
            file = self._file(stage, task)
            groups = (list(even_batches(table, BATCH_ROWS)) for table in tables)
            stored = self.store.write(file, part.schema, groups, Seal.ALWAYS)
            written.append((stored.named(file), stored))

        try:
            for part in parts:
                write(part, part.tables)
            if len(written) > 1:
                write(part, parts.joined([mapped(stored) for _, stored in written], part))
            return written.pop()
        finally:
            for _, stored in written:
                stored.path.unlink(missing_ok=True)

    def taken(
        self, stage: StageTask, task: TaskPayload, slices: Sequence[FileSlice]
    ) -> tuple[str, StoredFile] | None:
        """A file that this node has, as a partition without a copy; None if it is no such file."""
        if len(slices) != 1:
            return None
        file = self._file(stage, task)
        stored = self.store.linked(slices[0], file)
        return None if stored is None else (stored.named(file), stored)

    def replicated(
        self,
        stage: StageTask,
        task: TaskPayload,
        file: str,
        stored: StoredFile,
        measured: Callable[[], bytes],
    ) -> TaskOutcome:
        """Give a partition's replicas to other nodes, while its statistics are `measured`.

        What was made by calls with a name stays for later queries, too.
        """
        outcome = _outcome(stored, file)
        if task.calls:
            kept = self.store.keep(stored, f"{stage.kept}/{stored.path.name}", task.spares)
            outcome = structs.replace(outcome, kept=kept)
        if not task.replicas:
            return structs.replace(outcome, statistics=measured())
        with ThreadPoolExecutor(1, "minishark-replicas") as pool:
            given = pool.submit(self.store.replicate, stored, file, task.replicas)
            statistics = measured()
        return structs.replace(outcome, statistics=statistics, locations=given.result())

    def buckets(
        self, stage: StageTask, task: TaskPayload, rows: pa.RecordBatchReader
    ) -> TaskOutcome:
        """Store rows by the numbers in their last column, for the tasks of another stage."""
        schema = rows.schema.remove(len(rows.schema) - 1)
        slices: list[BucketSlice] = []
        runs = _runs(batches_of(rows), stage.buckets, self.buffer_bytes)
        first = next(runs)

        def groups(run: list[list[pa.RecordBatch]]) -> Iterator[list[pa.RecordBatch]]:
            for batches in run:
                group = _merged(batches, schema)
                first = slices[-1].last if slices else 0
                count = sum(batch.num_rows for batch in group)
                slices.append(BucketSlice(first, first + len(group), count))
                yield group

        size = sum(batch.nbytes for batches in first for batch in batches)
        if size < min(stage.hints.inline_bytes, self.buffer_bytes):  # the only run
            return _inline(list(chain(*groups(first))), schema, size, slices)
        file = self._file(stage, task)
        written = (group for run in chain([first], runs) for group in groups(run))
        stored = self.store.write(file, schema, written, _seal(task))
        return _outcome(stored, file, tuple(slices), len(slices) // stage.buckets)


def output_columns(stage: StageTask) -> list[tuple[str, str]]:
    """Names and types of a stage's output columns, as users know them."""
    return list(stage.columns if stage.function is None else stage.function.returns)


def _named(stage: StageTask, schema: pa.Schema) -> pa.Schema:
    """`schema` with the names of columns that users know."""
    names = [name for name, _ in output_columns(stage)]
    return pa.schema([field.with_name(n) for field, n in zip(schema, names, strict=True)])


def _cut(
    groups: Iterable[list[pa.RecordBatch]], schema: pa.Schema, cuts: int, counts: list[int]
) -> Iterator[list[pa.RecordBatch]]:
    """Groups in batches small enough to make `cuts` of them; `counts` gets the rows of each."""
    for group in groups:
        table = pa.Table.from_arrays(pa.Table.from_batches(group).columns, schema=schema)
        batches = table.to_batches(max(1, min(BATCH_ROWS, -(-len(table) // cuts))))
        counts += [batch.num_rows for batch in batches]
        yield batches


def _runs(
    batches: Iterable[pa.RecordBatch], buckets: int, most_bytes: int
) -> Iterator[list[list[pa.RecordBatch]]]:
    """The rows of each bucket; in several runs if they exceed the buffer, in one at least."""
    held: list[list[pa.RecordBatch]] = [[] for _ in range(buckets)]
    size = 0
    ended = 0
    for batch in batches:
        for number, piece in _divided(batch):
            held[number].append(piece)
        size += batch.nbytes
        if size >= most_bytes:
            yield held
            held, size, ended = [[] for _ in range(buckets)], 0, ended + 1
    if size or not ended:
        yield held


def _divided(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket, without the bucket column; rows keep their order within a bucket."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    last = batch.num_columns - 1
    numbers = batch.column(last)
    bounds = pc.min_max(numbers)
    if len(batch) and bounds["min"] == bounds["max"]:  # a patch's: no sort is needed
        yield bounds["min"].as_py(), batch.remove_column(last)
        return
    order = pc.array_sort_indices(numbers)
    runs = pc.run_end_encode(numbers.take(order))  # to count without a sort takes longer
    rows = batch.remove_column(last)
    if len(runs.values) > 1:
        rows = rows.take(order)
    first = 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield number, rows.slice(first, end - first)
        first = end


def _merged(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Small batches joined into larger ones, which cost less to scan."""
    rows = sum(batch.num_rows for batch in batches)
    if len(batches) < 2 or rows / len(batches) >= _MERGED_SLICE_ROWS:
        return batches
    merged: list[pa.RecordBatch] = (
        pa.Table.from_batches(batches, schema).combine_chunks().to_batches(BATCH_ROWS)
    )
    return merged


def _seal(task: TaskPayload) -> Seal:
    """Outputs with names stay; others are read by the next stage."""
    return Seal.ALWAYS if task.name else Seal.ON_DISK


def _outcome(
    stored: StoredFile, file: str, slices: tuple[BucketSlice, ...] = (), runs: int = 1
) -> TaskOutcome:
    return TaskOutcome(
        figures=TaskFigures(
            rows=stored.rows, bytes=stored.bytes, disk_bytes=stored.bytes if stored.on_disk else 0
        ),
        file=stored.named(file),
        buckets=slices,
        runs=runs,
    )


def _inline(
    batches: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    size: int,
    slices: Sequence[BucketSlice] = (),
) -> TaskOutcome:
    figures = TaskFigures(rows=sum(batch.num_rows for batch in batches), bytes=size)
    data = _stream(batches, schema)
    return TaskOutcome(figures=figures, inline=data, buckets=tuple(slices))


def stream(table: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    return _stream(table.to_batches(), table.schema)


def _stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())
