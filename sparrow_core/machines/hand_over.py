"""A scheduler's table of jobs that come from another one, which was silent to their clients.

                       nodes are asked (TakeOver)        all have answered (TakenOver), are lost,
    SubmitJob with  ┌─────────────────────────┐          or the time is over
    `replaces` ────▶│ awaited ──▶ answered    │────────────────────────────────▶ placed
                    │  (for each live node)   │
                    └─────────────────────────┘

Bookkeeping only, as the ledger is: the scheduler sends the questions, and places what nobody runs.

Two things outlive the wait. A node that does not answer is asked again after each of its
heartbeats, until it does: it may run tasks of a submission that nobody else knows of. And until it
has answered, it reports these to the old scheduler, so that nothing follows from their absence in
its heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field

from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.messages import SubmitJob
from sparrow_core.protocol.types import JobReport, KeptJob, MovedJob, RunningTask, TaskKey, TaskSpec


@dataclass(slots=True)
class TakingOver:
    """A job while the nodes in `awaited` are to answer.

    Attributes:
        until: When it may no longer be parked.
        running: Attempts that go on, and where.
        done: Tasks that have finished; their results are at the client, or on their way.
    """

    submit: SubmitJob
    until: float
    awaited: dict[NodeName, None]
    running: dict[TaskId, tuple[NodeName, TaskKey]] = field(default_factory=dict)
    done: dict[TaskId, None] = field(default_factory=dict)

    def answered(self, node: NodeName, kept: KeptJob) -> None:
        """Note what a node has, or has reported since it was asked."""
        self.running.update((key.task_id, (node, key)) for key in kept.running)
        self.done.update(dict.fromkeys(kept.done))
        self.awaited.pop(node, None)

    def reported(self, report: JobReport) -> None:
        """Note what has ended since."""
        self.done.update(dict.fromkeys(report.done))
        for task_id in (*report.done, *(loss.task_id for loss in report.lost)):
            self.running.pop(task_id, None)

    def lost(self, node: NodeName) -> None:
        """Note that a node is gone, and what it ran with it."""
        self.awaited.pop(node, None)
        self.running = {id_: at for id_, at in self.running.items() if at[0] != node}

    def presume(self, node: NodeName, running: Sequence[RunningTask]) -> None:
        """Note what a node is taken to run still, by its last heartbeat: it does not answer."""
        for task in running:
            if task.key.job_id in self.submit.replaces:
                self.running.setdefault(task.key.task_id, (node, task.key))

    def sorted_out(
        self,
    ) -> tuple[dict[TaskId, tuple[NodeName, TaskKey]], list[TaskId], tuple[TaskSpec, ...]]:
        """Which of the job's tasks run and where, which are done, and which are to be placed."""
        ids = {task.task_id for task in self.submit.tasks}  # earlier submissions had more
        running = {id_: at for id_, at in self.running.items() if id_ in ids}
        done = [id_ for id_ in self.done if id_ in ids and id_ not in running]
        over = {*running, *done}
        return running, done, tuple(task for task in self.submit.tasks if task.task_id not in over)


class HandOver:
    """The jobs that are being taken over, and what nodes have not answered yet."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, TakingOver] = {}
        self._current: dict[JobId, JobId] = {}  # of each submission, the one that replaces it
        # What nodes have not answered yet; it is sent again after each heartbeat.
        self._unanswered: dict[NodeName, dict[JobId, MovedJob]] = {}
        self._to_ask: dict[JobId, MovedJob] = {}  # for which all nodes are about to be asked

    def begin(self, msg: SubmitJob, until: float, nodes: Iterable[NodeName]) -> bool:
        """Await all nodes; whether they are to be asked, as they were not about to be.

        All of a scheduler's jobs move at once: each node is asked for them in one message.
        """
        assert msg.job_id not in self.jobs, "a job is taken over once"
        self._current.update(dict.fromkeys(msg.replaces, msg.job_id))
        self.jobs[msg.job_id] = TakingOver(msg, until, dict.fromkeys(nodes))
        is_first = not self._to_ask
        self._to_ask[msg.job_id] = MovedJob(msg.job_id, msg.replaces)
        return is_first

    def end(self, job_id: JobId) -> TakingOver | None:
        """Take out a job that is about to be placed, or over; None if it is not here."""
        taking = self.jobs.pop(job_id, None)
        for earlier in taking.submit.replaces if taking is not None else ():
            self._current.pop(earlier, None)
        return taking

    def is_replaced(self, job_id: JobId) -> bool:
        """Whether it is an earlier submission of a job that is here."""
        return job_id in self._current

    # Questions: each gives the jobs that a node is to be asked for now

    def for_all(self) -> dict[JobId, MovedJob]:
        """Those of which no node has been asked."""
        jobs, self._to_ask = self._to_ask, {}
        return jobs

    def for_joined(self, node: NodeName, opened: Iterable[SubmitJob]) -> dict[JobId, MovedJob]:
        """All, and those that were placed already: a node that has just joined may run any."""
        for taking in self.jobs.values():
            taking.awaited[node] = None
        moved = [*opened, *(taking.submit for taking in self.jobs.values())]
        return {msg.job_id: MovedJob(msg.job_id, msg.replaces) for msg in moved}

    def unanswered(self, node: NodeName) -> dict[JobId, MovedJob]:
        """Those of which it was asked, and has not told."""
        return dict(self._unanswered.get(node, {}))

    def asked(self, node: NodeName, jobs: Mapping[JobId, MovedJob]) -> None:
        """Note that a node is to answer for these jobs."""
        self._unanswered.setdefault(node, {}).update(jobs)

    def unheard(self, node: NodeName) -> set[JobId]:
        """The submissions of which a node still reports to the old scheduler."""
        moved = self._unanswered.get(node, {}).values()
        return {earlier for job in moved for earlier in job.replaces}

    # What nodes tell

    def answered(self, node: NodeName, kept: KeptJob) -> TakingOver | None:
        """Note an answer; the job, if it is being taken over still."""
        self._unanswered.get(node, {}).pop(kept.job_id, None)
        taking = self.jobs.get(kept.job_id)
        if taking is not None:
            taking.answered(node, kept)
        return taking

    def reported(self, report: JobReport) -> None:
        """Note what ends while its job is here; of jobs that are over, nothing counts."""
        current = self._current.get(report.job_id)
        if current is not None:
            self.jobs[current].reported(report)

    def lost(self, node: NodeName) -> tuple[TakingOver, ...]:
        """Forget a node; all jobs, as some may have awaited it alone."""
        self._unanswered.pop(node, None)
        for taking in self.jobs.values():
            taking.lost(node)
        return tuple(self.jobs.values())

    def check(self, nodes: KeysView[NodeName]) -> None:
        """Assert that only these nodes owe answers, and that submissions are known both ways."""
        current = {e: id_ for id_, taking in self.jobs.items() for e in taking.submit.replaces}
        assert current == self._current
        assert self._unanswered.keys() <= nodes
        assert all(taking.awaited.keys() <= nodes for taking in self.jobs.values())
