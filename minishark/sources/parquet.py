"""Parquet files, which tasks read in ranges of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Self

import duckdb
import pyarrow.parquet as pq

from minishark.model.expressions import Schema, quote_text
from minishark.model.predicates import Predicate, Pushed
from minishark.sources.bounds import Bounds, may_match
from minishark.sources.contract import FileSplit, Relation, Split
from minishark.sources.filesystems import StoredFile
from minishark.sources.formats import (
    FileFormat,
    Found,
    Needed,
    Options,
    Reach,
    call,
    columns_of,
    filled,
    without_keys,
)
from minishark.sources.hive import FolderKeys
from minishark.sources.parquet_parts import FilePart, Range

ROW_NUMBER = "file_row_number"
_RANGE_ROWS = 122_880  # a row group of DuckDB's
_COUNTED_MAX = 256  # files whose rows are counted before any is chosen; of more, some are
_METADATA = FilePart(columns=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetPart(FileSplit):
    """A Parquet file, or a range of its rows; or several files that are read alike."""

    file: StoredFile
    options: tuple[tuple[str, str], ...]  # of the reader
    own: Schema  # the file's own columns, those of its folders left out
    fills: bool  # whether columns are NULL that the file does not have
    keys: FolderKeys  # the columns of its folders
    rows: int | None
    bytes: int
    range: Range | None = None  # the first row, and the one after the last
    file_rows: int = 0  # of which the range is a part
    more: tuple[StoredFile, ...] = ()  # files that are read with it, each as a whole
    is_typical: bool = False  # whether the types of its columns are those that all are read with

    @property
    def is_local(self) -> bool:
        """Whether no host has to fetch a file."""
        return not any(file.is_remote for file in self.files())

    def made_of(self) -> tuple[Sequence[StoredFile], object]:
        return self.files(), (self.options, self.own, self.fills, self.keys, self.range)

    def files(self) -> Sequence[StoredFile]:
        return (self.file, *self.more)

    def parts(self, pushed: Pushed) -> Sequence[FilePart]:
        return [FilePart(columns=pushed.columns, rows=self.range)] * len(self.files())

    @classmethod
    def joined(cls, splits: Sequence[Self]) -> Sequence[Split]:
        """What is left of a file that was cut is read at once, and so are whole files alike."""
        merged: list[Self] = []
        for split in splits:
            both = merged and merged[-1].with_rows_of(split)
            merged[-1 if both else len(merged) :] = [both or split]
        first, *others = merged
        alike = [*takewhile(first.is_read_like, others)]
        return [first.with_files_of(alike), *others[len(alike) :]]

    def with_rows_of(self, other: Self) -> Self | None:
        """The rows of both, if they follow one another in one file."""
        if self.file != other.file or self.range is None or other.range is None:
            return None
        first, last = self.range[0], other.range[1]
        if self.range[1] != other.range[0]:
            return None
        both = None if (first, last) == (0, self.file_rows) else (first, last)
        return replace(self, **self._sums(other), range=both)

    def is_read_like(self, other: Self) -> bool:
        """Whether DuckDB may read both files at once, whole and with the types of the first."""
        of_one = self.fills or self.keys.columns or self.range or other.range
        alike = (self.options, self.own) == (other.options, other.own)
        return self.is_typical and alike and not (of_one or other.fills or other.keys.columns)

    def with_files_of(self, others: Sequence[Self]) -> Self:
        """All these files, which are read like this one."""
        more = tuple(file for other in others for file in other.files())
        return replace(self, **self._sums(*others), more=(*self.more, *more))

    def _sums(self, *others: Self) -> dict[str, Any]:
        rows = [each.rows for each in (self, *others) if each.rows is not None]
        is_known = len(rows) == len(others) + 1
        size = sum(each.bytes for each in (self, *others))
        return {"rows": sum(rows) if is_known else None, "bytes": size}

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
        if self.fills:
            read = filled(self.own, read)
        return Relation(self.keys.select([column.name for column in self.own], read))


@dataclass(slots=True)
class ParquetFormat(FileFormat):
    """Parquet files; with the option `union_by_name`, of different columns."""

    options: Options
    _counts: dict[StoredFile, int] = field(default_factory=dict)

    @property
    def _unites(self) -> bool:
        return self.options.get("union_by_name") == "true"

    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        # The first file says what all have, unless they are united.
        some = files if self._unites else files[:1]
        with reach.held(some, [_METADATA] * len(some)) as paths:
            options = {**self.options, "hive_partitioning": "false"}
            own = columns_of(connection, call("read_parquet", paths, options))
        # Metadata of remote files is fetched: of those only that are read.
        counted = files[:1] if files[0].is_remote else files[:_COUNTED_MAX]
        rows = sum(self._counted(connection, counted, reach))
        share = sum(file.bytes for file in files) / max(1, sum(file.bytes for file in counted))
        return Found(files, own, int(rows * share))

    def _counted(
        self, connection: duckdb.DuckDBPyConnection, files: Sequence[StoredFile], reach: Reach
    ) -> list[int]:
        """The number of rows of each file."""
        new = [file for file in files if file not in self._counts]
        if new:
            with reach.held(new, [_METADATA] * len(new)) as paths:
                listed = ", ".join(map(quote_text, paths))
                sql = f"SELECT file_name, num_rows FROM parquet_file_metadata([{listed}])"
                counted = dict(connection.execute(sql).fetchall())
            counts = {f: int(counted[path]) for f, path in zip(new, paths, strict=True)}
            self._counts = {**self._counts, **counts}
        return [self._counts[file] for file in files]

    def divide(self, found: Found, needed: Needed, reach: Reach) -> Sequence[Split]:
        current = {*found.files}
        self._counts = {f: n for f, n in self._counts.items() if f in current}
        files = [found.files[i] for i in needed.chosen]
        with reach.connect() as connection:
            counts = self._counted(connection, files, reach)
        is_numbered = all(column.name.lower() != ROW_NUMBER for column in found.own)
        most = needed.tasks_of_each if is_numbered else 1
        runs: Sequence[Sequence[Range]] = [[(0, count)] for count in counts]
        # Of files on this machine, DuckDB skips row groups in the tasks: nothing is fetched.
        if needed.predicates and is_numbered and any(file.is_remote for file in files):
            with reach.held(files, [_METADATA] * len(files)) as paths:
                runs = [row_runs(pq.read_metadata(path), needed.predicates) for path in paths]
        options = {n: v for n, v in self.options.items() if n != "union_by_name"}
        splits: list[Split] = []
        for index, rows, ranges in zip(needed.chosen, counts, runs, strict=True):
            part = ParquetPart(
                file=found.files[index],
                options=tuple(options.items()),
                own=without_keys(found.own, needed.keys),
                fills=self._unites,
                keys=needed.keys.of(index),
                rows=rows,
                bytes=found.files[index].bytes,
                is_typical=index == 0,  # as `find` has it
            )
            for run in ranges:
                splits += _cut(part, rows, run, most)
        return splits


def _cut(part: ParquetPart, rows: int, run: Range, most: int) -> Iterator[ParquetPart]:
    """Some rows of a file's `rows`, in at most so many parts."""
    first, count = run[0], run[1] - run[0]
    cuts = min(most, -(-count // _RANGE_ROWS))
    if cuts <= 1 and run == (0, rows):
        yield part
        return
    ends = [first + count * (i + 1) // cuts for i in range(cuts)]
    for begin, end in zip([first, *ends[:-1]], ends, strict=True):
        size = part.bytes * (end - begin) // rows
        yield replace(part, rows=end - begin, bytes=size, range=(begin, end), file_rows=rows)


def row_runs(metadata: Any, predicates: Sequence[Predicate]) -> list[Range]:
    """Ranges of a file's rows outside of which no predicate can be true, by row groups' bounds.

    `metadata` is a `pyarrow.parquet.FileMetaData`.
    """
    runs: list[Range] = []
    row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        end = row + group.num_rows
        bounds = _bounds(group, {predicate.column.lower() for predicate in predicates})
        if row < end and all(
            may_match(predicate, bounds.get(predicate.column.lower(), Bounds()))
            for predicate in predicates
        ):
            if runs and runs[-1][1] == row:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((row, end))
        row = end
    return runs


def _bounds(group: Any, names: Collection[str]) -> dict[str, Bounds]:
    """The bounds of columns of a row group, as far as they are known; by name in lower case."""
    bounds: dict[str, Bounds] = {}
    for number in range(group.num_columns):
        chunk = group.column(number)
        name = chunk.path_in_schema.lower()
        if name not in names:
            continue
        statistics = chunk.statistics
        is_twice = name in bounds  # names that differ in case only
        bounds[name] = (
            Bounds() if statistics is None or is_twice else _known(statistics, group.num_rows)
        )
    return bounds


def _known(statistics: Any, rows: int) -> Bounds:
    nulls = statistics.null_count if statistics.has_null_count else None
    try:
        if statistics.has_min_max:
            low, high = statistics.min, statistics.max
            return Bounds(minimum=low, maximum=high, nulls=nulls, rows=rows)
    except (ValueError, OverflowError, NotImplementedError):
        pass  # of a type that Python's has no values of
    return Bounds(nulls=nulls, rows=rows)
