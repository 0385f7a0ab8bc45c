"""Runs jobs on clusters and waits for their events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from sparrow_core import (
    InProcessCluster,
    JobEvent,
    JobFailed,
    JobFinished,
    JobId,
    JobOptions,
    JobSpec,
    LocalCluster,
    NodeConfig,
    NodeName,
    TaskCompleted,
    TaskSpec,
)
from sparrow_core.machines.node_monitor import NodeMonitorConfig

Cluster = InProcessCluster | LocalCluster
LIMIT_S = 30.0


def configs(
    count: int,
    *,
    executors: int = 1,
    slots: int = 1,
    runner: str = "make",
    limits: NodeMonitorConfig = NodeMonitorConfig(),  # noqa: B008 - immutable
    **config: str,
) -> list[NodeConfig]:
    """Nodes n0, n1 ... with the test runner."""
    return [
        NodeConfig(
            name=f"n{number}",
            executors=executors,
            slots=slots,
            runner=f"sparrow_test_runners:{runner}",
            runner_config={"node": f"n{number}", **config},
            limits=limits,
        )
        for number in range(count)
    ]


def task(task_id: int, command: str, *preferred: str) -> TaskSpec:
    """A task for the test runner."""
    return TaskSpec(task_id, command.encode(), tuple(map(NodeName, preferred)))


class Submitted:
    """A job under way and its events so far."""

    def __init__(self, cluster: Cluster, job: JobSpec) -> None:
        self.events: list[JobEvent] = []
        self._over = threading.Event()
        self.job_id: JobId = cluster.submit(job, self._on_event)

    def _on_event(self, event: JobEvent) -> None:
        self.events.append(event)
        if isinstance(event, JobFinished | JobFailed):
            self._over.set()

    def wait(self) -> list[JobEvent]:
        """All events, when the job is over."""
        assert self._over.wait(LIMIT_S), f"the job hangs after {self.events}"
        return self.events

    def results(self) -> dict[int, bytes]:
        """The results by task, of a job that must finish."""
        events = self.wait()
        assert isinstance(events[-1], JobFinished), events
        return {each.task_id: each.result for each in events if isinstance(each, TaskCompleted)}

    def failure(self) -> JobFailed:
        """Why the job failed, as it must."""
        last = self.wait()[-1]
        assert isinstance(last, JobFailed)
        return last


def run(
    cluster: Cluster,
    *tasks: TaskSpec,
    shared: bytes = b"",
    placement: str = "sparrow",
    options: JobOptions | None = None,
) -> Submitted:
    """Submit a job."""
    job = JobSpec(tasks=tasks, shared=shared, placement=placement, options=options or JobOptions())
    return Submitted(cluster, job)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that another process brings about."""
    deadline, pause_s = time.monotonic() + LIMIT_S, 0.005
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.1)  # some conditions look at all processes


def appears(path: Path) -> None:
    """Wait for a file with something in it."""
    until(lambda: path.exists() and path.stat().st_size > 0, f"{path} with content")
