"""How much a node's files take of shared memory.

Several processes write and remove files there, and any of them may die: what counts is what is
found in the folder. Looking costs time, so a process looks seldom, and adds what it wrote since.
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
"""Looking takes at most one part in so many of a process's time."""


class StorageMeter:
    """Measures a node's folder in shared memory; safe to use from several threads."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        """Measure from now on.

        Args:
            folder: the node's.
            limit_bytes: what its files may take; None for all that there is.
        """
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._found_bytes = 0
        self._written_bytes = 0
        self._look_at_s = 0.0

    def used_bytes(self) -> int:
        """What the node's files take, as far as is known."""
        now = time.monotonic()
        if now >= self._look_at_s:
            self._written_bytes = 0
            self._found_bytes = folder_bytes(self._folder)
            took_s = time.monotonic() - now
            self._look_at_s = now + took_s * _IDLE_FACTOR
        return self._found_bytes + self._written_bytes

    def note(self, written_bytes: int) -> None:
        """This process has written so much."""
        self._written_bytes += written_bytes

    def has_plenty(self, size: int) -> bool:
        """Whether there is room for many such writes at once, so that none needs to be reserved."""
        return free_bytes(self._folder) > _WRITERS_MAX * size + _PLENTY_BYTES

    def has_room(self, size: int) -> bool:
        """Whether a file may take so much more of shared memory."""
        if free_bytes(self._folder) <= size + _RESERVE_BYTES:
            return False
        return self._limit_bytes is None or self.used_bytes() + size <= self._limit_bytes


def free_bytes(folder: Path) -> int:
    """What is free where a folder lies; nothing if it is gone."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def folder_bytes(folder: str | Path) -> int:
    """What the files below a folder take; of one with several names, each name's part of it."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += folder_bytes(entry.path)
                else:
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * 512 // max(1, found.st_nlink)
    except OSError:  # it was removed meanwhile
        pass
    return total
