"""Where the DataFrames of a session come from: tables, views, files, and rows that are here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from minishark.catalog import Partition
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.dataframe import Answer, CachedRows, Cancellation, DataFrame
from minishark.dataframe.frame import cached_frame, relation_frame, statement_frame, view_frame
from minishark.dataframe.local import SchemaLike, local_table
from minishark.dataframe.names import ident
from minishark.dataframe.reader import DataFrameReader
from minishark.errors import CatalogError, OptionError
from minishark.expressions import Schema
from minishark.query.metrics import QueryMetrics
from minishark.query.sinks import Layout
from minishark.session.catalog import SessionCatalog, Settings
from minishark.session.scratch_database import WrittenTables
from minishark.tables.tables import Tables
from minishark.worker.protocol import ScalarFunction, TaskFunction


class Sources:
    """The methods of a session that make DataFrames without running a statement."""

    if TYPE_CHECKING:
        _planning: PlanningDatabase
        _tables: Tables
        _written: WrittenTables

        def sql(
            self, text: str, params: Sequence[Any] | Mapping[str, Any] | None = None
        ) -> DataFrame:
            """Statements; the last one's answer."""
            ...

        def run(
            self, sql: str, *, cancellation: Cancellation | None = None, explained: bool = False
        ) -> Answer:
            """Run a query to its end."""
            ...

        def verify(self, sql: str, answer: pa.Table) -> None:
            """Compare an answer with plain DuckDB's."""
            ...

        def stream(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
            """Run a query, and read its rows piece by piece."""
            ...

        def explain(self, sql: str, *, mode: str) -> str:
            """Describe how a query runs."""
            ...

        def execute(self, sql: str) -> None:
            """Run a statement that returns no rows."""
            ...

        def create_table(
            self,
            name: str,
            data: Any,
            *,
            partition_by: str | Sequence[str] | None = None,
            replicas: int = 2,
            replace: bool = False,
        ) -> None:
            """Load data into the cluster's memory as a table."""
            ...

        def store_rows(self, rows: pa.Table, *, partitions: int | None = None) -> CachedRows:
            """Load rows into the cluster now."""
            ...

        def cache_query(
            self,
            sql: str,
            *,
            layout: Layout,
            function: TaskFunction | None = None,
            needs: tuple[object, ...] = (),
        ) -> CachedRows:
            """Promise the rows of a query as a table."""
            ...

        def materialize(self, cached: CachedRows) -> None:
            """Compute promised rows now."""
            ...

        def release(self, cached: CachedRows) -> None:
            """Free cached rows."""
            ...

        def partitions(self, name: str) -> tuple[Partition, ...]:
            """A table's partitions."""
            ...

        def write_checkpoint(self, sql: str, path: str) -> str:
            """Write a query's rows to Parquet files."""
            ...

        def apply_function(self, sql: str, function: TaskFunction) -> pa.Table:
            """Apply a function to the rows of a query."""
            ...

        def count_tasks(self, sql: str) -> int:
            """In how many tasks `apply_function` would run."""
            ...

        def register_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
            """Make a Python function callable from SQL."""
            ...

        def remove_function(self, name: str) -> None:
            """Remove a registered function."""
            ...

        def _check_open(self) -> None: ...

        def _load_changed(self) -> None: ...

        @property
        def tables(self) -> list[str]:
            """The names of the tables."""
            ...

    def __init__(self) -> None:
        self._views: dict[str, DataFrame] = {}

    # Tables and views

    def table(self, name: str) -> DataFrame:
        """All rows of a table or view.

        Raises:
            CatalogError: there is no such table.
        """
        self._check_open()
        self._load_changed()
        if name in self._tables.catalog:
            table = self._tables.catalog.get(name)
            return relation_frame(self, ident(table.name), table.schema, alias=table.name)
        if name.lower() in self._views and self._planning.has_view(name):
            return view_frame(self._views[name.lower()], name)
        if self._planning.has_view(name):
            return self.relation(ident(name), alias=name)
        if name.lower() in self._written.own_tables:
            return self.sql(f"FROM {ident(name)}")
        raise self._tables.catalog.unknown(name)

    def create_view(self, name: str, frame: DataFrame, *, replace: bool) -> None:
        """Make a DataFrame a view for SQL; `DataFrame.create_temp_view` calls this.

        Raises:
            CatalogError: something has that name already.
        """
        if name.lower() in (table.lower() for table in self.tables):
            raise CatalogError(f"There is a table called {name!r}; a view needs another name.")
        if self._planning.has_view(name):
            if not replace:
                raise CatalogError(f"There is a view called {name!r} already.")
            if re.search(rf"\b{re.escape(name)}\b", frame.sql(), re.IGNORECASE):
                raise CatalogError(f"The view {name!r} would read itself; use table({name!r}).")
            self.drop_view(name)
        self.sql(f"CREATE VIEW {ident(name)} AS {frame.sql()}")
        # The rows that it reads live as long as the view.
        self._views[name.lower()] = frame

    def drop_view(self, name: str) -> bool:
        """Remove a view; whether there was one."""
        if not self._planning.has_view(name):
            return False
        self.sql(f"DROP VIEW {ident(name)}")
        self._views.pop(name.lower(), None)
        return True

    def relation(self, sql: str, alias: str = "") -> DataFrame:
        """All rows of what stands after FROM: a table function, for example.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        schema = self.bind(f"FROM {sql}")
        return relation_frame(self, sql, schema, alias=alias)

    @property
    def catalog(self) -> SessionCatalog:
        """Tables, views and their columns."""
        return SessionCatalog(
            self._tables.catalog,
            lambda: self.tables,
            self.table,
            self._planning.views,
            self.drop_view,
            lambda: self._tables.cluster.nodes,
        )

    @property
    def conf(self) -> Settings:
        """DuckDB's settings."""
        return Settings(self.sql, self._planning.show)

    # Rows

    @property
    def read(self) -> DataFrameReader:
        """Files as DataFrames: `session.read.parquet("lineitem/*.parquet")`."""
        return DataFrameReader(self, table=self.table)

    def create_dataframe(self, data: Any, schema: SchemaLike = None) -> DataFrame:
        """A DataFrame of rows that are here; they are loaded into the cluster.

        Args:
            data: a list of tuples, dictionaries or Rows; a pandas or polars frame; a pyarrow table,
                a DuckDB relation, or anything else that offers an Arrow stream.
            schema: names of columns; or names with types: a mapping, "a BIGINT, b VARCHAR", or a
                pyarrow schema.

        Raises:
            DataError: the rows do not fit together, or the schema.

        Examples:
            >>> session.create_dataframe([(1, "a"), (2, None)], ["id", "name"]).dtypes
            [('id', 'BIGINT'), ('name', 'VARCHAR')]
        """
        return cached_frame(self, self.store_rows(local_table(data, schema)))

    def range(self, start: int, end: int | None = None, step: int = 1) -> DataFrame:
        """The whole numbers from `start` up to, not including, `end`, as a column `id`.

        With one argument, they start at 0.

        Examples:
            >>> [row.id for row in session.range(1, 10, 3).collect()]
            [1, 4, 7]
        """
        first, last = (0, start) if end is None else (start, end)
        if not step:
            raise OptionError("step can't be 0.")
        sql = f"SELECT range AS id FROM range({first:d}, {last:d}, {step:d})"
        return statement_frame(self, sql, self.bind(sql))

    def from_relation(self, relation: Any) -> DataFrame:
        """A DataFrame of the rows of a DuckDB relation, which runs where it is."""
        return self.create_dataframe(relation)

    # What DataFrames ask

    def bind(self, sql: str) -> Schema:
        """The columns of a query; the verbs of a DataFrame call this."""
        self._check_open()
        self._load_changed()
        return self._planning.bind(sql).schema

    def arrow_schema(self, sql: str) -> pa.Schema:
        """The columns of a query as Arrow has them; `DataFrame.schema` calls this."""
        self._check_open()
        self._load_changed()
        return self._planning.arrow_schema(sql)

    async def sql_async(
        self, text: str, params: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> DataFrame:
        """`sql`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - slow to import, and most programs do not wait so

        return await asyncio.to_thread(self.sql, text, params)
