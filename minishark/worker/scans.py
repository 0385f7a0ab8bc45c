"""Reads splits of sources in a task: files by DuckDB itself, all else as Arrow streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import cloudpickle
import duckdb
import pyarrow as pa

from minishark.errors import DataError, MinisharkError, QueryCancelledError
from minishark.model.expressions import Schema, quote
from minishark.model.predicates import Pushed
from minishark.sources.contract import FileSplit, Split
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess, StoredFile
from minishark.worker.host_files import Hold, check_unchanged


@dataclass(frozen=True, slots=True)
class SplitRead:
    """What a task reads of a source: some splits, one after the other."""

    schema: Schema  # the columns that are read, with their DuckDB types
    splits: tuple[Split, ...]
    pushed: Pushed

    def pickled(self) -> bytes:
        pickled: bytes = cloudpickle.dumps(self)
        return pickled


class SplitStream:
    """The rows of one split, which DuckDB may read several times.

    Attributes:
        failed: what the split raised.
    """

    def __init__(self, split: Split, pushed: Pushed) -> None:
        self._split, self._pushed = split, pushed
        self._schema: pa.Schema | None = None
        self.failed: BaseException | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Nobody needs the rows; may be called from another thread."""
        self._is_cancelled = True
        self._split.cancel()

    def _read(self) -> pa.RecordBatchReader:
        if self._is_cancelled:
            raise QueryCancelledError("The statement was cancelled.")
        return self._split.read(self._pushed)

    def __arrow_c_schema__(self) -> object:
        if self._schema is None:
            with self._noting(), self._read() as reader:
                self._schema = reader.schema
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        with self._noting():
            reader = self._read()
            self._schema = reader.schema
        batches = pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))
        return batches.__arrow_c_stream__(requested_schema)

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self._noting(), reader:
            yield from reader

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep what the source raises: DuckDB would hand on its text only."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                self.failed = error
            raise


@dataclass(slots=True, kw_only=True)
class Scans:
    """The inputs of a task that come from sources, by the name in the fragment."""

    reads: Mapping[str, tuple[bytes, ...]]  # pickled `SplitRead`s
    hold: Hold  # keeps files of object stores here
    access: StoreAccess = FROM_ENVIRONMENT  # how these are reached
    # Raises FileReplacedError if a file of this machine is not as it was.
    check: Callable[[StoredFile], None] = check_unchanged
    streams: dict[str, SplitStream] = field(default_factory=dict)  # Arrow data, by names of it
    relations: dict[str, str] = field(default_factory=dict)  # SQL over files and over that
    # The parts of each input, by its name: streams, and None for files.
    _parts: dict[str, list[SplitStream | None]] = field(default_factory=dict)
    _files: list[StoredFile] = field(default_factory=list)  # of this machine
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @contextlib.contextmanager
    def open(self) -> Iterator[Scans]:
        """While the block runs, the inputs can be read.

        Raises:
            DataError: one can't be read, or was changed while the block ran.
        """
        with self._held:
            for name, pickled in self.reads.items():
                self.relations[name] = self._relation(name, [*map(unpickled_read, pickled)])
            self._check()
            try:
                yield self
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                # What DuckDB says of a stream has a traceback, and of a file that was replaced
                # while it was read, any.
                for stream in self.streams.values():
                    if stream.failed is not None:
                        raise _told(stream.failed) from error
                self._check()
                raise
            self._check()

    def cancel(self) -> None:
        """Nobody needs the rows; may be called from another thread."""
        for stream in [*self.streams.values()]:
            stream.cancel()

    def streams_of(self, name: str) -> list[SplitStream] | None:
        """The streams that are an input together, in order; None if it has other parts."""
        parts = self._parts.get(name, [])
        streams = [part for part in parts if part is not None]
        return streams if streams and len(streams) == len(parts) else None

    def _check(self) -> None:
        for file in self._files:
            self.check(file)

    def _relation(self, name: str, reads: Sequence[SplitRead]) -> str:
        parts = []
        for (schema, pushed), some in groupby(reads, lambda read: (read.schema, read.pushed)):
            splits = joined([split for read in some for split in read.splits])
            parts += [_typed(schema, self._part(name, split, pushed)) for split in splits]
        return f"({' UNION ALL '.join(parts or [_nothing(reads[0].schema)])})"

    def _part(self, name: str, split: Split, pushed: Pushed) -> str:
        parts = self._parts.setdefault(name, [])
        if isinstance(split, FileSplit):
            files = split.files()
            self._files += (file for file in files if not file.is_remote)
            access = split.access.over(self.access)
            paths = self._held.enter_context(self.hold(files, split.parts(pushed), access))
            parts.append(None)
            return split.relation(paths).sql
        stream = f"{name} stream {len(self.streams)}"
        self.streams[stream] = SplitStream(split, pushed)
        parts.append(self.streams[stream])
        return quote(stream)


def unpickled_read(pickled: bytes) -> SplitRead:
    """What a task reads of a source; DataError if it can't be unpickled here."""
    try:
        read: SplitRead = cloudpickle.loads(pickled)
    except Exception as error:  # it needs a module that is not here, or the like
        raise DataError(f"A split of a source can't be unpickled here: {error}") from error
    return read


def joined(splits: Sequence[Split]) -> Iterator[Split]:
    """Consecutive splits of one kind as they are read fastest."""
    for _, some in groupby(splits, type):
        alike = [*some]
        yield from alike[0].joined(alike)


def _told(error: BaseException) -> MinisharkError:
    """What a source raised, as an error that the user gets."""
    if isinstance(error, MinisharkError):
        return error
    return DataError(f"The source raised {type(error).__name__}: {error}")


def _typed(schema: Schema, relation: str) -> str:
    """A relation's columns by name, in the types that the query was planned with."""
    columns = (f"CAST({quote(c.name)} AS {c.type}) AS {quote(c.name)}" for c in schema)
    return f"SELECT {', '.join(columns)} FROM {relation}"


def _nothing(schema: Schema) -> str:
    columns = (f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in schema)
    return f"SELECT {', '.join(columns)} WHERE false"
