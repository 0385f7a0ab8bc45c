from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from machine_kit.addresses import Address
from machine_kit.machine import Message
from sparrow_core.policy import sampling
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import (
    InterruptTask,
    ReturnTask,
    SlotDone,
    StartTasks,
    TellOutcomes,
)
from sparrow_core.protocol.types import Assignment, TaskKey
from sparrow_core.runtime.runner import SlotThread

SLOT, EXECUTOR, JOB = Address("e#slot"), Address("e#e"), JobId("job")


class Gated:
    """Returns the payload; of b"wait" only when the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def run(self, job_id: str, shared: bytes, payload: bytes) -> bytes:
        """Run a task."""
        del job_id
        if payload == b"wait":
            assert self.gate.wait(10)
        return shared + payload

    def cancel(self) -> None:
        """Open the gate."""
        self.gate.set()

    def forget(self, job_id: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def slot(runner: Gated) -> Iterator[tuple[SlotThread, queue.SimpleQueue[Message]]]:
    """A slot and what it posts, after it has said that it is ready."""
    posted: queue.SimpleQueue[Message] = queue.SimpleQueue()
    broken: list[str] = []
    thread = SlotThread(
        SLOT, EXECUTOR, lambda: runner, lambda _, msg: posted.put(msg), broken.append
    )
    posted.get(timeout=10)
    try:
        yield thread, posted
    finally:
        thread.stop()
        assert thread.join(10)
        assert [] == broken


def tasks(*payloads: bytes) -> StartTasks:
    """Tasks from 0 on."""
    return StartTasks(JOB, b"s", tuple(Assignment(i, 1, each) for i, each in enumerate(payloads)))


def outcomes(posted: queue.SimpleQueue[Message], count: int) -> list[tuple[int, bytes | str]]:
    """The next outcomes, by task: the result or the error."""
    found: list[tuple[int, bytes | str]] = []
    while len(found) < count:
        msg = posted.get(timeout=10)
        assert isinstance(msg, SlotDone)
        found += [(each.key.task_id, each.message or each.result) for each in msg.outcomes]
    return found


def test_tasks_of_one_message_run_in_their_order() -> None:
    """Each has its outcome, however many messages tell of them."""
    with slot(Gated()) as (thread, posted):
        thread.on_message(tasks(b"a", b"b", b"c"), 0.0)
        assert [(0, b"sa"), (1, b"sb"), (2, b"sc")] == outcomes(posted, 3)


def test_outcomes_can_be_had_while_the_next_task_runs() -> None:
    """A task that takes unexpectedly long keeps none back of those before it."""
    runner = Gated()
    with slot(runner) as (thread, posted):
        thread.on_message(tasks(b"a", b"wait", b"c"), 0.0)
        told: list[tuple[int, bytes | str]] = []
        while not told:
            thread.on_message(TellOutcomes(), 0.0)
            if not posted.empty():
                told = outcomes(posted, 1)
        assert [(0, b"sa")] == told
        runner.gate.set()
        assert [(1, b"swait"), (2, b"sc")] == outcomes(posted, 2)


def test_outcomes_are_collected_while_further_tasks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over messages, too; when none is left, they are reported."""
    monkeypatch.setattr(sampling, "REPORT_S", 0.0)
    runner = Gated()
    with slot(runner) as (thread, posted):
        thread.on_message(tasks(b"a"), 0.0)
        assert [(0, b"sa")] == outcomes(posted, 1)
        monkeypatch.setattr(sampling, "REPORT_S", 3600.0)
        thread._reported_at = time.perf_counter()
        thread.on_message(tasks(b"wait", b"b"), 0.0)
        thread.on_message(StartTasks(JOB, b"s", (Assignment(2, 1, b"c"),)), 0.0)
        runner.gate.set()
        msg = posted.get(timeout=10)
        assert isinstance(msg, SlotDone)
        assert [b"swait", b"sb", b"sc"] == [each.result for each in msg.outcomes]


def test_tasks_that_wait_behind_another_can_be_interrupted() -> None:
    """They do not run when their turn comes."""
    runner = Gated()
    with slot(runner) as (thread, posted):
        thread.on_message(tasks(b"wait", b"b", b"c"), 0.0)
        thread.on_message(InterruptTask(TaskKey(JOB, 1, 1)), 0.0)
        runner.gate.set()
        assert [(0, b"swait"), (1, "interrupted"), (2, b"sc")] == outcomes(posted, 3)


def test_a_task_that_has_not_begun_is_given_back_at_once() -> None:
    """While another one runs in front of it; one that has begun is not."""
    runner = Gated()
    with slot(runner) as (thread, posted):
        tasks = tuple(Assignment(n, 1, payload) for n, payload in enumerate((b"wait", b"b", b"c")))
        thread.on_message(StartTasks(JOB, b"", tasks), 0.0)
        while thread._current is None:
            time.sleep(0.001)
        for number in (1, 0, 1):
            thread.on_message(ReturnTask(TaskKey(JOB, number, 1), Address("c#client"), JOB), 0.0)
        returned = posted.get(timeout=10)
        assert isinstance(returned, SlotDone)
        assert [(1, True)] == [(each.key.task_id, each.returned) for each in returned.outcomes]
        runner.gate.set()
        done: list[tuple[int, bytes]] = []
        while len(done) < 2:
            msg = posted.get(timeout=10)
            assert isinstance(msg, SlotDone)
            done += [(each.key.task_id, each.result) for each in msg.outcomes if not each.returned]
        assert [(0, b"wait"), (2, b"c")] == done
