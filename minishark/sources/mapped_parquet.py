"""Parquet files of a table format: their columns mapped to the table's, deleted rows left out.

A file of an Iceberg or Delta table keeps the columns that the table had when it was written. The
executor looks into the file's footer and writes the SQL that makes the table's columns of it: by
field id where the format has ids, else by name; renamed, cast to the type of today, or constant
where the file has no such column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

import pyarrow as pa

from minishark.errors import DataError
from minishark.model.expressions import Schema, quote, quote_text
from minishark.model.predicates import Pushed
from minishark.sources.contract import FileSplit, Relation
from minishark.sources.filesystems import (
    FROM_ENVIRONMENT,
    StoreAccess,
    StoredFile,
    is_remote,
    stat_file,
)
from minishark.sources.footers import Columns, columns_of_file, row_groups_of_file
from minishark.sources.groups import steady_groups
from minishark.sources.parquet_parts import WHOLE, FilePart

_ROW_NUMBER = "file_row_number"  # DuckDB's option of read_parquet, and the column that it adds
_BYTES_MIN = 8 << 20  # parts of files below that are not worth a task
_PARTS_PER_TASK = 4  # more parts are grouped, so that the plan stays short
_SPLITS_MIN = 256  # so many are not yet too many
_TIME_ZONE = " WITH TIME ZONE"
_SNAPSHOT = "_ducklake_internal_snapshot_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedColumn:
    """A column of the table, and where it is in a file."""

    name: str
    type: str  # DuckDB's
    stored: tuple[str, ...] = ()  # its names in files without field ids
    field_id: int | None = None  # its id in files with field ids
    constant: str = "NULL"  # SQL of its value in files that lack it
    named: tuple[str, ...] | None = None  # all names that it may have in a file; None if unknown
    rebuilt: str = ""  # SQL of its value over that in the file, {}, if its fields were changed
    # If it is no column of files, but a row's number in its file: what the first row has.
    first_row: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A Parquet file, or the row groups of it whose middle is in a range of bytes."""

    path: str  # local, or a URI
    bytes: int  # the size of the whole file
    columns: tuple[MappedColumn, ...]
    rows: int | None = None  # of the whole file, without the deleted ones if those are known
    first: int = 0  # the range's first byte
    last: int | None = None  # the first byte behind the range; None for the end of the file
    # Parquet files of positions, as Iceberg writes them, and their sizes in bytes.
    delete_files: tuple[tuple[str, int], ...] = ()
    named_in_deletes: str = ""  # what `delete_files` call this file
    deleted: str = ""  # deleted positions as text, with commas
    # DuckLake numbers the rows of some files by snapshots: later ones are not the version's.
    rows_until: int | None = None
    deletes_until: int | None = None

    @property
    def place(self) -> str:
        """What its table calls the file."""
        return self.named_in_deletes or self.path

    @property
    def has_deletes(self) -> bool:
        return bool(self.delete_files or self.deleted) or self.rows_until is not None

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.last is None

    def ends_before(self, other: MappedFile) -> bool:
        """Whether another part of the same file follows this one."""
        if self.last is None or self.has_deletes:
            return False
        return other == replace(self, first=self.last, last=other.last)

    @property
    def range_bytes(self) -> int:
        return (self.bytes if self.last is None else self.last) - self.first


class MappedParquet(FileSplit):
    """Some files of one version of a table.

    Args:
        name: the table, for messages.
        parts: the files; those with deletes are whole.
        access: settings of object stores that the table brings.
    """

    def __init__(
        self, name: str, parts: Sequence[MappedFile], access: StoreAccess = FROM_ENVIRONMENT
    ) -> None:
        self.name = name
        self.access = access
        self.file_parts = tuple(parts)
        whole = [part.rows for part in self.file_parts if part.is_whole and not part.has_deletes]
        counts = [rows for rows in whole if rows is not None]
        self.rows = sum(counts) if len(counts) == len(self.file_parts) else None
        self.bytes = sum(part.range_bytes for part in self.file_parts)

    @property
    def is_local(self) -> bool:
        """Whether no host has to fetch a file."""
        return not any(is_remote(part.path) for part in self.file_parts)

    def __repr__(self) -> str:
        return f"MappedParquet({self.name!r}, {len(self.file_parts)} files, {self.bytes} bytes)"

    def files(self) -> Sequence[StoredFile]:
        """The data files, each followed by its delete files."""
        return [
            _stored(path, size)
            for part in self.file_parts
            for path, size in ((part.path, part.bytes), *part.delete_files)
        ]

    def made_of(self) -> tuple[Sequence[StoredFile], object]:
        return self.files(), self.file_parts

    def parts(self, pushed: Pushed) -> Sequence[FilePart]:
        """The columns of the data files; all of the delete files."""
        return [
            needed
            for part in self.file_parts
            for needed in (_needed(part, pushed), *(WHOLE for _ in part.delete_files))
        ]

    def relation(self, paths: Sequence[str]) -> Relation:
        """The rows of all parts.

        Raises:
            DataError: a footer can't be read; the message names the file.
        """
        waiting = iter(paths)
        reads: list[_Read] = []
        for part in self.file_parts:
            read = _read(part, next(waiting), [next(waiting) for _ in part.delete_files])
            both = reads[-1].with_next(read) if reads else None
            if both is None:
                reads.append(read)
            else:
                reads[-1] = both
        return Relation("(" + " UNION ALL ".join(read.sql for read in reads) + ")")

    @classmethod
    def joined(cls, splits: Sequence[Self]) -> Sequence[MappedParquet]:
        """Splits of the same table as one; what is left of a file that was cut is read at once."""
        merged: list[MappedParquet] = []
        for (name, access), some in groupby(splits, lambda split: (split.name, split.access)):
            parts: list[MappedFile] = []
            for part in (part for split in some for part in split.file_parts):
                if parts and parts[-1].ends_before(part):
                    parts[-1] = replace(parts[-1], last=part.last)
                else:
                    parts.append(part)
            merged.append(MappedParquet(name, parts, access))
        return merged


def divided(
    name: str, files: Sequence[MappedFile], tasks: int, access: StoreAccess = FROM_ENVIRONMENT
) -> list[MappedParquet]:
    """Files in about so many splits as keep `tasks` tasks busy, in the order of the files.

    Large files are cut into ranges of bytes; each row group belongs to the range that its middle is
    in, so to one exactly. Files with deletes stay whole, as positions count from a file's begin.
    Small files share a split where there are many.
    """
    total = sum(file.bytes for file in files)
    size = max(_BYTES_MIN, -(-total // max(tasks, 1)))
    parts = [part for file in files for part in _cut(file, size)]
    if len(parts) <= max(_SPLITS_MIN, tasks * _PARTS_PER_TASK):
        return [MappedParquet(name, (part,), access) for part in parts]
    # Those of one version are mostly those of the next one, too.
    splits = steady_groups(parts, max(_SPLITS_MIN, tasks * _PARTS_PER_TASK) // 2, _key)
    return [MappedParquet(name, split, access) for split in splits]


def _key(part: MappedFile) -> str:
    return f"{part.path} {part.first}"


def enough_for(limit: int | None, files: Sequence[MappedFile]) -> Sequence[MappedFile]:
    """The first files that have `limit` rows; all where that is not sure."""
    if limit is None:
        return files
    rows = 0
    for number, file in enumerate(files):
        if rows >= limit:
            return files[: max(number, 1)]
        rows += 0 if file.rows is None or file.has_deletes else file.rows
    return files


def has_reserved_name(schema: Schema) -> bool:
    """Whether a column hides DuckDB's number of a row in its file."""
    return any(column.name.lower() == _ROW_NUMBER for column in schema)


def _stored(path: str, size: int) -> StoredFile:
    """Table formats never write a file twice, so its version needs not be asked for."""
    return StoredFile(path, size, "") if is_remote(path) else stat_file(path)


def _needed(part: MappedFile, pushed: Pushed) -> FilePart:
    if pushed.columns is None:
        return WHOLE
    names = {*pushed.columns, *(predicate.column for predicate in pushed.predicates)}
    columns = [
        column for column in part.columns if column.name in names and column.first_row is None
    ]
    if any(column.named is None for column in columns) or part.rows_until is not None:
        return WHOLE
    return FilePart(columns=tuple(name for column in columns for name in column.named or ()))


def _cut(file: MappedFile, size: int) -> list[MappedFile]:
    pieces = 1 if file.has_deletes or _is_unnumbered(file) else -(-file.bytes // size)
    ends = [file.bytes * (number + 1) // pieces for number in range(pieces - 1)]
    firsts, lasts = [0, *ends], [*ends, None]
    return [replace(file, first=a, last=b) for a, b in zip(firsts, lasts, strict=True)]


def _is_unnumbered(file: MappedFile) -> bool:
    return any(column.name.lower() == _ROW_NUMBER for column in file.columns)


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows of files that DuckDB reads at once."""

    paths: tuple[str, ...]
    stored: Columns  # those of all files
    columns: str  # SQL of the table's
    conditions: tuple[str, ...] = ()
    is_numbered: bool = False  # whether the numbers of rows are read

    @property
    def sql(self) -> str:
        # Names by position: those in the file may differ in case only.
        names = [f"c{number}" for number in range(len(self.stored.names))]
        options = "hive_partitioning = false"
        if self.is_numbered:
            options += f", {_ROW_NUMBER} = true"
            names.append("n")
        files = f"[{', '.join(map(quote_text, self.paths))}]"
        read = f"read_parquet({files}, {options}) AS f({', '.join(names)})"
        where = f" WHERE {' AND '.join(self.conditions)}" if self.conditions else ""
        return f"SELECT {self.columns} FROM {read}{where}"

    def with_next(self, other: _Read) -> _Read | None:
        """Both together, if that is one scan: DuckDB takes all files for stored like the first."""
        if self.stored is not other.stored or self.columns != other.columns:
            return None
        if self.conditions or other.conditions or not self.stored.are_distinct:
            return None
        return replace(self, paths=self.paths + other.paths)


def _read(part: MappedFile, path: str, deletes: Sequence[str]) -> _Read:
    try:
        stored = columns_of_file(path)
        conditions = _conditions(part, path, deletes, stored)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"Can't read the Parquet file {part.path}: {error}") from error
    needs_ids = any(column.field_id is not None for column in part.columns)
    if needs_ids and not any(column.stored for column in part.columns) and not stored.have_ids:
        raise DataError(
            f"The Parquet file {part.path} has no field ids, and its table no mapping of names; "
            "write the file again with the table's own writer."
        )
    return _Read(
        paths=(path,),
        stored=stored,
        columns=", ".join(_column(column, stored) for column in part.columns),
        conditions=conditions,
        is_numbered=bool(conditions)
        or any(column.first_row is not None for column in part.columns),
    )


def _column(column: MappedColumn, stored: Columns) -> str:
    """SQL of one column of the table."""
    name = quote(column.name)
    if column.first_row is not None:
        return f"n + {column.first_row} AS {name}"
    number = _position(column, stored)
    if number is None:
        return f"CAST({column.constant} AS {column.type}) AS {name}"
    source = f"c{number}"
    type_ = stored.schema.field(number).type
    if pa.types.is_floating(type_) and not stored.bounds_count_nan:
        # DuckDB would skip rows, or take all of a row group, by what filters make of bounds: it
        # does not see through this.
        source = f"CASE WHEN {source} IS NULL THEN NULL ELSE {source} END"
    if pa.types.is_timestamp(type_):
        # Without a zone, files mean UTC where tables mean an instant (INT96, for one).
        zoned = type_.tz is not None
        if zoned != column.type.endswith(_TIME_ZONE):
            plain = source if zoned else f"CAST({source} AS TIMESTAMP)"
            source = f"({plain} AT TIME ZONE 'UTC')"
    if column.rebuilt:
        source = column.rebuilt.replace("{}", source)
    return f"CAST({source} AS {column.type}) AS {name}"


def _position(column: MappedColumn, stored: Columns) -> int | None:
    if column.field_id is not None and stored.have_ids:
        return stored.places.get(column.field_id)
    names = [name for name in column.stored if name in stored.names]
    return stored.names.index(names[0]) if names else None


def _conditions(
    part: MappedFile, path: str, deletes: Sequence[str], stored: Columns
) -> tuple[str, ...]:
    conditions = [] if part.is_whole else [_ranges(part, path)]
    if part.deleted:
        numbers = f"unnest(string_split({quote_text(part.deleted)}, ','))"
        conditions.append(f"n NOT IN (SELECT CAST({numbers} AS BIGINT))")
    if part.rows_until is not None:
        conditions.append(f"c{stored.names.index(_SNAPSHOT)} <= {part.rows_until}")
    if deletes:
        files = ", ".join(map(quote_text, deletes))
        own = ["true"]
        if part.named_in_deletes:
            own.append(f"file_path = {quote_text(part.named_in_deletes)}")
        if part.deletes_until is not None:
            own.append(f"{_SNAPSHOT} <= {part.deletes_until}")
        conditions.append(
            f"n NOT IN (SELECT pos FROM read_parquet([{files}], hive_partitioning = false) "
            f"WHERE {' AND '.join(own)})"
        )
    return tuple(conditions)


def _ranges(part: MappedFile, path: str) -> str:
    """Which rows are in row groups whose middle is in the part's bytes."""
    ranges: list[tuple[int, int]] = []
    row = 0
    for group in row_groups_of_file(path):
        if part.first <= group.middle and (part.last is None or group.middle < part.last):
            if ranges and ranges[-1][1] == row:
                ranges[-1] = (ranges[-1][0], row + group.rows)
            else:
                ranges.append((row, row + group.rows))
        row += group.rows
    listed = " OR ".join(f"(n >= {first} AND n < {last})" for first, last in ranges)
    return f"({listed or 'false'})"
