"""Arrow files of a cluster on this machine: in shared memory, or on disk where that is short.

    <memory>/<node>/tables/...      <disk>/<node>/tables/...
    <memory>/<node>/queries/...     <disk>/<node>/queries/...

Each node has a folder in both places. Files are written once, under a temporary name first, and
then only memory-mapped, by every executor of the machine; a replica on the same machine is a
hard link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from minishark.execution.task import FileSlice

_RESERVE_BYTES = 16 << 20
_CACHED_FILES_MAX = 1024
_REMOVE_TRIES = 5
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class InputMissingError(Exception):
    """A stored file is on none of the nodes that should hold it."""


@dataclass(frozen=True, slots=True)
class StorePlaces:
    """The two folders of a cluster's store, each with one sub-folder per node."""

    memory: Path
    disk: Path

    def make(self, folder: str, nodes: Sequence[str]) -> None:
        """Make a folder on every node; files are only ever written to folders that are there."""
        for path in self._folders(folder, nodes):
            path.mkdir(parents=True, exist_ok=True)

    def remove(self, folder: str, nodes: Sequence[str]) -> None:
        """Delete a folder on every node; tasks that still want to write to it fail."""
        for path in self._folders(folder, nodes):
            for _ in range(_REMOVE_TRIES):
                shutil.rmtree(path, ignore_errors=True)
                if not path.exists():  # else a task wrote a file in the meantime
                    break

    def _folders(self, folder: str, nodes: Sequence[str]) -> list[Path]:
        places = dict.fromkeys((self.memory, self.disk))
        return [place / node / folder for place in places for node in nodes]

    def find(self, file: str, holders: Sequence[str]) -> Path | None:
        """The first copy of `file` that exists, or None."""
        for node in holders:
            for place in (self.memory, self.disk):
                path = place / node / file
                if path.exists():
                    return path
        return None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was written, and the size of its data."""

    path: Path
    bytes: int
    rows: int
    on_disk: bool


class Store:
    """One executor's view of the store."""

    def __init__(self, places: StorePlaces, node: str) -> None:
        self._places = places
        self._node = node
        self._open: OrderedDict[str, pa.RecordBatchFileReader] = OrderedDict()
        self._tables: OrderedDict[tuple[FileSlice, ...], pa.Table] = OrderedDict()

    def read(self, slices: tuple[FileSlice, ...]) -> pa.Table:
        """The rows of all slices, in order, memory-mapped without a copy.

        Raises:
            InputMissingError: a file is on none of its holders.
        """
        table = self._tables.get(slices)
        if table is None:
            table = pa.concat_tables([self._slice(item) for item in slices])
            self._tables[slices] = table
            if len(self._tables) > _CACHED_FILES_MAX:
                self._tables.popitem(last=False)
        return table

    def _slice(self, item: FileSlice) -> pa.Table:
        reader = self._reader(item)
        last = reader.num_record_batches if item.last is None else item.last
        batches = [reader.get_batch(i) for i in range(item.first, last)]
        return pa.Table.from_batches(batches, reader.schema)

    def _reader(self, item: FileSlice) -> pa.RecordBatchFileReader:
        reader = self._open.get(item.file)
        if reader is None:
            near_first = sorted(item.holders, key=lambda node: node != self._node)
            path = self._places.find(item.file, near_first)
            if path is None:
                holders = ", ".join(item.holders)
                raise InputMissingError(f"{item.file} is on none of the nodes {holders}")
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            self._open[item.file] = reader
            if len(self._open) > _CACHED_FILES_MAX:
                self._open.popitem(last=False)
        return reader

    def forget(self, folder: str) -> None:
        """Drop what is cached of the files in `folder`."""
        prefix = f"{folder}/"
        for file in [file for file in self._open if file.startswith(prefix)]:
            del self._open[file]
        for key in [k for k in self._tables if any(s.file.startswith(prefix) for s in k)]:
            del self._tables[key]

    def forget_all(self) -> None:
        """Drop all that is cached."""
        self._open.clear()
        self._tables.clear()

    def write(
        self, file: str, schema: pa.Schema, groups: Sequence[Sequence[pa.RecordBatch]]
    ) -> StoredFile:
        """Write batches to `file` on this node; shared memory first, then disk.

        Raises:
            OSError: the disk is full too, or the folder of `file` is not there (any more).
        """
        batches = [batch for group in groups for batch in group]
        size = sum(batch.nbytes for batch in batches)
        rows = sum(batch.num_rows for batch in batches)
        if _free_bytes(self._places.memory) > size + _RESERVE_BYTES:
            try:
                path = _write(self._places.memory / self._node / file, schema, batches)
                return StoredFile(path, size, rows, on_disk=False)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
        path = _write(self._places.disk / self._node / file, schema, batches)
        return StoredFile(path, size, rows, on_disk=self._places.disk != self._places.memory)

    def replicate(self, stored: StoredFile, file: str, nodes: Sequence[str]) -> None:
        """Give other nodes of this machine the file too."""
        place = self._places.disk if stored.on_disk else self._places.memory
        for node in nodes:
            if node != self._node:
                copy = place / node / file
                copy.unlink(missing_ok=True)
                os.link(stored.path, copy)


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _write(path: Path, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> Path:
    with _temporary(path) as temporary:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        temporary.rename(path)
    return path


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A name beside `path` for a file that nobody reads yet; gone if its writing fails."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
