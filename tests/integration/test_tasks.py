"""Calls of Python functions in the cluster: submit, map, executor, broadcast, trees of calls."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import contextvars
import ctypes
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minishark
from minishark.errors import (
    ClusterError,
    FunctionError,
    OptionError,
    TasksLostError,
    TaskTimeoutError,
)
from minishark.session.session import Session

WAIT_S = 60.0


@pytest.fixture(scope="module", params=["processes", "threads"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Two nodes of one slot, as processes and as threads."""
    if request.param == "processes":
        yield request.getfixturevalue("processes")
        return
    with minishark.connect(nodes=2, executors_per_node=1, in_process=True) as found:
        yield found


@pytest.fixture(scope="module")
def processes() -> Iterator[Session]:
    """Two nodes of one slot, whose executors may die."""
    with minishark.connect(nodes=2, executors_per_node=1) as found:
        yield found


def _files(session: Session) -> list[Path]:
    """The files that calls have stored."""
    folder = session._runtime.cluster.paths.memory
    return [path for path in folder.glob("*/tasks/*") if path.is_file()]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Calls


def test_a_call_returns_what_it_returns_here(session: Session) -> None:
    """With positional and keyword arguments, closures, and objects of any kind."""
    offset = 5
    call = session.submit(lambda a, *, b: {"sum": a + b + offset, "kinds": [type(a), None]}, 1, b=2)
    assert {"sum": 8, "kinds": [int, None]} == call.result(WAIT_S)
    assert call.node in ("node-0", "node-1")
    assert call.done()
    assert not call.running()


def test_a_function_takes_along_what_it_refers_to_at_that_moment(session: Session) -> None:
    """Although the same function is pickled once, if nothing has changed."""
    seen: list[int] = []
    number = 0

    def look() -> tuple[int, int]:
        return number, len(seen)

    found = [session.submit(look)]
    number = 1
    found.append(session.submit(look))
    seen.append(1)
    found.append(session.submit(look))
    assert [(0, 0), (1, 0), (1, 1)] == [each.result(WAIT_S) for each in found]


def test_an_exception_comes_back_with_its_traceback(session: Session) -> None:
    """Its type, its note and its cause; what can't be pickled becomes a FunctionError."""

    def broken(x: int) -> float:
        return 1 / x

    with pytest.raises(ZeroDivisionError) as caught:
        session.submit(broken, 0).result(WAIT_S)
    assert "in broken" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, FunctionError)
    assert caught.value.__cause__.node in ("node-0", "node-1")
    assert "minishark/worker" not in caught.value.__cause__.traceback

    def unpicklable() -> None:
        error = ValueError("no good")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(FunctionError, match="no good"):
        session.submit(unpicklable).result(WAIT_S)
    with pytest.raises(TypeError, match="pickle"):
        session.submit(threading.Lock).result(WAIT_S)
    assert 1.0 == session.submit(broken, 1).result(WAIT_S), "others go on"


def test_an_exception_may_contain_what_utf_8_can_not_encode(session: Session) -> None:
    """As the names of files may; the exception is the user's, and the executor lives."""

    def missing() -> None:
        raise FileNotFoundError("no \udc80")

    with pytest.raises(FileNotFoundError) as caught:
        session.submit(missing).result(WAIT_S)
    assert "no \udc80" == str(caught.value)
    assert "no \\udc80" in caught.value.__notes__[0]

    def driver(run: Any) -> Any:
        return run.map(lambda _: missing(), run.load(int, 2))

    with pytest.raises(FileNotFoundError):
        session.program(driver).result(WAIT_S)


def test_what_can_not_be_sent_is_said_at_once(session: Session) -> None:
    """Functions, arguments, futures; and options that make no sense."""
    lock = threading.Lock()
    with pytest.raises(OptionError, match="can't be sent"):
        session.submit(lambda: lock)
    with pytest.raises(OptionError, match="can't be sent"):
        session.submit(print, lock)
    with pytest.raises(OptionError, match="result"):
        session.submit(print, session.submit(int))
    with pytest.raises(OptionError, match="takes a function"):
        session.submit(5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="Did you mean node-0"):
        session.executor(prefers="node0")
    with pytest.raises(OptionError, match="negative"):
        session.executor(retries=-1)
    with pytest.raises(OptionError, match="more than 0"):
        session.executor(timeout=0)
    with pytest.raises(OptionError, match="chunksize"):
        session.map(str, [1], chunksize=0)


def test_calls_run_where_they_prefer(session: Session) -> None:
    """All of them on one node, although the other is idle."""
    for name in ("node-0", "node-1"):
        with session.executor(prefers=name) as executor:
            futures = [executor.submit(abs, -i) for i in range(20)]
            assert list(range(20)) == [future.result(WAIT_S) for future in futures]
            assert {name} == {future.node for future in futures}


def test_a_call_that_raised_is_tried_again(session: Session, tmp_path: Path) -> None:
    """As often as was asked for; the last exception counts."""

    def flaky(path: str, failures: int) -> int:
        with open(path, "a") as file:  # noqa: PTH123
            file.write("x")
        if os.path.getsize(path) <= failures:  # noqa: PTH202
            raise ValueError(os.path.getsize(path))  # noqa: PTH202
        return os.path.getsize(path)  # noqa: PTH202

    executor = session.executor(retries=2)
    assert 3 == executor.submit(flaky, str(tmp_path / "a"), 2).result(WAIT_S)
    with pytest.raises(ValueError, match="3"):
        executor.submit(flaky, str(tmp_path / "b"), 3).result(WAIT_S)


def test_a_call_that_takes_too_long_is_stopped(session: Session) -> None:
    """Others are not affected, and the slot goes on."""

    def spin(seconds: float) -> float:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.001)
        return seconds

    executor = session.executor(timeout=0.3)
    futures = [executor.submit(spin, seconds) for seconds in (0.01, 30.0, 0.02)]
    assert 0.01 == futures[0].result(WAIT_S)
    with pytest.raises(TaskTimeoutError, match=r"longer than 0\.3 s"):
        futures[1].result(WAIT_S)
    assert 0.02 == futures[2].result(WAIT_S)
    with pytest.raises(TimeoutError):
        session.submit(spin, 1.0).result(0.01)


# Cancelling


@pytest.mark.sample(2)
def test_queued_calls_are_cancelled(session: Session, tmp_path: Path) -> None:
    """They do not run; others of the same job do."""

    def touch(path: str) -> None:
        time.sleep(0.05)
        Path(path).touch()

    paths = [str(tmp_path / str(i)) for i in range(40)]
    futures = [session.submit(touch, path) for path in paths]
    cancelled = futures[10:30]
    assert all(future.cancel() for future in cancelled)
    assert all(future.cancelled() for future in cancelled)
    kept = [*futures[:10], *futures[30:]]
    done, rest = concurrent.futures.wait(kept, WAIT_S)
    assert (20, 0) == (len(done), len(rest))
    with pytest.raises(concurrent.futures.CancelledError):
        cancelled[0].result()
    assert not kept[0].cancel()
    assert not any(os.path.exists(path) for path in paths[12:30])  # noqa: PTH110


def test_a_running_call_is_interrupted(session: Session, tmp_path: Path) -> None:
    """Between two of its bytecodes; its slot is free then."""

    def spin(path: str) -> None:
        try:
            Path(path).touch()  # here, as it may be interrupted as soon as there is a file
            while True:
                time.sleep(0.001)
        finally:
            Path(path).unlink()

    running = tmp_path / "running"
    future = session.submit(spin, str(running))
    _until(running.exists)
    assert future.cancel()
    _until(lambda: not running.exists())
    assert [1] * 4 == [session.submit(abs, -1).result(WAIT_S) for _ in range(4)]


@pytest.mark.slow
def test_cancelling_a_call_cancels_its_own(session: Session, tmp_path: Path) -> None:
    """Also while it waits for them."""

    def child(path: str) -> None:
        Path(path).touch()
        while True:
            time.sleep(0.001)

    def parent(paths: list[str]) -> None:
        futures = [session.submit(child, path) for path in paths]
        concurrent.futures.wait(futures)

    paths = [str(tmp_path / str(i)) for i in range(6)]
    future = session.submit(parent, paths)
    _until(lambda: sum(map(os.path.exists, paths)) >= 1)
    assert future.cancel()
    answers = [session.submit(abs, -i) for i in range(4)]
    assert [0, 1, 2, 3] == [each.result(WAIT_S) for each in answers]
    time.sleep(0.2)
    begun = sum(map(os.path.exists, paths))
    time.sleep(0.3)
    assert begun == sum(map(os.path.exists, paths)), "no more of them begin"


# Maps


def test_a_map_is_a_map(session: Session) -> None:
    """For any chunk size, several iterables, and in both orders."""
    expected = [x * y for x, y in zip(range(100), itertools.count(1), strict=False)]
    for chunksize in (None, 1, 7, 1000):
        found = session.map(lambda x, y: x * y, range(100), itertools.count(1), chunksize=chunksize)
        assert expected == list(found)
        squares = session.map(lambda x: x * x, range(100), chunksize=chunksize, ordered=False)
        assert [x * x for x in range(100)] == sorted(squares)
    assert [] == list(session.map(str, []))
    with session.map(abs, range(10)) as results:
        assert (10, 0) == (results.total, next(results))
        _until(lambda: results.done == 10)


@pytest.mark.parametrize("chunksize", [None, 1])
def test_a_map_reads_its_input_as_its_results_are_taken(
    session: Session, chunksize: int | None
) -> None:
    """An endless input is no problem."""
    read = itertools.count()
    limit = 20_000 if chunksize == 1 else 10_000_000

    def numbers() -> Iterator[int]:
        for i in read:
            assert i < limit
            yield i

    results = session.map(lambda x: x + 1, numbers(), chunksize=chunksize)
    assert list(range(1, 101)) == list(itertools.islice(results, 100))
    results.close()
    assert [] == list(results)


def test_the_first_exception_ends_a_map(session: Session) -> None:
    """With the results before it; nothing of the rest is left."""
    results = session.map(lambda x: 1 / (x - 50), range(100_000), chunksize=1)
    found: list[float] = []
    with pytest.raises(ZeroDivisionError) as caught:
        found.extend(results)
    assert 50 == len(found)
    assert isinstance(caught.value.__cause__, FunctionError)
    assert 50 == caught.value.__cause__.partition
    assert [] == list(results)


@pytest.mark.sample(4)
@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_of_the_input_ends_a_map(session: Session, ordered: bool) -> None:
    """After the results of what came before it, however much was read ahead."""

    def numbers(count: int) -> Iterator[int]:
        yield from range(count)
        raise LookupError

    for count, chunksize in ((3, 1), (5, 2), (9_000, 1)):
        results = session.map(abs, numbers(count), chunksize=chunksize, ordered=ordered)
        found: list[int] = []
        with pytest.raises(LookupError):
            found.extend(results)
        assert list(range(count)) == sorted(found)
        assert [] == list(results)
    with pytest.raises(LookupError):  # at once, as nothing came before
        session.map(abs, numbers(0))


@pytest.mark.slow
def test_more_calls_than_fit_into_a_job(session: Session) -> None:
    """Nothing limits them."""
    with session.executor() as executor:
        futures = [executor.submit(abs, -i) for i in range(20_000)]
    assert list(range(20_000)) == [future.result() for future in futures]


def test_calls_of_a_map_are_one_job(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two jobs, the second might run first: the first result would come after its results."""
    backend, jobs = session._runtime.calls.pool._backend, list[int]()
    submit = backend.submit

    def counted(job: Any, on_event: Any) -> Any:
        jobs.append(len(job.tasks))
        return submit(job, on_event)

    monkeypatch.setattr(backend, "submit", counted)
    with session.map(time.sleep, itertools.repeat(0.001, 9_000), chunksize=1) as results:
        next(results)
        assert [8_192] == jobs


@pytest.mark.sample(2)
def test_ctrl_c_ends_the_waiting(session: Session, tmp_path: Path) -> None:
    """A map is cancelled, a single call goes on, and so does the session."""

    def slow(i: int) -> int:
        Path(str(tmp_path / str(i))).touch()
        time.sleep(0.02)
        return i

    for wait in (
        lambda: list(session.map(slow, range(100_000), chunksize=1)),
        lambda: session.submit(time.sleep, 0.6).result(),
    ):
        timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
    assert 1 == session.submit(abs, -1).result(WAIT_S)
    begun = len(list(tmp_path.iterdir()))
    time.sleep(0.3)
    assert begun == len(list(tmp_path.iterdir()))


# Large values


def test_a_large_argument_is_stored_once(session: Session) -> None:
    """For any number of calls, by its content; a changed array is stored anew."""
    before = len(_files(session))
    array = np.arange(1_250_000)  # 10 MB
    futures = [session.submit(lambda a, i: int(a[i]), array, i) for i in range(8)]
    assert list(range(8)) == [future.result(WAIT_S) for future in futures]
    assert 1 == len(_files(session)) - before
    array[0] = 7
    assert 7 == session.submit(lambda a: int(a[0]), array).result(WAIT_S)
    text = "x" * (1 << 20)
    counts = [session.submit(str.count, text, x) for x in "xyx"]
    assert [1 << 20, 0, 1 << 20] == [count.result(WAIT_S) for count in counts]
    assert 3 == len(_files(session)) - before


def test_large_results_come_by_files_that_go(session: Session) -> None:
    """They can be changed, and nothing is left of them, even if nobody reads them."""
    before = len(_files(session))
    future = session.submit(np.ones, 1_000_000)
    unread = session.submit(np.zeros, 1_000_000)
    found = future.result(WAIT_S)
    found += 1
    assert 2_000_000.0 == found.sum()
    concurrent.futures.wait([unread], WAIT_S)
    del unread
    assert before == len(_files(session))
    rows = list(session.map(lambda i: np.full(100_000, i), range(20), chunksize=1))
    assert list(range(20)) == [row[0] for row in rows]
    assert before == len(_files(session))


def test_arguments_may_be_changed_by_those_who_got_them(session: Session) -> None:
    """Each call has a copy of its own, which costs nothing until then."""
    array = np.zeros(100_000)

    def change(a: np.ndarray[Any, Any], i: int) -> float:
        a += i
        return float(a.sum())

    found = [session.submit(change, array, i) for i in range(4)]
    assert [0.0, 1e5, 2e5, 3e5] == [each.result(WAIT_S) for each in found]
    assert 0.0 == array.sum()


def test_a_broadcast_value_lives_as_long_as_it_is_needed(session: Session) -> None:
    """Also by calls that are under way when nobody else has it any more."""
    shared = session.broadcast(np.arange(1_000_000))
    assert 999_999 == shared.value[-1]

    def look(i: int) -> int:
        return int(shared.value[i])

    assert list(range(50)) == list(session.map(look, range(50), chunksize=1))
    late = session.submit(
        lambda s: (time.sleep(0.3), int(s.value[3]))[1], session.broadcast(shared.value + 1)
    )
    assert 4 == late.result(WAIT_S)
    assert None is session.submit(lambda s: s.value, session.broadcast(None)).result(WAIT_S)


# Trees


@pytest.mark.slow
def test_executors_unmap_what_nobody_needs(processes: Session) -> None:
    """Removed files that are mapped would take as much memory as before."""

    def use() -> int:
        large, shared = np.ones(100_000), processes.broadcast(np.ones(100_000))
        ran = processes.submit(lambda: (os.getpid(), large.sum() + shared.value.sum()))
        pid, total = ran.result(WAIT_S)
        assert 2e5 == total
        return pid

    def is_mapped() -> bool:
        return "/tasks/" in Path(f"/proc/{pid}/maps").read_text()

    pid = use()
    assert is_mapped()
    for i in range(20):  # the latest arguments stay for a while
        processes.submit(len, bytes(300_000 + i)).result(WAIT_S)
    _until(lambda: not is_mapped())


@pytest.mark.sample(2)
def test_calls_may_submit_calls(session: Session) -> None:
    """More at a time than there are slots, and each waits for its own."""

    def fib(n: int) -> int:
        if n < 2:
            return n
        return sum(
            each.result() for each in [session.submit(fib, n - 1), session.submit(fib, n - 2)]
        )

    assert [0, 1, 1, 2, 3, 5, 8, 13] == [session.submit(fib, n).result(WAIT_S) for n in range(8)]
    assert [21] * 3 == [each.result(WAIT_S) for each in [session.submit(fib, 8) for _ in range(3)]]


@pytest.mark.slow
def test_threads_of_a_call(processes: Session) -> None:
    """They read broadcast values, and submit calls in the context of theirs."""
    shared = processes.broadcast({"one": 1})

    def parent(copies_context: bool) -> list[int]:
        def child(i: int) -> int:
            return shared.value["one"] + processes.submit(abs, -i).result()

        contexts = [contextvars.copy_context() for _ in range(3)]
        runs = [context.run if copies_context else _plainly for context in contexts]
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            return list(threads.map(lambda i: runs[i](child, i), range(3)))

    assert [1, 2, 3] == processes.submit(parent, True).result(WAIT_S)
    with pytest.raises(ClusterError, match="copy_context"):
        processes.submit(parent, False).result(WAIT_S)


def _plainly(fn: Callable[[int], int], i: int) -> int:
    return fn(i)


@pytest.mark.slow
def test_a_deep_chain_of_calls(session: Session) -> None:
    """Deeper than one stack could hold."""

    def down(n: int) -> int:
        return 0 if n == 0 else 1 + session.submit(down, n - 1).result()

    assert 150 == session.submit(down, 150).result(WAIT_S)


def test_a_wide_tree_of_calls_that_wait_in_all_ways(session: Session) -> None:
    """By map, as_completed, wait, callbacks and polling; two levels, all slots held by parents."""

    def double(x: int) -> int:
        return 2 * x

    def parent(kind: str) -> int:
        if kind == "map":
            return sum(session.map(double, range(20), chunksize=1))
        if kind == "unordered":
            return sum(session.map(double, range(20), chunksize=3, ordered=False))
        futures = [session.submit(double, x) for x in range(20)]
        if kind == "as_completed":
            return sum(future.result() for future in concurrent.futures.as_completed(futures))
        if kind == "poll":
            while not all(future.done() for future in futures):
                time.sleep(0.001)
        if kind == "wait":
            concurrent.futures.wait(futures)
        if kind == "callback":
            left = threading.Semaphore(0)
            for future in futures:
                future.add_done_callback(lambda _: left.release())
            for _ in futures:
                left.acquire()
        if kind == "shutdown":
            with session.executor() as executor:
                futures = [executor.submit(double, x) for x in range(20)]
        return sum(future.result() for future in futures)

    kinds = ["map", "unordered", "as_completed", "poll", "wait", "callback", "shutdown"] * 3
    futures = [session.submit(parent, kind) for kind in kinds]
    assert [380] * len(kinds) == [future.result(WAIT_S) for future in futures]


def test_a_call_gets_no_more_than_calls(session: Session) -> None:
    """Queries in a call are refused, where calls run in processes of their own."""
    if session._runtime.cluster.status()[0].pid == os.getpid():
        return
    with pytest.raises(OptionError, match="can't be used inside a call"):
        session.submit(lambda: session.sql("SELECT 1")).result(WAIT_S)


# Other people's libraries


def test_an_event_loop_runs_functions_in_the_cluster(session: Session) -> None:
    """`run_in_executor`, gathered; and cancelling a task cancels the call."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        with session.executor() as executor:
            calls = [loop.run_in_executor(executor, pow, 2, n) for n in range(10)]
            return list(await asyncio.gather(*calls))

    assert [2**n for n in range(10)] == asyncio.run(main())


def test_callbacks_may_block(session: Session, tmp_path: Path) -> None:
    """They run beside the cluster's thread, so others go on meanwhile."""
    gate, called = threading.Event(), threading.Event()

    def wait_for(file: Path) -> None:
        while not file.exists():
            time.sleep(0.01)

    def slow(_: object) -> None:
        gate.wait(WAIT_S)
        called.set()

    # A callback of a call that is over would run here, at once.
    future = session.submit(wait_for, tmp_path / "go")
    future.add_done_callback(slow)
    (tmp_path / "go").touch()
    assert 2 == session.submit(abs, -2).result(WAIT_S)
    assert not called.is_set()
    gate.set()
    assert called.wait(WAIT_S)


def test_an_executor_ends_without_the_session(session: Session) -> None:
    """It waits for its calls, or cancels them, and takes no more."""
    with session.executor() as executor:
        future = executor.submit(time.sleep, 0.1)
    assert future.done()
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(abs, 1)
    other = session.executor()
    futures = [other.submit(time.sleep, 0.2) for _ in range(20)]
    other.shutdown(cancel_futures=True)
    assert all(each.done() for each in futures)
    assert 1 == session.submit(abs, -1).result(WAIT_S)


# Deaths


def test_calls_outlive_the_executor_that_ran_them(processes: Session, tmp_path: Path) -> None:
    """They run again elsewhere, and calls that had nothing to do with it are not affected."""

    def once(path: str) -> str:
        if not os.path.exists(path):  # noqa: PTH110
            Path(path).touch()
            os._exit(1)
        return "survived"

    others = [processes.submit(abs, -i) for i in range(200)]
    assert "survived" == processes.submit(once, str(tmp_path / "once")).result(WAIT_S)
    assert list(range(200)) == [each.result(WAIT_S) for each in others]


@pytest.mark.slow
def test_a_call_that_always_kills_its_process_fails_alone(processes: Session) -> None:
    """After four attempts, with their story; other calls of its job return."""

    def deadly(i: int) -> int:
        if i == 3:
            os._exit(9)
        return i

    futures = [processes.submit(deadly, i) for i in range(6)]
    with pytest.raises(TasksLostError, match="lost 4 times"):
        futures[3].result(WAIT_S)
    rest = [future.result(WAIT_S) for i, future in enumerate(futures) if i != 3]
    assert [0, 1, 2, 4, 5] == rest


@pytest.mark.slow
def test_a_call_that_is_blocked_in_c_is_given_up(processes: Session) -> None:
    """Its executor is restarted, once; a cancelled one does not run again."""
    with pytest.raises(TaskTimeoutError):
        processes.executor(timeout=0.2).submit(time.sleep, 300).result(WAIT_S)
    future = processes.submit(time.sleep, 300)
    time.sleep(0.3)
    assert future.cancel()
    found = [processes.submit(abs, -i) for i in range(10)]
    assert list(range(10)) == [each.result(WAIT_S) for each in found]


def _hold(seconds: int) -> None:
    """Keep the interpreter's lock."""
    ctypes.PyDLL(None).sleep(seconds)


def _stop_itself(_: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _break_builtins(_: int) -> None:
    builtins.len = None  # type: ignore[assignment]


@pytest.mark.slow
@pytest.mark.parametrize("function", [_hold, _stop_itself])
def test_a_call_that_silences_its_process_is_given_up(
    processes: Session, function: Callable[[int], None]
) -> None:
    """Its node kills the process at the timeout, and starts another for the next calls."""
    with pytest.raises(TaskTimeoutError, match=r"longer than 0\.5 s, and its process"):
        processes.executor(timeout=0.5).submit(function, 200).result(WAIT_S)
    assert [0, 1, 2] == list(processes.map(abs, [0, -1, -2], timeout=WAIT_S))


@pytest.mark.slow
def test_a_call_that_breaks_python_itself_fails(processes: Session) -> None:
    """Its executors end, instead of waiting for ever with a call that can't be reported."""
    with pytest.raises(TasksLostError, match="_break_builtins failed: task 0 was lost 4 times"):
        processes.submit(_break_builtins, 0).result(WAIT_S)
    assert [0, 1, 2] == list(processes.map(abs, [0, -1, -2]))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_call_without_timeout_that_silences_executors_is_given_up(nodes: int) -> None:
    """After two, with their story; the next query is answered."""
    with minishark.connect(nodes=nodes, executors_per_node=1) as session:
        with pytest.raises(TasksLostError, match="_hold failed: task 0 was lost 2 times") as found:
            session.submit(_hold, 200).result(WAIT_S)
        assert "holds Python's lock (GIL) for long" in str(found.value)
        assert [{"n": 42}] == session.sql("SELECT 42 AS n").collect()
        assert 1 == session.submit(abs, -1).result(WAIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_call_that_kills_its_node_is_given_up(nodes: int) -> None:
    """Also where the scheduler dies with it, and what it knew; the next query is answered."""

    def kill() -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with minishark.connect(nodes=nodes, executors_per_node=1) as session:
        with pytest.raises(TasksLostError, match="kill failed: "):
            session.submit(kill).result(WAIT_S)
        assert [{"n": 42}] == session.sql("SELECT 42 AS n").collect()


@pytest.mark.slow
def test_a_call_that_ignores_its_interrupt_is_interrupted_again(session: Session) -> None:
    """Threads of this process can't be killed, but code that is interrupted often enough ends."""

    def stubborn(times: int) -> None:
        for _ in range(times):
            try:
                while True:
                    time.sleep(0.001)
            except BaseException:  # noqa: BLE001 - also what interrupts it
                continue

    before = threading.active_count()
    with pytest.raises(TaskTimeoutError):
        session.executor(timeout=0.2).submit(stubborn, 3).result(WAIT_S)
    _until(lambda: threading.active_count() <= before)
    assert 1 == session.submit(abs, -1).result(WAIT_S)


@pytest.mark.slow
def test_a_call_outlives_its_own_call_that_is_given_up(session: Session) -> None:
    """With one slot a call runs in the process of the one that waits for it, which goes on."""

    def parent(name: str) -> str:
        future = session.executor(timeout=0.2, prefers=name).submit(time.sleep, 8)
        with pytest.raises(TaskTimeoutError):
            future.result()
        time.sleep(1.5)  # longer than it would take to end the process
        return "done"

    name = session._runtime.cluster.nodes[0]
    future = session.executor(prefers=name).submit(parent, name)
    assert "done" == future.result(WAIT_S)
    assert 1 == session.submit(abs, -1).result(WAIT_S)


@pytest.mark.slow
def test_the_end_of_a_session_is_the_end_of_its_calls() -> None:
    """Their futures fail, and nothing of them is left."""
    with minishark.connect(nodes=1, executors_per_node=1) as session:
        folder = session._runtime.cluster.paths.memory
        futures = [session.submit(time.sleep, 60) for _ in range(3)]
        large = session.submit(len, np.zeros(1_000_000))
    for future in (*futures, large):
        with pytest.raises(ClusterError, match="stopped"):
            future.result(WAIT_S)
    with pytest.raises(ClusterError, match="stopped"):
        session.submit(abs, 1)
    assert not folder.exists()


@pytest.mark.slow
def test_prints_reach_the_user_while_the_task_runs(
    processes: Session, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of a call and of a function over rows, which end when they are told that it was seen."""
    go = tmp_path / "go"

    def waits(rows: Any) -> Any:
        print("begun")  # noqa: T201 - what is tested
        while not go.exists():
            time.sleep(0.05)
        print("over")  # noqa: T201 - what is tested
        return rows

    frame = processes.range(3).map_partitions(waits, "id BIGINT")
    for run in (lambda: processes.submit(waits, 1).result(WAIT_S), frame.collect):
        told = ""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(run)
            while "begun" not in told and not running.done():
                time.sleep(0.05)
                told += capsys.readouterr().err
            assert not running.done()
            go.touch()
            running.result(WAIT_S)
        deadline = time.monotonic() + 10
        while "over" not in told and time.monotonic() < deadline:
            time.sleep(0.05)
            told += capsys.readouterr().err
        words = [line.split()[-1] for line in told.splitlines()]
        assert ["begun", "over"] == words
        go.unlink()


def test_prints_of_tasks_reach_the_user(
    processes: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of calls and of functions over rows, also of those that fail, with the executor's name."""

    def says(word: str) -> None:
        print("called", word)  # noqa: T201 - what is tested
        if word == "wrong":
            raise ValueError(word)

    def counts(rows: Any) -> Any:
        print("has", rows.num_rows, "rows")  # noqa: T201 - what is tested
        return rows

    processes.submit(says, "right").result()
    with pytest.raises(ValueError, match="wrong"):
        processes.submit(says, "wrong").result()
    processes.range(3).map_partitions(counts, "id BIGINT").collect()
    told = ""
    deadline = time.monotonic() + 10
    while told.count("\n") < 3 and time.monotonic() < deadline:
        told += capsys.readouterr().err
    assert ["called right", "called wrong", "has 3 rows"] == [
        re.sub(r"^\(node-\d-e0(r\d+)?\) ", "", line) for line in told.splitlines()
    ]


def test_executors_name_their_attempts_differently(processes: Session, tmp_path: Path) -> None:
    """Though they are copies of one process: what two attempts write has two names."""

    def name(number: int) -> tuple[int, str]:
        from minishark.worker.outputs import attempt_name
        from minishark.worker.protocol import TaskPayload

        (tmp_path / str(number)).touch()
        while not (tmp_path / str(1 - number)).exists():  # so that both executors have one
            time.sleep(0.01)
        return os.getpid(), attempt_name(TaskPayload(index=0, inputs={}))

    futures = [processes.submit(name, number) for number in range(2)]
    named = [future.result(timeout=WAIT_S) for future in futures]
    assert 2 == len({pid for pid, _ in named})
    assert 2 == len({text.split("-")[1] for _, text in named})
