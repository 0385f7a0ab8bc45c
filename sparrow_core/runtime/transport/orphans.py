"""Removal of private folders that stand in a folder which users share, as `/tmp`.

Other users may exchange what a name there stands for at any moment, for instance a folder of theirs
for a link to one of ours. So a folder is opened once, without following a link; what it is, whose
it is and whether its lock is free is asked of what was opened, and all is removed through that.
Only an empty folder is removed by its name, which follows no link either.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe does not block it


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A descriptor of a folder that is this user's, and nobody else's.

    Raises:
        OSError: There is no such folder: no directory, a link, another user's, or open to others.
    """
    descriptor = os.open(folder, _FOLDER | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PermissionError(f"{folder} is not a private folder of this user")
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: int, lock: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of an opened folder, which is a file in it.

    Raises:
        OSError: It has none, somebody holds it, or the file may be one that is elsewhere, too.
    """
    descriptor = os.open(lock, _LOCK, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        ours = (
            stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
        )
        if not ours:
            raise PermissionError(f"{lock} is not a lock of this user")
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove(folder: Path, lock: str) -> None:
    """Remove a private folder, if it is one; its lock last, when nothing else is left.

    So what is half removed is recognised as orphaned.
    """
    with contextlib.suppress(OSError), opened(folder) as descriptor:
        _remove(folder, descriptor, lock)


def remove_if_orphaned(folder: Path, lock: str) -> bool:
    """Remove a private folder if nobody holds its lock; whether it did."""
    try:
        with opened(folder) as descriptor, locked(descriptor, lock):
            _remove(folder, descriptor, lock)
            return True
    except OSError:
        return False


def _remove(folder: Path, descriptor: int, lock: str) -> None:
    with os.scandir(descriptor) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for name, is_folder in entries:
        if is_folder:
            shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
        elif name != lock:
            _unlink(name, descriptor)
    with os.scandir(descriptor) as listing:
        if any(entry.name != lock for entry in listing):
            raise PermissionError(f"{folder} has something that can't be removed")
    _unlink(lock, descriptor)
    parent = os.open(folder.parent, _FOLDER)
    try:
        at_name = os.stat(folder.name, dir_fd=parent, follow_symlinks=False)
        if os.path.samestat(at_name, os.fstat(descriptor)):
            os.rmdir(folder.name, dir_fd=parent)
    finally:
        os.close(parent)


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
