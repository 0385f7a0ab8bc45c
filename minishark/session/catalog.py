"""What a session has, for programs that ask: tables, columns, settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from minishark.catalog import Catalog, Table
from minishark.dataframe import DataFrame
from minishark.dataframe.literals import literal
from minishark.dataframe.names import CamelCase, ident, nearest
from minishark.errors import CatalogError, OptionError
from minishark.tables.replication import replicas


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table or view.

    Attributes:
        name: its name.
        kind: "table" or "view".
        rows: how many rows it has; None for a view.
        bytes: the size of one replica; None for a view.
        partitions: in how many partitions it lies; None for a view.
        partition_by: the columns whose hash decides a row's partition.
        replicas: on how many nodes that live each partition lies at least; None for a view.
        replicas_wanted: on how many it shall lie.
        healing: how many partitions lie on fewer; they are being copied.
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
    """What is known of a table in the cluster, while these nodes live."""
    held = replicas(table, nodes)
    return TableInfo(
        table.name,
        kind,
        table.rows,
        table.bytes,
        len(table.partitions),
        table.partition_by,
        held.fewest,
        held.wanted,
        held.healing,
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
        loaded: the tables in the cluster, those without names for users too.
        names: the names of the tables.
        table: all rows of a table or view.
        views: the names of the views.
        drop_view: removes a view; says whether there was one.
        nodes: the nodes that live.

    Examples:
        >>> session.range(3).create_or_replace_temp_view("three")
        >>> session.catalog.list_columns("three")
        [ColumnInfo(name='id', type='BIGINT')]
        >>> session.catalog.drop_temp_view("three")
        True
    """

    loaded: Catalog
    names: Callable[[], list[str]]
    table: Callable[[str], DataFrame]
    views: Callable[[], list[str]]
    drop_view: Callable[[str], bool]
    nodes: Callable[[], Sequence[str]]

    def list_tables(self) -> list[TableInfo]:
        """All tables and views."""
        return [self._info(name) for name in (*self.names(), *self.views())]

    def get_table(self, name: str) -> TableInfo:
        """One of them.

        Raises:
            CatalogError: there is none of that name.
        """
        for known in (*self.names(), *self.views()):
            if known.lower() == name.lower():
                return self._info(known)
        raise self.loaded.unknown(name)

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
        """Remove a view; whether there was one."""
        return self.drop_view(name)

    def _info(self, name: str) -> TableInfo:
        if name in self.views():
            return TableInfo(name, "view")
        if name not in self.loaded:
            return TableInfo(name, "table")
        return table_info(self.loaded.get(name), "table", self.nodes())


@dataclass(frozen=True, slots=True)
class Settings(CamelCase):
    """`session.conf`: DuckDB's settings, which hold for all later queries.

    Attributes:
        run: runs a statement.
        ask: answers a question about settings.

    Examples:
        >>> session.conf.set("default_null_order", "nulls_first")
        >>> session.conf.get("default_null_order")
        'NULLS_FIRST'
        >>> session.conf.unset("default_null_order")
    """

    run: Callable[[str], Any]
    ask: Callable[[str], pa.Table]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting; `default` if it has none.

        Raises:
            OptionError: there is no such setting.
        """
        _check_setting(name)
        answer = self.ask(f"SELECT current_setting({literal(name)}) AS value")
        value = answer.column("value")[0].as_py()
        return default if value is None else value

    def set(self, name: str, value: Any) -> None:
        """Change a setting.

        Raises:
            OptionError: there is no such setting.
            UnsupportedError: minishark chooses it itself.
        """
        _check_setting(name)
        self.run(f"SET {ident(name)} = {literal(value)}")

    def unset(self, name: str) -> None:
        """Give a setting the value that it had at first."""
        _check_setting(name)
        self.run(f"RESET {ident(name)}")


def _check_setting(name: str) -> None:
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT name FROM duckdb_settings()").fetchall()
    known = [row[0] for row in rows]
    if name.lower() not in (item.lower() for item in known):
        raise OptionError(
            f"There is no setting {name!r}.{nearest(name, known)} "
            "What concerns the cluster is an argument of connect()."
        )
