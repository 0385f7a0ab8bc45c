"""Runs one history, and says what was wrong with it.

Sessions run statements while faults happen. When the last fault is mended, every table is read, the
catalogs are compared with the disks, all is dropped and closed, and nothing may be left.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from machine_kit.network import Network
from machine_kit.world import Trace, World
from minishark.errors import (
    CatalogError,
    DataError,
    MinisharkError,
    PartitionsLostError,
    QueryCancelledError,
)
from minishark_lab.simulation.checks import (
    LASTS_S,
    claims,
    left_behind,
    misplaced,
    strays,
    unexcused,
    unheld,
)
from minishark_lab.simulation.disks import Disks
from minishark_lab.simulation.faults import Faults
from minishark_lab.simulation.fibers import Fiber, Fibers
from minishark_lab.simulation.hosts import Hosts
from minishark_lab.simulation.model import Model, updated
from minishark_lab.simulation.queries import Query
from minishark_lab.simulation.script import FILE, KEPT, TABLES, Script, Statement, write
from minishark_lab.simulation.session import SimulatedSession

_STARTED_S = 0.3
_HANG_S = 400.0  # from the last fault, and then in which no statement ends, until that is a hang
_MERGED_S = 5.0  # until what was being merged at the end of the statements has been
_LOOK_S = 1.0
_TOLD_MAX = 5  # of one kind
_LEASES_S = 140.0  # until the files are gone of sessions whose end a node has not heard of


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What has become of a history."""

    script: Script
    queries: int = 0
    writes: int = 0
    faults: int = 0
    events: int = 0
    took_s: list[float] = field(default_factory=list)  # simulated time of each statement
    failures: Counter[str] = field(default_factory=Counter)  # by type, of those that may fail
    wrong: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)  # where the catalog is wrong
    broken: list[str] = field(default_factory=list)  # errors that nobody may see

    @property
    def complaints(self) -> list[str]:
        """All that is wrong with it."""
        named = {
            "wrong": self.wrong,
            "hang": self.hangs,
            "leak": self.leaks,
            "misplaced": self.misplaced,
            "error": self.broken,
        }
        return [f"{kind}: {text}" for kind, texts in named.items() for text in texts]


class _User:
    """Who runs the statements of a session."""

    def __init__(
        self, session: SimulatedSession, faults: Faults, outcome: Outcome, seed: str
    ) -> None:
        self.session = session
        self.faults = faults
        self.outcome = outcome
        self.model = Model()
        self.doing: dict[str, str] = {}  # the statement of each thread
        self._kept = Query("rows", TABLES[:1])  # whose rows were kept last
        self._rng = Random(seed)
        self.is_calm: Callable[[], bool] = lambda: False

    def begin(self) -> None:
        """Create the tables."""
        for name in TABLES:
            self.run(write(self._rng, "create", name), "writer")
        self.run(write(self._rng, "rewrite", FILE), "writer")
        self.run(write(self._rng, "keep", KEPT), "writer")

    def work(self, statements: tuple[Statement, ...], thread: str) -> None:
        """Run statements one after the other, with pauses."""
        for each in statements:
            pause_s = self._rng.expovariate(1 / self.outcome.script.pause_s)
            if each.begins_s is not None:
                pause_s = max(0.0, each.begins_s - self.session.hosts.world.now)
            self.session.clock.sleep(pause_s)
            self.run(each, thread)
        self.doing.pop(thread, None)

    def run(self, statement: Statement, thread: str) -> None:
        """Run one statement, and note what it returns or changes."""
        self.doing[thread] = str(statement)
        was_calm, first = self.is_calm(), self.model.number
        world = self.session.hosts.world
        began_s = world.now
        is_over = self._cancelled_soon(statement)
        try:
            if statement.kind == "query":
                self._query(statement)
            else:
                self._write(statement)
        except MinisharkError as error:
            self._failed(statement, error, first, began_s=began_s, was_calm=was_calm)
        except Exception:  # noqa: BLE001 - to be told
            self.outcome.broken.append(f"{statement}: {traceback.format_exc(limit=-4)}")
        is_over.append(True)
        if thread == "writer" and len(self.outcome.misplaced) < _TOLD_MAX:
            tables = tuple(self.session.tables.catalog)
            found = claims(tables, self.session.hosts, self.faults)
            self.outcome.misplaced += [f"{text}, after {statement}" for text in found]
        self.outcome.took_s.append(world.now - began_s)

    def _cancelled_soon(self, statement: Statement) -> list[bool]:
        """Cancel a statement when it is time, unless the list that is returned has an item then."""
        session, is_over = self.session, list[bool]()
        me, after_s = session.fibers.running(), statement.cancelled_s

        def cancel() -> None:
            session.clock.sleep(after_s or 0.0)
            if not is_over:
                session.cancel(me)

        if after_s is not None:
            session.fibers.start(session.endpoint, cancel)
        return is_over

    def _query(self, statement: Statement) -> None:
        first = self.model.number
        self.outcome.queries += 1
        self.model.seen(statement, first, self.session.query(statement.query))

    def _write(self, statement: Statement) -> None:
        if statement.kind == "refresh":
            statement = replace(statement, query=self._kept)
        if not all(name in self.model.now for name in _needs(statement)):
            return
        self.outcome.writes += 1
        done = None
        self.model.writing = statement
        try:
            self._change(statement)
            done = statement
        finally:
            self.model.end(done)
            if done is None and statement.kind == "refresh":
                # Whoever needs the rows computes them, of what their tables have then.
                self.model.end(replace(statement, kind="forget"))
                self.session.release(statement.table)
                self.model.end(replace(statement, kind="release"))

    def _change(self, statement: Statement) -> None:
        session, name = self.session, statement.table
        match statement.kind:
            case "create":
                session.create(name, statement.rows, statement.layout)
            case "store":
                session.store(name, statement.query, statement.layout)
            case "load":
                session.load(name, FILE, statement.layout)
            case "rewrite":
                session.write_file(name, statement.rows)
            case "keep":
                session.keep(name, statement.query, statement.layout)
                self._kept = statement.query
            case "refresh":
                session.refresh(name)
            case "release":
                session.release(name)
            case "insert":
                session.change(name, None, lambda _: statement.rows)
            case "delete":
                session.change(name, statement.goes, lambda _: ())
            case "update":
                session.change(name, statement.goes, lambda rows: updated(rows, statement))
            case "empty":
                session.empty(name)
            case "drop":
                session.drop(name)

    def _failed(
        self,
        statement: Statement,
        error: MinisharkError,
        first: int,
        *,
        began_s: float,
        was_calm: bool,
    ) -> None:
        names = statement.query.tables
        if KEPT in names and (self.faults.destroyed or self.model.is_open(KEPT, first)):
            names = (*names, *TABLES)  # from which its rows are computed again
        if isinstance(error, CatalogError) and self.model.may_lack(names, first):
            return
        self.outcome.failures[type(error).__name__] += 1
        if isinstance(error, QueryCancelledError) and statement.cancelled_s is not None:
            return
        if isinstance(error, DataError) and self._may_have_changed(names, first):
            return
        if isinstance(error, CatalogError):
            self.outcome.wrong.append(f"{statement}: {error}")
        elif was_calm and not self._may_be_lost(error):
            self.outcome.broken.append(f"{statement}, when all was well: {_told(error)}")
        elif why := unexcused(error, self.faults, began_s):
            self.outcome.broken.append(f"{statement}: {_told(error)}, but {why}")

    def _may_have_changed(self, names: Collection[str], first: int) -> bool:
        """Whether the file has changed so often that a statement may say so.

        A query of it runs again once. A table that is lost is not loaded from another version.
        """
        is_loaded = bool(self.faults.destroyed) and names != (FILE,)
        return self.model.rewrites(first) >= (1 if is_loaded else 2)

    def _may_be_lost(self, error: MinisharkError) -> bool:
        """Whether rows are lost that can't be had again: no source has them."""
        if not isinstance(error, PartitionsLostError):
            return False
        table = self.session.tables.catalog.find(error.table)
        if table is None or table.version:
            return True
        loaded = self.session.tables._origins.get(table.folder)  # noqa: SLF001
        if loaded is None:
            return True
        return loaded.origin.source.resolve().version != loaded.origin.version

    def killed(self) -> None:
        """The session's process dies."""
        self.session.kill()
        self.outcome.wrong += self.model.wrong()

    def end(self) -> None:
        """Read all tables, drop them, and leave."""
        for name in (*TABLES, KEPT, FILE):
            if name in self.model.now:
                self.run(Statement(kind="query", query=Query("rows", (name,))), "writer")
                self.run(Statement(kind="query", query=Query("deep", (name,))), "writer")
        for name in TABLES:
            if name in self.model.now:
                self.run(Statement(kind="drop", query=Query("rows", (name,)), table=name), "writer")
        self.doing["writer"] = "close"
        self.session.close()
        self.doing.clear()


def run_history(script: Script, trace: Trace | None = None) -> Outcome:
    """Run a history to its end."""
    network = Network(jitter_s=script.jitter_s, loss=script.loss, duplication=script.duplication)
    world = World(script.seed, network, trace=trace)
    outcome = Outcome(script=script)
    fibers, disks = Fibers(world), Disks(world)
    hosts = Hosts(
        world,
        disks,
        nodes=script.nodes,
        schedulers=script.schedulers,
        slots=script.slots,
        copy_s=script.copy_s,
    )
    fronts = [f"front{i}" for i in range(len(script.writers))]
    users: dict[str, _User] = {}
    faults = Faults(
        world=world, hosts=hosts, fronts=fronts, kill_session=lambda at: users.pop(at).killed()
    )
    world.run(_STARTED_S)
    for front in fronts:
        session = SimulatedSession(hosts=hosts, fibers=fibers, endpoint=front)
        users[front] = _User(session, faults, outcome, f"{front} {script.seed}")
    with contextlib.closing(fibers):
        run = _Run(
            world=world, hosts=hosts, fibers=fibers, faults=faults, users=users, outcome=outcome
        )
        try:
            run.run()
        except Exception:  # noqa: BLE001 - a state machine's: to be told
            outcome.broken.append(traceback.format_exc(limit=-4))
    outcome.events, outcome.faults = world.events, faults.injected
    return outcome


@dataclass(slots=True, kw_only=True)
class _Run:
    """The phases of a history."""

    world: World
    hosts: Hosts
    fibers: Fibers
    faults: Faults
    users: dict[str, _User]  # whose sessions live, by their processes
    outcome: Outcome

    def run(self) -> None:
        script, world = self.outcome.script, self.world
        self.faults.plan(script.faults)
        nodes = tuple(self.hosts.nodes)
        mended_s = self.faults.ends_s + 0.01
        world.call(mended_s, lambda: self.faults.mend(nodes))
        calm_s = mended_s + LASTS_S if script.faults else 0.0
        workers = []
        users = self.users.values()
        for user, statements, reads in zip(users, script.writers, script.readers, strict=True):
            user.session.start()
            user.is_calm = lambda: world.now > calm_s
            workers += [self._worker(user, statements, reads)]
        if not self._ended(workers, calm_s + _HANG_S):
            return
        world.run(max(world.now, calm_s) + _MERGED_S)
        for user in users:
            self.outcome.wrong += user.model.wrong()
            user.model.answers.clear()
            session = user.session
            tables = tuple(session.tables.catalog)
            self.outcome.misplaced += misplaced(tables, self.hosts, self.faults)
            self.outcome.leaks += unheld(session.cached, session.kept.values())
            self.outcome.leaks += strays(session.cluster, tables, self.hosts)
        ends = [self.fibers.start(user.session.endpoint, user.end) for user in users]
        if not self._ended(ends, world.now + _HANG_S):
            return
        for user in users:
            self.outcome.wrong += user.model.wrong()
        until_s, left = world.now + _LEASES_S, ["not looked yet"]
        while left and world.now < until_s:
            world.run(world.now + _LOOK_S)
            left = [*left_behind(self.hosts)]
        self.outcome.leaks += left

    def _worker(
        self, user: _User, statements: tuple[Statement, ...], reads: tuple[Statement, ...]
    ) -> Fiber:
        def work() -> None:
            user.begin()
            endpoint = user.session.endpoint
            readers = [
                self.fibers.start(endpoint, partial(user.work, reads[i::2], f"reader {i}"))
                for i in range(2)
            ]
            user.work(statements, "writer")
            self.fibers.join(readers)
            with user.session.up_to_date():
                pass  # what was released last is dropped, too

        return self.fibers.start(user.session.endpoint, work)

    def _run_to_end(self, worker: Fiber, until_s: float) -> None:
        self.world.run(until_s, done=lambda: worker.over)

    def _ended(self, workers: list[Fiber], until_s: float) -> bool:
        """Run until all workers have ended, and for as long as statements do; whether all have."""
        ended = -1
        while not all(worker.over for worker in workers) and ended < len(self.outcome.took_s):
            ended = len(self.outcome.took_s)
            for worker in workers:
                self._run_to_end(worker, until_s)
            until_s = self.world.now + _HANG_S
        background = [each for user in self.users.values() for each in user.session.threads]
        for worker in (*workers, *background):
            if worker.error is not None:
                text = "".join(traceback.format_exception(worker.error, limit=-4))
                self.outcome.broken.append(text)
        if all(worker.over for worker in workers):
            return True
        for user in self.users.values():
            self.outcome.hangs += [
                f"{statement} of {user.session.endpoint} does not end"
                for statement in user.doing.values()
            ]
        return False


def _needs(statement: Statement) -> tuple[str, ...]:
    """The tables without which a statement that writes makes no sense."""
    match statement.kind:
        case "create" | "rewrite":
            return ()
        case "load":
            return (FILE,)
        case "store" | "keep":
            return statement.query.tables
        case "refresh":
            return (*statement.query.tables, statement.table)
    return (statement.table,)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
