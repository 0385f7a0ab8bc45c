"""The contract of a source of rows.

    Source.resolve() -> Snapshot            in the front end, for each query: what is there now
    Snapshot.splits(pushed) -> [Split]      in the front end: which parts a query has to read
    Split.read(pushed) -> RecordBatchReader in a task: the rows of one part

A snapshot does not change: all splits of a query give the rows of one version. Statistics feed the
planner; splits are chosen by bounds, before anything is read. Whatever a source was asked to push
down is evaluated again on the rows that it returns, so a source may ignore any of it; it must not
leave out a row that it is not sure of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from minishark.model.catalog import TableStatistics
from minishark.model.expressions import Schema
from minishark.model.predicates import Pushed
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess, StoredFile
from minishark.sources.parquet_parts import FilePart


class Split(ABC):
    """A part of a snapshot that one task reads. Pickled with cloudpickle on its way there.

    Attributes:
        rows: its number of rows before predicates; None if unknown.
        bytes: the bytes that a task reads for it, about; used to even out tasks.
    """

    rows: int | None = None
    bytes: int = 0

    @classmethod
    def joined(cls, splits: Sequence[Self]) -> Sequence[Split]:
        """Splits that one task reads one after the other, as fewer ones if that is faster."""
        return splits

    def made_of(self) -> tuple[Sequence[StoredFile], object] | None:
        """What alone decides its rows: the files, and all else that says what is read of them.

        Other queries may then take what was computed from equal ones, in this session or another.
        None if it can't be told, as of a database.
        """
        return None

    @abstractmethod
    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        """The rows, with the columns in `pushed`, in their Arrow types.

        Raises:
            DataError: something can't be read; the message names the file or table.
        """

    def cancel(self) -> None:  # noqa: B027 - most give their rows soon
        """Nobody needs the rows: end what `read` waits for.

        Called from another thread, perhaps several times, also when nothing is read (any more).
        """


class PlacedSplit(Split):
    """A split whose rows are in one place, and come in the same order each time.

    Attributes:
        path: the place: a file, or what its table calls it.
    """

    path: str


class Snapshot(ABC):
    """One version of a source.

    Attributes:
        version: identifies the rows: equal versions of one source have equal rows.
        schema: the columns with their DuckDB types.
        statistics: as far as known without reading rows; None if unknown.
    """

    version: str
    schema: Schema
    statistics: TableStatistics | None = None

    @abstractmethod
    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        """The parts that may have needed rows; each row belongs to one part exactly.

        Args:
            pushed: what is needed. Parts that surely have no such row are left out.
            tasks: how many tasks may read at a time; about so many parts or more are useful.
        """

    def all_splits(self, tasks: int) -> Sequence[Split] | None:
        """All parts, for EXPLAIN to tell how many are left out; None if that is too expensive."""
        return self.splits(Pushed(), tasks)

    def opened(self, others: Sequence[Snapshot] = ()) -> Snapshot:
        """The version for one query, whose splits can be read until it is closed or forgotten.

        Most versions can be read at any time, and are returned as they are. A database that keeps
        old rows for open transactions only begins one here.

        Args:
            others: what the query has opened already, of any source: tables of one database are
                read as of one moment.

        Raises:
            DataError: the version can't be read any more.
        """
        return self

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """The query that opened the version has ended."""


class Source(ABC):
    """Rows that are stored outside of the cluster.

    Attributes:
        name: what messages, plans and events call it; without credentials.
    """

    name: str

    @abstractmethod
    def resolve(self) -> Snapshot:
        """The version that is current now.

        Raises:
            DataError: there is none, or it can't be read; the message names it.
        """

    def within(self, access: Callable[[], StoreAccess]) -> Source:
        """The source for a session, whose settings of object stores are `access()` now.

        Most do not need them, and are returned as they are.
        """
        return self


@dataclass(frozen=True, slots=True)
class Relation:
    """SQL of DuckDB for the rows of a split, with all columns of the snapshot."""

    sql: str


class FileSplit(Split):
    """A split of files that DuckDB can read itself, once they are on the executor's host.

    Attributes:
        access: settings of object stores that the split brings, as a catalog gave them; they count
            before the session's.
    """

    access: StoreAccess = FROM_ENVIRONMENT

    @abstractmethod
    def files(self) -> Sequence[StoredFile]:
        """The files; those of object stores are fetched and kept by the executor's host."""

    def parts(self, pushed: Pushed) -> Sequence[FilePart]:
        """What is needed of each file, if they are Parquet files; empty for all of each."""
        return ()

    @abstractmethod
    def relation(self, paths: Sequence[str]) -> Relation:
        """The rows, given where each of `files` is on this host, in folders of any name."""

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        """Not called: DuckDB reads the relation."""
        raise NotImplementedError
