"""CSV and JSON files, which tasks read whole, or in ranges of lines where that is safe.

The types are those that DuckDB finds in all files together, and so is the dialect of CSV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from minishark.expressions import Column, Schema, quote_text
from minishark.sources.contract import Split
from minishark.sources.filesystems import StoredFile
from minishark.sources.formats import (
    FileFormat,
    Found,
    Options,
    Reach,
    WholeFiles,
    call,
    columns_of,
    compression,
    struct_of,
    without_keys,
)
from minishark.sources.hive import FolderKeys
from minishark.sources.text_ranges import RANGE_BYTES, Quoting, TextRange, line_ranges

_ROW_BYTES = 64  # of files whose rows nobody has counted
_SAMPLED_FILES = 32  # as DuckDB samples for the columns of JSON
_SAMPLED_ROWS = 2_048
_NOT_IN_PARTS = frozenset(
    ["ignore_errors", "store_rejects", "null_padding", "filename", "rejects_table", "parallel"]
)
"""Options with which the parts of files might not add up to the whole."""

_DETECTION = frozenset(
    [
        *("all_varchar", "auto_detect", "auto_type_candidates", "column_names", "column_types"),
        *("columns", "comment", "date_format", "dateformat", "delim", "delimiter", "dtypes"),
        *("escape", "files_to_sniff", "header", "hive_partitioning", "hive_types_autocast"),
        *("names", "new_line", "normalize_names", "quote", "sample_size", "sep", "skip"),
        *("timestamp_format", "timestampformat", "types", "union_by_name"),
    ]
)
"""Options of read_csv that say what a dialect says."""

_TEMPORAL = re.compile(r"\b(?:DATE|TIME|TIMESTAMP)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written, as DuckDB finds it."""

    delimiter: str
    quote: str
    escape: str
    comment: str
    newline: str
    skip: int
    header: bool
    dateformat: str | None
    timestampformat: str | None
    names: tuple[str, ...]

    @property
    def options(self) -> dict[str, str]:
        """The dialect as options of read_csv, for the first line of a file."""
        found = {
            "auto_detect": "false",
            "delim": quote_text(self.delimiter),
            "quote": quote_text(self.quote),
            "escape": quote_text(self.escape),
            "comment": quote_text(self.comment),
            "skip": str(self.skip),
            "header": str(self.header).lower(),
        }
        if self.newline in ("\\n", "\\r", "\\r\\n"):
            found["new_line"] = quote_text(self.newline)
        if self.dateformat:
            found["dateformat"] = quote_text(self.dateformat)
        if self.timestampformat:
            found["timestampformat"] = quote_text(self.timestampformat)
        return found

    @property
    def is_divisible(self) -> bool:
        """Whether lines can be read without those before them."""
        known = self.newline in ("\\n", "\\r\\n") and not self.comment and not self.skip
        return known and len(self.names) > 1 and self.escape in ("", self.quote)

    @property
    def quoting(self) -> Quoting | None:
        return Quoting(ord(self.quote), ord(self.delimiter)) if self.quote else None


@dataclass(slots=True)
class CsvFormat(FileFormat):
    """CSV files; with the option `union_by_name`, of different columns."""

    options: Options
    _dialects: dict[StoredFile, Dialect] = field(default_factory=dict)
    _ranges: dict[tuple[StoredFile, int], list[tuple[int, int]] | None] = field(
        default_factory=dict
    )

    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        with reach.held(files, ()) as paths:
            own = columns_of(connection, call("read_csv", paths, self._reader_options(files)))
            known = {f: d for f, d in self._dialects.items() if f in {*files}}
            if self._is_divisible(files):
                for file, path in zip(files, paths, strict=True):
                    if file not in known:
                        known[file] = _dialect(connection, path, self.options)
                    if not self._unites and not _starts_alike(paths, known[file]):
                        break
                    if not self._unites:  # what DuckDB finds in the first one holds for all
                        known |= dict.fromkeys(files, known[file])
                        break
            self._dialects = known
        return Found(files, own, sum(file.bytes for file in files) // _ROW_BYTES)

    @property
    def _unites(self) -> bool:
        return self.options.get("union_by_name") == "true"

    def _reader_options(self, files: Sequence[StoredFile]) -> Options:
        """All options, for all files at once."""
        return {**self.options, "hive_partitioning": "false", **compression(files[0].path)}

    def _is_divisible(self, files: Sequence[StoredFile]) -> bool:
        kinds = {tuple(compression(file.path)) for file in files}
        return len(kinds) == 1 and _NOT_IN_PARTS.isdisjoint(self.options)

    def divide(
        self, found: Found, chosen: Sequence[int], keys: FolderKeys, tasks: int, reach: Reach
    ) -> Sequence[Split]:
        files = [found.files[i] for i in chosen]
        own = without_keys(found.own, keys)
        if any(file not in self._dialects for file in files):
            return whole("read_csv", self._reader_options(files), files, own, keys, chosen)
        splits: list[Split] = []
        for index, file in zip(chosen, files, strict=True):
            dialect = self._dialects[file]
            columns = _named(found.own, dialect.names)
            extra = {n: v for n, v in self.options.items() if n not in _DETECTION}
            first = {**dialect.options, **extra, "columns": struct_of(columns)}
            first["hive_partitioning"] = "false"
            count = min(-(-tasks // len(chosen)), file.bytes // RANGE_BYTES)
            ranges = self._divided(file, count, dialect) if dialect.is_divisible else None
            if ranges is None or len(columns) < len(found.own):
                part = WholeFiles(
                    stored=(file,),
                    reader="read_csv",
                    options=tuple(first.items()),
                    own=own,
                    keys=keys.of(index),
                    bytes=file.bytes,
                    fills=len(columns) < len(found.own),
                )
                splits.append(part)
                continue
            splits += _in_ranges("read_csv", file, first, own, keys.of(index), ranges, dialect)
        return splits

    def _divided(
        self, file: StoredFile, count: int, dialect: Dialect
    ) -> list[tuple[int, int]] | None:
        if count < 2 or file.is_remote or compression(file.path) or "compression" in self.options:
            return None
        key = (file, count)
        if key not in self._ranges:
            self._ranges = {k: v for k, v in self._ranges.items() if k[0] in self._dialects}
            self._ranges[key] = line_ranges(file.path, count, dialect.quoting)
        return self._ranges[key]


def whole(
    reader: str,
    options: Options,
    files: Sequence[StoredFile],
    own: Schema,
    keys: FolderKeys,
    chosen: Sequence[int],
) -> list[Split]:
    """All files at once; those of each folder, where folders are columns."""
    groups: dict[tuple[str, ...], tuple[list[StoredFile], FolderKeys]] = {}
    for index, file in zip(chosen, files, strict=True):
        values = keys.of(index)
        key = tuple(text for texts in values.literals.values() for text in texts)
        groups.setdefault(key, ([], values))[0].append(file)
    return [
        WholeFiles(
            stored=tuple(some),
            reader=reader,
            options=tuple(options.items()),
            own=own,
            keys=values,
            bytes=sum(file.bytes for file in some),
        )
        for some, values in groups.values()
    ]


def _in_ranges(
    reader: str,
    file: StoredFile,
    first_options: Options,
    own: Schema,
    keys: FolderKeys,
    ranges: Sequence[tuple[int, int]],
    dialect: Dialect | None,
) -> list[Split]:
    later = dict(first_options) if dialect is None else {**first_options, "header": "false"}
    return [
        TextRange(
            file=file,
            reader=reader,
            first_options=tuple(first_options.items()),
            options=tuple(later.items()),
            own=own,
            keys=keys,
            first=first,
            last=last,
            quoting=None if dialect is None else dialect.quoting,
            rows=None,
            bytes=last - first,
        )
        for first, last in ranges
    ]


def _dialect(connection: duckdb.DuckDBPyConnection, path: str, options: Options) -> Dialect:
    given = {n: v for n, v in options.items() if n not in ("union_by_name", "hive_partitioning")}
    row = connection.execute(
        "SELECT Delimiter, Quote, Escape, Comment, NewLineDelimiter, SkipRows, HasHeader, "
        f"DateFormat, TimestampFormat, Columns FROM {call('sniff_csv', [path], given)}"
    ).fetchall()[0]
    texts = ["" if text == "(empty)" else text for text in row[:4]]
    return Dialect(
        delimiter=texts[0],
        quote=texts[1],
        escape=texts[2],
        comment=texts[3],
        newline=row[4],
        skip=row[5],
        header=row[6],
        dateformat=row[7],
        timestampformat=row[8],
        names=tuple(column["name"] for column in row[9]),
    )


def _starts_alike(paths: Sequence[str], dialect: Dialect) -> bool:
    """Whether all files have the header of the first one."""
    if not dialect.header:
        return True
    lines = dialect.skip + 1
    starts = set()
    for path in paths:
        with Path(path).open("rb") as file:
            starts.add(b"".join(file.readline(1 << 20) for _ in range(lines)).rstrip(b"\r\n"))
        if len(starts) > 1:
            return False
    return True


def _named(columns: Schema, names: Sequence[str]) -> Schema:
    """Columns in the order of a file; those that it does not have are left out."""
    known = {column.name.lower(): column for column in columns}
    return tuple(Column(name, known[name.lower()].type) for name in names if name.lower() in known)


@dataclass(slots=True)
class JsonFormat(FileFormat):
    """JSON files: newline-delimited, arrays, or values one after another."""

    options: Options
    _columns: dict[tuple[StoredFile, ...], bool] = field(default_factory=dict)

    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        options = {**self.options, "hive_partitioning": "false"}
        with reach.held(files, ()) as paths:
            own = columns_of(connection, call("read_json", paths, options))
            is_typed = not _TEMPORAL.search(" ".join(column.type for column in own))
            sampled = paths[:_SAMPLED_FILES]
            is_typed = is_typed or self._reads_alike(connection, sampled, own, options)
            self._columns = {files: is_typed and _NOT_IN_PARTS.isdisjoint(self.options)}
        return Found(files, own, sum(file.bytes for file in files) // _ROW_BYTES)

    def _reads_alike(
        self,
        connection: duckdb.DuckDBPyConnection,
        paths: Sequence[str],
        own: Schema,
        options: Options,
    ) -> bool:
        """Whether dates and times are read alike if only the types are told, not their format."""
        told = {**_without_detection(options), "columns": struct_of(own)}
        rows = [
            f"(FROM {call('read_json', paths, each)} LIMIT {_SAMPLED_ROWS})"
            for each in (options, told)
        ]
        try:
            sql = f"SELECT count(*) FROM ({rows[0]} EXCEPT {rows[1]})"
            return connection.execute(sql).fetchall() == [(0,)]
        except duckdb.Error:
            return False

    def divide(
        self, found: Found, chosen: Sequence[int], keys: FolderKeys, tasks: int, reach: Reach
    ) -> Sequence[Split]:
        files = [found.files[i] for i in chosen]
        own = without_keys(found.own, keys)
        options = {**self.options, "hive_partitioning": "false"}
        if not self._columns.get(found.files):
            return whole("read_json", options, files, own, keys, chosen)
        told = {**_without_detection(options), "columns": struct_of(found.own)}
        splits: list[Split] = []
        for index, file in zip(chosen, files, strict=True):
            count = min(-(-tasks // len(chosen)), file.bytes // RANGE_BYTES)
            if count > 1 and not compression(file.path) and _is_delimited(file):
                lines = {**told, "format": "'newline_delimited'"}
                ranges = line_ranges(file.path, count, None) or []
                splits += _in_ranges("read_json", file, lines, own, keys.of(index), ranges, None)
                continue
            splits += whole("read_json", told, [file], own, keys, [index])
        return splits


def _without_detection(options: Options) -> dict[str, str]:
    detection = ("auto_detect", "sample_size", "union_by_name", "maximum_sample_files", "columns")
    return {name: value for name, value in options.items() if name not in detection}


def _is_delimited(file: StoredFile) -> bool:
    """Whether the first line is a JSON object, so that DuckDB takes each for one."""
    if file.is_remote:
        return False
    with Path(file.path).open("rb") as lines:
        line = lines.readline(1 << 20)
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
