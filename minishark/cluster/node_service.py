"""The service of a node: besides files, it keeps sessions' folders and takes replicas.

A session holds a lease, which its heartbeats (`KeepSession`) renew. On the node's own host its
process is checked instead, which is more reliable: a session that is suspended for an hour keeps
its tables, and one that was killed loses them at once. When the lease of a session on another host
expires, that host is asked: it refuses connections if the process is dead, and says nothing if the
network is cut, which may heal.

A node that is to go drains first:

    serving ──drain()──▶ draining: no new tasks; sessions see it, and move their partitions
                             │ the heartbeats of all live sessions have released the node,
                             │ or `drain_s` has passed
                             ▼
                         leaving: ends with its last task
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import psutil
from msgspec import structs

from machine_kit.keys import Keys
from machine_kit.peers import Peers
from machine_kit.refusal import refuses
from minishark.cluster import wire
from minishark.cluster.connections import Connections
from minishark.cluster.folders import SESSION_PREFIX, SHARED_MEMORY, reap, remove_if_orphaned
from minishark.cluster.jobs.keeper import JobKeeper
from minishark.cluster.machine import live_process, memory_of, node_meter
from minishark.cluster.outputs import FOLDER, HeldOutputs, HomeIndex, answered
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service, change_files
from minishark.cluster.shared.keeper import TablesKeeper, WantedFiles
from minishark.model.events.kinds import NodeUsage, SessionUsage
from minishark.worker.memory import NodeMemory
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from minishark.worker.storage import folder_bytes
from minishark.worker.store import InputMissingError, Store

LEASE_S = 15.0  # lease of a session on another host
CUT_OFF_MAX_S = 120.0  # a session whose host does not say that it is dead is, after this silence

_REAP_S = 5.0
_SCHEDULERS_MAX = 8


@dataclass(slots=True)
class _Session:
    kept: wire.KeepSession | None
    refuses: Future[bool] | None = None  # whether its host says that it is not there

    def is_alive(self, host: str, silent_s: float, ask: Callable[[str], Future[bool]]) -> bool:
        """Whether it is, as far as is known on `host`; `ask` asks the host of a service."""
        if self.kept is not None and self.kept.location.host == host:
            return live_process(self.kept.pid, self.kept.started_s) is not None
        if silent_s < LEASE_S:
            return True
        if self.kept is None or silent_s >= CUT_OFF_MAX_S:
            return False
        if self.refuses is None:
            self.refuses = ask(self.kept.location.service)
        elif self.refuses.done():
            is_dead, self.refuses = self.refuses.result(), None
            return not is_dead
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeControl:
    """What the service asks of its node.

    Attributes:
        set_schedulers: Registers with these schedulers from now on, and no others.
        hold: Takes no new tasks from now on.
        release: The node ends when its tasks have; may be called repeatedly.
        stop: Ends at once.
        drain_s: How long the node waits at most for its sessions to do without it, and its tasks.
    """

    set_schedulers: Callable[[tuple[str, ...]], None]
    hold: Callable[[], None]
    release: Callable[[], None]
    stop: Callable[[], None]
    drain_s: float


class NodeService(Service):
    """The service of a node."""

    def __init__(
        self,
        endpoint: str,
        node: StoreLocation,
        cluster: str,
        schedulers: tuple[str, ...],
        *,
        memory: NodeMemory,
        bind: str | None = None,
        keys: Keys | None = None,
        keys_folder: str | None = None,
    ) -> None:
        """Bind the socket, as `Service` does; `node` is the location without its service.

        Programs of jobs find the keys in `keys_folder`.
        """
        paths = StorePaths(Path(node.memory), Path(node.disk))
        super().__init__(endpoint, paths, node.name, bind=bind, keys=keys)
        self.node = StoreLocation(node.name, node.host, node.memory, node.disk, self.endpoint)
        self._welcome = wire.Welcome(cluster, self.node, schedulers, memory.task_bytes)
        self._versions = wire.own_versions()
        self._connections = Connections(keys)
        files = RemoteFiles(self._connections)
        meter = node_meter(paths, node.name, memory)
        self._store = Store(paths, node.name, node.host, files, meter)
        self._sessions: dict[str, _Session] = {}
        self._sessions_heard = Peers[str]()
        self._reaped_s = 0.0
        self._drain_until_s: float | None = None  # None: it does not drain
        self._control: NodeControl | None = None
        self._roots = tuple(path / node.name for path in dict.fromkeys((paths.memory, paths.disk)))
        for root in self._roots:
            (root / FOLDER).mkdir(parents=True, exist_ok=True)
        self._home = HomeIndex()
        self._held = HeldOutputs(roots=self._roots, limit_bytes=memory.storage_bytes)
        self._jobs = JobKeeper(
            location=self.node,
            schedulers=lambda: self._welcome.schedulers,
            keys=keys,
            keys_folder=keys_folder,
        )
        self._wanted = WantedFiles(self._roots)
        self._tables = TablesKeeper(
            jobs=self._jobs,
            location=self.node,
            connections=self._connections,
            schedulers=lambda: self._welcome.schedulers,
            keys=keys,
        )

    def answer(self, request: wire.Request) -> wire.Reply:
        match request:
            case wire.Hello(versions):
                return self._refusal(versions) or self._welcome
            case wire.KeepSession(session=session, versions=versions):
                if refusal := self._refusal(versions):
                    return refusal
                self.path(session)
                for root in self._roots:
                    (root / session).mkdir(exist_ok=True)
                self._sessions[session] = _Session(request)
                self._sessions_heard.heard(session, time.monotonic())
                self._learn(request.schedulers)
                return wire.Kept(self._welcome.schedulers)
            case wire.Announce(schedulers):
                self._learn(schedulers)
                return wire.Done()
            case wire.EndSession(session):
                self._remove_session(str(self.path(session)))
                return wire.Done()
            case wire.MakeFolder() | wire.RemoveFolder() | wire.RemoveFile():
                for path in request.paths:
                    self.path(path)  # it is inside
                change_files(self._paths, self._store_name, request)
                return wire.Done()
            case wire.RemoveCopies(files):
                self._remove_copies([*map(self.path, files)])
                return wire.Done()
            case wire.DrainNode():
                self.drain()
                return wire.Done()
            case _:
                reply = (
                    self._jobs.answer(request)
                    or self._tables.answer(request)
                    or answered(request, self._home, self._held)
                )
                return reply or super().answer(request)

    def _refusal(self, versions: dict[str, str]) -> wire.Failure | None:
        problem = wire.versions_differ(versions, self._versions)
        return wire.Failure(problem, refused=True) if problem else None

    def _remove_copies(self, files: Sequence[PurePosixPath]) -> None:
        # Folders are listed once: there may be thousands of files in each, and as many unwanted.
        unwanted: dict[PurePosixPath, dict[str, None]] = {}
        for file in files:
            unwanted.setdefault(file.parent, {})[file.name] = None
        for root in self._roots:
            for folder, names in unwanted.items():
                with contextlib.suppress(FileNotFoundError), os.scandir(root / folder) as entries:
                    for entry in entries:
                        name = entry.name  # of a copy: the file's, "@", and where it is from
                        its = (name, name.partition("@")[0], name.rpartition("@")[0])
                        if not names.keys().isdisjoint(its):
                            Path(entry.path).unlink(missing_ok=True)

    def work(self, request: wire.Request) -> Callable[[], wire.Reply] | None:
        """Fetch replicas, count files, and submit jobs on other threads."""
        if self._jobs.is_long(request):
            return partial(self._jobs.do, request)
        if isinstance(request, wire.Replicate):
            self.path(request.file)
            return partial(self._replicate, request)
        if isinstance(request, wire.GetUsage):
            return partial(self._usage, tuple(self._sessions.values()))
        if isinstance(request, wire.ChangeTables):
            return partial(self._tables.change, request)
        if isinstance(request, wire.KeepTables):
            return partial(self._keep_tables, request, tuple(self._sessions))
        return None

    def _keep_tables(self, request: wire.KeepTables, sessions: Sequence[str]) -> wire.Reply:
        gone = [self.path(file) for file in request.gone]
        self._remove_copies(gone)
        for folder in {file.parent for file in gone if str(file.parent) not in request.wanted}:
            for root in self._roots:
                with contextlib.suppress(OSError):
                    (root / folder).rmdir()
        self._wanted.keep(request.wanted, sessions, time.time())
        self._wanted.is_needed = request.is_needed
        return wire.Done()

    def _replicate(self, request: wire.Replicate) -> wire.Reply:
        source = request.source
        if source.host == self.node.host:
            path = StorePaths(Path(source.memory), Path(source.disk)).find(
                request.file, (source.name,)
            )
            if path is not None:
                self._paths.take(path, self._store_name, request.file)
                return wire.Done()
        try:
            self._store.take(request.file, source)
        except InputMissingError as error:
            return wire.Failure(str(error), missing=True)
        return wire.Done()

    def _usage(self, sessions: Sequence[_Session]) -> wire.Reply:
        children = psutil.Process().children(recursive=True)
        memory = psutil.virtual_memory()
        try:
            shared_memory = shutil.disk_usage(self._paths.memory)
        except OSError:
            return wire.Failure(f"The folders of {self._store_name} were removed.")
        usage = NodeUsage(
            pid=os.getpid(),
            memory=memory_of(child.pid for child in children),
            stored_bytes=folder_bytes(self._roots[0]) if len(self._roots) > 1 else 0,
            disk_bytes=folder_bytes(self._roots[-1]),
            memory_free_bytes=memory.available,
            memory_total_bytes=memory.total,
            shared_memory_free_bytes=shared_memory.free,
            sessions=tuple(
                self._session_usage(session.kept)
                for session in sessions
                if session.kept is not None
            ),
        )
        return wire.Usage(usage)

    def _session_usage(self, kept: wire.KeepSession) -> SessionUsage:
        sizes = []
        for root in self._roots:
            for file in (root / kept.session).rglob("*.arrow*"):
                with contextlib.suppress(FileNotFoundError):  # it was just removed
                    sizes.append(file.stat().st_size)
        return SessionUsage(
            name=kept.session,
            user=kept.user,
            pid=kept.pid,
            host=kept.location.host,
            files=len(sizes),
            bytes=sum(sizes),
            service=kept.location.service,
        )

    def control(self, control: NodeControl) -> None:
        """The node runs from now on."""
        self._control = control
        control.set_schedulers(self._welcome.schedulers)  # it may have learned of some before

    def drain(self) -> bool:
        """Begin to drain; False if that was begun before, or can't be. Thread-safe."""
        if self._control is None or self._drain_until_s is not None:
            return False
        self._drain_until_s = time.monotonic() + self._control.drain_s
        self._wanted.is_needed = self._wanted.has_any  # until the owner of the catalog tells
        self._control.hold()
        self._jobs.drain()
        return True

    def _learn(self, schedulers: tuple[str, ...]) -> None:
        """Register with schedulers that were not known, too."""
        registered = self._welcome.schedulers
        new = tuple(address for address in schedulers if address not in registered)
        if not new:
            return
        # Those that are gone for ever are forgotten when as many others have come.
        together = (*new, *registered)[:_SCHEDULERS_MAX]
        self._welcome = structs.replace(self._welcome, schedulers=together)
        if self._control is not None:
            self._control.set_schedulers(together)

    def _leave_if_released(self, control: NodeControl, until_s: float) -> None:
        """If no session needs this draining node any more, it may leave; at the limit, it must."""
        if time.monotonic() > until_s:
            control.stop()
        elif self._wanted.is_needed:
            return
        elif self._jobs.is_idle and all(
            session.kept is not None and self.node.name in session.kept.released
            for session in self._sessions.values()
        ):
            control.release()

    def tidy(self) -> None:
        """Remove the files of dead sessions: on this node, and their own folders on this host."""
        now = time.monotonic()
        if self._control is not None and self._drain_until_s is not None:
            self._leave_if_released(self._control, self._drain_until_s)
        for root in self._roots:
            for folder in root.glob(f"{SESSION_PREFIX}*"):
                # A folder of an unknown session, made by a late task, gets a lease, too: the
                # session's heartbeat may be on its way.
                self._sessions.setdefault(folder.name, _Session(None))
                self._sessions_heard.expect(folder.name, now)
        self._held.tidy(now)
        self._tables.look()
        ask = partial(self.in_background, refuses)
        for name, session in list(self._sessions.items()):
            if not session.is_alive(self.node.host, self._sessions_heard.silent_s(name, now), ask):
                self._remove_session(name)
                if session.kept is not None and session.kept.location.host == self.node.host:
                    for path in (session.kept.location.memory, session.kept.location.disk):
                        remove_if_orphaned(Path(path))
        if now - self._reaped_s > _REAP_S:
            self._reaped_s = now
            for parent in dict.fromkeys((SHARED_MEMORY, self._paths.disk.parent)):
                reap(parent)

    def _remove_session(self, name: str) -> None:
        self._paths.remove(name, (self._store_name,))
        self._sessions.pop(name, None)
        self._sessions_heard.forget(name)
        self._held.end(name)

    def stop(self) -> None:
        self._tables.stop()
        self._jobs.stop()
        self._connections.close()
        super().stop()
