"""The embedding program's half of a cluster: an IO thread with the client machine and its actor.

Events of jobs are handed to callbacks on the IO thread, in order; callbacks must not block.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import secrets
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, assert_never

from machine_kit.addresses import Address, name_of
from machine_kit.local_driver import CALLER, Caller, LocalDriver
from machine_kit.machine import Envelope, Machine, Tick
from machine_kit.peers import Peers
from machine_kit.ticks import Ticks
from sparrow_core.machines.client import Client, ClientConfig, job_of
from sparrow_core.policy.placement import check_placement
from sparrow_core.protocol.errors import ClusterClosed, ClusterStartError
from sparrow_core.protocol.events import JobEvent, JobFailed, JobFinished
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.messages import (
    CancelJob,
    GetNodes,
    KnownNodes,
    MetricsText,
    Notify,
    SchedulerSilent,
    SetWeights,
    WithdrawTasks,
)
from sparrow_core.protocol.status import ExecutorStatus, NodeStatus, TaskStatus
from sparrow_core.protocol.types import NodeInfo, RunningTask
from sparrow_core.runtime.specs import JobSpec, start_of
from sparrow_core.runtime.transport.observe import observed

OnEvent = Callable[[JobEvent], None]
OnSilent = Callable[[Address, bool], None]

_POLL_STARTING_S = 0.01
_POLL_S = 0.5


_ActorIn = Notify | KnownNodes | SchedulerSilent | MetricsText | Tick


class ClientActor(Machine[_ActorIn]):
    """Hands events of jobs to callbacks and keeps a table of the nodes that schedulers know.

    Machine-like, but with callbacks and a condition variable, so it belongs to the drivers.
    """

    inputs: ClassVar[Any] = _ActorIn

    def __init__(self, address: Address, client: Address, schedulers: Sequence[Address]) -> None:
        self.schedulers = list(schedulers)
        self.known: dict[Address, dict[NodeName, NodeInfo]] = {}
        self.silence_max_s = math.inf  # after which the nodes a scheduler knew are forgotten
        self._heard = Peers[Address]()
        self.pids: dict[int, None] = {}  # of all executors ever heard of
        self.metrics: dict[str, str] = {}  # by process, as last heard
        self.on_scheduler_silent: OnSilent | None = None
        self.changed = threading.Condition()
        self._callbacks: dict[JobId, OnEvent] = {}
        self._tags: dict[JobId, Any] = {}  # of open jobs that have one
        self.address = address
        self.ticks = Ticks(address, _POLL_STARTING_S)
        self._client = client

    def on_message(self, msg: _ActorIn, now: float) -> list[Envelope]:
        match msg:
            case Notify():
                self._notify(msg.job_id, msg.events)
            case KnownNodes():
                with self.changed:
                    self._heard.heard(msg.scheduler, now)
                    self.known[msg.scheduler] = {node.name: node for node in msg.nodes}
                    for node in msg.nodes:
                        self.pids.update((executor.pid, None) for executor in node.executors)
                    self.changed.notify_all()
            case SchedulerSilent():
                if msg.silent:
                    self._doubt(msg.scheduler)
                if self.on_scheduler_silent is not None:
                    _guard(partial(self.on_scheduler_silent, msg.scheduler, msg.silent))
            case MetricsText():
                with self.changed:
                    self.metrics[msg.source] = msg.text
                    self.changed.notify_all()
            case Tick():
                return self._on_tick(msg, now)
            case _:
                assert_never(msg)
        return []

    def _doubt(self, scheduler: Address) -> None:
        """It may have died with its node, of which the others know more."""
        with self.changed:
            if len(self.known) > 1:
                self.known.pop(scheduler, None)

    def gauges(self) -> dict[str, float]:
        return {"client_jobs": len(self._callbacks)}

    def expect(self, job_id: JobId, on_event: OnEvent, tag: Any = None) -> None:
        self._callbacks[job_id] = on_event
        if tag is not None:
            self._tags[job_id] = tag

    def _notify(self, job_id: JobId, events: Sequence[JobEvent]) -> None:
        over = isinstance(events[-1], JobFinished | JobFailed)
        if over:
            self._tags.pop(job_id, None)
        callback = self._callbacks.pop(job_id, None) if over else self._callbacks.get(job_id)
        if callback is None:
            return
        for event in events:
            _guard(partial(callback, event))

    def fail_all(self, kind: str, message: str) -> None:
        """Fail all open jobs; on the IO thread, or after it has ended."""
        for job_id in tuple(self._callbacks):
            self._notify(job_id, (JobFailed(kind, message),))

    def _on_tick(self, msg: Tick, now: float) -> list[Envelope]:
        if not self.ticks.is_due(msg.generation, now):
            return []
        with self.changed:
            for scheduler in self._heard.silent(now, self.silence_max_s):
                self._heard.forget(scheduler)
                self.known.pop(scheduler, None)
        out = [Envelope(to, GetNodes(self._client)) for to in self.schedulers]
        return [*out, self.ticks.next()]

    def info_of(self, name: NodeName) -> NodeInfo:
        """A node as a scheduler last reported it; without executors if none knows it."""
        with self.changed:
            infos = [nodes[name] for nodes in self.known.values() if name in nodes]
        return infos[0] if infos else NodeInfo(name=name, executors=())

    def status_of(self, name: NodeName, pid: int, *, alive: bool) -> NodeStatus:
        """A node's state; one that is not alive has no executors."""
        info = self.info_of(name) if alive else NodeInfo(name=name, executors=())
        executors = tuple(
            ExecutorStatus(name_of(executor.address), executor.pid, executor.slots)
            for executor in info.executors
        )
        return NodeStatus(
            name=name,
            pid=pid,
            executors=executors,
            alive=alive,
            attributes=info.attributes,
            draining=info.draining,
            queued=info.queued,
            running=info.running,
            deaths=info.deaths,
            last_death=info.last_death,
            longest=tuple(self._own(info.longest)),
        )

    def _own(self, tasks: Sequence[RunningTask]) -> Iterator[TaskStatus]:
        """Those of this client's tagged jobs."""
        for task in tasks:
            job_id = job_of(task.key.job_id)
            tag = self._tags.get(job_id)
            if tag is not None:
                yield TaskStatus(
                    tag=tag,
                    job_id=job_id,
                    task_id=task.key.task_id,
                    attempt=task.key.attempt,
                    executor=task.executor,
                    for_s=task.for_s,
                )


def _guard(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a failing callback must not stop the cluster
        traceback.print_exc()


class Cluster(ABC):
    """What all kinds of cluster share: submission, events, and the IO thread."""

    _driver: LocalDriver
    _actor: ClientActor
    _client: Address

    def __init__(self, config: ClientConfig, audit_dir: Path | None) -> None:
        self._client_config = config
        self._audit_dir = str(audit_dir) if audit_dir is not None else None
        self._ids = itertools.count(1)
        self._session = secrets.token_hex(4)
        self._opened = False
        self._closed = False
        self._pid = os.getpid()
        self._close_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def _open(self, driver: LocalDriver, schedulers: Sequence[Address]) -> None:
        self._driver = driver
        self._client = driver.address("client")
        self._actor = ClientActor(driver.address("sink"), self._client, schedulers)
        client = Client(self._client, driver.address("sink"), schedulers, self._client_config)
        driver.host("client", client)
        driver.host("sink", self._actor)
        driver.host(CALLER, Caller())
        self._opened = True

    def _run(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="sparrow-io", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        try:
            with observed(self._driver, "client", self._audit_dir, metrics=False):
                self._driver.run()
        except BaseException:  # noqa: BLE001 - open jobs must fail, not hang
            traceback.print_exc()
            self._closed = True
            self._actor.fail_all("internal", "the cluster's IO thread died; see stderr")

    def submit(self, job: JobSpec, on_event: OnEvent) -> JobId:
        """Start a job. Thread-safe.

        Args:
            job: What to run.
            on_event: Called on the IO thread with each event; the last is JobFinished or
                JobFailed. Must not block.

        Raises:
            InvalidJob: Unknown placement, probe ratio below 1, or duplicate task ids.
            ClusterClosed: The cluster is closed, or was not started.
        """
        check_placement(job.placement, job.probe_ratio, job.tasks)
        if not self._is_running():
            raise ClusterClosed("the cluster is not running")
        job_id = JobId(f"{self._session}.{next(self._ids)}")
        self._actor.expect(job_id, on_event, job.tag)
        try:
            self._driver.post(self._client, start_of(job, job_id))
            if not self._is_running():  # closed meanwhile: nobody else would call back
                self._actor.fail_all("cancelled", "the cluster was closed")
        except BaseException:  # such as Ctrl-C: the caller does not learn the id
            self.cancel(job_id)
            raise
        return job_id

    def _is_running(self) -> bool:
        return self._thread is not None and not self._closed

    def cancel(self, job_id: JobId) -> None:
        """Cancel a job; JobFailed("cancelled") follows unless it is over. Thread-safe."""
        if self._is_running():
            self._driver.post(self._client, CancelJob(job_id))

    @property
    def live_schedulers(self) -> tuple[Address, ...]:
        """Those that are alive, as far as is known."""
        return tuple(self._actor.schedulers)

    def withdraw(self, job_id: JobId, tasks: Sequence[TaskId], *, stop: bool) -> None:
        """Withdraw tasks of a job. Thread-safe.

        Args:
            job_id: The job; no effect if it is over.
            tasks: Those that have not begun do not run.
            stop: Running ones are interrupted, and no event follows for any of the tasks. Without
                it, `TasksReturned` follows with those that had not begun, unless there are none.
        """
        if self._is_running():
            self._driver.post(self._client, WithdrawTasks(job_id, tuple(tasks), stop))

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back on the IO thread; must not block. Thread-safe.

        Work that comes in while that thread is busy can so be handled together.

        Raises:
            ClusterClosed: The cluster is closed, or was not started.
        """
        if not self._is_running():
            raise ClusterClosed("the cluster is not running")
        self._driver.call(partial(_guard, callback))

    def _await(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        problem: Callable[[], str | None] = lambda: None,
    ) -> bool:
        """Wait for a condition on what the actor knows; False after the timeout.

        Raises:
            ClusterStartError: `problem` returned a text.
        """
        deadline = time.monotonic() + timeout_s
        with self._actor.changed:
            while not condition():
                if (text := problem()) is not None:
                    raise ClusterStartError(text)
                if time.monotonic() > deadline:
                    return False
                self._actor.changed.wait(0.05)
        self._actor.ticks.interval_s = _POLL_S
        return True

    def on_scheduler_silent(self, callback: OnSilent) -> None:
        """Subscribe to schedulers falling silent and being heard again.

        Their jobs move to another scheduler by themselves. The callback runs on the IO thread and
        is given the scheduler's address and whether it is silent now.
        """
        self._actor.on_scheduler_silent = callback

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the users' shares of nodes with the policy "fair"; other users have weight 1."""
        ranked = tuple(sorted(weights.items()))
        msg = SetWeights(time.time_ns(), ranked)
        for scheduler in self._actor.schedulers:
            self._driver.post(scheduler, msg)

    @abstractmethod
    def start(self, timeout_s: float = 20.0) -> None:
        """Start; returns when all nodes and executors are registered with all schedulers."""

    @abstractmethod
    def nodes(self) -> tuple[NodeStatus, ...]:
        """All nodes, in the order given; at most about a second old."""

    @abstractmethod
    def _end(self) -> None:
        """Stop everything else, after the IO thread."""

    def close(self) -> None:
        """Stop the cluster; open jobs fail with kind "cancelled".

        Idempotent. Must not be called from a callback. No effect in a forked child: the cluster
        belongs to the parent.
        """
        if os.getpid() != self._pid:
            return
        with self._close_lock:
            self._closed = True
            if self._thread is not None:
                self._driver.stop()
                with contextlib.suppress(RuntimeError):  # Ctrl-C came as it was started
                    self._thread.join()
                self._thread = None
            if not self._opened:
                return  # it was never started
            self._end()
            self._opened = False
            self._actor.fail_all("cancelled", "the cluster was closed")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
