"""The audit log: the history of every job, one JSON object per line.

Everything that machines do is messages, so the log is a tap on a driver: lines are derived from
the messages that machines take and send. Machines are unaware of it, and the simulator writes the
same log as real processes. Events are named as in the original Sparrow's log where it has them.
Each process writes its own file; `report` reads all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from machine_kit.addresses import Address, name_of
from machine_kit.machine import Envelope, Message
from sparrow_core.protocol.events import JobFailed, JobFinished
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import (
    AssignTasks,
    CancelReservations,
    EndJob,
    GetTasks,
    JobAborted,
    Notify,
    RegisterNode,
    Reserve,
    RunTasks,
    StartJob,
    SubmitJob,
    TakenOver,
    TaskResults,
    TasksEnded,
)

_FLUSH_S = 0.2

EVENTS = {
    "client_submitted": "a client got a job of `count` tasks from `user`",
    "client_task_result": "a client got a task's result; the runner took `run_s`",
    "client_finished": "the last event of a job at its client; `text`: why it failed, if so",
    "arrived": "a scheduler got a job; `constraints`: task -> the nodes where it may run",
    "scheduler_launch_enqueue_task": "a scheduler sent `count` reservations to a node",
    "scheduler_assigned_task": "a scheduler bound a task to a node that had asked",
    "scheduler_adopted_task": "a node told a scheduler to which a job moved that it has a task",
    "scheduler_get_task_no_task": "a scheduler had no task for a node that had asked",
    "scheduler_launch_cancellation": "a scheduler withdrew a job's reservations from a node",
    "scheduler_job_ended": "a scheduler ended a job; `text`: why it aborted it, if so",
    "node_monitor_registered": "a node has `count` slots from now on",
    "reservation_enqueued": "`count` reservations of a job arrived at a node",
    "node_monitor_get_task_launch": "a node asked for `count` tasks of a job",
    "node_monitor_get_task_complete": "a node got `count` tasks",
    "node_monitor_get_task_no_task": "a node got no task",
    "node_monitor_task_launch": "a node passed a task to an executor (`text`)",
    "node_monitor_cancellation": "a node dropped a job's reservations",
    "task_completed": "a task's slot is free again; `text`: why the attempt was lost, if so",
}


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of the log."""

    at_s: float  # when, in seconds since 1970 (in the simulator: of its own clock)
    by: str  # the machine that saw it
    event: str  # one of `EVENTS`
    job: str = ""  # the job's id on the wire: `id`, after a failover `id~1` ...
    node: str = ""
    task: int | None = None
    attempt: int = 0  # number of the attempt, from 1
    count: int = 0  # number of tasks, reservations or slots
    user: str = ""
    text: str = ""  # see `EVENTS`
    run_s: float = 0.0
    requires: tuple[str, ...] = ()  # attributes that the job's nodes must have
    constraints: dict[int, tuple[str, ...]] = {}  # task ids to the nodes that they prefer


_New = Callable[..., AuditEvent]


class Audit:
    """A driver's tap: turns messages into events for `write`."""

    def __init__(self, write: Callable[[AuditEvent], None], offset_s: float = 0.0) -> None:
        """Make a tap; `offset_s` is added to the driver's clock."""
        self._write = write
        self._offset_s = offset_s
        self._nodes: dict[Address, NodeName] = {}  # by the address of their node monitors
        self._slots: dict[NodeName, int] = {}

    def __call__(self, at: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        def new(event: str, job: str = "", *where: Any, **figures: Any) -> AuditEvent:
            named = dict(zip(("node", "task", "attempt"), where, strict=False))
            at_s = now + self._offset_s
            return AuditEvent(at_s=at_s, by=name_of(at), event=event, job=job, **named, **figures)

        for event in self._taken(new, self._nodes.get(at, NodeName("")), msg):
            self._write(event)
        for envelope in out:
            for event in self._sent(new, at, envelope):
                self._write(event)

    def _taken(self, new: _New, node: NodeName, msg: Message) -> Iterator[AuditEvent]:
        match msg:
            case StartJob(job_id=job):
                yield new("client_submitted", job, count=len(msg.tasks), user=msg.user)
            case TaskResults(job_id=job):
                for result in msg.results:
                    run = (msg.node, result.task_id, result.attempt)
                    yield new("client_task_result", job, *run, run_s=result.run_s)
            case SubmitJob():
                yield _arrived(new, msg)
            case TakenOver():
                for kept in msg.jobs:
                    for key in kept.running:
                        run = (msg.node, key.task_id, key.attempt)
                        yield new("scheduler_adopted_task", kept.job_id, *run)
            case EndJob(job_id=job) if not node:
                yield new("scheduler_job_ended", job)
            case RegisterNode():
                self._nodes[msg.address] = msg.name
            case Reserve(job_id=job, count=count):
                yield new("reservation_enqueued", job, node, count=count)
            case AssignTasks(job_id=job, tasks=()):
                yield new("node_monitor_get_task_no_task", job, node)
            case AssignTasks(job_id=job, tasks=tasks):
                yield new("node_monitor_get_task_complete", job, node, count=len(tasks))
            case CancelReservations(job_id=job):
                yield new("node_monitor_cancellation", job, node)
            case TasksEnded(job_id=job):
                for end in msg.ends:
                    run = (node, end.task_id, end.attempt)
                    yield new("task_completed", job, *run, text=end.lost or "")
            case _:
                return

    def _sent(self, new: _New, at: Address, envelope: Envelope) -> Iterator[AuditEvent]:
        node = self._nodes.get(envelope.to, "")
        match envelope.msg:
            case Notify(job_id=job, events=(*_, JobFinished())):
                yield new("client_finished", job)
            case Notify(job_id=job, events=(*_, JobFailed(kind=kind))):
                yield new("client_finished", job, text=kind)
            case JobAborted(job_id=job, message=text):
                yield new("scheduler_job_ended", job, text=text)
            case Reserve(job_id=job, count=count):
                yield new("scheduler_launch_enqueue_task", job, node, count=count)
            case AssignTasks(job_id=job, tasks=()):
                yield new("scheduler_get_task_no_task", job, node)
            case AssignTasks(job_id=job, tasks=tasks):
                for task in tasks:
                    yield new("scheduler_assigned_task", job, node, task.task_id, task.attempt)
            case CancelReservations(job_id=job):
                yield new("scheduler_launch_cancellation", job, node)
            case RegisterNode(name=name):
                self._nodes[at] = name
                yield from self._registered(new, envelope.msg)
            case GetTasks(job_id=job, node=name, count=count):
                yield new("node_monitor_get_task_launch", job, name, count=count)
            case RunTasks(job_id=job, tasks=tasks):
                here, executor = self._nodes.get(at, ""), name_of(envelope.to)
                for task in tasks:
                    run = (here, task.task_id, task.attempt)
                    yield new("node_monitor_task_launch", job, *run, text=executor)
            case _:
                return

    def _registered(self, new: _New, msg: RegisterNode) -> Iterator[AuditEvent]:
        slots = sum(executor.slots for executor in msg.executors)
        if self._slots.get(msg.name) != slots:
            self._slots[msg.name] = slots
            yield new("node_monitor_registered", "", msg.name, count=slots)


def _arrived(new: _New, msg: SubmitJob) -> AuditEvent:
    constraints = {task.task_id: task.preferred_nodes for task in msg.tasks if task.preferred_nodes}
    return new(
        "arrived", msg.job_id, count=len(msg.tasks), user=msg.user,
        requires=msg.options.requires, constraints=constraints,
    )  # fmt: skip


class AuditFile:
    """A tap that appends to a file; unflushed events are at most `_FLUSH_S` and a message old."""

    def __init__(self, file: Path) -> None:
        """Open the file; the driver's clock is `time.monotonic`."""
        self._out = file.open("ab", buffering=1 << 20)
        self._encoder = msgspec.json.Encoder()
        self._audit = Audit(self._write, time.time() - time.monotonic())
        self._flushed_at = 0.0

    def __call__(self, at: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        self._audit(at, msg, out, now)
        if now > self._flushed_at + _FLUSH_S:
            self._flushed_at = now
            self._out.flush()

    def _write(self, event: AuditEvent) -> None:
        self._out.write(self._encoder.encode(event) + b"\n")

    def close(self) -> None:
        self._out.close()


def read_events(files: Sequence[Path]) -> list[AuditEvent]:
    """All events of some logs in order of time; lines truncated by a crash are skipped."""
    decoder = msgspec.json.Decoder(AuditEvent)
    events = []
    for file in files:
        for line in file.read_bytes().splitlines():
            try:
                events.append(decoder.decode(line))
            except msgspec.DecodeError:
                continue
    return sorted(events, key=lambda event: event.at_s)
