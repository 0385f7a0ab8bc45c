"""A program from its start to its end: the controller, the workers, and what comes after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from canary_core.errors import CanaryError
from canary_core.protocol.messages import Outcome, Progress
from canary_core.runtime.control import ControlThread
from minishark.errors import ExecutionError
from minishark.session.programs.failures import program_error
from minishark.session.programs.workers import WorkerJobs
from minishark.worker.protocol import WorkerFigures

_END_S = 5.0
_PEACE_S = 2.0  # for workers to hear that the program is over
_CANCELLED_S = 0.2


class ProgramRun:
    """A program that runs, in a thread that ends it; thread-safe.

    Attributes:
        name: what it is called, for people.
        over: set when it has ended, its slots are free and its files are gone.
        failure: what to raise for its result, if it failed.
        result: what its driver returned, else.
        figures: of the workers that have ended in peace.
    """

    def __init__(
        self,
        control: ControlThread,
        finish: Callable[[Outcome], Any],
        clean: Callable[[], None],
    ) -> None:
        """Prepare a program.

        Args:
            control: Its controller.
            finish: Makes the result of a successful outcome, when the workers have ended.
            clean: Called at the end.
        """
        self.over = threading.Event()
        self.name = ""
        self.failure: BaseException | None = None
        self.result: Any = None
        self.figures: tuple[WorkerFigures, ...] = ()
        self._control = control
        self._finish = finish
        self._clean = clean
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self._jobs: WorkerJobs | None = None

    def start(self, jobs: WorkerJobs) -> None:
        """Start the controller, the workers, and the thread that ends them."""
        self._jobs = jobs
        self._control.start()
        threading.Thread(
            target=self._follow, args=(jobs,), name="minishark-program", daemon=True
        ).start()

    def cancel(self) -> None:
        self._control.cancel()

    def fail(self, error: Exception) -> None:
        """End the program for a reason that the controller does not know."""
        self.failure = self.failure or error
        self._control.cancel()

    def await_end(self) -> None:
        """Wait until it is over, for a few seconds at most."""
        self.over.wait(_END_S)

    @property
    def slots(self) -> int:
        """How many slots its workers hold or wait for."""
        return len(self._jobs) if self._jobs is not None else 0

    @property
    def told(self) -> Progress | None:
        """The controller's last report; None before the first."""
        return self._control.progress

    def stage(self) -> int:
        """How far it is, as far as is known."""
        return self.told.stage if self.told is not None else 0

    @property
    def elapsed_s(self) -> float:
        return (self._ended_s or time.monotonic()) - self._began_s

    def _follow(self, jobs: WorkerJobs) -> None:
        """End workers and controller when there is an outcome, make the result, and clean up."""
        try:
            jobs.start()
            self._control.wait(None)
            outcome = self._control.outcome
            in_peace = outcome is not None and outcome.failure is None
            jobs.end(_PEACE_S if in_peace else _CANCELLED_S, _END_S)
            self.figures = jobs.figures
            self._control.close()
            if self.failure is None:
                self.result = self._made(outcome)
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for the result
            self.failure = self.failure or error
        finally:
            jobs.end(0.0, _END_S)
            self._control.close()
            self._clean()
            self._ended_s = time.monotonic()
            self.over.set()

    def _made(self, outcome: Outcome | None) -> Any:
        if outcome is None:
            raise ExecutionError("The program's controller failed; stderr says why.")
        try:
            return self._finish(outcome)
        except CanaryError as error:
            failure = program_error(error)
        raise failure
