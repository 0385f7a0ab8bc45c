"""The Sparrow jobs of a program's workers: followed, replaced, cancelled."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from minishark.cluster.backend import JobEvent
from minishark.errors import ExecutionError, TasksLostError
from minishark.session.programs.workers import WorkerJobs
from minishark.worker.protocol import WorkerFigures, encode
from sparrow_core import (
    JobFailed,
    JobFinished,
    JobId,
    JobSpec,
    SparrowError,
    TaskCompleted,
    TaskFailed,
)

_LOST = JobFailed("task_lost", "its executor died")


class _Backend:
    """Keeps jobs and their callbacks; cancelled ones fail at once if it is told so."""

    def __init__(self, *, obeys: bool = True) -> None:
        self.before_submit: Callable[[], None] = lambda: None
        self.jobs: dict[JobId, Callable[[JobEvent], None]] = {}
        self.cancelled: list[JobId] = []
        self._numbers = itertools.count()
        self._obeys = obeys

    def submit(self, job: JobSpec, on_event: Callable[[JobEvent], None]) -> JobId:
        del job
        self.before_submit()
        job_id = JobId(f"j{next(self._numbers)}")
        self.jobs[job_id] = on_event
        return job_id

    def cancel(self, job_id: JobId) -> None:
        self.cancelled.append(job_id)
        if self._obeys:
            self.jobs[job_id](JobFailed("cancelled", "cancelled"))

    def tell(self, job_id: str, *events: JobEvent) -> None:
        for event in events:
            self.jobs[JobId(job_id)](event)


class _Started:
    """Two jobs of a program whose stage the test sets."""

    def __init__(self, backend: _Backend) -> None:
        self.stage = 0
        self.failures: list[Exception] = []
        self.jobs = WorkerJobs(
            backend, [JobSpec(tasks=())] * 2, lambda: self.stage, self.failures.append
        )
        self.jobs.start()


def _completed(tasks: int) -> tuple[JobEvent, JobEvent]:
    figures = encode(WorkerFigures(tasks, 2, 1, 1.0, 2.0))
    done = TaskCompleted(
        task_id=0, result=figures, node="n", executor="e", attempt=1, queue_s=0.0, run_s=1.0
    )
    return done, JobFinished()


def test_workers_that_end_are_waited_for() -> None:
    """Nothing is cancelled, and their figures are kept."""
    backend = _Backend()
    started = _Started(backend)
    assert 2 == len(started.jobs)
    backend.tell("j0", *_completed(3))
    threading.Timer(0.1, backend.tell, ("j1", *_completed(4))).start()
    started.jobs.end(10.0, 0.0)
    assert [] == backend.cancelled
    assert (3, 4) == tuple(each.tasks for each in started.jobs.figures)
    assert [] == started.failures
    assert 0 == len(started.jobs)


def test_a_lost_worker_is_replaced_while_the_program_gets_on() -> None:
    """The job that takes its place counts as its own; one that gets nowhere ends the program."""
    backend = _Backend()
    started = _Started(backend)
    started.stage = 7
    backend.tell("j1", _LOST)
    assert ["j0", "j1", "j2"] == list(backend.jobs)
    assert [] == started.failures
    backend.tell("j2", _LOST)
    assert ["j0", "j1", "j2"] == list(backend.jobs)
    assert [TasksLostError] == [type(each) for each in started.failures]
    assert 1 == len(started.jobs)


def test_a_replacement_that_comes_too_late_is_cancelled() -> None:
    """The program ends while a job takes another's place: no worker is left behind."""
    backend = _Backend()
    started = _Started(backend)
    started.stage = 7
    backend.before_submit = lambda: started.jobs.end(0.0, 0.0)
    backend.tell("j1", _LOST)
    assert ["j0", "j2"] == backend.cancelled
    assert 0 == len(started.jobs)


def test_a_cluster_that_takes_no_replacement_ends_the_program() -> None:
    backend = _Backend()
    started = _Started(backend)
    started.stage = 7

    def refuse() -> None:
        raise SparrowError("closed")

    backend.before_submit = refuse
    backend.tell("j1", _LOST)
    assert [SparrowError] == [type(each) for each in started.failures]
    assert 1 == len(started.jobs)


def test_a_task_that_fails_ends_the_program() -> None:
    """Only once, though the job fails too when it is not to be replaced."""
    backend = _Backend()
    started = _Started(backend)
    backend.tell("j0", TaskFailed(0, "it broke", b"", "n", "e"))
    assert [ExecutionError] == [type(each) for each in started.failures]
    assert "it broke" in str(started.failures[0])


@pytest.mark.parametrize("obeys", [True, False])
def test_workers_that_do_not_end_are_cancelled(obeys: bool) -> None:
    """And waited for, but not for ever; what they report then is no failure."""
    backend = _Backend(obeys=obeys)
    started = _Started(backend)
    backend.tell("j0", *_completed(1))
    started.jobs.end(0.05, 0.1)
    assert ["j1"] == backend.cancelled
    assert (0 if obeys else 1) == len(started.jobs)
    backend.tell("j1", TaskFailed(0, "late", b"", "n", "e"), _LOST)
    assert [] == started.failures
    assert ["j0", "j1"] == list(backend.jobs)
