"""Sparrow's client in a simulated session: which nodes there are, it learns as in production."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from machine_kit.addresses import address
from minishark.cluster.backend import Backend
from minishark.cluster.job_events import JobEvent
from minishark.cluster.joining import client_config
from minishark_lab.simulation.hosts import Hosts
from sparrow_core import JobId, JobSpec, TaskId
from sparrow_core.machines.client import Client
from sparrow_core.protocol.messages import CancelJob, WithdrawTasks
from sparrow_core.runtime.client_actor import ClientActor
from sparrow_core.runtime.specs import start_of

_POLL_S = 0.5
_SILENCE_MAX_S = 5.0
RECOVERY_S = 15.0  # half as long as by default: a history has more waits that end so


class SimulatedBackend(Backend):
    """Sparrow's client machine and its actor, in a session's process."""

    def __init__(self, hosts: Hosts, endpoint: str) -> None:
        self._world = hosts.world
        self._ids = itertools.count(1)
        self._endpoint = endpoint
        self.client = address(endpoint, "client")
        sink = address(endpoint, "sink")
        self.actor = ClientActor(sink, self.client, hosts.schedulers)
        self.actor.ticks.interval_s = _POLL_S
        self.actor.silence_max_s = _SILENCE_MAX_S
        self.machine = Client(self.client, sink, hosts.schedulers, client_config(RECOVERY_S))
        self._world.host(sink, self.actor)
        self._world.host(self.client, self.machine)

    def submit(self, job: JobSpec, on_event: Callable[[JobEvent], None]) -> JobId:
        job_id = JobId(f"{self._endpoint}.{next(self._ids)}")
        self.actor.expect(job_id, on_event, job.tag)
        self._world.post(self.client, start_of(job, job_id))
        return job_id

    def cancel(self, job_id: JobId) -> None:
        self._world.post(self.client, CancelJob(job_id))

    def withdraw(self, job_id: JobId, tasks: Sequence[TaskId], *, stop: bool) -> None:
        self._world.post(self.client, WithdrawTasks(job_id, tuple(tasks), stop))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._world.call(self._world.now, callback)
