"""Python functions that end, block or exhaust the process that they run in."""

from __future__ import annotations

import bdb
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from processes import until

import minishark
from minishark.errors import ExecutionError
from minishark.session.session import Session

_ROWS = 4000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Session]:
    """Two nodes with one executor process each, and a table in four partitions."""
    with minishark.connect(nodes=2, executors_per_node=1) as session:
        session.create_table("t", pa.table({"a": range(_ROWS)}), partitions=4)
        yield session


@pytest.fixture
def session(cluster: Session) -> Iterator[Session]:
    """The same; still usable afterwards, whatever has happened."""
    yield cluster
    found = cluster.table("t").map_partitions(lambda rows: rows, "a BIGINT")
    assert sum(range(_ROWS)) == found.agg({"a": "sum"}).collect()[0][0]


def _count(session: Session, fn: Callable[[pa.Table], pa.Table]) -> int:
    return session.table("t").map_partitions(fn, "a BIGINT").count()


@pytest.mark.slow
def test_an_executor_dies_while_it_runs_a_function(session: Session, tmp_path: Path) -> None:
    """Its partition is mapped again elsewhere, and the answer is complete."""
    died = tmp_path / "died"

    def die_once(rows: pa.Table) -> pa.Table:
        if rows["a"][0].as_py() == 2000 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    assert _ROWS == _count(session, die_once)
    assert died.exists()


@pytest.mark.slow
def test_a_function_that_always_ends_its_process(session: Session) -> None:
    """It is tried a few times; then a typed error says how often its executor has ended."""

    def leave(rows: pa.Table) -> pa.Table:
        os._exit(3)

    with pytest.raises(ExecutionError, match="task"):
        _count(session, leave)


@pytest.mark.slow
def test_a_function_without_end_of_recursion(session: Session) -> None:
    """Python stops it; the caller gets the RecursionError."""

    def deeper(rows: pa.Table) -> pa.Table:
        return deeper(rows)

    with pytest.raises(RecursionError):
        _count(session, deeper)


def _sleep(rows: pa.Table) -> pa.Table:
    time.sleep(300)
    return rows


def _loop(rows: pa.Table) -> pa.Table:
    while True:
        pass


def _stubborn(rows: pa.Table) -> pa.Table:
    while True:
        try:
            time.sleep(0.01)
        except BaseException:  # noqa: BLE001 - as users write it
            continue


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_sleep, _loop, _stubborn])
def test_ctrl_c_ends_functions_that_do_not_end(
    session: Session, tmp_path: Path, kind: Callable[[pa.Table], pa.Table]
) -> None:
    """The call raises KeyboardInterrupt soon, and the executors are free again."""
    started = tmp_path / "started"

    def run(rows: pa.Table) -> pa.Table:
        started.touch()
        return kind(rows)

    def interrupt() -> None:
        until(started.exists, "the function runs")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        _count(session, run)
    thread.join()


@pytest.mark.slow
def test_prints_do_not_disturb(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    """What functions print goes to stderr, not into answers."""

    def loud(rows: pa.Table) -> pa.Table:
        sys.stdout.write("said\n")
        return rows

    assert _ROWS == _count(session, loud)
    assert "said" not in capfd.readouterr().out


@pytest.mark.slow
def test_nothing_is_left_of_derived_rows() -> None:
    """The session's folders go with it, whatever was kept in them."""
    with minishark.connect(nodes=1, executors_per_node=1) as session:
        session.create_table("t", pa.table({"a": range(_ROWS)}), partitions=2)
        kept = session.table("t").map_partitions(lambda rows: rows, "a BIGINT").persist()
        assert _ROWS == kept.count()
        memory = session._runtime.cluster.store()._paths.memory
        assert list(memory.glob("*/tables/*/0-*.arrow"))
    assert not memory.exists()


@pytest.mark.slow
def test_user_code_that_asks_is_told_at_once_that_nobody_answers(session: Session) -> None:
    """Stdin is empty in executors: input() and a debugger do not wait for ever."""
    with pytest.raises(EOFError):
        session.submit(input).result(timeout=30)
    with pytest.raises(bdb.BdbQuit):
        session.submit(lambda: breakpoint()).result(timeout=30)  # noqa: T100, PLW0108
