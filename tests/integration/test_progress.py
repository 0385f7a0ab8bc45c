"""Who looks at a session hears how far queries are, and what the nodes do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

import minishark
from minishark.errors import QueryCancelledError
from minishark.query.progress import QueryProgress
from minishark.session.session import Session


def test_a_handler_hears_of_every_stage_in_order(toy_session: Session) -> None:
    """Stages begin unstarted and end with all tasks done; rows only grow."""
    heard: list[QueryProgress] = []
    toy_session.register_progress_handler(heard.append)
    try:
        answer = toy_session.sql("SELECT k % 3 AS g, count(*) AS n FROM t GROUP BY ALL")
        answer.to_arrow()
    finally:
        toy_session.remove_progress_handler(heard.append)
    stages = [stage.index for stage in heard[0].stages]
    assert [stage.index for stage in answer.metrics().by_stage] == stages
    assert [True] == [stage.started for stage in heard[0].stages][:1]
    assert [False] == [stage.started for stage in heard[0].stages][-1:]
    for index in range(len(stages)):
        done = [(each.stages[index].done, each.stages[index].rows) for each in heard]
        assert sorted(done) == done


def test_a_removed_handler_hears_nothing(toy_session: Session) -> None:
    """After its removal a handler is not called; removing it again does no harm."""
    heard: list[QueryProgress] = []
    toy_session.register_progress_handler(heard.append)
    toy_session.remove_progress_handler(heard.append)
    toy_session.remove_progress_handler(heard.append)
    toy_session.sql("SELECT 1").to_arrow()
    assert [] == heard


def test_a_handler_may_remove_itself(toy_session: Session) -> None:
    """It is not called again, although the query goes on."""
    heard: list[QueryProgress] = []

    def once(progress: QueryProgress) -> None:
        heard.append(progress)
        toy_session.remove_progress_handler(once)

    toy_session.register_progress_handler(once)
    toy_session.sql("SELECT k % 3 AS g, count(*) AS n FROM t GROUP BY ALL").to_arrow()
    assert 1 == len(heard)


def test_handlers_hear_of_rows_that_are_computed_for_the_front_end(toy_session: Session) -> None:
    """Cached rows that a statement of the front end is the first to read are computed in tasks."""
    heard: list[QueryProgress] = []
    cached = toy_session.sql("SELECT k % 3 AS g, count(*) AS n FROM t GROUP BY ALL").cache()
    toy_session.register_progress_handler(heard.append)
    try:
        toy_session._runtime.query_in_front_end(cached.sql())
    finally:
        toy_session.remove_progress_handler(heard.append)
    assert heard


def test_what_a_handler_raises_ends_the_query(toy_session: Session) -> None:
    """The error reaches the caller, and the session goes on."""

    def refuse(progress: QueryProgress) -> None:
        raise ValueError(progress.stages[0].index)

    toy_session.register_progress_handler(refuse)
    try:
        with pytest.raises(ValueError, match="0"):
            toy_session.sql("SELECT count(*) FROM t").to_arrow()
    finally:
        toy_session.remove_progress_handler(refuse)
    assert [{"n": 1}] == toy_session.sql("SELECT 1 AS n").collect()


def test_nodes_tell_their_processes_slots_and_memory(toy_session: Session) -> None:
    """Each node is there with its executors, which hold some memory."""
    nodes = toy_session.nodes()
    assert ["node-0", "node-1"] == [node.name for node in nodes]
    assert all(node.alive and node.pid == os.getpid() for node in nodes)
    assert toy_session.total_slots == sum(node.slots for node in nodes)
    assert all(node.memory_bytes > 1 << 20 for node in nodes)


def _cancelled_soon(session: Session, run: Callable[[], object]) -> None:
    """Cancels the first query as soon as it runs; it must end by that."""
    engine = session._runtime.engine

    def cancel() -> None:
        while not over.wait(0.05):
            for number in sorted(engine.running)[:1]:
                engine.cancel(number)

    over = threading.Event()
    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(QueryCancelledError):
            run()
    finally:
        over.set()
        thread.join()


_ENDLESS = "SELECT sum(a.range * b.range) AS s FROM range(1000000) a, range(1000000) b"


def test_cancelling_a_query_cancels_the_rows_that_it_computes(toy_session: Session) -> None:
    """Rows of `cache` are computed by a query of their own, which the user has not asked for."""
    cached = toy_session.sql(_ENDLESS).cache()
    _cancelled_soon(toy_session, cached.collect)


def test_a_query_in_the_front_end_can_be_cancelled(toy_session: Session) -> None:
    """The page offers it for all that runs."""
    engine, scope = toy_session._runtime.engine, toy_session._runtime.scope

    def run() -> None:
        with engine.observed(_ENDLESS, scope) as observer:
            engine.query_in_front_end(_ENDLESS, scope, observer=observer)

    _cancelled_soon(toy_session, run)
    assert [(1,)] == [tuple(row) for row in toy_session.sql("SELECT 1").collect()]


def test_ctrl_c_while_a_session_stops_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs may take seconds to end; whoever does not wait for them gives up their nodes."""
    session = minishark.connect(nodes=1, in_process=True)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session._runtime.engine.programs, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.stop()
    assert not session._runtime.cluster.paths.memory.exists()
