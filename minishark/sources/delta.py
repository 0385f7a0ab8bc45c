"""Delta tables, read through deltalake's log and DuckDB's Parquet reader.

deltalake reads the log: versions, schema, the files with their statistics, deletion vectors.
Executors read the files as `MappedParquet`; deleted positions travel with them. Protocol features
that are not known here are refused by name, as a reader that overlooks one returns wrong rows.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from minishark.errors import DataError, MinisharkError, UnsupportedError
from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.predicates import Predicate, Pushed
from minishark.sources.arrow_types import constant, duckdb_schema, memory_bytes, text_of
from minishark.sources.bounds import Bounds, may_match
from minishark.sources.contract import Snapshot, Source, Split
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess
from minishark.sources.mapped_parquet import (
    MappedColumn,
    MappedFile,
    divided,
    enough_for,
    has_reserved_name,
)
from minishark.sources.optional import library
from minishark.sources.store_settings import delta_options

if TYPE_CHECKING:
    from deltalake import DeltaTable

_EXTRA = "delta"
# Reader features of the protocol that this module or deltalake takes care of.
_FEATURES = frozenset(
    [
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    ]
)
_READER_VERSION_MAX = 3
_STATISTICS_UNIT = timedelta(milliseconds=1)  # times in statistics are cut off to milliseconds
_EXACT_DIGITS = 15  # decimals in statistics may have passed through a double


class DeltaSource(Source):
    """One Delta table, now or as it was.

    Args:
        table: its folder, as path or URI.
        version: a version.
        timestamp: a point in time; the version that was current then.
        storage_options: of the table's object store, before the session's; they are sent to
            executors with the tasks.
    """

    def __init__(
        self,
        table: str | Path,
        *,
        version: int | None = None,
        timestamp: datetime | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        library("deltalake", _EXTRA)
        if version is not None and timestamp is not None:
            raise DataError("Name one of version and timestamp.")
        self.name = str(table)
        self._at = version if timestamp is None else timestamp
        self._options = dict(storage_options or {})
        self._access: Callable[[], StoreAccess] = lambda: FROM_ENVIRONMENT
        self._last: DeltaSnapshot | None = None

    def __repr__(self) -> str:
        return f"DeltaSource({self.name!r})"

    def within(self, access: Callable[[], StoreAccess]) -> DeltaSource:
        apart = copy.copy(self)
        apart._access, apart._last = access, None  # noqa: SLF001 - itself
        return apart

    def resolve(self) -> DeltaSnapshot:
        """The log is read again.

        Raises:
            DataError: there is no such table or version.
            UnsupportedError: it has protocol features or types that minishark does not read.
        """
        from deltalake import DeltaTable  # noqa: PLC0415 - an optional dependency

        try:
            at = self._at if isinstance(self._at, int) else None
            options = delta_options(self.name, self._access(), self._options)
            table = DeltaTable(self.name, version=at, storage_options=options or None)
            if isinstance(self._at, datetime):
                table.load_as_version(self._at)
            version = f"{table.metadata().id}/{table.version()}"
            last = self._last
            if last is None or not last.is_of(version, options):
                own = StoreAccess({self.name: self._options} if self._options else {})
                last = DeltaSnapshot(self.name, table, version=version, options=options, access=own)
                self._last = last
        except MinisharkError:
            raise
        except Exception as error:
            raise DataError(f"Can't read the Delta table {self.name}: {error}") from error
        return last


class DeltaSnapshot(Snapshot):
    """One version of a Delta table."""

    def __init__(
        self,
        name: str,
        table: DeltaTable,
        *,
        version: str,
        options: Mapping[str, str],
        access: StoreAccess,
    ) -> None:
        self._name, self._table, self._options = name, table, dict(options)
        self._access = access  # the table's own settings, which hosts fetch its files with
        self.version = version
        _check_protocol(name, table)
        arrow = pa.schema(table.schema().to_arrow())
        self.schema = duckdb_schema(arrow, name)
        self._types = dict(zip(arrow.names, arrow.types, strict=True))
        self._physical = _physical_columns(table)
        is_path = not urlsplit(name).scheme
        self._folder = str(Path(name).absolute()) if is_path else _plain(table.table_uri)
        self._partitioned = frozenset(table.metadata().partition_columns)

    def __repr__(self) -> str:
        return f"DeltaSnapshot({self._name!r}, {self.version!r})"

    def is_of(self, version: str, options: Mapping[str, str]) -> bool:
        """Whether this is that version, reached alike: credentials may have been renewed."""
        return self.version == version and self._options == options

    @cached_property
    def statistics(self) -> TableStatistics | None:  # type: ignore[override]
        """From the log; None where a file's number of rows is not in it."""
        counts = [file["num_records"] for file in self._files]
        if any(count is None for count in counts):
            return None
        rows = sum(counts) - sum(map(_deleted_count, self._deleted.values()))
        size = sum(file["size_bytes"] for file in self._files)
        return TableStatistics(
            rows=rows,
            bytes=memory_bytes(self.schema, rows, size),
            columns=tuple(self._column_statistics(column.name) for column in self.schema),
        )

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        """The files whose partition and bounds of columns don't exclude the predicates."""
        if self._is_read_whole:
            return [DeltaVersion(self._name, self._table.version(), self._options)]
        files = [self._mapped(file) for file in self._files if self._may_match(file, pushed)]
        if not pushed.predicates:
            files = list(enough_for(pushed.limit, files))
        return divided(self._name, files, tasks, self._access)

    @cached_property
    def _files(self) -> list[dict[str, Any]]:
        """The add actions: path, size, rows; `min.c`, `max.c`, `null_count.c`, `partition.c`."""
        files: list[dict[str, Any]] = pa.table(
            self._table.get_add_actions(flatten=True)
        ).to_pylist()
        return files

    @cached_property
    def _deleted(self) -> dict[str, str]:
        """By path of a file: its deleted positions."""
        if "deletionVectors" not in (self._table.protocol().reader_features or ()):
            return {}
        if not hasattr(self._table, "deletion_vectors"):
            raise UnsupportedError(
                f"The Delta table {self._name} may have deletion vectors, which this version of "
                "deltalake does not tell: pip install --upgrade deltalake."
            )
        vectors = pa.RecordBatchReader.from_stream(self._table.deletion_vectors()).read_all()
        kept = dict(zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True))
        return {_plain(uri): _deleted_positions(mask) for uri, mask in kept.items()}

    @cached_property
    def _is_read_whole(self) -> bool:
        """Whether deltalake has to read the rows itself."""
        mapped = any(name != stored for name, (stored, _) in self._physical.items())
        nested = any(pa.types.is_nested(type_) for type_ in self._types.values())
        return (mapped and nested) or has_reserved_name(self.schema)

    @cached_property
    def _has_widened_types(self) -> bool:
        features = self._table.protocol().reader_features or ()
        return any(feature.startswith("typeWidening") for feature in features)

    def _may_match(self, file: Mapping[str, Any], pushed: Pushed) -> bool:
        return all(self._may_match_one(file, predicate) for predicate in pushed.predicates)

    def _may_match_one(self, file: Mapping[str, Any], predicate: Predicate) -> bool:
        names = [name for name in self._types if name.lower() == predicate.column.lower()]
        return not names or may_match(predicate, self._bounds(file, names[0]))

    def _bounds(self, file: Mapping[str, Any], name: str) -> Bounds:
        rows = file["num_records"]
        key = self._key(file, name)
        if name in self._partitioned:
            value = file.get(f"partition.{key}")
            nulls = (1 if rows is None else rows) if value is None else 0
            return Bounds(
                minimum=value, maximum=value, nulls=nulls, rows=rows or 1, is_constant=True
            )
        nulls = file.get(f"null_count.{key}")
        type_ = self._types[name]
        if pa.types.is_decimal(type_) and type_.precision > _EXACT_DIGITS:
            return Bounds(nulls=nulls, rows=rows)
        if pa.types.is_float64(type_) and self._has_widened_types:
            return Bounds(nulls=nulls, rows=rows)  # 0.1 may be that of a FLOAT, which is larger
        low, high = file.get(f"min.{key}"), file.get(f"max.{key}")
        if isinstance(high, datetime):
            high = high + _STATISTICS_UNIT
        return Bounds(minimum=low, maximum=high, nulls=nulls, rows=rows)

    def _key(self, file: Mapping[str, Any], name: str) -> str:
        """What the log calls a column: its physical name, unless deltalake translates it."""
        physical = self._physical[name][0]
        kinds = ("partition", "min", "null_count")
        return physical if any(f"{kind}.{physical}" in file for kind in kinds) else name

    def _mapped(self, file: Mapping[str, Any]) -> MappedFile:
        path = _absolute(self._folder, file["path"])
        deleted = self._deleted.get(path, "")
        return MappedFile(
            path=path,
            bytes=file["size_bytes"],
            columns=tuple(self._column(file, column.name, column.type) for column in self.schema),
            rows=None if deleted else file["num_records"],
            deleted=deleted,
        )

    def _column(self, file: Mapping[str, Any], name: str, type_: str) -> MappedColumn:
        if name not in self._partitioned:
            return self._own_columns[name]
        # The log's value counts, even if a file has the column.
        value = file.get(f"partition.{self._key(file, name)}")
        sql = constant(value, self._types[name])
        if sql is None:
            raise UnsupportedError(f"{self._name} is partitioned by {name}, which is {type_}.")
        return MappedColumn(name=name, type=type_, constant=sql, named=())

    @cached_property
    def _own_columns(self) -> Mapping[str, MappedColumn]:
        """The columns that files have themselves; all share them, as there may be many files."""
        mapped = {}
        for column in self.schema:
            physical, number = self._physical[column.name]
            # Files that are read by id may have any names.
            named = (physical,) if number is None else None
            mapped[column.name] = MappedColumn(
                name=column.name,
                type=column.type,
                stored=(physical,),
                field_id=number,
                named=named,
            )
        return mapped

    def _column_statistics(self, name: str) -> ColumnStatistics:
        bounds = [self._bounds(file, name) for file in self._files]
        rows = sum(file["num_records"] for file in self._files)
        nulls = sum(bound.nulls or 0 for bound in bounds)
        filled = [
            bound for bound in bounds if bound.nulls is None or bound.nulls < (bound.rows or 0)
        ]
        lows = [bound.minimum for bound in filled]
        highs = [bound.maximum for bound in filled]
        type_ = self._types[name]
        is_bounded = bool(filled) and None not in lows and None not in highs
        return ColumnStatistics(
            null_fraction=nulls / rows if rows else 0.0,
            distinct=len(set(lows)) if is_bounded and name in self._partitioned else None,
            minimum=text_of(min(lows), type_) if is_bounded else None,
            maximum=text_of(max(highs), type_) if is_bounded else None,
            without_nulls=all(bound.nulls == 0 for bound in bounds),
        )


class DeltaVersion(Split):
    """A whole version, which deltalake reads."""

    def __init__(self, name: str, version: int, options: Mapping[str, str]) -> None:
        self.name = name
        self._version, self._options = version, dict(options)

    def __repr__(self) -> str:
        return f"DeltaVersion({self.name!r}, {self._version})"

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        """The rows of the version.

        Raises:
            DataError: it can't be read.
        """
        library("deltalake", _EXTRA)
        from deltalake import DeltaTable  # noqa: PLC0415 - an optional dependency

        try:
            table = DeltaTable(
                self.name, version=self._version, storage_options=self._options or None
            )
            columns = None if pushed.columns is None else list(pushed.columns)
            return pa.RecordBatchReader.from_stream(table.scan(columns=columns))
        except Exception as error:
            raise DataError(f"Can't read the Delta table {self.name}: {error}") from error


def _check_protocol(name: str, table: DeltaTable) -> None:
    protocol = table.protocol()
    unknown = sorted(set(protocol.reader_features or ()) - _FEATURES)
    if unknown or protocol.min_reader_version > _READER_VERSION_MAX:
        what = ", ".join(unknown) or f"reader version {protocol.min_reader_version}"
        raise UnsupportedError(
            f"The Delta table {name} needs {what} of Delta's protocol, which minishark does not "
            f"read; it reads {', '.join(sorted(_FEATURES))}."
        )


def _physical_columns(table: DeltaTable) -> dict[str, tuple[str, int | None]]:
    """By column: its name in files, and its field id where files are read by id."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    columns = {}
    for field in json.loads(table.schema().to_json())["fields"]:
        metadata = field.get("metadata") or {}
        physical = metadata.get("delta.columnMapping.physicalName", field["name"])
        number = metadata.get("delta.columnMapping.id")
        named = field["name"] if mode == "none" else physical
        columns[field["name"]] = (
            named,
            int(number) if mode == "id" and number is not None else None,
        )
    return columns


def _absolute(folder: str, path: str) -> str:
    """Where a file of the log is; its paths are URL-encoded, and relative but for clones' files."""
    plain = _plain(path)
    if urlsplit(plain).scheme or plain.startswith("/"):
        return plain
    return f"{folder.rstrip('/')}/{plain}"


def _plain(uri: str) -> str:
    """A URI without escapes; the path of a file of this host."""
    return unquote(uri).removeprefix("file://")


def _deleted_positions(mask: pa.ListScalar) -> str:
    """The positions that a mask of kept rows leaves out."""
    kept = mask.values.to_numpy(zero_copy_only=False)
    return ",".join(map(str, (~kept).nonzero()[0].tolist()))


def _deleted_count(positions: str) -> int:
    return positions.count(",") + 1 if positions else 0
