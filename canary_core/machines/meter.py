"""What a worker has done: counted for all of its life, and told in reports."""

from __future__ import annotations

from collections.abc import Collection

from canary_core.machines.partition import Partition
from canary_core.machines.replica import Replica
from canary_core.machines.snapshot_store import SnapshotStore, by_group
from canary_core.protocol.messages import PartitionLoad, Report


class Meter:
    """Counts a worker's tasks and the time that they take.

    Attributes:
        tasks: All that were run.
        busy_s: The time spent in them.
    """

    def __init__(self) -> None:
        self.tasks = 0
        self.busy_s = 0.0
        self.restart()

    def restart(self) -> None:
        """An epoch begins: what was not reported of the last one never will be."""
        self._reported_at: float | None = None
        self._tasks_told = self.tasks
        self._busy_told_s = self.busy_s

    def is_due(self, now: float, period_s: float) -> bool:
        """Whether to report; the first report is due a period after the first look."""
        if self._reported_at is None:
            self._reported_at = now
        return now - self._reported_at >= period_s

    def report(
        self,
        now: float,
        replica: Replica,
        parts: Collection[Partition],
        held: SnapshotStore,
    ) -> Report:
        """All that has happened since the last report."""
        assert self._reported_at is not None
        groups, news = held.groups(), by_group(held.news)
        report = Report(
            end=replica.end,
            digest=replica.digest,
            busy_s=self.busy_s - self._busy_told_s,
            span_s=now - self._reported_at,
            signals=len(replica.signals),
            tasks=self.tasks - self._tasks_told,
            loads=tuple(
                [PartitionLoad(p.size, p.index, p.first_unrun(replica), p.busy_s) for p in parts]
            ),
            held=news,
            groups={held.stage: groups[held.stage] for held in news},
        )
        held.news.clear()
        self.restart()
        self._reported_at = now
        for part in parts:
            part.busy_s = 0.0
        return report
