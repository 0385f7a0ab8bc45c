"""What a warehouse's catalog and its tables can do, whatever they are stored in.

    Catalog.load(name) -> TableVersion        the version that is current now
    TableVersion.snapshot(name) -> Snapshot   what queries read of it
    Catalog.change(name) -> TableChange       a change, of which nobody knows before `commit`

Statements are the same for all catalogs (`tables/warehouse/writes`). Their tasks write files as
the change's `layout` says; then they become part of the table in one commit, or never.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from minishark.errors import CatalogError
from minishark.model.expressions import Column, Schema, quote
from minishark.sources.contract import Snapshot, Source

NAME = "warehouse"
"""The warehouse's name in SQL."""

MAIN = "main"
"""The schema of tables that are named without one."""


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table of the warehouse; names are matched in any case, as DuckDB does."""

    schema: str
    table: str

    def __str__(self) -> str:
        # Each name means one table only, whatever dots there are in its parts.
        parts = (
            part if re.fullmatch(r"[^\W\d]\w*", part) else quote(part)
            for part in (self.schema, self.table)
        )
        return ".".join([NAME, *parts])


def same_name(name: str, others: Iterable[str]) -> str | None:
    """The one of `others` that is the same name, in any case."""
    return next((other for other in others if other.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Described:
    """The columns of a table that is created."""

    schema: Schema
    required: tuple[str, ...] = ()  # those that are NOT NULL


@dataclass(frozen=True, slots=True)
class Transform:
    """An element of PARTITIONED BY."""

    kind: str  # identity, year, month, day, hour, bucket, truncate
    column: str
    number: int = 0  # of buckets, or to which a value is truncated


@dataclass(frozen=True, slots=True)
class Moment:
    """An earlier version: its number, or a point in time at which it was current."""

    number: int | None = None
    time: datetime | None = None

    def __str__(self) -> str:
        return str(self.number) if self.time is None else self.time.isoformat()


class Layout(Protocol):
    """How tasks store a table's rows; it travels to executors by cloudpickle.

    Attributes:
        location: the folder of the files, as a URI.
        arrow: the columns as they are stored, with field ids.
    """

    @property
    def location(self) -> str: ...

    @property
    def arrow(self) -> pa.Schema: ...

    @property
    def options(self) -> Mapping[str, str]:
        """Iceberg's properties `write.target-file-size-bytes` and `write.parquet.*`."""

    def divided(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        """The rows of each partition, with what identifies it; `()` for rows without one."""

    def folder(self, partition: tuple[Any, ...]) -> str:
        """Where files of a partition go, below `location`."""

    def measured(self, rows: pa.Table, so_far: Any) -> Any:
        """What is to be known of a file besides its footer, given what is after other rows."""

    def described(
        self, path: str, size: int, partition: tuple[Any, ...], footer: Any, measured: Any
    ) -> bytes:
        """What the front end is told of a complete file, given pyarrow's metadata of it."""

    def file(self, described: bytes) -> Any:
        """The file as `TableChange` takes it; it has `file_path` and `record_count`."""

    def create(self, path: str) -> Any:
        """A new file, open for writing."""

    def delete(self, path: str) -> None:
        """Remove a file."""

    def remove_written(self, write_id: str) -> None:
        """Remove the files whose names begin so, as far as that is possible."""


class TableVersion(Protocol):
    """One version of a table; it never changes. Two are the same if they are one object."""

    @property
    def columns(self) -> Schema:
        """The columns in DuckDB's types (UnsupportedError if one has none)."""

    @property
    def required(self) -> Collection[str]:
        """The columns that are NOT NULL."""

    @property
    def defaults(self) -> Mapping[int, str]:
        """SQL of what columns are in new rows that have no value for them, by position."""

    @property
    def comments(self) -> Mapping[str, str]:
        """Comments of columns, and of the table, which has the name ''."""

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and stored bytes, as far as they are known without reading the table."""

    def places(self) -> Mapping[str, int]:
        """Where rows are stored, and how many: files, or what takes their place."""

    def snapshot(self, name: str, at: Moment | None = None) -> Snapshot:
        """The rows, or those of an earlier version; `name` is for messages.

        Raises:
            DataError: there is no such version.
        """


class TableChange(Protocol):
    """A change of one table, which others see after `commit`.

    Attributes:
        files: the files that were written for it.
    """

    files: list[str]

    @property
    def version(self) -> TableVersion:
        """The table with what was changed so far."""

    @property
    def layout(self) -> Layout: ...

    def append(self, files: Sequence[Any]) -> None:
        """Add files to the table."""

    def replace(self, places: Collection[str], files: Sequence[Any]) -> None:
        """Put files in the place of others."""

    def redefine(self, columns: Described, partitions: Sequence[Transform]) -> None:
        """Give the table other columns, none of which continues an old one, and no rows."""

    # ALTER TABLE and COMMENT; columns exist, and new ones don't

    def add_column(self, column: Column) -> None: ...

    def drop_column(self, name: str) -> None: ...

    def rename_column(self, old: str, new: str) -> None: ...

    def change_type(self, name: str, type_: str) -> None: ...

    def drop_not_null(self, name: str) -> None: ...

    def repartition(self, partitions: Sequence[Transform]) -> None: ...

    def comment(self, column: str, text: str | None) -> None:
        """Comment on a column, or on the table, which has the name ''; None for no comment."""

    def commit(self) -> None:
        """Make it the table's next version.

        Raises:
            ConflictError: another writer has changed the table.
            CatalogError: it was dropped, or a new table's name is taken.
        """

    def roll_back(self) -> None:
        """Remove the files that were written, as far as that is possible."""


class Catalog(Protocol):
    """Schemas and tables of a warehouse; safe to use from several threads.

    Names are matched in any case. Methods raise ExecutionError if the catalog does not answer.
    """

    def schemas(self) -> list[str]: ...

    def schema(self, name: str) -> str | None:
        """A schema's name as it was created; None if there is none of that name."""
        return same_name(name, self.schemas())

    def existing_schema(self, name: str) -> str:
        """A schema's name as it was created (CatalogError if there is none of that name)."""
        schema = self.schema(name)
        if schema is None:
            listed = ", ".join(self.schemas()) or "none"
            raise CatalogError(
                f"There is no schema called {name!r} in the warehouse; its schemas are: {listed}."
            )
        return schema

    def create_schema(self, name: str, *, exists_ok: bool = False) -> None: ...

    def drop_schema(
        self, name: str, *, missing_ok: bool = False, cascade: bool = False
    ) -> None: ...

    def tables(self, schema: str | None = None) -> list[TableName]:
        """The tables of a schema, or of all of them."""

    def find(self, schema: str, table: str) -> TableName | None:
        """A table's name as it was created; None if there is none of that name."""

    def load(self, name: TableName) -> TableVersion:
        """The version that is current now; the same object as long as it is the same version.

        Raises:
            CatalogError: there is no such table (any more).
        """

    def version(self) -> int | None:
        """Another one whenever any table was changed; None if that is not cheap to ask."""

    def forget(self, name: TableName) -> None:
        """Load a table anew the next time."""

    def change(self, name: TableName) -> TableChange: ...

    def create(
        self,
        name: TableName,
        columns: Described,
        partitions: Sequence[Transform],
        properties: Mapping[str, str],
    ) -> TableChange:
        """A change that creates a table."""

    def drop(self, name: TableName) -> None: ...

    def rename(self, name: TableName, to: TableName) -> None: ...

    def vacuum(self, name: TableName | None) -> int:
        """Remove old versions and files that none uses, of a table or of all; how many files."""

    def close(self) -> None: ...


class CurrentRows(Source):
    """The current rows of a table, or those of an earlier version."""

    def __init__(self, name: str, current: Any, at: Moment | None = None) -> None:
        """`current` returns the `TableVersion` that is current at the time of the call."""
        self.name, self._current, self._at = name, current, at
        self._last: tuple[TableVersion, Snapshot] | None = None

    def resolve(self) -> Snapshot:
        version = self._current()
        last = self._last
        if last is None or last[0] is not version:
            last = self._last = (version, version.snapshot(self.name, self._at))
        return last[1]
