"""Runtime: what DataFrames and sessions ask of the engine.

A query enters each room once on the way down, and once on the way up:

    Session.sql ─► statements ─► Runtime ─► Engine ─► query.ladder ─► query.planner ─► compiler
                                              │                  └──► query.run ─► cluster ─► worker
                                              └─► tables

Nothing below calls back: what lower rooms need is handed to them when they are constructed.
DataFrames hold the runtime, not the session; it implements `minishark.dataframe.runtime.Runtime`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from minishark.answers.compare import differences
from minishark.answers.ordering import output_order
from minishark.catalog import Partition
from minishark.cluster.backend import Cluster, Placement
from minishark.compiler.physical.options import PlannerOptions
from minishark.dataframe import CachedRows, Cancellation, DataFrame
from minishark.errors import VerificationError
from minishark.expressions import Schema
from minishark.query.explain import explain_text
from minishark.query.metrics import Answer, QueryMetrics
from minishark.query.planner import TablesPromisedError
from minishark.query.report import metrics_text
from minishark.query.sinks import ApplyFunction, CollectRows, Layout, StreamRows
from minishark.session.definitions import Definitions
from minishark.session.engine import Engine
from minishark.session.file_writer import FileWriter
from minishark.session.named_tables import NamedTables
from minishark.tables.cached import cache_plan
from minishark.worker.protocol import ScalarFunction, TaskFunction


class Runtime:
    """Composes what a session consists of; safe to use from several threads."""

    def __init__(
        self, cluster: Cluster, options: PlannerOptions, placing: Callable[[], Placement]
    ) -> None:
        self.engine = Engine(cluster, options, placing)
        self.named = NamedTables(self.engine)
        self.definitions = Definitions(self.engine, self.named)
        self.files = FileWriter(self.engine)
        self.cluster, self.tables = self.engine.cluster, self.engine.tables
        self.planning, self.planner = self.engine.planning, self.engine.planner
        self.scratch = self.engine.scratch

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or this process is a fork of the session's."""
        return self.engine.is_stopped

    # Queries

    def bind(self, sql: str) -> Schema:
        """The columns of a query.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        with self.engine.up_to_date():
            return self.planning.bind(sql).schema

    def arrow_schema(self, sql: str) -> pa.Schema:
        """The columns of a query, in the Arrow types in which users get them."""
        with self.engine.up_to_date():
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
        with self.engine.up_to_date():
            heard = () if cancellation is None else (cancellation.check,)
            return Answer(*self.engine.run(sql, CollectRows(), explained=explained, handlers=heard))

    def stream(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
        """Run a query to its end, and read its rows as a stream.

        No process holds all rows in its own memory: they are in shared memory or on disk, and each
        task's are freed when they have been read.
        """
        with self.engine.up_to_date():
            return self.engine.run(sql, StreamRows())

    def explain(self, sql: str, *, mode: str) -> str:
        """A query's plan as text, or for "analyze" what running it did."""
        with self.engine.up_to_date():
            if mode == "analyze":
                return metrics_text(self.engine.run(sql, CollectRows())[1])
            plan = self.planner.describe(sql, on_hosts=self.engine.on_hosts)
            return explain_text(plan, mode, threads=self.engine.threads(queries=1))

    def verify(self, sql: str, answer: pa.Table) -> None:
        """Compare an answer with plain DuckDB's.

        Raises:
            VerificationError: it differs.
        """
        expected = self.engine.query_in_front_end(sql)
        connection = self.planning.connection()
        try:
            order = output_order(connection, sql, expected.column_names)
        finally:
            connection.close()
        found = differences(expected, answer, ordered_by=order)
        if found:
            raise VerificationError(f"The answer is not plain DuckDB's: {' '.join(found)}")

    # Named tables and views

    @property
    def table_names(self) -> list[str]:
        """The names of the tables that users know."""
        return self.named.names

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
        self.named.create(name, data, layout=layout, replace=replace, on_progress=on_progress)

    def insert(self, name: str, query: str) -> None:
        """Append the rows of a query to a table."""
        self.named.insert(name, query)

    def create_view(self, name: str, frame: DataFrame, *, replace: bool) -> None:
        """Make a DataFrame a view; what it reads is kept as long as the view exists."""
        self.definitions.create_view(name, frame, replace=replace)

    def copy(self, query: str, target: str) -> pa.Table:
        """COPY query TO target; returns the number of rows."""
        return self.files.copy(query, target)

    def write_checkpoint(self, sql: str, path: str) -> str:
        """Write a query's rows to Parquet files in a new folder; a query that reads them back."""
        return self.files.write_checkpoint(sql, path)

    # Cached rows

    def store_rows(self, rows: Any, *, partitions: int | None = None) -> CachedRows:
        """Load rows into the cluster now, as a cached table."""
        self.engine.check_open()
        handle = self.engine.cached.load(rows, partitions)
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
        handle = self.engine.cached.promise(plan)
        return CachedRows(handle.name, plan.schema, handle)

    def materialize(self, cached: CachedRows) -> None:
        """Compute promised rows now, and forget the query that they came from."""
        self.engine.check_open()
        self.engine.compute((cached.name,))
        while not self.engine.cached.settle(cached.name):
            self.engine.compute((cached.name,))

    def release(self, cached: CachedRows) -> None:
        """Free cached rows; a query that reads them computes them again."""
        self.engine.cached.forget(cached.name)

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """A table's partitions; promised rows are computed first."""
        with self.engine.up_to_date():
            self.engine.compute((name,))
            return self.tables.catalog.get(name).partitions

    # Python functions

    def apply_function(self, sql: str, function: TaskFunction) -> pa.Table:
        """Apply a function to the rows of a query, in its tasks; all that it returned."""
        with self.engine.up_to_date():
            return self.engine.run(sql, ApplyFunction(function))[0]

    def count_tasks(self, sql: str) -> int:
        """In how many tasks `apply_function` would run."""
        with self.engine.up_to_date():
            sink = ApplyFunction(TaskFunction("", b"", ()))
            while True:
                try:
                    plan = self.planner.plan(sql, sink, on_hosts=self.engine.on_hosts)
                except TablesPromisedError as promised:
                    self.engine.compute(promised.names)
                else:
                    return plan.stages[-1].tasks

    def register_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        """Make a Python function callable from SQL, replacing one of the same name."""
        self.definitions.register_function(function, fn)

    def remove_function(self, name: str) -> None:
        """Remove a registered function; raises OptionError if there is none."""
        self.definitions.remove_function(name)
