"""Nobody waits behind a crowd: queries and calls that come later are next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from processes import until

import minishark
from minishark import Session

CALLS = 40
LIMIT_S = 60.0

Crowd = Callable[[Session, Callable[[int], bool]], object]


@pytest.fixture
def session() -> Iterator[Session]:
    """A session with one slot, so that there is one order in which all runs."""
    with minishark.connect(nodes=1, executors_per_node=1, in_process=True) as opened:
        opened.sql("CREATE TABLE t AS FROM range(1000)")
        yield opened


def call(folder: str, number: int) -> bool:
    """The first call ends when others wait behind it, all later ones when the late one is done."""
    awaited = Path(folder) / ("queued" if number == 0 else "answered")
    deadline = time.monotonic() + LIMIT_S
    while not awaited.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    return awaited.exists()


def submitted(session: Session, each: Callable[[int], bool]) -> object:
    return [session.submit(each, number) for number in range(CALLS)]


def mapped(session: Session, each: Callable[[int], bool]) -> object:
    return session.map(each, range(CALLS), chunksize=1)


def queued(session: Session) -> int:
    return sum(node.queued for node in session._runtime.cluster.status())


@pytest.mark.sample(6)
@pytest.mark.parametrize("crowd", [submitted, mapped])
@pytest.mark.parametrize("late", ["query", "query of another session", "map"])
def test_who_comes_late_is_next(session: Session, tmp_path: Path, crowd: Crowd, late: str) -> None:
    """It is answered while all calls of the crowd but the first stand in the queue."""
    calls = crowd(session, partial(call, str(tmp_path)))
    # Two reservations for each call that waits, on the only node.
    until(lambda: queued(session) >= 2 * (CALLS - 1), "the crowd is queued")
    most = queued(session)
    asker = session.new_session() if late == "query of another session" else session

    def ask() -> int:
        if late == "map":
            return sum(session.map(abs, [-1, -997], chunksize=2))
        (row,) = asker.sql("SELECT max(range) FROM t WHERE range % 7 < 5").collect()
        return int(row[0])

    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask)
        until(lambda: queued(session) > most, "the late one is queued")
        (tmp_path / "queued").touch()
        assert 998 == answer.result(LIMIT_S)
    (tmp_path / "answered").touch()
    if crowd is submitted:
        assert [True] * CALLS == [each.result(LIMIT_S) for each in calls]
    else:
        assert [True] * CALLS == list(calls)
