"""The shared memory that a node's files take.

Several processes write and remove files there, and any of them may die, so only the folder itself
tells. Scanning it costs time: a process does so rarely, and adds what it has written since.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

_RESERVE_BYTES = 16 << 20
_PLENTY_BYTES = 1 << 30
_WRITERS_MAX = 64
_IDLE_FACTOR = 100
"""Scanning takes at most one hundredth of a process's time."""


class StorageMeter:
    """Measures a node's folder in shared memory; safe to use from several threads."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        """Measure a node's folder, whose files may take at most `limit_bytes`."""
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._found_bytes = 0
        self._written_bytes = 0
        self._look_at_s = 0.0

    def used_bytes(self) -> int:
        """The size of the node's files in bytes, at the last scan and written since."""
        now = time.monotonic()
        if now >= self._look_at_s:
            self._written_bytes = 0
            self._found_bytes = folder_bytes(self._folder)
            took_s = time.monotonic() - now
            self._look_at_s = now + took_s * _IDLE_FACTOR
        return self._found_bytes + self._written_bytes

    def note(self, written_bytes: int) -> None:
        """Count bytes that this process has written."""
        self._written_bytes += written_bytes

    def has_plenty(self, size: int) -> bool:
        """Whether many such writes fit at once, so that space need not be reserved."""
        return free_bytes(self._folder) > _WRITERS_MAX * size + _PLENTY_BYTES

    def has_room(self, size: int) -> bool:
        """Whether a file may grow by `size` bytes in shared memory."""
        if free_bytes(self._folder) <= size + _RESERVE_BYTES:
            return False
        return self._limit_bytes is None or self.used_bytes() + size <= self._limit_bytes


def free_bytes(folder: Path) -> int:
    """The free bytes of a folder's file system; 0 if it is gone."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def folder_bytes(folder: str | Path) -> int:
    """The bytes of all files below a folder; a hard link counts its share of the file."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += folder_bytes(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * 512 // max(1, status.st_nlink)
    except OSError:  # it was removed meanwhile
        pass
    return total
