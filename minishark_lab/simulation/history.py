"""Runs one history, and says what was wrong with it.

Sessions run statements while faults happen. When the last fault is mended, every table is read, the
catalogs are compared with the disks, all is dropped and closed, and nothing may be left.
"""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from minishark.errors import (
    CatalogError,
    ConflictError,
    ConstraintError,
    DataError,
    MinisharkError,
    PartitionsLostError,
    QueryCancelledError,
)
from minishark.model.catalog import Table
from minishark_lab.simulation.checks import (
    LASTS_S,
    claims,
    left_behind,
    misplaced,
    stored,
    strays,
    unexcused,
    unheld,
)
from minishark_lab.simulation.disks import Disks
from minishark_lab.simulation.faults import Faults
from minishark_lab.simulation.fibers import Fiber, Fibers
from minishark_lab.simulation.hosts import Hosts
from minishark_lab.simulation.model import Model, Said, Seen, Stored, Transaction
from minishark_lab.simulation.queries import Query
from minishark_lab.simulation.script import (
    FAULTS,
    FILE,
    KEPT,
    KEYED,
    REUSE_FAULTS,
    TABLES,
    Script,
    Statement,
    write,
)
from minishark_lab.simulation.session import (
    Given,
    SimulatedFront,
    SimulatedSession,
    WatchedCatalog,
)
from minishark_lab.simulation.work import Rows, rows_of
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.world import Trace, World

_STORES = ("store", "create_as", "keep", "refresh")
_KINDS = frozenset({*FAULTS, *REUSE_FAULTS})
_VERBS = ("begin", "commit", "rollback")
_FRONT, _AGAIN = "front", "r"  # parts of the names of processes; those started again end so
_RESTARTS_MAX = 2
_STARTED_S = 0.3
_HANG_S = 400.0  # from the last fault, and then in which no statement ends, until that is a hang
_MERGED_S = 5.0  # until what was being merged at the end of the statements has been
_LOOK_S = 1.0
_COLLECTED_S = 1.0  # how often garbage is collected
_TOLD_MAX = 5  # of one kind
_LEASES_S = 140.0  # until the files are gone of sessions whose end a node has not heard of


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What has become of a history."""

    script: Script
    queries: int = 0
    taken: int = 0  # queries whose answers were there, of which no task has run
    disturbed: int = 0  # queries that were answered, and while they ran, some fault lasted
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


@dataclass(slots=True, kw_only=True)
class _Running:
    """A statement that runs.

    Attributes:
        statement: which.
        first: the number of the last publication before it.
        number: that of the last one that it has made itself.
        rows: those that it has stored then, if it stores a query.
        inside: the transaction that it is part of.
        told: the rows that it says it has changed, or their number.
    """

    statement: Statement
    first: int
    inside: Transaction | None
    number: int | None = None
    rows: Rows | None = None
    told: Rows | int | None = None

    @property
    def done(self) -> tuple[Statement, Rows | None]:
        """What it has done, as the model has it."""
        return self.statement, self.rows


class _User:
    """Who runs the statements of a process, in several sessions."""

    def __init__(self, front: SimulatedFront, faults: Faults, outcome: Outcome, seed: str) -> None:
        self.front = front
        self.faults = faults
        self.outcome = outcome
        self.model = Model(excused=lambda: bool(faults.destroyed))
        self.doing: dict[str, str] = {}  # the statement of each thread
        self.is_calm: Callable[[], bool] = lambda: False
        self._kept = Query("rows", TABLES[:1])  # whose rows were kept last
        self._rng = Random(seed)
        self._running: dict[Fiber | None, _Running] = {}
        self._open: dict[SimulatedSession, Transaction] = {}
        catalog = front.tables.catalog
        assert isinstance(catalog, WatchedCatalog)
        catalog.published = self._published

    def _published(self, tables: Sequence[Table]) -> None:
        number, running = self.model.publish(), self._running.get(self.front.fibers.current)
        if running is None:
            self.model.merged.append(number)
            return
        running.number = number
        self._note_stored(running, tables)

    def _note_stored(self, running: _Running, tables: Sequence[Table]) -> None:
        statement = running.statement
        for table in tables:
            if statement.kind in _STORES and table.name == statement.table:
                running.rows = stored(table, self.front.hosts)

    def begin(self) -> None:
        """Create the tables."""
        for name in TABLES:
            self.run(write(self._rng, "create", name), "writer")
        self.run(write(self._rng, "keyed", KEYED), "writer")
        rows = self.front.file_rows(FILE)
        if rows is None:
            self.run(write(self._rng, "rewrite", FILE), "writer")
        else:  # a process that died has left it
            self.front.open_file(FILE)
            self._now(replace(write(self._rng, "rewrite", FILE), rows=tuple(rows)))
        self.run(write(self._rng, "keep", KEPT), "writer")

    def work(
        self,
        statements: Sequence[Statement],
        thread: str,
        session: SimulatedSession,
        mean_s: float,
    ) -> None:
        """Run statements one after the other, with pauses."""
        for each in statements:
            pause_s = self._rng.expovariate(1 / mean_s)
            if each.begins_s is not None:
                pause_s = max(0.0, each.begins_s - self.front.hosts.world.now)
            self.front.clock.sleep(pause_s)
            self.run(each, thread, session)
        if session in self._open:
            self.run(replace(statements[-1], kind="rollback"), thread, session)
        self.doing.pop(thread, None)

    def run(
        self, statement: Statement, thread: str, session: SimulatedSession | None = None
    ) -> None:
        """Run one statement, and note what it returns or changes."""
        session = session or self.front.main
        inside = self._open.get(session)
        if (statement.kind == "begin") == (inside is not None) and statement.kind in _VERBS:
            return
        if inside is not None and inside.is_aborted and statement.kind not in _VERBS:
            return
        self.doing[thread] = str(statement)
        was_calm, world, me = self.is_calm(), self.front.hosts.world, self.front.fibers.running()
        running = self._running[me] = _Running(
            statement=statement, first=self.model.number, inside=inside
        )
        began_s = world.now
        is_over = self._cancelled_soon(statement, session)
        try:
            if statement.kind == "query":
                self._query(running, session)
            elif statement.kind in _VERBS:
                self._transact(running, session)
            else:
                self._write(running, session)
        except MinisharkError as error:
            if inside is not None:
                inside.is_aborted = True
            self._failed(running, error, began_s=began_s, was_calm=was_calm)
        except Exception:  # noqa: BLE001 - to be told
            self.outcome.broken.append(f"{statement}: {traceback.format_exc(limit=-4)}")
        del self._running[me]
        is_over.append(True)
        if thread == "writer" and len(self.outcome.misplaced) < _TOLD_MAX:
            tables = tuple(self.front.tables.catalog)
            found = claims(tables, self.front.hosts, self.faults)
            self.outcome.misplaced += [f"{text}, after {statement}" for text in found]
        self.outcome.took_s.append(world.now - began_s)

    def _cancelled_soon(self, statement: Statement, session: SimulatedSession) -> list[bool]:
        """Cancel a statement when it is time, unless the list that is returned has an item then."""
        is_over, after_s = list[bool](), statement.cancelled_s

        def cancel() -> None:
            self.front.clock.sleep(after_s or 0.0)
            if not is_over:
                session.cancel()

        if after_s is not None:
            self.front.fibers.start(self.front.endpoint, cancel)
        return is_over

    def _query(self, running: _Running, session: SimulatedSession) -> None:
        self.outcome.queries += 1
        query, inside = running.statement.query, running.inside
        began_s = self.front.hosts.world.now
        rows, is_taken = session.answer(query)
        self.outcome.taken += is_taken
        self.outcome.disturbed += self.faults.within(_KINDS, began_s, self.front.hosts.world.now)
        seen = Seen(query, running.first, self.model.number, rows)
        if inside is None:
            self.model.answers.append(seen)
        else:
            inside.seen.append((len(inside.done), seen))

    def _transact(self, running: _Running, session: SimulatedSession) -> None:
        model, inside = self.model, running.inside
        if inside is None:
            session.sql("BEGIN")
            self._open[session] = Transaction(first=running.first, last=model.number)
            return
        del self._open[session]
        model.transactions.append(inside)
        session.sql(running.statement.sql)
        self._ended(running, inside)

    def _ended(self, running: _Running, inside: Transaction) -> None:
        """A transaction has ended, and perhaps published something."""
        if running.number is not None:
            if inside.is_aborted or running.statement.kind == "rollback":
                self.outcome.broken.append(f"{inside.tables} were published by a ROLLBACK")
            inside.committed = running.number
            self.model.effect(running.number, *inside.done, by=inside)

    def _write(self, running: _Running, session: SimulatedSession) -> None:
        statement = running.statement
        if statement.kind == "refresh":
            statement = running.statement = replace(statement, query=self._kept)
        is_main = session is self.front.main
        if is_main and not all(name in self.model.now for name in statement.names):
            return
        self.outcome.writes += 1
        try:
            self._change(running, session)
        except MinisharkError:
            if statement.kind == "refresh":
                # Whoever needs the rows computes them, of what their tables have then.
                self._now(replace(statement, kind="forget"))
                self.front.release(statement.table)
                self._now(replace(statement, kind="release"))
            raise
        if running.told is not None:
            self.model.told.append(self._said(running, running.told))
        if running.told in (0, []):
            return
        if running.inside is not None:
            table = session.scope.catalog.find(statement.table)
            self._note_stored(running, () if table is None else (table,))
            running.inside.done.append(running.done)
        elif running.number is not None:
            self._took_effect(running)

    def _took_effect(self, running: _Running) -> None:
        assert running.number is not None
        self.model.effect(running.number, running.done)
        if running.statement.kind in _STORES:
            self.model.stored.append(
                Stored(running.statement, running.rows, running.first, running.number)
            )

    def _now(self, statement: Statement, rows: Rows | None = None) -> None:
        """A statement takes effect that publishes nothing itself."""
        self.model.effect(self.model.publish(), (statement, rows))

    def _change(self, running: _Running, session: SimulatedSession) -> None:
        statement, front = running.statement, self.front
        name, layout = statement.table, statement.layout
        match statement.kind:
            case "create":
                session.create(name, Given(statement.rows), layout)
            case "store":
                session.store(name, statement.query, layout)
            case "load":
                session.load(name, FILE, layout)
            case "rewrite":
                front.write_file(name, statement.rows)
                running.number = self.model.publish()
            case "keep":
                front.keep(name, statement.query, layout)
                self._kept = statement.query
                self._kept_now(running)
            case "refresh":
                front.refresh(name)
                self._kept_now(running)
            case "release":
                front.release(name)
                running.number = self.model.publish()
            case "keyed":
                session.sql_at_once(statement.sql)
            case "delete" | "update" | "empty":
                rows = rows_of(session.sql(statement.sql))
                is_count = statement.kind == "empty" or not statement.returns
                running.told = rows[0][0] if is_count else sorted(rows)
            case _:
                session.sql(statement.sql)

    def _said(self, running: _Running, told: MinisharkError | Rows | int) -> Said:
        return Said(
            statement=running.statement,
            told=told,
            first=running.first,
            last=self.model.number,
            inside=running.inside,
            done=0 if running.inside is None else len(running.inside.done),
        )

    def _kept_now(self, running: _Running) -> None:
        """Rows are kept from now on."""
        table = self.front.tables.catalog.get(self.front.kept[running.statement.table])
        running.number = self.model.publish()
        running.rows = stored(table, self.front.hosts)

    def _failed(
        self, running: _Running, error: MinisharkError, *, began_s: float, was_calm: bool
    ) -> None:
        statement, first = running.statement, running.first
        names = statement.query.tables
        if KEPT in names and (self.faults.destroyed or self.model.is_open(KEPT, first)):
            names = (*names, *TABLES)  # from which its rows are computed again
        self.outcome.failures[type(error).__name__] += 1
        if isinstance(error, QueryCancelledError) and statement.cancelled_s is not None:
            return
        if isinstance(error, DataError) and self._may_have_changed(names, first):
            return
        if isinstance(error, CatalogError | ConflictError | ConstraintError):
            if isinstance(error, CatalogError) and names != statement.query.tables:
                return
            self.model.failures.append(self._said(running, error))
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
        table = self.front.tables.catalog.find(error.table)
        if table is None or table.version:
            return True
        loaded = self.front.tables._origins.get(table.folder)  # noqa: SLF001
        if loaded is None:
            return True
        return loaded.origin.source.resolve().version != loaded.origin.version

    def killed(self) -> None:
        """The process dies; what it has just published, others may have seen."""
        self.front.kill()
        for running in self._running.values():
            if running.number is None:
                continue
            if running.statement.kind == "commit" and running.inside is not None:
                self._ended(running, running.inside)
            elif running.inside is None and running.statement.kind not in ("keep", "refresh"):
                self._took_effect(running)
        self.outcome.wrong += self.model.wrong()

    def end(self) -> None:
        """Read all tables, drop them, and leave."""
        for name in (*TABLES, KEYED, KEPT, FILE):
            if name in self.model.now:
                self.run(Statement(kind="query", query=Query("rows", (name,))), "writer")
                self.run(Statement(kind="query", query=Query("deep", (name,))), "writer")
        for name in (*TABLES, KEYED):
            if name in self.model.now:
                self.run(Statement(kind="drop", query=Query("rows", (name,)), table=name), "writer")
        self.doing["writer"] = "close"
        self.front.close()
        self.doing.clear()


def run_history(script: Script, trace: Trace | None = None) -> Outcome:
    """Run a history to its end."""
    with _own_garbage():
        return _ran(script, trace)


@contextlib.contextmanager
def _own_garbage() -> Iterator[None]:
    """Garbage is collected when the block says so, and only what is made in it.

    Kept rows and outputs are released by what has a reference to them. If Python chose the moment,
    a history would depend on what its process has done before.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _ran(script: Script, trace: Trace | None) -> Outcome:
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
    fronts = [f"{_FRONT}{i}" for i in range(len(script.writers))]
    users: dict[str, _User] = {}

    def started(at: str, lake: str = "") -> None:
        process = SimulatedFront(
            hosts=hosts, fibers=fibers, endpoint=at, reuse=script.reuse, lake=lake
        )
        users[at] = _User(process, faults, outcome, f"{at} {script.seed}")

    def restart(at: str) -> None:
        if at.count(_AGAIN) < _RESTARTS_MAX:
            before = users.pop(at)
            before.killed()
            again = f"{at}{_AGAIN}"
            fronts.append(again)
            started(again, before.front.lake)
            run.start(again)

    faults = Faults(
        world=world,
        hosts=hosts,
        fronts=fronts,
        kill_session=lambda at: users.pop(at).killed(),
        restart_session=restart,
    )
    world.run(_STARTED_S)
    for front in [*fronts]:
        started(front)
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
    _calm_s: float = 0.0
    _workers: list[Fiber] = field(default_factory=list)

    def run(self) -> None:
        script, world = self.outcome.script, self.world
        self._collect()
        self.faults.plan(script.faults)
        nodes = tuple(self.hosts.nodes)
        mended_s = self.faults.ends_s + 0.01
        world.call(mended_s, lambda: self.faults.mend(nodes))
        calm_s = self._calm_s = mended_s + LASTS_S if script.faults else 0.0
        for at in self.users:
            self.start(at)
        if not self._ended(self._workers, calm_s + _HANG_S):
            return
        world.run(max(world.now, calm_s) + _MERGED_S)
        if not self._ended(self._workers, world.now + _HANG_S):  # processes were started again
            return
        gc.collect()
        users = self.users.values()
        for user in users:
            front, tables = user.front, tuple(user.front.tables.catalog)
            self.outcome.misplaced += misplaced(tables, self.hosts, self.faults)
            self.outcome.leaks += unheld(front.cached, front.kept.values())
            self.outcome.leaks += strays(front.cluster, tables, self.hosts)
        ends = [self.fibers.start(user.front.endpoint, user.end) for user in users]
        if not self._ended(ends, world.now + _HANG_S):
            return
        for user in users:
            self.outcome.wrong += user.model.wrong()
        until_s, left = world.now + _LEASES_S, ["not looked yet"]
        while left and world.now < until_s:
            world.run(world.now + _LOOK_S)
            left = [*left_behind(self.hosts)]
        self.outcome.leaks += left

    def _collect(self) -> None:
        gc.collect(1)
        self.world.call(self.world.now + _COLLECTED_S, self._collect)

    def start(self, at: str) -> None:
        """Let the sessions of a process work."""
        script, user = self.outcome.script, self.users[at]
        number = int(at.rstrip(_AGAIN).removeprefix(_FRONT))
        user.is_calm = lambda: self.world.now > self._calm_s
        parts = (each[number] for each in (script.writers, script.readers, script.clerks))
        self._workers.append(self._worker(user, *parts))

    def _worker(
        self,
        user: _User,
        statements: Sequence[Statement],
        reads: Sequence[Statement],
        changes: Sequence[Statement],
    ) -> Fiber:
        front, pause_s = user.front, self.outcome.script.pause_s

        def work() -> None:
            user.begin()
            sessions = self.outcome.script.sessions
            others = [
                self._thread(user, f"reader {i}", reads[i::sessions], pause_s)
                for i in range(sessions)
            ] + [
                self._thread(user, f"clerk {i}", [s for s in changes if s.clerk == i], 2 * pause_s)
                for i in range(2)
            ]
            user.work(statements, "writer", front.main, pause_s)
            self.fibers.join(others)
            with contextlib.suppress(MinisharkError), front.engine.up_to_date(front.main.scope):
                pass  # what was released last is dropped, too

        return self.fibers.start(front.endpoint, work)

    def _thread(
        self, user: _User, name: str, statements: Sequence[Statement], pause_s: float
    ) -> Fiber:
        """Another session of a process."""
        session = user.front.session()
        work = partial(user.work, statements, name, session, pause_s)
        return self.fibers.start(user.front.endpoint, work)

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
        for worker in (*workers, *(user.front.keeper for user in self.users.values())):
            if worker.error is not None:
                text = "".join(traceback.format_exception(worker.error, limit=-4))
                self.outcome.broken.append(text)
        if all(worker.over for worker in workers):
            return True
        for user in self.users.values():
            self.outcome.hangs += [
                f"{statement} of {user.front.endpoint} does not end"
                for statement in user.doing.values()
            ]
        return False


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
