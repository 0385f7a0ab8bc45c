"""Files as a source: Parquet, CSV, JSON and Arrow, on disks or in object stores.

Keys that folders are named by are columns, and a predicate on one decides which files are read.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from minishark.errors import DataError
from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import Schema
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources.arrow_files import ArrowFormat
from minishark.sources.contract import Snapshot, Source, Split
from minishark.sources.filesystems import FileReplacedError, StoredFile, check_readable
from minishark.sources.formats import FileFormat, Needed, Options, OwnReach, Reach
from minishark.sources.hive import FolderKeys, folder_keys
from minishark.sources.parquet import ParquetFormat
from minishark.sources.text import CsvFormat, JsonFormat

FORMATS: dict[str, Callable[[Options], FileFormat]] = {
    "read_parquet": ParquetFormat,
    "read_csv": CsvFormat,
    "read_json": JsonFormat,
    "read_arrow": ArrowFormat,
}
"""Formats by the function of SQL that reads them."""

_REPLACED_MAX = 2

_HIVE_OPTIONS = ("hive_partitioning", "hive_types_autocast")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSnapshot(Snapshot):
    """Files as they were found."""

    version: str
    schema: Schema
    statistics: TableStatistics | None
    files: tuple[StoredFile, ...]
    keys: FolderKeys  # the columns of folders
    divide: Callable[[Needed], Sequence[Split]]

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        chosen = [i for i in range(len(self.files)) if self._may_have(i, pushed.predicates)]
        # A limit needs few rows: of the first files, and not at once.
        by_folder = all(predicate.column in self.keys.values for predicate in pushed.predicates)
        limit = pushed.limit if by_folder else None
        if not chosen:
            return []
        needed = Needed(
            chosen=chosen,
            keys=self.keys,
            tasks=tasks if limit is None else 1,
            predicates=[p for p in pushed.predicates if p.column not in self.keys.values],
        )
        divided = self.divide(needed)
        return divided if limit is None else [*_enough(divided, limit)]

    def all_splits(self, tasks: int) -> Sequence[Split] | None:
        # Of files in object stores nothing is fetched for that.
        is_remote = any(file.is_remote for file in self.files)
        return None if is_remote else self.splits(Pushed(), tasks)

    def _may_have(self, index: int, predicates: Iterable[Predicate]) -> bool:
        """Whether rows of a file may be needed, by the values of its folders."""
        return all(
            is_true(predicate, self.keys.values[predicate.column][index])
            for predicate in predicates
            if predicate.column in self.keys.values
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
    """Files of one format; safe to use from several threads.

    Attributes:
        name: what messages and plans call them.
        reader: the function of SQL that reads them, such as "read_parquet".
        find: gives them in the order of their rows; raises DataError if there are none.
        options: the reader's options.
        reach: how they are got at.
    """

    name: str
    reader: str
    find: Callable[[], Sequence[StoredFile]]
    options: Options = field(default_factory=dict)
    reach: Reach = field(default_factory=OwnReach)
    _format: FileFormat = field(init=False)
    _last: FileSnapshot | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        options = {name: text for name, text in self.options.items() if name not in _HIVE_OPTIONS}
        self._format = FORMATS[self.reader](options)

    def resolve(self) -> FileSnapshot:
        for _ in range(_REPLACED_MAX):
            with contextlib.suppress(FileReplacedError):  # since they were listed
                return self._resolved()
        return self._resolved()

    def _resolved(self) -> FileSnapshot:
        files = tuple(self.find())
        with self._lock:
            if self._last is None or files != self._last.files:
                try:
                    self._last = self._snapshot(files)
                except duckdb.Error as error:
                    raise DataError(f"Can't read {self.name}: {error}") from error
            return self._last

    def _snapshot(self, files: tuple[StoredFile, ...]) -> FileSnapshot:
        keys = FolderKeys()
        with self.reach.connect() as connection:
            if self.options.get("hive_partitioning", "true") == "true":
                detects = self.options.get("hive_types_autocast", "true") == "true"
                keys = folder_keys(connection, [file.path for file in files], detects=detects)
            found = self._format.find(connection, files, self.reach)
        schema = keys.schema(found.own)
        size = sum(file.bytes for file in files)

        def divide(needed: Needed) -> Sequence[Split]:
            try:
                return self._format.divide(found, needed, self.reach)
            except duckdb.Error as error:
                raise DataError(f"Can't read {self.name}: {error}") from error

        return FileSnapshot(
            version=hashlib.sha256(repr(files).encode()).hexdigest(),
            schema=schema,
            statistics=TableStatistics(found.rows, size, (ColumnStatistics(),) * len(schema)),
            files=files,
            keys=keys,
            divide=divide,
        )


ENDINGS = {
    ".parquet": "read_parquet",
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".csv.gz": "read_csv",
    ".json": "read_json",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
    ".arrow": "read_arrow",
    ".feather": "read_arrow",
    ".json.gz": "read_json",
    ".jsonl.gz": "read_json",
    ".ndjson.gz": "read_json",
}
"""The readers of files, by how their names end."""


def reader_of(path: str) -> str:
    """The reader of a file, by its name; empty if that does not tell it."""
    name = path.lower()
    endings = [ending for ending in ENDINGS if name.endswith(ending)]
    return ENDINGS[max(endings, key=len)] if endings else ""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """What `named_files` is to find once it is told that it does."""

    pattern: str | Path
    reach: Reach


def named_files(pattern: str | Path, reach: Reach) -> FileSource:
    """The files at a path or a glob, or all in a folder that are read; columns are united by name.

    Raises:
        DataError: there are none, or their names do not tell how to read them.
    """

    def find() -> Sequence[StoredFile]:
        check_readable([str(pattern)])
        is_folder = Path(pattern).is_dir()
        files = [] if is_folder and not any(Path(pattern).iterdir()) else reach.list(str(pattern))
        readable = [file for file in files if reader_of(file.path)]
        if is_folder and not readable:
            endings = ", ".join(ENDINGS)
            raise DataError(f"There are no files in {pattern} that end in {endings}.")
        check_readable([glob.escape(file.path) for file in readable or files])
        return readable or files

    files = find()
    counts = Counter(reader_of(file.path) for file in files)
    reader = counts.most_common(1)[0][0]
    if not reader:
        raise DataError(
            f"Can't tell how to read {files[0].path}: its name has to end in {', '.join(ENDINGS)}."
        )
    other = next((file.path for file in files if reader_of(file.path) != reader), None)
    if other is not None:
        usual = next(file.path for file in files if reader_of(file.path) == reader)
        raise DataError(
            f"{other} can't be read as {usual} is: the files of a table are of one kind. Name "
            f"those that belong to it, such as {Path(usual).parent}/*{Path(usual).suffix}."
        )
    return FileSource(
        name=str(pattern),
        reader=reader,
        find=find,
        options={"union_by_name": "true"},
        reach=reach,
    )
