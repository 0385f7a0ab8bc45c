"""Engine: the cluster and tables that sessions share, and the queries that run over them.

What users ask of a session (`session.runtime` and the modules that it composes) ends in `run`,
which sends a query up the ladder of fallbacks, or in the scratch database. What a session has of
its own, such as settings, is its `Scope`, which calls take.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa

from minishark.cluster.backend import DatabaseBrokenError, FragmentRejectedError, Placement
from minishark.cluster.contract import Cluster
from minishark.cluster.outputs import FOLDER as NODES_FOLDER
from minishark.compiler.logical.plan import plan_text
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.sql.statements import with_setting
from minishark.errors import (
    ClusterError,
    DataValueError,
    MinisharkError,
    PartitionsLostError,
    QueryCancelledError,
    QueryError,
    ResourceError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.model.catalog import Catalog, Table
from minishark.model.events.kinds import AnyEvent
from minishark.model.events.record import QueryRecord
from minishark.model.events.stream import EventStream
from minishark.query.adaptation import Adaptation
from minishark.query.clock import SYSTEM_CLOCK, Clock
from minishark.query.job_builder import Environment
from minishark.query.ladder import climb
from minishark.query.limits import DiskUse, Limits
from minishark.query.locality import hosts_of
from minishark.query.observer import QueryObserver
from minishark.query.planner import QueryPlan, QueryPlanner, SharedPlanner
from minishark.query.progress import ProgressHandler, QueryProgress
from minishark.query.questions import Question, question_of
from minishark.query.reuse import RANDOM
from minishark.query.reused import answered, reuse_text
from minishark.query.run import QueryRun, Site, query_folder, site_of, working_folder
from minishark.query.sinks import CollectRows, Sink, StreamRows
from minishark.query.sources import SourceTables
from minishark.query.stored_rows import stored_rows
from minishark.session.kept_outputs import NO_REUSE, Reuses, kept_outputs
from minishark.session.prints import TaskPrints
from minishark.session.programs.programs import Programs
from minishark.session.scope import Scope
from minishark.sources.storage_options import Storage
from minishark.tables.cached import CachedRows, CachedTables, CachePlan, Fingerprint
from minishark.tables.deltas import SIZES, Sizes
from minishark.tables.interruption import stopped_by
from minishark.tables.memory_store import load_changed
from minishark.tables.memory_transaction import in_memory
from minishark.tables.merging import Merger
from minishark.tables.scratch_database import NO_CATALOG, SharedScratch, StoppedBy
from minishark.tables.store import StoreAsTable
from minishark.tables.tables import Tables
from minishark.worker.host_files import OBJECTS, HostFiles
from minishark.worker.memory import front_end_bytes
from minishark.worker.protocol import ScalarFunction, TaskFunction

OPEN_MAX = 1000
_MERGER_END_S = 5.0  # until nobody waits for it any more, when the cluster is gone
_BESIDE_PROGRAMS_S = 0.05  # until a task may run on a node that it does not prefer
_SLOTS_HELD = "Ran in the front end, as programs hold all slots."
_DISK_WARNING = "There is no room in shared memory: shuffle data went to disk, which is slower."


class OpenQueries:
    """Counts the open queries of a session."""

    def __init__(self, open_max: int = OPEN_MAX) -> None:
        self.open_max = open_max
        self.count = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count one open query (ResourceError if too many are open)."""
        with self._lock:
            if self.count >= self.open_max:
                raise ResourceError(
                    f"The session has {self.count:,} queries open, which is its limit: wait for "
                    "some of them, ask from fewer threads, or use another session."
                )
            self.count += 1
        try:
            yield
        finally:
            with self._lock:
                self.count -= 1


Result = TypeVar("Result")


class RefusedError(TaskFailedError):
    """No executor accepts a statement, and the query's sink needs tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an engine is made of; simulations have others."""

    clock: Clock = SYSTEM_CLOCK
    tables: type[Tables] = Tables
    sizes: Sizes = SIZES  # of the files that changes make
    planner: type[SharedPlanner] = SharedPlanner
    chance: Callable[[], str] = RANDOM  # gives random texts


class Engine:
    """Runs queries over a cluster's tables; safe to use from several threads."""

    def __init__(
        self,
        cluster: Cluster,
        options: PlannerOptions,
        placing: Callable[[], Placement],
        storage: Storage,
        *,
        limits: Limits | None = None,
        prints: bool = True,
        reuse: Reuses = NO_REUSE,
        parts: Parts = Parts(),
    ) -> None:
        """Over a cluster.

        Args:
            cluster: where tables are, and queries run.
            options: how queries are planned.
            placing: gives how their tasks are placed.
            storage: how object stores are reached.
            limits: of each query.
            prints: whether what tasks print is shown.
            reuse: who takes outputs of its queries, and where they stay.
            parts: what it is made of.
        """
        config = {
            "memory_limit": f"{front_end_bytes(cluster.memory_limit_bytes)}B",
            "temp_directory": str(cluster.scratch / "front"),
        }
        self.cluster = cluster
        self.clock = clock = parts.clock
        self.planning = PlanningDatabase(config)  # a connection of no session
        self.tables = parts.tables(
            cluster=cluster,
            client=cluster.shared_tables(),
            planning=self.planning,
            placement=self._place_loads,
            partitions=options.partitions,
            warn=self.warn,
            observed=partial(self.observed, kind="load"),
            storage=storage,
            clock=clock,
            sizes=parts.sizes,
            names_rows=reuse.outlive,
        )
        self.cached = CachedTables(self.tables)
        self.sources = SourceTables(
            planning=self.planning,
            storage=storage,
            host_files=HostFiles(cluster.scratch / OBJECTS),
        )
        self.planner = parts.planner(
            options=options, sources=self.sources, cores=lambda: cluster.cores
        )
        self.scratch = SharedScratch(config, lambda: self.sources.names, clock.lock())
        self._placing = placing
        self.programs = Programs(cluster, self.tables, placing)
        self.limits = limits or Limits()
        self.open_queries = OpenQueries()
        self.running: dict[int, QueryObserver] = {}
        self.events = EventStream()
        self.prints = TaskPrints(are_shown=prints)
        self.loading = clock.lock()
        self.writing = clock.lock()  # held while a statement changes tables, before `loading`
        self.merger = Merger(
            tables=self.tables, writing=self.writing, is_open=lambda: not self.is_stopped
        )
        self._environment = Environment(storage=storage)  # for executors, whosever query they run
        self._explain_until_s = 0.0
        self._query_numbers = itertools.count(1)
        self._warnings: list[str] = list(cluster.warnings)
        self._promised: dict[str, Scope] = {}  # whose queries cached tables are, by their names
        self._lock = threading.Lock()
        self.reuse = kept_outputs(
            cluster,
            reuse,
            self.tables.contents,
            access=storage.access,
            warn=self.warn,
            chance=parts.chance,
        )
        self._pid = os.getpid()
        self._stopped = False
        self._replicator = self.tables.replicator() if cluster.elastic else None
        if self._replicator is not None:
            self._replicator.start()

    # Life

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or this process is a fork of the session's."""
        return self._stopped or self.is_fork

    @property
    def is_fork(self) -> bool:
        """Whether this process is a fork of the session's."""
        return os.getpid() != self._pid

    def stop(self, *scopes: Scope) -> bool:
        """Stop the cluster, free its memory, and close these; whether this call did it."""
        # Does nothing in a fork of the process: the cluster is the parent's.
        if self.is_fork:
            return False
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if stopped:
            return False
        with contextlib.ExitStack() as steps:  # each is taken, also after Ctrl-C in one before it
            steps.callback(self.prints.close)
            steps.callback(self.planning.close)
            steps.callback(self.scratch.close)
            for scope in scopes:
                steps.callback(scope.close)
            if self._replicator is not None:
                steps.callback(self._replicator.join)
            steps.callback(self.merger.join, _MERGER_END_S)
            steps.callback(self.cluster.close)
            if self.reuse is not None:
                steps.callback(self.reuse.close)
            if self._replicator is not None:
                steps.callback(self._replicator.stop)
            steps.callback(self.programs.stop)
            for scope in scopes:
                scope.scratch.interrupt()
        return True

    def check_open(self, scope: Scope | None = None) -> None:
        """Raise ClusterError if it or a session is stopped, or this process is a fork."""
        if self._stopped or (scope is not None and scope.is_stopped):
            raise ClusterError("The session is stopped; call connect() again.")
        if self.is_fork:
            raise ClusterError(
                "Sessions do not survive fork(): call connect() in the child process."
            )

    @contextlib.contextmanager
    def up_to_date(self, scope: Scope) -> Iterator[None]:
        """What every statement relies on: an open session, and tables as last written."""
        self.check_open(scope)
        with self.loading:
            load_changed(self.tables, self.cached, scope.scratch)
        for look in scope.before_statements:
            look()
        yield

    @property
    def warnings(self) -> tuple[str, ...]:
        for sentence in self.cluster.warnings:
            self.warn(sentence)  # it may have found out since
        return tuple(self._warnings)

    def warn(self, sentence: str) -> None:
        with self._lock:
            if sentence not in self._warnings:
                self._warnings.append(sentence)

    # What later statements rely on

    def environment(self, scope: Scope) -> Environment:
        """What travels to executors: what all sessions have set and defined, then this one."""
        shared = self._environment
        of_transaction = (*scope.scratch.uncommitted, *scope.planning.time_definitions)
        return replace(
            shared,
            settings=(*shared.settings, *scope.settings),
            definitions=(*shared.definitions, *scope.definitions, *of_transaction),
        )

    def limited_environment(self, scope: Scope) -> Environment:
        """The same, with the limits of each query."""
        full = self.environment(scope)
        limits = self.limits.settings(self.cluster.total_slots)
        return replace(full, settings=(*limits, *full.settings)) if limits else full

    def add_definition(self, sql: str) -> None:
        """Note a definition for all sessions, which the planning database accepts."""
        with self._lock:
            old = self._environment
            self._environment = replace(old, definitions=(*old.definitions, sql))

    def change_setting(self, sql: str, scope: Scope) -> None:
        """Change a setting of all sessions, by the statement of one.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        scope.planning.define(sql)
        scope.scratch.define(sql)
        with self._lock:
            old = self._environment
            self._environment = replace(old, settings=with_setting(old.settings, sql))

    def set_functions(self, functions: Mapping[str, ScalarFunction]) -> None:
        """The Python functions that statements of all sessions may call from now on."""
        self.planner.set_functions(functions)
        # A task's index is the same however often the task runs, so that it may be distributed.
        varying = (n for n, f in functions.items() if f.volatile and not f.takes_task)
        self.planning.set_functions(functions, varying)
        with self._lock:
            self._environment = replace(self._environment, functions=tuple(functions.values()))

    def place(self, placing: Callable[[], Placement]) -> None:
        """Place the tasks of queries otherwise from now on."""
        self._placing = placing

    def placement(self) -> Placement:
        """How tasks are placed now."""
        return self._placing()

    # Queries

    def run(
        self,
        sql: str,
        sink: Sink[Result],
        scope: Scope,
        *,
        catalog: Catalog | None = None,
        explained: bool = False,
        handlers: tuple[ProgressHandler, ...] = (),
        keep: Callable[[AnyEvent], None] | None = None,
        told: str = "",
    ) -> tuple[Result, QueryRecord]:
        """Run a query to its end.

        Args:
            sql: the query.
            sink: what becomes of its rows.
            scope: what names and settings mean.
            catalog: the tables that it reads, if others than those of the scope.
            explained: whether its metrics say why each task ran where it did, and what operators
                did.
            handlers: hear of its progress; what they raise ends it.
            keep: takes its events, besides the session's stream.
            told: the statement that events tell, if the query is a part of one.
        """
        with self.open_queries.counted(), self.observed(told or sql, scope, keep) as observer:
            query = _Query(
                engine=self,
                scope=scope,
                planner=scope.planner if catalog is None else scope.planner.seeing(catalog),
                sql=sql,
                sink=sink,
                may_be_kept=catalog is None and not explained,
                explained=explained,
                handlers=handlers,
                observer=observer,
            )
            return query.run()

    @contextlib.contextmanager
    def observed(
        self,
        sql: str,
        scope: Scope | None = None,
        keep: Callable[[AnyEvent], None] | None = None,
        *,
        kind: str = "query",
    ) -> Iterator[QueryObserver]:
        """The observer of a query or load of a session while it runs; tells how it fails."""
        emit = self.events.emit

        def emit_both(event: AnyEvent) -> None:
            emit(event)
            assert keep is not None, "it takes them, too"
            keep(event)

        number, began_s = next(self._query_numbers), time.perf_counter()
        told = emit if keep is None else emit_both
        observer = QueryObserver(number=number, emit=told, kind=kind)
        try:
            with self._stoppable(observer, scope):
                observer.started(self.sources.shown(sql))
                yield observer
        except BaseException as error:
            observer.raised(error, time.perf_counter() - began_s)
            raise

    @contextlib.contextmanager
    def searching(self, scope: Scope) -> Iterator[StoppedBy]:
        """What stops a search in the front end: no query of its own, but it ends as these do."""
        observer = QueryObserver(number=next(self._query_numbers), emit=lambda _: None)
        with self._stoppable(observer, scope):
            yield observer.stopped_by

    @contextlib.contextmanager
    def _stoppable(self, observer: QueryObserver, scope: Scope | None) -> Iterator[None]:
        """A block that can be cancelled, and is if it takes longer than queries may."""
        self.running[observer.number] = observer
        if scope is not None:
            scope.running[observer.number] = scope.tags
        try:
            limited = observer.limited_to(self.limits.query_timeout_s)
            with limited, stopped_by(observer.cancel):
                yield
        finally:
            del self.running[observer.number]
            if scope is not None:
                del scope.running[observer.number]

    @contextlib.contextmanager
    def binding(self, sql: str) -> Iterator[None]:
        """Tells that a query failed if it does not bind; if it does, it is told when it runs."""
        began_s = time.perf_counter()
        try:
            yield
        except MinisharkError as error:
            observer = QueryObserver(number=next(self._query_numbers), emit=self.events.emit)
            observer.started(self.sources.shown(sql))
            observer.raised(error, time.perf_counter() - began_s)
            raise

    def cancel(self, number: int) -> bool:
        """Cancel a running query, by its number in events; whether it runs."""
        observer = self.running.get(number)
        if observer is not None:
            observer.cancel()
        return observer is not None

    def explain_for(self, seconds: float) -> None:
        """For so long, events say of every task why it ran where it did."""
        self._explain_until_s = max(self._explain_until_s, time.monotonic() + seconds)

    @property
    def explains_all(self) -> bool:
        """Whether events say of every task why it ran where it did."""
        return time.monotonic() < self._explain_until_s

    def query_in_front_end(
        self,
        sql: str,
        scope: Scope,
        *,
        lossless: bool = False,
        target: str = "",
        observer: QueryObserver | None = None,
    ) -> pa.Table:
        """Run a query in the scratch database, over all rows of the cluster's tables.

        Args:
            sql: the query.
            scope: what names and settings mean.
            lossless: whether DuckDB's types are kept.
            target: where COPY writes its rows, in DuckDB's types; then COPY's answer is given.
            observer: can cancel it.
        """
        self.compute(scope.planning.tables_in(sql), scope)
        stoppable = stopped_by if observer is None else observer.stopped_by
        takes = scope.scratch.takes_tables(sql)
        with self.writing if takes else contextlib.nullcontext():
            run = f"COPY ({sql}) TO {target}" if target else sql
            return scope.scratch.query(run, lossless=lossless, stoppable=stoppable)

    def promise(self, plan: CachePlan, scope: Scope) -> CachedRows:
        """Promise the rows of a query of a session as a table."""
        rows = self.cached.promise(plan)
        self._promised[rows.name] = scope
        weakref.finalize(rows, _forget_promiser, weakref.ref(self), rows.name).atexit = False
        return rows

    def _promiser(self, name: str, scope: Scope) -> Scope:
        """By whose settings and views a cached table is computed that a session needs."""
        promiser = self._promised.get(name, scope)
        return scope if promiser.is_stopped else promiser

    def compute(
        self, names: Sequence[str], scope: Scope, handlers: tuple[ProgressHandler, ...] = ()
    ) -> None:
        """Compute those of the tables that are only promised."""
        tables = (self.tables.catalog.find(name) for name in dict.fromkeys(names))
        for name in [table.name for table in tables if table and not table.is_computed]:
            by = self._promiser(name, scope)
            run = partial(self._computed, by, scope, handlers)
            self.cached.compute(name, partial(self._fingerprint, by), run)

    def _computed(
        self,
        promiser: Scope,
        asker: Scope,
        handlers: tuple[ProgressHandler, ...],
        plan: CachePlan,
        sink: StoreAsTable,
    ) -> Table:
        """The rows of a cached table: its text means what it meant where it was promised."""
        # Part of the query that needs it: it is not counted as another open one, and cancelled
        # with it, not with the queries of the session that promised it.
        with self.observed(plan.sql, asker) as observer:
            query = _Query(
                engine=self,
                scope=promiser,
                planner=promiser.planner,
                sql=plan.sql,
                sink=sink,
                handlers=handlers,
                observer=observer,
            )
            return query.run()[0]

    def reuse_lines(
        self, plan: QueryPlan, scope: Scope, called: TaskFunction | None = None
    ) -> list[str]:
        """What of a plan exists already, for EXPLAIN, and of the tables that it needs computed."""
        assert self.reuse is not None, "this session keeps outputs"
        environment = self.limited_environment(scope)
        lines = [reuse_text(plan, self.reuse, environment, working_folder(), called)]
        for table in plan.tables.values():
            by = None if table.is_computed else self.cached.plan(table.name)
            if by is not None and by.function is not None:
                promiser = self._promiser(table.name, scope)
                read = promiser.planner.describe(by.sql, on_hosts=self.on_hosts)
                lines.append(f"Table {table.name}, which is not computed yet:")
                lines += self.reuse_lines(read, promiser, by.function)
        return lines

    def _fingerprint(self, scope: Scope, plan: CachePlan) -> Fingerprint | None:
        """What a cached table's rows are computed from; None if that does not determine them."""
        if not self.cluster.loses_files or plan.function is not None:
            return None
        read = scope.planner.deterministic_inputs(plan.sql, on_hosts=self.on_hosts)
        if read is None:
            return None
        # The order in which a plan reads tables may be another one next time.
        return (*self.environment(scope).settings, *sorted(map(self.tables.content, read)))

    def restore(
        self, lost: PartitionsLostError, scope: Scope, check: Callable[[], None] = lambda: None
    ) -> None:
        """Restore a table whose partitions are lost: load its files again, or compute it again.

        If there is no way, wait for nodes that may have them; what `check` raises ends that.

        Raises:
            PartitionsLostError: nobody has them.
            ConflictError: somebody has, but not as a transaction has read them.
        """
        try:
            if lost.table in self.cached:
                by = self._promiser(lost.table, scope)
                self.cached.restore(lost, partial(self._fingerprint, by))
            else:
                self.tables.restore(lost)
                if (transaction := in_memory(scope.transaction)) is not None:
                    transaction.follow(lost.table)
        except PartitionsLostError as error:
            self.tables.come_back(lost.table, error, check)

    @property
    def on_hosts(self) -> bool:
        placement = self.placement()
        return bool(hosts_of(placement.nodes, placement.stores))

    def threads(self, queries: int, *, on_hosts: bool) -> int:
        """Threads of a large task that is alone in its stage, while so many queries are open."""
        # The cores are shared: several queries with a thread per core would only take turns.
        return 1 if on_hosts else max(1, self.planner.options.threads // max(1, queries))

    @property
    def storage(self) -> Storage:
        """How object stores are reached."""
        return self.tables.storage

    def _place_loads(self) -> Placement:
        """The placement of tasks that load tables."""
        self.check_slots()
        return self._placed()

    def _placed(self) -> Placement:
        """The placement of tasks: beside programs, which hold the slots of some nodes, anywhere."""
        placed = self.placement()
        if self.programs.slots and placed.wait_s is not None:
            return replace(placed, wait_s=min(placed.wait_s, _BESIDE_PROGRAMS_S))
        return placed

    def check_slots(self) -> None:
        """Raise ResourceError if programs hold all slots: tasks would wait for their ends."""
        # If there is no slot at all, nodes are being started, or cut off: tasks wait for them.
        if self.programs.slots and self.programs.slots >= self.cluster.total_slots:
            raise ResourceError(
                "Programs hold all slots: wait for their results, cancel one, or start them with "
                "fewer workers."
            )

    def site(self, folder: str) -> Site:
        """Where the jobs of a query run, on nodes that have its folder."""
        # Nodes of a running cluster may have started again, without the folder of outputs.
        reuse, kept = self.reuse, tuple[str, ...]()
        if reuse is not None and reuse.folder != NODES_FOLDER and self.cluster.address:
            kept = (reuse.folder,)
        return site_of(self.cluster, self._placed, folder, *kept, clock=self.clock)

    def label(self, query: int) -> str:
        """What others call a query."""
        of = f" of session {self.cluster.store_name}" if self.cluster.address else ""
        return f"query {query}{of}"

    def query_folder(self) -> AbstractContextManager[str]:
        """A folder for the files of one query, removed afterwards."""
        return query_folder(self.cluster, next(self._query_numbers))


@dataclass(slots=True, kw_only=True)
class _Query(Generic[Result]):
    """One query on the ladder."""

    engine: Engine  # what runs it
    scope: Scope  # whose it is
    planner: QueryPlanner  # plans it
    sql: str  # its text
    sink: Sink[Result]  # what becomes of its rows
    observer: QueryObserver  # told what happens
    # Whether metrics say why each task ran where it did, what operators did, and how the plan was
    # changed.
    explained: bool = False
    handlers: tuple[ProgressHandler, ...] = ()  # told of its progress, besides the session's
    _started_s: float = field(default_factory=time.perf_counter)
    _planned_s: float = 0.0
    may_be_kept: bool = False  # whether the answer may be one that an earlier query has left
    _question: Question | None = None  # that it asks, if that has a name
    _on_hosts: bool = False  # whether there were several hosts when it was planned

    def run(self) -> tuple[Result, QueryRecord]:
        if self.scope.scratch.reads_catalog(self.sql):
            return self._of_catalog()
        return self._kept_answer() or climb(self)

    def _kept_answer(self) -> tuple[Result, QueryRecord] | None:
        """The answer that an earlier query has left to whoever asks the same, if there is one."""
        engine, sink = self.engine, self.sink
        is_read = isinstance(sink, CollectRows | StreamRows)
        if engine.reuse is None or not (is_read and self.may_be_kept):
            return None
        self._question = question_of(
            self.sql,
            self.planner,
            engine.limited_environment(self.scope),
            engine.reuse.leaves,
            lossless=sink.lossless,
        )
        if self._question is None:
            return None
        kept = answered(engine.reuse, self._question, self.observer.number)
        if kept is None:
            return None
        self._planned_s = time.perf_counter()
        rows, event = kept
        self.observer.reused(event)
        return sink.accept(rows), self._ended(())

    def _of_catalog(self) -> tuple[Result, QueryRecord]:
        """Run a query that reads the catalog, which only the front end has."""
        if self.sink.needs_tasks:
            raise UnsupportedError(NO_CATALOG)
        self._planned_s = time.perf_counter()
        return self.sink.accept(self._front_end_rows()), self._ended((), in_front_end=True)

    def plan(self, *, whole: bool) -> QueryPlan:
        self._on_hosts = self.engine.on_hosts
        plan = self.planner.plan(self.sql, self.sink, on_hosts=self._on_hosts, whole=whole)
        self.scope.check_read(plan.source_tables)
        self._planned_s = time.perf_counter()
        self.observer.planned(plan, self._planned_s - self._started_s)
        return plan

    def compute(self, tables: Sequence[str]) -> None:
        """Compute promised tables; cancelling this query cancels that, too."""
        handlers = (*self.handlers, lambda _: self.observer.check())
        self.engine.compute(tables, self.scope, handlers)

    def is_current(self, plan: QueryPlan) -> bool:
        return self.planner.is_current(plan)

    def restore(self, lost: PartitionsLostError) -> None:
        self.engine.restore(lost, self.scope, self.observer.check)

    def execute(self, plan: QueryPlan, warnings: tuple[str, ...]) -> tuple[Result, QueryRecord]:
        with contextlib.closing(plan):
            return self._executed(plan, warnings)

    def _executed(self, plan: QueryPlan, warnings: tuple[str, ...]) -> tuple[Result, QueryRecord]:
        engine, planning = self.engine, self.planner.planning
        if self.sink.takes_constants and plan.logical.is_constant:
            # Pools ask SELECT 1 all day. If it fails, the task's error is the one to tell.
            with contextlib.suppress(QueryError):
                rows = planning.show(self.sql)
                return self.sink.accept(rows), self._ended(warnings, in_front_end=True)
        if self.sink.takes_stored(on_hosts=self._on_hosts):
            stored = stored_rows(plan, partial(planning.arrow_schema, self.sql))
            if stored is not None:
                taken = self.sink.accept_stored(stored, engine.cluster.store())
                if taken is not None:
                    return taken, self._ended(warnings, in_front_end=True)
        try:
            engine.check_slots()
        except ResourceError:
            if not isinstance(self.sink, CollectRows | StreamRows):
                raise
            rows = self._front_end_rows()
            warnings = (*warnings, _SLOTS_HELD)
            return self.sink.accept(rows), self._ended(warnings, in_front_end=True)
        output = self.sink.output(plan.physical, plan.columns)
        adaptation = Adaptation(
            plan=plan.physical,
            catalog=plan.catalog,
            options=plan.options,
            free_root=plan.has_any_layout,
        )
        with engine.query_folder() as folder:
            run = QueryRun(
                stages=plan.stages,
                tables=partial(self._read_by, plan),
                site=engine.site(folder),
                store=engine.cluster.store(),
                folder=folder,
                output=output,
                environment=engine.limited_environment(self.scope),
                threads=engine.threads(engine.open_queries.count, on_hosts=self._on_hosts),
                is_alone=engine.open_queries.count == 1,
                explained=self.explained,
                traced=engine.explains_all,
                on_progress=self._tell if self.handlers or self.scope.progress_handlers else None,
                adaptation=adaptation,
                observer=self.observer,
                on_print=engine.prints.show,
                disk=DiskUse(engine.limits.query_disk_bytes),
                reuse=engine.reuse,
                made_by=engine.label(self.observer.number),
                question=self._question_of(plan),
            )
            with contextlib.closing(run):
                run.run()
                result = run.finished(self.sink)
        record = self.observer.record
        if record.uses_disk:
            engine.warn(_DISK_WARNING)
            if engine.reuse is not None:
                engine.reuse.make_room()
        if record.revisions and self.explained:
            shown = (plan.physical, adaptation.executed(run.stages))
            record.plans = tuple(map(plan_text, shown))
        return result, self._ended(warnings)

    def _read_by(self, plan: QueryPlan) -> Mapping[str, Table]:
        """The tables that a plan reads, without what it surely does not need of them."""
        tables, deltas = self.planner.stored(plan), self.engine.tables.deltas
        if self._on_hosts or not any(map(deltas.has_bounds, tables.values())):
            return tables
        needed = {n: deltas.narrowed(tables[n], places) for n, places in plan.predicates.items()}
        return {**tables, **needed}

    def _question_of(self, plan: QueryPlan) -> Question | None:
        """The question that a plan answers: not if what it reads has changed meanwhile."""
        question = self._question
        return question if question is not None and question.is_of(plan) else None

    def run_in_front_end(self, rejected: FragmentRejectedError) -> tuple[Result, QueryRecord]:
        """Run a statement that no executor accepts in the scratch database, which accepts more.

        One that breaks databases does not run there: temporary tables would be lost.
        """
        if isinstance(rejected, DatabaseBrokenError):
            raise TaskFailedError(str(rejected)) from None
        if self.sink.needs_tasks:
            raise RefusedError(str(rejected)) from None
        try:
            rows = self._front_end_rows()
        except (QueryCancelledError, ResourceError, DataValueError):
            raise
        except MinisharkError:  # what the executors said is about the query as it was planned
            raise RefusedError(str(rejected)) from None
        result = self.sink.accept(rows)
        note = f"Ran in the front end, as an executor did not accept it: {rejected}"
        return result, self._ended((note,), in_front_end=True)

    def _front_end_rows(self) -> pa.Table:
        return self.engine.query_in_front_end(
            self.sql, self.scope, lossless=self.sink.lossless, observer=self.observer
        )

    def _ended(self, warnings: tuple[str, ...], *, in_front_end: bool = False) -> QueryRecord:
        return self.observer.ended(
            time.perf_counter() - self._started_s,
            self._planned_s - self._started_s,
            warnings,
            in_front_end=in_front_end,
        )

    def _tell(self, progress: QueryProgress) -> None:
        # Handlers may be added and removed while it runs, by other threads and by handlers.
        for handler in (*self.scope.progress_handlers, *self.handlers):
            handler(progress)


def _forget_promiser(engine: weakref.ref[Engine], name: str) -> None:
    """Nobody holds these rows any more; an engine may have gone with whom they were promised."""
    promised_by = engine()
    if promised_by is not None:
        promised_by._promised.pop(name, None)  # noqa: SLF001 - a method would keep it alive
