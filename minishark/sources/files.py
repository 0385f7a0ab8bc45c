"""Files of this host, or of a disk that all hosts share, as a source that DuckDB reads.

The columns are those that DuckDB finds in all files together. Parquet files are read in ranges of
rows. Keys of Hive-partitioned folders (`day=2024-01-01/`) are columns with the types that DuckDB
gives them; a predicate on one decides which files are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

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

ROW_NUMBER = "file_row_number"
_RANGE_ROWS = 122_880  # a row group of DuckDB's
_ROW_BYTES = 64  # of text files, whose rows nobody has counted
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

Connect: TypeAlias = Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]
"""Opens a DuckDB whose settings say how files are read."""

Options: TypeAlias = Mapping[str, str]
"""Options of a reader: DuckDB's names in lower case, and values as SQL."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file as it was when a snapshot was taken."""

    path: str  # absolute
    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: str) -> Stamp:
        """
        Raises:
            DataError: there is no such file.
        """
        try:
            state = Path(path).stat()
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror}.") from error
        return cls(str(Path(path).absolute()), state.st_size, state.st_mtime_ns)

    def check(self) -> None:
        """Raise DataError if the file is not as it was."""
        if Stamp.of(self.path) != self:
            raise DataError(f"{self.path} was changed while it was read; run the query again.")


@dataclass(frozen=True, slots=True)
class Part(FileSplit):
    """Some files, or a range of the rows of one."""

    stamps: tuple[Stamp, ...]
    reader: str  # DuckDB's table function
    options: tuple[tuple[str, str], ...]  # of the reader
    rows: int | None = None
    bytes: int = 0
    first: int | None = None  # of a range of rows, the number of the first one
    last: int | None = None  # and the one after the last; None for all rows
    filled: Schema = ()  # columns that are NULL where a file has none of the name

    def files(self) -> Sequence[str]:
        return [stamp.path for stamp in self.stamps]

    def check(self) -> None:
        for stamp in self.stamps:
            stamp.check()

    def relation(self, paths: Sequence[str]) -> Relation:
        options = dict(self.options)
        if self.first is not None:
            options[ROW_NUMBER] = "true"
        read = call(self.reader, paths, options)
        if self.first is not None:
            read = (
                f"(SELECT * EXCLUDE ({ROW_NUMBER}) FROM {read} "
                f"WHERE {ROW_NUMBER} >= {self.first} AND {ROW_NUMBER} < {self.last})"
            )
        if self.filled:
            nothing = ", ".join(f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in self.filled)
            read = f"(SELECT {nothing} WHERE false UNION ALL BY NAME FROM {read})"
        return Relation(read)


def call(reader: str, paths: Sequence[str], options: Options) -> str:
    """SQL that calls a reader of files."""
    listed = ", ".join(map(quote_text, paths))
    files = listed if len(paths) == 1 else f"[{listed}]"
    return f"{reader}({', '.join([files, *(f'{name} = {v}' for name, v in options.items())])})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSnapshot(Snapshot):
    """Files as they were found."""

    version: str
    schema: Schema
    statistics: TableStatistics | None
    stamps: tuple[Stamp, ...]
    reader: str
    options: tuple[tuple[str, str], ...]
    counts: tuple[int, ...] = ()  # the rows of each file; none if unknown
    # By the name of a column that folders are named by, its value in each file.
    keys: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    filled: Schema = ()

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        chosen = [i for i in range(len(self.stamps)) if self._may_have(i, pushed.predicates)]
        if not self.counts:
            return [self._whole(chosen)] if chosen else []
        parts = -(-tasks // max(1, len(chosen)))
        found = [part for i in chosen for part in self._ranges(i, parts)]
        if pushed.limit is None or any(p.column not in self.keys for p in pushed.predicates):
            return found
        return [*_enough(found, pushed.limit)]

    def _may_have(self, index: int, predicates: Iterable[Predicate]) -> bool:
        """Whether rows of a file may be needed, by the values of its folders."""
        return all(
            is_true(each, self.keys[each.column][index])
            for each in predicates
            if each.column in self.keys
        )

    def _whole(self, chosen: Sequence[int]) -> Part:
        stamps = tuple(self.stamps[i] for i in chosen)
        size = sum(stamp.bytes for stamp in stamps)
        return Part(stamps, self.reader, self.options, size // _ROW_BYTES, size)

    def _ranges(self, index: int, parts: int) -> Iterator[Part]:
        """A file in at most `parts` ranges of consecutive rows."""
        stamp, rows = self.stamps[index], self.counts[index]
        cuts = min(parts, -(-rows // _RANGE_ROWS))
        if any(column.name.lower() == ROW_NUMBER for column in self.schema):
            cuts = 1
        part = Part(
            (stamp,), self.reader, self.options, rows, stamp.bytes, filled=self.filled
        )
        if cuts <= 1:
            yield part
            return
        ends = [rows * (i + 1) // cuts for i in range(cuts)]
        for first, last in zip([0, *ends[:-1]], ends, strict=True):
            size = stamp.bytes * (last - first) // rows
            yield replace(part, rows=last - first, bytes=size, first=first, last=last)


def _enough(parts: Iterable[Part], limit: int) -> Iterator[Part]:
    """The first parts, which have as many rows as are needed."""
    for part in parts:
        if limit <= 0:
            return
        yield part
        limit -= part.rows or 0


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


@contextlib.contextmanager
def _own_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


@dataclass(slots=True, kw_only=True)
class FileSource(Source):
    """Files that DuckDB reads; safe to use from several threads.

    Attributes:
        name: what messages and plans call them.
        reader: the table function that reads them, such as "read_parquet".
        find: gives their paths, in the order of their rows; raises DataError if there are none.
        options: the reader's options.
        connect: opens the DuckDB that finds out their columns.
    """

    name: str
    reader: str
    find: Callable[[], Sequence[str]]
    options: Options = field(default_factory=dict)
    connect: Connect = _own_connection
    _last: FileSnapshot | None = None
    _stamps: tuple[Stamp, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self) -> FileSnapshot:
        stamps = tuple(map(Stamp.of, self.find()))
        with self._lock:
            if self._last is None or stamps != self._stamps:
                try:
                    with self.connect() as connection:
                        self._last = self._snapshot(connection, stamps)
                except duckdb.Error as error:
                    raise DataError(f"Can't read {self.name}: {error}") from error
                self._stamps = stamps
            return self._last

    def _snapshot(
        self, connection: duckdb.DuckDBPyConnection, stamps: tuple[Stamp, ...]
    ) -> FileSnapshot:
        paths = [stamp.path for stamp in stamps]
        options = dict(self.options)
        values = _folders(paths) if options.get("hive_partitioning", "true") != "false" else {}
        options["hive_partitioning"] = str(bool(values)).lower()
        relation = connection.sql(f"FROM {call(self.reader, paths, options)}")
        schema = tuple(
            Column(name, str(type_))
            for name, type_ in zip(relation.columns, relation.types, strict=True)
        )
        keys = _keys(connection, schema, values)
        if values:  # a part must not find other types than all files together
            types = [f"{quote(c.name)}: {c.type}" for c in schema if c.name in keys]
            options["hive_types"] = f"{{{', '.join(types)}}}"
        counts = _counts(connection, paths) if self.reader == "read_parquet" else ()
        size = sum(stamp.bytes for stamp in stamps)
        rows = sum(counts) if counts else size // _ROW_BYTES
        is_union = options.pop("union_by_name", "false") == "true"
        if is_union and not counts:
            options["union_by_name"] = "true"
        return FileSnapshot(
            version=hashlib.sha256(repr(stamps).encode()).hexdigest(),
            schema=schema,
            statistics=TableStatistics(rows, size, (ColumnStatistics(),) * len(schema)),
            stamps=stamps,
            reader=self.reader,
            options=tuple(options.items()),
            counts=counts,
            keys=keys,
            filled=tuple(c for c in schema if c.name not in keys) if is_union else (),
        )


def _counts(connection: duckdb.DuckDBPyConnection, paths: Sequence[str]) -> tuple[int, ...]:
    """The number of rows of each Parquet file."""
    listed = ", ".join(map(quote_text, paths))
    found = dict(
        connection.execute(
            f"SELECT file_name, num_rows FROM parquet_file_metadata([{listed}])"
        ).fetchall()
    )
    return tuple(int(found[path]) for path in paths)


def _folders(paths: Sequence[str]) -> dict[str, list[str]]:
    """The keys that all files' folders are named by, with the text of each file's value."""
    named = [
        dict(part.split("=") for part in Path(path).parts[:-1] if part.count("=") == 1)
        for path in paths
    ]
    if not named or any(list(each) != list(named[0]) for each in named):
        return {}
    return {key: [each[key] for each in named] for key in named[0]}


def _keys(
    connection: duckdb.DuckDBPyConnection, schema: Schema, values: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Any, ...]]:
    """The values of folders in the types of their columns, by column."""
    columns = {column.name.lower(): column for column in schema}
    found = {}
    for key, texts in values.items():
        column = columns[key.lower()]
        known = {
            text: None if text == _NULL_PARTITION else unquote(text) for text in dict.fromkeys(texts)
        }
        rows = connection.execute(
            f"SELECT CAST(unnest($1::VARCHAR[]) AS {column.type})", [list(known.values())]
        ).fetchall()
        typed = dict(zip(known, (value for (value,) in rows), strict=True))
        found[column.name] = tuple(typed[text] for text in texts)
    return found
