"""Submits a job and prints its events."""

from __future__ import annotations

import queue

import click
import msgspec

from sparrow_core.observe.why import explain
from sparrow_core.protocol.events import JobEvent, JobFailed, JobFinished, TaskCompleted
from sparrow_core.runtime.client_actor import Cluster
from sparrow_core.runtime.specs import JobSpec


class Submission:
    """A job and its events."""

    def __init__(self, cluster: Cluster, job: JobSpec) -> None:
        self.failed = False
        self._cluster = cluster
        self._events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        self._results: dict[int, bytes] = {}
        self._job = job
        self._seen: list[JobEvent] = []
        self._job_id = cluster.submit(job, self._events.put)

    def cancel(self) -> None:
        self._cluster.cancel(self._job_id)

    def show(self, *, as_json: bool) -> None:
        """Print until the job ends: events as they come, or results in order of tasks."""
        shown = 0
        while True:
            event = self._events.get()
            self._seen.append(event)
            if as_json:
                click.echo(msgspec.json.encode(event))
            elif isinstance(event, TaskCompleted):
                self._results[event.task_id] = event.result
                while shown in self._results:
                    click.echo(self._results[shown])
                    shown += 1
            if isinstance(event, JobFailed):
                self.failed = True
                lines = (f"{event.kind}: {event.message}", *event.story)
                click.echo("\n  ".join(lines), err=True)
            if isinstance(event, JobFinished | JobFailed):
                return

    def explain(self) -> None:
        """Print why each task ran where it did; after `show`, for a job with `explain`."""
        for _, why in sorted(explain(self._job, self._seen).items()):
            for line in why.lines():
                click.echo(line)
