"""The workers of a program, as long-running Sparrow tasks: one job each.

A job of its own, because a job ends with its first task that fails for good, and workers die one by
one. Sparrow itself tries a lost task again, which is how a fresh worker joins; a job whose attempts
are used up is submitted again as long as the program gets on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from minishark.cluster.backend import Backend, BackendError, job_error, task_error
from minishark.cluster.job_events import JobEvent
from minishark.worker.protocol import WorkerFigures, decode_figures
from sparrow_core import (
    JobFailed,
    JobFinished,
    JobId,
    JobSpec,
    TaskCompleted,
    TaskFailed,
)


class WorkerJobs:
    """Submits the jobs of a program's workers, and follows them to their ends; thread-safe."""

    def __init__(
        self,
        backend: Backend,
        jobs: Sequence[JobSpec],
        stage: Callable[[], int],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Prepare the jobs.

        Args:
            backend: Runs them.
            jobs: One for each worker.
            stage: How far the program is.
            on_failure: Called, perhaps several times, if the program can't go on.
        """
        self._backend = backend
        self._jobs = jobs
        self._stage = stage
        self._on_failure = on_failure
        self._changed = threading.Condition()  # guards what follows
        # All count from the beginning; their ids are known once they are submitted.
        self._open: dict[int, JobId | None] = dict.fromkeys(range(len(jobs)))
        self._began_at: dict[int, int] = {}  # the program's stage when a job was submitted
        self._figures: list[WorkerFigures] = []
        self._ending = False

    def start(self) -> None:
        """Submit all jobs.

        Raises:
            BackendError: the cluster does not take them.
        """
        try:
            for number in range(len(self._jobs)):
                self._submit(number)
        except BaseException:
            with self._changed:
                self._open = {n: job_id for n, job_id in self._open.items() if job_id is not None}
            raise

    def _submit(self, number: int) -> None:
        self._began_at[number] = self._stage()
        self._open[number] = None
        job_id = self._backend.submit(self._jobs[number], partial(self._on_event, number))
        with self._changed:
            if number in self._open:  # else it has ended already
                self._open[number] = job_id
            is_late = self._ending
        if is_late:  # `end` did not know its id
            self._backend.cancel(job_id)

    def _on_event(self, number: int, event: JobEvent) -> None:
        """Follow a job, on the cluster's thread."""
        match event:
            case TaskCompleted():
                self._figures.append(decode_figures(event.result))
            case TaskFailed():
                if not self._ending:
                    self._on_failure(task_error(event))
            case JobFinished():
                self._end(number)
            case JobFailed():
                if not self._is_replaced(number, event):
                    self._end(number)

    def _end(self, number: int) -> None:
        with self._changed:
            self._open.pop(number, None)
            self._changed.notify_all()

    def _is_replaced(self, number: int, event: JobFailed) -> bool:
        """A worker died too often: another takes its place, unless the program gets stuck."""
        if self._ending:
            return False
        if event.kind == "task_lost" and self._stage() > self._began_at[number]:
            try:
                self._submit(number)
            except BackendError as error:
                self._on_failure(error)
            else:
                return True
        else:
            self._on_failure(job_error(event))
        return False

    def __len__(self) -> int:
        """How many jobs have not ended."""
        return len(self._open)

    @property
    def figures(self) -> tuple[WorkerFigures, ...]:
        """Those of the workers that have ended in peace."""
        return tuple(self._figures)

    def end(self, grace_s: float, timeout_s: float) -> None:
        """Wait until all workers have ended by themselves, cancel the others, and wait for them."""
        with self._changed:
            self._ending = True
        if self._await_ends(grace_s):
            return
        with self._changed:
            left = [job_id for job_id in self._open.values() if job_id is not None]
        for job_id in left:
            self._backend.cancel(job_id)
        self._await_ends(timeout_s)

    def _await_ends(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout_s)
