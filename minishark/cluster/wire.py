"""The protocol of file services, between nodes, sessions and executors.

Each node and each session has a *service*, which serves files to other hosts; a node's also keeps
the folders of sessions. A request has one reply, except `Fetch`, whose replies are `Chunk`s for as
long as the reader grants credit, and `Credit` and `Holds`, which have none. Messages are msgpack
arrays; fields are only ever appended.
"""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Self, TypeAlias

import msgspec

from minishark.cluster.jobs.records import Holder, JobProgram, JobProgress, JobState, JobTerms
from minishark.cluster.shared.records import News, Order, TableChange, Uid
from minishark.model.events.kinds import AnyEvent, NodeUsage, SessionStarted
from minishark.worker.protocol import KeptOutput, StoreLocation
from sparrow_core.protocol.messages import PROTOCOL_VERSION


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


# Requests


class Hello(Message, frozen=True):
    """The handshake: the first request to a node, which rejects other versions."""

    versions: dict[str, str]


class KeepSession(Message, frozen=True, kw_only=True):
    """A session's heartbeat: renew the lease of its files."""

    session: str  # its name, which is also its folder in the node's storage
    location: StoreLocation  # the location of its own files
    user: str
    pid: int
    started_s: float  # start time of its process `pid`, in seconds since 1970
    released: tuple[str, ...] = ()  # draining nodes of which the session needs nothing any more
    schedulers: tuple[str, ...] = ()  # that it knows
    versions: dict[str, str] = {}  # as in Hello: the node may have been started again


class EndSession(Message, frozen=True):
    """The session has ended: remove its files."""

    session: str


class _Folders(Message, frozen=True):
    folder: str
    more: tuple[str, ...] = ()

    @classmethod
    def of(cls, folders: Sequence[str]) -> Self:
        """About one folder or several."""
        first, *more = folders
        return cls(first, tuple(more))

    @property
    def paths(self) -> tuple[str, ...]:
        """Of all of them, in a node's storage."""
        return (self.folder, *self.more)


class MakeFolder(_Folders, frozen=True):
    """Create folders of a session."""


class RemoveFolder(_Folders, frozen=True):
    """Remove folders of a session."""


class RemoveFile(Message, frozen=True):
    """Remove a file: a replica that was moved to another node."""

    file: str

    @property
    def paths(self) -> tuple[str, ...]:
        """Its only one."""
        return (self.file,)


class Announce(Message, frozen=True):
    """These are schedulers of the cluster: one has come, perhaps instead of another."""

    schedulers: tuple[str, ...]


class DrainNode(Message, frozen=True):
    """Drain the node: it moves its data, ends its tasks, and leaves."""


class RemoveCopies(Message, frozen=True):
    """Remove files, and the copies of them that were fetched for the node's executors."""

    files: tuple[str, ...]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Record batches `first` (inclusive) to `last` (exclusive; None: all) of a file."""

    file: str
    first: int = 0
    last: int | None = None


class Fetch(Message, frozen=True, kw_only=True):
    """Send parts of files, each as an Arrow stream, or `whole` files as they are stored.

    They come one after another in chunks, of which the first `credit` are sent at once. They are
    compressed if that is faster than the link, of `link_bytes_s` as far as the reader has measured
    it; 0 if it has not. A reader that will serve a whole file from then on, at the service
    `reader`, may be sent elsewhere.
    """

    parts: tuple[Part, ...]
    credit: int
    link_bytes_s: float = 0.0
    whole: bool = False
    reader: str = ""
    sealed: bool = False  # the reader can take up an offer of a connection for them


class Credit(Message, frozen=True):
    """Flow control: send `count` more chunks of what is being fetched."""

    count: int
    link_bytes_s: float = 0.0


class Holds(Message, frozen=True):
    """The service `reader` has a copy of a whole file, under the name `copy`; without a reply."""

    file: str
    reader: str
    copy: str


class Replicate(Message, frozen=True):
    """Fetch a whole file from `source` and store it."""

    file: str
    source: StoreLocation


class FindOutputs(Message, frozen=True):
    """Ask the home of some names for the outputs that have them."""

    names: tuple[str, ...]


class KeepOutputs(Message, frozen=True):
    """Outputs exist, by their names; sent to their homes."""

    outputs: dict[str, KeptOutput]


class LeaseOutputs(Message, frozen=True):
    """A session is going to read files of outputs: they are to stay."""

    session: str
    files: tuple[str, ...]


class ReleaseOutputs(Message, frozen=True):
    """A session has read files of outputs."""

    session: str
    files: tuple[str, ...]


class GetEvents(Message, frozen=True):
    """Ask a session for its events after the one of that number; 0 asks for all that it has.

    `is_read`: whether somebody looks at them now, so that it explains placements.
    """

    since: int
    is_read: bool = True


class CancelQuery(Message, frozen=True):
    """Cancel a query of a session, by its number in its events."""

    query: int


class GetUsage(Message, frozen=True):
    """Ask a node for its `Usage`."""


# Jobs that outlive who submitted them (`cluster.jobs`)


class SubmitJob(Message, frozen=True):
    """Own a job, which these nodes are to hold, and run its program; as `JobStates`, or Failure.

    `before`: the job that had its name, which is over: not every node may know that yet.
    """

    terms: JobTerms
    program: JobProgram
    holders: tuple[Holder, ...]
    before: JobState | None = None


class HoldJob(Message, frozen=True):
    """Hold a job that another node owns; `before` is as in SubmitJob."""

    state: JobState
    program: JobProgram
    before: JobState | None = None


class TellJobs(Message, frozen=True, kw_only=True):
    """A holder's heartbeat: what it knows of jobs; the reply has what the other one does.

    `tails` are the last bytes of the logs of those that it owns, with the position of their first
    byte, by uid.
    """

    home: str
    states: tuple[JobState, ...]
    tails: dict[str, tuple[int, bytes]] = {}
    is_leaving: bool = False


class GetJobs(Message, frozen=True):
    """Ask a node for the jobs that it holds."""


class CancelJob(Message, frozen=True):
    """Ask for the end of a job."""

    uid: str


class GetJobLog(Message, frozen=True):
    """Ask for a part of a job's log, from that position on, or so many bytes before its end."""

    uid: str
    since: int = 0


# Tables that belong to the cluster (`cluster.shared`)


class HoldTables(Message, frozen=True):
    """The owner of the catalog `uid` tells a holder of it, or asks for its promise."""

    uid: str
    ballot: int
    news: News


class GetTables(Message, frozen=True):
    """Ask the owner of the catalog for what is new since one that the session has.

    The session still reads files of that `version` of it; -1 if it reads none.
    """

    session: str
    since: Order
    version: int


class ChangeTables(Message, frozen=True):
    """Change tables, all at once; a change of the same `uid` is made once."""

    uid: Uid
    changes: tuple[TableChange, ...]


class KeepTables(Message, frozen=True):
    """The files of shared tables that are wanted, by folders, and some that no longer are.

    `is_needed`: whether the node has replicas that others are to have before it leaves.
    """

    wanted: dict[str, tuple[str, ...]]
    gone: tuple[str, ...]
    is_needed: bool


# Replies


class Welcome(Message, frozen=True):
    """The reply to Hello; each task on the node can use at least `task_bytes` of memory."""

    cluster: str
    node: StoreLocation
    schedulers: tuple[str, ...]
    task_bytes: int


class Kept(Message, frozen=True):
    """The reply to KeepSession: the schedulers that the node knows."""

    schedulers: tuple[str, ...]


class Done(Message, frozen=True):
    """The request succeeded."""


class Failure(Message, frozen=True):
    """The request failed.

    `missing` if there is no such file, `refused` if versions differ, `taken` if a job of that name
    is not over yet, or another session has changed a table.
    """

    message: str
    missing: bool = False
    refused: bool = False
    taken: bool = False


class OutputsFound(Message, frozen=True):
    """The reply to FindOutputs: what is known of those that there are, by name."""

    found: dict[str, KeptOutput]


class OutputsLeased(Message, frozen=True):
    """The reply to LeaseOutputs: those of the files that are there."""

    files: tuple[str, ...]


class Chunk(Message, frozen=True, kw_only=True):
    """Precedes a frame with the next bytes of a fetch; `last` if they are its final ones.

    They belong to the part of that number, of `size` bytes in all. `raw` is their number, if the
    frame is compressed (lz4), else 0. A part that can't be sent has a `problem` instead.
    """

    last: bool
    part: int
    size: int = 0
    raw: int = 0
    problem: str = ""


class Sealed(Message, frozen=True):
    """The reply to Fetch for much data: where it is to be had, with AES-GCM (`cluster.sealed`).

    A port of the same host; what to say there; and the key, for this transfer only.
    """

    port: int
    ticket: bytes
    key: bytes

    def __repr__(self) -> str:
        """Without the secrets, which must not end up in logs."""
        return f"Sealed(port={self.port})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        """The same for rich, whose tracebacks show local variables."""
        return [("port", self.port)]


class Elsewhere(Message, frozen=True):
    """The reply to the fetch of a whole file that many want: ask `service` for `file`.

    Without a service: ask again in a moment.
    """

    service: str = ""
    file: str = ""


class Events(Message, frozen=True, kw_only=True):
    """The reply to GetEvents: as `minishark.model.events.stream.Batch`, in msgpack.

    Attributes:
        began: the session's SessionStarted.
    """

    began: SessionStarted
    events: tuple[AnyEvent, ...]
    last: int
    dropped: int


class Usage(Message, frozen=True):
    """The reply to GetUsage."""

    usage: NodeUsage


class JobStates(Message, frozen=True, kw_only=True):
    """The reply to TellJobs, GetJobs and SubmitJob; to GetJobs with the progress, by uid."""

    home: str
    states: tuple[JobState, ...]
    is_leaving: bool = False
    progress: dict[str, JobProgress] = {}


class TablesHeld(Message, frozen=True):
    """The reply to HoldTables.

    `promised`: a higher ballot, if the request was refused; `is_lacking`: it needs all news; and
    what it has, if that is later.
    """

    promised: int = 0
    is_lacking: bool = False
    later: News | None = None


class TableNews(Message, frozen=True):
    """The reply to GetTables."""

    news: News


class NotOwner(Message, frozen=True):
    """The reply of a node that does not answer for the catalog of tables, or not yet."""


class JobLog(Message, frozen=True):
    """The reply to GetJobLog: bytes from the position `start` on, which may be after the wanted."""

    start: int
    data: bytes


Request: TypeAlias = (
    Hello | KeepSession | EndSession | MakeFolder | RemoveFolder | RemoveFile | RemoveCopies
    | Fetch | Credit | Holds | Replicate | DrainNode
    | Announce | GetEvents | CancelQuery | GetUsage
    | FindOutputs | KeepOutputs | LeaseOutputs | ReleaseOutputs
    | SubmitJob | HoldJob | TellJobs | GetJobs | CancelJob | GetJobLog
    | HoldTables | GetTables | ChangeTables | KeepTables
)  # fmt: skip
Reply: TypeAlias = (
    Welcome | Kept | Done | Failure | Chunk | Sealed | Elsewhere | Events | Usage
    | OutputsFound | OutputsLeased | JobStates | JobLog | TablesHeld | TableNews | NotOwner
)  # fmt: skip

encode_message = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def own_versions() -> dict[str, str]:
    """The versions that must match in a cluster, as plans, pickles and files are exchanged."""
    return {**_versions()}


@cache  # each session asks, and to read what is installed takes 10 ms
def _versions() -> dict[str, str]:
    try:
        release = version("minishark")
    except ImportError:
        release = "a checkout"
    return {
        "minishark": release,
        "protocol": str(PROTOCOL_VERSION),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "DuckDB": version("duckdb"),
        "pyarrow": version("pyarrow"),
    }


def own_release() -> str:
    """The same in words, by which schedulers tell nodes and sessions of other versions."""
    return ", ".join(f"{name} {number}" for name, number in own_versions().items())


def own_user() -> str:
    """The user of this process by name, or by number where that has none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the former before Python 3.13
        return str(os.getuid())


def versions_differ(theirs: dict[str, str], ours: dict[str, str]) -> str | None:
    """A sentence for the other side that names the differences; None if there are none."""
    names = dict.fromkeys((*ours, *theirs))
    different = [
        f"{name} {ours.get(name, '(none)')} in the cluster and {theirs.get(name, '(none)')} here"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]
    if not different:
        return None
    return f"Versions differ: {', '.join(different)}. Install the same versions on both sides."
