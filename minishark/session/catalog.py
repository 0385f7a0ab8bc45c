"""`session.catalog` and `session.conf`: programmatic access to tables, columns and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from minishark.catalog import Table
from minishark.dataframe import DataFrame
from minishark.dataframe.literals import literal
from minishark.dataframe.names import CamelCase, ident, nearest
from minishark.errors import CatalogError, OptionError
from minishark.session.runtime import Runtime
from minishark.tables.replication import replicas


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
        replicas: the smallest number of live nodes that store a partition; None for a view.
        replicas_wanted: the declared number.
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


def table_info(table: Table, kind: str, nodes: Sequence[str]) -> TableInfo:
    """A table in the cluster, given the live nodes."""
    held = replicas(table, nodes)
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


@dataclass(frozen=True, slots=True)
class SessionCatalog(CamelCase):
    """`session.catalog`: tables, views and columns.

    Attributes:
        runtime: has the tables and views.
        table: makes a DataFrame of one of them.

    Examples:
        >>> session.range(3).create_or_replace_temp_view("three")
        >>> session.catalog.list_columns("three")
        [ColumnInfo(name='id', type='BIGINT')]
        >>> session.catalog.drop_temp_view("three")
        True
    """

    runtime: Runtime
    table: Callable[[str], DataFrame]

    def list_tables(self) -> list[TableInfo]:
        """All tables and views."""
        return [self._info(name) for name in self._names()]

    def get_table(self, name: str) -> TableInfo:
        """The table or view of that name, in any case.

        Raises:
            CatalogError: there is none of that name.
        """
        for known in self._names():
            if known.lower() == name.lower():
                return self._info(known)
        raise self.runtime.tables.catalog.unknown(name)

    def list_columns(self, name: str) -> list[ColumnInfo]:
        """The columns of a table or view.

        Raises:
            CatalogError: there is none of that name.
        """
        return [ColumnInfo(*column) for column in self.table(name).dtypes]

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

    def _names(self) -> list[str]:
        return [*self.runtime.table_names, *self.runtime.planning.views()]

    def _info(self, name: str) -> TableInfo:
        if name in self.runtime.planning.views():
            return TableInfo(name=name, kind="view")
        table = self.runtime.tables.catalog.find(name)
        if table is None:
            warehouse = self.runtime.warehouse
            found = None if warehouse is None else warehouse.size(name)
            rows, size = found or (None, None)
            return TableInfo(name=name, kind="table", rows=rows, bytes=size)
        return table_info(table, "table", self.runtime.cluster.nodes)


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
        """The value of a setting; `default` if it has none.

        Raises:
            OptionError: there is no such setting.
        """
        _check_setting(name)
        answer = self.runtime.planning.show(f"SELECT current_setting({literal(name)}) AS value")
        value = answer.column("value")[0].as_py()
        return default if value is None else value

    def set(self, name: str, value: Any) -> None:
        """Change a setting.

        Raises:
            OptionError: there is no such setting.
            UnsupportedError: minishark sets it itself.
        """
        _check_setting(name)
        self.run(f"SET {ident(name)} = {literal(value)}")

    def unset(self, name: str) -> None:
        """Reset a setting to its default."""
        _check_setting(name)
        self.run(f"RESET {ident(name)}")


def _check_setting(name: str) -> None:
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT name FROM duckdb_settings()").fetchall()
    known = [row[0] for row in rows]
    if name.lower() not in (item.lower() for item in known):
        raise OptionError(
            f"There is no setting {name!r}.{nearest(name, known)} "
            "Settings of the cluster are arguments of connect()."
        )
