"""Outputs of tasks that belong to the nodes of a running cluster, for any of its sessions.

A node has two parts in it, which know nothing of each other:

    home      the node that rendezvous hashing gives a name: it knows the outcome of the task that
              computed the output, and which node holds the file. So does the second in line, which
              is the home when that node is gone
    holder    the node whose executor wrote the file: it removes what nobody has read for the
              longest time, over a quota that gives way to tables, but nothing that is on lease

    session ── FindOutputs(names) ──► homes       one message each
            ── LeaseOutputs(files) ─► holders     which of them are there; they stay
            ── ReleaseOutputs ──────► holders     or with the session's end
            ── KeepOutputs ─────────► homes       after tasks have ended, in the background; also
                                                  to those who would be homes next

Whatever is lost of this costs a miss: a home that is gone knows nothing, one that has come later
knows nothing yet, and what it says of a file counts only if the holder has that.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from minishark.cluster import wire
from minishark.cluster.background import Background
from minishark.cluster.connections import Connections
from minishark.errors import ClusterError
from minishark.model.events.figures import TaskFigures
from minishark.worker.protocol import KeptOutput, StoreLocation, TaskOutcome
from minishark.worker.storage import folder_bytes

FOLDER = "outputs"
"""Of a node's storage, beside those of sessions."""

_ENTRIES_MAX = 100_000
_INLINE_BYTES_MAX = 64 << 20
_REPLY_BYTES_MAX = 32 << 20
_ENTRY_BYTES = 1_000
_SHARE = 4
"""Outputs take at most a quarter of what a node's files may take in shared memory, and on disk so
many bytes."""

_TABLES_SHARE = 0.75
"""Tables and queries that take more of that than this push outputs out."""

_LOOK_S = 2.0
_CALL_S = 1.0
_CLOSE_S = 2.0
_GATHER_S = 0.05  # in which what tasks leave goes to homes as one message
_HOMES = 2
_TELLS_MAX = 4  # to one that does not answer
_WRITING_S = 60.0  # for how long a file that grows no more may still be somebody's draft
_SLOTS = "slots"  # what homes know the number of slots by; no output has such a name


def homes_of(name: str, nodes: Iterable[str], count: int) -> list[str]:
    """The node that knows of an output, and those that would if it were gone: so many, at most."""

    def weight(node: str) -> bytes:
        return hashlib.blake2b(f"{name} {node}".encode(), digest_size=8).digest()

    return heapq.nlargest(count, nodes, key=weight)


@dataclass(slots=True)
class HomeIndex:
    """What a node knows of outputs as their home; bounded, the least recently used go."""

    entries_max: int = _ENTRIES_MAX
    bytes_max: int = _INLINE_BYTES_MAX
    _known: OrderedDict[str, KeptOutput] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def keep(self, outputs: Mapping[str, KeptOutput]) -> None:
        """These exist."""
        for name, output in outputs.items():
            self._forget(name)
            self._known[name] = output
            self._bytes += _size(output)
        while self._known and (len(self._known) > self.entries_max or self._bytes > self.bytes_max):
            self._forget(next(iter(self._known)))

    def _forget(self, name: str) -> None:
        output = self._known.pop(name, None)
        if output is not None:
            self._bytes -= _size(output)

    def find(self, names: Iterable[str]) -> dict[str, KeptOutput]:
        """Those that are known, as many as fit into a reply."""
        outputs: dict[str, KeptOutput] = {}
        left = _REPLY_BYTES_MAX
        for name in names:
            output = self._known.get(name)
            if output is None or (left := left - _size(output)) < 0:
                continue
            self._known.move_to_end(name)
            outputs[name] = output
        return outputs


def _size(output: KeptOutput) -> int:
    return _ENTRY_BYTES + len(output.outcome.inline or b"")


@dataclass(slots=True, kw_only=True)
class HeldOutputs:
    """The files of a node's outputs."""

    roots: Sequence[Path]  # the node's folders, that in shared memory first
    limit_bytes: int  # of all of the node's files in shared memory
    disk_bytes: int = 8 << 30  # of outputs, on disk
    _leases: dict[str, dict[str, int]] = field(default_factory=dict)  # by session, of files
    _looked_s: float = 0.0

    def lease(self, session: str, files: Iterable[str]) -> tuple[str, ...]:
        """Those of the files that are there, which stay as long as a session reads them."""
        held = self._leases.setdefault(session, {})
        leased = []
        for file in files:
            if self._touch(file):
                held[file] = held.get(file, 0) + 1
                leased.append(file)
        return tuple(leased)

    def _touch(self, file: str) -> bool:
        for root in self.roots:
            with contextlib.suppress(OSError):
                os.utime(root / file)
                return True
        return False

    def release(self, session: str, files: Iterable[str]) -> None:
        """A session has read files."""
        held = self._leases.get(session, {})
        for file in files:
            left = held.get(file, 0) - 1
            if left > 0:
                held[file] = left
            else:
                held.pop(file, None)

    def end(self, session: str) -> None:
        """A session is gone, and its leases with it."""
        self._leases.pop(session, None)

    @property
    def leased(self) -> frozenset[str]:
        """The names of files that are being read."""
        return frozenset(Path(file).name for held in self._leases.values() for file in held)

    def tidy(self, now: float) -> None:
        """Remove what there is no room for; to be called often."""
        if now < self._looked_s + _LOOK_S:
            return
        self._looked_s = now
        memory, *disks = self.roots
        outputs = folder_bytes(memory / FOLDER)
        if outputs:
            others = folder_bytes(memory) - outputs
            room = max(0, int(self.limit_bytes * _TABLES_SHARE) - others)
            self.shrink(memory, outputs, min(self.limit_bytes // _SHARE, room))
        for disk in disks:
            self.shrink(disk, folder_bytes(disk / FOLDER), self.disk_bytes)

    def shrink(self, root: Path, size: int, most: int) -> None:
        """Remove files that nobody reads, least recently used ones first, until the rest fits."""
        if size <= most:
            return
        leased, young = self.leased, time.time() - _WRITING_S
        files = []
        with contextlib.suppress(OSError), os.scandir(root / FOLDER) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    state = entry.stat()
                    is_written = entry.name.endswith(".tmp") and state.st_mtime > young
                    if entry.name not in leased and not is_written:
                        files.append((state.st_mtime_ns, state.st_blocks * 512, entry.path))
        for _, taken, path in sorted(files):
            if size <= most:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - there may be thousands
            size -= taken


def answered(request: wire.Request, home: HomeIndex, held: HeldOutputs) -> wire.Reply | None:
    """A node's reply to a request about outputs; None if it is about something else."""
    match request:
        case wire.FindOutputs(names):
            return wire.OutputsFound(home.find(names))
        case wire.KeepOutputs(outputs):
            home.keep(outputs)
            return wire.Done()
        case wire.LeaseOutputs(session, files):
            return wire.OutputsLeased(held.lease(session, files))
        case wire.ReleaseOutputs(session, files):
            held.release(session, files)
            return wire.Done()
        case _:
            return None


# A session's side

_Held: TypeAlias = tuple[str, str]
"""A file that a session reads: its node and its name."""

_Reading: TypeAlias = tuple[type[wire.LeaseOutputs | wire.ReleaseOutputs], _Held]
"""That a session reads a file, or has done so."""


class SharedOutputs:
    """The outputs of a running cluster, as one session finds and keeps them."""

    def __init__(
        self,
        session: str,
        connections: Connections,
        nodes: Callable[[], Sequence[StoreLocation]],
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """For a session over the nodes that live now; `warn` takes a sentence for the user."""
        self._session = session
        self._connections = connections
        self._nodes = nodes
        self._background = Background(
            self._send,
            "minishark-outputs",
            lambda why: warn(f"Other sessions will not find some outputs of this one: {why}."),
            gather_s=_GATHER_S,
        )

    def find(self, names: Sequence[str]) -> dict[str, KeptOutput]:
        """Those of the outputs that homes know."""
        homes = self._by_home(names, 1)
        replies = self._ask({home: wire.FindOutputs(of) for home, of in homes.items()})
        if silent := homes.keys() - replies.keys():
            # A node that has just died may still count as one: the next in line knows the same.
            missed = [name for home in homes if home in silent for name in homes[home]]
            others = self._by_home(missed, _HOMES)
            asked = {at: wire.FindOutputs(of) for at, of in others.items() if at not in silent}
            replies = {**replies, **self._ask(asked)}
        outputs: dict[str, KeptOutput] = {}
        for reply in replies.values():
            if isinstance(reply, wire.OutputsFound):
                outputs.update(reply.found)
        return outputs

    def absent(self, names: Sequence[str]) -> frozenset[str]:
        """Those of the outputs that no home knows."""
        return frozenset(names) - self.find(names).keys()

    def lease(self, outputs: Mapping[str, KeptOutput]) -> frozenset[str]:
        """The names of those whose files are there, which stay until they are released."""
        by_node: dict[str, dict[str, str]] = {}
        for name, output in outputs.items():
            if output.outcome.file is not None:
                for node in output.nodes:
                    by_node.setdefault(node, {})[output.outcome.file] = name
        if not by_node:  # as of an answer that was asked before: to list the nodes takes longer
            return frozenset(outputs)
        services = {node.name: node.service for node in self._nodes()}
        asked = {
            services[node]: wire.LeaseOutputs(self._session, tuple(files))
            for node, files in by_node.items()
            if node in services
        }
        there = {
            file
            for reply in self._ask(asked).values()
            if isinstance(reply, wire.OutputsLeased)
            for file in reply.files
        }
        names = {file: name for files in by_node.values() for file, name in files.items()}
        inline = (name for name, output in outputs.items() if output.outcome.file is None)
        return frozenset((*inline, *(names[file] for file in there if file in names)))

    def keep(self, outputs: Mapping[str, KeptOutput]) -> None:
        """Let others find outputs, or miss them; does not wait."""
        self._background.put(dict(outputs))

    def slots(self, there: int) -> int:
        """For how many slots to plan: as many as before, unless more are there, or less than half.

        Plans for other numbers have outputs of other names, so that the death of one node would
        cost the outputs of all.
        """
        asked: dict[str, wire.Request] = {
            home: wire.FindOutputs(of) for home, of in self._by_home([_SLOTS], _HOMES).items()
        }
        replies = self._ask(asked)
        outputs = [r.found for r in replies.values() if isinstance(r, wire.OutputsFound)]
        told = [output.outcome.inline for kept in outputs for output in kept.values()]
        before = max((int(inline or b"0") for inline in told), default=0)
        slots = before if there <= before <= 2 * there else there
        # A home that is silent may know a larger number, which is not to be forgotten.
        if len(replies) == len(asked) or slots > before > 0:
            data = str(slots).encode()
            outcome = TaskOutcome(figures=TaskFigures(bytes=len(data)), inline=data)
            self.keep(
                {_SLOTS: KeptOutput(outcome=outcome, node="", identity=_SLOTS, made_s=time.time())}
            )
        return slots

    def hold(self, output: KeptOutput) -> None:
        """An output that is new stays until it is released; does not wait."""
        if output.outcome.file is not None:
            for node in output.nodes:
                self._background.put((wire.LeaseOutputs, (node, output.outcome.file)))

    def release(self, outputs: Iterable[KeptOutput]) -> None:
        """Outputs were read; does not wait. They are free with the session's end, too."""
        files = {(at, o.outcome.file) for o in outputs if o.outcome.file for at in o.nodes}
        for node, file in files:
            self._background.put((wire.ReleaseOutputs, (node, file or "")))

    def close(self) -> None:
        """Send what is queued, if that does not take long."""
        self._background.close(_CLOSE_S)

    def _by_home(self, names: Iterable[str], count: int) -> dict[str, tuple[str, ...]]:
        services = {node.name: node.service for node in self._nodes()}
        homes: dict[str, list[str]] = {}
        for name in names:
            for home in homes_of(name, services, count):
                homes.setdefault(services[home], []).append(name)
        return {home: tuple(some) for home, some in homes.items()}

    def _ask(self, requests: Mapping[str, wire.Request]) -> Mapping[str, wire.Reply]:
        """The replies of those nodes that give one."""
        if not requests:
            return {}
        try:
            return self._connections.ask(requests, _CALL_S)
        except ClusterError:  # the session is being stopped
            return {}

    def _send(self, items: Sequence[dict[str, KeptOutput] | _Reading]) -> None:
        """Tell nodes of outputs that exist, and of files by node that are, or were read."""
        kept: dict[str, KeptOutput] = {}
        begun, read = Counter[_Held](), Counter[_Held]()
        for item in items:
            if isinstance(item, dict):
                kept.update(item)
            else:
                request, held = item
                (begun if request is wire.LeaseOutputs else read)[held] += 1
        # Who has begun and ended since need not be told of.
        self._tell(wire.LeaseOutputs, begun - read)
        self._tell_homes(kept)
        self._tell(wire.ReleaseOutputs, read - begun)

    def _tell_homes(self, kept: Mapping[str, KeptOutput]) -> None:
        """Tell homes of outputs; those that are slow to answer again, as long as they live."""
        left = self._by_home(kept, _HOMES)
        for _ in range(_TELLS_MAX):
            replies = self._ask(
                {
                    home: wire.KeepOutputs({name: kept[name] for name in names})
                    for home, names in left.items()
                }
            )
            live = {node.service for node in self._nodes()}
            left = {home: left[home] for home in left.keys() & live if home not in replies}

    def _tell(
        self,
        request: type[wire.LeaseOutputs | wire.ReleaseOutputs],
        held: Counter[_Held],
    ) -> None:
        by_node: dict[str, list[str]] = {}
        for node, file in held.elements():
            by_node.setdefault(node, []).append(file)
        services = {node.name: node.service for node in self._nodes()}
        self._ask(
            {
                services[node]: request(self._session, tuple(files))
                for node, files in by_node.items()
                if node in services
            }
        )
