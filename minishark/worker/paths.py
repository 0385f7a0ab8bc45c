"""The folders of a cluster's files on this machine: in shared memory, and on disk.

Light, as the processes of a cluster are started before Arrow is imported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_REMOVE_TRIES = 5


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The two folders of a cluster's store, each with one sub-folder per node."""

    memory: Path
    disk: Path

    def make(self, folder: str, nodes: Sequence[str]) -> None:
        """Create a folder on every node; files are only ever written to existing folders.

        On disk it is created when the first file needs it: few do, and disks are slower.

        Raises:
            FileNotFoundError: the store itself is gone, with its owner, who would clean up.
        """
        for node in nodes:
            try:
                os.mkdir(f"{self.memory}/{node}/{folder}")  # noqa: PTH102 - each query does it
            except (FileNotFoundError, FileExistsError):  # it is the node's first, or is there
                self._make_up_to(node, folder)

    def _make_up_to(self, node: str, folder: str) -> None:
        """Create a folder on a node, with its parents up to the store, which must exist."""
        path = self.memory
        for part in (node, *Path(folder).parts):
            path /= part
            path.mkdir(exist_ok=True)

    def remove(self, folder: str, nodes: Sequence[str]) -> None:
        """Delete a folder on every node; tasks that still write to it fail."""
        for place in dict.fromkeys((self.memory, self.disk)):  # memory first: disk follows it
            for path in [f"{place}/{node}/{folder}" for node in nodes]:
                tries = _REMOVE_TRIES
                while tries and not _try_to_remove(path):  # a task may write a file in the meantime
                    shutil.rmtree(path, ignore_errors=True)
                    tries -= 1

    def remove_file(self, file: str, node: str) -> None:
        """Delete a node's copy of a file, if it has one."""
        for place in (self.memory, self.disk):
            (place / node / file).unlink(missing_ok=True)

    def link(self, file: str, source: str, target: str) -> bool:
        """Link another node's file into a node's folder; whether that succeeded."""
        path = self.find(file, (source,))
        if path is None:
            return False
        with contextlib.suppress(OSError):  # it is full, or the folder is gone
            self.take(path, target, file)
            return True
        return False

    def take(self, path: Path, node: str, file: str) -> None:
        """Link a file of this host into a node's folder, or copy it from another file system.

        Raises:
            OSError: the file system is full, or the folder is gone.
        """
        copy = self.memory / node / file
        if path.stat().st_dev != self.memory.stat().st_dev:
            follow(copy.parent, (self.disk / node / file).parent)
            copy = self.disk / node / file
        link(path, copy)

    def find(self, file: str, locations: Sequence[str]) -> Path | None:
        """The first copy of `file` that exists, or None."""
        for node in locations:
            for place in (self.memory, self.disk):
                path = place / node / file
                if path.exists():
                    return path
        return None


def _try_to_remove(path: str) -> bool:
    """Remove a folder if it is empty; whether it is gone."""
    try:
        os.rmdir(path)  # noqa: PTH106 - each query does it
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def link(path: Path, copy: Path) -> None:
    """A hard link to a file, or a copy on another file system."""
    copy.unlink(missing_ok=True)
    try:
        os.link(path, copy)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_file(path, copy)


def follow(memory: Path, disk: Path) -> None:
    """Create a folder on disk if its counterpart in shared memory still exists.

    Raises:
        FileNotFoundError: the counterpart was removed: its files are no longer needed.
    """
    if memory == disk:
        return
    if memory.exists():
        disk.mkdir(parents=True, exist_ok=True)
        if memory.exists():
            return
        # It was removed meanwhile, perhaps with its owner: nobody else would remove the new one.
        shutil.rmtree(disk, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.removedirs(disk.parent)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(memory))


def copy_file(source: Path, target: Path) -> None:
    """Copy a file; it becomes visible under its name when it is complete.

    Raises:
        OSError: it failed.
    """
    temporary = temporary_path(target)
    try:
        shutil.copyfile(source, temporary)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """A name beside `path` for an incomplete file, unique to this thread."""
    return path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
