"""What the footers of Parquet files tell. Each is read once for each version of a file."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import pyarrow as pa

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

_KNOWN_MAX = 4_096
_FIELD_ID = b"PARQUET:field_id"

_Version: TypeAlias = tuple[int, int, int]


class Columns:
    """The columns of Parquet files; one object for all files in which they are stored alike.

    Attributes:
        schema: their Arrow types.
        names: their names.
        places: their positions, by field id, of those that have one.
        are_distinct: whether no two names differ in case only.
        bounds_count_nan: whether NaN is larger than all other numbers in the files' bounds, as it
            is for DuckDB; most writers leave it out.
    """

    def __init__(self, schema: pa.Schema, *, bounds_count_nan: bool) -> None:
        self.schema = schema
        self.names: list[str] = schema.names
        ids = [_field_id(field) for field in schema]
        self.places = {ids[i]: i for i in reversed(range(len(ids))) if ids[i] is not None}
        self.bounds_count_nan = bounds_count_nan
        self.are_distinct = len({name.lower() for name in self.names}) == len(self.names)

    @property
    def have_ids(self) -> bool:
        """Whether columns have field ids."""
        return bool(self.places)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a Parquet file."""

    middle: int  # the byte in the middle of it
    rows: int


def columns_of_file(path: str) -> Columns:
    """The columns of a local file.

    Raises:
        OSError: it can't be read.
        pyarrow.ArrowException: it is no Parquet file.
    """
    return _columns(path, _version(path))


def row_groups_of_file(path: str) -> tuple[RowGroup, ...]:
    """The row groups of a local file, in order; errors are those of `columns_of_file`."""
    return _row_groups(path, _version(path))


def _version(path: str) -> _Version:
    status = Path(path).stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: str) -> tuple[pa.Schema, FileMetaData]:
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - only where files are read

    with ParquetFile(path) as file:
        return file.schema_arrow, file.metadata


def _field_id(field: pa.Field) -> int | None:
    number = (field.metadata or {}).get(_FIELD_ID)
    return None if number is None else int(number)


class _Shared:
    """The `Columns` in use, by all that they consist of."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[str, str, bool], Columns] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, schema: pa.Schema, metadata: FileMetaData) -> Columns:
        # The first line of the text is the object's address.
        _, _, stored = str(metadata.schema).partition("\n")
        counts_nan = str(metadata.created_by).startswith("DuckDB")
        columns = Columns(schema, bounds_count_nan=counts_nan)
        with self._lock:
            return self._known.setdefault((stored, str(schema), counts_nan), columns)


_shared = _Shared()


@lru_cache(_KNOWN_MAX)
def _columns(path: str, _: _Version) -> Columns:
    return _shared.of(*_read(path))


@lru_cache(_KNOWN_MAX)
def _row_groups(path: str, _: _Version) -> tuple[RowGroup, ...]:
    metadata = _read(path)[1]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return tuple(RowGroup(_middle(group), group.num_rows) for group in groups)


def _middle(group: Any) -> int:
    columns = [group.column(number) for number in range(group.num_columns)]
    if not columns:
        return 0
    starts = [
        column.data_page_offset
        if not column.has_dictionary_page or not column.dictionary_page_offset
        else min(column.dictionary_page_offset, column.data_page_offset)
        for column in columns
    ]
    return int(min(starts) + sum(column.total_compressed_size for column in columns) // 2)
