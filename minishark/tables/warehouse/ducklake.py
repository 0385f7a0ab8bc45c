"""A DuckLake as the warehouse: its schemas and tables, their versions and changes."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import duckdb

from minishark.errors import (
    AlreadyExistsError,
    CatalogError,
    ConflictError,
    DataError,
    OptionError,
    QueryError,
    UnsupportedError,
)
from minishark.model.expressions import Column, Schema, quote_text
from minishark.sources.contract import Snapshot
from minishark.sources.ducklake import (
    TYPE_NAMES,
    VERSION,
    Lake,
    LakeColumn,
    LakeFile,
    LakeReader,
    LakeSnapshot,
    LakeTable,
    PartitionField,
    check,
    find_table,
    retyped,
)
from minishark.sources.ducklake_database import LakeConnection, LakeDatabase, open_database
from minishark.sources.filesystems import StoreAccess, is_remote
from minishark.tables.warehouse import ducklake_commit as commits
from minishark.tables.warehouse.contract import (
    MAIN,
    Catalog,
    Described,
    Moment,
    TableName,
    Transform,
    same_name,
)
from minishark.tables.warehouse.ducklake_commit import Commit, Difference, TableTotals
from minishark.tables.warehouse.ducklake_layout import LakeLayout, arrow_field, listed
from minishark.tables.warehouse.ducklake_schema import TABLES

_ORPHAN_AGE_S = 24 * 3600  # younger files that no table uses may be about to be used
_PLAIN = re.compile(r"\w+", re.ASCII)
_WIDER: Mapping[str, tuple[str, ...]] = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "uint8": ("uint16", "uint32", "uint64"),
    "uint16": ("uint32", "uint64"),
    "uint32": ("uint64",),
    "float32": ("float64",),
}
"""The types that a column can have instead of its own, as DuckLake allows."""
_TEMPORAL = ("date", "timestamp", "timestamp_us", "timestamp_ms", "timestamp_s", "timestamptz")


class LakeVersion:
    """A version of a table."""

    def __init__(self, table: LakeTable, catalog: LakeCatalog) -> None:
        self.table, self._catalog = table, catalog

    @property
    def columns(self) -> Schema:
        return self.table.schema

    @property
    def required(self) -> Collection[str]:
        return {column.name for column in self.table.columns if not column.nullable}

    @property
    def defaults(self) -> Mapping[int, str]:
        return {
            i: column.default if column.default_type == "expression" else quote_text(column.default)
            for i, column in enumerate(self.table.columns)
            if column.default != "NULL"
        }

    @property
    def comments(self) -> Mapping[str, str]:
        names = {0: "", **{column.id: column.name for column in self.table.columns}}
        return {names[i]: text for i, text in self.table.comments.items() if i in names}

    @property
    def size(self) -> tuple[int, int] | None:
        return sum(self.places().values()), sum(file.bytes for file in self.table.files)

    def places(self) -> Mapping[str, int]:
        stored = {file.path: file.record_count for file in self.table.files}
        return stored | {inlined.table: inlined.rows.num_rows for inlined in self.table.inlined}

    def snapshot(self, name: str, at: Moment | None = None) -> Snapshot:
        table = self.table if at is None else self._catalog.earlier(self.table, at)
        return LakeSnapshot(name, table, self._catalog.access())


@dataclass(slots=True, kw_only=True)
class LakeChange:
    """A change of a table: what it was, and what it becomes."""

    name: TableName
    catalog: LakeCatalog
    base: int  # the snapshot that it was made from
    before: LakeTable | None  # None for a new table
    table: LakeTable
    files: list[str] = field(default_factory=list)
    _version: LakeVersion | None = None

    @property
    def version(self) -> LakeVersion:
        if self._version is None or self._version.table is not self.table:
            self._version = LakeVersion(self.table, self.catalog)
        return self._version

    @property
    def layout(self) -> LakeLayout:
        table = self.table
        return LakeLayout(
            table.path.rstrip("/"), table.columns, table.partition, self.catalog.access()
        )

    def append(self, files: Sequence[LakeFile]) -> None:
        self.table = replace(self.table, files=(*self.table.files, *files))

    def replace(self, places: Collection[str], files: Sequence[LakeFile]) -> None:
        table = self.table
        kept = tuple(file for file in table.files if file.path not in places)
        inlined = tuple(rows for rows in table.inlined if rows.table not in places)
        self.table = replace(table, files=(*kept, *files), inlined=inlined)

    def redefine(self, columns: Described, partitions: Sequence[Transform]) -> None:
        table = self.table
        self.table = self.catalog.new_table(
            table.name, table.schema_id, table.path, columns, partitions
        )

    # Columns

    def _with_columns(self, columns: Sequence[LakeColumn]) -> None:
        table, own = self.table, tuple(columns)
        if not own:
            raise QueryError(f"Table {self.name} would have no column.")
        # Files of this change are in the columns of a snapshot that nobody will see.
        marker = -2 - len(table.past_columns)
        files = tuple(
            replace(file, begin=marker) if file.begin == -1 else file for file in table.files
        )
        names = dict(table.names)
        for column in (leaf for top in own for leaf in top.walk()):
            names[column.id] = tuple(dict.fromkeys((*names.get(column.id, ()), column.name)))
        self.table = replace(
            table,
            columns=own,
            files=files,
            past_columns={**table.past_columns, marker: table.columns},
            names=names,
            inlined=tuple(retyped(rows, table.columns, own) for rows in table.inlined),
            next_column=max(table.next_column, *(leaf.id + 1 for c in own for leaf in c.walk())),
        )

    def _with_column(self, old_name: str, **changes: Any) -> None:
        old = self.table.column(old_name)
        new = replace(old, begin=-1, **changes)
        self._with_columns([new if c is old else c for c in self.table.columns])

    def add_column(self, column: Column) -> None:
        new = lake_column(column.name, column.type, count(self.table.next_column))
        self._with_columns([*self.table.columns, new])

    def drop_column(self, name: str) -> None:
        old = self.table.column(name)
        if any(by.column == old.id for by in self.table.partition):
            raise QueryError(
                f"The table is partitioned by {name}: SET PARTITIONED BY others first."
            )
        self._with_columns([column for column in self.table.columns if column is not old])

    def rename_column(self, old: str, new: str) -> None:
        if new.lower() != old.lower() and same_name(new, (c.name for c in self.table.columns)):
            raise QueryError(f"There is a column {new!r} already.")
        self._with_column(old, name=new)

    def change_type(self, name: str, type_: str) -> None:
        old = self.table.column(name)
        new = lake_column(name, type_, count(self.table.next_column))
        if new.type == old.type and not old.children:
            return
        if new.type not in _WIDER.get(old.type, ()):
            raise QueryError(
                f"The table can't be changed so: column {name!r} of type {old.duckdb_type} can't "
                f"become {type_}."
            )
        self._with_column(name, type=new.type)

    def drop_not_null(self, name: str) -> None:
        self._with_column(name, nullable=True)

    def repartition(self, partitions: Sequence[Transform]) -> None:
        fields = partition_fields(partitions, self.table.columns)
        self.table = replace(self.table, partition=fields, partition_id=None)

    def comment(self, column: str, text: str | None) -> None:
        number = self.table.column(column).id if column else 0
        others = {i: written for i, written in self.table.comments.items() if i != number}
        self.table = replace(
            self.table, comments=others if text is None else {**others, number: text}
        )

    def commit(self) -> None:
        if self.before is not self.table:
            self.catalog.commit(Difference(self.before, self.table), self.name, self.base)

    def roll_back(self) -> None:
        layout = self.layout
        for path in self.files:
            with contextlib.suppress(Exception):
                layout.delete(path)


def lake_column(name: str, type_: str, ids: Iterator[int], *, nullable: bool = True) -> LakeColumn:
    """A new column.

    Args:
        name: its name.
        type_: its type in DuckDB.
        ids: gives the ids of the column and of its fields.
        nullable: whether it may have NULL.

    Raises:
        UnsupportedError: DuckLake, or minishark, has nothing that holds its values.
    """
    column = _lake_column(name, duckdb.sqltype(type_), ids, nullable=nullable)
    arrow_field(column)
    return column


def _lake_column(name: str, type_: Any, ids: Iterator[int], *, nullable: bool = True) -> LakeColumn:
    number, kind = next(ids), type_.id
    children: tuple[LakeColumn, ...] = ()
    match kind:
        case "list" | "array":
            kind, children = "list", (_lake_column("element", type_.children[0][1], ids),)
        case "map":
            (_, key), (_, value) = type_.children
            children = (_lake_column("key", key, ids), _lake_column("value", value, ids))
        case "struct":
            children = tuple(_lake_column(child, t, ids) for child, t in type_.children)
        case "decimal":
            (_, precision), (_, scale) = type_.children
            kind = f"decimal({precision},{scale})"
        case "hugeint":
            kind = "decimal(38,0)"
        case "enum":
            kind = "varchar"
        case _:
            if str(type_) not in TYPE_NAMES:
                raise UnsupportedError(
                    f"Column {name!r} has type {type_}, which DuckLakes do not have: cast it, for "
                    "example to VARCHAR."
                )
            kind = TYPE_NAMES[str(type_)]
    return LakeColumn(
        id=number,
        order=number,
        name=name,
        type=kind,
        children=children,
        nullable=nullable,
        default_type="" if children else "literal",
    )


def partition_fields(
    partitions: Sequence[Transform], columns: Sequence[LakeColumn]
) -> tuple[PartitionField, ...]:
    """DuckLake's transforms for the list of a PARTITIONED BY.

    Raises:
        QueryError: a column's type does not have the transform.
        UnsupportedError: DuckLakes do not have it.
    """
    by_name = {column.name: column for column in columns}
    fields = []
    for partition in partitions:
        column, kind = by_name[partition.column], partition.kind
        if kind == "truncate":
            raise UnsupportedError("DuckLakes have no partitions by truncate(n, c).")
        fits = column.type in _TEMPORAL and (kind != "hour" or column.type != "date")
        if column.children or (kind in ("year", "month", "day", "hour") and not fits):
            raise QueryError(
                f"A table can't be partitioned by {kind}({column.name}): it is "
                f"{column.duckdb_type}."
            )
        text = f"bucket({partition.number})" if kind == "bucket" else kind
        fields.append(PartitionField(column.id, text))
    return tuple(fields)


@dataclass(frozen=True, slots=True)
class _Listing:
    """The schemas and tables as of one snapshot."""

    snapshot: int
    schemas: Mapping[str, tuple[int, str]]  # ids and folders
    tables: Mapping[TableName, int]


class LakeCatalog(Catalog):
    """The schemas and tables of a DuckLake."""

    def __init__(self, lake: Lake, access: Callable[[], StoreAccess]) -> None:
        self.where, self.access = lake.database.where, access
        self._lake, self._lock = lake, threading.RLock()
        self._listing: _Listing | None = None
        self._versions: dict[int, LakeVersion] = {}
        self._seen: object = None

    # What there is

    def _current(self) -> _Listing:
        """The listing as of now."""
        with self._lock:
            token = self._lake.database.token()
            if self._listing is not None and token is not None and token == self._seen:
                return self._listing
            self._seen = token
            with self._lake.reading() as reader:
                last = self._listing
                if last is None or last.snapshot != reader.snapshot:
                    self._follow(reader, last)
            assert self._listing is not None
            return self._listing

    def _follow(self, reader: LakeReader, last: _Listing | None) -> None:
        """Take over what was committed since, and keep the tables that nobody has changed."""
        others = reader.changes_since(last.snapshot) if last is not None else None
        if last is None or others is None or any(change.table is None for change in others):
            self._versions.clear()
        for change in others or ():
            if change.table is not None:
                self._versions.pop(change.table, None)
        schemas = reader.schemas()
        names = {id_: name for name, (id_, _) in schemas.items()}
        tables = {TableName(names[schema], name): id_ for schema, name, id_ in reader.tables()}
        self._listing = _Listing(reader.snapshot, schemas, tables)

    def schemas(self) -> list[str]:
        return sorted(self._current().schemas)

    def tables(self, schema: str | None = None) -> list[TableName]:
        tables = sorted(self._current().tables)
        return tables if schema is None else [name for name in tables if name.schema == schema]

    def find(self, schema: str, table: str) -> TableName | None:
        key = (schema.lower(), table.lower())
        names = self._current().tables
        return next((n for n in names if (n.schema.lower(), n.table.lower()) == key), None)

    def load(self, name: TableName) -> LakeVersion:
        with self._lock:
            return self._loaded(name)[0]

    def _loaded(self, name: TableName) -> tuple[LakeVersion, int]:
        """The current version of a table, and the snapshot as of which it is current."""
        listing = self._current()
        id_ = listing.tables.get(name)
        if id_ is None:
            raise CatalogError(f"There is no table called {name}.")
        version = self._versions.get(id_)
        if version is None:
            with self._lake.reading(listing.snapshot) as reader:
                version = LakeVersion(reader.table(id_), self)
            self._versions[id_] = version
        return version, listing.snapshot

    def earlier(self, table: LakeTable, at: Moment) -> LakeTable:
        """A table of the same name as of an earlier snapshot."""
        names = {id_: name for name, (id_, _) in self._current().schemas.items()}
        schema = names[table.schema_id]
        with self._lake.reading(at.number, at.time) as reader:
            id_ = find_table(reader, schema, table.name)
            if id_ is None:
                raise DataError(
                    f"There was no table {schema}.{table.name} in snapshot {reader.snapshot}."
                )
            return reader.table(id_)

    def version(self) -> int | None:
        return self._current().snapshot

    def forget(self, name: TableName) -> None:
        """Versions are exact: nothing has to be forgotten."""

    # Changes

    def change(self, name: TableName) -> LakeChange:
        with self._lock:
            version, base = self._loaded(name)
        table = version.table
        return LakeChange(name=name, catalog=self, base=base, before=table, table=table)

    def create(
        self,
        name: TableName,
        columns: Described,
        partitions: Sequence[Transform],
        properties: Mapping[str, str],
    ) -> LakeChange:
        if properties:
            raise UnsupportedError("Tables of a DuckLake have no properties: leave out WITH.")
        listing = self._current()
        id_, folder = listing.schemas[name.schema]
        path = f"{folder.rstrip('/')}/{_folder(name.table)}"
        table = self.new_table(name.table, id_, path, columns, partitions)
        return LakeChange(name=name, catalog=self, base=listing.snapshot, before=None, table=table)

    def new_table(
        self,
        name: str,
        schema_id: int,
        path: str,
        described: Described,
        partitions: Sequence[Transform],
    ) -> LakeTable:
        ids = count(1)
        columns = tuple(
            lake_column(c.name, c.type, ids, nullable=c.name not in described.required)
            for c in described.schema
        )
        return LakeTable(
            id=-1,
            uuid=str(uuid.uuid4()),
            schema_id=schema_id,
            name=name,
            path=path,
            snapshot=-1,
            columns=columns,
            past_columns={},
            names={leaf.id: (leaf.name,) for top in columns for leaf in top.walk()},
            mappings={},
            partition=partition_fields(partitions, columns),
            next_column=next(ids),
        )

    @contextlib.contextmanager
    def _committing(self) -> Iterator[tuple[LakeConnection, LakeReader, Commit]]:
        """A block whose commit is written at its end, if it has changed something."""
        with self._lock, self._lake.database.writing() as connection:
            check(connection, self.where)
            ((last, schema, catalog_id, file_id),) = connection.rows(
                "SELECT snapshot_id, schema_version, next_catalog_id, next_file_id "
                "FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
            )
            commit = Commit(
                snapshot=int(last) + 1,
                schema_version=int(schema),
                next_catalog_id=int(catalog_id),
                next_file_id=int(file_id),
            )
            yield connection, LakeReader(connection, int(last)), commit
            if commit.changes:
                for statement in commit.finish(self._lake.database.now()):
                    connection.rows(statement)

    def commit(self, difference: Difference, name: TableName, base: int) -> None:
        """Commit what a change makes of a table, if it can follow all commits since `base`."""
        before, after = difference.before, difference.after
        with self._committing() as (connection, reader, commit):
            others = reader.changes_since(base)
            if others is None:
                raise ConflictError(
                    f"What others have changed since {name} was read is not known any more; "
                    "nothing was written. Run the statement again."
                )
            difference.check(others, name)
            id_ = -1 if before is None else before.id
            partition_id = None if after is None else after.partition_id
            if before is not None and not difference.continues:
                commits.drop(commit, before)
            if after is not None and difference.is_created:
                schema = self._place(reader, after, before, name)
                folder, _ = commits.relative(after.path, schema[1])
                id_ = commits.create(commit, after, schema[0], f"{folder.rstrip('/')}/")
                partition_id = commits.partition(commit, after, id_)
            elif after is not None and before is not None and difference.is_altered:
                partition_id = self._alter(connection, reader, commit, difference, name)
            if difference.removed or difference.emptied:
                commits.remove_rows(commit, difference.removed, difference.emptied, id_)
            if after is not None and (difference.added or difference.removed or difference.emptied):
                self._add(connection, commit, difference, id_, partition_id)

    def _place(
        self, reader: LakeReader, table: LakeTable, before: LakeTable | None, name: TableName
    ) -> tuple[str, str]:
        """The name and folder of a new table's schema, once it is sure that its name is free."""
        for schema, (id_, folder) in reader.schemas().items():
            if id_ == table.schema_id:
                other = find_table(reader, schema, table.name)
                if other is not None and (before is None or other != before.id):
                    raise AlreadyExistsError(f"There is a table called {name} already.")
                return schema, folder
        raise CatalogError(f"The schema {name.schema!r} was dropped meanwhile.")

    def _alter(
        self,
        connection: LakeConnection,
        reader: LakeReader,
        commit: Commit,
        difference: Difference,
        name: TableName,
    ) -> int | None:
        before, after = difference.before, difference.after
        assert before is not None
        assert after is not None
        schema, folder = self._place(reader, after, before, name)
        path, _ = commits.relative(after.path, folder)
        commits.alter(commit, before, after, schema, f"{path.rstrip('/')}/")
        number = after.partition_id
        if before.partition != after.partition:
            commit.end("ducklake_partition_info", f"table_id = {before.id}")
            number = commits.partition(commit, after, before.id)
        ((inlines,),) = connection.rows(
            f"SELECT count(*) FROM ducklake_inlined_data_tables WHERE table_id = {before.id}"
        )
        if inlines:  # DuckDB puts small rows into the newest of these tables
            table = f"ducklake_inlined_data_{before.id}_{commit.schema_version}"
            commit.insert(
                "ducklake_inlined_data_tables",
                (str(before.id), quote_text(table), str(commit.schema_version)),
            )
            type_of = self._lake.database.column_type
            columns = (
                f'"{c.name.replace(chr(34), chr(34) * 2)}" {type_of(c.duckdb_type)}'
                for c in after.columns
            )
            commit.statements.append(
                f"CREATE TABLE {table} (row_id BIGINT, begin_snapshot BIGINT, "
                f"end_snapshot BIGINT, {', '.join(columns)})"
            )
        return number

    def _add(
        self,
        connection: LakeConnection,
        commit: Commit,
        difference: Difference,
        id_: int,
        partition_id: int | None,
    ) -> None:
        """Add files, and what the catalog knows of all rows."""
        after, before = difference.after, difference.before
        assert after is not None
        added = difference.added
        totals = _totals(connection, id_)
        first_row = 0 if totals is None else totals.next_row
        if added:
            commits.add_files(commit, added, after, id_, partition_id, first_row)
        rows = sum(file.rows for file in added)
        size = sum(file.bytes for file in added)
        if totals is None:
            columns = _column_totals(after, added, None)
            commit.insert("ducklake_table_stats", (str(id_), str(rows), str(rows), str(size)))
        else:
            gone = sum(file.record_count for file in difference.removed)
            gone += sum(
                inlined.rows.num_rows
                for inlined in (before.inlined if before is not None else ())
                if inlined.table in difference.emptied
            )
            columns = _column_totals(after, added, totals)
            commit.statements.append(
                "UPDATE ducklake_table_stats SET "
                f"record_count = {max(totals.rows + rows - gone, 0)}, "
                f"next_row_id = {totals.next_row + rows}, "
                f"file_size_bytes = {totals.bytes + size} WHERE table_id = {id_}"
            )
            if added:
                commit.statements.append(
                    f"DELETE FROM ducklake_table_column_stats WHERE table_id = {id_}"
                )
        if added:
            commit.insert(
                "ducklake_table_column_stats",
                *(
                    (str(id_), str(column), commits.flag(nulls), commits.flag(nan),
                     commits.text(low), commits.text(high), "NULL")
                    for column, (nulls, nan, low, high) in columns.items()
                ),
            )  # fmt: skip

    # Schemas and names

    def create_schema(self, name: str, *, exists_ok: bool = False) -> None:
        with self._committing() as (_, reader, commit):
            if same_name(name, reader.schemas()) is not None:
                if exists_ok:
                    return
                raise AlreadyExistsError(f"There is a schema called {name!r} already.")
            commit.change_schema()
            quoted = '"' + name.replace('"', '""') + '"'
            commit.changes.append(f"created_schema:{quoted}")
            commit.insert(
                "ducklake_schema",
                (str(commit.new_id()), quote_text(str(uuid.uuid4())), str(commit.snapshot), "NULL",
                 quote_text(name), quote_text(f"{_folder(name)}/"), "TRUE"),
            )  # fmt: skip

    def drop_schema(self, name: str, *, missing_ok: bool = False, cascade: bool = False) -> None:
        if missing_ok and self.schema(name) is None:
            return
        own = self.existing_schema(name)
        with self._committing() as (_, reader, commit):
            if own not in reader.schemas():
                raise CatalogError(f"The schema {own!r} was dropped meanwhile.")
            id_, _ = reader.schemas()[own]
            tables = [(table, number) for schema, table, number in reader.tables() if schema == id_]
            views = reader.rows("view_id", "ducklake_view", f"schema_id = {id_}")
            if (tables or views) and not cascade:
                names = ", ".join(sorted(table for table, _ in tables)) or "views"
                raise CatalogError(
                    f"Schema {own!r} has tables ({names}): drop them first, or write CASCADE."
                )
            commit.change_schema()
            commit.changes.append(f"dropped_schema:{id_}")
            commit.end("ducklake_schema", f"schema_id = {id_}")
            for _, number in tables:
                commits.drop(commit, reader.table(number))
            for (number,) in views:
                commit.changes.append(f"dropped_view:{number}")
                commit.end("ducklake_view", f"view_id = {number}")

    def drop(self, name: TableName) -> None:
        change = self.change(name)
        self.commit(Difference(change.before, None), name, change.base)

    def rename(self, name: TableName, to: TableName) -> None:
        change = self.change(name)
        schemas = self._current().schemas
        own = self.existing_schema(to.schema)
        table = replace(change.table, name=to.table, schema_id=schemas[own][0])
        self.commit(Difference(change.before, table), to, change.base)

    # Files

    def vacuum(self, name: TableName | None) -> int:
        """Remove the files that no snapshot uses; snapshots expire by DuckDB's functions."""
        with self._lake.reading() as reader:
            root = reader.metadata()["data_path"]
            used = reader.all_files()
        folder = root if name is None else self.load(name).table.path
        latest, removed = time.time() - _ORPHAN_AGE_S, 0
        layout = LakeLayout(folder, (), (), self.access())
        if is_remote(folder):
            return 0  # their age is not known
        for path, changed in listed(str(Path(folder)), self.access()):
            if path not in used and changed < latest and path.endswith(".parquet"):
                with contextlib.suppress(OSError):
                    layout.delete(path)
                    removed += 1
        return removed

    def close(self) -> None:
        self._lake.database.close()


def _folder(name: str) -> str:
    """The folder of a table or schema in that of what it belongs to."""
    return name if _PLAIN.fullmatch(name) else str(uuid.uuid4())


def _totals(connection: LakeConnection, id_: int) -> TableTotals | None:
    rows = connection.rows(
        "SELECT record_count, next_row_id, file_size_bytes FROM ducklake_table_stats "
        f"WHERE table_id = {id_}"
    )
    if not rows:
        return None
    columns = connection.rows(
        "SELECT column_id, contains_null, contains_nan, min_value, max_value "
        f"FROM ducklake_table_column_stats WHERE table_id = {id_}"
    )
    by_column = {
        int(number): (
            None if nulls is None else bool(nulls), None if nan is None else bool(nan), low, high
        )
        for number, nulls, nan, low, high in columns
    }  # fmt: skip
    return TableTotals(int(rows[0][0]), int(rows[0][1]), int(rows[0][2]), by_column)


def _column_totals(
    table: LakeTable, added: Sequence[LakeFile], totals: TableTotals | None
) -> dict[int, commits.ColumnTotals]:
    """What is known of columns after files were added."""
    leaves = {leaf.id: leaf for top in table.columns for leaf in top.walk() if not leaf.children}
    if totals is None:
        before: dict[int, commits.ColumnTotals] = {
            number: (False, False if leaf.type.startswith("float") else None, None, None)
            for number, leaf in leaves.items()
        }
    else:
        before = dict(totals.columns)
    columns: dict[int, commits.ColumnTotals] = {}
    for number, old in before.items():
        statistics = [file.statistics.get(number) for file in added]
        leaf = leaves.get(number)
        new = old if leaf is None else commits.merged(old, statistics, leaf)  # None: it was dropped
        if new is not None:
            columns[number] = new
    return columns


# Opening


def open_lake(
    address: str,
    data_path: str | None,
    access: Callable[[], StoreAccess],
) -> LakeCatalog:
    """The catalog of a DuckLake, which is made if it is missing.

    Args:
        address: where its catalog is, without `ducklake:`.
        data_path: the folder of a new lake's files; by default beside the catalog's file.
        access: how object stores are reached, asked again before each use.

    Raises:
        OptionError: there is no place for the files, or the lake has them elsewhere.
    """
    database = open_database(address, create=True)
    try:
        _open(database, data_path)
    except BaseException:
        database.close()
        raise
    return LakeCatalog(Lake(database), access)


def _open(database: LakeDatabase, data_path: str | None) -> None:
    """Make the lake if it is missing; raise if its files are elsewhere, or it is none of ours."""
    with database.writing() as connection:
        if not connection.has_table("ducklake_metadata"):
            place = data_path or database.default_data_path
            if not place:
                raise OptionError(
                    "A new DuckLake in PostgreSQL needs a folder for its files: "
                    'warehouse={"uri": "ducklake:postgres:...", "data_path": "/folder"}.'
                )
            if not is_remote(place):
                place = str(Path(place).expanduser().absolute())
            _initialize(connection, f"{place.rstrip('/')}/", database)
        check(connection, database.where)
        stored = LakeReader(connection, 0).metadata()["data_path"]
    if data_path is not None and Path(stored).name != Path(data_path).name:
        raise OptionError(f"The files of this DuckLake are in {stored}, not in {data_path}.")


def _initialize(connection: LakeConnection, data_path: str, database: LakeDatabase) -> None:
    for statement in TABLES:
        connection.rows(database.table(statement))
    settings = {"version": VERSION, "created_by": "minishark", "data_path": data_path}
    for key, value in {**settings, "encrypted": "false"}.items():
        connection.rows(
            "INSERT INTO ducklake_metadata (key, value) VALUES "
            f"({quote_text(key)}, {quote_text(value)})"
        )
    commit = Commit(snapshot=0, schema_version=0, next_catalog_id=1, next_file_id=0)
    commit.changes.append(f'created_schema:"{MAIN}"')
    commit.insert(
        "ducklake_schema",
        ("0", quote_text(str(uuid.uuid4())), "0", "NULL", f"'{MAIN}'", f"'{MAIN}/'", "TRUE"),
    )
    for statement in commit.finish(database.now()):
        connection.rows(statement)
