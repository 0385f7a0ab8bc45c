"""Calls of functions for batches and rows: order, repetition, limits, what is kept of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from minishark.dataframe.row import Row, rows_of
from minishark.query.digests import digest
from minishark.worker import calls as module
from minishark.worker.call_log import CallLog, read_log
from minishark.worker.call_policy import (
    BACKOFF_MAX_S,
    KILLED,
    CallPolicy,
    Failed,
    Guilt,
    InFlight,
    guilt,
)
from minishark.worker.call_shapes import Batches, Declared, EachRow, Shape
from minishark.worker.calls import CallRun, CallSlot, MapCalls
from minishark.worker.digest import rows_digest
from minishark.worker.functions import FunctionFailedError
from minishark.worker.protocol import TaskFunction

RETURNS = (("a", "BIGINT"),)
ASIDE = ("rejected", "STRUCT(c0 BIGINT, error_type VARCHAR, error VARCHAR, attempts INTEGER)[]")
ROWS = EachRow(rows_of)
SLOTS: list[CallSlot] = []  # of a test


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Event loops end with the test."""
    yield
    while SLOTS:
        SLOTS.pop().close()


def rows(count: int, batch: int = 7) -> pa.RecordBatchReader:
    """Numbers from 0 in uneven batches."""
    return pa.table({"a": pa.array(range(count), pa.int64())}).to_reader(batch)


def run_of(fn: Any, shape: Shape = ROWS, log: CallLog | None = None, **options: Any) -> CallRun:
    """The calls of a task that waits for nothing."""
    policy = CallPolicy(**options)
    SLOTS.append(CallSlot())
    returns = (*RETURNS, ASIDE) if policy.on_error == "quarantine" else RETURNS
    return CallRun(
        calls=MapCalls(fn, shape, policy),
        function=TaskFunction("map_rows", b"key", returns),
        slot=SLOTS[-1],
        log=log or CallLog(),
        pause=lambda _: None,
        chance=lambda: 1.0,
    )


def values(tables: Iterable[pa.Table]) -> list[Any]:
    """The first column of what came out."""
    return [value for table in tables for value in table.column(0).to_pylist()]


def rejected(tables: Iterable[pa.Table]) -> list[Any]:
    """The rows that were set aside."""
    lists = [each for table in tables for each in table.column("rejected").to_pylist()]
    return [row for each in lists if each is not None for row in each]


class Counted:
    """A function that counts its calls by the number that it gets."""

    def __init__(self, fails: Callable[[int, int], bool] = lambda _number, _time: False) -> None:
        self.fails = fails
        self.calls: list[int] = []

    def one(self, row: Row) -> int:
        self.calls.append(row.a)
        if self.fails(row.a, self.calls.count(row.a)):
            raise ValueError(f"{row.a} is bad")
        return int(row.a)

    async def later(self, row: Row) -> int:
        await asyncio.sleep(0.001 if row.a % 3 else 0.003)
        return self.one(row)


# Policy


def test_waits_grow_up_to_a_minute() -> None:
    """Each is twice the last, and at least half of it is not left to chance."""
    policy = CallPolicy(retries=20, backoff_s=0.1)
    assert [0.1, 0.2, 0.4, 0.8] == [policy.delay_s(failures, 1.0) for failures in range(1, 5)]
    assert [0.05, 0.1] == [policy.delay_s(failures, 0.0) for failures in (1, 2)]
    assert BACKOFF_MAX_S == policy.delay_s(20, 1.0)
    assert policy.delay_s(21, 1.0) is None
    assert BACKOFF_MAX_S == CallPolicy(retries=10_000).delay_s(10_000, 1.0)
    assert CallPolicy().delay_s(1, 1.0) is None


def test_a_call_is_guilty_of_the_second_death() -> None:
    """Once it was alone; beside others, and for other rows, it is only suspected."""
    here, other = b"0" * 16, b"1" * 16
    alone, beside, elsewhere = InFlight(3, 4, here), InFlight(0, 9, here), InFlight(3, 4, other)
    for deaths, expected in (
        ([], Guilt.NONE),
        ([alone], Guilt.SUSPECTED),
        ([beside, beside], Guilt.SUSPECTED),
        ([beside, alone], Guilt.GUILTY),
        ([alone, alone], Guilt.GUILTY),
        ([elsewhere, elsewhere], Guilt.SUSPECTED),
        ([InFlight(4, 5, here)] * 2, Guilt.NONE),
    ):
        assert expected is guilt(3, here, deaths)


# Calls


@pytest.mark.parametrize("count", [0, 1, 20, 21])
def test_batches_have_the_size_that_was_asked_for(count: int) -> None:
    """Whatever those of the reader are; only the last is smaller, and none is empty."""
    sizes: list[int] = []

    def noting(table: pa.Table) -> pa.Table:
        sizes.append(table.num_rows)
        return table

    assert list(range(count)) == values(run_of(noting, Batches(5))(rows(count)))
    assert [*[5] * (count // 5), *([count % 5] if count % 5 else [])] == sizes


@pytest.mark.parametrize("kind", ["one", "later"])
def test_only_what_failed_is_called_again(kind: str) -> None:
    """And the rows keep their order."""
    counted = Counted(lambda number, time: number % 10 == 3 and time < 3)
    run = run_of(getattr(counted, kind), retries=2, backoff_s=0.0)
    assert list(range(50)) == values(run(rows(50)))
    assert {3: 3, 13: 3, 23: 3, 33: 3, 43: 3} == {
        number: counted.calls.count(number)
        for number in range(50)
        if counted.calls.count(number) > 1
    }
    assert (10, 0) == (run.retried, run.rejected)


def test_repeated_calls_are_waited_for() -> None:
    """As long as the policy says."""
    waited: list[float] = []
    run = run_of(Counted(lambda number, _: number == 2).one, retries=3, on_error="null")
    run.pause = waited.append
    assert [0, 1, None, 3] == values(run(rows(4)))
    assert [0.1, 0.2, 0.4] == waited


@pytest.mark.parametrize("kind", ["one", "later"])
def test_rows_that_fail_are_null_or_set_aside(kind: str) -> None:
    """The others are there, in their order."""
    bad = {2, 5, 39}
    for on_error in ("null", "quarantine"):
        fn = getattr(Counted(lambda number, _: number in bad), kind)
        run = run_of(fn, on_error=on_error, retries=1, backoff_s=0.0, concurrency=1)
        tables = list(run(rows(40)))
        assert [None if i in bad else i for i in range(40)] == values(tables)
        assert (3, 3) == (run.retried, run.rejected)
    expected = [
        {"c0": i, "error_type": "ValueError", "error": f"{i} is bad", "attempts": 2} for i in bad
    ]
    assert sorted(expected, key=lambda row: row["c0"]) == rejected(tables)


def test_a_batch_that_fails_fails_as_a_whole() -> None:
    """With all its rows; what is returned is checked for each batch."""

    def picky(table: pa.Table) -> pa.Table:
        first = table.column(0)[0].as_py()
        if first == 4:
            raise KeyError("four")
        return pa.table({"b": [1]}) if first == 8 else table.slice(1)

    run = run_of(picky, Batches(4), on_error="quarantine")
    tables = list(run(rows(14)))
    assert [1, 2, 3, *[None] * 8, 13] == values(tables)
    found = rejected(tables)
    assert list(range(4, 12)) == [row["c0"] for row in found]
    assert ["KeyError"] * 4 + ["minishark.errors.FunctionError"] * 4 == [
        row["error_type"] for row in found
    ]
    assert "'four'" == found[0]["error"]
    assert "does not give column 'a'" in found[4]["error"]


@pytest.mark.parametrize("given", [1.5, "x", 2**70, (1, 2), {"b": 1}, {"a": 1, "b": 1}, object()])
def test_values_that_do_not_fit_are_the_row_s_error(given: Any) -> None:
    """Wherever they stand among those that do."""
    run = run_of(lambda row: given if row.a in (3, 4, 17) else row.a, on_error="quarantine")
    tables = list(run(rows(20)))
    assert [None if i in (3, 4, 17) else i for i in range(20)] == values(tables)
    assert [3, 4, 17] == [row["c0"] for row in rejected(tables)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda row: row.a,
        lambda row: (row.a,),
        lambda row: {"a": row.a},
        lambda row: Row(a=row.a),
        lambda row: float(row.a),
    ],
)
def test_rows_of_any_kind(fn: Any) -> None:
    """A single column needs no row around its value."""
    run = run_of(fn, on_error="null")
    assert list(range(9)) == values(run(rows(9)))


def test_rows_have_all_declared_columns() -> None:
    """By name, or in order."""
    declared = Declared(
        returns=(("a", "BIGINT"), ("b", "VARCHAR")), label="map_rows", is_checked=True
    )
    for given in ((1, "x"), {"b": "x", "a": 1}, Row(b="x", a=1)):
        assert (1, "x") == declared.row(given)
    for wrong in ((1,), 1, None, [1, "x"], {"a": 1}, Row(a=1)):
        with pytest.raises(FunctionFailedError):
            declared.row(wrong)


def test_a_coroutine_that_nobody_awaits() -> None:
    """A sentence says what to do."""
    with pytest.raises(FunctionFailedError, match="async def"):
        run_of(lambda row: Counted().later(row))(rows(1))


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("error", [MemoryError, SystemExit, KeyboardInterrupt])
def test_what_says_nothing_of_a_row_is_never_swallowed(
    kind: str, error: type[BaseException]
) -> None:
    """The task fails, without another call."""
    calls = itertools.count()

    def fails(row: Row) -> int:
        next(calls)
        raise error

    async def fails_later(row: Row) -> int:
        return fails(row)

    fn = fails if kind == "plain" else fails_later
    with pytest.raises(error):
        run_of(fn, on_error="null", retries=5)(rows(3))
    assert 1 == next(calls)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_call_that_takes_too_long(kind: str) -> None:
    """It is given up and counts as failed, with a TimeoutError."""
    never = threading.Event()

    def waits(row: Row) -> int:
        while row.a == 1 and not never.wait(0.01):
            pass
        return int(row.a)

    async def waits_later(row: Row) -> int:
        await asyncio.sleep(60 if row.a == 1 else 0)
        return int(row.a)

    fn = waits if kind == "plain" else waits_later
    tables = list(run_of(fn, on_error="quarantine", timeout_s=0.3)(rows(3)))
    assert [0, None, 2] == values(tables)
    (row,) = rejected(tables)
    assert ("TimeoutError", "It took longer than 0.3 s.") == (row["error_type"], row["error"])


def test_async_calls_run_side_by_side_up_to_a_bound() -> None:
    """And never more; the rows keep their order."""
    now, most = 0, 0

    async def counted(row: Row) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001 * (row.a % 4))
        now -= 1
        return int(row.a)

    assert list(range(60)) == values(run_of(counted, concurrency=8)(rows(60)))
    assert 8 == most


def test_an_error_of_an_async_call_ends_the_others() -> None:
    """They are cancelled, and have ended when it is raised."""
    ended: list[int] = []

    async def fails(row: Row) -> int:
        if row.a == 2:
            raise LookupError("two")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(row.a)
        return 0

    with pytest.raises(LookupError, match="two"):
        run_of(fails, concurrency=4)(rows(10))
    assert {0, 1, 3} >= {*ended}
    assert {0, 1} <= {*ended}


def test_a_call_that_ignores_that_it_is_cancelled_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error of the other one comes out."""
    monkeypatch.setattr(module, "_CANCEL_S", 0.01)
    ends: list[asyncio.Event] = []

    async def fails(row: Row) -> int:
        if row.a == 1:
            raise LookupError("one")
        ends.append(asyncio.Event())
        while not ends[0].is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends[0].wait()
        return 0

    with pytest.raises(LookupError, match="one"):
        run_of(fails, concurrency=2)(rows(2))
    ends[0].set()


class Model:
    """A class whose instances are called."""

    made = 0

    def __init__(self, add: int = 0) -> None:
        Model.made += 1
        self.add = add

    def __call__(self, row: Row) -> int:
        return int(row.a) + self.add


class AsyncModel(Model):
    """Its calls are awaited."""

    async def __call__(self, row: Row) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return int(row.a) + self.add


@pytest.mark.parametrize("class_", [Model, AsyncModel])
def test_a_class_is_made_once_for_a_slot(class_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that follow call the same instance; a few are kept."""
    monkeypatch.setattr(Model, "made", 0)
    run = run_of(functools.partial(class_, 10))
    for _ in range(3):
        again = run_of(functools.partial(class_, 10))
        again.slot = run.slot
        assert [10, 11] == values(again(rows(2)))
    assert 1 == Model.made
    for number in range(20):
        run.slot.made(str(number).encode(), class_)
    assert module._INSTANCES_MAX == len(run.slot._instances)


def test_a_class_that_can_not_be_made_ends_the_job() -> None:
    """That is no fault of a row."""

    def fails() -> None:
        raise RuntimeError("no weights")

    class Broken:
        def __init__(self) -> None:
            fails()

        def __call__(self, row: Row) -> int:
            return 1

    with pytest.raises(RuntimeError, match="no weights"):
        run_of(Broken, on_error="null")(rows(2))


# The log


class Died(BaseException):
    """Stands for the death of a process: nothing runs after it."""


class Left(CallLog):
    """What is left of a process that died."""

    def end(self) -> None:
        self._close()


def dies(run: CallRun, count: int) -> None:
    """Run until a call dies."""
    with pytest.raises(Died):
        run(rows(count))


def dying(number: int, calls: list[int]) -> Callable[[Any], Any]:
    def fn(given: Any) -> Any:
        first = given.a if isinstance(given, Row) else given.column(0)[0].as_py()
        if first == number:
            raise Died
        calls.append(first)
        return given.a if isinstance(given, Row) else given

    return fn


@pytest.mark.parametrize("shape", [Batches(3), ROWS])
def test_what_is_done_is_not_done_again(
    shape: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt takes it, and the answer is the same; in the end nothing is left."""
    monkeypatch.setattr(module, "_FLUSH_S", -1.0)  # each row by itself
    first, second = tmp_path / "1.calls", tmp_path / "2.calls"
    calls: list[int] = []
    dies(run_of(dying(9, calls), shape, Left(path=first)), 20)
    before = list(calls)
    run = run_of(dying(-1, calls), shape, CallLog(path=second, earlier=[first]))
    assert list(range(20)) == values(run(rows(20)))
    assert len({*calls}) == len(calls)
    assert 9 == calls[len(before)]
    run.log.done()
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize("shape", [Batches(3), ROWS])
@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_calls_that_were_all_made_need_no_rows(shape: Any, on_error: str, tmp_path: Path) -> None:
    """What they return is in the files of attempts, wherever each of them was made."""
    first, second = tmp_path / "1.calls", tmp_path / "2.calls"
    calls: list[int] = []
    dies(run_of(dying(9, calls), shape, Left(path=first), on_error=on_error), 20)
    begun = run_of(dying(-1, calls), shape, CallLog(others=[first]), on_error=on_error)
    assert begun.known() is None
    log = CallLog(path=second, others=[first])
    made = list(run_of(dying(-1, calls), shape, log, on_error=on_error)(rows(20)))
    count = len(calls)
    again = run_of(dying(-1, calls), shape, CallLog(others=[first, second]), on_error=on_error)
    known = again.known()
    assert known is not None
    assert [table.to_pydict() for table in made] == [table.to_pydict() for table in known]
    assert [table.column_names for table in made] == [table.column_names for table in known]
    assert count == len(calls)
    assert again.reused == (20 if shape is ROWS else 7)
    part = run_of(dying(-1, calls), shape, CallLog(others=[second]), on_error=on_error)
    assert part.known() is None


@pytest.mark.parametrize("fails", ["raises", "does not fit"])
def test_where_a_row_was_rejected_rows_are_needed(fails: str, tmp_path: Path) -> None:
    """They are what is set aside."""

    def call(row: Row) -> object:
        if row.a == 5 and fails == "raises":
            raise ValueError
        return "none" if row.a == 5 else row.a

    log = CallLog(path=tmp_path / "1.calls")
    tables = list(run_of(call, ROWS, log, on_error="quarantine")(rows(12)))
    assert [5] == [row["c0"] for row in rejected(tables)]
    again = run_of(call, ROWS, CallLog(others=[tmp_path / "1.calls"]), on_error="quarantine")
    assert again.known() is None
    assert [5] == [row["c0"] for row in rejected(again(rows(12)))]


def test_outcomes_of_other_rows_are_not_taken(tmp_path: Path) -> None:
    """An attempt may get other rows than the one before, where an order is not certain."""
    first = tmp_path / "1.calls"
    calls: list[int] = []
    dies(run_of(dying(6, calls), Batches(3), Left(path=first)), 20)
    assert [0, 3] == calls
    run = run_of(dying(-1, calls), Batches(3), CallLog(earlier=[first]))
    other = pa.table({"a": pa.array([0, 1, 2, 5, 4, 3], pa.int64())}).to_reader()
    assert [0, 1, 2, 5, 4, 3] == values(run(other))
    assert [0, 3, 5] == calls


def test_failures_are_kept_as_well(tmp_path: Path) -> None:
    """A row that has failed for good is not tried again by the next attempt."""
    log, failed = CallLog(path=tmp_path / "1.calls"), Failed("ValueError", "no", 3)
    log.open()
    log.add(0, b"0" * 16, failed)
    log.add(1, b"0" * 16, (5,))
    log.flush()
    again = CallLog(earlier=[tmp_path / "1.calls"])
    again.open()
    assert (failed, (5,), None) == tuple(again.outcome(i, b"0" * 16) for i in range(3))
    assert [] == again.deaths
    log.done()


def test_a_log_may_end_anywhere(tmp_path: Path) -> None:
    """The process died while it wrote: what was whole counts."""
    path = tmp_path / "1.calls"
    log = CallLog(path=path)
    log.open()
    for number in range(3):
        log.add(number, b"0" * 16, number)
        log.flush()
    log.end()
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found = [number for number, _, _ in read_log(path)[1]]
        assert list(range(len(found))) == found
    path.write_bytes(data[:-1] + b"x")
    assert 2 == len([*read_log(path)[1]])
    assert 0 == len([*read_log(tmp_path / "none")[1]])


def test_what_can_not_be_pickled_is_not_kept(tmp_path: Path) -> None:
    """The calls go on without a log."""
    path = tmp_path / "1.calls"
    log = CallLog(path=path)
    log.open()
    log.add(0, b"", threading.Lock())
    log.flush()
    assert not path.exists()
    log.add(1, b"", 1)
    log.flush()
    log.end()


@pytest.mark.parametrize("shape", [Batches(1), ROWS])
def test_a_call_that_kills_its_process_twice_is_rejected(shape: Any, tmp_path: Path) -> None:
    """The third attempt does not call it."""
    calls: list[int] = []
    files = [tmp_path / f"{number}.calls" for number in range(3)]
    for number in (0, 1):
        log = Left(path=files[number], earlier=files[:number])
        dies(run_of(dying(9, calls), shape, log, on_error="quarantine"), 12)
    log = CallLog(path=files[2], earlier=files[:2])
    tables = list(run_of(dying(9, calls), shape, log, on_error="quarantine")(rows(12)))
    assert [None if i == 9 else i for i in range(12)] == values(tables)
    assert [(9, KILLED.message)] == [(row["c0"], row["error"]) for row in rejected(tables)]


def test_async_calls_beside_one_that_kills_are_not_blamed(tmp_path: Path) -> None:
    """After a death, those that ran then are called one by one."""

    async def kills(row: Row) -> int:
        await asyncio.sleep(0)
        if row.a == 9:
            raise Died
        return int(row.a)

    files = [tmp_path / f"{number}.calls" for number in range(3)]
    for number in (0, 1):
        log = Left(path=files[number], earlier=files[:number])
        dies(run_of(kills, ROWS, log, on_error="quarantine", concurrency=4), 12)
    heads = [read_log(path)[0] for path in files[:2]]
    assert heads[0].end - heads[0].first > 1
    assert (9, 10) == (heads[1].first, heads[1].end)
    log = CallLog(path=files[2], earlier=files[:2])
    tables = list(run_of(kills, ROWS, log, on_error="quarantine", concurrency=4)(rows(12)))
    assert [9] == [row["c0"] for row in rejected(tables)]


def test_rows_with_nulls_have_the_same_digest_whatever_is_below() -> None:
    """What stands where a value is NULL is no part of it."""
    valid = pa.py_buffer(b"\x05")
    found = [
        rows_digest(
            pa.table({"a": pa.Array.from_buffers(pa.int64(), 3, [valid, _longs(1, below, 3)])})
        )
        for below in (2, 7)
    ]
    assert found[0] == found[1]


def _longs(*numbers: int) -> pa.Buffer:
    return pa.array(numbers, pa.int64()).buffers()[1]


# What is called


def test_what_is_async() -> None:
    """Functions, methods, partial objects, classes with such a __call__."""

    async def later(row: Row) -> int:
        return 1

    counted = Counted()
    for fn in (later, counted.later, functools.partial(later), AsyncModel):
        assert module.is_async(fn)
    for fn in (len, counted.one, functools.partial(Model, 1), lambda row: row, Model):
        assert not module.is_async(fn)
    assert module.is_async(functools.partial(AsyncModel, 1))
    assert module.is_async(AsyncModel())


OTHERS: dict[str, Any] = {
    "on_error": "null",
    "retries": 1,
    "backoff_s": 0.2,
    "timeout_s": 1.0,
    "concurrency": 2,
}


def test_all_options_count_in_the_name_of_an_output() -> None:
    """Which tells functions by what they do."""

    def calls(shape: Shape = ROWS, add: int = 1, **options: Any) -> str:
        made = MapCalls(functools.partial(Model, add), shape, CallPolicy(**options))
        return digest(cloudpickle.loads(cloudpickle.dumps(made)))

    assert frozenset(OTHERS) == frozenset(CallPolicy.__dataclass_fields__)
    assert calls() == calls()
    others = [calls(**{name: value}) for name, value in OTHERS.items()]
    others += [calls(add=2), calls(Batches(1)), calls(Batches(2))]
    assert len({calls(), *others}) == 1 + len(others)


def test_a_wait_can_be_interrupted() -> None:
    """It is one of short steps."""
    began = time.monotonic()
    module._pause(0.12)
    assert time.monotonic() >= began + 0.12
