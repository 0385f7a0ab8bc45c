"""Ranges of lines of large text files, each of which a task reads alone.

DuckDB reads whole files, so a task hands it its lines through a pipe. Lines of CSV end rows only
outside of quotes. A file is divided where the number of quotes before is even, if all
its quotes stand where quoted values begin and end; any other file is read whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from minishark.errors import DataError
from minishark.model.expressions import Schema, quote
from minishark.model.predicates import Pushed
from minishark.sources.contract import Split
from minishark.sources.filesystems import FileReplacedError, StoredFile, stat_file
from minishark.sources.formats import call
from minishark.sources.hive import FolderKeys

RANGE_BYTES = 16 << 20  # of a file that is worth a task
_PIPE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 18  # which processors' caches hold
_BATCH_ROWS = 122_880
_NEWLINE = 10
_ARROW_SETTINGS = (  # as tasks store rows, so that these are stored as they are read
    "arrow_output_version = '1.5'",
    "arrow_lossless_conversion = true",
    "produce_arrow_string_view = false",
)


@dataclass(frozen=True, slots=True)
class Quoting:
    """How values of a CSV file may contain newlines."""

    quote: int  # a byte
    delimiter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRange(Split):
    """Some lines of a text file."""

    file: StoredFile
    reader: str
    first_options: tuple[tuple[str, str], ...]  # of the reader, for the file's first line
    options: tuple[tuple[str, str], ...]  # for all other lines
    own: Schema  # the columns of the file
    keys: FolderKeys  # the columns of its folders
    first: int  # the first byte
    last: int  # the one after the last
    rows: int | None
    bytes: int

    def made_of(self) -> tuple[Sequence[StoredFile], object]:
        options = (self.reader, self.first_options, self.options)
        return (self.file,), (*options, self.own, self.keys, self.first, self.last)

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        columns = "*" if pushed.columns is None else ", ".join(map(quote, pushed.columns))
        batches = self._batches(columns)
        first = next(batches)
        return pa.RecordBatchReader.from_batches(first.schema, batches)

    def _batches(self, columns: str) -> Iterator[pa.RecordBatch]:
        """An empty batch, which has the schema, and the rows."""
        options = dict(self.options if self.first else self.first_options)
        with (
            contextlib.closing(_Lines(self.file.path, self.first, self.last)) as lines,
            duckdb.connect(config={"threads": 1}) as connection,
        ):
            for setting in _ARROW_SETTINGS:
                connection.execute(f"SET {setting}")
            self._check()
            relation = self.keys.select(
                [column.name for column in self.own], call(self.reader, [lines.path], options)
            )
            reader = connection.sql(f"SELECT {columns} FROM {relation}").to_arrow_reader(
                _BATCH_ROWS
            )
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)
            yield from reader
            lines.check()
            self._check()

    def _check(self) -> None:
        if stat_file(self.file.path).version != self.file.version:
            raise FileReplacedError(f"{self.file.path} was replaced while it was read.")


class _Lines:
    """A pipe with some bytes of a file, which a thread writes as DuckDB reads them.

    The kernel moves pages of the file's cache into it without a copy.
    """

    def __init__(self, file: str, first: int, last: int) -> None:
        self._name = file
        self._source = os.open(file, os.O_RDONLY)
        self._first, self._last = first, last
        self._failed: Exception | None = None
        self._reading, self._writing = os.pipe()
        with contextlib.suppress(OSError):  # the user's pipes may have as many pages as allowed
            fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._write, name="minishark-lines", daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._reading}"

    def check(self) -> None:
        """All lines have been read.

        Raises:
            DataError: the file could not be read to the end of the lines.
        """
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def _write(self) -> None:
        place = self._first
        try:
            while place < self._last:
                size = min(_PIPE_BYTES, self._last - place)
                sent = os.sendfile(self._writing, self._source, place, size)
                if not sent:
                    self._failed = FileReplacedError(f"{self._name} became shorter.")
                    return
                place += sent
        except OSError as error:
            self._failed = DataError(f"Can't read {self._name}: {error}")
        finally:
            os.close(self._writing)

    def close(self) -> None:
        """Ends the thread, whatever was read."""
        self._last = 0
        while os.read(self._reading, _PIPE_BYTES):
            pass  # it waits for room
        self._thread.join()
        os.close(self._reading)
        os.close(self._source)


def line_ranges(path: str, count: int, quoting: Quoting | None) -> list[tuple[int, int]] | None:
    """A file in about `count` ranges of bytes that end where rows do; None if that is not safe."""
    size = Path(path).stat().st_size
    step = -(-size // count)
    places = [step * i for i in range(1, count)]
    with Path(path).open("rb", buffering=0) as file:
        if quoting is None:
            ends = _line_ends(file, places)
        else:
            safe = _row_ends(file, size, quoting, places)
            if safe is None:
                return None
            ends = safe
    cuts = [0, *sorted({end for end in ends if 0 < end < size}), size]
    return list(itertools.pairwise(cuts))


def _line_ends(file: FileIO, places: Sequence[int]) -> list[int]:
    """The ends of the lines in which the wanted places are."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return [text.find(b"\n", place) + 1 for place in places]


def _row_ends(file: FileIO, size: int, quoting: Quoting, wanted: Sequence[int]) -> list[int] | None:
    """The ends of the rows in which the wanted places are; None if quotes don't tell them."""
    row_ends: list[int] = []
    block = bytearray(1 + _BLOCK_BYTES)  # begins with the byte before
    block[0] = _NEWLINE
    whole = np.frombuffer(block, np.uint8)
    start = before = 0  # bytes and quotes before the block
    is_closed = False  # whether a quote before it ends a value
    while start < size and (length := file.readinto(memoryview(block)[1:])):
        data = whole[: length + 1]
        places = np.flatnonzero(data[1:] == quoting.quote) + 1
        opening, closing = places[before % 2 :: 2], places[1 - before % 2 :: 2]
        ends = closing if not is_closed else np.append(closing, 0)
        is_closed = bool(len(closing)) and int(closing[-1]) == length
        if not _are_structural(data, opening, ends[ends < length], quoting):
            return None
        for place in wanted[len(row_ends) :]:
            if place >= start + length:
                break
            here = block.find(b"\n", max(place - start, 0) + 1, length + 1)
            while here >= 0 and (before + int(np.searchsorted(places, here))) % 2:
                here = block.find(b"\n", here + 1, length + 1)
            if here < 0:
                break  # in the next block
            row_ends.append(start + here)
        start, before = start + length, before + len(places)
        block[0] = block[length]
    return None if before % 2 else row_ends


def _are_structural(
    data: np.ndarray, opening: np.ndarray, closing: np.ndarray, quoting: Quoting
) -> bool:
    """Whether quotes begin and end values, or stand twice for one within a value."""
    previous, following = data[opening - 1], data[closing + 1]
    begins = (previous == quoting.delimiter) | (previous == _NEWLINE)
    ends = (following == quoting.delimiter) | (following == _NEWLINE) | (following == 13)
    return bool(
        (begins | (previous == quoting.quote)).all() and (ends | (following == quoting.quote)).all()
    )
