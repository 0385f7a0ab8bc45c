"""Session: a cluster, a catalog, and the path of a statement from text to answer."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, assert_never

import duckdb
import pyarrow as pa

from minishark.answers.compare import differences
from minishark.answers.ordering import output_order
from minishark.builder import SessionBuilder
from minishark.cluster.attached import AttachedCluster
from minishark.cluster.backend import Cluster
from minishark.cluster.launch import resolve
from minishark.cluster.local import ClusterOptions, OwnCluster, default_options
from minishark.cluster.progress import ProgressHandler
from minishark.cluster.query import QueryMetrics
from minishark.cluster.sinks import Layout
from minishark.cluster.source import arrow_table
from minishark.cluster.status import NodeState, node_states
from minishark.copies import parsed_copy
from minishark.dataframe import Answer, Cancellation, DataFrame
from minishark.dataframe.names import CamelCase
from minishark.derived import DerivedTables
from minishark.errors import (
    CatalogError,
    ClusterError,
    OptionError,
    QueryError,
    UnsupportedError,
    VerificationError,
)
from minishark.expressions import Schema
from minishark.jobs.session import PartitionedJobs
from minishark.kept import Keep, as_stored, kept_exactly, stored_schema, table_schema
from minishark.physical.planner import SINGLE_TASK_ROWS, PlannerOptions
from minishark.queries import Queries, RefusedError
from minishark.sources import KEPT_PREFIX
from minishark.sql.arrow_types import kept_by_arrow
from minishark.sql.planning import PlanningDatabase
from minishark.sql.statements import (
    ParsedStatement,
    StatementKind,
    copied_query_and_target,
    executed_name_and_values,
    fill_parameters,
    prepared_name_and_statement,
    split_arguments,
)
from minishark.sql.targets import written_target
from minishark.tables import Tables, check_layout, check_partitions, named_columns
from minishark.written_tables import WrittenTables

PLACEMENTS = ("sparrow", "batch", "per_task", "random")
_CREATED_AS = re.compile(
    r"\s*CREATE\s+(OR\s+REPLACE\s+)?(?:TEMP(?:ORARY)?\s+)?TABLE\s+"
    r'(?:"(?:[^"]|"")+"|\w+)(?:\.(?:"(?:[^"]|"")+"|\w+))*\s+AS\b',
    re.IGNORECASE,
)
_WITHOUT_DATA = re.compile(r"\bWITH\s+NO\s+DATA\s*$", re.IGNORECASE)
_DROPPED = re.compile(r"\s*DROP\s+TABLE\b", re.IGNORECASE)
_OWN_SETTINGS = re.compile(
    r"\b(threads|worker_threads|external_threads|memory_limit|max_memory|temp_directory|\w*arrow\w*"
    r"|disabled_\w+|debug_\w+|python_\w+|lock_configuration|enable_external_access|allowed_\w+)\b",
    re.IGNORECASE,
)


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
        single_task_rows: statements over tables of at most this many rows in all run in one task;
            0 distributes everything, however small, for tests.

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
    found: Cluster
    if cluster is not None:
        if in_process or not (nodes is executors_per_node is schedulers is None):
            raise OptionError("A cluster that runs already has its nodes; connect without them.")
        found = _attached(cluster, keys)
    else:
        if keys is not None:
            raise OptionError("keys go with the address of a cluster.")
        found = OwnCluster(_own_options(nodes, executors_per_node, schedulers, in_process))
    return Session(found, partitions, placement, probe_ratio, single_task_rows)


def _attached(cluster: str, keys: str | Path | None) -> Cluster:
    return AttachedCluster(*resolve(cluster, None if keys is None else str(keys)))


def _own_options(
    nodes: int | None, executors_per_node: int | None, schedulers: int | None, in_process: bool
) -> ClusterOptions:
    chosen = default_options()
    node_count = chosen.nodes if nodes is None else nodes
    return ClusterOptions(
        node_count,
        chosen.executors_per_node if executors_per_node is None else executors_per_node,
        (1 if node_count == 1 else 2) if schedulers is None else schedulers,
        in_process,
    )


def _check_placement(placement: str, probe_ratio: float) -> None:
    if placement not in PLACEMENTS:
        raise OptionError(f"Unknown placement {placement!r}; choose {' or '.join(PLACEMENTS)}.")
    if not 1 <= probe_ratio < math.inf:
        raise OptionError("probe_ratio must be at least 1: each task needs a reservation.")


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
        partitions: int | None,
        placement: str,
        probe_ratio: float,
        single_task_rows: int,
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._warnings: list[str] = list(self._cluster.warnings)
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        placing = partial(cluster.placement, placement, probe_ratio)
        count = partitions or self._cluster.total_slots
        planner = PlannerOptions(count, single_task_rows)
        if not single_task_rows:
            planner = PlannerOptions.eager(count)
        self._planning = PlanningDatabase()
        self._written = WrittenTables()
        self._tables = Tables(self._cluster, self._planning, placing, count, self._warn)
        self._queries = Queries(
            self._cluster,
            self._planning,
            self._tables.catalog,
            placing,
            planner,
            self._warn,
            self._query_here,
        )
        self._prepared: dict[str, str] = {}
        self._derived = DerivedTables(self._tables, self._queries)
        self._queries.make_tables = self._derived.make
        self._stopped = False
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
        statements = self._planning.statements(text)
        if params is not None:
            if len(statements) > 1:
                raise QueryError("Parameters go with one statement; run the others without them.")
            statements = self._planning.statements(fill_parameters(statements[0].sql, params))
        for statement in statements[:-1]:
            self._statement(statement)
        frame = self._statement(statements[-1])
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

    def _statement(self, statement: ParsedStatement) -> DataFrame:
        sql = statement.sql
        match statement.kind:
            case StatementKind.QUERY:
                return self._query(sql, None)
            case StatementKind.EXPLAIN:
                return self._query(sql, "analyze" if statement.analyze else "plan")
            case StatementKind.SHOW:
                return self._show(sql)
            case StatementKind.HERE:
                return self._known(self._query_here(sql))
            case StatementKind.OWN:
                return self._run_here(sql)
            case StatementKind.DEFINITION | StatementKind.SETTING:
                return self._define(statement)
            case StatementKind.VARIABLE:
                return self._set_variable(sql)
            case StatementKind.ENUM:
                return self._create_enum(sql)
            case StatementKind.WRITE:
                return self._write(sql)
            case StatementKind.COPY_OUT:
                return self._copy(*copied_query_and_target(sql))
            case StatementKind.PREPARE:
                name, prepared = prepared_name_and_statement(sql)
                self._prepared[name] = prepared
                return self._changed_rows(0)
            case StatementKind.EXECUTE:
                name, values = executed_name_and_values(sql)
                return self.sql(self._prepared_statement(name), values)
            case StatementKind.DEALLOCATE:
                name, _ = executed_name_and_values(sql)
                self._prepared_statement(name)
                del self._prepared[name]
                return self._changed_rows(0)
            case _:
                assert_never(statement.kind)

    def _show(self, sql: str) -> DataFrame:
        """What concerns the catalog only; the planning database's rows are made up."""
        self._load_changed()
        described = re.match(r"\s*(SHOW|DESCRIBE|DESC)\b", sql, re.IGNORECASE)
        if not described and self._planning.tables_in(sql):
            return self._known(self._query_here(sql))
        names = [name for name in self._loaded_tables if not name.startswith(KEPT_PREFIX)]
        return self._known(self._written.catalog(sql, names, self._tables.read))

    def _rows_of(self, query: str) -> pa.Table:
        """The rows of a query, in the types that DuckDB has."""
        frame = self.sql(query)
        if frame.is_known:
            return frame.to_arrow()
        return self._queries.run(query, lossless=True).table

    def _query(self, sql: str, explain: str | None) -> DataFrame:
        self._load_changed()
        if self._written.is_elsewhere:
            return self._queried_here(sql, explain)
        try:
            bound = self._planning.bind(sql)
        except QueryError:
            if self._written.has_own:
                with contextlib.suppress(QueryError, CatalogError):
                    return self._queried_here(sql, explain)
            raise
        return DataFrame.of_statement(self, sql, bound.schema, explain)

    def _queried_here(self, sql: str, explain: str | None) -> DataFrame:
        """A query of what only the session's own database knows."""
        if explain is None:
            return self._known(self._query_here(sql))
        plan = self._written.explain(
            sql, self._loaded_tables, self._tables.read, analyze=explain == "analyze"
        )
        return self._known(pa.table({"explain_value": [f"Runs in the front end\n{plan}"]}))

    def _run_here(self, sql: str) -> DataFrame:
        self._load_changed()
        self._derived.make(self._planning.tables_in(sql))
        return self._known(self._written.run(sql, self._loaded_tables, self._tables.read))

    def _query_here(self, sql: str) -> pa.Table:
        """Run a query in the session's own database, over all rows of the cluster's tables."""
        self._derived.make(self._planning.tables_in(sql))
        return self._written.query(sql, self._loaded_tables, self._tables.read)

    def _known(self, table: pa.Table) -> DataFrame:
        return DataFrame(self, None, known=table)

    def _changed_rows(self, count: int) -> DataFrame:
        return self._known(pa.table({"Count": pa.array([count], pa.int64())}))

    def _prepared_statement(self, name: str) -> str:
        if name not in self._prepared:
            raise QueryError(f"There is no prepared statement called {name}.")
        return self._prepared[name]

    def _define(self, statement: ParsedStatement) -> DataFrame:
        """A definition or setting, for planning, for executors, and for statements that write."""
        setting = statement.kind is StatementKind.SETTING
        if setting and _OWN_SETTINGS.search(statement.sql):
            raise UnsupportedError("minishark chooses this setting itself; see connect().")
        self._load_changed()
        if self._written.is_elsewhere and not setting:
            return self._run_here(statement.sql)
        try:
            self._planning.define(statement.sql)
        except QueryError:
            if not self._written.has_own:
                raise
            self._written.define(statement.sql, alone=True)
            return self._changed_rows(0)
        self._written.define(statement.sql)
        if setting:
            self._queries.settings = (*self._queries.settings, statement.sql)
        else:
            self._queries.definitions = (*self._queries.definitions, statement.sql)
        return self._changed_rows(0)

    def _create_enum(self, sql: str) -> DataFrame:
        """A type of the values that a query has, for planning and for executors."""
        self._load_changed()
        known = self._written.create_enum(sql, self._loaded_tables, self._tables.read)
        self._planning.define(known)
        self._queries.definitions = (*self._queries.definitions, known)
        return self._changed_rows(0)

    def _set_variable(self, sql: str) -> DataFrame:
        """A variable, whose value may come from a query, for planning and for executors."""
        self._load_changed()
        known = self._written.set_variable(sql, self._loaded_tables, self._tables.read)
        self._planning.define(known)
        self._queries.settings = (*self._queries.settings, known)
        return self._changed_rows(0)

    def _write(self, sql: str) -> DataFrame:
        """A statement that changes tables; the cluster hears of it before the next query."""
        created = _CREATED_AS.match(sql)
        target = written_target(sql)
        if self._written.is_elsewhere or (target is not None and not target.is_main):
            return self._run_here(sql)
        name = target.name if target is not None else None
        if created and name is not None and self._can_create(sql, name, created):
            self._keep(name, sql[created.end() :], Layout(replicas=2), replace=True)
            return self._changed_rows(self._tables.catalog.get(name).rows)
        if _DROPPED.match(sql) and name is not None:
            return self._drop(sql, name)
        self._derived.make(self._planning.tables_in(sql))
        return self._known(self._written.write(sql, self._loaded_tables, self._tables.read))

    def _copy(self, query: str, target: str) -> DataFrame:
        """COPY ... TO, written by tasks where they can."""
        self._load_changed()
        copy = parsed_copy(target, split_arguments)
        (statement,) = self._planning.statements(query)
        here = self._written.is_elsewhere or statement.kind is not StatementKind.QUERY
        if copy is not None and not here:
            with contextlib.suppress(RefusedError):
                schema = self._bound_or_none(query)
                if schema is not None and kept_exactly(schema):
                    return self._changed_rows(self._copy_in_tasks(query, schema, copy))
        return self._known(self._written.copy(self._rows_of(query), target))

    def _bound_or_none(self, query: str) -> Schema | None:
        """A query's columns; None if only the session's own database may know them."""
        try:
            return self._planning.bind(query).schema
        except QueryError:
            if not self._written.has_own:
                raise
            return None

    def _can_create(self, sql: str, name: str, created: re.Match[str]) -> bool:
        """Whether a CREATE TABLE AS can run on the cluster.

        If not, the session's own database runs it: what exists already, takes no rows, or has
        columns that Arrow does not keep as they are.
        """
        self._load_changed()
        exists = name in self._tables.catalog or name.lower() in self._written.own_tables
        if _WITHOUT_DATA.search(sql) or (exists and not created[1]):
            return False
        try:
            schema = self._planning.bind(sql[created.end() :]).schema
        except QueryError:  # perhaps for what only the session's own database knows
            return False
        return kept_exactly(schema)

    def _drop(self, sql: str, name: str) -> DataFrame:
        here = self._written.drop(name)
        if name in self._tables.catalog:
            self._tables.drop(name)
        elif not here and not re.search(r"\bIF\s+EXISTS\b", sql, re.IGNORECASE):
            self._tables.catalog.get(name)
        return self._changed_rows(0)

    def _load_changed(self) -> None:
        """Load into the cluster what statements have changed since the last query."""
        with self._loading:
            self._derived.sweep()
            for table in self._written.changed():
                if table.rows is not None:
                    self._tables.create(table.name, table.rows, replace=True)
                elif table.name in self._tables.catalog:
                    self._tables.drop(table.name)
                self._written.loaded(table)

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
            self._keep(name, data.sql(), Layout(keys, partitions, replicas), replace=replace)
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

    def _keep(self, name: str, sql: str, layout: Layout, *, replace: bool) -> None:
        """Make the rows of a query a table, without bringing them here."""
        bound = self._planning.bind(sql).schema
        sql, schema = as_stored(sql, bound), stored_schema(table_schema(bound))
        check_layout(layout.partitions, layout.replicas)
        self._tables.check_new(name, replace=replace)
        columns = [column.name for column in schema]
        keys = named_columns(name, layout.partition_by, columns)
        layout = dataclasses.replace(layout, partition_by=keys)
        try:
            with self._tables.folder() as folder:
                goal = Keep(self._tables, name, schema, folder, layout)
                table, _ = self._queries.run_for(sql, goal)
                self._tables.publish(table, replace=replace)
        except RefusedError:
            rows = self._rows_of(sql).rename_columns(columns)
            self._tables.create(
                name,
                rows,
                partition_by=keys,
                partitions=layout.partitions,
                replicas=layout.replicas,
                replace=replace,
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
    def _loaded_tables(self) -> list[str]:
        names = [table.name for table in self._tables.catalog]
        return [name for name in names if self._derived.is_made(name)]

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        names = [*self._loaded_tables, *self._written.own_tables]
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
        return node_states(self._cluster.status())

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
        """Stop the cluster and free its memory; may be called twice, and from any thread."""
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if not stopped:
            atexit.unregister(self.stop)
            self._written.interrupt()
            self._cluster.close()
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
