"""What the front end has to know of files of one format before tasks can read them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeAlias

import duckdb

from minishark.errors import DataError
from minishark.model.expressions import Column, Schema, quote, quote_text
from minishark.model.predicates import Predicate
from minishark.sources.contract import FileSplit, Relation, Split
from minishark.sources.filesystems import StoredFile, list_files
from minishark.sources.hive import FolderKeys
from minishark.sources.parquet_parts import FilePart

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


@dataclass(frozen=True, slots=True)
class Found:
    """Files, and the columns that they have.

    Attributes:
        files: in the order of their rows.
        own: the columns that files have themselves.
        rows: about how many rows they have.
    """

    files: tuple[StoredFile, ...]
    own: Schema
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What is to be read of files.

    Attributes:
        chosen: the positions of those that are read, which is at least one.
        keys: the columns of the folders of all files.
        tasks: about how many splits are useful.
        predicates: on columns of the files; parts without rows for them may be left out.
    """

    chosen: Sequence[int]
    keys: FolderKeys
    tasks: int
    predicates: Sequence[Predicate]

    @property
    def tasks_of_each(self) -> int:
        """About how many splits of each file are useful."""
        return -(-self.tasks // len(self.chosen))


class FileFormat(ABC):
    """How files of a format are read, with the options of a reader; for one source."""

    @abstractmethod
    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        """The columns and rows of files; duckdb.Error or DataError if they can't be read."""

    @abstractmethod
    def divide(self, found: Found, needed: Needed, reach: Reach) -> Sequence[Split]:
        """The splits of those files that are needed."""


def call(reader: str, paths: Sequence[str], options: Options) -> str:
    """SQL that calls a reader of files."""
    listed = ", ".join(map(quote_text, paths))
    files = listed if len(paths) == 1 else f"[{listed}]"
    return f"{reader}({', '.join([files, *(f'{name} = {v}' for name, v in options.items())])})"


def columns_of(connection: duckdb.DuckDBPyConnection, relation: str) -> Schema:
    rows = connection.sql(f"FROM {relation}")
    return tuple(
        Column(name, str(type_)) for name, type_ in zip(rows.columns, rows.types, strict=True)
    )


def struct_of(columns: Schema) -> str:
    """Columns as readers of text take them: a struct of types."""
    return f"{{{', '.join(f'{quote_text(c.name)}: {quote_text(c.type)}' for c in columns)}}}"


def filled(columns: Schema, relation: str) -> str:
    """A relation with all of these columns, NULL where it does not have them itself."""
    nothing = ", ".join(f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in columns)
    return f"(SELECT {nothing} WHERE false UNION ALL BY NAME FROM {relation})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFiles(FileSplit):
    """Files that DuckDB reads at once, with the columns of the folders of one."""

    stored: tuple[StoredFile, ...]
    reader: str
    options: tuple[tuple[str, str], ...]
    own: Schema  # the files' own columns
    keys: FolderKeys  # the columns of their folders
    bytes: int
    fills: bool = False  # whether columns are NULL that the files do not have
    rows: int | None = None
    kind: int | None = 0  # those of a kind may be read at once; None if these are read alone

    def made_of(self) -> tuple[Sequence[StoredFile], object]:
        return self.stored, (self.reader, self.options, self.own, self.fills, self.keys)

    def files(self) -> Sequence[StoredFile]:
        return self.stored

    @classmethod
    def joined(cls, splits: Sequence[Self]) -> Sequence[WholeFiles]:
        """Files that are read alike, at once: to open a reader takes longer than a small file."""
        merged: list[WholeFiles] = []
        for split in splits:
            if merged and merged[-1].is_read_as(split):
                last = merged[-1]
                merged[-1] = replace(
                    last, stored=last.stored + split.stored, bytes=last.bytes + split.bytes
                )
            else:
                merged.append(split)
        return merged

    def is_read_as(self, other: WholeFiles) -> bool:
        """Whether one call reads the files of both."""
        return (
            self.kind is not None
            and self.kind == other.kind
            and (self.reader, self.options, self.own, self.keys, self.fills)
            == (other.reader, other.options, other.own, other.keys, other.fills)
            and self.access == other.access
            and compression(self.stored[0].path) == compression(other.stored[0].path)
        )

    def relation(self, paths: Sequence[str]) -> Relation:
        options = {**dict(self.options), **compression(self.stored[0].path)}
        read = call(self.reader, paths, options)
        if self.fills:
            read = filled(self.own, read)
        return Relation(self.keys.select([column.name for column in self.own], read))


def compression(path: str) -> Options:
    """How a text file is compressed, which its name on another host may not tell."""
    for ending, name in ((".gz", "gzip"), (".zst", "zstd")):
        if path.lower().endswith(ending):
            return {"compression": quote_text(name)}
    return {}


def without_keys(columns: Schema, keys: FolderKeys) -> Schema:
    """The columns of files that those of their folders do not replace."""
    names = {column.name.lower() for column in keys.columns}
    return tuple(column for column in columns if column.name.lower() not in names)
