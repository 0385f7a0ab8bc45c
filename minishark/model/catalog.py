"""The catalog: schemas of tables, their partitions with locations, and statistics."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from minishark.errors import CatalogError
from minishark.model.expressions import Schema


class ColumnStatistics(msgspec.Struct, frozen=True):
    """Statistics of one column."""

    null_fraction: float = 0.0  # the share of rows that are NULL, from 0 to 1
    distinct: int | None = None  # estimated, without NULL; None where not measured (nested types)
    # The smallest value as text, such that CAST(text AS the column's type) gives it; None where
    # there is none or it was not measured.
    minimum: str | None = None
    maximum: str | None = None  # the largest value, likewise
    without_nulls: bool = False  # whether there is surely no NULL: all rows were counted


class TableStatistics(msgspec.Struct, frozen=True):
    """Statistics of a table."""

    rows: int
    bytes: int  # the size in memory, in bytes
    columns: tuple[ColumnStatistics, ...]

    @property
    def is_of_rows_alone(self) -> bool:
        """Whether nothing is known of the columns."""
        return all(column == ColumnStatistics() for column in self.columns)


PARTITION_SHIFT, FILE_SHIFT = 46, 32  # 17 bits for partitions, 14 for their files
Pickled: TypeAlias = bytes
RowNumbers: TypeAlias = bytes
"""Rows of a file: their numbers if they are few, or a bit for each row up to the last of them,
compressed (`visible_rows`)."""

Constants: TypeAlias = bytes
"""What each row of a file has in columns that it lacks, the table's last: an Arrow stream of one
row."""


ROW_NUMBER = "_minishark_row"
"""The column with the numbers of rows, where readers get one."""


PATCH_SETS, PATCH_DELETES = 1, 2
"""What a patch says of a row: columns get values, or it is deleted; anything else for nothing."""


def first_row_number(partition: int, file: int) -> int:
    """The number of the first row in a file of a partition; unique in a version of a table."""
    return (partition << PARTITION_SHIFT) + (file << FILE_SHIFT)


def row_place(number: int) -> tuple[int, int, int]:
    """The partition, the file in it, and the row in that file, of a row's number."""
    files = (1 << PARTITION_SHIFT - FILE_SHIFT) - 1
    rows = (1 << FILE_SHIFT) - 1
    return number >> PARTITION_SHIFT, (number >> FILE_SHIFT) & files, number & rows


@dataclass(frozen=True, slots=True)
class Constraints:
    """What is said of a table's rows, besides their types."""

    defaults: Mapping[int, str] = field(default_factory=dict, hash=False)  # SQL, by columns
    checks: tuple[str, ...] = ()  # conditions that each row meets
    # The columns of each PRIMARY KEY or UNIQUE: no two rows have them in common, but for NULL.
    keys: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Rows that were added to a partition after it was stored: an Arrow IPC file of its own."""

    file: str  # its path, in the folder of the partition's own file, and on the same nodes
    rows: int  # that are not deleted
    bytes: int
    deleted: RowNumbers = b""
    constants: Constants = b""
    held: tuple[str, ...] = ()  # other locations, which live as long as the session


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition of a table: an Arrow IPC file on one or more nodes, and what has changed since.

    Changes come as deltas and as numbers of deleted rows; no file is ever written again.
    """

    index: int
    file: str  # its path, relative to the storage folder of every node that stores it
    locations: tuple[str, ...]  # the nodes that store all of its files
    rows: int  # of all files, without those that are deleted
    bytes: int  # the size of one replica, of all files
    deleted: RowNumbers = b""  # of `file`
    constants: Constants = b""  # of columns that the table has got since `file` was stored
    deltas: tuple[Delta, ...] = ()  # rows added later, in this order
    # The record batches of `file` that a query needs, if that is known: runs of them, each with the
    # number of rows before it.
    needed: tuple[tuple[int, int, int], ...] | None = None
    # Whether readers get one more column, the number of each row: it tells its partition, file and
    # place in that (`tables/deltas.py`).
    is_numbered: bool = False
    read: Pickled = b""  # for a table of a source, the splits to read; no node stores the rows
    # Whether these are local Parquet files, which DuckDB reads with all threads, and whose rows are
    # known: one task may read all of them.
    reads_in_threads: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file, *(delta.file for delta in self.deltas))

    def same_files(self, other: Partition) -> bool:
        """Whether it has the same files, whatever is deleted in them and wherever they are."""
        return self.files == other.files

    @property
    def homes(self) -> dict[str, tuple[str, ...]]:
        """Its files, each with the nodes that store it."""
        further = {delta.file: (*self.locations, *delta.held) for delta in self.deltas}
        return {self.file: self.locations, **further}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table in the executors' memory."""

    name: str
    schema: Schema
    partitions: tuple[Partition, ...]  # its partitions, at least one
    partition_by: tuple[str, ...]  # rows are in partition `hash(partition_by) % len(partitions)`
    statistics: TableStatistics
    replicas: int = 1  # the declared number; where nodes die, others get copies
    is_computed: bool = True  # False for a cached table that is computed when first needed
    title: str = ""  # what users know it as, if not by its name
    version: int = 0  # 0 as it was stored; each change gives it a number that no other has
    # What its constraints are, and the statement that creates an empty one, if columns don't.
    constraints: Constraints = field(default_factory=Constraints)
    definition: str = ""

    @property
    def folder(self) -> str:
        """The folder of its files in each node's storage; every load has one of its own."""
        return self.partitions[0].file.rpartition("/")[0]

    @property
    def homes(self) -> dict[str, tuple[str, ...]]:
        """Its files, each with the nodes that store it."""
        return {file: nodes for part in self.partitions for file, nodes in part.homes.items()}

    def same_rows(self, other: Table) -> bool:
        """Whether it is the same version of the same load, wherever that is stored."""
        return self.folder == other.folder and self.version == other.version

    def planned_as(self, other: Table) -> bool:
        """Whether queries over it have the same plans: it has changed little, or not at all."""
        return (
            self.folder == other.folder
            and len(self.partitions) == len(other.partitions)
            and self.statistics == other.statistics
        )

    @property
    def is_hashed(self) -> bool:
        """Whether the keys of a row decide which of several partitions it is in."""
        return bool(self.partition_by) and len(self.partitions) > 1

    def with_locations(self, index: int, nodes: tuple[str, ...]) -> Table:
        partitions = list(self.partitions)
        partitions[index] = replace(partitions[index], locations=nodes)
        return replace(self, partitions=tuple(partitions))

    def column_statistics(self, name: str) -> ColumnStatistics | None:
        """The statistics of a column; None if the table only stands for a source."""
        columns = self.statistics.columns
        if not columns or self.is_source:
            return None
        names = [column.name.lower() for column in self.schema]
        return columns[names.index(name.lower())]

    @property
    def is_source(self) -> bool:
        """Whether tasks read its rows from a source, as no node stores them."""
        return any(partition.read for partition in self.partitions)

    @property
    def rows(self) -> int:
        return sum(partition.rows for partition in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)


def promised_table(name: str, schema: Schema) -> Table:
    """A table that is not computed yet: only its columns are known."""
    nowhere = Partition(index=0, file=f"promised/{name}/0.arrow", locations=(), rows=0, bytes=0)
    statistics = TableStatistics(0, 0, tuple(ColumnStatistics() for _ in schema))
    return Table(
        name=name,
        schema=schema,
        partitions=(nowhere,),
        partition_by=(),
        statistics=statistics,
        is_computed=False,
    )


class Catalog:
    """The tables of a session by name; names are case-insensitive, as in SQL.

    Threads may read it while one changes it.
    """

    def __init__(self, tables: Iterable[Table] = ()) -> None:
        # A change replaces it, so what was read from it at once belongs together.
        self._tables: Mapping[str, Table] = {table.name.lower(): table for table in tables}

    def add(self, *tables: Table) -> None:
        """Add or replace tables, all at once."""
        self._tables = {**self._tables, **{table.name.lower(): table for table in tables}}

    def remove(self, name: str) -> Table:
        table = self.get(name)
        self.change((), (name,))
        return table

    def change(self, tables: Iterable[Table], gone: Iterable[str]) -> None:
        """Remove the tables of some names, and add or replace others, all at once."""
        names = {name.lower() for name in gone}
        left = {key: table for key, table in self._tables.items() if key not in names}
        self._tables = {**left, **{table.name.lower(): table for table in tables}}

    @property
    def loaded(self) -> list[str]:
        """The names of the tables whose rows are computed, cached ones included."""
        return [table.name for table in self if table.is_computed]

    @property
    def folders(self) -> frozenset[str]:
        """The folders of its tables."""
        return frozenset(table.folder for table in self)

    def at_once(self) -> Catalog:
        """The tables as they are now, whatever becomes of them."""
        return Catalog(self)

    def get(self, name: str) -> Table:
        table = self.find(name)
        if table is None:
            raise self.unknown(name)
        return table

    def find(self, name: str) -> Table | None:
        return self._tables.get(name.lower())

    def again(self, table: Table) -> Table | None:
        """The same version of a table with its current locations; None if there is another."""
        current = self.find(table.name)
        return current if current is not None and current.same_rows(table) else None

    def unknown(self, name: str) -> CatalogError:
        names = (table.name.lower() for table in self)
        present = sorted(name for name in names if not name.startswith("_"))  # kept rows
        near = difflib.get_close_matches(name.lower(), present, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        listed = ", ".join(present) or "none"
        return CatalogError(f"There is no table called {name!r}; the tables are: {listed}.{hint}")

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def __iter__(self) -> Iterator[Table]:
        return iter(tuple(self._tables.values()))  # other threads add and remove some


class CatalogView(Catalog):
    """A catalog in which some tables have other versions, or are further ones, or are gone."""

    def __init__(
        self,
        seen: Catalog,
        tables: Iterable[Table] = (),
        *,
        shows: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """The catalog that is seen but for these tables, as it is whenever it is asked.

        `shows` says of the names of its other tables which ones are there.
        """
        super().__init__(tables)
        self._seen = seen
        self._shows = shows
        # Of names in lower case: whether there is a table, whatever the catalog that is seen has.
        self._decided: Mapping[str, bool] = {}

    def decide(self, name: str, table: Table | None) -> None:
        """Have a table of a name, or none, whatever becomes of the catalog that is seen."""
        self.change((table,) if table is not None else (), () if table is not None else (name,))
        self._decided = {**self._decided, name.lower(): table is not None}

    def find(self, name: str) -> Table | None:
        if not self._decided.get(name.lower(), True):
            return None
        return super().find(name) or (self._seen.find(name) if self._shows(name) else None)

    def at_once(self) -> Catalog:
        """The tables as they are now, whatever becomes of them."""
        now = CatalogView(self._seen.at_once(), super().__iter__(), shows=self._shows)
        now._decided = self._decided
        return now

    def __iter__(self) -> Iterator[Table]:
        own = {table.name.lower(): table.name for table in super().__iter__()}
        names = {table.name.lower(): table.name for table in self._seen}
        seen = map(self.find, {**names, **own}.values())
        return iter([table for table in seen if table is not None])
