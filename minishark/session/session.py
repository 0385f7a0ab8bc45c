"""Session: what users hold. A cluster, its tables, and statements over them."""

from __future__ import annotations

import atexit
import operator
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from minishark.cluster import placements
from minishark.cluster.wire import own_versions
from minishark.compiler.physical.options import check_partitions
from minishark.compiler.sql.statements import ParsedStatement
from minishark.dataframe import DataFrame
from minishark.dataframe.dialect import DUCKDB
from minishark.dataframe.doors import doors
from minishark.dataframe.frame import (
    cached_frame,
    reading,
    relation_frame,
    statement_frame,
    verifying,
    view_frame,
)
from minishark.dataframe.generated_functions import offer_called
from minishark.dataframe.local import SchemaLike, local_table
from minishark.dataframe.names import CamelCase, camel_keywords, ident
from minishark.dataframe.parameters import with_dollars, with_values
from minishark.dataframe.reader import DataFrameReader
from minishark.dataframe.runtime import note_session
from minishark.dataframe.udf import UserFunctions
from minishark.errors import OptionError
from minishark.model.events.kinds import NodeReport
from minishark.query.progress import ProgressHandler
from minishark.query.run import working_folder
from minishark.query.sinks import Layout
from minishark.session.builder import SessionBuilder
from minishark.session.catalog import SessionCatalog, Settings, TableInfo, table_info
from minishark.session.group import SessionGroup
from minishark.session.lazy import imported
from minishark.session.operations import Operations
from minishark.session.options import OPTIONS
from minishark.session.programs.program import Program
from minishark.session.programs.programs import ProgramDriver, ProgramOptions
from minishark.session.programs.result_table import IntoTable
from minishark.session.progress import line_for_people
from minishark.session.runtime import Runtime
from minishark.session.scope import Scope
from minishark.session.served import Served, server
from minishark.session.shown import session_html
from minishark.session.statements import Statements
from minishark.session.tasks.accumulators import Accumulator
from minishark.session.tasks.items import Items
from minishark.session.tasks.nested import SessionAddress, is_here, session_in_call
from minishark.session.tasks.verbs import Calls, CallVerbs
from minishark.sources.contract import Source

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from minishark.functions import TableFunctions, TableValued

P = ParamSpec("P")
T = TypeVar("T")


class _Builder:
    """`Session.builder`: a new builder at each access."""

    def __get__(self, instance: object, owner: type) -> SessionBuilder[Session]:
        from minishark.session.connect import connect  # noqa: PLC0415 - it makes Sessions

        return SessionBuilder(connect, {})


@doors
class Session(CallVerbs, Operations, CamelCase):
    """Tables in a cluster's memory, and SQL over them; use `connect` to make one.

    Safe to use from several threads. It is also a context manager.
    """

    builder = _Builder()
    _dialect = DUCKDB

    def __init__(
        self, group: SessionGroup, scope: Scope, *, progress: bool | None, owns: bool = False
    ) -> None:
        """One of a group, with what it has of its own; if it `owns` the group, that ends with it.

        `progress` is as in `connect`.
        """
        self._group, self._owns = group, owns
        self._runtime = Runtime(
            group.engine,
            scope,
            group.calls,
            owner=weakref.ref(self),
            progress=progress,
            warehouse=group.warehouse,
            dialect=self._dialect,
        )
        self._statements = Statements(self._runtime)
        self._name = secrets.token_hex(8)
        self._ending: list[Callable[[], None]] = []
        group.sessions.add(self)
        is_here(self._name, self)
        if owns:
            note_session(self)
            # DuckDB complains on stderr of connections that are still open when Python ends.
            atexit.register(self.stop)

    def new_session(self) -> Session:
        """A session over the same cluster, with the same tables, views and Python functions.

        It begins with this session's settings. What it sets, its temporary tables, views and
        macros, the views of its DataFrames, its prepared statements and its current schema are its
        own. It ends when it is stopped, or with this one.

        Raises:
            ClusterError: the session is stopped.

        Examples:
            >>> with session.new_session() as other:
            ...     other.conf.set("default_null_order", "nulls_first")
            ...     other.sql("SELECT unnest([1, NULL]) AS x ORDER BY x").collect()
            [Row(x=None), Row(x=1)]
        """
        runtime = self._runtime
        return type(self)(self._group, Scope.of(runtime.scope), progress=runtime.progress)

    def __repr__(self) -> str:
        if not self.is_open:
            return "<minishark session, stopped>"
        cluster, tables = self._runtime.cluster, ", ".join(self.tables) or "none"
        size = f"nodes: {len(cluster.nodes)}, slots: {cluster.total_slots}"
        return f"<minishark session: {size}, tables: {tables}>"

    def _repr_html_(self) -> str:
        """For notebooks: the cluster, the tables, and the page if there is one."""
        if not self.is_open:
            return "<p><b>minishark</b>: this session is stopped; call connect() again.</p>"
        page = None if self._group.page is None else self._group.page.address
        return session_html(self.nodes(), self.catalog.list_tables(), page)

    # Statements

    def sql(
        self,
        text: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        args: Sequence[Any] | Mapping[str, Any] | None = None,
        verify: bool = False,
        **named: Any,
    ) -> DataFrame:
        """Statements in DuckDB's SQL; the last one's answer as a DataFrame.

        A SELECT runs when its rows are asked for. All other statements run at once, and answer with
        the number of rows that they changed.

        Args:
            text: one statement, or several with semicolons between.
            params: values for `?` and `$1` (a sequence), or for `$name` and `:name` (a mapping);
                one statement only.
            args: the same, as PySpark calls it.
            verify: whether actions compare the answer with plain DuckDB's; see
                `DataFrame.to_arrow`.
            named: what `{name}` stands for: a DataFrame, a Column, or a value.

        Raises:
            QueryError: it does not parse, or names what does not exist; with DuckDB's message.
            UnsupportedError: it is a statement that minishark does not run.
        """
        params = args if params is None else params
        if isinstance(params, Mapping):
            text = with_dollars(text, params)
        text = self._dialect.statements(text)
        offer_called(text, self._runtime)
        if named:
            frame = self._statements.run(with_values(text, named), params)
            frame = reading(frame, [item for item in named.values() if isinstance(item, DataFrame)])
        else:
            frame = self._statements.run(text, params)
        return verifying(frame) if verify else frame

    def duckdb_sql(self, text: str) -> DataFrame:
        """Statements in DuckDB's SQL, whichever dialect the session's text is in."""
        return self._statements.run(text)

    async def sql_async(
        self, text: str, params: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> DataFrame:
        """`sql`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - slow to import, and most programs do not wait so

        return await asyncio.to_thread(self.sql, text, params)

    def begin(self, *, lazily: bool = False) -> None:
        """Begin a transaction; COMMIT or ROLLBACK ends it.

        It changes one table of the warehouse, or, without one, tables in memory.

        Args:
            lazily: whether statements that no transaction can hold, such as CREATE TABLE, are
                committed at once as long as it has changed nothing; SQL's BEGIN refuses them. Only
                with a warehouse.

        Raises:
            TransactionError: there is one already.
            UnsupportedError: `lazily`, and the session has no warehouse.
        """
        self._runtime.check_open()
        with self._runtime.scope.transaction.aborted_by_errors():
            self._runtime.stores.begin(is_lazy=lazily)

    @property
    def has_transactions(self) -> bool:
        """Whether it has a warehouse, whose tables change in transactions."""
        return self._group.warehouse is not None

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was begun that has not ended; an error may have aborted it."""
        return self._runtime.scope.transaction.is_active

    def parse(self, text: str) -> tuple[ParsedStatement, ...]:
        """The statements in a text, with what each of them is.

        An error aborts the transaction, if there is one, as those of statements do.

        Raises:
            QueryError: it does not parse; with DuckDB's message.
            UnsupportedError: one is a statement that minishark does not run.
        """
        self._runtime.check_open()
        scope = self._runtime.scope
        with scope.transaction.aborted_by_errors():
            return tuple(scope.planning.statements(text))

    # Tables and views

    def create_table(
        self,
        name: str,
        data: Any,
        *,
        partition_by: str | Sequence[str] | None = None,
        partitions: int | None = None,
        replicas: int = 2,
        replace: bool = False,
        shared: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load data into the cluster's memory as a table.

        Args:
            name: the table's name, as SQL will use it.
            data: a path, a glob or a folder of Parquet, CSV or JSON files; a pyarrow table, reader
                or dataset; a pandas or polars frame; a DuckDB relation; a DataFrame of minishark; a
                dataset of Ray; a `Source`.
            partition_by: columns whose hash decides a row's partition. Tables that are partitioned
                alike on their join keys join without a shuffle.
            partitions: the number of partitions; None for the session's default, and 1 for small
                tables without `partition_by`. Every node stores a table of one partition.
            replicas: the number of nodes that store each partition; at most all of them.
            replace: whether a table of the same name is replaced.
            shared: whether it belongs to the cluster, and outlives the session: SQL calls it
                `shared.NAME` then, in all sessions.
            on_progress: called with the number of tasks done and of all tasks.

        Raises:
            UnsupportedError: it is to be `shared`, and the cluster is the session's own.
            CatalogError: there is a table of that name, or `partition_by` names no column of it, or
                the name is empty.
            DataError: the data is missing or can't be read.
            OptionError: a number is out of range.
        """
        keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
        layout = Layout(partition_by=keys, partitions=partitions, replicas=replicas)
        self._runtime.create_table(
            name, data, layout=layout, replace=replace, shared=shared, on_progress=on_progress
        )

    def drop_table(self, name: str) -> None:
        """Remove a table and free its memory.

        Raises:
            CatalogError: there is no such table.
        """
        self._runtime.drop_table(name)

    def cache(self, name: str) -> int:
        """Load a table of the warehouse into the cluster's memory, as CACHE TABLE does.

        Queries read it there until `uncache`. They see the current version: where another one was
        committed meanwhile, it is loaded first.

        Returns:
            its number of rows.

        Raises:
            CatalogError: there is no such table in the warehouse.
            UnsupportedError: the session has no warehouse.
        """
        return int(self.duckdb_sql(f"CACHE TABLE {name}").collect()[0][0])

    def uncache(self, name: str) -> None:
        """Free the memory of a table that `cache` has loaded.

        Raises:
            CatalogError: it is not cached.
            UnsupportedError: the session has no warehouse.
        """
        self.duckdb_sql(f"UNCACHE TABLE {name}")

    def register_source(self, name: str, source: Source, *, replace: bool = False) -> None:
        """Let queries read a source by a name, where its rows are.

        Each query reads the version that is current when it is planned. `drop_table` removes the
        name; `create_table(other_name, source)` loads the rows into the cluster's memory.

        Args:
            name: the name, as SQL will use it.
            source: where the rows are; docs/sources.md shows how to write one.
            replace: whether it takes the place of a source of that name.

        Raises:
            CatalogError: there is a table, view or source of that name.
            DataError: the source can't be read.
        """
        self._runtime.named.add_source(name, source, replace=replace)

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        return self._runtime.table_names

    def table(self, name: str) -> DataFrame:
        """All rows of a table or view.

        Raises:
            CatalogError: there is no such table.
        """
        runtime = self._runtime
        with runtime.up_to_date():
            if name.lower() in runtime.scratch.temporary:
                return self.duckdb_sql(f"FROM {ident(name)}")
            table = runtime.scope.catalog.find(name)
            if table is not None:
                quoted = ident(table.name)
                return relation_frame(runtime, quoted, table.schema, alias=table.name)
            if runtime.planning.has_view(name):
                view = runtime.definitions.views.get(name.lower())
                if view is None:
                    return self.relation(ident(name), alias=name)
                return view_frame(view, name)
            if name in runtime.engine.sources:
                return self.relation(ident(name), alias=name)
            stored = runtime.stores.relation(name)
            if stored is not None:
                return self.relation(ident(stored), alias=name.rpartition(".")[2])
            if name.lower() in runtime.scratch.own_tables:
                return self.duckdb_sql(f"FROM {ident(name)}")
            raise runtime.scope.catalog.unknown(name)

    def relation(self, sql: str, alias: str = "") -> DataFrame:
        """All rows of a SQL relation, as after FROM: a table function, for example.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        sql = self._runtime.with_calls(sql)
        schema = self._runtime.bind(f"FROM {sql}")
        return relation_frame(self._runtime, sql, schema, alias=alias)

    @property
    def catalog(self) -> SessionCatalog:
        """Tables, views and their columns."""
        return SessionCatalog(self._runtime, self)

    @property
    def conf(self) -> Settings:
        """DuckDB's settings."""
        return Settings(self._runtime, self.duckdb_sql)

    def kept_rows(self) -> tuple[TableInfo, ...]:
        """The cached rows of DataFrames in the cluster: rows, bytes per replica, partitions."""
        runtime = self._runtime
        with runtime.up_to_date():
            nodes = runtime.cluster.nodes
            return tuple(table_info(table, "kept", nodes) for table in runtime.engine.cached)

    # DataFrames

    @property
    def read(self) -> DataFrameReader:
        """Files as DataFrames: `session.read.parquet("lineitem/*.parquet")`."""
        return DataFrameReader(self._runtime, table=self.table)

    def create_dataframe(self, data: Any, schema: SchemaLike = None) -> DataFrame:
        """Load rows of this process into the cluster, as a DataFrame.

        Args:
            data: a list of tuples, dictionaries or Rows; a pandas or polars frame; a pyarrow table,
                a DuckDB relation, or any other Arrow stream.
            schema: names of columns; or names with types: a mapping, "a BIGINT, b VARCHAR", or a
                pyarrow schema.

        Raises:
            DataError: the rows do not fit each other or the schema.

        Examples:
            >>> session.create_dataframe([(1, "a"), (2, None)], ["id", "name"]).dtypes
            [('id', 'BIGINT'), ('name', 'VARCHAR')]
        """
        return cached_frame(self._runtime, self._runtime.store_rows(local_table(data, schema)))

    @camel_keywords
    def range(
        self, start: int, end: int | None = None, step: int = 1, num_partitions: int | None = None
    ) -> DataFrame:
        """The whole numbers from `start` up to, not including, `end`, as a column `id`.

        With one argument, they start at 0; `num_partitions` divides them, see `repartition`.

        Examples:
            >>> [row.id for row in session.range(1, 10, 3).collect()]
            [1, 4, 7]
        """
        first, last = (0, start) if end is None else (start, end)
        if not step:
            raise OptionError("step can't be 0.")
        sql = f"SELECT range AS id FROM range({first:d}, {last:d}, {step:d})"
        numbers = statement_frame(self._runtime, sql, self._runtime.bind(sql))
        return numbers if num_partitions is None else numbers.repartition(num_partitions)

    def from_relation(self, relation: Any) -> DataFrame:
        """Load the rows of a DuckDB relation, computed on its own connection, as a DataFrame."""
        return self.create_dataframe(relation)

    # Python functions

    def parallelize(self, items: Iterable[Any], partitions: int | None = None) -> Items:
        """Python objects, to run functions over them in the cluster.

        Args:
            items: anything that can be pickled.
            partitions: the maximum number of partitions; None for one per slot.

        Raises:
            OptionError: the number is out of range, or an item can't be pickled.

        Examples:
            >>> session.parallelize("abc").map(str.upper).collect()
            ['A', 'B', 'C']
        """
        check_partitions(partitions)
        return self._calls().parallelize(items, partitions, self.create_dataframe)

    def text_file(self, path: str | Path | list[str]) -> Items:
        """The lines of text files; as `read.text(path).rdd`, they pass through the front end.

        Raises:
            DataError: there are no files, or they can't be read.

        Examples:
            >>> session.parallelize(["to be", "or not"], 1).save_as_text_file("verses")
            >>> words = session.text_file("verses/part-*").flat_map(str.split)
            >>> sorted(words.map(lambda word: (word, 1)).reduce_by_key(int.__add__).collect())
            [('be', 1), ('not', 1), ('or', 1), ('to', 1)]
        """
        rows: Items = self.read.text(path).rdd
        return rows.map(operator.itemgetter(0))

    def _call_timeout(self, named: float | None) -> float | None:
        return self._runtime.engine.limits.task_timeout_s if named is None else named

    def accumulator(self, value: Any, plus: Callable[[Any, Any], Any] | None = None) -> Accumulator:
        """A value that functions of `parallelize(...)` and `df.rdd` add to.

        Args:
            value: what it begins with.
            plus: how two values are added; None for `+`.
        """
        return Accumulator(value) if plus is None else Accumulator(value, plus)

    @property
    def spark_context(self) -> Session:
        """The session itself, which has `parallelize`, `broadcast` and `accumulator`."""
        return self

    @property
    def default_parallelism(self) -> int:
        """How many partitions `parallelize` makes: one per slot."""
        return self.total_slots

    def empty_dataframe(self, schema: SchemaLike) -> DataFrame:
        """A DataFrame without rows.

        Args:
            schema: names and types of its columns, at least one.

        Raises:
            DataError: the schema is not understood.
        """
        return self.create_dataframe([], schema)

    def _calls(self) -> Calls:
        self._runtime.check_open()
        return self._runtime.calls

    def __reduce__(self) -> tuple[Any, ...]:
        """Functions that refer to the session get one that submits calls from where they run."""
        cluster, engine = self._runtime.cluster, self._runtime.engine
        self._runtime.check_open()
        address = SessionAddress(
            name=self._name,
            schedulers=cluster.schedulers,
            placement=engine.placement(),
            folder=self._runtime.calls.pool.files.folder,
            slots=cluster.total_slots,
            working_folder=working_folder(),
        )
        return session_in_call, (address,)

    @property
    def udf(self) -> UserFunctions:
        """Python functions that SQL can call: `session.udf.register(...)`, `@session.udf(...)`."""
        return UserFunctions(self._runtime)

    @property
    def udtf(self) -> TableFunctions:
        """Table functions in Python that SQL can call: `session.udtf.register(name, f)`."""
        made: TableFunctions = imported("minishark.functions").TableFunctions(self._runtime)
        return made

    @property
    def tvf(self) -> TableValued:
        """Generators of rows as DataFrames: `session.tvf.explode(...)`."""
        made: TableValued = imported("minishark.functions").TableValued(self._runtime)
        return made

    def program(
        self,
        driver: ProgramDriver,
        *,
        partitions: int | None = None,
        workers: int | None = None,
        snapshot_every: int | None = None,
        snapshot_s: float | None = None,
        copies: int = 2,
        balancer: str = "straggler",
        into: str | None = None,
        replace: bool = False,
    ) -> Program:
        """Start an iterative program over partitioned data; docs/canary.md has the model.

        Each worker runs a copy of the driver and derives from it the tasks for its partitions, so
        that a task costs about a microsecond. A worker takes a slot until the program is over.

        Args:
            driver: a function of a `canary_core.Run`, whose calls name partitioned values and what
                is computed from them; control flow may depend on `run.signal` alone.
            partitions: the default number of partitions; None for four per worker.
            workers: how many slots it takes; None for all. It starts with those that are free,
                and others join.
            snapshot_every: stages between two snapshots, to which it goes back if a worker dies;
                None for none: it then starts again.
            snapshot_s: seconds between two snapshots, instead.
            copies: the number of workers that keep each snapshot.
            balancer: how partitions move: "straggler" takes some from the worker that is busy
                longest, "even" gives all workers the same number, "none" moves nothing.
            into: the name of a table that the result becomes: the driver returns one value, whose
                parts are Arrow tables. They do not pass through this process.
            replace: whether `into` may replace a table.

        Raises:
            CatalogError: there is a table called `into` already.
            OptionError: an argument is invalid, or the driver can't be pickled.

        Examples:
            >>> session.create_table("numbers", session.range(1000))
            >>> def total(run):
            ...     return run.reduce(int.__add__, run.map(len, run.table("numbers")))
            >>> session.program(total, partitions=4).result()
            1000
        """
        options = ProgramOptions(
            partitions=partitions,
            workers=workers,
            snapshot_every=snapshot_every,
            snapshot_s=snapshot_s,
            copies=copies,
            balancer=balancer,
        )
        runtime = self._runtime
        shown, table = partial(line_for_people, wanted=runtime.progress), None
        with runtime.up_to_date():
            if into is not None:
                runtime.named.check_new(into, replace=replace)
                table = IntoTable(into, Layout(), replace, partial(self.table, into))
            return runtime.engine.programs.start(driver, options, table, shown)

    # The cluster

    @property
    def total_slots(self) -> int:
        """The number of tasks that can run at the same time."""
        return self._runtime.cluster.total_slots

    def nodes(self) -> tuple[NodeReport, ...]:
        """The cluster's nodes with their processes, tasks and memory, about a second old.

        Raises:
            ClusterError: the session is stopped.
        """
        return self._runtime.nodes()

    def add_node(self) -> None:
        """Start one more node of the session's own cluster; returns before it is up.

        The cluster must have been opened with `max_nodes`. On other clusters, run
        `minishark cluster node --join ADDRESS` on the new machine.

        Raises:
            OptionError: there are as many nodes as there may be.
            ClusterError: the cluster is not the session's own, or the session is stopped.
        """
        self._runtime.check_open()
        self._runtime.cluster.start_node()

    def drain_node(self, node: str) -> None:
        """Have a node leave without loss; returns at once.

        It takes no new tasks. Its partitions move to other nodes, its tasks end, and running
        queries that read its outputs are served to their end. Then it leaves.

        Args:
            node: its name, as `nodes()` has it.

        Raises:
            OptionError: there is no such node.
            ClusterError: it does not answer, or has to stay as it runs the cluster's scheduler.
        """
        self._runtime.check_open()
        self._runtime.cluster.drain(node)

    def place(self, placement: str, probe_ratio: float = 2.0) -> None:
        """Change how the tasks of queries are placed from now on; see `connect`.

        Raises:
            OptionError: there is no such placement, or the ratio is below 1.
        """
        placements.check_name(placement)
        OPTIONS["probe_ratio"].check("probe_ratio", probe_ratio)
        self._runtime.engine.place(partial(self._runtime.cluster.placement, placement, probe_ratio))

    def register_progress_handler(self, handler: ProgressHandler) -> None:
        """Call `handler` with a `QueryProgress` while queries run, at least once a second.

        It is called on the thread that waits for the query; what it raises ends the query.
        """
        self._runtime.register_progress_handler(handler)

    def remove_progress_handler(self, handler: ProgressHandler) -> None:
        """Call `handler` no longer; nothing happens if it was not registered."""
        self._runtime.remove_progress_handler(handler)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know, such as shared memory that is too small."""
        return (*self._runtime.engine.warnings, *self._runtime.scope.warnings)

    # What happens

    def ui(self, *, port: int = 0, open_browser: bool | None = None) -> str:
        """Serve a page that shows what the session and its cluster do; its address.

        The page is live until the session stops. It is served to this machine only, and its address
        contains a random token: whoever has it sees all queries, and can cancel them.

        Args:
            port: the port on 127.0.0.1; 0 for any that is free. Only the first call chooses it.
            open_browser: whether to open the page; None opens it where there is a display.

        Raises:
            ClusterError: the session is stopped.
            OptionError: the port is taken.
        """
        self._runtime.check_open()
        return self._group.ui(port, open_browser)

    def serve(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 31337,
        token: str | Path | None = None,
        users: Mapping[str, str] | Path | None = None,
        certificate: tuple[str | Path, str | Path] | None = None,
        max_connections: int = 200,
        max_running: int = 100,
        max_running_each: int = 16,
        max_refused: int = 30,
        idle_s: float = 1800.0,
    ) -> Served:
        """Serve the session to other programs by Arrow Flight SQL; docs/tools.md names some.

        Clients share its tables, views and Python functions; settings, temporary tables, prepared
        statements and the current schema are each connection's own. It is served until the server
        or the session is stopped.

        Args:
            host: the address to listen on. One that other machines reach needs `certificate`, and
                `token` or `users`.
            port: the port; 0 for any that is free, which the server's `address` has.
            token: what clients must send, as a bearer token; or a file of such tokens, one a
                line, each perhaps with the time at which it ends (`TOKEN 2027-01-31`).
            users: passwords by user, of which clients must send one; or a file of lines
                `user:password`. Both files may change while it is served.
            certificate: PEM files of a certificate and its private key, for TLS. New connections
                get the files as they are by then.
            max_connections: connections at a time.
            max_running: statements that run or send rows at a time, in all.
            max_running_each: the same, of one connection.
            max_refused: calls from one address in a minute that show no valid token or password,
                after which no more is heard from there for as long.
            idle_s: seconds after which a connection ends that nobody uses.

        Raises:
            OptionError: protobuf is not installed, other machines could reach it unencrypted or
                without a token or password, it can't listen there, or a limit is not positive.
            DataError: the certificate, or a file of tokens or passwords, can't be read.

        Examples:
            >>> with session.serve(port=0) as server:
            ...     server.address.rpartition(":")[0]
            'grpc://127.0.0.1'
        """
        self._runtime.check_open()
        return server("flight")(
            self,
            host=host,
            port=port,
            token=token,
            users=users or {},
            certificate=certificate,
            connections=max_connections,
            running=max_running,
            running_each=max_running_each,
            refused=max_refused,
            idle_s=idle_s,
        )

    def on_stop(self, end: Callable[[], None]) -> None:
        """Call `end` when the session is about to stop."""
        self._ending.append(end)

    def trace(self, provider: TracerProvider | None = None) -> None:
        """Send what happens from now on as OpenTelemetry spans: queries, stages, tasks, calls.

        A query's span is a child of the span that is current where the query is asked for. Spans
        contain the SQL text.

        Args:
            provider: where spans go; None for OpenTelemetry's global provider.

        Raises:
            OptionError: opentelemetry is not installed.
        """
        self._runtime.check_open()
        self._group.watcher.trace(provider)

    # Life

    @property
    def version(self) -> str:
        """Minishark's version."""
        return own_versions()["minishark"]

    @property
    def is_open(self) -> bool:
        """Whether the session has not been stopped."""
        return not self._runtime.is_stopped

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or this process is a fork of the session's."""
        return self._runtime.is_stopped

    def stop(self) -> None:
        """Stop the cluster and free its memory; may be called twice, and from any thread.

        A session that `new_session` has made only ends itself. Does nothing in a fork of the
        process.
        """
        if not self.is_stopped:
            for end in tuple(self._ending):
                end()
        if not self._owns:
            self._runtime.stop(with_engine=False)
            return
        if not self.is_stopped:
            for other in [other for other in self._group.sessions if other is not self]:
                other.stop()
            self._group.stop()
        if self._runtime.stop(with_engine=True):
            self._group.close()
            atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
