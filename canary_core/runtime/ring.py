"""A ring in shared memory, by which one process of a host sends messages to another.

A message costs two copies and no system call, where a socket costs several of each and a thread
that wakes. The writer makes the file and holds a lock on it as long as it uses the ring; the reader
maps the file and removes its name, so nothing is left behind by a process that is killed.

The words of the header are each written by one side only, but for the reader's state. That data are
there before the word that says so relies on the order in which x86-64 makes stores visible: other
machines use sockets.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import platform
import threading
from collections.abc import Sequence
from pathlib import Path

Data = bytes | memoryview

IS_SUPPORTED = platform.system() == "Linux" and platform.machine() == "x86_64"
_HEADER = 4096
_DATA = _HEADER // 8
# Words of the header, a cache line for each.
_WRITTEN, _READ, _STATE = 0, 8, 16
_BUSY, _WAITING, _ASLEEP = 0, 1, 2  # the reader
_SKIP = (1 << 64) - 1  # instead of a message: the next one is at the start of the ring
_FIRST_WAY = 8
"""An empty ring begins anew after an eighth of its length: memory that was just used is cached."""

_barrier = threading.Lock()


def default_capacity() -> int:
    """Bytes for the ring of a pair of processes: a host with many cores has many pairs."""
    return min(8 << 20, max(1 << 20, (64 << 20) // (os.cpu_count() or 1)))


class _Ring:
    """The mapping of a ring's file."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.capacity = os.fstat(fd).st_size - _HEADER
        self._map = mmap.mmap(fd, 0)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")

    def close(self) -> None:
        """Unmap it; the writer's lock goes with the descriptor."""
        self.words.release()
        self.bytes.release()
        self._map.close()
        os.close(self.fd)


class RingWriter:
    """The end that sends."""

    def __init__(self, path: Path, capacity: int) -> None:
        """Make the file, of a multiple of 8 bytes.

        Raises:
            OSError: There is no room for it.
        """
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Reserved now: a write to a full file system later would kill the process.
            os.posix_fallocate(fd, 0, _HEADER + capacity)
            self._ring = _Ring(fd)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        self._written = 0

    def write(self, frames: Sequence[Data]) -> bool:
        """Copy a message into the ring; False if there is no room."""
        ring, words = self._ring, self._ring.words
        sizes = [len(frame) for frame in frames]
        need = 8 * (1 + len(sizes)) + sum([_padded(size) for size in sizes])
        read, written = words[_READ], self._written
        free, at = ring.capacity - (written - read), written % ring.capacity
        to_end = ring.capacity - at
        is_stale = read == written and at >= ring.capacity // _FIRST_WAY and need <= at
        if need > to_end or is_stale:
            if free < to_end + need:
                return False
            words[_DATA + at // 8] = _SKIP
            written, at = written + to_end, 0
        elif free < need:
            return False
        word = _DATA + at // 8
        words[word] = len(sizes)
        for place, size in enumerate(sizes, word + 1):
            words[place] = size
        start = 8 * (word + 1 + len(sizes))
        for frame, size in zip(frames, sizes, strict=True):
            ring.bytes[start : start + size] = frame
            start += _padded(size)
        self._written = written + need
        words[_WRITTEN] = self._written
        return True

    def must_wake(self) -> bool:
        """After `write`: whether the reader sleeps, and has to be woken by other means."""
        with _barrier:  # a locked instruction: what was written is visible before this is read
            pass
        if self._ring.words[_STATE] != _ASLEEP:
            return False
        self._ring.words[_STATE] = _WAITING
        return True

    @property
    def is_awaited(self) -> bool:
        """Whether the reader has nothing to do until a message comes."""
        return self._ring.words[_STATE] != _BUSY

    def close(self) -> None:
        """What was written stays readable for a reader that has opened the ring."""
        self._ring.close()
        self.path.unlink(missing_ok=True)


class RingReader:
    """The end that receives."""

    def __init__(self, path: Path) -> None:
        """Map a file that a writer has made, and remove its name.

        Raises:
            OSError: It is not there.
        """
        self._ring = _Ring(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        path.unlink(missing_ok=True)
        self._read = 0

    def take(self, received: list[list[memoryview]], most: float) -> None:
        """Add at most so many messages to a list: copies that nobody can change."""
        ring, words = self._ring, self._ring.words
        while self._read != words[_WRITTEN] and most > 0:
            word = _DATA + self._read % ring.capacity // 8
            count = words[word]
            if count == _SKIP:
                self._read += ring.capacity - self._read % ring.capacity
                continue
            start = first = 8 * (word + 1 + count)
            frames = []
            for size in words[word + 1 : word + 1 + count]:
                frames.append(memoryview(bytes(ring.bytes[start : start + size])))
                start += _padded(size)
            self._read += start - first + 8 * (1 + count)
            words[_READ] = self._read
            received.append(frames)
            most -= 1

    @property
    def has_more(self) -> bool:
        """Whether there is something to take."""
        return self._read != self._ring.words[_WRITTEN]

    def wait(self) -> None:
        """From now on the writer knows that it is waited for."""
        self._ring.words[_STATE] = _WAITING

    def sleep(self) -> None:
        """From now on the writer wakes; `has_more` is to be looked at once more after it."""
        self._ring.words[_STATE] = _ASLEEP
        with _barrier:
            pass

    def awake(self) -> None:
        """The writer need not wake, and nobody waits."""
        self._ring.words[_STATE] = _BUSY

    @property
    def is_abandoned(self) -> bool:
        """Whether the writer has closed the ring or died."""
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._ring.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def close(self) -> None:
        """Unmap it."""
        self._ring.close()


def _padded(size: int) -> int:
    return (size + 7) & ~7
