"""What the front end knows of its tables: schemas, partitions with their holders, statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from minishark.errors import CatalogError
from minishark.expressions import Schema
from minishark.statistics import ColumnStatistics, TableStatistics


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a table, held as an Arrow IPC file by one or more nodes.

    `file` is relative to a node's storage folder; it has the same name on every holder. A partition
    of files that a query names is held by nobody: `relation`, in SQL, gives its rows.
    """

    index: int
    file: str
    locations: tuple[str, ...]
    rows: int
    bytes: int
    relation: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table in the executors' memory.

    Rows lie in partition `hash(partition_by) % len(partitions)` where `partition_by` names columns,
    and anywhere where it is empty. On `replicas` nodes each partition shall lie, if there are so
    many: where nodes die, others get copies.
    """

    name: str
    schema: Schema
    partitions: tuple[Partition, ...]
    partition_by: tuple[str, ...]
    statistics: TableStatistics
    replicas: int = 1

    @property
    def folder(self) -> str:
        """Where its files lie in each node's storage; every load has a folder of its own."""
        return self.partitions[0].file.rpartition("/")[0]

    def held_by(self, index: int, nodes: tuple[str, ...]) -> Table:
        """The table with other holders of one partition."""
        partitions = list(self.partitions)
        partitions[index] = replace(partitions[index], locations=nodes)
        return replace(self, partitions=tuple(partitions))

    def column_statistics(self, name: str) -> ColumnStatistics | None:
        """What was measured of a column; None if the table only stands for files."""
        columns = self.statistics.columns
        if not columns or any(partition.relation for partition in self.partitions):
            return None
        names = [column.name.lower() for column in self.schema]
        return columns[names.index(name.lower())]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """The size of one replica, in bytes."""
        return sum(partition.bytes for partition in self.partitions)


class Catalog:
    """The tables of a session by name; names are case-insensitive, as in SQL."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}

    def add(self, table: Table) -> None:
        """Add a table; one of the same name is replaced."""
        self._tables[table.name.lower()] = table

    def remove(self, name: str) -> Table:
        """Take a table out, and return it.

        Raises:
            CatalogError: there is none of that name.
        """
        table = self.get(name)
        del self._tables[name.lower()]
        return table

    def get(self, name: str) -> Table:
        """The table called `name`.

        Raises:
            CatalogError: there is none.
        """
        table = self.find(name)
        if table is None:
            raise self.unknown(name)
        return table

    def find(self, name: str) -> Table | None:
        """The table called `name`, or None if there is none."""
        return self._tables.get(name.lower())

    def unknown(self, name: str) -> CatalogError:
        """What to raise if there is no table called `name`."""
        known = ", ".join(sorted(self._tables)) or "none"
        return CatalogError(f"There is no table called {name!r}; the tables are: {known}.")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._tables

    def __iter__(self) -> Iterator[Table]:
        return iter(tuple(self._tables.values()))  # other threads add and remove some
