"""Files as a source that DuckDB reads: Parquet, CSV, JSON.

Parquet files are read in ranges of rows. Keys that folders are named by are columns, and a
predicate on one decides which files are read.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import duckdb

from minishark.catalog import ColumnStatistics, TableStatistics
from minishark.errors import DataError
from minishark.expressions import Column, Schema, quote, quote_text
from minishark.sources.contract import (
    Comparison,
    FileSplit,
    Predicate,
    Pushed,
    Relation,
    Snapshot,
    Source,
    Split,
)
from minishark.sources.filesystems import StoredFile, list_files
from minishark.sources.hive import FolderKeys, folder_keys
from minishark.sources.parquet_parts import FilePart

ROW_NUMBER = "file_row_number"
_RANGE_ROWS = 122_880  # a row group of DuckDB's
_ROW_BYTES = 64  # of text files, whose rows nobody has counted
_COUNTED_MAX = 256  # files whose rows are counted before any is chosen; of more, some are

Options: TypeAlias = Mapping[str, str]
"""Options of a reader: DuckDB's names in lower case, and values as SQL."""


class Reach(Protocol):
    """How the front end gets at files."""

    def connect(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A DuckDB whose settings say how files are read."""

    def list(self, pattern: str) -> Sequence[StoredFile]:
        """The files that match a glob, or are below a folder, in the order of their rows.

        Raises:
            DataError: there are none.
        """

    def held(
        self, files: Sequence[StoredFile], parts: Sequence[FilePart]
    ) -> AbstractContextManager[Sequence[str]]:
        """Local paths of files, with the parts of each that are needed, while a block runs."""


class OwnReach:
    """Files of this machine, read by a DuckDB of its own."""

    def connect(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return duckdb.connect(config={"threads": 1})

    def list(self, pattern: str) -> Sequence[StoredFile]:
        return list_files(pattern)

    @contextlib.contextmanager
    def held(
        self, files: Sequence[StoredFile], parts: Sequence[FilePart]
    ) -> Iterator[Sequence[str]]:
        for file in files:
            if file.is_remote:
                raise DataError(f"{file.path} is not on this machine.")
        yield [file.path for file in files]


def call(reader: str, paths: Sequence[str], options: Options) -> str:
    """SQL that calls a reader of files."""
    listed = ", ".join(map(quote_text, paths))
    files = listed if len(paths) == 1 else f"[{listed}]"
    return f"{reader}({', '.join([files, *(f'{name} = {v}' for name, v in options.items())])})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetPart(FileSplit):
    """A Parquet file, or a range of its rows."""

    file: StoredFile
    options: tuple[tuple[str, str], ...]  # of the reader
    own: Schema  # the file's own columns, those of its folders left out
    is_filled: bool  # whether columns are NULL that the file does not have
    keys: FolderKeys  # the columns of its folders
    rows: int | None
    bytes: int
    range: tuple[int, int] | None = None  # the first row, and the one after the last

    def files(self) -> Sequence[StoredFile]:
        return (self.file,)

    def parts(self, pushed: Pushed) -> Sequence[FilePart]:
        return (FilePart(columns=pushed.columns, rows=self.range),)

    def relation(self, paths: Sequence[str]) -> Relation:
        options = {**dict(self.options), "hive_partitioning": "false"}
        if self.range is not None:
            options[ROW_NUMBER] = "true"
        read = call("read_parquet", paths, options)
        if self.range is not None:
            first, last = self.range
            read = (
                f"(SELECT * EXCLUDE ({ROW_NUMBER}) FROM {read} "
                f"WHERE {ROW_NUMBER} >= {first} AND {ROW_NUMBER} < {last})"
            )
        if self.is_filled:
            read = filled(self.own, read)
        return Relation(self.keys.select([column.name for column in self.own], read))


def filled(columns: Schema, relation: str) -> str:
    """A relation with all of these columns, NULL where it does not have them itself."""
    nothing = ", ".join(f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in columns)
    return f"(SELECT {nothing} WHERE false UNION ALL BY NAME FROM {relation})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFiles(FileSplit):
    """Files that DuckDB reads at once, as only all of them together say what is in them."""

    stored: tuple[StoredFile, ...]
    reader: str
    options: tuple[tuple[str, str], ...]
    rows: int | None
    bytes: int

    def files(self) -> Sequence[StoredFile]:
        return self.stored

    def relation(self, paths: Sequence[str]) -> Relation:
        return Relation(call(self.reader, paths, dict(self.options)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSnapshot(Snapshot):
    """Files as they were found."""

    version: str
    schema: Schema
    statistics: TableStatistics | None
    files: tuple[StoredFile, ...]
    keys: FolderKeys  # the columns of folders
    # The splits of the files at these positions, at least about so many.
    divide: Callable[[Sequence[int], int], Sequence[Split]]

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        chosen = [i for i in range(len(self.files)) if self._may_have(i, pushed.predicates)]
        # A limit needs few rows: of the first files, and not at once.
        by_folder = all(each.column in self.keys.values for each in pushed.predicates)
        limit = pushed.limit if by_folder else None
        found = self.divide(chosen, tasks if limit is None else 1) if chosen else []
        return found if limit is None else [*_enough(found, limit)]

    def _may_have(self, index: int, predicates: Iterable[Predicate]) -> bool:
        """Whether rows of a file may be needed, by the values of its folders."""
        return all(
            is_true(each, self.keys.values[each.column][index])
            for each in predicates
            if each.column in self.keys.values
        )


def _enough(splits: Iterable[Split], limit: int) -> Iterator[Split]:
    """The first splits, which have as many rows as are needed."""
    for split in splits:
        if limit <= 0:
            return
        yield split
        limit -= split.rows or 0


_COMPARISONS: dict[Comparison, Callable[[Any, Any], bool]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.LESS: operator.lt,
    Comparison.LESS_OR_EQUAL: operator.le,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_OR_EQUAL: operator.ge,
}


def is_true(predicate: Predicate, value: Any) -> bool:
    """Whether a predicate is true for a value of its column; NULL is None."""
    match predicate.comparison:
        case Comparison.IS_NULL:
            return value is None
        case Comparison.IS_NOT_NULL:
            return value is not None
        case _ if value is None:
            return False
        case Comparison.IN:
            return value in predicate.values
        case comparison:
            return _COMPARISONS[comparison](value, predicate.values[0])


@dataclass(slots=True, kw_only=True)
class FileSource(Source):
    """Files that DuckDB reads; safe to use from several threads.

    Attributes:
        name: what messages and plans call them.
        reader: the table function that reads them, such as "read_parquet".
        find: gives them in the order of their rows; raises DataError if there are none.
        options: the reader's options.
        reach: how they are got at.
    """

    name: str
    reader: str
    find: Callable[[], Sequence[StoredFile]]
    options: Options = field(default_factory=dict)
    reach: Reach = field(default_factory=OwnReach)
    _last: FileSnapshot | None = None
    _counts: dict[StoredFile, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self) -> FileSnapshot:
        files = tuple(self.find())
        with self._lock:
            last = self._last
            if last is None or files != last.files:
                with self._reading() as connection:
                    last = self._last = self._snapshot(connection, files)
            return last

    @contextlib.contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        try:
            with self.reach.connect() as connection:
                yield connection
        except duckdb.Error as error:
            raise DataError(f"Can't read {self.name}: {error}") from error

    def _snapshot(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...]
    ) -> FileSnapshot:
        options = dict(self.options)
        keys = FolderKeys()
        if options.pop("hive_partitioning", "true") == "true":
            detects = options.pop("hive_types_autocast", "true") == "true"
            keys = folder_keys(connection, [file.path for file in files], detects=detects)
        is_parquet = self.reader == "read_parquet"
        own = self._columns(connection, files, options)
        size = sum(file.bytes for file in files)
        rows = self._rows(connection, files) if is_parquet else size // _ROW_BYTES
        schema = keys.schema(own)

        def divide(chosen: Sequence[int], tasks: int) -> Sequence[Split]:
            if not is_parquet:
                return self._whole([files[i] for i in chosen], options)
            return self._ranges(files, chosen, own, keys, tasks)

        return FileSnapshot(
            version=hashlib.sha256(repr(files).encode()).hexdigest(),
            schema=schema,
            statistics=TableStatistics(rows, size, (ColumnStatistics(),) * len(schema)),
            files=files,
            keys=keys,
            divide=divide,
        )

    def _columns(
        self,
        connection: duckdb.DuckDBPyConnection,
        files: Sequence[StoredFile],
        options: Options,
    ) -> Schema:
        """The columns that files have themselves."""
        is_parquet = self.reader == "read_parquet"
        # The first Parquet file says what all have, unless they are united.
        some = files[:1] if is_parquet and options.get("union_by_name") != "true" else files
        parts = [FilePart(columns=())] * len(some) if is_parquet else []
        with self.reach.held(some, parts) as paths:
            read = call(self.reader, paths, {**options, "hive_partitioning": "false"})
            relation = connection.sql(f"FROM {read}")
            return tuple(
                Column(name, str(type_))
                for name, type_ in zip(relation.columns, relation.types, strict=True)
            )

    def _rows(self, connection: duckdb.DuckDBPyConnection, files: Sequence[StoredFile]) -> int:
        """The number of rows of all Parquet files; of many, or remote ones, estimated by some."""
        is_remote = any(file.is_remote for file in files)
        some = files[:1] if is_remote else files[:_COUNTED_MAX]
        counted = sum(self._counted(connection, some))
        return counted * sum(file.bytes for file in files) // max(1, sum(f.bytes for f in some))

    def _counted(
        self, connection: duckdb.DuckDBPyConnection, files: Sequence[StoredFile]
    ) -> list[int]:
        """The number of rows of each Parquet file."""
        new = [file for file in files if file not in self._counts]
        if new:
            with self.reach.held(new, [FilePart(columns=())] * len(new)) as paths:
                listed = ", ".join(map(quote_text, paths))
                sql = f"SELECT file_name, num_rows FROM parquet_file_metadata([{listed}])"
                found = dict(connection.execute(sql).fetchall())
            if len(self._counts) > 4 * len(files) + _COUNTED_MAX:
                self._counts = {}  # of files that are gone
                return self._counted(connection, files)
            self._counts |= {f: int(found[path]) for f, path in zip(new, paths, strict=True)}
        return [self._counts[file] for file in files]

    def _whole(self, files: Sequence[StoredFile], options: Options) -> Sequence[Split]:
        size = sum(file.bytes for file in files)
        return [
            WholeFiles(
                stored=tuple(files),
                reader=self.reader,
                options=tuple(options.items()),
                rows=None,
                bytes=size,
            )
        ]

    def _ranges(
        self,
        files: Sequence[StoredFile],
        chosen: Sequence[int],
        own: Schema,
        keys: FolderKeys,
        tasks: int,
    ) -> Sequence[Split]:
        """Each file in ranges of consecutive rows, so that there are enough of them."""
        options = dict(self.options)
        is_filled = options.pop("union_by_name", "false") == "true"
        for name in ("hive_partitioning", "hive_types_autocast"):
            options.pop(name, None)
        with self._reading() as connection:
            counts = self._counted(connection, [files[i] for i in chosen])
        most = -(-tasks // len(chosen))
        if any(column.name.lower() == ROW_NUMBER for column in own):
            most = 1
        named = {column.name.lower() for column in keys.columns}
        found: list[Split] = []
        for index, rows in zip(chosen, counts, strict=True):
            part = ParquetPart(
                file=files[index],
                options=tuple(options.items()),
                own=tuple(column for column in own if column.name.lower() not in named),
                is_filled=is_filled,
                keys=keys.of(index),
                rows=rows,
                bytes=files[index].bytes,
            )
            found += _cut(part, rows, min(most, -(-rows // _RANGE_ROWS)))
        return found


def _cut(part: ParquetPart, rows: int, cuts: int) -> Iterator[ParquetPart]:
    if cuts <= 1:
        yield part
        return
    ends = [rows * (i + 1) // cuts for i in range(cuts)]
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        size = part.bytes * (last - first) // rows
        yield replace(part, rows=last - first, bytes=size, range=(first, last))


ENDINGS = {
    ".parquet": "read_parquet",
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".csv.gz": "read_csv",
    ".json": "read_json",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
}
"""The readers of files, by how their names end."""


def reader_of(path: str) -> str:
    """The reader of a file, by its name; empty if that does not tell it."""
    name = path.lower()
    found = [ending for ending in ENDINGS if name.endswith(ending)]
    return ENDINGS[max(found, key=len)] if found else ""


def named_files(pattern: str | Path, reach: Reach) -> FileSource:
    """The files at a path or a glob, or all in a folder that are read; columns are united by name.

    Raises:
        DataError: there are none, or their names do not tell how to read them.
    """

    def find() -> Sequence[StoredFile]:
        files = reach.list(str(pattern))
        known = [file for file in files if reader_of(file.path)]
        is_folder = any(file.path != str(pattern) for file in files)
        if not known and is_folder and not glob.has_magic(str(pattern)):
            endings = ", ".join(ENDINGS)
            raise DataError(f"There are no files in {pattern} that end in {endings}.")
        for file in known or files:
            if not file.is_remote and not Path(file.path).is_file():
                # A pipe or device could give rows for ever, or none.
                raise DataError(f"{file.path} is no regular file; copy what it gives to one first.")
        return known or files

    files = find()
    readers = {reader_of(file.path) for file in files}
    if len(readers) != 1 or "" in readers:
        raise DataError(
            f"Can't tell how to read {files[0].path}; files may end in "
            f"{', '.join(sorted(ENDINGS))}, all alike."
        )
    return FileSource(
        name=str(pattern),
        reader=readers.pop(),
        find=find,
        options={"union_by_name": "true"},
        reach=reach,
    )
