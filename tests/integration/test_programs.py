"""`session.program`: iterative programs in a session's slots, over its tables."""

from __future__ import annotations

import operator
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from iterative import endless, exchange, failing, failing_driver, logistic, rank, slow_sum
from processes import program, until

import minishark
from canary_core import Run, run_sequentially
from minishark.errors import (
    CatalogError,
    DataError,
    FunctionError,
    OptionError,
    ProgramError,
    QueryCancelledError,
    ResourceError,
    TasksLostError,
)
from minishark.query.inputs import partition_slices
from minishark.session.programs.program import Program, ProgramProgress
from minishark.session.session import Session
from minishark.worker.program_files import ProgramFiles
from minishark.worker.protocol import StoredPartition

_ROWS = 20_000


def _points() -> pa.Table:
    numbers = np.random.default_rng(1).random((4, _ROWS))
    labels = (numbers.sum(axis=0) > 2).astype(float)
    return pa.table(dict(zip("abcdy", [*numbers, labels], strict=True)))


@pytest.fixture(scope="module", params=["processes", "threads"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Two nodes of one slot each, with a table of three partitions."""
    if request.param == "processes":
        yield request.getfixturevalue("own")
        return
    with minishark.connect(nodes=2, executors_per_node=1, in_process=True) as found:
        found.create_table("points", _points(), partitions=3)
        yield found


@pytest.fixture(scope="module")
def own() -> Iterator[Session]:
    """The same on processes only, for tests that end them, too."""
    with minishark.connect(nodes=2, executors_per_node=1) as found:
        found.create_table("points", _points(), partitions=3)
        yield found


def _expected(session: Session, driver: Any, partitions: int) -> Any:
    """What the sequential runner makes of a program, over the same stored partitions."""
    runtime = session._runtime
    tables = {
        table.name.lower(): tuple(
            StoredPartition(partition_slices(p), p.rows) for p in table.partitions
        )
        for table in runtime.tables.catalog
    }
    files = ProgramFiles(runtime.cluster.store(), "", tables)
    return run_sequentially(driver, partitions=partitions, source=files.table)


def _total(run: Run) -> Any:
    """The sum of the partitions' numbers."""
    return run.reduce(operator.add, run.load(int))


def _same(found: Any, expected: Any) -> None:
    """Equal bit for bit."""
    match expected:
        case np.ndarray():
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes()
        case list() | tuple():
            assert type(found) is type(expected)
            assert len(found) == len(expected)
            for mine, theirs in zip(found, expected, strict=True):
                _same(mine, theirs)
        case dict():
            assert list(found) == list(expected)
            _same(list(found.values()), list(expected.values()))
        case _:
            assert found == expected


@pytest.mark.sample(4)
@pytest.mark.parametrize("partitions", [1, 3, 8])
@pytest.mark.parametrize("driver", [logistic, exchange])
def test_results_are_those_of_the_sequential_program(
    session: Session, driver: Any, partitions: int
) -> None:
    """Bit for bit, for as many partitions as the table has, fewer and more."""
    found = session.program(driver, partitions=partitions).result(60)
    _same(found, _expected(session, driver, partitions))


@pytest.mark.sample(2)
def test_progress_and_figures(session: Session, tmp_path: Path) -> None:
    """Iterations, workers and tasks; the time in tasks is a part of the workers' time."""
    hurry = tmp_path / "hurry"
    running = session.program(slow_sum(0.02, 40, hurry), partitions=4, snapshot_every=10)
    until(lambda: running.progress.iterations > 5, "some iterations")
    assert "slow_sum" not in repr(running)
    assert "driver: iteration" in repr(running)
    assert not running.done()
    hurry.touch()
    running.result(60)
    figures = running.figures
    assert running.done()
    assert "over" in repr(running)
    assert 2 == figures.progress.workers
    assert 40 * 4 * 2 <= figures.tasks
    assert 5 * 4 * 0.02 <= figures.busy_s
    assert 0 <= figures.control_share < 0.9
    assert figures.progress.snapshot is not None


def test_partitions_of_tables_are_mapped(own: Session) -> None:
    """A worker's rows are in a file of the store, not in memory of its own."""

    def maps(rows: pa.Table) -> bool:
        address = rows["a"].chunk(0).buffers()[1].address
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= address < last:
                return line.endswith(".arrow")
        return False

    assert [True] * 5 == own.program(
        lambda run: run.map(maps, run.table("points")), partitions=5
    ).result(60)


@pytest.mark.sample(2)
def test_a_result_becomes_a_table(session: Session) -> None:
    """Its parts are the partitions; SQL joins them back."""
    frame = session.program(rank, partitions=4, into="ranks", replace=True).result(60)
    assert _ROWS == frame.count()
    joined = session.sql(
        "SELECT count(*) AS n, sum(ranks.y - 2 * b) AS d FROM ranks JOIN points ON x = a"
    )
    assert [{"n": _ROWS, "d": 0.0}] == joined.to_arrow().to_pylist()
    with pytest.raises(CatalogError, match="already"):
        session.program(rank, into="ranks")
    before = session.table("ranks").to_arrow()
    with pytest.raises(DataError, match="not a int"):
        session.program(lambda run: run.load(int), into="ranks", replace=True).result(60)
    with pytest.raises(ProgramError, match="one value"):
        session.program(lambda run: 3, into="ranks", replace=True).result(60)
    assert before == session.table("ranks").to_arrow()
    session.drop_table("ranks")


# What goes wrong


@pytest.mark.sample(2)
def test_an_exception_has_its_place(session: Session) -> None:
    """The user's own exception, with call, stage, partition and traceback in a note."""
    with pytest.raises(ZeroDivisionError) as caught:
        session.program(failing, partitions=4).result(60)
    (note,) = caught.value.__notes__
    assert "stage 1, partition 2" in note
    assert "1 // (index - 2)" in note
    assert isinstance(caught.value.__cause__, FunctionError)
    assert 2 == caught.value.__cause__.partition
    with pytest.raises(KeyError) as caught_key:
        session.program(failing_driver).result(60)
    assert "in the driver" in caught_key.value.__notes__[0]
    assert 10 == session.program(_total, partitions=5).result(60)


def test_misuse_is_an_error(session: Session) -> None:
    """Of `run`, of tables, of options."""

    def mixed(run: Run) -> Any:
        return run.map(operator.add, run.load(int), run.single(1))

    with pytest.raises(ProgramError, match="broadcast"):
        session.program(mixed).result(60)
    with pytest.raises(CatalogError, match=r"no table called 'nowhere'.*points"):
        session.program(lambda run: run.table("nowhere")).result(60)
    for wrong in ({"workers": 0}, {"partitions": -1}, {"snapshot_s": 0.0}, {"balancer": "magic"}):
        with pytest.raises(OptionError):
            session.program(failing, **wrong)
    with pytest.raises(OptionError, match="2 slots"):
        session.program(failing, workers=3)
    with pytest.raises(OptionError, match="function"):
        session.program(3)  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(OptionError, match="can't be sent"):
        session.program(lambda run: lock)


def test_a_driver_that_guesses_is_found_out(own: Session) -> None:
    """Its copies call different functions: an error names the stage and both calls."""

    def slowly(value: int) -> int:
        time.sleep(0.01)
        return value

    def guessing(run: Run) -> Any:
        value = run.load(int)
        for _ in range(1_000):  # so long that a second worker has come on a busy machine, too
            value = run.map(operator.neg if secrets.randbits(1) else slowly, value)
            run.signal(bool, run.reduce(operator.add, value))
        return value

    with pytest.raises(ProgramError, match="stage"):
        own.program(guessing, partitions=4).result(60)


@pytest.mark.sample(2)
def test_cancel_leaves_a_usable_session(session: Session, tmp_path: Path) -> None:
    """Also while functions run that do not end; slots are free afterwards."""
    running = session.program(endless(str(tmp_path / "begun")))
    until((tmp_path / "begun").exists, "the first task")
    with pytest.raises(TimeoutError, match=r"still runs after 0\.1 s"):
        running.result(0.1)
    began_s = time.monotonic()
    running.cancel()
    with pytest.raises(QueryCancelledError):
        running.result(30)
    assert time.monotonic() - began_s < 5  # the aim is one second; machines that run tests are busy
    assert 0 == session._runtime.engine.programs.slots
    assert 6 == session.program(
        lambda run: run.reduce(operator.add, run.load(int)), partitions=4
    ).result(60)
    assert _ROWS == session.table("points").count()


@pytest.mark.sample(2)
def test_queries_while_a_program_runs(session: Session, tmp_path: Path) -> None:
    """With a free slot they run as always; without, in the front end, or they say why not."""
    for workers in (1, 2):
        running = session.program(endless(str(tmp_path / f"begun{workers}")), workers=workers)
        until((tmp_path / f"begun{workers}").exists, "the first task")
        frame = session.sql("SELECT count(*) AS n FROM points")
        assert [{"n": _ROWS}] == frame.to_arrow().to_pylist()
        if workers == 2:
            assert any("front end" in text for text in frame.metrics().warnings)
            with pytest.raises(ResourceError, match="hold all slots"):
                session.create_table("more", pa.table({"x": range(20_000)}))
        else:
            session.create_table("more", pa.table({"x": range(20_000)}))
            session.drop_table("more")
        session.create_table("few", pa.table({"x": [1]}))  # the front end stores them
        session.drop_table("few")
        running.cancel()
        with pytest.raises(QueryCancelledError):
            running.result(30)


@pytest.mark.sample(2)
def test_programs_take_turns(session: Session) -> None:
    """Two that want all slots at once both end: workers that come late join."""
    running = [session.program(slow_sum(0.002, 10), partitions=4) for _ in range(3)]
    first, *others = [each.result(60) for each in running]
    for other in others:
        _same(other, first)


# Deaths


def _kill_one(session: Session, killed: set[int]) -> int:
    """Kill an executor that was not killed before."""
    while True:
        pids = [e.pid for n in session.nodes() for e in n.executors if e.pid not in killed]
        if len(pids) == 2:
            victim = pids[len(killed) % 2]
            killed.add(victim)
            os.kill(victim, signal.SIGKILL)
            return victim
        time.sleep(0.02)


def _survive(session: Session, running: Program, kills: int) -> list[float]:
    """Kill workers while a program runs; the seconds until it was as far again as before."""
    killed: set[int] = set()
    took = [_one_death(session, running, killed) for _ in range(kills)]
    return [seconds for seconds in took if seconds is not None]


def _one_death(session: Session, running: Program, killed: set[int]) -> float | None:
    """Kill a worker once there is a new snapshot; None if the program ended before."""

    def comes(what: str, holds: Callable[[ProgramProgress], bool]) -> bool:
        try:
            until(lambda: running.done() or holds(running.progress), what)
        except AssertionError as error:
            error.add_note(f"{running.progress}\n{session.nodes()}\nkilled: {killed}")
            raise
        return not running.done()

    if not comes("both workers", lambda now: now.workers == 2):
        return None
    # Only a snapshot that began with both is held by both.
    before = running.progress.snapshot or 0
    if not comes("a snapshot", lambda now: (now.snapshot or 0) > before):
        return None
    then = running.progress
    _kill_one(session, killed)
    began_s = time.monotonic()
    comes("a rollback", lambda now: now.rollbacks > then.rollbacks)
    comes("what was lost", lambda now: now.stage >= then.stage)
    return time.monotonic() - began_s


@pytest.mark.slow
def test_workers_die(own: Session, tmp_path: Path) -> None:
    """Others take their partitions from the snapshot, new ones join; the result is the same."""
    expected = own.program(slow_sum(0.0, 120), partitions=6).result(60)
    hurry = tmp_path / "hurry"
    running = own.program(slow_sum(0.05, 120, hurry), partitions=6, snapshot_every=10)
    took = _survive(own, running, 2)
    hurry.touch()
    _same(running.result(60), expected)
    assert 2 == len(took)
    assert 2 <= running.progress.rollbacks


@pytest.mark.slow
def test_workers_that_survive_go_on_together() -> None:
    """Three workers, one of which dies: the others exchange data as before."""
    with minishark.connect(nodes=3, executors_per_node=1) as session:
        expected = session.program(slow_sum(0.0, 80), partitions=6).result(60)
        running = session.program(slow_sum(0.003, 80), partitions=6, snapshot_every=40)
        until(lambda: (running.progress.snapshot or 0) > 0, "a snapshot")
        assert 3 == running.progress.workers
        os.kill(session.nodes()[2].executors[0].pid, signal.SIGKILL)
        _same(running.result(60), expected)
        assert 1 <= running.progress.rollbacks


@pytest.mark.sample(2)
def test_progress_while_one_waits(session: Session) -> None:
    """It is told on the way, as a line of text if one likes; an exception there is Ctrl-C."""
    told: list[ProgramProgress] = []
    total, _ = session.program(slow_sum(0.001, 150), partitions=4).result(
        60, on_progress=told.append
    )
    assert total > 0
    assert told[-1].iterations > 0
    assert str(told[-1]).startswith(f"iteration {told[-1].iterations} · stage")
    running = session.program(slow_sum(0.001, 5000), partitions=4)
    with pytest.raises(TimeoutError):
        running.result(0.2, on_progress=told.append)

    def stop(now: ProgramProgress) -> None:
        raise InterruptedError(str(now))

    with pytest.raises(InterruptedError, match="stages/s"):
        running.result(on_progress=stop)
    assert running.done()


@pytest.mark.slow
def test_a_task_that_kills_its_worker(own: Session) -> None:
    """Is tried four times; the error says how they died, and the session stays usable."""

    def deadly(run: Run) -> Any:
        return run.map(lambda index: os._exit(3) if index == 1 else index, run.load(int))

    with pytest.raises(TasksLostError, match="exit status 3"):
        own.program(deadly, partitions=4).result(100)
    assert 6 == own.program(_total, partitions=4).result(60)


@pytest.mark.slow
def test_all_workers_die(own: Session) -> None:
    """The program begins again when new ones have come."""
    driver = slow_sum(0.003, 60)
    expected = own.program(driver, partitions=4).result(60)
    running = own.program(driver, partitions=4, snapshot_every=20)
    until(lambda: running.progress.stage > 50, "some stages")
    for node in own.nodes():
        for executor in node.executors:
            os.kill(executor.pid, signal.SIGKILL)
    _same(running.result(100), expected)
    assert running.progress.rollbacks > 0


@pytest.mark.slow
def test_a_worker_is_suspended(own: Session) -> None:
    """The others take its partitions after seconds, and it joins again when it resumes."""
    driver = slow_sum(0.005, 300)
    expected = own.program(driver, partitions=4).result(100)
    running = own.program(driver, partitions=4, snapshot_every=40)
    until(lambda: running.progress.stage > 100, "some stages")
    victim = own.nodes()[1].executors[0].pid
    os.kill(victim, signal.SIGSTOP)
    try:
        until(lambda: running.progress.rollbacks > 0, "a rollback")
        stage = running.progress.stage
        until(lambda: running.progress.stage > stage + 40, "the other worker goes on")
    finally:
        os.kill(victim, signal.SIGCONT)
    until(lambda: running.done() or running.progress.workers == 2, "it joins again")
    _same(running.result(100), expected)


_SUSPENDED = """
import pickle, sys
sys.path.insert(0, {tests!r})
import minishark
from iterative import slow_sum
with minishark.connect(nodes=2, executors_per_node=1) as session:
    expected = session.program(slow_sum(0.0, 400), partitions=4).result(60)
    running = session.program(slow_sum(0.01, 400), partitions=4, snapshot_every=40)
    print("Running", file=sys.stderr)
    assert pickle.dumps(running.result(100)) == pickle.dumps(expected)
    print("the same", file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("suspended", ["front end", "all"])
def test_the_front_end_is_suspended(suspended: str) -> None:
    """As by Ctrl-Z: its workers wait for it, longer than for one another."""
    with program("-c", _SUSPENDED.format(tests=str(Path(__file__).parent))) as started:
        started.wait_for("Running")
        chosen = [psutil.Process(started.process.pid)]
        if suspended == "all":
            chosen += chosen[0].children(recursive=True)
        for each in chosen:
            each.suspend()
        time.sleep(12)  # sockets give up after eight
        for each in chosen:
            each.resume()
        started.wait_for("the same")


_KILLS = 100


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_deaths(own: Session) -> None:
    """Each costs at most a snapshot's interval and seconds."""
    driver = slow_sum(0.004, 250)
    expected = own.program(driver, partitions=6).result(120)
    took: list[float] = []
    while len(took) < _KILLS:
        running = own.program(driver, partitions=6, snapshot_every=40)
        took += _survive(own, running, 10)
        _same(running.result(120), expected)
    print(f"{len(took)} kills: median {np.median(took):.2f} s, most {max(took):.2f} s")  # noqa: T201
    assert max(took) < 20  # the aim is two; machines that run tests are busy


_PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
import minishark
from iterative import endless
with minishark.connect(nodes=2, executors_per_node=1) as session:
    running = session.program(endless({begun!r}))
    print("Running", file=sys.stderr)
    try:
        running.result()
    except KeyboardInterrupt:
        assert session.sql("SELECT 1 AS x").collect()[0].x == 1
        assert session.program(lambda run: run.load(int), partitions=3).result(30) == [0, 1, 2]
        print("usable", file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["interrupt", "kill"])
def test_the_front_end_ends(end: str, tmp_path: Path) -> None:
    """By Ctrl-C, which leaves a usable session, or by death; nothing remains of either."""
    begun = tmp_path / "begun"
    text = _PROGRAM.format(tests=str(Path(__file__).parent), begun=str(begun))
    with program("-c", text) as started:
        started.wait_for("Running")
        until(begun.exists, "the first task")
        if end == "interrupt":
            took_s = started.interrupt()
            assert "usable" in started.seen, started.seen
            assert took_s < 10
        else:
            started.kill()
        until(lambda: not started.remains(), f"the end of {started.remains()}")
