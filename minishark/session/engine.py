"""Engine: a session's cluster, planner and tables, and the queries that run over them.

What users ask of a session (`session.runtime` and the modules that it composes) ends in `run`,
which sends a query up the ladder of fallbacks, or in the scratch database.

`child` gives an engine for one more session over the same cluster and tables: what such a session
sets or defines for itself is in databases and an environment of its own, all else is the root's.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa

from minishark.catalog import Catalog, Table
from minishark.cluster.backend import Cluster, FragmentRejectedError, Placement
from minishark.compiler.logical.plan import plan_text
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.sql.statements import session_setting
from minishark.errors import (
    ClusterError,
    DataValueError,
    MinisharkError,
    PartitionsLostError,
    QueryCancelledError,
    QueryError,
    ResourceError,
    TaskFailedError,
)
from minishark.events.kinds import AnyEvent
from minishark.events.stream import EventStream
from minishark.programs.programs import Programs
from minishark.query.adaptation import Adaptation
from minishark.query.job_builder import Environment
from minishark.query.ladder import climb
from minishark.query.limits import DiskUse, Limits
from minishark.query.locality import hosts_of
from minishark.query.metrics import QueryMetrics, StageMetrics
from minishark.query.observer import QueryObserver
from minishark.query.planner import QueryPlan, QueryPlanner
from minishark.query.progress import ProgressHandler, QueryProgress
from minishark.query.run import QueryRun, Site, query_folder, site_of
from minishark.query.sinks import CollectRows, Layout, Sink, StreamRows
from minishark.query.sources import SourceTables
from minishark.query.stored_rows import stored_rows
from minishark.session.interruption import stopped_by
from minishark.session.memory_transactions import MemoryTransaction
from minishark.session.prints import TaskPrints
from minishark.session.scratch_database import ReadTable, ScratchDatabase
from minishark.session.transaction import SessionTransaction
from minishark.sources.files import named_files
from minishark.sources.storage_options import Storage
from minishark.tables.cached import CachedRows, CachedTables, CachePlan, Fingerprint
from minishark.tables.merging import Merger
from minishark.tables.store import StoreAsTable
from minishark.tables.tables import Tables
from minishark.worker.host_files import OBJECTS, HostFiles
from minishark.worker.memory import front_end_bytes
from minishark.worker.protocol import ScalarFunction

OPEN_MAX = 1000
# Of the queries that this thread, or asyncio task, runs: by these their user interrupts them.
TAGS: ContextVar[frozenset[str]] = ContextVar("tags", default=frozenset())
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


class Engine:
    """Runs queries over a cluster's tables; safe to use from several threads."""

    def __init__(
        self,
        cluster: Cluster,
        options: PlannerOptions,
        placing: Callable[[], Placement],
        storage: Storage,
    ) -> None:
        limits = {
            "memory_limit": f"{front_end_bytes(cluster.memory_limit_bytes)}B",
            "temp_directory": str(cluster.scratch / "front"),
        }
        self.cluster = cluster
        self.planning = PlanningDatabase(limits)
        self.tables = Tables(
            cluster=cluster,
            planning=self.planning,
            placement=self._place_loads,
            partitions=options.partitions,
            warn=self.warn,
            observed=partial(self.observed, kind="load"),
            files=lambda pattern: named_files(pattern, self.sources),
            storage=storage,
        )
        self.cached = CachedTables(self.tables)
        self.sources = SourceTables(
            planning=self.planning,
            storage=storage,
            host_files=HostFiles(cluster.scratch / OBJECTS),
        )
        self.planner = QueryPlanner(
            planning=self.planning,
            catalog=self.tables.catalog,
            options=options,
            sources=self.sources,
            cores=lambda: cluster.cores,
        )
        self.scratch = ScratchDatabase(limits, self._readable, self._reading)
        self.root = self
        self.placing = placing
        self.storage = storage
        self.programs = Programs(cluster, self.tables, placing)
        self.own_environment = Environment(storage=storage)
        self.open_queries = OpenQueries()
        self.events = EventStream()
        self.prints = TaskPrints()
        self.before_statements: Callable[[], None] | None = None  # looks at what may have changed
        self.explain_until_s = 0.0
        self.limits = Limits()
        self.transaction = SessionTransaction()
        self.running: dict[int, QueryObserver] = {}
        self._tags: dict[int, frozenset[str]] = {}  # of those that run
        self._query_numbers = itertools.count(1)
        self.progress_handlers: tuple[ProgressHandler, ...] = ()
        self._warnings: list[str] = list(cluster.warnings)
        self._folders = itertools.count()
        self._lock = threading.Lock()
        self.loading = threading.Lock()
        self.writing = threading.RLock()  # held while a statement changes tables, before `loading`
        self.merger = Merger(
            tables=self.tables, writing=self.writing, is_open=lambda: not self.is_stopped
        )
        self._pid = os.getpid()
        self._stopped = False
        self._promised: set[str] = set()  # tables that a child has promised
        self._replicator = self.tables.replicator() if cluster.elastic else None
        if self._replicator is not None:
            self._replicator.start()

    def child(self) -> Engine:
        """An engine of a session of its own over the same cluster, tables and views.

        It begins with the settings that this one has now.
        """
        self.check_open()
        child = copy.copy(self)
        child.detach(self.environment.settings)
        return child

    def seeing(self, catalog: Catalog) -> Engine:
        """The same engine, whose queries read the tables of another catalog."""
        other = copy.copy(self)
        other.planner = self.planner.seeing(catalog)
        return other

    def detach(self, settings: Sequence[str]) -> None:
        """Go on as a child of the root, of which it is a copy, with these settings."""
        self.planning = self.planning.child()
        self.scratch = self.scratch.child(self._reading)
        self.planner = self.planner.over(self.planning)
        self.planner.catalog, self.transaction = self.tables.catalog, SessionTransaction()
        self.own_environment = Environment(storage=self.storage)
        self._tags = {}
        self.progress_handlers, self._warnings, self._promised = (), [], set()
        for setting in settings:
            self.add_setting(session_setting(setting) or setting)

    # Life

    @property
    def is_root(self) -> bool:
        """Whether it owns the cluster."""
        return self.root is self

    @property
    def was_stopped(self) -> bool:
        """Whether `stop` was called of this one."""
        return self._stopped

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or this process is a fork of the session's."""
        return self._stopped or self.root.was_stopped or os.getpid() != self._pid

    def stop(self) -> bool:
        """Stop the cluster and free its memory; whether this call did it."""
        # Does nothing in a fork of the process: the cluster is the parent's.
        if os.getpid() != self._pid:
            return False
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if stopped:
            return False
        if not self.is_root:
            self.scratch.interrupt()
            self.planning.close()
            self.scratch.close()
            return True
        with contextlib.ExitStack() as steps:  # each is taken, also after Ctrl-C in one before it
            steps.callback(self.prints.close)
            steps.callback(self.planning.close)
            steps.callback(self.scratch.close)
            if self._replicator is not None:
                steps.callback(self._replicator.join)
            steps.callback(self.merger.join, _MERGER_END_S)
            steps.callback(self.cluster.close)
            if self._replicator is not None:
                steps.callback(self._replicator.stop)
            steps.callback(self.programs.stop)
            self.scratch.interrupt()
        return True

    def check_open(self) -> None:
        """Raise ClusterError if the session is stopped, or this process is a fork."""
        if self._stopped or self.root.was_stopped:
            raise ClusterError("The session is stopped; call connect() again.")
        if os.getpid() != self._pid:
            raise ClusterError(
                "Sessions do not survive fork(): call connect() in the child process."
            )

    @contextlib.contextmanager
    def up_to_date(self) -> Iterator[None]:
        """What every statement relies on: an open session, and tables as last written."""
        self.check_open()
        with self.loading:
            self.cached.sweep()
            for name in self.scratch.renamed():
                if name in self.tables.catalog:
                    self.tables.drop(name)
            for table in self.scratch.changed():
                if table.rows is not None:
                    self.tables.create(table.name, table.rows, Layout(replicas=2), replace=True)
                elif table.name in self.tables.catalog:
                    self.tables.drop(table.name)
                self.scratch.loaded(table)
        if self.before_statements is not None:
            self.before_statements()
        yield

    @property
    def warnings(self) -> tuple[str, ...]:
        for sentence in self.cluster.warnings if self.is_root else ():
            self.warn(sentence)  # it may have found out since
        return tuple(self._warnings)

    def warn(self, sentence: str) -> None:
        with self._lock:
            if sentence not in self._warnings:
                self._warnings.append(sentence)

    @property
    def memory_transaction(self) -> MemoryTransaction | None:
        """The session's transaction, if it is over tables in memory."""
        store = self.transaction.store
        return store if isinstance(store, MemoryTransaction) else None

    # What later statements rely on

    @property
    def environment(self) -> Environment:
        """What travels to executors: the root's definitions and functions, then its own."""
        own = self.own_environment
        if self.is_root:
            return own
        shared = self.root.environment
        return replace(
            shared, settings=own.settings, definitions=(*shared.definitions, *own.definitions)
        )

    @property
    def limited_environment(self) -> Environment:
        """The same, with the limits of each query."""
        found = self.environment
        limits = self.root.limits.settings(self.cluster.total_slots)
        return replace(found, settings=(*limits, *found.settings)) if limits else found

    def add_definition(self, sql: str, *, own: bool) -> None:
        """Note a definition that the planning database accepts; `own` if for this session only."""
        engine = self if own else self.root
        with self._lock:
            old = engine.own_environment
            engine.own_environment = replace(old, definitions=(*old.definitions, sql))

    def add_setting(self, sql: str) -> None:
        """Change a setting, for this session.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        own = not self.is_root
        self.planning.define(sql, own=own)
        self.scratch.define(sql, own=own)
        self.note_setting(sql)

    def note_setting(self, sql: str) -> None:
        """Note a setting that both databases have."""
        with self._lock:
            old = self.own_environment
            self.own_environment = replace(old, settings=(*old.settings, sql))
        self.planner.sources.forget()  # settings may change how files are read

    def set_functions(self, functions: dict[str, ScalarFunction]) -> None:
        """The Python functions that statements of all sessions may call from now on."""
        root = self.root
        root.planner.python.by_name = functions
        # A task's index is the same however often the task runs, so that it may be distributed.
        varying = (n for n, f in functions.items() if f.volatile and not f.takes_task)
        root.planning.set_functions(functions, varying)
        with self._lock:
            root.own_environment = replace(
                root.own_environment, functions=tuple(functions.values())
            )

    def add_progress_handler(self, handler: ProgressHandler) -> None:
        with self._lock:
            self.progress_handlers = (*self.progress_handlers, handler)

    def remove_progress_handler(self, handler: ProgressHandler) -> None:
        with self._lock:
            left = tuple(other for other in self.progress_handlers if other != handler)
            self.progress_handlers = left

    # Queries

    @property
    def loaded_tables(self) -> list[str]:
        """The names of the tables in the cluster whose rows are computed, cached ones included."""
        return [table.name for table in self.tables.catalog if table.is_computed]

    def _readable(self) -> list[str]:
        """The names of what the scratch database can read."""
        return [*self.loaded_tables, *self.sources.names]

    @contextlib.contextmanager
    def _reading(self, sql: str) -> Iterator[ReadTable]:
        with self.sources.reading(sql) as sources, stopped_by(sources.cancel):
            yield lambda name: sources.rows(name) if name in self.sources else self._rows(name)

    def _rows(self, name: str) -> pa.Table:
        """All rows of a table in the cluster, as the session sees it."""
        if self.memory_transaction is None:
            return self.tables.read(name)
        return self.tables.stored_rows(self.planner.catalog.get(name))

    def run(
        self,
        sql: str,
        sink: Sink[Result],
        *,
        explained: bool = False,
        handlers: tuple[ProgressHandler, ...] = (),
        keep: Callable[[AnyEvent], None] | None = None,
        told: str = "",
    ) -> tuple[Result, QueryMetrics]:
        """Run a query to its end.

        Args:
            sql: the query.
            sink: what becomes of its rows.
            explained: whether its metrics say why each task ran where it did, and what operators
                did.
            handlers: hear of its progress; what they raise ends it.
            keep: takes its events, besides the session's stream.
            told: the statement that events tell, if the query is a part of one.
        """
        with self.open_queries.counted(), self.observed(told or sql, keep) as observer:
            result, metrics = climb(
                _Query(
                    engine=self,
                    sql=sql,
                    sink=sink,
                    explained=explained,
                    handlers=handlers,
                    observer=observer,
                )
            )
            observer.ended(metrics)
            return result, metrics

    @contextlib.contextmanager
    def observed(
        self, sql: str, keep: Callable[[AnyEvent], None] | None = None, *, kind: str = "query"
    ) -> Iterator[QueryObserver]:
        """The observer of a query or load while it runs; tells how it fails."""

        def emit(event: AnyEvent) -> None:
            self.events.emit(event)
            if keep is not None:
                keep(event)

        number, began_s = next(self._query_numbers), time.perf_counter()
        observer = QueryObserver(number=number, emit=emit, kind=kind)
        self.running[number], self._tags[number] = observer, TAGS.get()
        observer.started(self.sources.shown(sql))
        try:
            limited = observer.limited_to(self.root.limits.query_timeout_s)
            with limited, stopped_by(observer.cancel):
                yield observer
        except BaseException as error:
            observer.raised(error, time.perf_counter() - began_s)
            raise
        finally:
            del self.running[number], self._tags[number]

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

    def tagged(self, tag: str | None) -> list[int]:
        """The numbers of this session's running queries that have a tag; of all, for None."""
        return [number for number, tags in tuple(self._tags.items()) if tag is None or tag in tags]

    def explain_for(self, seconds: float) -> None:
        """For so long, events say of every task why it ran where it did."""
        root = self.root
        root.explain_until_s = max(root.explain_until_s, time.monotonic() + seconds)

    @property
    def explains_all(self) -> bool:
        """Whether events say of every task why it ran where it did."""
        return time.monotonic() < self.root.explain_until_s

    def query_in_front_end(
        self, sql: str, *, lossless: bool = False, observer: QueryObserver | None = None
    ) -> pa.Table:
        """Run a query in the scratch database, over all rows of the cluster's tables.

        Args:
            sql: the query.
            lossless: whether DuckDB's types are kept.
            observer: can cancel it.
        """
        self.compute(self.planning.tables_in(sql))
        if observer is None:
            return self.scratch.query(sql, lossless=lossless)
        return self.scratch.query(sql, lossless=lossless, stoppable=observer.stopped_by)

    def promise(self, plan: CachePlan) -> CachedRows:
        """Promise the rows of a query of this session as a table."""
        rows = self.cached.promise(plan)
        if not self.is_root:
            self._promised.add(rows.name)
            weakref.finalize(rows, self._promised.discard, rows.name).atexit = False
        return rows

    def compute(self, names: Sequence[str], handlers: tuple[ProgressHandler, ...] = ()) -> None:
        """Compute those of the tables that are only promised."""
        tables = (self.tables.catalog.find(name) for name in dict.fromkeys(names))
        for name in [table.name for table in tables if table and not table.is_computed]:
            if not self.is_root and name not in self._promised:
                self.root.compute((name,), handlers)  # by the settings and views that it had
                continue
            self.cached.compute(name, self._fingerprint, partial(self._computed, handlers))

    def _computed(
        self, handlers: tuple[ProgressHandler, ...], plan: CachePlan, sink: StoreAsTable
    ) -> Table:
        """The rows of a cached table."""
        # Part of the query that needs it: it is not counted as another open one.
        with self.observed(plan.sql) as observer:
            query = _Query(
                engine=self, sql=plan.sql, sink=sink, handlers=handlers, observer=observer
            )
            table, metrics = climb(query)
            observer.ended(metrics)
        return table

    def _fingerprint(self, plan: CachePlan) -> Fingerprint | None:
        """What a cached table's rows are computed from; None if that does not determine them."""
        if not self.cluster.loses_files or plan.function is not None:
            return None
        read = self.planner.deterministic_inputs(plan.sql, on_hosts=self.on_hosts)
        if read is None:
            return None
        return (*self.environment.settings, *map(self.tables.content, read))

    def restore(self, lost: PartitionsLostError, check: Callable[[], None] = lambda: None) -> None:
        """Restore a table whose partitions are lost: load its files again, or compute it again.

        If there is no way, wait for nodes that may have them; what `check` raises ends that.
        """
        try:
            if lost.table in self.cached:
                self.cached.restore(lost, self._fingerprint)
            else:
                self.tables.restore(lost)
        except PartitionsLostError:
            if not self.tables.come_back(lost, check):
                raise

    @property
    def on_hosts(self) -> bool:
        placement = self.root.placing()
        return bool(hosts_of(placement.nodes, placement.stores))

    def threads(self, queries: int) -> int:
        """Threads of a large task that is alone in its stage, while so many queries are open."""
        # The cores are shared: several queries with a thread per core would only take turns.
        return 1 if self.on_hosts else max(1, self.planner.options.threads // max(1, queries))

    def _place_loads(self) -> Placement:
        """The placement of tasks that load tables."""
        self.check_slots()
        return self._placed()

    def _placed(self) -> Placement:
        """The placement of tasks: beside programs, which hold the slots of some nodes, anywhere."""
        placed = self.root.placing()
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
        return site_of(self.cluster, self._placed, folder)

    def query_folder(self) -> AbstractContextManager[str]:
        """A folder for the files of one query, removed afterwards."""
        return query_folder(self.cluster, next(self._folders))


@dataclass(slots=True, kw_only=True)
class _Query(Generic[Result]):
    """One query on the ladder."""

    engine: Engine  # what runs it
    sql: str  # its text
    sink: Sink[Result]  # what becomes of its rows
    observer: QueryObserver  # told what happens
    # Whether metrics say why each task ran where it did, what operators did, and how the plan was
    # changed.
    explained: bool = False
    handlers: tuple[ProgressHandler, ...] = ()  # told of its progress, besides the engine's
    _started_s: float = field(default_factory=time.perf_counter)
    _planned_s: float = 0.0

    def plan(self, *, whole: bool) -> QueryPlan:
        engine = self.engine
        plan = engine.planner.plan(self.sql, self.sink, on_hosts=engine.on_hosts, whole=whole)
        self._planned_s = time.perf_counter()
        self.observer.planned(plan, self._planned_s - self._started_s)
        return plan

    def compute(self, tables: Sequence[str]) -> None:
        """Compute promised tables; cancelling this query cancels that, too."""
        self.engine.compute(tables, (*self.handlers, lambda _: self.observer.check()))

    def is_current(self, plan: QueryPlan) -> bool:
        return self.engine.planner.is_current(plan)

    def restore(self, lost: PartitionsLostError) -> None:
        self.engine.restore(lost, self.observer.check)

    def execute(self, plan: QueryPlan, warnings: tuple[str, ...]) -> tuple[Result, QueryMetrics]:
        with contextlib.closing(plan):
            return self._executed(plan, warnings)

    def _executed(self, plan: QueryPlan, warnings: tuple[str, ...]) -> tuple[Result, QueryMetrics]:
        engine = self.engine
        if self.sink.takes_constants and plan.logical.is_constant:
            # Pools ask SELECT 1 all day. If it fails, the task's error is the one to tell.
            with contextlib.suppress(QueryError):
                rows = engine.planning.show(self.sql)
                return self.sink.accept(rows), self._metrics((), warnings)
        if self.sink.takes_stored(on_hosts=engine.on_hosts):
            stored = stored_rows(plan, partial(engine.planning.arrow_schema, self.sql))
            if stored is not None:
                taken = self.sink.accept_stored(stored, engine.cluster.store())
                if taken is not None:
                    return taken, self._metrics((), warnings)
        try:
            engine.check_slots()
        except ResourceError:
            if not isinstance(self.sink, CollectRows | StreamRows):
                raise
            rows = self._front_end_rows()
            return self.sink.accept(rows), self._metrics((), (*warnings, _SLOTS_HELD))
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
                tables=partial(engine.planner.stored, plan),
                site=engine.site(folder),
                store=engine.cluster.store(),
                folder=folder,
                output=output,
                environment=engine.limited_environment,
                threads=engine.threads(engine.open_queries.count),
                explained=self.explained,
                traced=engine.explains_all,
                on_progress=self._tell if self.handlers or engine.progress_handlers else None,
                adaptation=adaptation,
                observer=self.observer,
                on_print=engine.prints.show,
                disk=DiskUse(engine.root.limits.query_disk_bytes),
            )
            run.run()
            result = self.sink.finish(run)
        if run.uses_disk():
            engine.warn(_DISK_WARNING)
        metrics = self._metrics(run.metrics(), warnings)
        if adaptation.revisions:
            shown = (plan.physical, adaptation.executed(run.stages)) if self.explained else ()
            metrics = replace(
                metrics,
                revisions=tuple(adaptation.revisions),
                plans=tuple(map(plan_text, shown)),
            )
        return result, metrics

    def run_in_front_end(self, rejected: FragmentRejectedError) -> tuple[Result, QueryMetrics]:
        """Run a statement that no executor accepts in the scratch database, which accepts more."""
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
        return result, self._metrics((), (note,))

    def _front_end_rows(self) -> pa.Table:
        return self.engine.query_in_front_end(
            self.sql, lossless=self.sink.lossless, observer=self.observer
        )

    def _metrics(self, stages: tuple[StageMetrics, ...], warnings: tuple[str, ...]) -> QueryMetrics:
        return QueryMetrics(
            elapsed_s=time.perf_counter() - self._started_s,
            planning_s=self._planned_s - self._started_s,
            warnings=warnings,
            by_stage=stages,
        )

    def _tell(self, progress: QueryProgress) -> None:
        # Handlers may be added and removed while it runs, by other threads and by handlers.
        for handler in (*self.engine.progress_handlers, *self.handlers):
            handler(progress)
