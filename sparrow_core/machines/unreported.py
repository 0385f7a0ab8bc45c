"""What a node has still to tell schedulers: how attempts at their tasks ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparrow_core.protocol.ids import Address, JobId, TaskId
from sparrow_core.protocol.types import JobReport, Loss, TaskKey


@dataclass(slots=True)
class _Ends:
    """Of a job's attempts."""

    done: list[TaskId] = field(default_factory=list)
    lost: list[Loss] = field(default_factory=list)


class Unreported:
    """Ends of attempts by scheduler and job, until they are taken along by a message."""

    def __init__(self) -> None:
        """Start with nothing to tell."""
        self._jobs: dict[Address, dict[JobId, _Ends]] = {}
        self._urgent: dict[Address, None] = {}

    def add(self, scheduler: Address, key: TaskKey, executor: str, lost: str | None) -> None:
        """An attempt has ended; `lost` is why it must be tried again, if so."""
        jobs = self._jobs.setdefault(scheduler, {})
        ends = jobs.get(key.job_id)
        if ends is None:
            ends = jobs[key.job_id] = _Ends()
        if lost is None:
            ends.done.append(key.task_id)
        else:
            ends.lost.append(Loss(key.task_id, key.attempt, executor, lost))
            self._urgent[scheduler] = None

    def take(self, scheduler: Address) -> tuple[JobReport, ...]:
        """What there is to tell a scheduler; it is told now."""
        self._urgent.pop(scheduler, None)
        return tuple(
            JobReport(job_id, tuple(ends.done), tuple(ends.lost))
            for job_id, ends in self._jobs.pop(scheduler, {}).items()
        )

    def urgent(self) -> tuple[Address, ...]:
        """The schedulers that should hear of lost attempts at once."""
        return tuple(self._urgent)
