"""Program: what users hold of a program that runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from canary_core.protocol.messages import Progress
from minishark.session.programs.run import ProgramRun

_REFRESH_S = 0.1
# Shows a line, asked for again and again, to who waits in a block.
Shown = Callable[[Callable[[], object]], AbstractContextManager[None]]
_NOTHING_YET = Progress(stage=0, iterations=0, workers=0, epoch=1, snapshot=0, moves=0, tasks=0)


def unseen(_: Callable[[], object]) -> AbstractContextManager[None]:
    """Show nothing."""
    return nullcontext()


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

    def __str__(self) -> str:
        """A line for a user who waits."""
        parts = [f"iteration {self.iterations:,}", f"stage {self.stage:,}"]
        if self.elapsed_s > 0:
            parts.append(f"{self.stage / self.elapsed_s:,.0f} stages/s")
        parts.append(f"{self.workers} workers")
        if self.snapshot is not None:
            parts.append(f"snapshot {self.snapshot:,}")
        for count, noun in ((self.migrations, "migrations"), (self.rollbacks, "rollbacks")):
            if count:
                parts.append(f"{count} {noun}")
        return " · ".join([*parts, f"{self.elapsed_s:.1f} s"])


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

    def __init__(self, name: str, run: ProgramRun, shown: Shown = unseen) -> None:
        self.name = name
        self._run = run
        self._shown = shown

    def __repr__(self) -> str:
        now = self.progress
        state = "over" if self.done() else f"{now.workers} workers"
        return (
            f"<Program {self.name}: iteration {now.iterations}, stage {now.stage}, {state}, "
            f"{now.elapsed_s:.1f} s>"
        )

    def result(
        self,
        timeout: float | None = None,
        *,
        on_progress: Callable[[ProgramProgress], object] | None = None,
    ) -> Any:
        """Wait for what the driver returned, with values in the places of handles.

        A single becomes its value, any other handle the list of its parts. If the program was
        started with `into`, the result is that table, as a DataFrame.

        Ctrl-C in the meantime cancels the program.

        Args:
            timeout: seconds; None waits as long as it takes. The program goes on after it.
            on_progress: called some ten times a second, on the thread that waits; a
                `ProgramProgress` prints as a line. What it raises cancels the program.

        Raises:
            TimeoutError: it still runs.
            FunctionError: a function or the driver raised what can't be pickled; otherwise that
                exception itself, with stage, partition and traceback in a note.
            ProgramError: the driver misuses `run`, or is not deterministic.
            QueryCancelledError: it was cancelled.
            TasksLostError: its workers died too often, or all at once.
        """
        try:
            with self._shown(lambda: f"{self.name}: {self.progress}"):
                is_over = self._wait(timeout, on_progress)
        except BaseException:  # Ctrl-C
            self._run.cancel()
            self._run.await_end()
            raise
        if not is_over:
            raise TimeoutError(f"{self!r} still runs after {timeout:g} s.")
        if self._run.failure is not None:
            raise self._run.failure
        return self._run.result

    def _wait(
        self, timeout: float | None, on_progress: Callable[[ProgramProgress], object] | None
    ) -> bool:
        if on_progress is None:
            return self._run.over.wait(timeout)
        end_s = math.inf if timeout is None else time.monotonic() + timeout
        while not self._run.over.wait(max(0.0, min(_REFRESH_S, end_s - time.monotonic()))):
            if time.monotonic() >= end_s:
                return False
            on_progress(self.progress)
        return True

    def cancel(self) -> None:
        """End the program; `result` raises QueryCancelledError then. No effect if it is over."""
        self._run.cancel()

    def done(self) -> bool:
        """Whether it is over, and its slots are free."""
        return self._run.over.is_set()

    @property
    def progress(self) -> ProgramProgress:
        """How far it is, about a tenth of a second ago."""
        controller, workers = self._run.told or _NOTHING_YET, self._run.figures
        # Workers that have ended know better than the controller's last report.
        return ProgramProgress(
            stage=max(controller.stage, *(worker.stages for worker in workers), 0),
            iterations=max(controller.iterations, *(worker.iterations for worker in workers), 0),
            tasks=max(controller.tasks, sum(worker.tasks for worker in workers)),
            workers=max(controller.workers, len(workers)),
            snapshot=controller.snapshot or None,
            migrations=controller.moves,
            rollbacks=max(0, controller.epoch - 1),
            elapsed_s=self._run.elapsed_s,
        )

    @property
    def figures(self) -> ProgramFigures:
        """What it took, complete when it is over."""
        workers = self._run.figures
        return ProgramFigures(
            progress=self.progress,
            tasks=sum(worker.tasks for worker in workers),
            busy_s=sum(worker.busy_s for worker in workers),
            cpu_s=sum(worker.cpu_s for worker in workers),
        )
