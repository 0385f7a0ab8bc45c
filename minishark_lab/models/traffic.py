"""Messages between schedulers and nodes, and how large those of each kind are on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from machine_kit.addresses import Address
from machine_kit.machine import Message
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AssignTasks,
    CancelReservations,
    GetTasks,
    NodeLoad,
    Notes,
    ProbeLoad,
    RegisterNode,
    ReportTasks,
    Reserve,
)
from sparrow_core.protocol.types import Assignment, Claim, ExecutorInfo, HeldJob, NodeLevel, TaskKey

NOTE_BYTES: Final = "note_bytes"  # beside counts of messages: what is in notes

_JOB, _NODE, _SCHEDULER = JobId("job12345"), NodeName("n1234"), Address("10.0.0.1:7000/scheduler")
_CLAIM, _LEVEL = Claim(user="user", waiting=500), NodeLevel(-1, 1_700_000_000_000_000)
_EXAMPLES: Final[Mapping[str, Message]] = {
    "reserve": Reserve(_JOB, _SCHEDULER, 1, _CLAIM),
    "probe": ProbeLoad(_JOB, _SCHEDULER),
    "load": NodeLoad(_JOB, _NODE, 1),
    "ask": GetTasks(job_id=_JOB, node=_NODE, request=1000, count=1, reports=(), level=_LEVEL),
    "answer": AssignTasks(
        job_id=_JOB, scheduler=_SCHEDULER, client=_SCHEDULER, request=1000, drained=False,
        tasks=(Assignment(TaskId(100), 1, b""),), has_shared=False, claim=_CLAIM,
    ),
    "cancel": CancelReservations(_JOB, 1),
    "idle": ReportTasks((), _NODE, _LEVEL),
    "notes": Notes("known_idle", b""),
    "heartbeat": RegisterNode(
        version=PROTOCOL_VERSION, name=_NODE, address=_SCHEDULER, held=(HeldJob(_JOB, 1),),
        executors=(ExecutorInfo(_SCHEDULER, 12345, 1),), running=(TaskKey(_JOB, TaskId(100), 1),),
    ),
}  # fmt: skip


def _bytes_of(message: Message) -> int:
    return len(msgspec.msgpack.encode((_SCHEDULER, message)))


SIZES: Final = {kind: _bytes_of(message) for kind, message in _EXAMPLES.items()}
"""Bytes of a message of each kind, with its address; tasks without payload."""


def messages(sent: Mapping[str, int]) -> int:
    """All messages but heartbeats."""
    return sum(count for kind, count in sent.items() if kind not in ("heartbeat", NOTE_BYTES))


def size_bytes(sent: Mapping[str, int]) -> int:
    """All messages together, heartbeats as well."""
    return sent.get(NOTE_BYTES, 0) + sum(SIZES[kind] * sent.get(kind, 0) for kind in SIZES)
