"""Files of object stores on this host: each is fetched once, as far as queries need it.

    <folder>/<hash of URI and version>/data.parquet     sparse: what nobody needs is not there
    <folder>/<hash of URI and version>/ranges           which of its bytes are there

All processes of the host share the folder, and the session or node that it belongs to removes it.
It is on disk: what is in use stays in the page cache, which gives way to tables and queries.

A process that needs bytes locks their range, so that the others wait for it instead of fetching
them, too; then it appends the range to `ranges`. The system frees the locks of processes that die,
and bytes that are not in `ranges` are fetched again. Whoever reads an entry holds a shared lock on
its folder; where there is no room, the entries that were not used for the longest time go.

Should DuckDB read more of a Parquet file than was fetched, it finds zeros where a page header has
to be, which is an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq

from minishark.errors import DataError
from minishark.sources.filesystems import (
    FROM_ENVIRONMENT,
    FileReplacedError,
    StoreAccess,
    StoredFile,
    at_once,
    read_range,
    stat_file,
)
from minishark.sources.parquet_parts import (
    WHOLE,
    FilePart,
    Range,
    metadata_range,
    needed_ranges,
)
from minishark.worker.storage import folder_bytes, free_bytes

OBJECTS = "objects"
"""The folder's name, in a session's or node's folder on disk."""

_REQUEST_BYTES = 8 << 20
_JOINED_BYTES = 256 << 10
"""Fetching so many bytes that nobody needs takes less time than another request."""

_AT_ONCE = 6
_RESERVE_BYTES = 256 << 20
_RECORD = struct.Struct("<qq")
_LOCK = struct.Struct("@hhqqi0q")  # struct flock


Hold: TypeAlias = Callable[
    [Sequence[StoredFile], Sequence[FilePart], StoreAccess],
    contextlib.AbstractContextManager[Sequence[str]],
]
"""Gives local paths of files while a block runs: `HostFiles.held`."""


class FetchInterruptedError(Exception):
    """The task that wants a file is to end."""


def check_unchanged(file: StoredFile) -> None:
    """Raise FileReplacedError if a file of this machine is not as it was."""
    if stat_file(file.path).version != file.version:
        raise FileReplacedError(f"{file.path} was replaced while it was read; run it again.")


@dataclass(slots=True)
class HostFiles:
    """The files in a folder; safe to use from several threads and processes."""

    folder: Path
    # At most so many bytes; None for half of what the file system has for them.
    limit_bytes: int | None = None
    is_interrupted: Callable[[], bool] = lambda: False

    @contextlib.contextmanager
    def held(
        self,
        files: Sequence[StoredFile],
        parts: Sequence[FilePart] = (),
        access: StoreAccess = FROM_ENVIRONMENT,
    ) -> Iterator[list[str]]:
        """Local paths of files, with what is needed of each, while the block runs.

        Files of this machine keep their paths. `parts` has one entry per file, or is empty if all
        are needed as a whole.

        Raises:
            FileReplacedError: a file has another version by now.
            DataError: a file is gone, or the store does not answer, or denies access.
            OSError: the disk is full.
        """
        remote = [i for i, file in enumerate(files) if file.is_remote]
        paths = [file.path for file in files]
        if not remote:
            yield paths
            return
        with contextlib.ExitStack() as held:
            entries = [_Entry(self.folder, files[i], access) for i in remote]
            for entry in entries:
                held.enter_context(entry.held())
            self._fetch(entries, [parts[i] if parts else WHOLE for i in remote])
            for i, entry in zip(remote, entries, strict=True):
                paths[i] = str(entry.data)
            yield paths

    def metadata(
        self, files: Sequence[StoredFile], access: StoreAccess = FROM_ENVIRONMENT
    ) -> contextlib.AbstractContextManager[list[str]]:
        """As `held`, for Parquet files of which only the metadata is needed."""
        return self.held(files, [FilePart(columns=())] * len(files), access)

    def _fetch(self, entries: Sequence[_Entry], parts: Sequence[FilePart]) -> None:
        """Fetch what is missing: first the metadata of Parquet files that are needed in part."""
        some = [entry for entry, part in zip(entries, parts, strict=True) if part != WHOLE]
        self._get([(entry, metadata_range(entry.file.bytes)) for entry in some])
        longer = [(entry, metadata_range(entry.file.bytes, entry.tail())) for entry in some]
        self._get(longer)
        ranges = []
        for entry, part in zip(entries, parts, strict=True):
            if part == WHOLE:
                ranges.append((entry, (0, entry.file.bytes)))
            else:
                ranges += [(entry, range_) for range_ in entry.needed(part)]
        self._get(ranges)

    def _get(self, asked: Iterable[tuple[_Entry, Range]]) -> None:
        by_entry: dict[_Entry, list[Range]] = {}
        for entry, range_ in asked:
            by_entry.setdefault(entry, []).append(range_)
        requests = [
            (entry, request)
            for entry, ranges in by_entry.items()
            for request in requests_for(without(ranges, entry.present()))
        ]
        if not requests:
            return
        self._make_room(sum(last - first for _, (first, last) in requests))
        at_once([partial(self._get_one, *request) for request in requests], _AT_ONCE)

    def _get_one(self, entry: _Entry, request: Range) -> None:
        if self.is_interrupted():
            raise FetchInterruptedError
        entry.fetch(request)

    def _make_room(self, size: int) -> None:
        """Remove entries until `size` bytes fit, the least recently used first."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            used = folder_bytes(self.folder)
            free = free_bytes(self.folder) - _RESERVE_BYTES
            limit = max(0, used + free) // 2 if self.limit_bytes is None else self.limit_bytes
            excess = used + size - min(limit, used + free)
            if excess <= 0:
                return
            for entry in sorted(self.folder.glob("*/"), key=_used_s):
                excess -= _removed(entry)
                if excess <= 0:
                    return
        if size > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))


def _used_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _removed(folder: Path) -> int:
    """Remove an entry that nobody reads; the number of its bytes."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return 0
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = folder_bytes(folder)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return 0
    finally:
        os.close(handle)
    return size


class _Entry:
    """One version of one file."""

    def __init__(self, folder: Path, file: StoredFile, access: StoreAccess) -> None:
        self.file = file
        self._access = access
        name = hashlib.sha256(f"{file.path}\n{file.version}".encode()).hexdigest()[:32]
        self._folder = folder / name
        # Readers tell formats and compression from the suffix.
        suffix = "".join(Path(file.path.rpartition("/")[2]).suffixes[-2:])
        self.data = self._folder / f"data{suffix}"
        self._ranges = self._folder / "ranges"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the entry from being removed, while the block runs; make it if there is none."""
        handle = self._opened()
        try:
            os.utime(self._folder)
            with self.data.open("ab") as data:
                if data.tell() != self.file.bytes:
                    data.truncate(self.file.bytes)
            yield
        finally:
            os.close(handle)

    def _opened(self) -> int:
        while True:
            # Not its parents: if the session has ended, nobody would remove them.
            self._folder.parent.mkdir(exist_ok=True)
            self._folder.mkdir(exist_ok=True)
            try:
                handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            fcntl.flock(handle, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), self._folder.stat()):
                    return handle
            os.close(handle)  # it was removed meanwhile

    def present(self) -> list[Range]:
        """The bytes that are there."""
        try:
            records = self._ranges.read_bytes()
        except FileNotFoundError:
            return []
        whole = len(records) - len(records) % _RECORD.size
        return merged(_RECORD.iter_unpack(records[:whole]))

    def tail(self) -> bytes:
        with self.data.open("rb") as data:
            data.seek(max(0, self.file.bytes - 8))
            return data.read()

    def needed(self, part: FilePart) -> list[Range]:
        try:
            metadata = pq.read_metadata(self.data)
        except (OSError, ValueError) as error:
            raise DataError(f"Can't read {self.file.path}: it is not a Parquet file.") from error
        if part.columns == ():
            return []
        return needed_ranges(metadata, self.file.bytes, part)

    def fetch(self, request: Range) -> None:
        """Fetch bytes, unless another thread or process does so just now."""
        with self.data.open("r+b", buffering=0) as data, _locked(data.fileno(), request):
            for first, last in without([request], self.present()):
                got = memoryview(read_range(self.file, first, last, self._access))
                data.seek(first)
                while got:
                    got = got[data.write(got) :]
            with self._ranges.open("ab", buffering=0) as ranges:
                ranges.write(_RECORD.pack(*request))


@contextlib.contextmanager
def _locked(handle: int, part: Range) -> Iterator[None]:
    """Hold the lock of a range of a file, which is the open file's, not the process's."""
    first, last = part

    def lock(kind: int) -> None:
        flock = _LOCK.pack(kind, os.SEEK_SET, first, last - first, 0)
        fcntl.fcntl(handle, fcntl.F_OFD_SETLKW, flock)

    lock(fcntl.F_WRLCK)
    try:
        yield
    finally:
        lock(fcntl.F_UNLCK)


def merged(ranges: Iterable[Range], apart: int = 0) -> list[Range]:
    """The ranges in order, those joined that touch, or are at most `apart` bytes apart."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + apart:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def without(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """The ranges without the bytes of others."""
    left: list[Range] = []
    removed = merged(others)
    for first, last in merged(ranges):
        for start, end in removed:
            if end <= first or start >= last:
                continue
            if start > first:
                left.append((first, start))
            first = end  # noqa: PLW2901 - what is left of it
        if first < last:
            left.append((first, last))
    return left


def requests_for(ranges: Iterable[Range]) -> list[Range]:
    """Requests for ranges of a file: few, but none so large that it could not be one of several."""
    return [
        (start, min(start + _REQUEST_BYTES, last))
        for first, last in merged(ranges, _JOINED_BYTES)
        for start in range(first, last, _REQUEST_BYTES)
    ]
