"""DuckLakes: tables whose files, columns and versions are rows of an SQL database.

`load_table` reads what the catalog says of a table as of one snapshot into a `LakeTable`. Rows come
from Parquet files, mapped by field ids, and from the catalog itself, where the extension of DuckDB
keeps those of small changes ("inlined" rows).
"""

from __future__ import annotations

import contextlib
import copy
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from minishark.errors import CatalogError, DataError, UnsupportedError
from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import Column, Schema, quote, quote_text
from minishark.model.predicates import Predicate, Pushed
from minishark.sources.arrow_types import memory_bytes
from minishark.sources.bounds import Bounds, may_match
from minishark.sources.contract import PlacedSplit, Snapshot, Source, Split
from minishark.sources.ducklake_database import LakeConnection, LakeDatabase, open_database
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess, is_remote
from minishark.sources.mapped_parquet import (
    MappedColumn,
    MappedFile,
    divided,
    enough_for,
    has_reserved_name,
)

VERSION = "1.0"
"""The version of the specification."""

_TYPES = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "int128": "HUGEINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "uint128": "UHUGEINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "time": "TIME",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_us": "TIMESTAMP",
    "timestamp_ms": "TIMESTAMP_MS",
    "timestamp_ns": "TIMESTAMP_NS",
    "timestamp_s": "TIMESTAMP_S",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timetz": "TIME WITH TIME ZONE",
    "interval": "INTERVAL",
    "varchar": "VARCHAR",
    "blob": "BLOB",
    "uuid": "UUID",
    "json": "JSON",
}
TYPE_NAMES = {type_: name for name, type_ in _TYPES.items() if name != "timestamp_us"}
"""DuckLake's names of DuckDB's types without parameters."""

_NESTED = ("list", "map", "struct")
_INTEGERS = ("int", "uint")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeColumn:
    """A column, or a field of a nested one, as a row of the catalog has it."""

    id: int
    name: str
    type: str  # DuckLake's
    initial_default: str | None = None  # of rows in files that lack the column
    default: str = "NULL"  # of new rows
    default_type: str = "literal"
    nullable: bool = True
    children: tuple[LakeColumn, ...] = ()
    order: int = 0  # its place among the others
    begin: int = -1  # the snapshot since which it is so; -1 if it is not committed

    @property
    def duckdb_type(self) -> str:
        """Its type in queries (UnsupportedError if DuckDB has none)."""
        kinds = [child.duckdb_type for child in self.children]
        match self.type:
            case "list":
                return f"{kinds[0]}[]"
            case "map":
                return f"MAP({kinds[0]}, {kinds[1]})"
            case "struct":
                names = (quote(child.name) for child in self.children)
                fields = (f"{n} {kind}" for n, kind in zip(names, kinds, strict=True))
                return f"STRUCT({', '.join(fields)})"
        if self.type.startswith("decimal("):
            return self.type.upper()
        if self.type not in _TYPES:
            raise UnsupportedError(
                f"Column {self.name!r} has DuckLake's type {self.type}, which minishark does not "
                "read."
            )
        return _TYPES[self.type]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Equal for columns whose values are stored alike."""
        own = self.type if self.type in _NESTED else ""
        children = tuple((child.id, child.name, child.shape) for child in self.children)
        return (own, children)

    def walk(self) -> Iterator[LakeColumn]:
        """The column and all fields in it."""
        yield self
        for child in self.children:
            yield from child.walk()


def rebuilt(value: str, old: LakeColumn, new: LakeColumn, depth: int = 0) -> str:
    """SQL of a value in the shape of today, given SQL of one with the fields of another time."""
    if old.shape == new.shape or old.type != new.type:
        return value
    name = f"v{depth}"
    match new.type:
        case "struct":
            before = {child.id: child for child in old.children}
            fields = []
            for child in new.children:
                was = before.get(child.id)
                text = "NULL"
                if was is not None:
                    text = rebuilt(f"({value}).{quote(was.name)}", was, child, depth)
                elif child.initial_default is not None:
                    text = quote_text(child.initial_default)
                fields.append(f"{quote(child.name)} := CAST({text} AS {child.duckdb_type})")
            return f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({', '.join(fields)}) END"
        case "list":
            element = rebuilt(name, old.children[0], new.children[0], depth + 1)
            return f"list_transform({value}, lambda {name}: {element})"
    key, item = (
        rebuilt(f"{name}.{part}", was, now, depth + 1)
        for part, was, now in zip(("key", "value"), old.children, new.children, strict=True)
    )
    entries = f"list_transform(map_entries({value}), lambda {name}: {{'k': {key}, 'v': {item}}})"
    return f"map_from_entries({entries})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatistics:
    """What is known of one column of a file; bounds are DuckDB's text."""

    values: int | None = None  # that are not NULL
    nulls: int | None = None
    minimum: str | None = None
    maximum: str | None = None
    has_nan: bool | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """A data file of a table, and which of its rows are deleted."""

    path: str
    rows: int  # with deleted ones
    bytes: int
    id: int | None = None  # None before it is committed
    begin: int = -1
    partition: tuple[str | None, ...] = ()
    statistics: Mapping[int, FileStatistics] = field(default_factory=dict)  # by columns' ids
    mapping: int | None = None  # of names, for files that other writers wrote
    rows_until: int | None = None  # rows of later snapshots are not the version's
    # Of the file of deleted positions: path and bytes, its number, deletes that count.
    deletes: tuple[str, int] | None = None
    deleted_count: int = 0
    deletes_until: int | None = None
    deleted: tuple[int, ...] = ()  # positions that the catalog has

    @property
    def record_count(self) -> int:
        """How many rows there are; more than there are if that is not known exactly."""
        return self.rows - self.deleted_count - len(self.deleted)

    @property
    def file_path(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinedRows:
    """Rows that the catalog itself has, in the columns of today."""

    table: str  # of the catalog
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class PartitionField:
    """What rows are divided by: DuckLake's transform of a column, such as `bucket(4)`."""

    column: int  # its id
    transform: str


@dataclass(frozen=True, kw_only=True)
class LakeTable:
    """A table as of one snapshot, perhaps with changes that are not committed."""

    id: int
    uuid: str
    schema_id: int
    name: str
    path: str  # the folder of its files
    snapshot: int
    columns: tuple[LakeColumn, ...]
    past_columns: Mapping[int, tuple[LakeColumn, ...]]  # by the snapshot of files and inlined rows
    names: Mapping[int, tuple[str, ...]]  # all that a column ever had, by its id
    mappings: Mapping[int, Mapping[int, str]]  # names of columns in files of others, by their ids
    files: tuple[LakeFile, ...] = ()
    inlined: tuple[InlinedRows, ...] = ()
    partition_id: int | None = None
    partition: tuple[PartitionField, ...] = ()
    comments: Mapping[int, str] = field(default_factory=dict)  # by column; 0 is the table's
    next_column: int = 1  # the next column's id

    @cached_property
    def schema(self) -> Schema:
        import duckdb  # noqa: PLC0415 - a session starts before it is imported

        return tuple(
            Column(column.name, str(duckdb.sqltype(column.duckdb_type))) for column in self.columns
        )

    def column(self, name: str) -> LakeColumn:
        return next(column for column in self.columns if column.name.lower() == name.lower())


# Loading

_ENTRY = re.compile(r'([a-z_]+):((?:"(?:[^"]|"")*"|[^",])*)')
_OF_ROWS = (
    "inserted_into_table",
    "deleted_from_table",
    "inlined_insert",
    "inlined_delete",
    "inline_flush",
    "flushed_inlined",
    "merge_adjacent",
    "rewrite_delete",
    "compacted_table",
)


@dataclass(frozen=True, slots=True)
class LakeEntry:
    """One of the things that a snapshot has changed."""

    kind: str
    value: str  # the id of a table or schema, or quoted names

    @property
    def is_of_rows(self) -> bool:
        """Whether it concerns the rows of a table, or where they are."""
        return self.kind in _OF_ROWS

    @property
    def table(self) -> int | None:
        """The table whose rows or columns it concerns; None for other changes."""
        is_of_table = self.is_of_rows or self.kind in ("altered_table", "dropped_table")
        return int(self.value) if is_of_table else None


def parsed_changes(text: str) -> list[LakeEntry]:
    """The entries in the text of a snapshot."""
    return [LakeEntry(kind.lower(), value) for kind, value in _ENTRY.findall(text or "")]


class LakeReader:
    """Reads what a catalog says as of one snapshot."""

    def __init__(self, connection: LakeConnection, snapshot: int) -> None:
        self._connection, self.snapshot = connection, snapshot

    def metadata(self) -> dict[str, str]:
        """The settings of the whole lake."""
        return dict(
            self._connection.rows("SELECT key, value FROM ducklake_metadata WHERE scope IS NULL")
        )

    def rows(self, columns: str, table: str, where: str = "true") -> list[tuple[Any, ...]]:
        """Rows of the catalog that belong to the snapshot."""
        return self._connection.rows(
            f"SELECT {columns} FROM {table} WHERE {where} AND begin_snapshot <= {self.snapshot} "
            f"AND (end_snapshot IS NULL OR end_snapshot > {self.snapshot})"
        )

    def changes_since(self, snapshot: int) -> list[LakeEntry] | None:
        """What later snapshots have changed; None if some of them expired."""
        rows = self._connection.rows(
            "SELECT changes_made FROM ducklake_snapshot_changes WHERE "
            f"snapshot_id > {snapshot} AND snapshot_id <= {self.snapshot}"
        )
        if len(rows) < self.snapshot - snapshot:
            return None
        return [entry for (text,) in rows for entry in parsed_changes(text)]

    def all_files(self) -> set[str]:
        """The paths of all files that any snapshot has, or that wait for their removal."""
        root = _local(self.metadata()["data_path"])
        folders = {
            int(id_): joined(root, path, is_relative)
            for id_, path, is_relative in self._connection.rows(
                "SELECT schema_id, path, path_is_relative FROM ducklake_schema"
            )
        }
        of_tables = {
            int(id_): joined(folders[int(schema)], path, is_relative)
            for id_, schema, path, is_relative in self._connection.rows(
                "SELECT table_id, schema_id, path, path_is_relative FROM ducklake_table"
            )
        }
        paths = {
            joined(root, path, is_relative)
            for path, is_relative in self._connection.rows(
                "SELECT path, path_is_relative FROM ducklake_files_scheduled_for_deletion"
            )
        }
        for table in ("ducklake_data_file", "ducklake_delete_file"):
            for id_, path, is_relative in self._connection.rows(
                f"SELECT table_id, path, path_is_relative FROM {table}"
            ):
                paths.add(_local(joined(of_tables.get(int(id_), root), path, is_relative)))
        return paths

    def schemas(self) -> dict[str, tuple[int, str]]:
        """Ids and folders by name."""
        rows = self.rows("schema_name, schema_id, path, path_is_relative", "ducklake_schema")
        root = _local(self.metadata()["data_path"])
        return {name: (int(id_), joined(root, path, rel)) for name, id_, path, rel in rows}

    def tables(self) -> list[tuple[int, str, int]]:
        """Schema, name and id of each table."""
        rows = self.rows("schema_id, table_name, table_id", "ducklake_table")
        return [(int(schema), name, int(id_)) for schema, name, id_ in rows]

    def table(self, id_: int) -> LakeTable:
        """A table (CatalogError if the snapshot has none)."""
        about = self.rows(
            "table_uuid, schema_id, table_name, path, path_is_relative",
            "ducklake_table",
            f"table_id = {id_}",
        )
        if not about:
            raise CatalogError("The table was dropped meanwhile, or was not there then.")
        ((uuid, schema_id, name, path, is_relative),) = about
        folders = dict(self.schemas().values())
        folder = joined(folders[int(schema_id)], path, is_relative)
        history = self._connection.rows(
            "SELECT column_id, begin_snapshot, end_snapshot, column_order, column_name, "
            "column_type, initial_default, default_value, nulls_allowed, parent_column, "
            f"default_value_type FROM ducklake_column WHERE table_id = {id_} "
            "ORDER BY column_order"
        )
        columns = _columns_at(history, self.snapshot)
        files = self._files(id_, folder)
        names: dict[int, dict[str, None]] = defaultdict(dict)
        for row in history:
            names[int(row[0])][row[4]] = None
        begins = {file.begin for file in files}
        partition_id, partition = self._partition(id_)
        return LakeTable(
            id=id_,
            uuid=str(uuid),
            schema_id=int(schema_id),
            name=name,
            path=folder,
            snapshot=self.snapshot,
            columns=columns,
            past_columns={begin: _columns_at(history, begin) for begin in begins},
            names={number: tuple(alternatives) for number, alternatives in names.items()},
            mappings=self._mappings(id_) if any(f.mapping is not None for f in files) else {},
            files=files,
            inlined=tuple(self._inlined(id_, columns, history)),
            partition_id=partition_id,
            partition=partition,
            comments=self._comments(id_),
            next_column=max((int(row[0]) for row in history), default=0) + 1,
        )

    def _files(self, id_: int, folder: str) -> tuple[LakeFile, ...]:
        of_table = f"table_id = {id_}"
        statistics: dict[int, dict[int, FileStatistics]] = defaultdict(dict)
        for file, column, values, nulls, low, high, nan in self._connection.rows(
            "SELECT data_file_id, column_id, value_count, null_count, min_value, max_value, "
            f"contains_nan FROM ducklake_file_column_stats WHERE {of_table}"
        ):
            has_nan = None if nan is None else bool(nan)
            statistics[int(file)][int(column)] = FileStatistics(
                values=values, nulls=nulls, minimum=low, maximum=high, has_nan=has_nan
            )
        deletes = {
            int(row[0]): row[1:]
            for row in self.rows(
                "data_file_id, path, path_is_relative, format, delete_count, file_size_bytes, "
                "partial_max",
                "ducklake_delete_file",
                of_table,
            )
        }
        deleted: dict[int, set[int]] = defaultdict(set)
        if self._connection.has_table(f"ducklake_inlined_delete_{id_}"):
            for file, position in self._connection.rows(
                f"SELECT file_id, row_id FROM ducklake_inlined_delete_{id_} "
                f"WHERE begin_snapshot <= {self.snapshot}"
            ):
                deleted[int(file)].add(int(position))
        partitions: dict[int, dict[int, str | None]] = defaultdict(dict)
        for file, index, value in self._connection.rows(
            "SELECT data_file_id, partition_key_index, partition_value "
            f"FROM ducklake_file_partition_value WHERE {of_table}"
        ):
            partitions[int(file)][int(index)] = value
        files = []
        for file, path, relative, format_, rows, size, begin, mapping, last in self.rows(
            "data_file_id, path, path_is_relative, file_format, record_count, file_size_bytes, "
            "begin_snapshot, mapping_id, partial_max",
            "ducklake_data_file",
            of_table,
        ):
            if format_ != "parquet":
                raise UnsupportedError(f"{path} is a file of {format_}; only Parquet is read.")
            gone = deletes.get(int(file))
            files.append(
                LakeFile(
                    path=_local(joined(folder, path, relative)),
                    rows=int(rows),
                    bytes=int(size),
                    id=int(file),
                    begin=int(begin),
                    partition=tuple(value for _, value in sorted(partitions[int(file)].items())),
                    statistics=statistics[int(file)],
                    mapping=None if mapping is None else int(mapping),
                    rows_until=self._limit(last),
                    deleted=tuple(sorted(deleted[int(file)])),
                    **({} if gone is None else self._deletes(gone, folder)),
                )
            )
        return tuple(sorted(files, key=lambda file: file.id or 0))

    def _limit(self, last: int | None) -> int | None:
        """The snapshot up to which numbered rows of a file count, if some are later."""
        return self.snapshot if last is not None and int(last) > self.snapshot else None

    def _deletes(self, row: tuple[Any, ...], folder: str) -> dict[str, Any]:
        path, relative, format_, count, size, last = row
        if format_ != "parquet":
            raise UnsupportedError(
                f"The file of deleted rows {path} has the format {format_}, which minishark does "
                "not read; have DuckDB rewrite the table's files (ducklake_rewrite_data_files)."
            )
        return {
            "deletes": (joined(folder, path, relative), int(size)),
            "deleted_count": int(count),
            "deletes_until": self._limit(last),
        }

    def _mappings(self, id_: int) -> dict[int, dict[int, str]]:
        mappings: dict[int, dict[int, str]] = defaultdict(dict)
        for mapping, kind, name, target, parent, is_partition in self._connection.rows(
            "SELECT m.mapping_id, m.type, n.source_name, n.target_field_id, n.parent_column, "
            "n.is_partition FROM ducklake_column_mapping m JOIN ducklake_name_mapping n "
            f"ON m.mapping_id = n.mapping_id WHERE m.table_id = {id_}"
        ):
            if kind != "map_by_name" or is_partition:
                raise UnsupportedError(
                    "The table has files of other writers with columns in the names of folders, "
                    "which minishark does not read."
                )
            if parent is None:
                mappings[int(mapping)][int(target)] = name
        return mappings

    def _inlined(
        self, id_: int, columns: Sequence[LakeColumn], history: Sequence[tuple[Any, ...]]
    ) -> Iterator[InlinedRows]:
        begins = {
            int(version): int(begin)
            for version, begin in self._connection.rows(
                "SELECT schema_version, min(begin_snapshot) FROM ducklake_schema_versions "
                f"WHERE table_id = {id_} GROUP BY schema_version"
            )
        }
        for table, version in self._connection.rows(
            "SELECT table_name, schema_version FROM ducklake_inlined_data_tables "
            f"WHERE table_id = {id_} ORDER BY schema_version"
        ):
            # DuckDB adds such tables between changes of columns, too.
            earlier = [number for number in begins if number <= int(version)]
            stored = _columns_at(history, begins[max(earlier)] if earlier else self.snapshot)
            names = ", ".join(f"i.{quote(column.name)}" for column in stored)
            raw = self._connection.texts(
                f"SELECT {names} FROM {quote(table)} AS i WHERE i.begin_snapshot <= "
                f"{self.snapshot} AND (i.end_snapshot IS NULL OR i.end_snapshot > "
                f"{self.snapshot}) ORDER BY i.row_id"
            )
            if raw.num_rows:
                yield InlinedRows(table=table, rows=_typed(raw, stored, columns))

    def _partition(self, id_: int) -> tuple[int | None, tuple[PartitionField, ...]]:
        numbers = self.rows("partition_id", "ducklake_partition_info", f"table_id = {id_}")
        if not numbers:
            return None, ()
        ((number,),) = numbers
        fields = self._connection.rows(
            "SELECT column_id, transform FROM ducklake_partition_column WHERE partition_id = "
            f"{number} AND table_id = {id_} ORDER BY partition_key_index"
        )
        return int(number), tuple(PartitionField(int(column), text) for column, text in fields)

    def _comments(self, id_: int) -> dict[int, str]:
        is_comment = "key = 'comment'"
        of_table = self.rows("0, value", "ducklake_tag", f"object_id = {id_} AND {is_comment}")
        of_columns = self.rows(
            "column_id, value", "ducklake_column_tag", f"table_id = {id_} AND {is_comment}"
        )
        return {int(number): text for number, text in (*of_table, *of_columns) if text}


def joined(folder: str, path: str, is_relative: Any) -> str:
    """A path of the catalog, which may be relative to a folder."""
    return f"{folder.rstrip('/')}/{path}" if is_relative else path


def _columns_at(history: Iterable[tuple[Any, ...]], snapshot: int) -> tuple[LakeColumn, ...]:
    children: dict[int | None, list[tuple[Any, ...]]] = defaultdict(list)
    for row in history:
        begin, end, parent = row[1], row[2], row[9]
        if begin <= snapshot and (end is None or end > snapshot):
            children[None if parent is None else int(parent)].append(row)

    def made(parent: int | None) -> tuple[LakeColumn, ...]:
        return tuple(
            LakeColumn(
                id=int(number),
                begin=int(begin),
                order=int(order),
                name=name,
                type=type_,
                initial_default=initial,
                default="NULL" if default is None else default,
                default_type=default_type or "literal",
                nullable=bool(nullable) or parent is not None,
                children=made(int(number)) if type_ in _NESTED else (),
            )
            for number, begin, _, order, name, type_, initial, default, nullable, _, default_type
            in children[parent]
        )  # fmt: skip

    return made(None)


def retyped(
    inlined: InlinedRows, stored: Sequence[LakeColumn], columns: Sequence[LakeColumn]
) -> InlinedRows:
    """Inlined rows in other columns than they are in."""
    raw = inlined.rows.rename_columns([f"c{i}" for i in range(len(stored))])
    return InlinedRows(table=inlined.table, rows=_typed(raw, stored, columns))


def _typed(raw: pa.Table, stored: Sequence[LakeColumn], columns: Sequence[LakeColumn]) -> pa.Table:
    """Inlined rows, as the catalog gives them, in the columns of today."""
    import duckdb  # noqa: PLC0415

    places = {column.id: (i, column) for i, column in enumerate(stored)}
    selected = []
    for column in columns:
        if column.id not in places:
            value = _initial(column)
        else:
            i, was = places[column.id]
            value = f"c{i}"
            if pa.types.is_binary(raw.schema.types[i]) and was.type != "blob":
                value = f"decode({value})"  # PostgreSQL keeps text so
            elif was.type == "blob" and pa.types.is_string(raw.schema.types[i]):
                value = f"CAST({value} AS BLOB)"
            value = rebuilt(f"CAST({value} AS {was.duckdb_type})", was, column)
        selected.append(f"CAST({value} AS {column.duckdb_type}) AS {quote(column.name)}")
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("raw", raw)
        return connection.sql(f"SELECT {', '.join(selected)} FROM raw").to_arrow_table()


def _initial(column: LakeColumn) -> str:
    return "NULL" if column.initial_default is None else quote_text(column.initial_default)


# Reading


class InlinedSplit(PlacedSplit):
    """Rows that the catalog has; few, so they travel with the task."""

    def __init__(self, inlined: InlinedRows) -> None:
        self.path, self._rows = inlined.table, inlined.rows
        self.rows, self.bytes = inlined.rows.num_rows, inlined.rows.nbytes

    def __repr__(self) -> str:
        return f"InlinedSplit({self.path!r}, {self.rows} rows)"

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        names = self._rows.column_names if pushed.columns is None else list(pushed.columns)
        return self._rows.select(names).to_reader()


class LakeSnapshot(Snapshot):
    """The rows of a table as of one snapshot."""

    def __init__(self, name: str, table: LakeTable, access: StoreAccess = FROM_ENVIRONMENT) -> None:
        self._name, self.table, self._access = name, table, access
        # A table that was changed, and is not committed, is another object each time.
        staged = any(file.id is None for file in table.files)
        self.version = f"{table.uuid}/{table.snapshot}{f'/{id(table)}' if staged else ''}"
        self.schema = table.schema
        if has_reserved_name(self.schema):
            raise UnsupportedError(
                f"{name} has a column called file_row_number, which minishark does not read."
            )
        self._ids = {column.name.lower(): column for column in table.columns}

    def __repr__(self) -> str:
        return f"LakeSnapshot({self._name!r}, {self.version!r})"

    @cached_property
    def statistics(self) -> TableStatistics | None:  # type: ignore[override]
        files, inlined = self.table.files, self.table.inlined
        rows = sum(file.record_count for file in files) + sum(i.rows.num_rows for i in inlined)
        size = sum(file.bytes for file in files)
        return TableStatistics(
            rows=rows,
            bytes=memory_bytes(self.schema, rows, size),
            columns=tuple(self._column_statistics(column) for column in self.table.columns),
        )

    def _column_statistics(self, column: LakeColumn) -> ColumnStatistics:
        if self.table.inlined or column.children:
            return ColumnStatistics()
        by_file = [file.statistics.get(column.id, FileStatistics()) for file in self.table.files]
        if any(counts.nulls is None or counts.values is None for counts in by_file):
            return ColumnStatistics()
        nulls = sum(counts.nulls or 0 for counts in by_file)
        rows = nulls + sum(counts.values or 0 for counts in by_file)
        filled = [counts for counts in by_file if counts.values]
        lows = [(bound_value(counts.minimum, column), counts.minimum) for counts in filled]
        highs = [(bound_value(counts.maximum, column), counts.maximum) for counts in filled]
        is_bounded = bool(filled) and not any(value is None for value, _ in (*lows, *highs))
        return ColumnStatistics(
            null_fraction=nulls / rows if rows else 0.0,
            minimum=min(lows)[1] if is_bounded else None,
            maximum=max(highs)[1] if is_bounded else None,
        )

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        """The files whose bounds don't exclude the predicates, and all inlined rows."""
        files = [
            self._mapped(file)
            for file in self.table.files
            if all(self._may_match(file, predicate) for predicate in pushed.predicates)
        ]
        inlined = [InlinedSplit(rows) for rows in self.table.inlined]
        if not pushed.predicates and not inlined:
            files = list(enough_for(pushed.limit, files))
        return [*divided(self._name, files, tasks, self._access), *inlined]

    def _may_match(self, file: LakeFile, predicate: Predicate) -> bool:
        column = self._ids.get(predicate.column.lower())
        if column is None or column.children or column.id not in file.statistics:
            return True
        return may_match(predicate, self._bounds(file, column))

    def _bounds(self, file: LakeFile, column: LakeColumn) -> Bounds:
        statistics = file.statistics[column.id]
        counted = statistics.values is not None and statistics.nulls is not None
        rows = (statistics.values or 0) + (statistics.nulls or 0) if counted else None
        if column.type == "float64" and self._was(column, file).type != "float64":
            # 0.1 may be that of a FLOAT, which is larger.
            return Bounds(nulls=statistics.nulls, rows=rows)
        return Bounds(
            minimum=bound_value(statistics.minimum, column),
            maximum=bound_value(statistics.maximum, column),
            nulls=statistics.nulls,
            rows=rows,
        )

    def _was(self, column: LakeColumn, file: LakeFile) -> LakeColumn:
        """A column as it was when a file was written."""
        past = self.table.past_columns.get(file.begin, self.table.columns)
        return next((old for old in past if old.id == column.id), column)

    def _mapped(self, file: LakeFile) -> MappedFile:
        deletes = file.deletes
        is_partial = file.deleted or file.deletes or file.rows_until is not None
        return MappedFile(
            path=file.path,
            bytes=file.bytes,
            columns=self._columns(file),
            rows=None if is_partial else file.rows,
            delete_files=() if deletes is None else ((_local(deletes[0]), deletes[1]),),
            deleted=",".join(map(str, file.deleted)),
            rows_until=file.rows_until,
            deletes_until=file.deletes_until,
        )

    def _columns(self, file: LakeFile) -> tuple[MappedColumn, ...]:
        key = (file.begin, file.mapping)
        columns = self._mapped_columns.get(key)
        if columns is None:
            columns = tuple(self._column(column, file) for column in self.table.columns)
            self._mapped_columns[key] = columns
        return columns

    @cached_property
    def _mapped_columns(self) -> dict[tuple[int, int | None], tuple[MappedColumn, ...]]:
        """Where columns are in files, which many share."""
        return {}

    def _column(self, column: LakeColumn, file: LakeFile) -> MappedColumn:
        if file.mapping is not None:
            name = self.table.mappings[file.mapping].get(column.id)
            stored = () if name is None else (name,)
            return MappedColumn(
                name=column.name,
                type=column.duckdb_type,
                stored=stored,
                constant=_initial(column),
                named=stored,
            )
        was = self._was(column, file)
        return MappedColumn(
            name=column.name,
            type=column.duckdb_type,
            field_id=column.id,
            constant=_initial(column),
            named=self.table.names.get(column.id, (column.name,)),
            rebuilt="" if was.shape == column.shape else rebuilt("{}", was, column),
        )


def _local(path: str) -> str:
    return path if is_remote(path) else str(Path(path.removeprefix("file://")).absolute())


def bound_value(text: str | None, column: LakeColumn) -> Any:
    """A bound as Python's value; None if there is none, or it is not known what it means."""
    if text is None:
        return None
    try:
        if column.type.startswith(_INTEGERS):
            return int(text)
        if column.type.startswith("decimal"):
            return Decimal(text)
        match column.type:
            case "varchar" | "json" | "uuid":
                return text
            case "float64":
                return float(text)
            case "float32":
                return struct.unpack("f", struct.pack("f", float(text)))[0]
            case "date":
                return date.fromisoformat(text)
            case "time":
                return time.fromisoformat(text)
            case "timestamp" | "timestamp_us" | "timestamp_ms" | "timestamp_s":
                return datetime.fromisoformat(text)
            case "timestamptz":
                return datetime.fromisoformat(text)
            case "boolean":
                return {"true": True, "false": False, "1": True, "0": False}.get(text)
    except (ValueError, OverflowError, ArithmeticError):
        pass
    return None


# A lake


class Lake:
    """A DuckLake that is there already."""

    def __init__(self, database: LakeDatabase) -> None:
        self.database = database

    @contextlib.contextmanager
    def reading(
        self, number: int | None = None, moment: datetime | None = None
    ) -> Iterator[LakeReader]:
        """Read the catalog as of a snapshot, the one at some time, or the latest.

        Raises:
            DataError: there is no such snapshot, or no DuckLake.
            UnsupportedError: it is encrypted, or of another version.
        """
        with self.database.reading() as connection:
            check(connection, self.database.where)
            yield LakeReader(connection, _snapshot(connection, number, moment))


def check(connection: LakeConnection, where: str) -> None:
    """Raise DataError if a database has no DuckLake, UnsupportedError if it can't be used."""
    if not connection.has_table("ducklake_metadata"):
        raise DataError(f"{where} is no catalog of a DuckLake.")
    settings = LakeReader(connection, 0).metadata()
    if settings.get("version") != VERSION:
        raise UnsupportedError(
            f"The DuckLake {where} has version {settings.get('version')} of the specification; "
            f"minishark knows {VERSION}. DuckDB migrates older ones (AUTOMATIC_MIGRATION)."
        )
    if settings.get("encrypted") == "true":
        raise UnsupportedError(f"The DuckLake {where} is encrypted, which minishark does not read.")


def _snapshot(connection: LakeConnection, number: int | None, moment: datetime | None) -> int:
    if number is None and moment is None:
        ((latest,),) = connection.rows("SELECT max(snapshot_id) FROM ducklake_snapshot")
        return int(latest)
    rows = connection.rows(
        "SELECT snapshot_id, CAST(snapshot_time AS VARCHAR) FROM ducklake_snapshot"
    )
    times = {int(id_): datetime.fromisoformat(text) for id_, text in rows}
    if moment is None:
        if number not in times:
            raise DataError(f"The DuckLake has no snapshot {number}: it expired, or never was.")
        return number
    moment = moment if moment.tzinfo is not None else moment.astimezone()
    before = [id_ for id_, made in times.items() if made <= moment]
    if not before:
        raise DataError(f"The DuckLake has no snapshot of {moment}: it is younger, or it expired.")
    return max(before)


class DuckLakeSource(Source):
    """One table of a DuckLake, now or as it was.

    Args:
        lake: where its catalog is, as DuckDB's ATTACH takes it: `ducklake:sqlite:FILE`,
            `ducklake:postgres:CONNECTION STRING` or `ducklake:FILE` for a file of DuckDB's.
        schema: the schema.
        table: the table.
        version: a snapshot.
        timestamp: a point in time; the snapshot that was current then. Without a zone: local time.
    """

    def __init__(
        self,
        lake: str,
        schema: str,
        table: str,
        *,
        version: int | None = None,
        timestamp: datetime | None = None,
    ) -> None:
        self._lake = Lake(open_database(lake.removeprefix("ducklake:"), create=False))
        self._schema, self._table = schema, table
        self._at = (version, timestamp)
        self._access: Callable[[], StoreAccess] = lambda: FROM_ENVIRONMENT
        self.name = f"ducklake {schema}.{table}"
        self._last: LakeSnapshot | None = None

    def __repr__(self) -> str:
        return f"DuckLakeSource({self.name!r})"

    def within(self, access: Callable[[], StoreAccess]) -> DuckLakeSource:
        apart = copy.copy(self)
        apart._access, apart._last = access, None  # noqa: SLF001 - itself
        return apart

    def resolve(self) -> LakeSnapshot:
        """The catalog is read again.

        Raises:
            DataError: there is no such snapshot, or no such table in it.
        """
        # Nobody tells a source that it is not used any more: it keeps no connection.
        with (
            contextlib.closing(self._lake.database),
            self._lake.reading(*self._at) as reader,
        ):
            id_ = find_table(reader, self._schema, self._table)
            if id_ is None:
                raise DataError(f"The DuckLake has no table {self._schema}.{self._table} then.")
            last = self._last
            if last is None or last.table.snapshot != reader.snapshot or last.table.id != id_:
                last = self._last = LakeSnapshot(self.name, reader.table(id_), self._access())
        return last


def find_table(reader: LakeReader, schema: str, table: str) -> int | None:
    """The id of the table of a name, in any case; None if there is none."""
    ids = {id_: name for name, (id_, _) in reader.schemas().items()}
    for schema_id, name, id_ in reader.tables():
        if (ids[schema_id].lower(), name.lower()) == (schema.lower(), table.lower()):
            return id_
    return None
