"""The front end's half of a cluster: what is told to it, its IO thread, and who hears of jobs.

A cluster has an IO thread that runs the front end's client machine; events of jobs come on it, in
order, and must be handled quickly there.
"""

from __future__ import annotations

import itertools
import re
import secrets
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Self, assert_never

from msgspec import Struct

from sparrow_core.client import Client
from sparrow_core.errors import ClusterClosed, ClusterStartError, SparrowError
from sparrow_core.events import JobEvent, JobFailed, JobFinished
from sparrow_core.ids import Address, JobId, NodeName, name_of
from sparrow_core.machine import Envelope
from sparrow_core.messages import (
    CancelJob,
    GetNodes,
    KnownNodes,
    NodeInfo,
    Notify,
    StartJob,
    TaskSpec,
    Tick,
)
from sparrow_core.placement import make_placer
from sparrow_core.transport.local_driver import LocalDriver

OnEvent = Callable[[JobEvent], None]

_POLL_STARTING_S = 0.01
_POLL_S = 0.5


class JobSpec(Struct, frozen=True):
    """A job: independent tasks.

    Attributes:
        tasks: With ids that are unique in the job.
        shared: What all tasks share; it travels to a node once.
        user: On whose behalf.
        placement: "sparrow" or "random".
        probe_ratio: Reservations a task (d of the paper), at least 1.
    """

    tasks: tuple[TaskSpec, ...]
    shared: bytes = b""
    user: str = "default"
    placement: str = "sparrow"
    probe_ratio: float = 2.0


class NodeConfig(Struct, frozen=True):
    """A node to start.

    Attributes:
        name: Letters, digits, "-", "_" and "."; unique.
        executors: How many executors.
        slots: Slots in each executor.
        runner: "module:factory", see `runner.load_factory`.
        runner_config: For the factory.
        orphaned_folders: What the node removes when it ends because its parent was killed.
    """

    name: str
    executors: int
    slots: int
    runner: str
    runner_config: dict[str, str] = {}
    orphaned_folders: tuple[str, ...] = ()


class ExecutorStatus(Struct, frozen=True):
    """An executor as last heard of."""

    name: str
    pid: int
    slots: int


class NodeStatus(Struct, frozen=True):
    """A node as last heard of."""

    name: str
    pid: int
    executors: tuple[ExecutorStatus, ...]
    alive: bool


class Front:
    """The actor that hands events to callbacks and keeps the table of nodes."""

    inputs: ClassVar[Any] = Notify | KnownNodes | Tick

    def __init__(self, address: Address, client: Address, schedulers: Sequence[Address]) -> None:
        self.poll_s = _POLL_STARTING_S
        self.schedulers = list(schedulers)
        self.known: dict[Address, dict[NodeName, NodeInfo]] = {}
        self.pids: dict[int, None] = {}  # of all executors ever heard of
        self.changed = threading.Condition()
        self._callbacks: dict[JobId, OnEvent] = {}
        self._address = address
        self._client = client
        self._generation = 0

    def on_message(self, msg: Notify | KnownNodes | Tick, now: float) -> list[Envelope]:
        """Hand an event to its job's callback, or note what a scheduler knows."""
        del now
        match msg:
            case Notify():
                self._notify(msg.job_id, msg.event)
            case KnownNodes():
                with self.changed:
                    self.known[msg.scheduler] = {node.name: node for node in msg.nodes}
                    for node in msg.nodes:
                        self.pids.update((each.pid, None) for each in node.executors)
                    self.changed.notify_all()
            case Tick():
                return self._on_tick(msg)
            case _:
                assert_never(msg)
        return []

    def check(self) -> None:
        """Nothing to check."""

    def expect(self, job_id: JobId, on_event: OnEvent) -> None:
        """Call `on_event` with the events of a job that is about to start."""
        self._callbacks[job_id] = on_event

    def _notify(self, job_id: JobId, event: JobEvent) -> None:
        over = isinstance(event, JobFinished | JobFailed)
        callback = self._callbacks.pop(job_id, None) if over else self._callbacks.get(job_id)
        if callback is None:
            return
        try:
            callback(event)
        except Exception:  # noqa: BLE001 - a callback's fault is not the cluster's end
            traceback.print_exc()

    def fail_all(self, kind: str, message: str) -> None:
        """Tell all open jobs that they failed; when the IO thread has ended."""
        for job_id in tuple(self._callbacks):
            self._notify(job_id, JobFailed(kind, message))

    def _on_tick(self, msg: Tick) -> list[Envelope]:
        if msg.generation != self._generation:
            return []
        self._generation += 1
        out = [Envelope(to, GetNodes(self._client)) for to in self.schedulers]
        return [*out, Envelope(self._address, Tick(self._generation), self.poll_s)]

    def executors_of(self, name: NodeName) -> tuple[ExecutorStatus, ...]:
        """The executors of a node, as some scheduler last heard of them."""
        with self.changed:
            infos = [nodes[name] for nodes in self.known.values() if name in nodes]
        return tuple(
            ExecutorStatus(name_of(each.address), each.pid, each.slots)
            for each in (infos[0].executors if infos else ())
        )


class Cluster(ABC):
    """What both kinds of cluster share: the front end's half."""

    _driver: LocalDriver
    _front: Front
    _client: Address

    def __init__(self, nodes: Sequence[NodeConfig], *, schedulers: int, seed: int | None) -> None:
        _validate(nodes, schedulers)
        self._configs = tuple(nodes)
        self._scheduler_count = schedulers
        self._seed = seed
        self._ids = itertools.count(1)
        self._session = secrets.token_hex(4)
        self._opened = False
        self._closed = False
        self._close_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def _open(self, driver: LocalDriver, schedulers: Sequence[Address]) -> None:
        """Host the front end on a driver."""
        self._opened = True
        self._driver = driver
        self._client = driver.address("client")
        self._front = Front(driver.address("front"), self._client, schedulers)
        driver.host("client", Client(self._client, driver.address("front"), schedulers))
        driver.host("front", self._front)

    def _run(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="sparrow-io", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        try:
            self._driver.run()
        except BaseException:  # noqa: BLE001 - waiting jobs must hear of it
            traceback.print_exc()
            self._closed = True
            self._front.fail_all("internal", "the cluster's IO thread died; see stderr")

    def submit(self, job: JobSpec, on_event: OnEvent) -> JobId:
        """Start a job; from any thread.

        Args:
            job: What to run.
            on_event: Called on the IO thread with each event; the last is JobFinished or
                JobFailed. Must be quick and not block.

        Raises:
            InvalidJob: Unknown placement, probe ratio below 1, or doubled task ids.
            ClusterClosed: The cluster is closed, or was not started.
        """
        make_placer(job.placement, Random(0), job.probe_ratio, job.tasks)
        if not self._is_running():
            raise ClusterClosed("the cluster is not running")
        job_id = JobId(f"{self._session}.{next(self._ids)}")
        self._front.expect(job_id, on_event)
        start = StartJob(job_id, job.user, job.tasks, job.shared, job.placement, job.probe_ratio)
        self._driver.post(self._client, start)
        if not self._is_running():  # closed meanwhile: make sure that the callback hears of it
            self._front.fail_all("cancelled", "the cluster was closed")
        return job_id

    def _is_running(self) -> bool:
        return self._thread is not None and not self._closed

    def cancel(self, job_id: JobId) -> None:
        """Cancel a job; JobFailed("cancelled") follows unless it is over. From any thread."""
        if self._is_running():
            self._driver.post(self._client, CancelJob(job_id))

    def _await_nodes(self, timeout_s: float, problem: Callable[[], str | None]) -> None:
        """Wait until every scheduler knows every node with all its executors."""
        deadline = time.monotonic() + timeout_s
        with self._front.changed:
            while not self._complete():
                if (text := problem()) is not None:
                    raise ClusterStartError(text)
                if time.monotonic() > deadline:
                    raise ClusterStartError(f"not all nodes registered in {timeout_s:g} s")
                self._front.changed.wait(0.05)
        self._front.poll_s = _POLL_S

    def _complete(self) -> bool:
        known = self._front.known
        return len(known) == self._scheduler_count and all(
            config.name in nodes and len(nodes[NodeName(config.name)].executors) == config.executors
            for nodes in known.values()
            for config in self._configs
        )

    @abstractmethod
    def start(self, timeout_s: float = 20.0) -> None:
        """Start; returns when all nodes and executors are registered with all schedulers."""

    @abstractmethod
    def nodes(self) -> tuple[NodeStatus, ...]:
        """All nodes, in the order given, as last heard of (at most about a second old)."""

    @abstractmethod
    def _end(self) -> None:
        """End everything but the IO thread, which has ended."""

    def close(self) -> None:
        """End all that was started; open jobs fail with kind "cancelled".

        Idempotent. Not to be called from a callback.
        """
        with self._close_lock:
            self._closed = True
            if self._thread is not None:
                self._driver.stop()
                self._thread.join()
                self._thread = None
            if not self._opened:
                return  # it was never started
            self._end()
            self._opened = False
            self._front.fail_all("cancelled", "the cluster was closed")

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def _validate(nodes: Sequence[NodeConfig], schedulers: int) -> None:
    if not nodes or schedulers < 1:
        raise SparrowError("a cluster needs at least one node and one scheduler")
    if len({node.name for node in nodes}) < len(nodes):
        raise SparrowError("two nodes have the same name")
    for node in nodes:
        # Sockets and logs have these names; an executor's is <node>-e<number>.
        if not re.fullmatch(r"(?!front$|.*-e\d)[A-Za-z0-9_][A-Za-z0-9_.-]*", node.name):
            raise SparrowError(f"{node.name!r} cannot be a node's name")
        if node.executors < 1 or node.slots < 1:
            raise SparrowError(f"node {node.name} needs at least one executor and one slot")
