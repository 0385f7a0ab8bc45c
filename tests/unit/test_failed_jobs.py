"""How a run of jobs ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from minishark.cluster.backend import JobEvent
from minishark.errors import ClusterError
from minishark.query import stage_jobs
from minishark.query.stage_graph import Read, StageGraph, StageNode
from minishark.query.stage_jobs import StageJobs, Work
from sparrow_core import JobFailed, JobFinished, JobId, JobSpec

STAGES = (
    StageNode(index=0, tasks=1),
    StageNode(index=1, tasks=1),
    StageNode(index=2, tasks=1, reads=(Read(0), Read(1))),
)


class Failing:
    """Ends its first job with an error, and others when they are cancelled."""

    def __init__(self) -> None:
        self.tells: list[Callable[[JobEvent], None]] = []
        self.cancelled: list[JobId] = []

    def submit(self, job: JobSpec, on_event: Callable[[JobEvent], None]) -> JobId:
        """Take a job."""
        del job
        self.tells.append(on_event)
        if len(self.tells) == 2:
            self.tells[0](JobFailed("no_nodes", "no node is left"))
        return JobId(f"job-{len(self.tells)}")

    def cancel(self, job_id: JobId) -> None:
        """End a job."""
        self.cancelled.append(job_id)
        self.tells[int(job_id[-1]) - 1](JobFinished())


class AnyWork:
    """Jobs of no content."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Whatever is asked."""
        return lambda *_: None


def test_a_failed_job_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended; only the others are cancelled."""
    monkeypatch.setattr(stage_jobs, "_CANCEL_WAIT_S", 3600.0)
    backend = Failing()
    graph = StageGraph(STAGES)
    run = StageJobs(
        graph=graph,
        backend=cast("Any", backend),
        work=cast("Work", AnyWork()),
        lost_nodes=lambda _: (),
    )
    with pytest.raises(ClusterError, match="no node is left"):
        run.run()
    assert ["job-2"] == backend.cancelled
