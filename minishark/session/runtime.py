"""Runtime: what DataFrames and sessions ask of the engine.

A query enters each room once on the way down, and once on the way up:

    Session.sql ─► statements ─► Runtime ─► Engine ─► query.ladder ─► query.planner ─► compiler
                                              │                  └──► query.run ─► cluster ─► worker
                                              └─► tables

Nothing below calls back: what lower rooms need is handed to them when they are constructed.
DataFrames hold the runtime, not the session; it implements `minishark.dataframe.runtime.Runtime`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from minishark.cluster import platforms
from minishark.cluster.status import node_reports
from minishark.cluster.wire import own_versions
from minishark.compiler.sql.advice import NO_SHARED
from minishark.dataframe import Cancellation, DataFrame
from minishark.dataframe.applied import RowsOf
from minishark.dataframe.dialect import DUCKDB, Dialect
from minishark.dataframe.frame import cached_frame
from minishark.dataframe.lazy_query import query_of
from minishark.dataframe.local import local_table
from minishark.dataframe.partitioned import kept
from minishark.dataframe.profile import Profile
from minishark.errors import UnsupportedError, VerificationError
from minishark.model.catalog import Catalog, Partition
from minishark.model.events.kinds import AnyEvent, NodeReport
from minishark.model.expressions import Schema, quote_text
from minishark.query.answers import differences, output_order
from minishark.query.metrics import Answer, QueryMetrics
from minishark.query.planner import QueryPlan, QueryPlanner, TablesPromisedError
from minishark.query.report import explain_text, metrics_text
from minishark.query.sinks import ApplyFunction, CollectRows, HandOver, Layout, Sink, StreamRows
from minishark.query.sources import HeldSource
from minishark.session.definitions import Definitions
from minishark.session.engine import Engine, Result
from minishark.session.file_writer import FileWriter
from minishark.session.jobs import Job, submit_query
from minishark.session.page.export import QueryPage
from minishark.session.progress import progress_for_people
from minishark.session.scope import Scope
from minishark.session.tasks.items import Items
from minishark.session.tasks.verbs import Calls
from minishark.sources.contract import Source
from minishark.tables.cached import CachedRows, CachePlan
from minishark.tables.memory_store import MemoryStore
from minishark.tables.scratch_store import ScratchTables, TemporaryTables
from minishark.tables.shared_store import SharedStore, shared_name
from minishark.tables.stores import GivenRows, SelectedRows, StoreContext, Stores, TableStore
from minishark.worker.protocol import TaskFunction

if TYPE_CHECKING:
    from minishark.tables.warehouse.shared import SharedWarehouse


class Runtime:
    """What DataFrames need (`minishark.dataframe.Runtime`); safe to use from several threads."""

    def __init__(
        self,
        engine: Engine,
        scope: Scope,
        calls: Calls,
        *,
        owner: Callable[[], Any],
        progress: bool | None = None,
        warehouse: SharedWarehouse | None = None,
        dialect: Dialect = DUCKDB,
    ) -> None:
        """For a session.

        Args:
            engine: what it shares with others.
            scope: what it has of its own.
            calls: runs its functions.
            owner: gives it, unless it is gone: it holds the runtime.
            progress: whether to show it; None in an interactive Python.
            warehouse: its named schemas and durable tables, if it has such.
            dialect: what texts mean to its DataFrames, and how they are shown.
        """
        self.engine, self.scope, self.calls = engine, scope, calls
        self.owner, self.progress, self.dialect = owner, progress, dialect
        self.cluster, self.tables = engine.cluster, engine.tables
        self.planning, self.scratch = scope.planning, scope.scratch
        self.context = _context(engine, scope)
        self.named = MemoryStore(self.context)
        self.elsewhere = ScratchTables(self.context)
        self.definitions = Definitions(
            engine=engine, scope=scope, named=self.named, elsewhere=self.elsewhere
        )
        self.files = FileWriter(engine, scope)
        self.create_view = self.definitions.create_view
        self.has_files = self.files.has_files
        self.register_function = self.definitions.register_function
        self.offer_function = self.definitions.offer_function
        self.remove_function = self.definitions.remove_function
        self.register_progress_handler = scope.register_progress_handler
        self.remove_progress_handler = scope.remove_progress_handler
        own = (TemporaryTables(self.context), self.named, self.elsewhere)
        durable = () if warehouse is None else (self._warehouse(warehouse),)
        of_cluster = () if self.tables.shared is None else (self._of_cluster(),)
        self.stores = Stores((*of_cluster, *durable, *own))

    def _of_cluster(self) -> TableStore:
        store = SharedStore(self.context, self.named)
        self.scope.look_before_statements(store.refresh)
        return store

    def _warehouse(self, shared: SharedWarehouse) -> TableStore:
        from minishark.tables.warehouse.store import Warehouse  # noqa: PLC0415 - an extra

        store = Warehouse(self.context, shared, self.named, self.elsewhere)
        self.scope.look_before_statements(store.refresh)
        self.scratch.look_before_listing(store.mirrored)
        return store

    @property
    def session(self) -> Any:
        """The session that it belongs to; None when that is gone."""
        return self.owner()

    @property
    def planner(self) -> QueryPlanner:
        """Plans queries."""
        return self.scope.planner

    def check_open(self) -> None:
        """Raise ClusterError if the session is stopped, or this process is a fork."""
        self.engine.check_open(self.scope)

    def up_to_date(self) -> AbstractContextManager[None]:
        """What every statement relies on: an open session, and tables as last written."""
        return self.engine.up_to_date(self.scope)

    def query_in_front_end(self, sql: str) -> pa.Table:
        """Run a query in the scratch database, over all rows of the cluster's tables."""
        return self.engine.query_in_front_end(sql, self.scope)

    # Progress

    def _shown(self) -> AbstractContextManager[None]:
        """Show how far the queries of a block are to who waits for them."""
        return progress_for_people(self, self.progress)

    def nodes(self) -> tuple[NodeReport, ...]:
        self.check_open()
        statuses = self.cluster.status()
        return node_reports(statuses, self.cluster.paths, self.cluster.usage(statuses))

    @property
    def is_stopped(self) -> bool:
        return self.engine.is_stopped or self.scope.is_stopped

    def stop(self, *, with_engine: bool) -> bool:
        """Roll back what was not committed, and end, or all with it; whether this call did it."""
        if self.scope.transaction.is_active and not self.is_stopped:
            with contextlib.suppress(Exception):  # VACUUM removes files that are left
                self.scope.transaction.end("ROLLBACK")
        return self.engine.stop(self.scope) if with_engine else self.scope.close()

    # Tables

    def create_table(
        self,
        name: str,
        data: Any,
        *,
        layout: Layout,
        replace: bool = False,
        shared: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if shared and self.tables.shared is None:
            raise UnsupportedError(NO_SHARED)
        name = shared_name(name) if shared else name
        with self.scope.transaction.statement():
            if isinstance(data, DataFrame) and not data.is_local():
                data, layout = SelectedRows(data.sql()), kept(query_of(data), layout)
            self.stores.create(name, GivenRows(data, layout, replace, on_progress))

    def insert(self, name: str, query: str) -> None:
        self._change(f"INSERT INTO {self.stores.written(name)} {query}")

    def drop_table(self, name: str) -> None:
        self._change(f"DROP TABLE {self.stores.written(name)}")

    def _change(self, sql: str) -> None:
        self.check_open()
        with self.scope.transaction.statement():
            for statement in self.planning.statements(sql):
                self.stores.run(statement)

    def setting(self, name: str) -> Any:
        answer = self.planning.show(f"SELECT current_setting({quote_text(name)}) AS value")
        return answer.column("value")[0].as_py()

    # Queries

    def _run(self, sql: str, sink: Sink[Result], **options: Any) -> tuple[Result, QueryMetrics]:
        return self.engine.run(sql, sink, self.scope, **options)

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """What a query relies on; one that fails aborts the transaction that it is part of."""
        with self.scope.transaction.statement(), self.up_to_date():
            yield

    def bind(self, sql: str) -> Schema:
        with self.up_to_date():
            return self.planner.bind(sql).schema

    def arrow_schema(self, sql: str) -> pa.Schema:
        with self.up_to_date():
            return self.planning.arrow_schema(sql)

    def run(
        self, sql: str, *, cancellation: Cancellation | None = None, lossless: bool = False
    ) -> Answer:
        with self._asked():
            heard = () if cancellation is None else (cancellation.check,)
            with self._shown():
                return Answer(*self._run(sql, CollectRows(lossless), handlers=heard))

    def profile(self, sql: str) -> Profile:
        events: list[AnyEvent] = []
        with self._asked():
            _, metrics = self._run(sql, CollectRows(), explained=True, keep=events.append)
        return Profile(sql, metrics, QueryPage(tuple(events), own_versions()["minishark"]))

    def stream(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
        # No process holds all rows in its own memory: they are in shared memory or on disk, and
        # each task's are freed when they have been read.
        with self._asked(), self._shown():
            return self._run(sql, StreamRows())

    def to_dataset(self, rows: str | pa.Table, library: str) -> Any:
        datasets = platforms.datasets(library)
        if isinstance(rows, pa.Table):
            return datasets.of_rows(rows)
        sink: HandOver[Any] = datasets.sink(self.cluster)
        with self._asked():
            return self._run(rows, sink)[0]

    def submit_query(self, sql: str, name: str, terms: Mapping[str, Any]) -> Job:
        with self._asked():
            self.planner.bind(sql)  # what is wrong with it is said here
            return submit_query(self.engine, self.scope, sql, name, terms)

    def copy(self, query: str, target: str, *, kept: bool = False) -> pa.Table:
        with self.scope.transaction.statement():
            return self.files.copy(query, target, kept=kept)

    def write_checkpoint(self, sql: str, path: str, *, kept: bool = False) -> str:
        with self.scope.transaction.statement():
            return self.files.write_checkpoint(sql, path, kept=kept)

    def explain(self, sql: str, *, mode: str) -> str:
        with self._asked():
            if mode == "analyze":
                return metrics_text(self._run(sql, CollectRows(), explained=True)[1])
            plan, text = described(self.engine, self.planner, sql, mode)
            if self.engine.reuse is None or mode not in ("stages", "all"):
                return text
            lines = self.engine.reuse_lines(plan, self.scope)
            return "\n".join([text, "", "Reuse", *lines])

    def verify(self, sql: str, answer: pa.Table) -> None:
        expected = self.query_in_front_end(sql)
        with contextlib.closing(self.planning.connection()) as connection:
            order = output_order(connection, sql, expected.column_names)
        wrong = differences(expected, answer, ordered_by=order)
        if wrong:
            raise VerificationError(f"The answer is not plain DuckDB's: {' '.join(wrong)}")

    # Named tables and views

    def hold_source(self, source: Source) -> HeldSource:
        with self.up_to_date():
            return self.engine.sources.hold(source)

    def with_calls(self, sql: str) -> str:
        return self.engine.sources.with_calls(sql, self.planning)

    def handles(self, sql: str) -> tuple[object, ...]:
        return (*self.engine.sources.handles(sql), *self.engine.cached.handles(sql))

    @property
    def table_names(self) -> list[str]:
        return self.stores.names

    # Cached rows

    def store_rows(self, rows: Any, *, partitions: int | None = None) -> CachedRows:
        self.check_open()
        return self.engine.cached.load(rows, partitions, self.context.observed)

    def cache_query(
        self,
        sql: str,
        *,
        layout: Layout,
        function: TaskFunction | None = None,
        needs: tuple[object, ...] = (),
    ) -> CachedRows:
        plan = CachePlan(sql, self.bind(sql), layout, function, needs)
        return self.engine.promise(plan, self.scope)

    def materialize(self, cached: CachedRows) -> None:
        self.check_open()
        with self.scope.transaction.statement(), self._shown():
            self.engine.compute((cached.name,), self.scope)
            while not self.engine.cached.settle(cached.name):
                self.engine.compute((cached.name,), self.scope)

    def release(self, cached: CachedRows) -> None:
        self.engine.cached.forget(cached.name)

    def partitions(self, name: str) -> tuple[Partition, ...]:
        with self._asked():
            self.engine.compute((name,), self.scope)
            return self.scope.catalog.get(name).partitions

    # Python functions

    def apply_function(self, sql: str, function: TaskFunction) -> pa.Table:
        with self._asked(), self._shown():
            return self._run(sql, ApplyFunction(function))[0]

    def items(self, rows: Callable[[], pa.Table], integers: Sequence[str]) -> Items:
        count = self.calls.slots

        def parts() -> list[RowsOf]:
            table = rows()
            size = max(1, -(-table.num_rows // count))
            return [RowsOf(table.slice(i * size, size), tuple(integers)) for i in range(count)]

        def frame(items: list[Any], schema: Any) -> DataFrame:
            return cached_frame(self, self.store_rows(local_table(items, schema)))

        return self.calls.items(count, parts, frame)

    def count_tasks(self, sql: str) -> int:
        with self._asked():
            sink = ApplyFunction(TaskFunction("", b"", ()))
            while True:
                try:
                    plan = self.planner.plan(sql, sink, on_hosts=self.engine.on_hosts)
                except TablesPromisedError as promised:
                    self.engine.compute(promised.names, self.scope)
                else:
                    plan.close()
                    return plan.stages[-1].tasks


def described(engine: Engine, planner: QueryPlanner, sql: str, mode: str) -> tuple[QueryPlan, str]:
    """The plan of a query, and as text."""
    on_hosts = engine.on_hosts
    plan = planner.describe(sql, on_hosts=on_hosts)
    return plan, explain_text(plan, mode, threads=engine.threads(queries=1, on_hosts=on_hosts))


def _context(engine: Engine, scope: Scope) -> StoreContext:
    """What stores are told of a session."""

    def run(
        sql: str, sink: Sink[Result], /, *, catalog: Catalog | None = None, told: str = ""
    ) -> Result:
        return engine.run(sql, sink, scope, catalog=catalog, told=told)[0]

    def explain(sql: str, catalog: Catalog | None) -> str:
        planner = scope.planner if catalog is None else scope.planner.seeing(catalog)
        return described(engine, planner, sql, "stages")[1]

    return StoreContext(
        tables=engine.tables,
        cached=engine.cached,
        sources=engine.sources,
        merger=engine.merger,
        planning=scope.planning,
        scratch=scope.scratch,
        transaction=scope.transaction,
        writing=engine.writing,
        loading=engine.loading,
        run=run,
        explain=explain,
        bind=lambda sql: scope.planner.bind(sql).schema,
        up_to_date=partial(engine.up_to_date, scope),
        check_open=partial(engine.check_open, scope),
        compute=partial(engine.compute, scope=scope),
        promise=partial(engine.promise, scope=scope),
        restore=partial(engine.restore, scope=scope),
        on_hosts=lambda: engine.on_hosts,
        warn=engine.warn,
        observed=partial(engine.observed, scope=scope, kind="load"),
        searching=partial(engine.searching, scope),
    )
