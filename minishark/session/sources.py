"""Where the DataFrames of a session come from: tables, views, files, and rows that are here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from minishark.compiler.sql.planning import PlanningDatabase
from minishark.dataframe import Answer, Cancellation, DataFrame, KeptRows
from minishark.dataframe.local import SchemaLike, local_table
from minishark.dataframe.names import ident
from minishark.dataframe.reader import DataFrameReader
from minishark.errors import CatalogError, OptionError
from minishark.expressions import Schema
from minishark.query.metrics import QueryMetrics
from minishark.session.catalog import SessionCatalog, Settings
from minishark.session.scratch_database import WrittenTables
from minishark.tables.tables import Tables


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

        def run_statement(
            self, sql: str, cancellation: Cancellation | None = None, *, explained: bool = False
        ) -> Answer:
            """Run a query to its end."""
            ...

        def verify_answer(self, sql: str, answer: pa.Table) -> None:
            """Compare an answer with plain DuckDB's."""
            ...

        def stream_statement(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
            """Run a query, and read its rows piece by piece."""
            ...

        def explain_statement(self, sql: str, mode: str) -> str:
            """Describe how a query runs."""
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

        def keep_rows(self, data: Any) -> KeptRows:
            """Load rows into the cluster, for as long as the handle lives."""
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
            return DataFrame.of_relation(self, ident(table.name), table.schema, alias=table.name)
        if name.lower() in self._views and self._planning.has_view(name):
            return self._views[name.lower()].named(name)
        if self._planning.has_view(name):
            return self.relation(ident(name), alias=name)
        if name.lower() in self._written.own_tables:
            return self.sql(f"FROM {ident(name)}")
        raise self._tables.catalog.unknown(name)

    def register_view(self, name: str, frame: DataFrame, *, replace: bool) -> None:
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
        schema = self.bind_statement(f"FROM {sql}")
        return DataFrame.of_relation(self, sql, schema, alias=alias)

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
        return DataFrameReader(self)

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
        return DataFrame.of_kept(self, self.keep_rows(local_table(data, schema)))

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
        return DataFrame.of_statement(self, sql, self.bind_statement(sql))

    def from_relation(self, relation: Any) -> DataFrame:
        """A DataFrame of the rows of a DuckDB relation, which runs where it is."""
        return self.create_dataframe(relation)

    # What DataFrames ask

    def bind_statement(self, sql: str) -> Schema:
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
