"""Session: what users hold. A cluster, its tables, and statements over them."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from minishark.answers.compare import differences
from minishark.answers.ordering import output_order
from minishark.cluster.backend import Cluster
from minishark.cluster.status import NodeState, node_states
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.sql.arrow_types import kept_by_arrow
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.sql.statements import (
    ParsedStatement,
)
from minishark.dataframe import Answer, Cancellation, DataFrame
from minishark.dataframe.names import CamelCase
from minishark.errors import (
    ClusterError,
    VerificationError,
)
from minishark.lazy import imported
from minishark.query.metrics import QueryMetrics
from minishark.query.planner import Queries
from minishark.query.progress import ProgressHandler
from minishark.query.run import FragmentOptions
from minishark.query.sinks import Layout
from minishark.session.builder import SessionBuilder
from minishark.session.jobs import PartitionedJobs
from minishark.session.options import check_placement
from minishark.session.scratch_database import WrittenTables
from minishark.session.statements import Statements
from minishark.tables.cached import KEPT_PREFIX, DerivedTables
from minishark.tables.sources import arrow_table
from minishark.tables.tables import Tables
from minishark.worker.memory import front_end_bytes


class _Builder:
    """`Session.builder`, which begins anew each time."""

    def __get__(self, instance: object, owner: type) -> SessionBuilder[Session]:
        return SessionBuilder(imported("minishark.session.connect").connect, {})


class Session(CamelCase, PartitionedJobs):
    """Tables in a cluster's memory, and SQL over them; use `connect` to make one.

    Safe to use from several threads. It is also a context manager.
    """

    builder = _Builder()

    def __init__(
        self,
        cluster: Cluster,
        planner: PlannerOptions,
        placement: str,
        probe_ratio: float,
        fragments: FragmentOptions,
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._warnings: list[str] = list(self._cluster.warnings)
        self._lock = threading.Lock()
        placing = partial(cluster.placement, placement, probe_ratio)
        limits = {
            "memory_limit": f"{front_end_bytes(cluster.memory_limit_bytes)}B",
            "temp_directory": str(cluster.scratch / "front"),
        }
        self._planning = PlanningDatabase(limits)
        self._written = WrittenTables(limits)
        count = planner.partitions
        self._tables = Tables(self._cluster, self._planning, placing, count, self._warn)
        self._queries = Queries(
            self._cluster,
            self._planning,
            self._tables.catalog,
            placing,
            planner,
            self._warn,
            self._query_here,
            fragments=fragments,
        )
        self._derived = DerivedTables(self._tables, self._queries)
        self._queries.make_tables = self._derived.make
        self._queries.restore = self._derived.restore
        self._statements = Statements(
            self, self._planning, self._written, self._tables, self._queries, self._derived
        )
        self._replicator = self._tables.replicator() if self._cluster.loses_files else None
        if self._replicator is not None:
            self._replicator.start()
        self._stopped = False
        self._pid = os.getpid()
        # DuckDB complains on stderr of connections that are still open when Python ends.
        atexit.register(self.stop)

    def place(self, placement: str, probe_ratio: float = 2.0) -> None:
        """Place the tasks of queries in another way from now on; see `connect`.

        Raises:
            OptionError: there is no such placement, or the ratio is below 1.
        """
        check_placement(placement, probe_ratio)
        self._queries.placement = partial(self._cluster.placement, placement, probe_ratio)

    @contextlib.contextmanager
    def _planned_in_stages(self) -> Iterator[None]:
        """Run all queries of the block in stages over the nodes, however small their tables.

        `minishark tpch` compares both ways of planning over the same loaded tables by it.
        """
        before = self._queries.options
        self._queries.options = PlannerOptions.eager(before.partitions)
        try:
            yield
        finally:
            self._queries.options = before

    # Statements

    def sql(
        self,
        text: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        verify: bool = False,
    ) -> DataFrame:
        """Statements in DuckDB's SQL; the last one's answer as a DataFrame.

        A SELECT runs when its rows are asked for. All other statements run at once, and answer with
        the number of rows that they changed.

        Args:
            text: one statement, or several with semicolons between.
            params: values for `?` and `$1` (a sequence) or `$name` (a mapping); one statement only.
            verify: whether actions compare the answer with plain DuckDB's; see
                `DataFrame.to_arrow`.

        Raises:
            QueryError: it does not parse, or names what does not exist; with DuckDB's message.
            UnsupportedError: it is a statement that minishark does not run.
        """
        self._check_open()
        frame = self._statements.run(text, params)
        frame.verified = verify
        return frame

    def parse(self, text: str) -> tuple[ParsedStatement, ...]:
        """The statements in a text, with what each of them is.

        Raises:
            QueryError: it does not parse; with DuckDB's message.
            UnsupportedError: one is a statement that minishark does not run.
        """
        self._check_open()
        return tuple(self._planning.statements(text))

    def _load_changed(self) -> None:
        self._statements.load_changed()

    def _query_here(self, sql: str) -> pa.Table:
        return self._statements.query_here(sql)

    def run_statement(
        self, sql: str, cancellation: Cancellation | None = None, *, explained: bool = False
    ) -> Answer:
        """Run a query to its end; `DataFrame.to_arrow` calls this."""
        self._check_open()
        self._load_changed()
        if cancellation is None:
            return self._queries.run(sql, explained=explained)
        with self._queries.heard_by(cancellation.check):
            return self._queries.run(sql, explained=explained)

    def stream_statement(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
        """Run a query, and read its rows piece by piece; `DataFrame.to_batches` calls this."""
        self._check_open()
        self._load_changed()
        return self._queries.stream(sql)

    def verify_answer(self, sql: str, answer: pa.Table) -> None:
        """Compare an answer with plain DuckDB's; `DataFrame.to_arrow(verify=True)` calls this.

        Raises:
            VerificationError: it is another.
        """
        expected = self._query_here(sql)
        connection = self._planning.connection()
        try:
            order = output_order(connection, sql, expected.column_names)
        finally:
            connection.close()
        found = differences(expected, answer, ordered_by=order)
        if found:
            raise VerificationError(f"The answer is not plain DuckDB's: {' '.join(found)}")

    def explain_statement(self, sql: str, mode: str) -> str:
        """Describe how a query runs; `DataFrame.explain` calls this."""
        self._check_open()
        self._load_changed()
        return self._queries.explain(sql, mode)

    # Tables

    def create_table(
        self,
        name: str,
        data: Any,
        *,
        partition_by: str | Sequence[str] | None = None,
        partitions: int | None = None,
        replicas: int = 2,
        replace: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load data into the cluster's memory as a table.

        Args:
            name: the table's name, as SQL will use it.
            data: a path, a glob or a folder of Parquet, CSV or JSON files; a pyarrow table, reader
                or dataset; a pandas or polars frame; a DuckDB relation; a DataFrame of minishark.
            partition_by: columns whose hash decides a row's partition. Tables that are partitioned
                alike on their join keys join without a shuffle.
            partitions: how many; None for the session's default, and 1 for small tables that name
                no columns. A table of one partition is held by every node.
            replicas: on how many nodes each partition lies; at most on all of them.
            replace: whether a table of the same name is replaced.
            on_progress: called with tasks done and tasks in all.

        Raises:
            CatalogError: there is a table of that name, or `partition_by` names no column of it, or
                the name is none.
            DataError: the data is missing or can't be read.
            OptionError: a number makes no sense.
        """
        self._check_open()
        self._load_changed()
        if isinstance(data, DataFrame) and not data.is_known:
            keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
            self._statements.keep(
                name, data.sql(), Layout(keys, partitions, replicas), replace=replace
            )
            return
        if isinstance(data, duckdb.DuckDBPyRelation) and not kept_by_arrow(map(str, data.types)):
            self._tables.check_new(name, replace=replace)
            types = zip(data.columns, map(str, data.types), strict=True)
            self._written.put(name, types, arrow_table(data))
            self._warn(f"Table {name} stays in the front end, as Arrow lacks types of its columns.")
            return
        self._tables.create(
            name,
            data,
            partition_by=partition_by,
            partitions=partitions,
            replicas=replicas,
            replace=replace,
            on_progress=on_progress,
        )
        self._written.drop(name)  # what it was before

    def drop_table(self, name: str) -> None:
        """Remove a table and free its memory.

        Raises:
            CatalogError: there is no such table.
        """
        self._check_open()
        if not self._written.drop(name) or name in self._tables.catalog:
            self._tables.drop(name)

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        names = [*self._statements.loaded_tables, *self._written.own_tables]
        return sorted(name for name in names if not name.startswith(KEPT_PREFIX))

    # The session itself

    @property
    def is_open(self) -> bool:
        """Whether the session has not been stopped."""
        return not self._stopped

    @property
    def total_slots(self) -> int:
        """How many tasks run at the same time."""
        return self._cluster.total_slots

    def nodes(self) -> tuple[NodeState, ...]:
        """The cluster's nodes with their processes, tasks and memory, about a second old.

        Raises:
            ClusterError: the session is stopped.
        """
        self._check_open()
        return node_states(self._cluster.status(), self._cluster.paths)

    def register_progress_handler(self, handler: ProgressHandler) -> None:
        """Call `handler` with a `QueryProgress` while queries run, at least once a second.

        It is called on the thread that waits for the query; what it raises ends the query.
        """
        with self._lock:
            self._queries.progress_handlers = (*self._queries.progress_handlers, handler)

    def remove_progress_handler(self, handler: ProgressHandler) -> None:
        """Call `handler` no longer; nothing happens if it was not registered."""
        with self._lock:
            kept = tuple(other for other in self._queries.progress_handlers if other != handler)
            self._queries.progress_handlers = kept

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know, such as shared memory that is too small."""
        return tuple(self._warnings)

    def _warn(self, sentence: str) -> None:
        with self._lock:
            if sentence not in self._warnings:
                self._warnings.append(sentence)

    def _check_open(self) -> None:
        if self._stopped:
            raise ClusterError("The session is stopped; connect again.")
        if os.getpid() != self._pid:
            raise ClusterError(
                "Sessions do not survive fork(): call connect() in the child process."
            )

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or this process is a copy, by fork, of the session's."""
        return self._stopped or os.getpid() != self._pid

    def stop(self) -> None:
        """Stop the cluster and free its memory; may be called twice, and from any thread.

        Does nothing in a copy of the process that it made by fork.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if not stopped:
            atexit.unregister(self.stop)
            self._written.interrupt()
            if self._replicator is not None:
                self._replicator.stop()
            self._cluster.close()
            if self._replicator is not None:
                self._replicator.join()
            self._written.close()
            self._planning.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
