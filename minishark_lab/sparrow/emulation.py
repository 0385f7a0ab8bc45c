"""An emulated cluster: hundreds of nodes in a few processes, over the real control plane.

with EmulatedCluster(nodes=100, slots=4) as cluster:
times = run_queries(cluster.client, queries)
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from machine_kit.addresses import address
from minishark_lab.harness.experiment import Advance
from minishark_lab.sparrow.emulated_host import HostSettings
from minishark_lab.sparrow.queries import Pending, Query
from sparrow_core.machines.client import ClientConfig
from sparrow_core.observe.audit import AuditEvent, read_events
from sparrow_core.protocol.errors import ClusterStartError, SparrowError
from sparrow_core.protocol.events import JobEvent, JobFailed, JobFinished
from sparrow_core.runtime.client_actor import Cluster
from sparrow_core.runtime.remote import RemoteCluster

_SILENCE_S = 30.0  # nothing dies, but hundreds of nodes share few cores
_START_S = 60.0
_END_S = 10.0
_EVENT_WAIT_S = 60.0


class EmulatedCluster:
    """Nodes and schedulers in a few processes of this machine."""

    def __init__(
        self, *, nodes: int, slots: int, schedulers: int = 2, processes: int = 2,
        seed: int = 1, audited: bool = False,
    ) -> None:  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="sparrow-lab-")
        self._audit_dir = f"{self._folder.name}/audit" if audited else None
        self._nodes = nodes
        names = [f"scheduler-{number}" for number in range(schedulers)]
        schedulers_at = f"ipc://{self._folder.name}/schedulers.sock"
        self._addresses = tuple(address(schedulers_at, name) for name in names)
        self._children: list[subprocess.Popen[bytes]] = []

        host = partial(
            HostSettings, folder=self._folder.name, slots=slots, schedulers=self._addresses,
            heartbeat_s=max(0.5, 0.01 * nodes), seed=seed, audit_dir=self._audit_dir,
        )  # fmt: skip
        every = tuple(f"n{number}" for number in range(nodes))
        self._hosts = [
            host(name="schedulers", own_schedulers=tuple(names)),  # all in one process
            *(host(name=f"nodes-{n}", nodes=every[n::processes]) for n in range(processes)),
        ]
        self.client = RemoteCluster(self._addresses, config=ClientConfig(silence_min_s=_SILENCE_S))

    def __enter__(self) -> Self:
        """Start all processes; returns when every scheduler knows every node."""
        try:
            for settings in self._hosts:
                self._children.append(_start(settings))
            self.client.start(_START_S)
            self._await_nodes()
        except BaseException:
            self.close()
            raise
        return self

    def _await_nodes(self) -> None:
        deadline = time.monotonic() + _START_S
        while set(self.client.schedulers().values()) != {self._nodes}:
            dead = any(child.poll() is not None for child in self._children)
            if dead or time.monotonic() > deadline:
                raise ClusterStartError("the emulated nodes do not come up")
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        self.client.close()
        children, self._children = self._children, []
        for child in children:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        for child in children:
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def end_and_read_audit(self) -> list[AuditEvent]:
        """Stop all processes; returns the events of their audit logs, in order of time."""
        assert self._audit_dir is not None, "made without audit"
        self._end()
        return read_events(sorted(Path(self._audit_dir).glob("*.jsonl")))


def _start(settings: HostSettings) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    child = subprocess.Popen(
        [sys.executable, "-m", "minishark_lab.sparrow.emulated_host"],
        stdin=subprocess.PIPE, env=environment, start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(msgspec.json.encode(settings) + b"\n")
        child.stdin.flush()
    return child


def run_queries(
    cluster: Cluster, queries: Sequence[Query], advance: Advance = lambda _: None
) -> list[float]:
    """Submit queries, in order of time, at their times; returns response times in seconds."""
    # An open loop: late answers do not delay later queries.
    return _QueryRuns(cluster, queries, advance).run()


class _QueryRuns:
    def __init__(self, cluster: Cluster, queries: Sequence[Query], advance: Advance) -> None:
        self._cluster = cluster
        self._pending = [Pending(query) for query in queries]
        self._advance = advance
        self._events: queue.SimpleQueue[tuple[int, int, JobEvent, float]] = queue.SimpleQueue()
        self._times_s = [0.0] * len(queries)

    def run(self) -> list[float]:
        order = itertools.count()
        due = [(each.query.at_s, next(order)) for each in self._pending]
        heapq.heapify(due)
        started = time.perf_counter()
        left = len(self._pending)
        while left:
            wait_s = due[0][0] - (time.perf_counter() - started) if due else _EVENT_WAIT_S
            try:
                event = self._events.get(timeout=max(1e-4, wait_s))
            except queue.Empty:
                if not due:
                    raise SparrowError("the emulated cluster has fallen silent") from None
                self._submit_ready(heapq.heappop(due)[1])
                continue
            left -= self._handle(started, *event)
        return self._times_s

    def _handle(
        self, started: float, number: int, stage: int, event: JobEvent, at_s: float
    ) -> bool:
        """Handle the end of a stage; returns whether its query is over."""
        if isinstance(event, JobFailed):
            raise SparrowError(f"an emulated job failed: {event.message}")
        if not self._pending[number].finish(stage):
            self._submit_ready(number)
            return False
        # Measured from the due time, so that late submissions count as delay.
        self._times_s[number] = at_s - started - self._pending[number].query.at_s
        self._advance(1 / len(self._pending))
        return True

    def _submit_ready(self, number: int) -> None:
        for index, stage in self._pending[number].ready():
            self._cluster.submit(stage.job, partial(self._on_event, number, index))

    def _on_event(self, number: int, stage: int, event: JobEvent) -> None:
        if isinstance(event, JobFinished | JobFailed):
            self._events.put((number, stage, event, time.perf_counter()))
