"""What nodes, sessions and executors ask of each other beside the scheduler's messages.

Each node has a *service* that keeps sessions' folders and hands out files to other hosts; so has
each session. A request gets one reply, but for `Fetch`, which gets `Chunk`s as long as the asker
grants credit. Messages are msgpack arrays; fields are only ever appended.
"""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TypeAlias

import duckdb
import msgspec
import pyarrow as pa

from minishark.worker.protocol import StoreLocation
from sparrow_core.protocol.messages import PROTOCOL_VERSION


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


# Requests


class Hello(Message, frozen=True):
    """Who are you? The first message to a node; one of other versions is refused."""

    versions: dict[str, str]


class KeepSession(Message, frozen=True):
    """The session lives; keep its files.

    Attributes:
        session: its folder in the node's storage.
        location: where its own files lie.
        user: who runs it.
        pid: its process.
        started_s: when that process started, in seconds since 1970.
    """

    session: str
    location: StoreLocation
    user: str
    pid: int
    started_s: float


class EndSession(Message, frozen=True):
    """The session is over; remove its files."""

    session: str


class MakeFolder(Message, frozen=True):
    """Make a folder of a session."""

    folder: str


class RemoveFolder(Message, frozen=True):
    """Remove a folder of a session."""

    folder: str


class Fetch(Message, frozen=True):
    """Send record batches `first` to `last` (None: to the end) of a file as an Arrow stream."""

    file: str
    first: int
    last: int | None
    credit: int


class Credit(Message, frozen=True):
    """Send `count` more chunks of what is being fetched."""

    count: int


class Replicate(Message, frozen=True):
    """Fetch a whole file from `source` and keep it."""

    file: str
    source: StoreLocation


class GetReport(Message, frozen=True):
    """What do you hold, and for whom?"""


# Replies


class Welcome(Message, frozen=True):
    """Answer to Hello.

    Attributes:
        cluster: the cluster's name.
        node: the node.
        schedulers: addresses of the cluster's schedulers.
        task_bytes: what a task may use of the node's memory at least.
    """

    cluster: str
    node: StoreLocation
    schedulers: tuple[str, ...]
    task_bytes: int


class Done(Message, frozen=True):
    """It has been done."""


class Failure(Message, frozen=True):
    """It could not be done, and why; `missing`: because there is no such file."""

    message: str
    missing: bool = False


class Chunk(Message, frozen=True):
    """Precedes a frame with a part of what is fetched; `last`: there is no more."""

    last: bool


class SessionReport(msgspec.Struct, frozen=True, array_like=True):
    """A session as a node sees it; `bytes` and `files` are what the node holds for it."""

    session: str
    user: str
    pid: int
    host: str
    files: int
    bytes: int


class Report(Message, frozen=True):
    """Answer to GetReport: the node, what it holds for sessions, its host's memory in bytes."""

    node: StoreLocation
    pid: int
    sessions: tuple[SessionReport, ...]
    memory_free: int
    memory_total: int
    shared_memory_free: int


Request: TypeAlias = (
    Hello | KeepSession | EndSession | MakeFolder | RemoveFolder | Fetch | Credit | Replicate
    | GetReport
)  # fmt: skip
Reply: TypeAlias = Welcome | Done | Failure | Chunk | Report

encode_message = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def own_versions() -> dict[str, str]:
    """What must be the same in all processes of a cluster: plans, functions and files travel."""
    try:
        own = version("minishark")
    except ImportError:
        own = "a checkout"
    return {
        "minishark": own,
        "protocol": str(PROTOCOL_VERSION),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "DuckDB": duckdb.__version__,
        "pyarrow": pa.__version__,
    }


def versions_differ(theirs: dict[str, str], own: dict[str, str]) -> str | None:
    """A sentence for the other side that names what differs; None if nothing does."""
    names = dict.fromkeys((*own, *theirs))
    different = [
        f"{name} {own.get(name, '(none)')} in the cluster and {theirs.get(name, '(none)')} here"
        for name in names
        if own.get(name) != theirs.get(name)
    ]
    return f"The versions differ: {', '.join(different)}; install the same." if different else None
