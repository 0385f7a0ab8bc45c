"""Runners, which embedding programs write, and slots: threads that drive one runner each.

A slot takes messages like a machine, but works in a thread of its own and answers SlotDone by the
driver's thread-safe `post`. Outcomes of very short tasks are reported together.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol, assert_never, cast

from machine_kit.addresses import Address
from machine_kit.machine import Envelope, Machine, Message
from sparrow_core.policy import sampling as policy
from sparrow_core.policy.plugins import imported
from sparrow_core.protocol.errors import RunnerError, TaskFailure
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import (
    ForgetJob,
    InterruptTask,
    ReturnTask,
    SlotDone,
    SlotIn,
    SlotReady,
    StartTasks,
    TellOutcomes,
)
from sparrow_core.protocol.types import Assignment, SlotOutcome, TaskKey


class Runner(Protocol):
    """Runs the tasks of one slot; all calls but `cancel` come from the slot's thread."""

    def run(self, job_id: str, shared: bytes, payload: bytes) -> bytes:
        """Run a task.

        Raises:
            TaskFailure: The task failed, with a message for the user. Any other exception is a
                permanent failure, with the traceback as its message.
        """

    def cancel(self) -> None:
        """Make the current `run` return or raise soon; called from another thread.

        May come just before `run` begins its work or just after it has ended, and more than
        once; it must not affect a later `run`.
        """

    def forget(self, job_id: str) -> None:
        """The job is over: free what is cached for it."""

    def close(self) -> None:
        """Release all resources; no more tasks will come."""


RunnerFactory = Callable[[dict[str, str], int], Runner]


def load_factory(path: str) -> RunnerFactory:
    """Import a runner's factory.

    Args:
        path: "module:factory"; `factory(config, slot)` makes the runner of slot number `slot`;
            `config["executor"]` is the name of its executor, and `config["died"]` how often the
            process or its node has died before, if it has one of its own.

    Raises:
        RunnerError: There is no such module or factory, or its import failed.
    """
    return cast("RunnerFactory", imported(path, "runner", RunnerError))


class SlotThread(Machine[SlotIn]):
    """A slot: one thread, one runner, one task at a time."""

    inputs: ClassVar[Any] = SlotIn

    def __init__(
        self,
        address: Address,
        executor: Address,
        make_runner: Callable[[], Runner],
        post: Callable[[Address, Message], None],
        on_broken: Callable[[str], None],
        on_crash: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the thread; it posts SlotReady, or calls `on_broken` with a traceback.

        `on_crash` is called if the thread breaks later, as where a task has changed what Python
        itself stands on: no task of the slot would ever end.
        """
        self.address = address
        self._executor = executor
        self._make_runner = make_runner
        self._post = post
        self._on_broken = on_broken
        self._on_crash = on_crash
        self._tasks: queue.SimpleQueue[StartTasks | ForgetJob | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the next four: only the running task is cancelled
        self._outcomes: list[SlotOutcome] = []  # not reported yet
        self._dropped: dict[TaskKey, bool] = {}  # queued tasks, and whether they were interrupted
        self._runner: Runner | None = None
        self._current: TaskKey | None = None
        self._reported_at = 0.0  # when outcomes were last reported while others waited
        self._thread = threading.Thread(target=self._loop, name=address, daemon=True)
        self._thread.start()

    def on_message(self, msg: SlotIn, now: float) -> list[Envelope]:
        """Pass a message to the thread; never blocks."""
        match msg:
            case StartTasks():
                for task in msg.tasks:
                    self._dropped[TaskKey(msg.job_id, task.task_id, task.attempt)] = False
                self._tasks.put(msg)
            case ForgetJob():
                self._tasks.put(msg)
            case TellOutcomes():
                self._report()
            case ReturnTask():
                self._return(msg.key)
            case InterruptTask():
                with self._lock:
                    if msg.key in self._dropped:
                        self._dropped[msg.key] = True
                    elif self._current == msg.key:
                        self._cancel()
            case _:
                assert_never(msg)
        return []

    def _return(self, key: TaskKey) -> None:
        """Give a task back that has not begun; at once, as a long one may be in front of it."""
        with self._lock:
            if self._dropped.get(key) is not False:
                return
            del self._dropped[key]
            self._outcomes.append(SlotOutcome(key=key, run_s=0.0, result=b"", returned=True))
        self._report()

    def stop(self) -> None:
        """Interrupt the running task and have the thread close its runner; see `join`."""
        self._tasks.put(None)
        with self._lock:
            if self._current is not None:
                self._cancel()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; True if it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _cancel(self) -> None:
        assert self._runner is not None
        self._guard(self._runner.cancel)

    def _loop(self) -> None:
        try:
            self._work()
        except BaseException:
            self._on_crash()
            raise

    def _work(self) -> None:
        try:
            self._runner = runner = self._make_runner()
        except Exception:  # noqa: BLE001 - whatever a runner raises is reported
            self._on_broken(traceback.format_exc())
            return
        self._post(self._executor, SlotReady(self.address))
        while (msg := self._tasks.get()) is not None:
            if isinstance(msg, ForgetJob):
                self._guard(partial(runner.forget, msg.job_id))
            else:
                self._run_all(runner, msg)
            if self._tasks.empty():
                self._report()
        self._guard(runner.close)

    def _run_all(self, runner: Runner, msg: StartTasks) -> None:
        """Run tasks one after the other; report outcomes now and then, and when none is left.

        Those that wait behind others are all very short.
        """
        for task in msg.tasks:
            self._run(runner, msg.job_id, msg.shared, task)
            now = time.perf_counter()
            if now > self._reported_at + policy.REPORT_S:
                self._report()
                self._reported_at = now

    def _report(self) -> None:
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
        if outcomes:
            self._post(self._executor, SlotDone(self.address, tuple(outcomes)))

    @staticmethod
    def _guard(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - a faulty runner must not stop the slot
            traceback.print_exc()

    def _run(self, runner: Runner, job_id: JobId, shared: bytes, task: Assignment) -> None:
        key = TaskKey(job_id, task.task_id, task.attempt)
        with self._lock:
            interrupted = self._dropped.pop(key, None)
            if interrupted is None:
                return  # it was given back
            if interrupted:
                self._outcomes.append(
                    SlotOutcome(key=key, run_s=0.0, result=b"", message="interrupted")
                )
                return
            self._current = key
        started = time.perf_counter()
        result, message, detail, retryable = b"", None, b"", False
        try:
            result = bytes(runner.run(job_id, shared, task.payload))
        except TaskFailure as failure:
            message, detail, retryable = failure.message, failure.detail, failure.retryable
        except BaseException:  # noqa: BLE001 - whatever a task raises is the task's failure
            message = traceback.format_exc()
        run_s = time.perf_counter() - started
        outcome = SlotOutcome(
            key=key, run_s=run_s, result=result, message=message, detail=detail, retryable=retryable
        )
        with self._lock:
            self._current = None
            self._outcomes.append(outcome)
