"""Writes Arrow files batch by batch: in shared memory while there is room, else on disk.

Space for each batch is reserved before it is written. Where there is none, the file moves to disk
and continues there. A file is invisible until it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa
from xxhash import xxh3_64

from minishark.errors import ResourceError
from minishark.worker.paths import follow, temporary_path
from minishark.worker.seals import (
    BLOCK_BYTES,
    Seal,
    checksum,
    is_sound,
    sealed_name,
)
from minishark.worker.storage import StorageMeter

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a file system without free space."""

_SLACK_BYTES = 8 << 10  # for a file's head and foot
_COLUMN_SLACK_BYTES = 512  # for a column's description and padding in a batch


def disk_full(error: Exception) -> str:
    """Advice for a full disk."""
    return (
        "The disk is full: free some of it, or set TMPDIR to a folder on a larger one before "
        f"minishark starts. ({error})"
    )


class DamagedError(OSError):
    """A file came with other bytes than were written."""


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """A block in which a full disk is a ResourceError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise ResourceError(disk_full(error)) from error
        raise


@contextlib.contextmanager
def _naming(path: Callable[[], Path]) -> Iterator[None]:
    """Errors of a full disk that name the file, as a descriptor does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path())) from error


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was written, and the size of its data."""

    path: Path
    bytes: int
    rows: int
    on_disk: bool

    def named(self, file: str) -> str:
        """The name in the store of a file that was to be called `file`: its seal may be in it."""
        return f"{file.rpartition('/')[0]}/{self.path.name}"


def mapped(stored: StoredFile) -> pa.Table:
    """The rows of a file, memory-mapped without a copy."""
    return pa.ipc.open_file(pa.memory_map(str(stored.path))).read_all()


class _SealedFile(io.RawIOBase):
    """A file that takes the digest of what is written to it, while a cache has that."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._digest = xxh3_64()
        self._size = 0

    @property
    def digest(self) -> int:
        """That of what was written."""
        return self._digest.intdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        left = view
        while left:
            written = left[: os.write(self._handle, left[:BLOCK_BYTES])]
            self._digest.update(written)
            left = left[len(written) :]
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def fileno(self) -> int:
        return self._handle

    def close(self) -> None:
        if not self.closed:
            os.close(self._handle)
        super().close()


class FileWriter:
    """A file that is being written; a context manager, after which `stored` describes it.

    If the block fails, the file is removed.
    """

    def __init__(
        self,
        memory: Path,
        disk: Path,
        schema: pa.Schema,
        meter: StorageMeter | None,
        seal: Seal = Seal.NONE,
    ) -> None:
        """Write to a path in shared memory, the same as `disk` where there is none, or to disk."""
        self._seal = seal
        self._paths = {False: memory, True: disk}
        self._schema = schema
        self._meter = None if memory == disk else meter
        self._on_disk = False
        self._bytes = 0
        self._rows = 0
        self._temporary: Path | None = None
        self._sink: pa.OSFile | _SealedFile | None = None
        self._writer: pa.RecordBatchFileWriter | None = None
        self.stored: StoredFile | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write batches.

        Raises:
            OSError: the disk is full, or the folder is not there (any more).
        """
        size = sum(batch.nbytes for batch in batches)
        need = _SLACK_BYTES + size + len(batches) * len(self._schema) * _COLUMN_SLACK_BYTES
        with _naming(self._path):
            writer = self._with_room(need)
            for batch in batches:
                writer.write_batch(batch)
                self._rows += batch.num_rows
        self._bytes += size

    def _path(self) -> Path:
        return self._paths[self._on_disk]

    def _with_room(self, need: int) -> pa.RecordBatchFileWriter:
        """The writer, after reserving `need` bytes if it writes to shared memory."""
        if self._meter is not None and not self._on_disk:
            if not self._meter.has_room(need):
                self._move_to_disk()
            else:
                try:
                    sink, _ = self._opened()
                    # It clears the pages, which takes half as long as writing them.
                    if not self._meter.has_plenty(need):
                        os.posix_fallocate(sink.fileno(), sink.tell(), need)
                    self._meter.note(need)
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    self._move_to_disk()
        return self._opened()[1]

    def _opened(self) -> tuple[pa.OSFile | _SealedFile, pa.RecordBatchFileWriter]:
        if self._sink is None or self._writer is None:
            path = self._paths[self._on_disk]
            if self._on_disk:
                follow(self._paths[False].parent, path.parent)
            self._temporary = temporary_path(path)
            if self._seal is Seal.ALWAYS:
                self._sink = _SealedFile(self._temporary)
                self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, "w"), self._schema)
            else:
                self._sink = pa.OSFile(str(self._temporary), "wb")
                self._writer = pa.ipc.new_file(self._sink, self._schema)
        return self._sink, self._writer

    def _move_to_disk(self) -> None:
        self._on_disk = True
        if self._sink is None or self._temporary is None:
            return
        follow(self._paths[False].parent, self._paths[True].parent)
        old, new = self._temporary, temporary_path(self._paths[True])
        written = self._sink.tell()
        self._temporary = new
        try:
            shutil.copyfile(old, new)
            # The writer knows the file by its descriptor only.
            with new.open("r+b") as moved:
                moved.truncate(written)
                moved.seek(written)
                os.dup2(moved.fileno(), self._sink.fileno(), inheritable=False)
        finally:
            old.unlink(missing_ok=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                with _naming(self._path):
                    self._finish()
        finally:
            if self._sink is not None:
                self._sink.close()
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        sink, writer = self._opened()
        writer.close()
        os.ftruncate(sink.fileno(), sink.tell())
        sink.close()
        assert self._temporary is not None
        path = self._path()
        if isinstance(sink, _SealedFile):
            path = path.with_name(sealed_name(path.name, sink.digest))
        elif self._seal is Seal.ON_DISK and self._on_disk:
            path = path.with_name(sealed_name(path.name, checksum(self._temporary)))
        self._temporary.rename(path)
        self.stored = StoredFile(path, self._bytes, self._rows, self._on_disk)


class RawFile:
    """A file that is copied as bytes; a context manager, after which it has its name.

    It is removed if the block fails, or if other bytes came than were announced, or than its name
    has the digest of.
    """

    def __init__(self, memory: Path, disk: Path, meter: StorageMeter) -> None:
        """Write to a path in shared memory if there is room, or to one on disk."""
        self._memory = memory
        self._disk = disk
        self._meter = meter
        self._file: BinaryIO | None = None
        self._path = memory
        self._temporary = memory
        self._size = 0

    def write(self, data: memoryview, size: int) -> None:
        """The next bytes of a file of `size` bytes.

        Raises:
            OSError: the disk is full, or the folder is not there (any more).
        """
        with _naming(lambda: self._path):
            if self._file is None:
                self._size = size
                self._file = self._opened(size)
            self._file.write(data)

    def restart(self) -> None:
        """Forget what was written."""
        if self._file is not None:
            self._file.close()
            self._temporary.unlink(missing_ok=True)
            self._file = None

    def _opened(self, size: int) -> BinaryIO:
        if self._meter.has_room(size) or self._memory == self._disk:
            file = self._open(self._memory)
            if self._meter.has_plenty(size):
                return file
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                file.close()
                self._temporary.unlink(missing_ok=True)
                if error.errno not in FULL or self._memory == self._disk:
                    raise
            else:
                return file
        follow(self._memory.parent, self._disk.parent)
        return self._open(self._disk)

    def _open(self, path: Path) -> BinaryIO:
        self._path = path
        self._temporary = temporary_path(path)
        return self._temporary.open("wb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is None:
            return
        try:
            if kind is None:
                if self._file.tell() != self._size:
                    message = f"{self._path.name} came with {self._file.tell()} bytes"
                    raise OSError(f"{message} of {self._size}")
                if not is_sound(self._temporary, self._path.name):
                    raise DamagedError(f"{self._path.name} came damaged")
                self._meter.note(self._size)
                self._temporary.rename(self._path)
        finally:
            self._file.close()
            self._temporary.unlink(missing_ok=True)
