"""Calls of users' functions for batches or rows: `map_batches`, `map_rows`.

    rows ──► blocks ──► calls ──► outcomes ──► tables, in the order of the rows
                          │  ▲        │
                 policy ──┘  └── log ◄┘    (of this attempt at the task, and of earlier ones)

A block is a batch, or the rows that are converted together. What a slot keeps for its calls, such
as instances of users' classes, outlives tasks.
"""

from __future__ import annotations

import functools
import inspect
import os
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from minishark.worker.call_log import CallLog
from minishark.worker.call_policy import CallPolicy, Failed
from minishark.worker.call_shapes import Declared, Shape
from minishark.worker.digest import rows_digest
from minishark.worker.functions import end_copies_of, note_call
from minishark.worker.limited import POLL_S, LimitedCalls, TooLongError
from minishark.worker.outputs import stream
from minishark.worker.protocol import TaskFunction

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_INSTANCES_MAX = 8
_CANCEL_S = 1.0
"""How long calls that were cancelled are waited for: they may ignore it."""

_FLUSH_S = 0.01
"""Outcomes of rows that took less time are written together: to log them costs more."""

REJECTED_FIELDS = (("error_type", "VARCHAR"), ("error", "VARCHAR"), ("attempts", "INTEGER"))
"""What is said of a rejected row, beside its columns."""


@dataclass(frozen=True, slots=True)
class MapCalls:
    """A function, or a class whose instances are called, with what becomes of calls that fail."""

    fn: Callable[..., Any]
    shape: Shape
    policy: CallPolicy

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        message = "a slot runs it, by CallRun"
        raise AssertionError(message)


def _target(fn: Any) -> Any:
    """What a partial object calls in the end."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def makes_instances(fn: Any) -> bool:
    """Whether it is a class, perhaps with arguments, whose instances are what is called."""
    return isinstance(_target(fn), type)


def is_async(fn: Any) -> bool:
    """Whether calls of a function, or of a class's instances, have to be awaited."""
    target = _target(fn)
    called = target if inspect.isroutine(target) else getattr(target, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(called)


class CallSlot:
    """What a slot keeps for its calls from task to task; one task runs at a time."""

    def __init__(self) -> None:
        self.limited = LimitedCalls()
        self._instances: OrderedDict[bytes, Any] = OrderedDict()  # the latest last
        self._loop: asyncio.AbstractEventLoop | None = None

    def made(self, key: bytes, fn: Callable[..., Any]) -> Callable[..., Any]:
        """What is called: the instance of a class, which is made once; or the function itself."""
        if not makes_instances(fn):
            return fn
        instance = self._instances.get(key)
        if instance is None:
            instance = fn()
        self._instances[key] = instance
        self._instances.move_to_end(key)
        while len(self._instances) > _INSTANCES_MAX:
            self._instances.popitem(last=False)
        called: Callable[..., Any] = instance
        return called

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the slot's event loop, in which what instances hold lives on."""
        import asyncio  # noqa: PLC0415 - slow to import, and few functions are async

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(main)
        except Exception:
            raise
        except BaseException:  # it was interrupted, wherever it was
            self.close()
            raise

    def close(self) -> None:
        """End the event loop, with all that runs in it, and forget the instances."""
        self._instances.clear()
        loop, self._loop = self._loop, None
        if loop is None or loop.is_running():  # in a thread that nobody waits for any more
            return
        import asyncio  # noqa: PLC0415 - as above

        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_CANCEL_S))
        loop.close()


def _pause(delay_s: float) -> None:
    """Wait in short steps, between which this thread can be interrupted."""
    end_s = time.monotonic() + delay_s
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, POLL_S))


@dataclass(slots=True, kw_only=True)
class _Block:
    """Rows that are converted together, and what has come of their calls."""

    first: int  # the number of its first call in the task
    rows: pa.Table
    digest: bytes
    calls: int
    outcomes: list[Any] = field(init=False)
    left: int = field(init=False)  # calls that have not ended
    table: pa.Table | None = None  # what comes out, when all have

    def __post_init__(self) -> None:
        self.outcomes, self.left = [None] * self.calls, self.calls


@dataclass(slots=True, kw_only=True)
class CallRun:
    """The calls for the rows of one task: a `Function` for this task."""

    calls: MapCalls
    function: TaskFunction  # how it was declared; with a further column if rows are rejected
    slot: CallSlot
    log: CallLog = field(default_factory=CallLog)
    pause: Callable[[float], None] = _pause
    chance: Callable[[], float] = random.random
    retried: int = 0  # calls that were repeated
    reused: int = 0  # calls that were not made, as they had been
    rejected: int = 0  # rows of calls that failed for good
    _blocks: list[_Block] = field(default_factory=list)
    _declared: Declared = field(init=False)
    _schema: pa.Schema = field(init=False)  # of the rows
    _in_flight: dict[int, None] = field(default_factory=dict)  # in the order of their start
    _flushed_s: float = 0.0
    _pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        policy, returns = self.calls.policy, self.function.returns
        returns = returns[:-1] if policy.on_error == "quarantine" else returns
        self._declared = Declared(
            returns=returns, label=self.function.label, is_checked=not policy.raises
        )

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        try:
            self.log.open()
            if is_async(self.calls.fn):
                # All rows first: to wait for them would make calls that run wait as well.
                self.slot.run(self._run_async(list(self._cut(rows))))
            else:
                self._run(self._cut(rows))
            if self._blocks and not self.rejected:
                blocks = [(block.first, block.digest, block.calls) for block in self._blocks]
                self.log.all_ended(self._schema.serialize().to_pybytes(), blocks)
        finally:
            self.log.end()
        return self._made()

    def known(self) -> list[pa.Table] | None:
        """What the calls return, if all were made before; None if the rows are needed for that.

        Only of calls whose name says which rows they are made for.
        """
        self.log.read()
        outcomes = self.log.all_outcomes()
        if outcomes is None:
            return None
        schema, blocks = outcomes
        self._schema = pa.ipc.read_schema(pa.py_buffer(schema))
        for digest, logged in blocks:
            block = _Block(
                first=self.reused, rows=self._schema.empty_table(), digest=digest, calls=len(logged)
            )
            self._blocks.append(block)
            for index, outcome in enumerate(logged):
                self._note(block, index, _unpacked(outcome))
            self.reused += len(logged)
        return self._made()

    def _made(self) -> list[pa.Table]:
        return [block.table for block in self._blocks if block.table is not None]

    # Blocks

    def _cut(self, reader: pa.RecordBatchReader) -> Iterator[_Block]:
        number, self._schema = 0, reader.schema
        for rows in _tables(reader, self.calls.shape.block_rows):
            count = rows.num_rows if self.calls.shape.of_rows else 1
            yield _Block(first=number, rows=rows, digest=rows_digest(rows), calls=count)
            number += count

    def _open_calls(self, blocks: Iterable[_Block]) -> Iterator[tuple[_Block, int, Any]]:
        """The calls that have to be made: their blocks, places in these, and arguments."""
        for block in blocks:
            self._blocks.append(block)
            for index, argument in enumerate(self.calls.shape.arguments(block.rows)):
                logged = self.log.outcome(block.first + index, block.digest)
                if logged is None:
                    yield block, index, argument
                else:
                    self.reused += 1
                    self._note(block, index, _unpacked(logged))

    # Calls

    def _run(self, blocks: Iterable[_Block]) -> None:
        fn = self.slot.made(self.function.pickled, self.calls.fn)
        call = fn if self.calls.policy.timeout_s is None else functools.partial(self._limited, fn)
        marks = not self.calls.policy.raises
        for block, index, argument in self._open_calls(blocks):
            if marks:
                number = block.first + index
                self.log.begin(number, number + 1, block.digest)
            failures = 0
            while True:
                try:
                    outcome = self.calls.shape.accepted(call(argument), self._declared)
                    break
                except Exception as error:  # noqa: BLE001 - whatever user code raises
                    failures += 1
                    next_step = self._failure(error, failures, argument)
                if isinstance(next_step, Failed):
                    outcome = next_step
                    break
                self.pause(next_step)
            self._ended(block, index, outcome)

    def _limited(self, fn: Callable[..., Any], argument: Any) -> Any:
        timeout_s = self.calls.policy.timeout_s
        assert timeout_s is not None
        try:
            return self.slot.limited.call(functools.partial(fn, argument), timeout_s)
        except TooLongError as error:
            raise TimeoutError(str(error)) from None

    async def _run_async(self, blocks: Sequence[_Block]) -> None:
        fn = self.slot.made(self.function.pickled, self.calls.fn)
        calls = self._open_calls(blocks)

        async def work(end: int | None) -> None:
            for block, index, argument in calls:
                await self._awaited(fn, block, index, argument)
                if end is not None and block.first + index + 1 >= end:
                    return

        if self.log.suspected_to:  # one of these may be what has ended a process: one by one
            await _all_of([work(self.log.suspected_to)])
        await _all_of([work(None) for _ in range(self.calls.policy.concurrency)])

    async def _awaited(
        self, fn: Callable[..., Any], block: _Block, index: int, argument: Any
    ) -> None:
        import asyncio  # noqa: PLC0415 - as above

        number, failures = block.first + index, 0
        if not self.calls.policy.raises:
            self._in_flight[number] = None
            self.log.begin(next(iter(self._in_flight)), number + 1, block.digest)
        while True:
            try:
                limit = asyncio.timeout(self.calls.policy.timeout_s)
                try:
                    async with limit:
                        value = await fn(argument)
                except TimeoutError:
                    if limit.expired():
                        message = f"It took longer than {self.calls.policy.timeout_s:g} s."
                        raise TimeoutError(message) from None
                    raise
                outcome = self.calls.shape.accepted(value, self._declared)
                break
            except Exception as error:  # noqa: BLE001 - whatever user code raises
                failures += 1
                next_step = self._failure(error, failures, argument)
            if isinstance(next_step, Failed):
                outcome = next_step
                break
            await asyncio.sleep(next_step)
        self._in_flight.pop(number, None)
        self._ended(block, index, outcome)

    def _failure(self, error: Exception, failures: int, argument: Any) -> Failed | float:
        """What becomes of a call that has failed so many times: how long to wait, or its end.

        Raises:
            Exception: the error, if it is to end the job.
        """
        if isinstance(error, MemoryError):  # says nothing of the rows
            raise error
        delay_s = self.calls.policy.delay_s(failures, self.chance())
        if delay_s is not None:
            self.retried += 1
            return delay_s
        if self.calls.policy.raises:
            is_row = self.calls.shape.of_rows
            note_call(error, argument, named="" if is_row else f"{argument.num_rows} rows")
            raise error
        return Failed.of(error, failures)

    # Outcomes

    def _ended(self, block: _Block, index: int, outcome: Any) -> None:
        """A call has ended in this attempt."""
        end_copies_of(self._pid)
        self.log.add(block.first + index, block.digest, _packed(outcome))
        now_s = time.monotonic()
        if not self.calls.shape.of_rows or now_s >= self._flushed_s + _FLUSH_S:
            self.log.flush()
            self._flushed_s = now_s
        self._note(block, index, outcome)

    def _note(self, block: _Block, index: int, outcome: Any) -> None:
        block.outcomes[index] = outcome
        block.left -= 1
        if not block.left:
            block.table = self._assembled(block)
            block.outcomes, block.rows = [], None

    def _assembled(self, block: _Block) -> pa.Table:
        """What comes out for a block whose calls have ended."""
        outcomes = block.outcomes
        failures = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, Failed)}
        values = [None if isinstance(outcome, Failed) else outcome for outcome in outcomes]
        if not self.calls.shape.of_rows:
            if not failures:
                return self._with_rejected(
                    self.calls.shape.table(values, self._declared), block, failures
                )
            failures = dict.fromkeys(range(block.rows.num_rows), failures[0])
            nulls = pa.nulls(block.rows.num_rows)
            table = pa.table(dict.fromkeys(self._declared.names, nulls))
            return self._with_rejected(table, block, failures)
        try:
            table = self.calls.shape.table(values, self._declared)
        except Exception:
            if self.calls.policy.raises:
                raise
            self._find_unfit(values, 0, len(values), failures)
            table = self.calls.shape.table(values, self._declared)
        return self._with_rejected(table, block, failures)

    def _find_unfit(
        self, values: list[Any], first: int, end: int, failures: dict[int, Failed]
    ) -> None:
        """Find which values between two places can't be what is declared."""
        try:
            self.calls.shape.table(values[first:end], self._declared)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever converting them raises
            if end - first == 1:
                values[first], failures[first] = None, Failed.of(error, 1)
                return
            middle = (first + end) // 2
            self._find_unfit(values, first, middle, failures)
            self._find_unfit(values, middle, end, failures)

    def _with_rejected(
        self, table: pa.Table, block: _Block, failures: dict[int, Failed]
    ) -> pa.Table:
        """With a column that has the rows that failed, and why, if that is wanted."""
        self.rejected += len(failures)
        if self.calls.policy.on_error != "quarantine":
            return table
        name = self.function.returns[-1][0]
        return table.append_column(name, _rejected(block.rows, failures, table.num_rows))


async def _all_of(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines to their ends, or until one raises: then the others are cancelled."""
    import asyncio  # noqa: PLC0415 - slow to import, and few functions are async

    tasks = [asyncio.ensure_future(task) for task in coroutines]
    waiting = tasks
    try:
        while waiting:
            # In short steps, between which this thread can be interrupted.
            await asyncio.wait(waiting, timeout=POLL_S, return_when=asyncio.FIRST_EXCEPTION)
            for task in waiting:
                if task.done():
                    task.result()
            waiting = [task for task in waiting if not task.done()]
    finally:
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks, timeout=_CANCEL_S)
        for task in [task for task in tasks if task in done and not task.cancelled()]:
            task.exception()  # it was raised already, or is not the first


def _tables(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.Table]:
    """The rows of a reader in tables of so many rows each, but for the last."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in reader:
        rest = batch
        while rest.num_rows:
            part = rest.slice(0, rows - count)
            rest = rest.slice(part.num_rows)
            held.append(part)
            count += part.num_rows
            if count == rows:
                yield pa.Table.from_batches(held)
                held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _packed(outcome: Any) -> Any:
    """An outcome to be pickled: pickles of a part of a table have all of it."""
    return stream(outcome) if isinstance(outcome, pa.Table) else outcome


def _unpacked(packed: Any) -> Any:
    return pa.ipc.open_stream(packed).read_all() if isinstance(packed, bytes) else packed


def _rejected(rows: pa.Table, failures: dict[int, Failed], count: int) -> pa.Array:
    """Of `count` rows, lists of the row that failed and why; NULL for those that did not."""
    names = rejected_names(rows.num_columns)
    if not failures:
        types = [*rows.schema.types, pa.string(), pa.string(), pa.int32()]
        return pa.nulls(count, pa.list_(pa.struct(list(zip(names, types, strict=True)))))
    which = sorted(failures)
    taken = rows.take(pa.array(which, pa.int64())).combine_chunks()
    of = [failures[index] for index in which]
    fields = [
        *(_whole(column) for column in taken.columns),
        pa.array([failed.kind for failed in of], pa.string()),
        pa.array([failed.message for failed in of], pa.string()),
        pa.array([failed.attempts for failed in of], pa.int32()),
    ]
    structs = pa.StructArray.from_arrays(fields, names=names)
    offsets, at = [0], 0
    for index in range(count):
        at += index in failures
        offsets.append(at)
    mask = pa.array([index not in failures for index in range(count)], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, mask=mask)


def rejected_names(columns: int) -> list[str]:
    """The fields of a rejected row: those of its columns, and what is said of it."""
    return [*(f"c{index}" for index in range(columns)), *(name for name, _ in REJECTED_FIELDS)]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
