"""Iceberg tables, read through pyiceberg's metadata and DuckDB's Parquet reader.

pyiceberg reads the metadata: snapshots, schemas, manifests with bounds of columns. Parquet files
go to executors as `MappedParquet`, those with positional deletes together with their delete files;
what DuckDB can't read rightly (ORC, deletion vectors, structs whose fields were changed) pyiceberg
reads, one file a task. Equality deletes are refused.
"""

from __future__ import annotations

import copy
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from minishark.errors import DataError, MinisharkError, UnsupportedError
from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import Schema
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources.arrow_types import constant, duckdb_schema, memory_bytes, text_of
from minishark.sources.contract import PlacedSplit, Snapshot, Source, Split
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess
from minishark.sources.mapped_parquet import (
    MappedColumn,
    MappedFile,
    divided,
    enough_for,
    has_reserved_name,
)
from minishark.sources.optional import library
from minishark.sources.store_settings import access_of_properties, iceberg_properties

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

_EXTRA = "iceberg"
_CODE_BITS_MAX = 12

_VERSION = re.compile(r"v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?")


class IcebergSource(Source):
    """One Iceberg table, now or as it was.

    Args:
        table: a pyiceberg `Table`, a metadata file, or the folder of a table whose metadata files
            are numbered (`version-hint.text`, `v3.metadata.json`), as path or URI.
        snapshot_id: a snapshot.
        timestamp: a point in time; the snapshot that was current then. Without a zone: local time.
        ref: a branch or tag.
        properties: of pyiceberg's file system, such as `s3.endpoint`; only with a path.
        name: what messages call the table; by default its identifier or path.
    """

    def __init__(
        self,
        table: Table | str | Path,
        *,
        snapshot_id: int | None = None,
        timestamp: datetime | None = None,
        ref: str | None = None,
        properties: Mapping[str, str] | None = None,
        name: str = "",
    ) -> None:
        library("pyiceberg.table", _EXTRA)
        if sum(given is not None for given in (snapshot_id, timestamp, ref)) > 1:
            raise DataError("Name one of snapshot_id, timestamp and ref.")
        self._table = str(table) if isinstance(table, Path) else table
        self._at = _At(snapshot_id, timestamp, ref)
        self._properties = dict(properties or {})
        self._access: Callable[[], StoreAccess] = lambda: FROM_ENVIRONMENT
        self.name = name or (
            self._table if isinstance(self._table, str) else ".".join(self._table.name())
        )
        self._last: IcebergSnapshot | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"IcebergSource({self.name!r})"

    def within(self, access: Callable[[], StoreAccess]) -> IcebergSource:
        apart = copy.copy(self)
        apart._access, apart._last, apart._lock = access, None, threading.Lock()  # noqa: SLF001 - itself
        return apart

    def resolve(self) -> IcebergSnapshot:
        """The table's metadata is read again; the manifests are once for each version.

        Raises:
            DataError: there is no such table, snapshot, branch or tag.
            UnsupportedError: a column's type is none of DuckDB's.
        """
        try:
            table = self._loaded()
            pinned = _pinned(table, self._at, self.name)
        except MinisharkError:
            raise
        except Exception as error:
            raise DataError(f"Can't read the Iceberg table {self.name}: {error}") from error
        with self._lock:
            if self._last is None or not self._last.is_of(pinned):
                self._last = IcebergSnapshot(self.name, pinned, self._own_access(pinned))
            return self._last

    def _loaded(self) -> Table:
        from pyiceberg.table import StaticTable  # noqa: PLC0415 - an optional dependency

        if not isinstance(self._table, str):
            table = self._table
            # A table at a metadata file never changes.
            return table if isinstance(table, StaticTable) else table.refresh()
        session = iceberg_properties(self._table, self._access())
        properties = {**from_environment(), **session, **self._properties}
        location = _metadata_location(self._table, properties)
        return StaticTable.from_metadata(location, properties)

    def _own_access(self, pinned: _Pinned) -> StoreAccess | None:
        """The settings that hosts fetch files with, beside the session's."""
        is_named = isinstance(self._table, str)
        properties = self._properties if is_named else pinned.io.properties
        return access_of_properties(pinned.metadata.location, properties)


class IcebergSnapshot(Snapshot):
    """One snapshot of an Iceberg table with one of its schemas."""

    def __init__(self, name: str, pinned: _Pinned, access: StoreAccess | None) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

        self._name = name
        self._pinned = pinned
        self._access = access  # None if only pyiceberg can reach the files
        self.version = pinned.version
        arrow = schema_to_pyarrow(pinned.schema, include_field_ids=False)
        self._types = {
            column.field_id: field.type
            for column, field in zip(pinned.schema.fields, arrow, strict=True)
        }
        self.schema = duckdb_schema(arrow, name)

    def __repr__(self) -> str:
        return f"IcebergSnapshot({self._name!r}, {self.version!r})"

    def is_of(self, pinned: _Pinned) -> bool:
        """Whether this is that version, reached alike: credentials may have been renewed."""
        mine = self._pinned
        return mine.version == pinned.version and mine.io.properties == pinned.io.properties

    @cached_property
    def statistics(self) -> TableStatistics | None:  # type: ignore[override]
        """From the manifests: rows without deleted ones, NULLs, and bounds of columns."""
        return _statistics(self._plan(()), self._pinned.schema, self._types, self.schema)

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        """The files whose partition and bounds of columns don't exclude the predicates.

        Raises:
            UnsupportedError: a file has equality deletes or is none of Parquet and ORC.
            DataError: a manifest can't be read.
        """
        from pyiceberg.manifest import FileFormat  # noqa: PLC0415

        mapped: list[MappedFile] = []
        others: list[Split] = []
        metadata = self._pinned.slim
        # By the constants of a file: many files share them, on their way to tasks, too.
        by_constants: dict[str, tuple[MappedColumn, ...] | None] = {}
        for task in self._plan(pushed.predicates):
            if task.file.file_format not in (FileFormat.PARQUET, FileFormat.ORC):
                raise UnsupportedError(
                    f"{task.file.file_path} of {self._name} is a file of "
                    f"{task.file.file_format.name}; only Parquet and ORC files are read."
                )
            columns = None
            if self._is_mapped(task):
                constants = self._pinned.partition_constants(task.file)
                key = repr(constants)
                if key not in by_constants:
                    by_constants[key] = self._columns(constants)
                columns = by_constants[key]
            if columns is None:
                others.append(IcebergFile(self._name, task, metadata, self._pinned.io))
            else:
                mapped.append(_mapped(task, columns))
        if not pushed.predicates and not others:
            mapped = list(enough_for(pushed.limit, mapped))
        return [*divided(self._name, mapped, tasks, self._access or FROM_ENVIRONMENT), *others]

    def _plan(self, predicates: Sequence[Predicate]) -> list[FileScanTask]:
        from pyiceberg.table import DataScan  # noqa: PLC0415

        if self._pinned.snapshot_id is None:
            return []
        scan = DataScan(
            table_metadata=self._pinned.metadata,
            io=self._pinned.io,
            row_filter=row_filter(predicates, self._pinned.schema),
            snapshot_id=self._pinned.snapshot_id,
        )
        try:
            return list(scan.plan_files())
        except Exception as error:
            if "equality deletes" in str(error):
                raise UnsupportedError(
                    f"The Iceberg table {self._name} has equality deletes, which minishark does "
                    "not apply. Rewrite its data files with the engine that wrote them "
                    "(rewrite_data_files), then read it again."
                ) from error
            raise DataError(f"Can't read the manifests of {self._name}: {error}") from error

    def _is_mapped(self, task: FileScanTask) -> bool:
        """Whether DuckDB reads the file's rows as pyiceberg would."""
        from pyiceberg.manifest import FileFormat  # noqa: PLC0415

        files = (task.file, *task.delete_files)
        if any(file.file_format != FileFormat.PARQUET for file in files):
            return False
        if self._pinned.has_changed_nested_fields or has_reserved_name(self.schema):
            return False
        return self._access is not None or all(_is_local(file.file_path) for file in files)

    def _columns(self, partition: Mapping[int, Any]) -> tuple[MappedColumn, ...] | None:
        """Where the columns are in files with these constants, by field id.

        None if one has no SQL.
        """
        columns = []
        for column, field_ in zip(self.schema, self._pinned.schema.fields, strict=True):
            value = partition.get(field_.field_id, field_.initial_default)
            sql = constant(value, self._types[field_.field_id])
            if sql is None:
                return None
            names = self._pinned.mapped_names.get(field_.field_id, ())
            columns.append(
                MappedColumn(
                    name=column.name,
                    type=column.type,
                    stored=names,
                    field_id=field_.field_id,
                    constant=sql,
                    named=self._pinned.all_names(field_.field_id),
                )
            )
        return tuple(columns)


class IcebergFile(PlacedSplit):
    """A file that pyiceberg reads, with its deletes."""

    def __init__(self, name: str, task: FileScanTask, metadata: TableMetadata, io: FileIO) -> None:
        self.name = name
        self.rows = None if task.delete_files else task.file.record_count
        self.bytes = task.file.file_size_in_bytes
        self.path = task.file.file_path
        self._task, self._metadata, self._io = task, metadata, io

    def __repr__(self) -> str:
        return f"IcebergFile({self.name!r}, {self.path!r})"

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        """The rows that are not deleted.

        Raises:
            DataError: the file can't be read.
        """
        library("pyiceberg.table", _EXTRA)
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415
        from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow  # noqa: PLC0415

        schema = self._metadata.schema()
        names = pushed.columns or tuple(column.name for column in schema.fields)
        read_schema = schema.select(*names)
        arrow = schema_to_pyarrow(read_schema, include_field_ids=False)
        target = pa.schema([arrow.field(name) for name in names])

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                scan = ArrowScan(self._metadata, self._io, read_schema, AlwaysTrue())
                for batch in scan.to_record_batches([self._task]):
                    typed = pa.RecordBatch.from_struct_array(_cast(batch, arrow))
                    yield typed.select(list(names))
            except Exception as error:
                raise DataError(f"Can't read {self.path} of {self.name}: {error}") from error

        return pa.RecordBatchReader.from_batches(target, batches())


def row_filter(predicates: Sequence[Predicate], schema: IcebergSchema) -> BooleanExpression:
    """Predicates as pyiceberg's expression; those that could exclude a row wrongly are left out.

    DuckDB takes NaN for larger than all numbers, while bounds of files leave it out: lower limits
    of floating-point columns are not pushed down.
    """
    from pyiceberg.expressions import AlwaysTrue, And  # noqa: PLC0415
    from pyiceberg.expressions.visitors import bind  # noqa: PLC0415

    result: BooleanExpression = AlwaysTrue()
    for predicate in predicates:
        names = [column.name for column in schema.fields]
        matching = [name for name in names if name.lower() == predicate.column.lower()]
        if len(matching) != 1:
            continue
        floats = str(schema.find_field(matching[0]).field_type) in ("float", "double")
        if floats and not _is_safe_for_floats(predicate):
            continue
        try:
            expression = _expression(predicate, matching[0])
            bind(schema, expression, case_sensitive=True)
        except (TypeError, ValueError):
            continue  # a value that the column's type can't take
        result = And(result, expression)
    return result


def _is_safe_for_floats(predicate: Predicate) -> bool:
    safe = (
        Comparison.EQUAL,
        Comparison.IN,
        Comparison.LESS,
        Comparison.LESS_OR_EQUAL,
        Comparison.IS_NULL,
        Comparison.IS_NOT_NULL,
    )
    return predicate.comparison in safe and all(value == value for value in predicate.values)  # noqa: PLR0124 - NaN is not itself


def _expression(predicate: Predicate, name: str) -> BooleanExpression:
    from pyiceberg import expressions  # noqa: PLC0415

    kinds: Any = expressions  # whose annotations know keywords only
    if predicate.comparison in (Comparison.IS_NULL, Comparison.IS_NOT_NULL):
        is_null = predicate.comparison is Comparison.IS_NULL
        unary: BooleanExpression = kinds.IsNull(name) if is_null else kinds.NotNull(name)
        return unary
    kind = {
        Comparison.EQUAL: kinds.EqualTo,
        Comparison.NOT_EQUAL: kinds.NotEqualTo,
        Comparison.LESS: kinds.LessThan,
        Comparison.LESS_OR_EQUAL: kinds.LessThanOrEqual,
        Comparison.GREATER: kinds.GreaterThan,
        Comparison.GREATER_OR_EQUAL: kinds.GreaterThanOrEqual,
        Comparison.IN: kinds.In,
    }[predicate.comparison]
    is_in = predicate.comparison is Comparison.IN
    made: BooleanExpression = kind(name, set(predicate.values) if is_in else predicate.values[0])
    return made


@dataclass(frozen=True, slots=True)
class _At:
    """Which snapshot is meant; the current one if nothing is set."""

    snapshot_id: int | None
    timestamp: datetime | None
    ref: str | None


@dataclass(frozen=True)
class _Pinned:
    """Metadata that has the schema of one snapshot as its current one."""

    metadata: TableMetadata
    io: FileIO
    snapshot_id: int | None  # None for a table without rows
    version: str

    @property
    def schema(self) -> IcebergSchema:
        return self.metadata.schema()

    @cached_property
    def slim(self) -> TableMetadata:
        """What readers of files need of the metadata: without the history."""
        history: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": []}
        history |= {"refs": {}, "current_snapshot_id": None, "statistics": []}
        return self.metadata.model_copy(update=history)

    @cached_property
    def mapped_names(self) -> dict[int, tuple[str, ...]]:
        """The names that columns have in files without field ids."""
        mapping = self.metadata.name_mapping()
        if mapping is None:
            return {}
        return {
            field.field_id: tuple(field.names)
            for field in mapping.root
            if field.field_id is not None
        }

    def all_names(self, number: int) -> tuple[str, ...] | None:
        """The names that a column had ever since; None where schemas were forgotten."""
        schemas = self.metadata.schemas
        if {schema.schema_id for schema in schemas} != set(range(len(schemas))):
            return None
        names = [
            name for schema in schemas if (name := schema.find_column_name(number)) is not None
        ]
        return tuple(dict.fromkeys((*names, *self.mapped_names.get(number, ()))))

    @cached_property
    def has_changed_nested_fields(self) -> bool:
        """Whether files may have structs, lists or maps with other fields than the table's."""
        nested = {field.field_id: field.field_type for field in self.schema.fields}
        nested = {key: type_ for key, type_ in nested.items() if not type_.is_primitive}
        if nested and self.metadata.name_mapping() is not None:
            return True
        return any(
            field.field_type != nested.get(field.field_id, field.field_type)
            for schema in self.metadata.schemas
            for field in schema.fields
        )

    def partition_constants(self, file: DataFile) -> dict[int, Any]:
        """By field id: the values of columns by which a file is partitioned as they are."""
        from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415

        spec = self.metadata.specs().get(file.spec_id)
        if spec is None:
            return {}
        return {
            field.source_id: file.partition[number]
            for number, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform) and file.partition[number] is not None
        }


def _pinned(table: Table, at: _At, name: str) -> _Pinned:
    metadata = table.metadata
    snapshot = table.current_snapshot()
    if at.snapshot_id is not None:
        snapshot = table.snapshot_by_id(at.snapshot_id)
    elif at.ref is not None:
        snapshot = table.snapshot_by_name(at.ref)
    elif at.timestamp is not None:
        snapshot = table.snapshot_as_of_timestamp(int(at.timestamp.timestamp() * 1000))
    if snapshot is None and at != _At(None, None, None):
        asked = at.ref or at.snapshot_id or at.timestamp
        newest = ", ".join(str(snapshot.snapshot_id) for snapshot in table.snapshots()[-5:])
        refs = ", ".join(table.metadata.refs)
        raise DataError(
            f"The Iceberg table {name} has no snapshot {asked}; its latest are: "
            f"{newest or 'none'}; its branches and tags: {refs or 'none'}."
        )
    schema_id = metadata.current_schema_id
    is_past = at != _At(None, None, None)
    if is_past and snapshot is not None and snapshot.schema_id is not None:
        schema_id = snapshot.schema_id
    # Filters are bound to the current schema: it has to be the snapshot's.
    metadata = metadata.model_copy(update={"current_schema_id": schema_id})
    number = None if snapshot is None else snapshot.snapshot_id
    version = f"{metadata.table_uuid}/{number}/{schema_id}"
    return _Pinned(metadata, table.io, number, version)


def from_environment() -> dict[str, str]:
    """What pyiceberg does not read there itself, other than `sources.filesystems`."""
    variables = {"s3.endpoint": "AWS_ENDPOINT_URL", "s3.region": "AWS_REGION"}
    return {key: os.environ[name] for key, name in variables.items() if name in os.environ}


def _metadata_location(table: str, properties: Mapping[str, str]) -> str:
    """The newest metadata file of a table's folder."""
    from pyiceberg.io import load_file_io  # noqa: PLC0415

    if table.endswith((".metadata.json", ".metadata.json.gz")):
        return table
    folder = table.rstrip("/")
    io = load_file_io(properties=dict(properties), location=folder)
    hint = io.new_input(f"{folder}/metadata/version-hint.text")
    if hint.exists():
        with hint.open() as stream:
            text = stream.read().decode().strip()
        if not text.isdigit():
            suffix = "" if text.endswith(".json") else ".metadata.json"
            return f"{folder}/metadata/{text}{suffix}"
        # The hint is written after the metadata, and may be behind.
        number = int(text)
        while io.new_input(f"{folder}/metadata/v{number + 1}.metadata.json").exists():
            number += 1
        return f"{folder}/metadata/v{number}.metadata.json"
    names = _local_names(folder)
    versions = {int(version[1]): name for name in names if (version := _VERSION.fullmatch(name))}
    if versions:
        return f"{folder}/metadata/{versions[max(versions)]}"
    files = sorted(name for name in names if name.endswith(".metadata.json"))
    if not files:
        raise DataError(f"{table} is no Iceberg table: it has no metadata files.")
    raise DataError(
        f"Only a catalog knows which metadata file of {table} is current. Read the table through "
        f"its catalog, or name the file; the newest by name is metadata/{files[-1]}."
    )


def _local_names(folder: str) -> list[str]:
    if not _is_local(folder):
        return []
    metadata = Path(_local(folder), "metadata")
    return [path.name for path in metadata.iterdir()] if metadata.is_dir() else []


def _mapped(task: FileScanTask, columns: tuple[MappedColumn, ...]) -> MappedFile:
    deletes = sorted(task.delete_files, key=lambda delete: delete.file_path)
    return MappedFile(
        path=_local(task.file.file_path),
        bytes=task.file.file_size_in_bytes,
        columns=columns,
        rows=None if deletes else task.file.record_count,
        delete_files=tuple(
            (_local(delete.file_path), delete.file_size_in_bytes) for delete in deletes
        ),
        named_in_deletes=task.file.file_path,
    )


def _is_local(path: str) -> bool:
    return urlsplit(path).scheme in ("", "file")


def _local(path: str) -> str:
    """A URI of a file of this host as its path; others unchanged."""
    if not path.startswith("file:"):
        return path
    # pyiceberg takes paths as they are; what it wrote has no escapes.
    plain = re.sub(r"^file:(?://)?", "", path)
    return plain if Path(plain).exists() else unquote(plain)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.StructArray:
    return batch.cast(schema).to_struct_array()


def _statistics(
    tasks: Sequence[FileScanTask],
    schema: IcebergSchema,
    types: Mapping[int, pa.DataType],
    columns: Schema,
) -> TableStatistics:
    files = [task.file for task in tasks]
    stored = sum(file.record_count for file in files)
    deletes = {
        deleted.file_path: deleted.record_count for task in tasks for deleted in task.delete_files
    }
    rows = max(stored - sum(deletes.values()), 0)
    size = sum(file.file_size_in_bytes for file in files)
    return TableStatistics(
        rows=rows,
        bytes=memory_bytes(columns, rows, size),
        columns=tuple(
            _column_statistics(files, field.field_id, field.field_type, types[field.field_id])
            for field in schema.fields
        ),
    )


def _column_statistics(
    files: Sequence[DataFile], number: int, type_: Any, arrow: pa.DataType
) -> ColumnStatistics:
    rows = sum(file.record_count for file in files)
    counts = [(file.null_value_counts or {}).get(number) for file in files]
    nulls = sum(count for count in counts if count is not None)
    fraction = nulls / rows if rows else 0.0
    filled = [
        file
        for file, count in zip(files, counts, strict=True)
        if count is None or count < file.record_count
    ]
    if not type_.is_primitive or not filled:
        return ColumnStatistics(null_fraction=fraction)
    lows = [_bound(file.lower_bounds, number, type_) for file in filled]
    highs = [_bound(file.upper_bounds, number, type_) for file in filled]
    is_bounded = None not in lows and None not in highs
    sizes = [(file.column_sizes or {}).get(number) for file in filled]
    size = (
        None if None in sizes else sum(size_bytes for size_bytes in sizes if size_bytes is not None)
    )
    return ColumnStatistics(
        null_fraction=fraction,
        distinct=_distinct(rows - nulls, (min(lows), max(highs)) if is_bounded else None, size),
        minimum=None if None in lows else text_of(min(lows), arrow),
        maximum=None if None in highs else text_of(max(highs), arrow),
        without_nulls=None not in counts and not nulls,
    )


def _distinct(rows: int, bounds: tuple[Any, Any] | None, size: int | None) -> int:
    """About how many values differ, of a column that is stored in `size` bytes.

    Manifests do not tell. At most so many do as there are whole numbers between the bounds. Where
    values take few bits, these are codes of a dictionary, or as good as that, and n bits tell 2^n
    values apart. All values may differ otherwise, which is what DuckDB assumes of Parquet files.
    """
    match bounds:
        case int(low), int(high):  # dates and times are numbers, too
            return max(1, min(rows, high - low + 1))
        case _:
            bits = math.inf if size is None else 8 * size / max(1, rows)
            return max(1, min(rows, round(2**bits) if bits <= _CODE_BITS_MAX else rows))


def _bound(bounds: Mapping[int, bytes] | None, number: int, type_: Any) -> Any:
    from pyiceberg.conversions import from_bytes  # noqa: PLC0415

    bound = (bounds or {}).get(number)
    return None if bound is None else from_bytes(type_, bound)
