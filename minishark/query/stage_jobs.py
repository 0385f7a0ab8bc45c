"""Runs a graph of stages as jobs, to its end: the input and output around `recovery`.

Events come on the cluster's thread and are handled on the caller's, one at a time.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from minishark.cluster.backend import Backend, JobEvent, job_error
from minishark.errors import TasksLostError
from minishark.query.stage_graph import Made, StageGraph, Submission
from minishark.worker.protocol import FileSlice, ProblemDetail, TaskProblem, decode_problem
from sparrow_core import JobFailed, JobFinished, JobId, JobSpec, TaskCompleted, TaskFailed

RECOVERIES_MAX = 16
"""How often a run may find that something is lost, before it gives up."""

_INPUT_TRIES = 5  # for what no task of the run has put out
_POLL_S = 0.25
_PAUSE_S = 0.01
_PAUSE_MAX_S = 0.8
_CANCEL_WAIT_S = 2.0


class Work(Protocol):
    """What is run: where jobs come from, and who hears of them."""

    def job(self, submission: Submission) -> JobSpec:
        """The job of a submission; everything that its tasks read is there."""
        ...

    def made(self, submission: Submission, event: TaskCompleted) -> Made:
        """What a task has put out."""
        ...

    def heard(self, submission: Submission, event: JobEvent) -> None:
        """Something happened to a submission that is still of use."""
        ...

    def failure(self, submission: Submission, event: TaskFailed) -> Exception:
        """What to raise for a task that failed for good."""
        ...

    def inputs_lost(self, files: Sequence[FileSlice]) -> TasksLostError:
        """What to raise for inputs that are gone and that no task has put out."""
        ...

    def renew(self) -> None:
        """Something was lost: look again which nodes live, and see that they have folders."""
        ...

    def waiting(self) -> None:
        """Called at least every second while the run waits; what it raises ends the run."""
        ...


@dataclass(slots=True)
class StageJobs:
    """A run of a graph's stages.

    Attributes:
        graph: the stages.
        backend: where jobs run.
        work: what the jobs are.
        lost_nodes: those of some nodes whose files are gone, as far as is known.
        recoveries: how often something was found to be lost.
    """

    graph: StageGraph
    backend: Backend
    work: Work
    lost_nodes: Callable[[Collection[str]], Collection[str]]
    recoveries: int = 0
    _jobs: dict[int, tuple[Submission, JobId]] = field(default_factory=dict)
    _events: queue.SimpleQueue[tuple[Submission, JobEvent]] = field(
        default_factory=queue.SimpleQueue
    )
    _inputs_missed: int = 0
    _looked_s: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Run until the last stage is complete; again, if something of it was lost since.

        Raises:
            ExecutionError: a task failed for good, or too much was lost.
            ClusterError: there is nobody left to run tasks.
        """
        try:
            self._step()
            while not self.graph.is_complete:
                self.work.waiting()
                self._look_for_lost_nodes()
                self._handle_next()
        except BaseException:
            self.cancel()
            raise

    def lose(self, files: Sequence[FileSlice], message: str) -> None:
        """Note that files are gone, which `run` makes again where they are needed.

        Raises:
            TasksLostError: it happens too often, or no task of this run has put them out.
        """
        unknown = frozenset(self.graph.lost(item.file for item in files))
        if unknown:
            self._inputs_missed += 1
            if self._inputs_missed >= _INPUT_TRIES:
                raise self.work.inputs_lost([item for item in files if item.file in unknown])
        self._recover(message)

    def _recover(self, message: str) -> None:
        self.recoveries += 1
        if self.recoveries > RECOVERIES_MAX:
            raise TasksLostError(
                f"Outputs of tasks were lost {self.recoveries} times; at last: {message}. "
                "Nodes keep dying, or their files are being removed."
            )
        # The first losses cost no time; those that follow may be of what nobody knows yet.
        time.sleep(min(_PAUSE_MAX_S, _PAUSE_S * 2.0**self.recoveries) if self.recoveries > 2 else 0)
        self.work.renew()

    def _step(self) -> None:
        step = self.graph.step()
        for number in step.cancel:
            self.backend.cancel(self._jobs.pop(number)[1])
        for submission in step.submit:
            tell = partial(_tagged, self._events, submission)
            job_id = self.backend.submit(self.work.job(submission), tell)
            self._jobs[submission.number] = (submission, job_id)

    def _look_for_lost_nodes(self) -> None:
        now = time.monotonic()
        if now < self._looked_s + _POLL_S:
            return
        self._looked_s = now
        lost = self.lost_nodes(self.graph.locations())
        if lost and self.graph.lost_on(lost):
            self._recover(f"{', '.join(sorted(lost))} died")
            self._step()

    def _handle_next(self) -> None:
        try:
            submission, event = self._events.get(timeout=_POLL_S)
        except queue.Empty:
            return
        number = submission.number
        if not self.graph.is_open(number):
            return  # its other tasks were not needed
        match event:
            case TaskCompleted():
                self.graph.completed(number, event.task_id, self.work.made(submission, event))
                self.work.heard(submission, event)
                if self.graph.has_enough(submission.stage):
                    self._step()
            case JobFinished():
                self._end(submission)
                self.work.heard(submission, event)
                self._step()
            case TaskFailed():
                self._end(submission)
                if missing := missing_files(event):
                    self.lose(missing, event.message)
                elif lacks_folder(event):
                    self._recover(event.message)
                else:
                    raise self.work.failure(submission, event)
                self._step()
            case JobFailed():
                self._end(submission)
                raise job_error(event, f" in stage {submission.stage}")

    def _end(self, submission: Submission) -> None:
        self.graph.ended(submission.number)
        self._jobs.pop(submission.number, None)

    def cancel(self) -> None:
        """Stop what is still running, and wait a little until it has stopped."""
        waiting, self._jobs = self._jobs, {}
        for _, job_id in waiting.values():
            self.backend.cancel(job_id)
        deadline = time.monotonic() + _CANCEL_WAIT_S
        while waiting and time.monotonic() < deadline:
            try:
                submission, event = self._events.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, JobFinished | JobFailed):
                waiting.pop(submission.number, None)
                self.graph.ended(submission.number)


def missing_files(event: TaskFailed) -> tuple[FileSlice, ...]:
    """The files that a failed task could not find; none if it failed otherwise."""
    detail = _detail(event)
    return detail.missing if detail and detail.problem is TaskProblem.INPUT else ()


def lacks_folder(event: TaskFailed) -> bool:
    """Whether a task failed as its node does not have the folders of this run (yet)."""
    detail = _detail(event)
    return detail is not None and detail.problem is TaskProblem.FOLDER


def _detail(event: TaskFailed) -> ProblemDetail | None:
    try:
        return decode_problem(event.detail)
    except msgspec.DecodeError:
        return None


def _tagged(
    events: queue.SimpleQueue[tuple[Submission, JobEvent]], submission: Submission, event: JobEvent
) -> None:
    events.put((submission, event))
