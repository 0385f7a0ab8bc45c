"""The folders of a cluster on this machine, and who removes them.

A session holds a lock on a file in each of its folders for as long as it lives. A folder whose lock
is free belongs to nobody: executors remove it when they end, and any later session when it starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from minishark.errors import ResourceError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of mode 0700 with a random name is made in it
SHARED_MEMORY_MIN_BYTES = 64 << 20
_PREFIX = "minishark-"
_LOCK = "owner.lock"
_GRACE_S = 60.0
_TRIES = 3


@dataclass(slots=True)
class ClusterFolders:
    """A session's own folders.

    Attributes:
        memory: for Arrow files, in shared memory; the same as `disk` where there is none to be had.
        disk: for what does not fit there, for spilling, sockets and logs.
        warning: a sentence for the user if shared memory can't be used, else None.
    """

    memory: Path
    disk: Path
    warning: str | None
    _locks: list[IO[str]]

    @property
    def locks(self) -> tuple[int, ...]:
        """The files that hold the locks; a child that inherits them shares them."""
        return tuple(lock.fileno() for lock in self._locks)

    def give_away(self) -> None:
        """A child has the locks now, and with them the folders."""
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def remove(self) -> None:
        """Remove both folders and all in them."""
        for lock in self._locks:
            lock.close()
        self._locks.clear()
        shutil.rmtree(self.memory, ignore_errors=True)
        shutil.rmtree(self.disk, ignore_errors=True)


def inherit_folders(memory: Path, disk: Path, locks: Sequence[int]) -> ClusterFolders:
    """The folders that a parent made for this process, with the locks as it passed them."""
    for lock in locks:
        os.set_inheritable(lock, False)
    return ClusterFolders(memory, disk, None, [os.fdopen(lock, "w") for lock in locks])


def make_folders(shared_memory: Path | None = None) -> ClusterFolders:
    """Make a session's folders, and remove those that dead sessions left.

    Args:
        shared_memory: where shared memory is; None for `SHARED_MEMORY`.

    Raises:
        ResourceError: not even the folder for temporary files is writable.
    """
    shared_memory = shared_memory or SHARED_MEMORY
    for _ in range(_TRIES - 1):
        # Another session may take a new folder for an orphan before it is locked.
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            return _make_folders(shared_memory)
    return _make_folders(shared_memory)


def _make_folders(shared_memory: Path) -> ClusterFolders:
    temporary = Path(tempfile.gettempdir())
    for parent in (shared_memory, temporary):
        reap(parent)
    try:
        disk = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise ResourceError(
            f"Can't make a folder in {temporary} ({error.strerror}); "
            "set TMPDIR to one that is writable."
        ) from error
    locks = [_lock(disk)]
    memory, warning = _memory_folder(shared_memory)
    if memory is not None:
        locks.append(_lock(memory))
    return ClusterFolders(memory or disk, disk, warning, locks)


def _memory_folder(shared_memory: Path) -> tuple[Path | None, str | None]:
    try:
        free = shutil.disk_usage(shared_memory).free
        if free >= SHARED_MEMORY_MIN_BYTES:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=shared_memory)), None
        reason = f"has only {free >> 20} MB free"
    except OSError as error:
        reason = f"can't be used ({error.strerror})"
    return None, f"{shared_memory} {reason}: data is kept on disk, which is slower."


def _lock(folder: Path) -> IO[str]:
    lock = (folder / _LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def remove_if_orphaned(folder: Path) -> bool:
    """Remove a session's or a node's folder if its owner is gone; whether it was."""
    if not folder.name.startswith(_PREFIX):
        return False  # whoever named it: it is none of ours
    try:
        with (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            return True
    except FileNotFoundError:
        return _remove_if_old(folder)
    except OSError:
        return False


def _remove_if_old(folder: Path) -> bool:
    """A folder without a lock is one that is just being made, or one that was half removed."""
    with contextlib.suppress(OSError):
        if time.time() - folder.stat().st_mtime > _GRACE_S:
            shutil.rmtree(folder, ignore_errors=True)
            return True
    return False


def reap(parent: Path) -> None:
    """Remove what dead sessions of this user left in `parent`."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{_PREFIX}*"):
            if folder.is_dir() and folder.stat().st_uid == os.getuid():
                remove_if_orphaned(folder)
