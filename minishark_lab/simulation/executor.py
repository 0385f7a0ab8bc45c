"""A slot of a simulated executor: takes tasks as an executor's runner does, and runs `work`.

A task reads at one moment, writes at a later one, and gives replicas away at a third: between them
its node may die, its job be cancelled, and what it has read be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, assert_never

import pyarrow as pa
from msgspec import structs

from machine_kit.addresses import Address, endpoint_of
from machine_kit.machine import Envelope, Machine, Message
from minishark.model.events.figures import TaskFigures
from minishark.sources.contract import FileSplit
from minishark.worker.outputs import Outputs
from minishark.worker.patches import changed
from minishark.worker.protocol import (
    BucketSlice,
    OutputKind,
    ProblemDetail,
    StageTask,
    TaskOutcome,
    TaskPayload,
    TaskProblem,
    decode_job,
    decode_payload,
    encode,
)
from minishark.worker.scans import unpickled_read
from minishark.worker.task_errors import TaskError, task_errors
from minishark.worker.writing import StoredFile
from minishark_lab.simulation.disks import Disks, SimulatedStore
from minishark_lab.simulation.files import Scan
from minishark_lab.simulation.work import (
    Row,
    batch_of,
    divided,
    evaluated,
    is_simulated,
    ran,
    rows_of,
)
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import (
    ForgetJob,
    InterruptTask,
    ReturnTask,
    SlotDone,
    SlotIn,
    StartTasks,
    TellOutcomes,
)
from sparrow_core.protocol.types import SlotOutcome, TaskKey

_INLINE_ROWS_MAX = 6  # larger results are files, as those above a megabyte are
_MEASURED = pa.table({"rows": [0]})
_BUFFER_BYTES = 1 << 20
_STEP_S = 0.002  # mean time of a task's steps


def _stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


STATISTICS = _stream(_MEASURED.to_batches())


class _Step(Message, frozen=True):
    """It is time for the next step of a task."""

    key: TaskKey


@dataclass(slots=True, kw_only=True)
class _Task:
    """A task that runs: its next step, and what the last one has left for it."""

    key: TaskKey
    stage: StageTask
    payload: TaskPayload
    next: Callable[[_Task], bool]  # whether the task is over then
    scan: Scan | None = None
    rows: Sequence[Row] = ()
    columns: int = 2
    batches: Sequence[pa.RecordBatch] | None = None  # the rows of a fragment of SQL, or of a patch
    stored: StoredFile | None = None
    outcome: TaskOutcome | None = None


@dataclass(slots=True, kw_only=True)
class SimulatedSlot(Machine[SlotIn | _Step]):
    """Runs one task after the other."""

    inputs: ClassVar[Any] = SlotIn | _Step

    address: Address
    executor: Address
    node: NodeName
    disks: Disks
    rng: Random
    files: Iterator[int]  # numbers of files, which no two tasks share
    _queue: dict[TaskKey, tuple[bytes, bytes]] = field(default_factory=dict)
    _task: _Task | None = None

    def on_message(self, msg: SlotIn | _Step, now: float) -> list[Envelope]:
        match msg:
            case StartTasks():
                for task in msg.tasks:
                    key = TaskKey(msg.job_id, task.task_id, task.attempt)
                    self._queue[key] = (msg.shared, task.payload)
                return self._begin()
            case _Step():
                return self._go_on(msg.key)
            case InterruptTask():
                problem = TaskError(TaskProblem.INTERRUPTED, "interrupted")
                return self._end(_failed(msg.key, problem))
            case ReturnTask():
                if msg.key not in self._queue:
                    return []  # it has begun
                return self._end(SlotOutcome(key=msg.key, run_s=0.0, result=b"", returned=True))
            case ForgetJob() | TellOutcomes():
                return []
            case _:
                assert_never(msg)

    def gauges(self) -> dict[str, float]:
        return {"running": float(self._task is not None), "queued": len(self._queue)}

    def _begin(self) -> list[Envelope]:
        if self._task is not None or not self._queue:
            return []
        key = next(iter(self._queue))
        shared, payload = self._queue.pop(key)
        job = decode_job(shared)
        assert isinstance(job, StageTask), "nothing else is submitted"
        self._task = _Task(key=key, stage=job, payload=decode_payload(payload), next=self._read)
        return [self._soon(key)]

    def _soon(self, key: TaskKey) -> Envelope:
        return Envelope(self.address, _Step(key), self.rng.expovariate(1 / _STEP_S))

    def _go_on(self, key: TaskKey) -> list[Envelope]:
        task = self._task
        if task is None or task.key != key:
            return []
        try:
            with task_errors():
                if not task.next(task):
                    return [self._soon(key)]
        except TaskError as error:
            return self._end(_failed(key, error))
        assert task.outcome is not None, "the last step has one"
        return self._end(SlotOutcome(key=key, run_s=_STEP_S, result=encode(task.outcome)))

    def _end(self, outcome: SlotOutcome) -> list[Envelope]:
        if self._task is not None and self._task.key == outcome.key:
            self._task = None
        elif self._queue.pop(outcome.key, None) is None:
            return []  # it was over before
        return [Envelope(self.executor, SlotDone(self.address, (outcome,))), *self._begin()]

    # The steps of a task

    @property
    def _store(self) -> SimulatedStore:
        return SimulatedStore(self.disks, self.node, endpoint_of(self.address))

    def _attempt(self, payload: TaskPayload) -> str:
        return f"{payload.index}-{next(self.files)}"

    def _read(self, task: _Task) -> bool:
        reads = task.payload.reads
        if any(map(_is_of_files, reads.values())):
            task.scan, task.next = Scan(self.disks.shared, reads), self._scan
            return False
        rows = {
            name: [row for each in pickled for row in _split_rows(each)]
            for name, pickled in reads.items()
        }
        return self._run(task, rows)

    def _scan(self, task: _Task) -> bool:
        assert task.scan is not None
        return task.scan.read() and self._run(task, task.scan.rows)

    def _run(self, task: _Task, read: Mapping[str, Sequence[Row]]) -> bool:
        stage = task.stage
        named = {**stage.shared_inputs, **task.payload.inputs}
        tables = dict(zip(named, self._store.read_all([*named.values()]), strict=True))
        if stage.changed is not None:
            further = tables.get("patch"), tables.get("values")
            change = changed(tables["in0"], stage.changed, *further)
            task.batches = pa.Table.from_batches(change.batches, change.schema).to_batches() or [
                pa.RecordBatch.from_pylist([], change.schema)
            ]
        elif not is_simulated(stage.sql):
            given = {name: pa.Table.from_batches([batch_of(rows)]) for name, rows in read.items()}
            rows = ran(stage, {**tables, **given})
            task.batches = rows.combine_chunks().to_batches() or [
                pa.RecordBatch.from_pylist([], rows.schema)
            ]
        if task.batches is not None:
            task.next = self._write
            return False
        inputs = {**read, **{name: rows_of(table) for name, table in tables.items()}}
        columns = max((table.num_columns for table in tables.values()), default=2)
        task.rows = evaluated(task.stage.sql, [inputs[name] for name in sorted(inputs)])
        task.columns = columns if len(inputs) == 1 else 2
        task.next = self._write
        return False

    def _write(self, task: _Task) -> bool:
        stage, rows = task.stage, task.rows
        if task.batches is not None:
            return self._put_out(task, pa.Table.from_batches(task.batches))
        name = task.payload.name
        into = f"{stage.kept}/{name}-" if name else f"{stage.folder}/{stage.prefix}"
        file = f"{into}{self._attempt(task.payload)}.arrow"
        if stage.output is OutputKind.BUCKETS:
            parts = divided(stage.sql, rows, stage.buckets, self.rng)
        elif stage.cuts and rows:
            size = -(-len(rows) // stage.cuts)
            parts = [list(rows[i : i + size]) for i in range(0, len(rows), size)]
        else:
            parts = [list(rows)]
        batches = [batch_of(part, task.columns) for part in parts]
        size = sum(batch.nbytes for batch in batches)
        figures = TaskFigures(rows=len(rows), bytes=size)
        if stage.output is OutputKind.RESULT and len(rows) <= _INLINE_ROWS_MAX:
            task.outcome = TaskOutcome(figures=figures, inline=_stream(batches))
            return True
        stored = self._store.write(file, batches[0].schema, [batches])
        is_divided = stage.output is OutputKind.BUCKETS or bool(stage.cuts and rows)
        task.outcome = TaskOutcome(
            figures=figures,
            file=file,
            buckets=tuple(BucketSlice(i, i + 1, len(part)) for i, part in enumerate(parts))
            if is_divided
            else (),
        )
        if stage.output is not OutputKind.PARTITION:
            return True
        task.stored, task.next = stored, self._replicate
        return False

    def _put_out(self, task: _Task, rows: pa.Table) -> bool:
        """Put out the rows of DuckDB as production does."""
        stage, outputs = task.stage, Outputs(self._store, _BUFFER_BYTES, self._attempt)
        if stage.output is OutputKind.PARTITION:
            file, task.stored = outputs.partition(
                stage, task.payload, rows.schema, rows.to_batches()
            )
            figures = TaskFigures(rows=rows.num_rows, bytes=rows.nbytes)
            task.outcome = TaskOutcome(figures=figures, file=file)
            task.next = self._replicate
            return False
        put = {
            OutputKind.BUCKETS: outputs.buckets,
            OutputKind.PIECE: outputs.piece,
            OutputKind.RESULT: outputs.result,
        }[stage.output]
        payload = task.payload
        with rows.to_reader() as reader:
            task.outcome = put(stage, payload, reader)
        return True

    def _replicate(self, task: _Task) -> bool:
        assert task.outcome is not None
        assert task.outcome.file is not None
        assert task.stored is not None
        held = self._store.replicate(task.stored, task.outcome.file, task.payload.replicas)
        task.outcome = structs.replace(task.outcome, locations=held, statistics=STATISTICS)
        return True


def _is_of_files(pickled: Sequence[bytes]) -> bool:
    splits = (split for each in pickled for split in unpickled_read(each).splits)
    return isinstance(next(splits, None), FileSplit)


def _split_rows(pickled: bytes) -> Iterator[Row]:
    read = unpickled_read(pickled)
    for split in read.splits:
        with split.read(read.pushed) as reader:
            yield from rows_of(reader.read_all())


def _failed(key: TaskKey, error: TaskError) -> SlotOutcome:
    detail: ProblemDetail = error.detail
    is_retryable = detail.problem is TaskProblem.INPUT and not detail.missing
    return SlotOutcome(
        key=key,
        run_s=0.0,
        result=b"",
        message=str(error),
        detail=encode(detail),
        retryable=is_retryable,
    )
