"""`session.catalog` and `session.conf`: programmatic access to tables, columns and settings."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minishark.compiler.sql.connection import aside
from minishark.dataframe import DataFrame
from minishark.dataframe.doors import doors
from minishark.dataframe.literals import literal
from minishark.dataframe.local import SchemaLike, declared_columns
from minishark.dataframe.names import CamelCase, camel_keywords, ident, nearest
from minishark.dataframe.reader import DataFrameReader
from minishark.dataframe.udf import UserFunctions
from minishark.errors import CatalogError, OptionError, UnsupportedError
from minishark.model.catalog import Table
from minishark.query.sinks import Layout
from minishark.session.runtime import Runtime
from minishark.session.sparks_settings import is_ignored
from minishark.tables.replication import replicas


class Statements(Protocol):
    """What the catalog needs of a session."""

    @property
    def read(self) -> DataFrameReader:
        """Files as DataFrames."""

    def duckdb_sql(self, text: str) -> DataFrame:
        """Statements in DuckDB's SQL."""

    def table(self, name: str) -> DataFrame:
        """All rows of a table or view."""

    def cache(self, name: str) -> int:
        """Load a table of the warehouse into memory."""

    def uncache(self, name: str) -> None:
        """Free the memory of a table that `cache` has loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A table or view.

    Attributes:
        name: its name.
        kind: "table" or "view".
        rows: its number of rows; None for a view.
        bytes: the size of one replica; None for a view.
        partitions: its number of partitions; None for a view.
        partition_by: the columns whose hash decides a row's partition.
        replicas: the smallest number of live nodes that store a partition; None for a view. A node
            that has started again does not count until it has told what it has.
        replicas_wanted: the declared number, at most that of the live nodes.
        healing: the number of partitions with fewer replicas; they are being copied.
    """

    name: str
    kind: str
    rows: int | None = None
    bytes: int | None = None
    partitions: int | None = None
    partition_by: tuple[str, ...] = ()
    replicas: int | None = None
    replicas_wanted: int | None = None
    healing: int = 0


def table_info(
    table: Table, kind: str, nodes: Sequence[str], doubted: Collection[str] = ()
) -> TableInfo:
    """A table in the cluster, given the live nodes, and those that may have lost its files."""
    held = replicas(table, nodes, doubted)
    return TableInfo(
        name=table.name,
        kind=kind,
        rows=table.rows,
        bytes=table.bytes,
        partitions=len(table.partitions),
        partition_by=table.partition_by,
        replicas=held.fewest,
        replicas_wanted=held.wanted,
        healing=held.healing,
    )


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column: its name and its DuckDB type."""

    name: str
    type: str


@doors
@dataclass(frozen=True, slots=True)
class SessionCatalog(CamelCase):
    """`session.catalog`: tables, views and columns.

    Attributes:
        runtime: has the tables and views.
        session: runs statements.

    Examples:
        >>> session.range(3).create_or_replace_temp_view("three")
        >>> session.catalog.list_columns("three")
        [ColumnInfo(name='id', type='BIGINT')]
        >>> session.catalog.drop_temp_view("three")
        True
    """

    runtime: Runtime
    session: Statements

    # Tables

    def list_tables(self) -> list[TableInfo]:
        """All tables and views."""
        return [self._info(name) for name in self._names()]

    def get_table(self, name: str) -> TableInfo:
        """The table or view of that name, in any case.

        Raises:
            CatalogError: there is none of that name.
        """
        for table in self._names():
            if table.lower() == name.lower():
                return self._info(table)
        raise self.runtime.scope.catalog.unknown(name)

    def list_columns(self, name: str) -> list[ColumnInfo]:
        """The columns of a table or view.

        Raises:
            CatalogError: there is none of that name.
        """
        return [ColumnInfo(*column) for column in self.session.table(name).dtypes]

    def table_exists(self, name: str) -> bool:
        """Whether there is a table or view of that name."""
        try:
            self.get_table(name)
        except CatalogError:
            return False
        return True

    def drop_temp_view(self, name: str) -> bool:
        """Remove a view; returns whether it existed."""
        return self.runtime.definitions.drop_view(name)

    drop_view = drop_global_temp_view = drop_temp_view

    def list_views(self) -> list[TableInfo]:
        """All views."""
        return [self._info(name) for name in self.runtime.planning.views()]

    @camel_keywords
    def create_table(
        self,
        table_name: str,
        path: str | None = None,
        source: str | None = None,
        schema: SchemaLike = None,
        description: str | None = None,
        **options: Any,
    ) -> DataFrame:
        """Load files into a table in memory; or make an empty one of a schema.

        Args:
            table_name: its name.
            path: the files; None for an empty table.
            source: their format: "parquet" (the default), "csv", "json".
            schema: names and types of columns.
            description: ignored.
            options: of `session.read`.

        Raises:
            CatalogError: there is a table of that name.
            OptionError: there are neither files nor a schema.
        """
        del description
        if path is not None:
            reader = self.session.read.format(source or "parquet").options(**options)
            frame = (reader if schema is None else reader.schema(schema)).load(path)
            self.runtime.create_table(table_name, frame, layout=Layout())
        elif schema is not None:
            columns = ", ".join(f"{ident(n)} {type_}" for n, type_ in declared_columns(schema))
            self.session.duckdb_sql(f"CREATE TABLE {ident(table_name)} ({columns})")
        else:
            raise OptionError("create_table() takes a path or a schema.")
        return self.session.table(table_name)

    create_external_table = create_table

    def drop_table(self, name: str) -> None:
        """Remove a table.

        Raises:
            CatalogError: there is none of that name.
        """
        self.runtime.drop_table(name)

    def truncate_table(self, name: str) -> None:
        """Remove all rows of a table."""
        self.session.duckdb_sql(f"DELETE FROM {ident(self.get_table(name).name)}")

    def get_create_table_string(self, name: str) -> str:
        """A statement that makes an empty table of the same columns."""
        columns = ", ".join(
            f"{ident(column.name)} {column.type}" for column in self.list_columns(name)
        )
        return f"CREATE TABLE {ident(name)} ({columns})"

    # Memory

    def is_cached(self, name: str) -> bool:
        """Whether a table's rows are in memory, as they are but for views and warehouses.

        Raises:
            CatalogError: there is none of that name.
        """
        table = self.get_table(name)
        return self.runtime.scope.catalog.find(table.name) is not None

    def cache_table(self, name: str) -> None:
        """Have a table in memory, where it is unless it is the warehouse's; see `Session.cache`.

        Raises:
            CatalogError: there is none of that name.
            UnsupportedError: it is a view; `session.table(name).persist()` keeps its rows.
        """
        if self.is_cached(name):
            return
        if self.get_table(name).kind == "view":
            raise UnsupportedError(f"{name!r} is a view: use session.table({name!r}).persist().")
        self.session.cache(name)

    def uncache_table(self, name: str) -> None:
        """Free the memory of a table of the warehouse.

        Raises:
            CatalogError: it is not cached, or is in memory only.
        """
        self.session.uncache(name)

    def clear_cache(self) -> None:
        """Free the rows that `cache_table` and DataFrames' `persist` have in memory.

        Queries that need them read or compute them again.
        """
        with self.runtime.up_to_date():
            for table in self.runtime.engine.cached:
                self.runtime.engine.cached.forget(table.name)
            self.runtime.stores.clear_cache()

    def refresh_table(self, name: str) -> None:
        """Do nothing but check the name: queries see the current rows.

        Raises:
            CatalogError: there is none of that name.
        """
        self.get_table(name)

    def refresh_by_path(self, path: str) -> None:
        """Do nothing: queries read files as they are."""

    # Databases

    def current_database(self) -> str:
        """The current schema."""
        return str(self._value("SELECT current_schema()"))

    def set_current_database(self, name: str) -> None:
        """Make a schema the current one.

        Raises:
            QueryError: there is none of that name.
        """
        self.session.duckdb_sql(f"USE {ident(name)}")

    def list_databases(self) -> list[str]:
        """The names of the schemas."""
        schemas = self.session.duckdb_sql(
            "SELECT DISTINCT schema_name FROM information_schema.schemata "
            "WHERE schema_name NOT IN ('information_schema', 'pg_catalog') ORDER BY ALL"
        )
        return [row[0] for row in schemas.collect()]

    def database_exists(self, name: str) -> bool:
        """Whether there is a schema of that name."""
        return name.lower() in map(str.lower, self.list_databases())

    def get_database(self, name: str) -> str:
        """The name of a schema.

        Raises:
            CatalogError: there is none of that name.
        """
        for database in self.list_databases():
            if database.lower() == name.lower():
                return database
        raise CatalogError(f"There is no schema {name!r}.{nearest(name, self.list_databases())}")

    def create_database(self, name: str, if_not_exists: bool = False) -> None:
        """Make a schema."""
        self.session.duckdb_sql(f"CREATE SCHEMA {'IF NOT EXISTS ' * if_not_exists}{ident(name)}")

    def drop_database(self, name: str, if_exists: bool = False, cascade: bool = False) -> None:
        """Remove a schema; with `cascade`, also one that has tables."""
        self.session.duckdb_sql(
            f"DROP SCHEMA {'IF EXISTS ' * if_exists}{ident(name)}{' CASCADE' * cascade}"
        )

    def current_catalog(self) -> str:
        """The name of the current database of DuckDB, or of the warehouse."""
        return str(self._value("SELECT current_catalog()"))

    def list_catalogs(self) -> list[str]:
        """The names of the databases: the current one."""
        return [self.current_catalog()]

    # Functions

    def list_functions(self, pattern: str | None = None) -> list[str]:
        """The names of the functions that SQL can call; those that match `*` patterns."""
        functions = self.session.duckdb_sql(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() ORDER BY ALL"
        )
        names = {*(row[0] for row in functions.collect()), *self.runtime.engine.planner.functions}
        return sorted(fnmatch.filter(names, pattern) if pattern else names)

    def function_exists(self, name: str) -> bool:
        """Whether SQL can call a function of that name."""
        return name.lower() in self.list_functions()

    def get_function(self, name: str) -> str:
        """The name of a function.

        Raises:
            CatalogError: there is none of that name.
        """
        functions = self.list_functions()
        if name.lower() not in functions:
            raise CatalogError(f"There is no function {name!r}.{nearest(name, functions)}")
        return name.lower()

    def register_function(self, name: str, f: Any, return_type: Any = None) -> Any:
        """As `session.udf.register`."""
        return UserFunctions(self.runtime).register(name, f, return_type)

    def _value(self, sql: str) -> Any:
        return self.session.duckdb_sql(sql).collect()[0][0]

    def _names(self) -> list[str]:
        return [*self.runtime.table_names, *self.runtime.planning.views()]

    def _info(self, name: str) -> TableInfo:
        if name in self.runtime.planning.views():
            return TableInfo(name=name, kind="view")
        table = self.runtime.scope.catalog.find(name)
        if table is None:
            rows, size = self.runtime.stores.size(name)
            return TableInfo(name=name, kind="table", rows=rows, bytes=size)
        doubted = self.runtime.tables.doubted(table)
        return table_info(table, "table", self.runtime.cluster.nodes, doubted)


@dataclass(frozen=True, slots=True)
class Settings(CamelCase):
    """`session.conf`: DuckDB's settings for all later queries.

    Attributes:
        runtime: reads settings.
        run: runs a statement.

    Examples:
        >>> session.conf.set("default_null_order", "nulls_first")
        >>> session.conf.get("default_null_order")
        'NULLS_FIRST'
        >>> session.conf.unset("default_null_order")
    """

    runtime: Runtime
    run: Callable[[str], Any]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting; `default` if it has none, as Spark's have.

        Raises:
            OptionError: there is no such setting.
        """
        if name.startswith("spark.") and default is not None:
            return default
        _check_setting(name)
        value = self.runtime.setting(name)
        return default if value is None else value

    def set(self, name: str, value: Any) -> None:
        """Change a setting; Spark's are ignored, with a warning.

        Raises:
            OptionError: there is no such setting.
            UnsupportedError: minishark sets it itself.
        """
        if is_ignored(name):
            return
        _check_setting(name)
        self.run(f"SET {ident(name)} = {literal(value)}")

    @property
    def get_all(self) -> dict[str, Any]:
        """All settings with their values."""
        rows = self.runtime.planning.show("SELECT name, value FROM duckdb_settings()").to_pylist()
        return {row["name"]: row["value"] for row in rows}

    def is_modifiable(self, name: str) -> bool:
        """Whether there is such a setting, which `set` can change."""
        try:
            _check_setting(name)
        except OptionError:
            return False
        return True

    def unset(self, name: str) -> None:
        """Reset a setting to its default; Spark's are ignored, with a warning."""
        if is_ignored(name):
            return
        _check_setting(name)
        self.run(f"RESET {ident(name)}")


def _check_setting(name: str) -> None:
    with aside() as connection:
        rows = connection.execute("SELECT name FROM duckdb_settings()").fetchall()
    settings = [row[0] for row in rows]
    if name.lower() not in (item.lower() for item in settings):
        raise OptionError(
            f"There is no setting {name!r}.{nearest(name, settings)} "
            "Settings of the cluster are arguments of connect()."
        )
