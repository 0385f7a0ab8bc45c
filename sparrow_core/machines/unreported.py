"""Ends of attempts that schedulers have not been told of yet, because successes are batched."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from machine_kit.addresses import Address
from sparrow_core.protocol.ids import JobId, TaskId
from sparrow_core.protocol.types import Blame, JobReport, Loss, TaskKey


@dataclass(slots=True)
class _Ends:
    """Pending completion reports of a job."""

    done: list[TaskId] = field(default_factory=list)
    lost: list[Loss] = field(default_factory=list)


class Unreported:
    """Pending completion reports by scheduler and job, until a message carries them."""

    def __init__(self) -> None:
        self._jobs: dict[Address, dict[JobId, _Ends]] = {}
        self._urgent: dict[Address, None] = {}

    def add(
        self,
        scheduler: Address,
        key: TaskKey,
        executor: str,
        lost: str | None,
        blame: Blame = Blame.DEATH,
    ) -> None:
        """An attempt has ended; `lost` is why it must be tried again, if so."""
        jobs = self._jobs.setdefault(scheduler, {})
        ends = jobs.get(key.job_id)
        if ends is None:
            ends = jobs[key.job_id] = _Ends()
        if lost is None:
            ends.done.append(key.task_id)
        else:
            ends.lost.append(Loss(key.task_id, key.attempt, executor, lost, blame))
            # A success frees nothing at the scheduler, but a lost task is waiting to be placed.
            self._urgent[scheduler] = None

    def take(self, scheduler: Address) -> tuple[JobReport, ...]:
        """All that is pending for a scheduler; the caller sends it now."""
        self._urgent.pop(scheduler, None)
        return tuple(
            JobReport(job_id, tuple(ends.done), tuple(ends.lost))
            for job_id, ends in self._jobs.pop(scheduler, {}).items()
        )

    def withdraw(self, job_ids: Container[JobId]) -> list[tuple[JobId, TaskId]]:
        """Drop what is pending of these jobs; returns the tasks that have finished."""
        done: list[tuple[JobId, TaskId]] = []
        for jobs in self._jobs.values():
            for job_id in [job for job in jobs if job in job_ids]:
                done += [(job_id, task_id) for task_id in jobs.pop(job_id).done]
        return done

    def urgent(self) -> tuple[Address, ...]:
        """The schedulers for which a lost attempt is pending: a task waits for its next attempt."""
        return tuple(self._urgent)
