"""Runs a stage graph to its end as Sparrow jobs: the IO around the state machine `stage_graph`.

Events arrive on the cluster's thread, which must not block, and are queued. The caller's thread
handles them one at a time, so the graph needs no lock.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from minishark.cluster.backend import Backend, job_error
from minishark.cluster.job_events import (
    Job,
    JobEvent,
    JobFailed,
    JobFinished,
    JobId,
    TaskCompleted,
    TaskFailed,
)
from minishark.errors import TasksLostError
from minishark.query.clock import SYSTEM_CLOCK, Clock, Events
from minishark.query.stage_graph import StageGraph, Submission, TaskOutput
from minishark.worker.protocol import FileSlice, ProblemDetail, TaskProblem, decode_problem

RECOVERIES_MAX = 16
"""The number of losses after which a run gives up."""

# A missing input of the query is not lost at once: its replicas may be about to be copied.
_INPUT_TRIES = 5
_POLL_S = 0.25  # bounds how late lost nodes and cancellations are noticed
_PAUSE_S = 0.01
_PAUSE_MAX_S = 0.8
# Tasks that still write while their folder is removed would leave files behind.
_CANCEL_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class SharedTask:
    """A task that another query ran for this one as well; None for an output if it did not."""

    task: int
    output: TaskOutput | None


OnShared: TypeAlias = Callable[[SharedTask], None]


class Sharing(Protocol):
    """What a run takes from others of outputs that it needs as well (`query/reused.py`)."""

    def adopt(self) -> None:
        """Give the graph outputs that exist already."""

    def shared(self, submission: Submission, tell: OnShared) -> frozenset[int]:
        """The tasks of a submission that other queries run now: told when these have ended."""

    def on_shared(self, submission: Submission, event: SharedTask) -> None:
        """A task has ended that another query ran; the graph has its output, if there is one."""

    def ended(self, submission: Submission) -> None:
        """A submission is over: others may compute what it has not come to."""

    def lost(self, files: Iterable[str]) -> None:
        """Files are gone, or damaged: nobody is to take them any more."""


@dataclass(slots=True)
class _Open:
    """A submission, its job, and the tasks that other queries run; it ends with all of them."""

    submission: Submission
    job_id: JobId | None
    shared: set[int]


class Work(Protocol):
    """What a run consists of: builds its jobs and records their events."""

    def job(self, submission: Submission) -> Job:
        """The job of a submission; all outputs that its tasks read exist."""

    def task_output(self, submission: Submission, event: TaskCompleted) -> TaskOutput:
        """What a task has put out, and where it is stored."""

    def on_event(self, submission: Submission, event: JobEvent) -> None:
        """Record an event of a submission that is still needed."""

    def failure(self, submission: Submission, event: TaskFailed) -> Exception:
        """The exception for a task that failed for good."""

    def inputs_lost(self, files: Sequence[FileSlice]) -> TasksLostError:
        """The exception for lost files that are no task's output."""

    def renew(self) -> None:
        """Something was lost: look up the live nodes again, and make the folders there."""

    def waiting(self) -> None:
        """Called at least once a second; what it raises ends the run."""


@dataclass(slots=True, kw_only=True)
class StageJobs:
    """A run of a graph's stages."""

    graph: StageGraph  # the stages
    backend: Backend  # where jobs run
    work: Work  # builds the jobs
    # Of some nodes, those known to have lost their files.
    lost_nodes: Callable[[Collection[str]], Collection[str]]
    clock: Clock = SYSTEM_CLOCK
    sharing: Sharing | None = None  # None: it computes all that it needs
    recoveries: int = 0  # the number of losses so far
    _jobs: dict[int, _Open] = field(default_factory=dict)
    _events: Events = field(init=False)  # a submission and an event of its job, each
    _inputs_missed: int = 0
    _looked_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._events = self.clock.events()
        self._looked_s = self.clock.now_s()

    def run(self) -> None:
        """Run until the last stage is complete; may be called again if outputs were lost since.

        Raises:
            ExecutionError: a task failed for good, or too much was lost.
            ClusterError: no node is left to run tasks.
        """
        try:
            self._step()
            while not self.graph.is_complete:
                self.work.waiting()
                self._look_for_lost_nodes()
                self._handle_next()
        except BaseException:
            self.cancel()  # also on Ctrl-C: nodes must not go on for nobody
            raise

    def lose(self, files: Sequence[FileSlice], message: str) -> None:
        """Record lost files; `run` computes them again where they are needed.

        Raises:
            TasksLostError: it happens too often, or they are no output of this run.
        """
        if self.sharing is not None:
            self.sharing.lost(item.file for item in files)
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
        # Recover from the first losses at once; later ones may be nodes whose death is not known
        # yet, so back off.
        if self.recoveries > 2:
            self.clock.sleep(min(_PAUSE_MAX_S, _PAUSE_S * 2.0**self.recoveries))
        self.work.renew()

    def _step(self) -> None:
        if self.sharing is not None:
            self.sharing.adopt()
        step = self.graph.step()
        # Cancellations first, so that the slots are free for what is submitted.
        for number in step.cancel:
            opened = self._jobs.pop(number)
            self._cancel(opened)
            self._leave(opened.submission)
        for submission in step.submit:
            tell = partial(_tagged, self._events, submission)
            shared = frozenset[int]()
            if self.sharing is not None:
                shared = self.sharing.shared(submission, tell)
            own = tuple(task for task in submission.tasks if task not in shared)
            job_id = None
            if own:
                job_id = self.backend.submit(self.work.job(replace(submission, tasks=own)), tell)
            self._jobs[submission.number] = _Open(submission, job_id, set(shared))

    def _cancel(self, opened: _Open) -> None:
        if opened.job_id is not None:
            self.backend.cancel(opened.job_id)

    def _look_for_lost_nodes(self) -> None:
        # Asked for, not reported: a job whose inputs are on a dead node fails only by a timeout.
        now = self.clock.now_s()
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
            return  # a late event of a cancelled job
        match event:
            case TaskCompleted():
                self.graph.completed(
                    number, event.task_id, self.work.task_output(submission, event)
                )
                self.work.on_event(submission, event)
                # Stages start when those that they read are complete, so one more task changes
                # nothing, unless it makes the others superfluous.
                if self.graph.has_enough(submission.stage):
                    self._step()
            case SharedTask():
                opened = self._jobs[number]
                opened.shared.discard(event.task)
                if event.output is not None:
                    self.graph.completed(number, event.task, event.output)
                is_over = self._end_if_idle(opened)
                assert self.sharing is not None, "who shares tells of it"
                self.sharing.on_shared(submission, event)
                if is_over:
                    self._step()
            case JobFinished():
                opened = self._jobs[number]
                opened.job_id = None
                is_over = self._end_if_idle(opened)
                self.work.on_event(submission, event)
                if is_over:
                    self._step()
            case TaskFailed():
                self._end(submission)
                # The job has failed. Outputs of its completed tasks are kept; the next step submits
                # the others again.
                if missing := missing_files(event):
                    self.lose(missing, event.message)
                elif lacks_folder(event):  # its node restarted: `renew` makes the folders there
                    self._recover(event.message)
                else:
                    raise self.work.failure(submission, event)
                self._step()
            case JobFailed():
                self._end(submission)
                raise job_error(event, f" in stage {submission.stage}")

    def _end_if_idle(self, opened: _Open) -> bool:
        """End a submission if nobody runs its tasks any more; whether that is so."""
        is_idle = opened.job_id is None and not opened.shared
        if is_idle:
            self._end(opened.submission)
        return is_idle

    def _end(self, submission: Submission) -> None:
        self.graph.ended(submission.number)
        self._jobs.pop(submission.number, None)
        self._leave(submission)

    def _leave(self, submission: Submission) -> None:
        # Two queries would wait for each other for ever if each had claimed, and does not compute
        # now, what the other one needs first.
        if self.sharing is not None:
            self.sharing.ended(submission)

    def cancel(self) -> None:
        """Cancel what is still running, and wait briefly until it has ended."""
        waiting, self._jobs = self._jobs, {}
        for opened in list(waiting.values()):
            self._cancel(opened)
            if opened.job_id is None:
                waiting.pop(opened.submission.number)
                self.graph.ended(opened.submission.number)
        deadline = self.clock.now_s() + _CANCEL_WAIT_S
        while waiting and self.clock.now_s() < deadline:
            try:
                submission, event = self._events.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, JobFinished | JobFailed):
                waiting.pop(submission.number, None)
                self.graph.ended(submission.number)


def missing_files(event: TaskFailed) -> tuple[FileSlice, ...]:
    """The files that a failed task did not find; none if it failed otherwise."""
    detail = _detail(event)
    return detail.missing if detail and detail.problem is TaskProblem.INPUT else ()


def lacks_folder(event: TaskFailed) -> bool:
    """Whether a task failed because its node does not have the folders of this run (yet)."""
    detail = _detail(event)
    return detail is not None and detail.problem is TaskProblem.FOLDER


def _detail(event: TaskFailed) -> ProblemDetail | None:
    try:
        return decode_problem(event.detail)
    except msgspec.DecodeError:
        return None


def _tagged(events: Events, submission: Submission, event: JobEvent | SharedTask) -> None:
    events.put((submission, event))
