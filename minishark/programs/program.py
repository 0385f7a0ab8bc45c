"""Program: what users hold of a program that runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from canary_core.errors import CanaryError
from canary_core.protocol.messages import Outcome, Progress
from canary_core.runtime.control import ControlThread
from minishark.errors import ExecutionError
from minishark.programs.failures import program_error
from minishark.programs.workers import WorkerJobs
from minishark.worker.protocol import WorkerFigures

_END_S = 5.0
_PEACE_S = 2.0  # for workers to hear that the program is over
_CANCELLED_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramProgress:
    """How far a program is.

    Attributes:
        stage: the stages that its slowest worker has completed.
        iterations: the signals that its driver has got.
        tasks: the tasks that have run, those that a rollback repeated included.
        workers: how many workers take part.
        snapshot: the stage of the last complete snapshot; None before the first.
        migrations: how many partitions have moved.
        rollbacks: how often it went back to a snapshot, or to its start.
        elapsed_s: seconds since it was submitted.
    """

    stage: int = 0
    iterations: int = 0
    tasks: int = 0
    workers: int = 0
    snapshot: int | None = None
    migrations: int = 0
    rollbacks: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFigures:
    """What a program took.

    Attributes:
        progress: as it was at the end.
        tasks: how many tasks the workers ran; of those that died, it is not known.
        busy_s: the seconds that they spent in batches of tasks.
        cpu_s: the CPU time of the workers' threads.
    """

    progress: ProgramProgress
    tasks: int
    busy_s: float
    cpu_s: float

    @property
    def control_share(self) -> float:
        """The part of the workers' CPU time outside batches of tasks, from 0 to 1."""
        return max(0.0, 1 - self.busy_s / self.cpu_s) if self.cpu_s else 0.0


class Program:
    """A program that runs in the cluster; `Session.program` starts it. Thread-safe."""

    def __init__(
        self,
        name: str,
        control: ControlThread,
        finish: Callable[[Outcome], Any],
        clean: Callable[[], None],
    ) -> None:
        self.name = name
        self._control = control
        self._finish = finish
        self._clean = clean
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._result: Any = None
        self._workers: tuple[WorkerFigures, ...] = ()
        self._jobs: WorkerJobs | None = None

    def __repr__(self) -> str:
        now = self.progress
        state = "over" if self.done() else f"{now.workers} workers"
        return (
            f"<Program {self.name}: iteration {now.iterations}, stage {now.stage}, {state}, "
            f"{now.elapsed_s:.1f} s>"
        )

    # What users call

    def result(self, timeout: float | None = None) -> Any:
        """Wait for what the driver returned, with values in the places of handles.

        A single becomes its value, any other handle the list of its parts. If the program was
        started with `into`, the result is that table, as a DataFrame.

        Ctrl-C in the meantime cancels the program.

        Args:
            timeout: seconds; None waits as long as it takes. The program goes on after it.

        Raises:
            TimeoutError: it still runs.
            FunctionError: a function or the driver raised what can't be pickled; otherwise that
                exception itself, with stage, partition and traceback in a note.
            ProgramError: the driver misuses `run`, or is not deterministic.
            QueryCancelledError: it was cancelled.
            TasksLostError: its workers died too often, or all at once.
        """
        try:
            is_over = self._over.wait(timeout)
        except BaseException:  # Ctrl-C
            self.cancel()
            self._over.wait(_END_S)
            raise
        if not is_over:
            raise TimeoutError(f"{self!r} still runs after {timeout:g} s.")
        if self._failure is not None:
            raise self._failure
        return self._result

    def cancel(self) -> None:
        """End the program; `result` raises QueryCancelledError then. No effect if it is over."""
        self._control.cancel()

    def done(self) -> bool:
        """Whether it is over, and its slots are free."""
        return self._over.is_set()

    @property
    def slots(self) -> int:
        """How many slots its workers hold or wait for."""
        return len(self._jobs) if self._jobs is not None else 0

    def await_end(self) -> None:
        """Wait until it is over, for a few seconds at most."""
        self._over.wait(_END_S)

    @property
    def progress(self) -> ProgramProgress:
        """How far it is, about a tenth of a second ago."""
        elapsed_s = (self._ended_s or time.monotonic()) - self._began_s
        told = self._control.progress
        if told is None:
            told = Progress(stage=0, iterations=0, workers=0, epoch=1, snapshot=0, moves=0, tasks=0)
        # Workers that have ended know better than the controller's last report.
        return ProgramProgress(
            stage=max(told.stage, *(each.stages for each in self._workers), 0),
            iterations=max(told.iterations, *(each.iterations for each in self._workers), 0),
            tasks=max(told.tasks, sum(each.tasks for each in self._workers)),
            workers=max(told.workers, len(self._workers)),
            snapshot=told.snapshot or None,
            migrations=told.moves,
            rollbacks=max(0, told.epoch - 1),
            elapsed_s=elapsed_s,
        )

    @property
    def figures(self) -> ProgramFigures:
        """What it took, complete when it is over."""
        workers = self._workers
        return ProgramFigures(
            progress=self.progress,
            tasks=sum(each.tasks for each in workers),
            busy_s=sum(each.busy_s for each in workers),
            cpu_s=sum(each.cpu_s for each in workers),
        )

    # What starts and ends it

    def run(self, jobs: WorkerJobs) -> None:
        """Start the controller, the workers, and the thread that ends them."""
        self._jobs = jobs
        self._control.start()
        threading.Thread(
            target=self._follow, args=(jobs,), name="minishark-program", daemon=True
        ).start()

    def fail(self, error: Exception) -> None:
        """End the program for a reason that the controller does not know."""
        self._failure = self._failure or error
        self._control.cancel()

    def _follow(self, jobs: WorkerJobs) -> None:
        """End workers and controller when there is an outcome, make the result, and clean up."""
        try:
            jobs.start()
            self._control.wait(None)
            outcome = self._control.outcome
            in_peace = outcome is not None and outcome.failure is None
            jobs.end(_PEACE_S if in_peace else _CANCELLED_S, _END_S)
            self._workers = jobs.figures
            self._control.close()
            if self._failure is None:
                self._result = self._made(outcome)
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for the result
            self._failure = self._failure or error
        finally:
            jobs.end(0.0, _END_S)
            self._control.close()
            self._clean()
            self._ended_s = time.monotonic()
            self._over.set()

    def _made(self, outcome: Outcome | None) -> Any:
        if outcome is None:
            raise ExecutionError("The program's controller failed; stderr says why.")
        try:
            return self._finish(outcome)
        except CanaryError as error:
            failure = program_error(error)
        raise failure
