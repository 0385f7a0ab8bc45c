"""What a node does for shared tables: holds their catalog, answers for it, keeps their replicas.

The owner of the catalog answers sessions. Its thread, which each node starts that holds the
catalog, brings other holders up to date, has replicas made that were lost with their nodes, and
tells all nodes which files are wanted. Others remove what is not.

A session's requests say which version it still reads (`_LEASE_S`). Files that the catalog has no
more go when no session does, or after `RETIRED_MAX_S`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from machine_kit.addresses import Address
from machine_kit.keys import Keys
from minishark.cluster import wire
from minishark.cluster.attributes import IDLE, store_of
from minishark.cluster.connections import Connections
from minishark.cluster.endpoints import own_endpoint
from minishark.cluster.jobs.keeper import JobKeeper
from minishark.cluster.jobs.machine import Holding
from minishark.cluster.jobs.records import SHARED_TABLES, Holder
from minishark.cluster.shared import records
from minishark.cluster.shared.machine import CatalogCopy, Lacking, Ownership, Refused, first_ballot
from minishark.cluster.shared.records import (
    FOLDER,
    RETIRED_MAX_S,
    News,
    Retired,
    TableCatalog,
    TableChange,
    Uid,
)
from minishark.errors import MinisharkError
from minishark.worker.protocol import StoreLocation
from sparrow_core import RemoteCluster, SparrowError
from sparrow_core.machines.client import ClientConfig
from sparrow_core.runtime.transport.folders import socket_folder

_HOLD_S = 2.0
_STEP_S = 0.5
_TELL_EVERY_S = 10.0
_TELL_DRAINING_EVERY_S = 1.0
_TELL_S = 2.0
_COPY_S = 120.0
_LEASE_S = 30.0
_NOWHERE_MAX_S = 5.0  # without a node, before schedulers are asked anew
UNWANTED_S = 3600.0
"""How old a file is at least that no table has, and is removed though its session may live."""


@dataclass(slots=True)
class WantedFiles:
    """The files of shared tables on one node."""

    roots: Sequence[Path]
    is_needed: bool = True  # as far as the owner has told since the node drains
    _unwanted: frozenset[str] = frozenset()  # the last time

    @property
    def has_any(self) -> bool:
        """Whether there are files."""
        return any(True for root in self.roots for _ in root.glob(f"{FOLDER}/*/*"))

    def keep(self, wanted: Mapping[str, Sequence[str]], live: Iterable[str], now_s: float) -> None:
        """Remove what was unwanted the last time and is now, if nobody may be about to commit it.

        Args:
            wanted: the names of files by folders.
            live: sessions; what these have begun to make is theirs for a while.
            now_s: seconds since 1970.
        """
        sessions = tuple(f"{session}-" for session in live)
        unwanted = {}
        for root in self.roots:
            for folder in root.glob(f"{FOLDER}/*"):
                names = wanted.get(f"{FOLDER}/{folder.name}")
                if names is None and folder.name.startswith(sessions):
                    continue
                unwanted.update(self._unwanted_in(folder, frozenset(names or ()), now_s))
                if names is None:
                    unwanted[str(folder)] = folder
        for name, path in unwanted.items():
            if name in self._unwanted:
                with contextlib.suppress(OSError):  # a folder may have files again
                    path.rmdir() if path.is_dir() else path.unlink()
        self._unwanted = frozenset(unwanted)

    @staticmethod
    def _unwanted_in(folder: Path, names: frozenset[str], now_s: float) -> dict[str, Path]:
        """What nobody wants in a folder, the copies that executors have fetched left out."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            return {
                entry.path: Path(entry.path)
                for entry in entries
                if entry.name.partition("@")[0] not in names
                if not names or entry.stat().st_mtime < now_s - UNWANTED_S
            }
        return {}


@dataclass(slots=True)
class _Lease:
    version: int  # of the catalog, which a session still reads
    until_s: float


@dataclass(slots=True, kw_only=True)
class TablesKeeper:
    """The shared tables of one node.

    Attributes:
        jobs: knows who holds the catalog.
        location: of this node's files, and its service.
        connections: to other nodes.
        schedulers: gives the cluster's schedulers.
        keys: the cluster's keys, for tcp.
    """

    jobs: JobKeeper
    location: StoreLocation
    connections: Connections
    schedulers: Callable[[], Sequence[str]]
    keys: Keys | None = None
    _uid: str = ""
    _copy: CatalogCopy = field(default_factory=CatalogCopy)
    _own: Ownership = field(default_factory=Ownership)
    _owned_s: float = 0.0  # since when
    _leases: dict[str, _Lease] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards the above
    _changing: threading.Lock = field(default_factory=threading.Lock)  # held during a change
    _members: RemoteCluster | None = None
    _left: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _seen_s: float = 0.0  # when nodes were, at last
    _told: tuple[float, tuple[int, int]] = (0.0, records.NEVER)
    _healing: Future[None] | None = None
    _healer: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="minishark-shared")
    )
    _thread: threading.Thread | None = None
    _stops: threading.Event = field(default_factory=threading.Event)

    # Requests

    def answer(self, request: wire.Request) -> wire.Reply | None:
        """Answer a request about the catalog, at once; None to others."""
        match request:
            case wire.HoldTables():
                return self._hold(request)
            case wire.GetTables():
                return self._get(request)
            case _:
                return None

    def _hold(self, request: wire.HoldTables) -> wire.Reply:
        with self._lock:
            self._know(request.uid)
            answer = self._copy.take(request.ballot, request.news)
            if self._copy.promised > self._own.ballot:
                self._own.ballot = 0
        match answer:
            case Refused(promised):
                return wire.TablesHeld(promised=promised)
            case Lacking():
                return wire.TablesHeld(is_lacking=True)
            case taken:
                return wire.TablesHeld(later=taken.later)

    def _know(self, uid: str) -> None:
        """Hold the catalog of that id: another one has lost all its holders."""
        if uid != self._uid:
            self._uid, self._copy, self._own = uid, CatalogCopy(), Ownership()

    def _get(self, request: wire.GetTables) -> wire.Reply:
        holding, now = self._holding(), time.monotonic()
        with self._lock:
            if holding is None or not self._own.is_ready(holding.incarnation):
                return wire.NotOwner()
            catalog = self._copy.catalog
            version = request.version if request.version >= 0 else catalog.version
            self._leases[request.session] = _Lease(version, now + _LEASE_S)
            return wire.TableNews(catalog.news(request.since))

    def change(self, request: wire.ChangeTables) -> wire.Reply:
        """Change tables: takes as long as most holders need to answer."""
        return self._change(request.uid, request.changes)

    def _holding(self) -> Holding | None:
        """Who holds the catalog, if this node answers for it."""
        holding = self.jobs.holding(SHARED_TABLES)
        if holding is None or not holding.is_mine:
            return None
        with self._lock:
            self._know(holding.uid)
        return holding

    # Changes

    def _change(self, uid: Uid, changes: Sequence[TableChange]) -> wire.Reply:
        with self._changing:
            holding = self._holding()
            catalog = None if holding is None else self._recovered(holding)
            if holding is None or catalog is None:
                return wire.NotOwner()
            new = records.changed(catalog, uid, changes, time.time())
            if isinstance(new, str):
                return wire.Failure(new, taken=True)
            if new is not catalog and not self._publish(holding, new):
                return wire.NotOwner()
            return wire.Done()

    def _publish(self, holding: Holding, new: TableCatalog) -> bool:
        """Have most holders take a catalog; if they do not, nobody knows whether it counts."""
        ballot, told = new.order[0], self._told_all(holding, new)
        with self._lock:
            # Who has promised to follow another node meanwhile does not count itself.
            counts = told >= holding.majority and self._copy.promised == ballot
            self._own.ballot = ballot if counts else 0
            if counts:
                self._copy.catalog = new
        return counts

    def _told_all(self, holding: Holding, new: TableCatalog) -> int:
        """Tell other holders of a catalog; how many have it, this node included."""
        ballot, told = new.order[0], 1
        news = {other.home: new.news(self._own.since(other.home)) for other in holding.others}
        for other, reply in self._asked(holding, ballot, news).items():
            if reply.is_lacking:
                again = self._asked(holding, ballot, {other.home: new.news()})
                reply = again.get(other, reply)  # noqa: PLW2901
            if not reply.promised and not reply.is_lacking:
                self._own.has[other.home] = new.order
                told += 1
        return told

    def _asked(
        self, holding: Holding, ballot: int, news: Mapping[str, News]
    ) -> dict[Holder, wire.TablesHeld]:
        """The answers of holders to what each is told, by their homes."""
        asked = {
            other.service: wire.HoldTables(holding.uid, ballot, news[other.home])
            for other in holding.others
            if other.home in news
        }
        replies = self.connections.ask(asked, _HOLD_S) if asked else {}
        answers = ((other, replies.get(other.service)) for other in holding.others)
        return {other: reply for other, reply in answers if isinstance(reply, wire.TablesHeld)}

    def _recovered(self, holding: Holding) -> TableCatalog | None:
        """What most holders have, which have promised to follow this node; None if too few have."""
        with self._lock:
            if self._own.is_ready(holding.incarnation):
                return self._copy.catalog
            if self._copy.promised >= first_ballot(holding.incarnation + 1):
                return None  # another node has taken over, of which this one has not heard yet
            ballot = self._own.next_ballot(holding.incarnation, self._copy.promised + 1)
            mine = self._copy.catalog
            self._copy.promised = max(self._copy.promised, ballot)
        question = mine.news(mine.order)
        answers = self._asked(holding, ballot, {o.home: question for o in holding.others})
        if refused := max((reply.promised for reply in answers.values()), default=0):
            with self._lock:
                self._copy.promised = max(self._copy.promised, refused)
            return None
        if 1 + len(answers) < holding.majority:
            return None
        later = [reply.later for reply in answers.values() if reply.later is not None]
        known = [TableCatalog().after(news) or mine for news in later]
        latest = max((mine, *known), key=lambda catalog: catalog.order)
        new = latest.followed(ballot)
        if not self._publish(holding, new):
            return None
        self._owned_s, self._leases = time.monotonic(), {}
        return new

    # Life

    def look(self) -> None:
        """Begin to work if this node holds the catalog; to be called often."""
        if self._thread is None and self.jobs.holding(SHARED_TABLES) is not None:
            self._thread = threading.Thread(target=self._run, name="minishark-tables", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stops.set()
        if self._thread is not None:
            self._thread.join()
        self._healer.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._stops.wait(_STEP_S):
            try:
                self._work()
            except (OSError, MinisharkError, SparrowError) as error:  # the next round tries again
                sys.stderr.write(f"shared tables: {error}\n")
        self._left.close()

    def _work(self) -> None:
        holding = self._holding()
        if holding is None:
            self._own.ballot = 0
            self._left.close()
            self._members = None
            return
        with self._changing:
            catalog = self._recovered(holding)
            if catalog is None:
                return
            if any(self._own.since(other.home) != catalog.order for other in holding.others):
                self._told_all(holding, catalog)
        nodes = self._nodes()
        if not nodes:
            return
        if self._healing is None or self._healing.done():
            self._healing = self._healer.submit(self._heal, nodes)
        self._tell(nodes)

    def _nodes(self) -> dict[StoreLocation, bool]:
        """The live nodes that store tables, and whether each drains."""
        now = time.monotonic()
        if self._members is None or now > self._seen_s + _NOWHERE_MAX_S:
            self._left.close()
            folder = self._left.enter_context(socket_folder())
            self._members = RemoteCluster(
                tuple(map(Address, self.schedulers())),
                listen=own_endpoint(self.location.service, folder, "tables"),
                keys=self.keys,
                config=ClientConfig(release=wire.own_release()),
            )
            self._left.callback(self._members.close)
            self._members.start()
            self._seen_s = now
        statuses = (s for s in self._members.nodes() if IDLE not in s.attributes)
        nodes = {at: s.draining for s in statuses if (at := store_of(s)) is not None}
        if nodes:
            self._seen_s = now
        return nodes

    # Replicas

    def _heal(self, nodes: Mapping[StoreLocation, bool]) -> None:
        """Have replicas made that are missing, one after the other."""
        by_name = {at.name: at for at in nodes}
        staying = [at.name for at, drains in nodes.items() if not drains]
        homes = {at.name: at.memory for at in nodes}
        with contextlib.suppress(MinisharkError):
            self._update(lambda catalog: records.emptied(catalog, homes))
            for copy in records.copies(self._copy.catalog, staying, by_name):
                if self._stops.is_set() or not self._copied(copy, by_name):
                    return

                def found(catalog: TableCatalog, copy: records.Copy = copy) -> TableCatalog:
                    table = catalog.tables.get(copy.table)
                    if table is None or copy.partition not in table.partitions:
                        return catalog  # it has changed meanwhile
                    index = table.partitions.index(copy.partition)
                    held = (node for node in copy.partition.nodes if node in by_name)
                    return catalog.located(
                        copy.table, index, (*held, copy.target), by_name[copy.target].memory
                    )

                self._update(found)

    def _copied(self, copy: records.Copy, nodes: Mapping[str, StoreLocation]) -> bool:
        source, target = nodes[copy.source], nodes[copy.target]
        folder = copy.partition.files[0].rpartition("/")[0]
        files = (wire.Replicate(file, source) for file in copy.partition.files)
        requests: tuple[wire.Request, ...] = (wire.MakeFolder(folder), *files)
        return all(
            isinstance(
                self.connections.ask({target.service: request}, _COPY_S).get(target.service),
                wire.Done,
            )
            for request in requests
        )

    def _update(self, how: Callable[[TableCatalog], TableCatalog]) -> None:
        """Make a change that no session has asked for."""
        with self._changing:
            holding = self._holding()
            catalog = None if holding is None else self._recovered(holding)
            if holding is not None and catalog is not None:
                new = how(catalog)
                if new is not catalog:
                    self._publish(holding, new)

    # Files

    def _tell(self, nodes: Mapping[StoreLocation, bool]) -> None:
        """Tell nodes which files are wanted, and forget what nobody reads any more."""
        now, catalog = time.monotonic(), self._copy.catalog
        gone = self._released(catalog, now)
        drains = any(nodes.values())
        every_s = _TELL_DRAINING_EVERY_S if drains else _TELL_EVERY_S
        if not gone and now < self._told[0] + every_s:
            return
        self._told = (now, catalog.order)
        wanted = records.wanted_files(records.without(catalog, gone))
        files = tuple(file for retired in gone for file in retired.files)
        staying = [at.name for at, draining in nodes.items() if not draining]
        requests = {
            at.service: wire.KeepTables(wanted, files, records.needed(catalog, at.name, staying))
            for at in nodes
        }
        self.connections.ask(requests, _TELL_S)
        if gone:
            self._update(lambda current: records.without(current, gone))

    def _released(self, catalog: TableCatalog, now: float) -> tuple[Retired, ...]:
        if not catalog.retired or now < self._owned_s + _LEASE_S:
            return ()  # sessions have yet to tell what they read
        with self._lock:
            live = {name: lease for name, lease in self._leases.items() if lease.until_s > now}
            self._leases = live
            oldest = min((lease.version for lease in live.values()), default=catalog.version)
        return catalog.released(oldest, time.time() - RETIRED_MAX_S)
