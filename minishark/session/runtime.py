"""Runtime: owns a session's cluster, tables and planner, and runs queries through the ladder.

A query enters each room once on the way down, and once on the way up:

    Session.sql ─► statements ─► Runtime ─► query.ladder ─► query.planner ─► compiler
                                    │                  └──► query.run ─► cluster ─► worker
                                    └─► tables

Nothing below calls back: what lower rooms need is handed to them when they are constructed.
DataFrames hold the runtime, not the session; it implements `minishark.dataframe.runtime.Runtime`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import duckdb
import pyarrow as pa

from minishark.answers.compare import differences
from minishark.answers.ordering import output_order
from minishark.catalog import Partition
from minishark.cluster.backend import Cluster, FragmentRejectedError, Placement
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.sql.arrow_types import kept_by_arrow
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.sql.statements import Target
from minishark.compiler.sql.tokens import split_arguments
from minishark.dataframe import CachedRows, Cancellation, DataFrame
from minishark.dataframe.names import ident
from minishark.errors import (
    CatalogError,
    ClusterError,
    MinisharkError,
    OptionError,
    PartitionsLostError,
    QueryError,
    TaskFailedError,
    UnsupportedError,
    VerificationError,
)
from minishark.expressions import Schema
from minishark.query.explain import explain_text
from minishark.query.job_builder import Environment
from minishark.query.ladder import climb
from minishark.query.limits import OpenQueries
from minishark.query.locality import hosts_of
from minishark.query.metrics import Answer, QueryMetrics, StageMetrics
from minishark.query.planner import QueryPlan, QueryPlanner, TablesPromisedError
from minishark.query.progress import ProgressHandler, QueryProgress
from minishark.query.report import metrics_text
from minishark.query.run import QueryRun, Site
from minishark.query.sinks import ApplyFunction, CollectRows, Layout, Sink, StreamRows
from minishark.session.scratch_database import ScratchDatabase
from minishark.tables.cached import (
    CACHED_PREFIX,
    CachedTables,
    CachePlan,
    Fingerprint,
    cache_plan,
)
from minishark.tables.copy import (
    Copy,
    WriteFiles,
    check_options,
    parquet_files,
    parsed_copy,
    publish,
    staging_folder,
)
from minishark.tables.sources import arrow_table
from minishark.tables.store import (
    StoreAsTable,
    as_stored,
    stored_schema,
    survives_arrow,
    table_schema,
)
from minishark.tables.tables import Tables, check_layout, named_columns
from minishark.worker.memory import front_end_bytes
from minishark.worker.protocol import ScalarFunction, TaskFunction
from minishark.worker.scalars import callable_of, create_function, uncalled

Result = TypeVar("Result")

_DISK_WARNING = "There is no room in shared memory: shuffle data went to disk, which is slower."


class RefusedError(TaskFailedError):
    """No executor accepts a statement, and the query's sink needs tasks."""


class Runtime:
    """Runs queries over a cluster's tables; safe to use from several threads."""

    def __init__(
        self,
        cluster: Cluster,
        options: PlannerOptions,
        placing: Callable[[], Placement],
    ) -> None:
        limits = {
            "memory_limit": f"{front_end_bytes(cluster.memory_limit_bytes)}B",
            "temp_directory": str(cluster.scratch / "front"),
        }
        self.cluster = cluster
        self.planning = PlanningDatabase(limits)
        self.scratch = ScratchDatabase(limits)
        self.tables = Tables(
            cluster=cluster,
            planning=self.planning,
            placement=placing,
            partitions=options.partitions,
            warn=self.warn,
        )
        self.cached = CachedTables(self.tables)
        self.planner = QueryPlanner(
            planning=self.planning, catalog=self.tables.catalog, options=options
        )
        self.views: dict[str, DataFrame] = {}  # by name in lower case; keeps what they read alive
        self.placing = placing
        self.environment = Environment()
        self.open_queries = OpenQueries()
        self.progress_handlers: tuple[ProgressHandler, ...] = ()
        self._warnings: list[str] = list(cluster.warnings)
        self._folders = itertools.count()
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._pid = os.getpid()
        self._stopped = False
        self._replicator = self.tables.replicator() if cluster.loses_files else None
        if self._replicator is not None:
            self._replicator.start()

    # Life

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or this process is a fork of the session's."""
        return self._stopped or os.getpid() != self._pid

    def stop(self) -> bool:
        """Stop the cluster and free its memory; whether this call did it.

        Does nothing in a fork of the process: the cluster is the parent's.
        """
        if os.getpid() != self._pid:
            return False
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if stopped:
            return False
        self.scratch.interrupt()
        if self._replicator is not None:
            self._replicator.stop()
        self.cluster.close()
        if self._replicator is not None:
            self._replicator.join()
        self.scratch.close()
        self.planning.close()
        return True

    def check_open(self) -> None:
        """Raise ClusterError if the session is stopped, or this process is a fork."""
        if self._stopped:
            raise ClusterError("The session is stopped; call connect() again.")
        if os.getpid() != self._pid:
            raise ClusterError(
                "Sessions do not survive fork(): call connect() in the child process."
            )

    @contextlib.contextmanager
    def up_to_date(self) -> Iterator[None]:
        """What every statement relies on: an open session, and tables as last written.

        Raises:
            ClusterError: the session is stopped.
        """
        self.check_open()
        self._load_changed()
        yield

    def _load_changed(self) -> None:
        """Load tables that statements have changed, and drop cached ones that nobody needs."""
        with self._loading:
            self.cached.sweep()
            for table in self.scratch.changed():
                if table.rows is not None:
                    self.tables.create(table.name, table.rows, Layout(replicas=2), replace=True)
                elif table.name in self.tables.catalog:
                    self.tables.drop(table.name)
                self.scratch.loaded(table)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know."""
        return tuple(self._warnings)

    def warn(self, sentence: str) -> None:
        """Add a warning, once."""
        with self._lock:
            if sentence not in self._warnings:
                self._warnings.append(sentence)

    def add_progress_handler(self, handler: ProgressHandler) -> None:
        """Tell a handler of the progress of all queries."""
        with self._lock:
            self.progress_handlers = (*self.progress_handlers, handler)

    def remove_progress_handler(self, handler: ProgressHandler) -> None:
        """Tell a handler no longer."""
        with self._lock:
            left = tuple(other for other in self.progress_handlers if other != handler)
            self.progress_handlers = left

    # Queries

    def bind(self, sql: str) -> Schema:
        """The columns of a query.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        with self.up_to_date():
            return self.planning.bind(sql).schema

    def arrow_schema(self, sql: str) -> pa.Schema:
        """The columns of a query, in the Arrow types in which users get them."""
        with self.up_to_date():
            return self.planning.arrow_schema(sql)

    def run(
        self, sql: str, *, cancellation: Cancellation | None = None, explained: bool = False
    ) -> Answer:
        """Run a query to its end.

        Args:
            sql: the query.
            cancellation: ends the query early, with QueryCancelledError.
            explained: whether metrics say why each task ran where it did.
        """
        with self.up_to_date():
            heard = () if cancellation is None else (cancellation.check,)
            return Answer(*self._run(sql, CollectRows(), explained=explained, handlers=heard))

    def stream(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
        """Run a query to its end, and read its rows as a stream.

        No process holds all rows in its own memory: they are in shared memory or on disk, and each
        task's are freed when they have been read.
        """
        with self.up_to_date():
            return self._run(sql, StreamRows())

    def rows(self, sql: str) -> pa.Table:
        """The rows of a query, in DuckDB's types."""
        return self._run(sql, CollectRows(lossless=True))[0]

    def explain(self, sql: str, *, mode: str) -> str:
        """A query's plan as text, or for "analyze" what running it did."""
        with self.up_to_date():
            if mode == "analyze":
                return metrics_text(self._run(sql, CollectRows())[1])
            plan = self.planner.describe(sql, on_hosts=self.on_hosts)
            return explain_text(plan, mode, threads=self.threads(queries=1))

    def verify(self, sql: str, answer: pa.Table) -> None:
        """Compare an answer with plain DuckDB's.

        Raises:
            VerificationError: it differs.
        """
        expected = self.query_in_front_end(sql)
        connection = self.planning.connection()
        try:
            order = output_order(connection, sql, expected.column_names)
        finally:
            connection.close()
        found = differences(expected, answer, ordered_by=order)
        if found:
            raise VerificationError(f"The answer is not plain DuckDB's: {' '.join(found)}")

    def query_in_front_end(self, sql: str, *, lossless: bool = False) -> pa.Table:
        """Run a query in the scratch database, over all rows of the cluster's tables."""
        self.compute(self.planning.tables_in(sql))
        return self.scratch.query(sql, self.loaded_tables, self.tables.read, lossless=lossless)

    def _run(
        self,
        sql: str,
        sink: Sink[Result],
        *,
        explained: bool = False,
        handlers: tuple[ProgressHandler, ...] = (),
    ) -> tuple[Result, QueryMetrics]:
        with self.open_queries.counted():
            handlers = (*self.progress_handlers, *handlers)
            return climb(
                _Query(runtime=self, sql=sql, sink=sink, explained=explained, handlers=handlers)
            )

    def compute(self, names: Sequence[str], handlers: tuple[ProgressHandler, ...] = ()) -> None:
        """Compute those of the tables that are only promised."""
        tables = (self.tables.catalog.find(name) for name in dict.fromkeys(names))
        for name in [table.name for table in tables if table and not table.is_computed]:
            with self.cached.computing(name) as cached:
                if cached is None or cached.plan is None:
                    continue  # another thread was faster
                plan = cached.plan
                fingerprint = self._fingerprint(plan)
                with self.tables.folder() as folder:
                    sink = StoreAsTable(
                        tables=self.tables,
                        name=name,
                        schema=plan.schema,
                        folder=folder,
                        layout=plan.layout,
                        function=plan.function,
                    )
                    # Part of the query that needs it: it is not counted as another open one.
                    table, _ = climb(
                        _Query(runtime=self, sql=plan.sql, sink=sink, handlers=handlers)
                    )
                    self.cached.computed(cached, table, fingerprint)

    def _fingerprint(self, plan: CachePlan) -> Fingerprint | None:
        """What a cached table's rows are computed from; None if that does not determine them."""
        if not self.cluster.loses_files or plan.function is not None:
            return None
        read = self.planner.deterministic_inputs(plan.sql, on_hosts=self.on_hosts)
        if read is None:
            return None
        return (*self.environment.settings, *map(self.tables.content, read))

    def restore(self, lost: PartitionsLostError) -> None:
        """Restore a table whose partitions are lost: load its files again, or compute it again.

        Raises:
            PartitionsLostError: neither is possible.
        """
        if lost.table in self.cached:
            self.cached.restore(lost, self._fingerprint)
        else:
            self.tables.restore(lost)

    @property
    def on_hosts(self) -> bool:
        """Whether nodes are on several hosts."""
        placement = self.placing()
        return bool(hosts_of(placement.nodes, placement.stores))

    def threads(self, queries: int) -> int:
        """Threads of a large task that is alone in its stage, while so many queries are open.

        The cores are shared: several queries with a thread per core would only take turns.
        """
        return 1 if self.on_hosts else max(1, self.planner.options.threads // max(1, queries))

    def site(self, folder: str) -> Site:
        """Where the jobs of a query run, on nodes that have its folder."""

        def placement() -> Placement:
            placed = self.placing()
            self.cluster.make_folder(folder)
            return placed

        return Site(self.cluster.backend, placement, self.cluster.lost_nodes)

    @contextlib.contextmanager
    def query_folder(self) -> Iterator[str]:
        """A folder for the files of one query, removed afterwards."""
        folder = self.cluster.folder(f"queries/{next(self._folders)}")
        try:
            yield folder
        finally:
            self.cluster.remove_folder(folder)

    # Named tables

    @property
    def loaded_tables(self) -> list[str]:
        """The names of the tables in the cluster whose rows are computed, cached ones included."""
        return [table.name for table in self.tables.catalog if table.is_computed]

    @property
    def table_names(self) -> list[str]:
        """The names of the tables that users know."""
        names = [*self.loaded_tables, *self.scratch.own_tables]
        return sorted(name for name in names if not name.startswith(CACHED_PREFIX))

    def create_table(
        self,
        name: str,
        data: Any,
        *,
        layout: Layout,
        replace: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Store data of any kind as a table; see `Session.create_table`."""
        with self.up_to_date():
            if isinstance(data, DataFrame) and not data.is_local():
                self.store_query(name, data.sql(), layout, replace=replace)
                return
            if isinstance(data, duckdb.DuckDBPyRelation):
                types = [str(type_) for type_ in data.types]
                if not kept_by_arrow(types):
                    self.tables.check_new(name, replace=replace)
                    columns = zip(data.columns, types, strict=True)
                    self.scratch.put(name, columns, arrow_table(data))
                    self.warn(
                        f"Table {name} stays in the front end, as Arrow lacks types of its columns."
                    )
                    return
            self.tables.create(name, data, layout, replace=replace, on_progress=on_progress)
            self.scratch.drop(name)  # what had that name before

    def store_query(self, name: str, sql: str, layout: Layout, *, replace: bool) -> None:
        """Store the rows of a query as a table, without bringing them to the front end."""
        bound = self.planning.bind(sql).schema
        schema = stored_schema(table_schema(bound))
        check_layout(layout)
        self.tables.check_new(name, replace=replace)
        keys = named_columns(name, layout.partition_by, [column.name for column in schema])
        with self.tables.folder() as folder:
            sink = StoreAsTable(
                tables=self.tables,
                name=name,
                schema=schema,
                folder=folder,
                layout=dataclasses.replace(layout, partition_by=keys),
            )
            table, _ = self._run(as_stored(sql, bound), sink)
            self.tables.publish(table, replace=replace)
        self.scratch.drop(name)  # what had that name before

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a table and free its memory.

        Raises:
            CatalogError: there is no such table.
        """
        self.check_open()
        with self._loading:  # or another thread, loading its last change, would create it again
            here = self.scratch.drop(name)
            if name in self.tables.catalog:
                self.tables.drop(name)
                return
        if not here and not missing_ok:
            self.tables.catalog.get(name)

    def insert(self, name: str, query: str) -> None:
        """Append the rows of a query to a table."""
        self.write(f"INSERT INTO {ident(name)} {query}", Target(name, is_main=True))

    def write(self, sql: str, target: Target | None) -> pa.Table:
        """Run a statement that changes tables; the cluster loads the changes before the next query.

        Args:
            sql: the statement.
            target: the table that it changes; None if that can't be told.

        Returns:
            The number of changed rows, or what RETURNING asks for.
        """
        self.check_open()
        if self.scratch.is_elsewhere or (target is not None and not target.is_main):
            return self.run_in_scratch(sql)
        self.compute(self.planning.tables_in(sql))
        return self.scratch.write(sql, target, self.loaded_tables, self.tables.read)

    def run_in_scratch(self, sql: str) -> pa.Table:
        """Run a statement about what only the scratch database has: schemas, sequences, ..."""
        with self.up_to_date():
            self.compute(self.planning.tables_in(sql))
            return self.scratch.run(sql, self.loaded_tables, self.tables.read)

    def copy(self, query: str, target: str) -> pa.Table:
        """COPY query TO target: tasks write files in parallel where they can.

        Args:
            query: a query.
            target: the text after TO.

        Returns:
            DuckDB's answer: the number of rows.
        """
        with self.up_to_date():
            schema = self.bound_or_none(query)
            if schema is None:
                return self.scratch.copy(self.query_in_front_end(query), target)
            copy = parsed_copy(target, split_arguments)
            if copy is not None and survives_arrow(schema):
                with contextlib.suppress(RefusedError):
                    return counted(self._copy_in_tasks(query, schema, copy))
            return self.scratch.copy(self.rows(query), target)

    def bound_or_none(self, query: str) -> Schema | None:
        """A query's columns; None if only the scratch database may know what it names."""
        try:
            return self.planning.bind(query).schema
        except QueryError:
            if not self.scratch.has_own:
                raise
            return None

    def _copy_in_tasks(self, query: str, schema: Schema, copy: Copy) -> int:
        """Write the rows of a query; returns their number."""
        with staging_folder(copy) as staging:
            self.planning.check(lambda con: check_options(con, copy, schema, staging))
            written, _ = self._run(query, WriteFiles(copy, staging))
            publish(copy, staging, written)
        return sum(item.rows for item in written)

    # Definitions and settings

    def define(self, sql: str) -> None:
        """Run a definition (of a view, macro, type ...), for all later statements.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        with self.up_to_date():
            if self.scratch.is_elsewhere:
                self.run_in_scratch(sql)
                return
            try:
                self.planning.define(sql)
            except QueryError:
                if not self.scratch.has_own:
                    raise
                self.scratch.define(sql, alone=True)
                return
            self.scratch.define(sql)
            definitions = (*self.environment.definitions, sql)
            self.environment = dataclasses.replace(self.environment, definitions=definitions)

    def set(self, sql: str) -> None:
        """Run a SET statement, for all later statements."""
        with self.up_to_date():
            self.planning.define(sql)
            self.scratch.define(sql)
            self._add_setting(sql)

    def set_variable(self, sql: str) -> None:
        """Run a SET VARIABLE, whose value may come from a query."""
        with self.up_to_date():
            known = self.scratch.set_variable(sql, self.loaded_tables, self.tables.read)
            self.planning.define(known)
            self._add_setting(known)

    def _add_setting(self, sql: str) -> None:
        settings = (*self.environment.settings, sql)
        self.environment = dataclasses.replace(self.environment, settings=settings)
        self.planner.files.forget()  # settings may change how files are read

    def create_enum(self, sql: str) -> None:
        """Run a CREATE TYPE AS ENUM (query)."""
        with self.up_to_date():
            known = self.scratch.create_enum(sql, self.loaded_tables, self.tables.read)
            self.planning.define(known)
            definitions = (*self.environment.definitions, known)
            self.environment = dataclasses.replace(self.environment, definitions=definitions)

    def create_view(self, name: str, frame: DataFrame, *, replace: bool) -> None:
        """Make a DataFrame a view; what it reads is kept as long as the view exists.

        Raises:
            CatalogError: something has that name already.
        """
        if name.lower() in (table.lower() for table in self.table_names):
            raise CatalogError(f"There is a table called {name!r}; a view needs another name.")
        if self.planning.has_view(name):
            if not replace:
                raise CatalogError(f"There is a view called {name!r} already.")
            if re.search(rf"\b{re.escape(name)}\b", frame.sql(), re.IGNORECASE):
                raise CatalogError(f"The view {name!r} would read itself; use table({name!r}).")
            self.drop_view(name)
        self.define(f"CREATE VIEW {ident(name)} AS {frame.sql()}")
        self.views[name.lower()] = frame

    def drop_view(self, name: str) -> bool:
        """Remove a view; whether there was one."""
        if not self.planning.has_view(name):
            return False
        self.define(f"DROP VIEW {ident(name)}")
        self.views.pop(name.lower(), None)
        return True

    # Cached rows

    def store_rows(self, rows: Any, *, partitions: int | None = None) -> CachedRows:
        """Load rows into the cluster now, as a cached table."""
        handle = self.cached.load(rows, partitions)
        return CachedRows(handle.name, self.tables.catalog.get(handle.name).schema, handle)

    def cache_query(
        self,
        sql: str,
        *,
        layout: Layout,
        function: TaskFunction | None = None,
        needs: tuple[object, ...] = (),
    ) -> CachedRows:
        """Promise the rows of a query as a table; the first query that reads it computes them."""
        plan = cache_plan(sql, self.bind(sql), layout, function, needs)
        handle = self.cached.promise(plan)
        return CachedRows(handle.name, plan.schema, handle)

    def materialize(self, cached: CachedRows) -> None:
        """Compute promised rows now, and forget the query that they came from."""
        self.check_open()
        self.compute((cached.name,))
        while not self.cached.settle(cached.name):
            self.compute((cached.name,))

    def release(self, cached: CachedRows) -> None:
        """Free cached rows; a query that reads them computes them again."""
        self.cached.forget(cached.name)

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """A table's partitions; promised rows are computed first."""
        with self.up_to_date():
            self.compute((name,))
            return self.tables.catalog.get(name).partitions

    def write_checkpoint(self, sql: str, path: str) -> str:
        """Write a query's rows to Parquet files in a new folder; a query that reads them back.

        Raises:
            DataError: the folder is not empty, or can't be written.
            UnsupportedError: Parquet does not keep the type of a column.
        """
        with self.up_to_date():
            schema = self.planning.bind(sql).schema
            copy = Copy(Path(path).absolute(), {"format": "parquet", "per_thread_output": "true"})
            with staging_folder(copy) as staging:
                self.planning.check(lambda con: check_options(con, copy, schema, staging))
                read_back = self.planning.relation_schema(parquet_files(staging))
                for column, read in zip(schema, read_back, strict=True):
                    if column.type != read.type:
                        raise UnsupportedError(
                            f"Parquet does not keep column {column.name!r} as {column.type}; "
                            "cast it, or use checkpoint() without a path."
                        )
                written, _ = self._run(sql, WriteFiles(copy, staging))
                publish(copy, staging, written)
            return f"FROM {parquet_files(copy.path)}"

    # Python functions

    def apply_function(self, sql: str, function: TaskFunction) -> pa.Table:
        """Apply a function to the rows of a query, in its tasks; all that it returned."""
        with self.up_to_date():
            return self._run(sql, ApplyFunction(function))[0]

    def count_tasks(self, sql: str) -> int:
        """In how many tasks `apply_function` would run."""
        with self.up_to_date():
            sink = ApplyFunction(TaskFunction("", b"", ()))
            while True:
                try:
                    plan = self.planner.plan(sql, sink, on_hosts=self.on_hosts)
                except TablesPromisedError as promised:
                    self.compute(promised.names)
                else:
                    return plan.stages[-1].tasks

    def register_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        """Make a Python function callable from SQL, replacing one of the same name."""
        self.check_open()
        if function.name in self.planner.functions:
            self.remove_function(function.name)
        elif self.planning.has_function(function.name):
            raise OptionError(f"DuckDB has a function {function.name!r}; choose another name.")
        self.planning.change(lambda con: create_function(con, function, uncalled(fn)))
        self.scratch.change(lambda con: create_function(con, function, callable_of(function, fn)))
        self._set_functions({**self.planner.functions, function.name: function})

    def remove_function(self, name: str) -> None:
        """Remove a registered function.

        Raises:
            OptionError: there is none of that name.
        """
        self.check_open()
        if name not in self.planner.functions:
            raise OptionError(f"There is no registered function {name!r}.")
        self._set_functions({n: f for n, f in self.planner.functions.items() if n != name})
        for database in (self.planning, self.scratch):
            database.change(lambda con: con.remove_function(name))

    def _set_functions(self, functions: dict[str, ScalarFunction]) -> None:
        self.planner.functions = functions
        self.planning.volatile = frozenset(n for n, f in functions.items() if f.volatile)
        self.environment = dataclasses.replace(
            self.environment, functions=tuple(functions.values())
        )


@dataclass(slots=True, kw_only=True)
class _Query(Generic[Result]):
    """One query on the ladder.

    Attributes:
        runtime: what runs it.
        sql: its text.
        sink: what becomes of its rows.
        explained: whether metrics say why each task ran where it did.
        handlers: told of its progress.
    """

    runtime: Runtime
    sql: str
    sink: Sink[Result]
    explained: bool = False
    handlers: tuple[ProgressHandler, ...] = ()
    _started_s: float = field(default_factory=time.perf_counter)
    _planned_s: float = 0.0

    def plan(self, *, whole: bool) -> QueryPlan:
        """Plan the query."""
        runtime = self.runtime
        plan = runtime.planner.plan(self.sql, self.sink, on_hosts=runtime.on_hosts, whole=whole)
        self._planned_s = time.perf_counter()
        return plan

    def compute(self, tables: Sequence[str]) -> None:
        """Compute promised tables; cancelling this query cancels that, too."""
        self.runtime.compute(tables, self.handlers)

    def is_current(self, plan: QueryPlan) -> bool:
        """Whether tables and files are still those that the plan was made for."""
        return self.runtime.planner.is_current(plan)

    def reads_files(self, plan: QueryPlan) -> bool:
        """Whether the plan reads files that the query names."""
        return plan.reads_files

    def restore(self, lost: PartitionsLostError) -> None:
        """Restore a table whose partitions are lost."""
        self.runtime.restore(lost)

    def execute(self, plan: QueryPlan, warnings: tuple[str, ...]) -> tuple[Result, QueryMetrics]:
        """Run a plan's stages on the cluster."""
        runtime = self.runtime
        with runtime.query_folder() as folder:
            run = QueryRun(
                stages=plan.stages,
                tables=partial(runtime.planner.stored, plan),
                site=runtime.site(folder),
                store=runtime.cluster.store(),
                folder=folder,
                output=self.sink.output(plan.physical, plan.columns),
                environment=runtime.environment,
                threads=runtime.threads(runtime.open_queries.count),
                explained=self.explained,
                on_progress=self._tell if self.handlers else None,
            )
            run.run()
            result = self.sink.finish(run)
        if run.uses_disk():
            runtime.warn(_DISK_WARNING)
        return result, self._metrics(run.metrics(), warnings)

    def run_in_front_end(self, rejected: FragmentRejectedError) -> tuple[Result, QueryMetrics]:
        """Run a statement that no executor accepts in the scratch database, which accepts more.

        Raises:
            RefusedError: it does not either, or the sink needs tasks.
        """
        if self.sink.needs_tasks:
            raise RefusedError(str(rejected)) from None
        try:
            rows = self.runtime.query_in_front_end(self.sql, lossless=self.sink.lossless)
        except MinisharkError:
            raise RefusedError(str(rejected)) from None
        result = self.sink.accept(rows)
        note = f"Ran in the front end, as an executor did not accept it: {rejected}"
        return result, self._metrics((), (note,))

    def _metrics(self, stages: tuple[StageMetrics, ...], warnings: tuple[str, ...]) -> QueryMetrics:
        return QueryMetrics(
            stages=len(stages),
            tasks=sum(stage.tasks for stage in stages),
            constrained_tasks=sum(stage.constrained_tasks for stage in stages),
            local_tasks=sum(stage.local_tasks for stage in stages),
            elapsed_s=time.perf_counter() - self._started_s,
            planning_s=self._planned_s - self._started_s,
            warnings=warnings,
            by_stage=stages,
        )

    def _tell(self, progress: QueryProgress) -> None:
        for handler in self.handlers:
            handler(progress)


def counted(rows: int) -> pa.Table:
    """DuckDB's answer to a statement that changes rows: their number."""
    return pa.table({"Count": pa.array([rows], pa.int64())})
