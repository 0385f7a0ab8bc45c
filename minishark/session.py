"""Session: what users hold. A cluster, its tables, and statements over them."""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from minishark.answers.compare import differences
from minishark.answers.ordering import output_order
from minishark.builder import SessionBuilder
from minishark.cluster.attached import AttachedCluster
from minishark.cluster.backend import Cluster
from minishark.cluster.launch import resolve
from minishark.cluster.local import ClusterOptions, OwnCluster, default_options
from minishark.cluster.metrics import QueryMetrics
from minishark.cluster.progress import ProgressHandler
from minishark.cluster.query import FragmentOptions
from minishark.cluster.sinks import Layout
from minishark.cluster.source import arrow_table
from minishark.cluster.status import NodeState, node_states
from minishark.dataframe import Answer, Cancellation, DataFrame
from minishark.dataframe.names import CamelCase
from minishark.derived import DerivedTables
from minishark.errors import (
    ClusterError,
    OptionError,
    VerificationError,
)
from minishark.execution.memory import front_end_bytes, parse_size
from minishark.jobs.session import PartitionedJobs
from minishark.physical.options import SINGLE_TASK_ROWS, KeyFilterOptions, PlannerOptions
from minishark.queries import Queries
from minishark.sources import KEPT_PREFIX
from minishark.sql.arrow_types import kept_by_arrow
from minishark.sql.planning import PlanningDatabase
from minishark.sql.statements import (
    ParsedStatement,
)
from minishark.statements import Statements
from minishark.tables import Tables, check_partitions
from minishark.written_tables import WrittenTables

OPTIMIZATIONS = frozenset(
    (
        "one_task",
        "eager_aggregation",
        "group_keys",
        "group_runs",
        "join_sides",
        "semi_join_filters",
        "prepared_fragments",
    )
)
PLACEMENTS = ("sparrow", "batch", "per_task", "random")


def connect(
    cluster: str | None = None,
    *,
    keys: str | Path | None = None,
    nodes: int | None = None,
    executors_per_node: int | None = None,
    schedulers: int | None = None,
    partitions: int | None = None,
    placement: str = "sparrow",
    probe_ratio: float = 2.0,
    in_process: bool = False,
    single_task_rows: int = SINGLE_TASK_ROWS,
    task_threads: int | None = None,
    disabled_optimizations: Collection[str] = (),
    memory_limit: int | str | None = None,
) -> Session:
    """A session on a cluster of its own on this machine, or on one that runs already.

    Args:
        cluster: where a cluster runs: `tcp://host:port` or `ipc://path` of one of its nodes, or the
            name that it was started with on this machine. None starts one that ends with the
            session; only then `nodes`, `executors_per_node`, `schedulers` and `in_process` count.
        keys: the folder of the cluster's keys, for tcp; None for the one that the environment
            variable MINISHARK_KEYS names, or that the cluster was started with.
        nodes: how many nodes; None for two (one on a machine with one core).
        executors_per_node: executor processes per node; None for one slot per core in all.
        schedulers: how many Sparrow schedulers; None for two, or one where there is one node.
        partitions: partitions of a table or shuffle by default; None for one per slot.
        placement: "sparrow" (batch sampling with late binding), "batch" or "per_task" (sampling by
            queue length), or "random" (any node that holds what a task reads).
        probe_ratio: reservations per task, at least 1.
        in_process: run the cluster on threads of this process, for tests and debugging.
        single_task_rows: statements over tables of at most this many rows in all run in one task,
            and others where that is estimated to be faster; 0 distributes everything, however
            small, for tests and to see it.
        task_threads: how many cores a task may use that runs alone, on a cluster on one machine;
            None for one per slot, but 1 where `partitions` are asked for. With 1, only tasks
            beside each other use several cores. Queries that run at the same time share them.
        disabled_optimizations: what is not to be done, to compare: "one_task" (for queries of more
            than `single_task_rows`), "eager_aggregation" (aggregates that begin below joins),
            "group_keys" (groups by the numbers of dictionaries instead of text), "group_runs"
            (groups of rows that follow one another found without hash tables),
            "join_sides" (hash tables made of the sides that the plan says), "semi_join_filters"
            (rows of large tables that no join wants dropped before they are read),
            "prepared_fragments" (for queries that come again).
        memory_limit: what the session's own cluster may use, as "4GiB" or a number of bytes: all
            executors with their DuckDBs, tables and shuffles in shared memory. What does not fit
            goes to disk. None for what MINISHARK_MEMORY_LIMIT says, or three quarters of the
            machine's (or container's) memory.

    Raises:
        OptionError: an argument makes no sense.
        ClusterError: the cluster does not start, or does not answer, or has other versions.

    Examples:
        >>> import minishark
        >>> with minishark.connect() as session:
        ...     session.sql("SELECT 42 AS answer").collect()
        [Row(answer=42)]
    """
    _check_placement(placement, probe_ratio)
    check_partitions(partitions)
    _check_optimizations(task_threads, disabled_optimizations)
    found: Cluster
    if cluster is not None:
        if in_process or not (nodes is executors_per_node is schedulers is None):
            raise OptionError("A cluster that runs already has its nodes; connect without them.")
        if memory_limit is not None:
            raise OptionError("A cluster that runs already has its memory limit.")
        found = _attached(cluster, keys)
    else:
        if keys is not None:
            raise OptionError("keys go with the address of a cluster.")
        options = _own_options(nodes, executors_per_node, schedulers, in_process, memory_limit)
        found = OwnCluster(options)
    planner = _planner_options(
        found, partitions, single_task_rows, task_threads, disabled_optimizations
    )
    fragments = FragmentOptions(
        prepares="prepared_fragments" not in disabled_optimizations,
        sets_join_sides="join_sides" not in disabled_optimizations,
    )
    return Session(found, planner, placement, probe_ratio, fragments)


def _planner_options(
    cluster: Cluster,
    partitions: int | None,
    single_task_rows: int,
    task_threads: int | None,
    disabled: Collection[str],
) -> PlannerOptions:
    slots = cluster.total_slots
    if not single_task_rows:
        options = PlannerOptions.eager(partitions or slots)
    else:
        options = PlannerOptions(
            partitions or slots,
            single_task_rows,
            weighs="one_task" not in disabled,
            threads=task_threads or (1 if partitions else slots),
            slots=slots,
            task_bytes=cluster.task_bytes,
        )
    return replace(
        options,
        early_gain=math.inf if "eager_aggregation" in disabled else options.early_gain,
        coded_rows=math.inf if "group_keys" in disabled else options.coded_rows,
        run_groups=math.inf if "group_runs" in disabled else options.run_groups,
        key_filters=KeyFilterOptions(rows_min=math.inf)
        if "semi_join_filters" in disabled
        else options.key_filters,
    )


def _attached(cluster: str, keys: str | Path | None) -> Cluster:
    return AttachedCluster(*resolve(cluster, None if keys is None else str(keys)))


def _own_options(
    nodes: int | None,
    executors_per_node: int | None,
    schedulers: int | None,
    in_process: bool,
    memory_limit: int | str | None,
) -> ClusterOptions:
    chosen = default_options()
    node_count = chosen.nodes if nodes is None else nodes
    return ClusterOptions(
        node_count,
        chosen.executors_per_node if executors_per_node is None else executors_per_node,
        (1 if node_count == 1 else 2) if schedulers is None else schedulers,
        in_process,
        None if memory_limit is None else parse_size(memory_limit),
    )


def _check_placement(placement: str, probe_ratio: float) -> None:
    if placement not in PLACEMENTS:
        raise OptionError(f"Unknown placement {placement!r}; choose {' or '.join(PLACEMENTS)}.")
    if not 1 <= probe_ratio < math.inf:
        raise OptionError("probe_ratio must be at least 1: each task needs a reservation.")


def _check_optimizations(task_threads: int | None, disabled: Collection[str]) -> None:
    if task_threads is not None and task_threads < 1:
        raise OptionError("task_threads must be at least 1.")
    if isinstance(disabled, str) or not OPTIMIZATIONS.issuperset(disabled):
        known = ", ".join(sorted(OPTIMIZATIONS))
        raise OptionError(f"disabled_optimizations takes a list of these names: {known}.")


class _Builder:
    """`Session.builder`, which begins anew each time."""

    def __get__(self, instance: object, owner: type) -> SessionBuilder[Session]:
        return SessionBuilder(connect, {})


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
        self._healer = self._tables.healer() if self._cluster.loses_files else None
        if self._healer is not None:
            self._healer.start()
        self._stopped = False
        self._pid = os.getpid()
        # DuckDB complains on stderr of connections that are still open when Python ends.
        atexit.register(self.stop)

    def place(self, placement: str, probe_ratio: float = 2.0) -> None:
        """Place the tasks of queries in another way from now on; see `connect`.

        Raises:
            OptionError: there is no such placement, or the ratio is below 1.
        """
        _check_placement(placement, probe_ratio)
        self._queries.placement = partial(self._cluster.placement, placement, probe_ratio)

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
        return node_states(self._cluster.status(), self._cluster.places)

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

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

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
            if self._healer is not None:
                self._healer.stop()
            self._cluster.close()
            if self._healer is not None:
                self._healer.join()
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
