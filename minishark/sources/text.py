"""CSV and JSON files, which tasks read whole, or in ranges of lines where that is safe.

The types are those that DuckDB finds in all files together, and so is the dialect of CSV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb

from minishark.errors import DataError
from minishark.model.expressions import Column, Schema, quote_text
from minishark.sources.contract import Split
from minishark.sources.filesystems import StoredFile
from minishark.sources.formats import (
    FileFormat,
    Found,
    Needed,
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
_SNIFFED_FILES = 10  # as DuckDB looks at for the columns of CSV
_SAMPLED_FILES = 32  # as DuckDB samples for the columns of JSON
_SAMPLED_ROWS = 2_048
_QUOTES = (b'"', b"'")  # those that DuckDB detects
_SNIFFED_BYTES = 8 << 20  # of a file: more than the rows in which DuckDB looks for quotes have
_HEADER_BYTES = 64 << 10  # of a file whose header is compared with those of others
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

_TYPING = ("types", "dtypes", "column_types", "auto_type_candidates", "sample_size")

_TEMPORAL = re.compile(r"\b(?:DATE|TIME|TIMESTAMP)")


@dataclass(frozen=True, slots=True, kw_only=True)
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
    def formats(self) -> dict[str, str]:
        """How values are written, as options of read_csv for all files: as DuckDB reads them."""
        texts = {
            "quote": self.quote,
            "dateformat": self.dateformat,
            "timestampformat": self.timestampformat,
        }
        return {name: quote_text(text) for name, text in texts.items() if text}

    @property
    def options(self) -> dict[str, str]:
        """The dialect as options of read_csv, for the first line of a file."""
        arguments = {
            "auto_detect": "false",
            "delim": quote_text(self.delimiter),
            "quote": quote_text(self.quote),
            "escape": quote_text(self.escape),
            "comment": quote_text(self.comment),
            "skip": str(self.skip),
            "header": str(self.header).lower(),
        }
        if self.newline in ("\\n", "\\r", "\\r\\n"):
            arguments["new_line"] = quote_text(self.newline)
        if self.dateformat:
            arguments["dateformat"] = quote_text(self.dateformat)
        if self.timestampformat:
            arguments["timestampformat"] = quote_text(self.timestampformat)
        return arguments

    @property
    def is_divisible(self) -> bool:
        """Whether lines can be read without those before them."""
        is_plain = self.newline in ("\\n", "\\r\\n") and not self.comment and not self.skip
        return is_plain and len(self.names) > 1 and self.escape in ("", self.quote)

    @property
    def quoting(self) -> Quoting | None:
        return Quoting(ord(self.quote), ord(self.delimiter)) if self.quote else None


@dataclass(slots=True)
class CsvFormat(FileFormat):
    """CSV files; with the option `union_by_name`, of different columns.

    DuckDB detects the dialect of each file. A task has it do so again, but for the types, which are
    those of all files; a file that is read in ranges has its dialect detected once.
    """

    options: Options
    _dialects: dict[StoredFile, Dialect | None] = field(default_factory=dict)
    _headers: dict[StoredFile, bytes | None] = field(default_factory=dict)
    _ranges: dict[tuple[StoredFile, int], list[tuple[int, int]] | None] = field(
        default_factory=dict
    )

    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        current = {*files}
        self._dialects = {f: d for f, d in self._dialects.items() if f in current}
        self._headers = {f: h for f, h in self._headers.items() if f in current}
        self._ranges = {k: v for k, v in self._ranges.items() if k[0] in current}
        # Of remote files, those are fetched that DuckDB looks at.
        some = files[:_SNIFFED_FILES] if files[0].is_remote and not self._unites else files
        with reach.held(some, ()) as paths:
            options = {**self.options, "hive_partitioning": "false", **compression(files[0].path)}
            own = columns_of(connection, call("read_csv", paths, options))
        # The first one says whether files have headers; united ones have columns of their own.
        self._sniff(connection, files if self._unites else files[:1], reach)
        if len(files) > 1 and not self._unites:
            self._check_quotes(connection, files, reach)
        return Found(files, own, sum(file.bytes for file in files) // _ROW_BYTES)

    def _check_quotes(
        self, connection: duckdb.DuckDBPyConnection, files: Sequence[StoredFile], reach: Reach
    ) -> None:
        """Check that all files have the quotes of the first, or none.

        DuckDB reads a file like the first one if its first rows have as many columns then, quotes
        or not; what it does with others, only it knows.
        """
        first = self._dialects[files[0]]
        if first is None or "quote" in self.options or any(file.is_remote for file in files):
            return
        others = [quote for quote in _QUOTES if quote.decode() != first.quote]
        doubtful = [file for file in files[1:] if _has_some(file, others)]
        self._sniff(connection, doubtful, reach)
        for file in doubtful:
            dialect = self._dialects[file]
            if dialect is None or dialect.quote not in ("", first.quote):
                raise DataError(
                    f"{file.path} has other quotes than {files[0].path}; the option quote says "
                    "what is meant."
                )

    @property
    def _unites(self) -> bool:
        return self.options.get("union_by_name") == "true"

    def _sniff(
        self, connection: duckdb.DuckDBPyConnection, files: Sequence[StoredFile], reach: Reach
    ) -> None:
        new = [file for file in files if file not in self._dialects]
        with reach.held(new, ()) as paths:
            for file, path in zip(new, paths, strict=True):
                self._dialects[file] = _dialect(connection, path, self.options)

    def divide(self, found: Found, needed: Needed, reach: Reach) -> Sequence[Split]:
        chosen, keys = needed.chosen, needed.keys
        files = [found.files[i] for i in chosen]
        own = without_keys(found.own, keys)
        first = self._dialects[found.files[0]]
        if first is None or not _NOT_IN_PARTS.isdisjoint(self.options):
            plain = {**self.options, "hive_partitioning": "false"}
            return _Reading("read_csv", plain, own, keys).whole(files, chosen)
        cuts = {file: min(needed.tasks_of_each, file.bytes // RANGE_BYTES) for file in files}
        with reach.connect() as connection:
            self._sniff(connection, [file for file in files if self._is_cut(file, cuts)], reach)
        splits: list[Split] = []
        kinds: dict[Dialect | bytes, int] = {}
        for index, file in zip(chosen, files, strict=True):
            if not file.bytes:  # no header to be told, and no rows
                continue
            dialect = self._dialects.get(file) if self._is_cut(file, cuts) else None
            if dialect is not None and not dialect.quote and not self._unites:
                dialect = replace(dialect, quote=first.quote, escape=first.escape)
            if dialect is not None and dialect.is_divisible:
                options, columns = self._told(dialect, found.own)
                ranges = self._divided(file, cuts[file], dialect)
                if ranges is not None and len(columns) == len(found.own):
                    splits += _Reading("read_csv", options, own, keys).in_ranges(
                        file, index, ranges, dialect
                    )
                    continue
            names = self._names(file, first, found.own)
            columns = _named(found.own, names)
            alike = self._alike(file, first)
            part = WholeFiles(
                stored=(file,),
                reader="read_csv",
                options=tuple(self._detected(first, columns).items()),
                own=own,
                keys=keys.of(index),
                bytes=file.bytes,
                fills=len(columns) < len(found.own),
                kind=None if alike is None else kinds.setdefault(alike, len(kinds)),
            )
            splits.append(part)
        return splits

    def _alike(self, file: StoredFile, first: Dialect) -> Dialect | bytes | None:
        """What files have in common that one call may read; None if a file is to be read alone.

        In one call, DuckDB reads files like the first one where it can: it may then take a row of
        another one for a header, or lose it as the line ends otherwise.
        """
        if self._unites:
            return self._dialects.get(file)
        if not first.header or file.is_remote or compression(file.path):
            return None
        if file not in self._headers:
            with Path(file.path).open("rb") as data:
                line = data.readline(_HEADER_BYTES)
            self._headers[file] = line if line.endswith(b"\n") else None
        return self._headers[file]

    def _is_cut(self, file: StoredFile, cuts: Mapping[StoredFile, int]) -> bool:
        is_plain = not compression(file.path) and "compression" not in self.options
        return cuts[file] > 1 and is_plain and not file.is_remote

    def _names(self, file: StoredFile, first: Dialect, own: Schema) -> Sequence[str]:
        """The columns of a file; those of all files unless files have some of them only."""
        dialect = self._dialects.get(file) if self._unites else None
        return [column.name for column in own] if dialect is None else dialect.names

    def _detected(self, first: Dialect, columns: Schema) -> dict[str, str]:
        """Options with which a task detects the dialect of a file, but not its types."""
        options = {**self.options, "header": str(first.header).lower()}
        for name in ("union_by_name", *_TYPING):
            options.pop(name, None)
        if not self._unites:
            options = {**first.formats, **options}
        if "columns" not in options and "all_varchar" not in options:
            options["types"] = struct_of(columns)
            if not first.header:
                options["names"] = f"[{', '.join(quote_text(c.name) for c in columns)}]"
        return {**options, "hive_partitioning": "false"}

    def _told(self, dialect: Dialect, own: Schema) -> tuple[dict[str, str], Schema]:
        """Options with which nothing is detected, and the columns of a file."""
        columns = _named(own, dialect.names)
        extra = {name: text for name, text in self.options.items() if name not in _DETECTION}
        told = {**dialect.options, **extra, "columns": struct_of(columns)}
        return {**told, "hive_partitioning": "false"}, columns

    def _divided(
        self, file: StoredFile, count: int, dialect: Dialect
    ) -> list[tuple[int, int]] | None:
        key = (file, count)  # the quotes are those of the first file or its own, always
        if key not in self._ranges:
            self._ranges[key] = line_ranges(file.path, count, dialect.quoting)
        return self._ranges[key]


@dataclass(frozen=True, slots=True)
class _Reading:
    """How files are read."""

    reader: str
    options: Options  # for the first line of a file
    own: Schema  # the columns of the files, without those of their folders
    keys: FolderKeys  # the columns of the folders of all files

    def whole(self, files: Sequence[StoredFile], chosen: Sequence[int]) -> list[Split]:
        """All files at once; those of each folder, where folders are columns."""
        groups: dict[tuple[str, ...], tuple[list[StoredFile], FolderKeys]] = {}
        for index, file in zip(chosen, files, strict=True):
            values = self.keys.of(index)
            key = tuple(text for texts in values.literals.values() for text in texts)
            groups.setdefault(key, ([], values))[0].append(file)
        return [
            WholeFiles(
                stored=tuple(some),
                reader=self.reader,
                options=tuple(self.options.items()),
                own=self.own,
                keys=values,
                bytes=sum(file.bytes for file in some),
            )
            for some, values in groups.values()
        ]

    def in_ranges(
        self,
        file: StoredFile,
        index: int,
        ranges: Sequence[tuple[int, int]],
        dialect: Dialect | None = None,
    ) -> list[Split]:
        """A file in ranges of bytes."""
        later = self.options if dialect is None else {**self.options, "header": "false"}
        return [
            TextRange(
                file=file,
                reader=self.reader,
                first_options=tuple(self.options.items()),
                options=tuple(later.items()),
                own=self.own,
                keys=self.keys.of(index),
                first=first,
                last=last,
                rows=None,
                bytes=last - first,
            )
            for first, last in ranges
        ]


def _dialect(connection: duckdb.DuckDBPyConnection, path: str, options: Options) -> Dialect | None:
    """The dialect of a file; None if DuckDB does not tell it for these options."""
    given = {n: v for n, v in options.items() if n not in ("union_by_name", *_TYPING)}
    columns = given.pop("columns", None)
    given |= compression(path)
    try:
        row = connection.execute(
            "SELECT Delimiter, Quote, Escape, Comment, NewLineDelimiter, SkipRows, HasHeader, "
            f"DateFormat, TimestampFormat, Columns FROM {call('sniff_csv', [path], given)}"
        ).fetchall()[0]
        names = [column["name"] for column in row[9]]
        if columns is not None:
            names = [*connection.execute(f"SELECT {columns}").fetchall()[0][0]]
    except duckdb.Error:
        return None
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
        names=tuple(names),
    )


def _has_some(file: StoredFile, texts: Sequence[bytes]) -> bool:
    """Whether a file has one of some bytes near its beginning, or can't be looked into."""
    if compression(file.path):
        return True
    with Path(file.path).open("rb") as data:
        beginning = data.read(_SNIFFED_BYTES)
    return any(text in beginning for text in texts)


def _named(columns: Schema, names: Sequence[str]) -> Schema:
    """Columns in the order of a file; those that it does not have are left out."""
    types = {column.name.lower(): column for column in columns}
    return tuple(Column(name, types[name.lower()].type) for name in names if name.lower() in types)


@dataclass(slots=True)
class JsonFormat(FileFormat):
    """JSON files: newline-delimited, arrays, or values one after another."""

    options: Options
    _columns: dict[tuple[StoredFile, ...], bool] = field(default_factory=dict)

    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        options = {**self.options, "hive_partitioning": "false"}
        some = files[:_SAMPLED_FILES] if files[0].is_remote else files
        with reach.held(some, ()) as paths:
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
            f"(FROM {call('read_json', paths, given)} LIMIT {_SAMPLED_ROWS})"
            for given in (options, told)
        ]
        try:
            sql = f"SELECT count(*) FROM ({rows[0]} EXCEPT {rows[1]})"
            return connection.execute(sql).fetchall() == [(0,)]
        except duckdb.Error:
            return False

    def divide(self, found: Found, needed: Needed, reach: Reach) -> Sequence[Split]:
        chosen, keys = needed.chosen, needed.keys
        files = [found.files[i] for i in chosen]
        own = without_keys(found.own, keys)
        options = {**self.options, "hive_partitioning": "false"}
        if not self._columns.get(found.files):
            return _Reading("read_json", options, own, keys).whole(files, chosen)
        told = {**_without_detection(options), "columns": struct_of(found.own)}
        splits: list[Split] = []
        for index, file in zip(chosen, files, strict=True):
            count = min(needed.tasks_of_each, file.bytes // RANGE_BYTES)
            if count > 1 and not compression(file.path) and _is_delimited(file):
                lines = {**told, "format": "'newline_delimited'"}
                ranges = line_ranges(file.path, count, None) or []
                splits += _Reading("read_json", lines, own, keys).in_ranges(file, index, ranges)
                continue
            splits += _Reading("read_json", told, own, keys).whole([file], [index])
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
