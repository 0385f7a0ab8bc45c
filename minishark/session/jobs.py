"""What a session does for partitioned jobs: rows that are kept, files, Python functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from minishark.catalog import Partition
from minishark.compiler.physical.options import check_partitions
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.dataframe import CachedRows
from minishark.dataframe.items import Items, chunks
from minishark.dataframe.udf import UserFunctions
from minishark.errors import OptionError, UnsupportedError
from minishark.query.planner import Queries
from minishark.query.sinks import Layout
from minishark.session.catalog import TableInfo, table_info
from minishark.session.scratch_database import WrittenTables
from minishark.session.sources import Sources
from minishark.tables.cached import DerivedTables, recipe
from minishark.tables.copy import (
    Copy,
    CopyGoal,
    check_options,
    parquet_files,
    publish,
    staging_folder,
)
from minishark.tables.kept import Passed
from minishark.tables.tables import Tables
from minishark.worker.protocol import ScalarFunction, TaskFunction
from minishark.worker.scalars import callable_of, create_function, uncalled


class PartitionedJobs(Sources):
    """The methods of a session that concern partitions and Python functions."""

    if TYPE_CHECKING:
        _derived: DerivedTables
        _planning: PlanningDatabase
        _queries: Queries
        _tables: Tables
        _written: WrittenTables

        @property
        def total_slots(self) -> int:
            """How many tasks run at the same time."""
            ...

    # Rows that are kept

    def store_rows(self, rows: pa.Table, *, partitions: int | None = None) -> CachedRows:
        """Load rows into the cluster, for as long as the handle lives."""
        handle = self._derived.loaded(rows, partitions=partitions)
        return CachedRows(handle.name, self._tables.catalog.get(handle.name).schema, handle)

    def kept_rows(self) -> tuple[TableInfo, ...]:
        """What DataFrames keep in the cluster now: rows, bytes of one replica, partitions."""
        self._check_open()
        self._load_changed()
        return tuple(
            table_info(table, "kept", self._tables.cluster.nodes) for table in self._derived.made
        )

    def cache_query(
        self,
        sql: str,
        *,
        layout: Layout,
        function: TaskFunction | None = None,
        needs: tuple[object, ...] = (),
    ) -> CachedRows:
        """Promise the rows of a query as a table, for as long as the handle lives.

        Args:
            sql: the query; it runs when another one reads the table.
            layout: how the rows are to lie.
            function: what they go through.
            needs: what must live as long as the query.
        """
        self._check_open()
        self._load_changed()
        schema = self._planning.bind(sql).schema
        found = recipe(sql, schema, layout, function, needs)
        handle = self._derived.promise(found)
        return CachedRows(handle.name, found.schema, handle)

    def release(self, cached: CachedRows) -> None:
        """Free rows that were kept; a query that needs them makes them again."""
        self._derived.forget(cached.name)

    def materialize(self, cached: CachedRows) -> None:
        """Make rows that were promised, and forget how."""
        self._check_open()
        self._derived.settle(cached.name)

    # Python

    def apply_function(self, sql: str, function: TaskFunction) -> pa.Table:
        """What a function makes of the rows of a query, as one table."""
        self._check_open()
        self._load_changed()
        return self._queries.run_for(sql, Passed(function))[0]

    def count_tasks(self, sql: str) -> int:
        """In how many tasks a function would run over the rows of a query."""
        self._check_open()
        self._load_changed()
        nothing = TaskFunction("", b"", ())
        return self._queries.tasks(sql, Passed(nothing))

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """The partitions of a table, which is made if it is only promised."""
        self._check_open()
        self._load_changed()
        self._derived.make((name,))
        return self._tables.catalog.get(name).partitions

    def parallelize(self, items: Iterable[Any], partitions: int | None = None) -> Items:
        """Python objects, to run functions over them in the cluster.

        Args:
            items: anything that can be pickled.
            partitions: in how many partitions they lie, at most; None for one per slot.

        Raises:
            OptionError: the number makes no sense, or an item can't be pickled.

        Examples:
            >>> session.parallelize("abc").map(str.upper).collect()
            ['A', 'B', 'C']
        """
        self._check_open()
        check_partitions(partitions)
        rows = chunks(items, partitions or self.total_slots)
        return Items(self, self.store_rows(rows, partitions=rows.num_rows))

    @property
    def udf(self) -> UserFunctions:
        """Python functions that SQL can call: `session.udf.register(...)`, `@session.udf(...)`."""
        return UserFunctions(self)

    def register_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        """Make a Python function known to SQL; `udf.register` calls this."""
        self._check_open()
        known = self._queries.scalars.get(function.name)
        if known is not None:
            self.remove_function(function.name)
        elif self._planning.has_function(function.name):
            raise OptionError(f"DuckDB has a function {function.name!r}; choose another name.")
        self._planning.change(lambda con: create_function(con, function, uncalled(fn)))
        self._written.change(lambda con: create_function(con, function, callable_of(function, fn)))
        self._set_functions({**self._queries.scalars, function.name: function})

    def _set_functions(self, functions: dict[str, ScalarFunction]) -> None:
        self._queries.scalars = functions
        self._planning.volatile = frozenset(n for n, f in functions.items() if f.volatile)

    def remove_function(self, name: str) -> None:
        """Make a Python function unknown to SQL; `udf.remove` calls this."""
        self._check_open()
        if name not in self._queries.scalars:
            raise OptionError(f"There is no function {name!r} that was registered.")
        self._set_functions({n: f for n, f in self._queries.scalars.items() if n != name})
        for database in (self._planning, self._written):
            database.change(lambda con: con.remove_function(name))

    def write_checkpoint(self, sql: str, path: str) -> str:
        """Write the rows of a query to Parquet files in a folder; a query that reads them.

        Raises:
            DataError: the folder is not empty, or can't be written.
            UnsupportedError: Parquet does not keep the type of a column.
        """
        self._check_open()
        self._load_changed()
        schema = self._planning.bind(sql).schema
        copy = Copy(Path(path).absolute(), {"format": "parquet", "per_thread_output": "true"})
        with staging_folder(copy) as staging:
            self._planning.check(lambda con: check_options(con, copy, schema, staging))
            kept = self._planning.relation_schema(parquet_files(staging))
            for column, read in zip(schema, kept, strict=True):
                if column.type != read.type:
                    raise UnsupportedError(
                        f"Parquet does not keep column {column.name!r} as {column.type}; "
                        "cast it, or use checkpoint() without a path."
                    )
            written, _ = self._queries.run_for(sql, CopyGoal(copy, staging))
            publish(copy, staging, written)
        return f"FROM {parquet_files(copy.path)}"
