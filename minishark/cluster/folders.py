"""The folders of a cluster on this machine, and their removal.

A session or node holds a lock on a file in each of its folders while it lives. A folder whose lock
is free is orphaned: executors remove it when they end, and any later session when it starts. A
folder is renamed to its final name only when it is locked, and its lock is deleted last: a folder
without a lock file, whatever its name, is not a session's and is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from minishark.errors import ResourceError
from sparrow_core.runtime.transport import orphans

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of mode 0700 with a random name is made in it
SHARED_MEMORY_MIN_BYTES = 64 << 20
SPILL = "spill"
SESSION_PREFIX = "s-"
"""How the names of sessions' folders on nodes begin."""

_PREFIX = "minishark-"
LOCK = "owner.lock"
_DRAFT_PREFIX = ".minishark-"


@dataclass(slots=True, weakref_slot=True, eq=False)
class ClusterFolders:
    """The folders of a session or node."""

    memory: Path  # for Arrow files, in shared memory; the same as `disk` if that is unusable
    disk: Path  # for what does not fit into memory, for spilling, sockets and logs
    warning: str | None  # a sentence for the user if shared memory is unusable, else None
    _locks: list[IO[str]]

    def __post_init__(self) -> None:
        _owned.add(self)

    @property
    def locks(self) -> tuple[int, ...]:
        """File descriptors of the locks; a child process that inherits them shares the locks."""
        return tuple(lock.fileno() for lock in self._locks)

    def release(self) -> None:
        """Close the locks of folders that a child process owns from now on."""
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def remove(self) -> None:
        self.release()
        remove_folder(self.memory)
        remove_folder(self.disk)


_owned: weakref.WeakSet[ClusterFolders] = weakref.WeakSet()


def _release_all() -> None:
    """Close all locks in a forked child, else the folders would never be orphaned."""
    for folders in tuple(_owned):
        folders.release()


os.register_at_fork(after_in_child=_release_all)


def inherit_folders(memory: Path, disk: Path, locks: Sequence[int]) -> ClusterFolders:
    """The folders that the parent process made for this one, with the inherited locks."""
    for lock in locks:
        os.set_inheritable(lock, False)
    return ClusterFolders(memory, disk, None, [os.fdopen(lock, "w") for lock in locks])


def make_folders(shared_memory: Path | None = None) -> ClusterFolders:
    """Make folders for a session or node, and remove orphaned ones."""
    # `shared_memory` is its mount point, with None `SHARED_MEMORY`. ResourceError if the folder for
    # temporary files is not writable.
    shared_memory = shared_memory or SHARED_MEMORY
    temporary = Path(tempfile.gettempdir())
    reap_all(shared_memory)
    with contextlib.ExitStack() as undo:  # Ctrl-C may come at any time
        try:
            disk, lock = locked_folder(temporary, undo)
        except OSError as error:
            raise ResourceError(
                f"Can't make a folder in {temporary} ({error.strerror}); "
                "set TMPDIR to one that is writable."
            ) from error
        memory, locks, reason = disk, [lock], None
        try:
            free = shutil.disk_usage(shared_memory).free
            if free >= SHARED_MEMORY_MIN_BYTES:
                memory, lock = locked_folder(shared_memory, undo)
                locks.append(lock)
            else:
                reason = f"has only {free >> 20} MB free"
        except OSError as error:
            reason = f"can't be used ({error.strerror})"
        warning = f"{shared_memory} {reason}: data is kept on disk, which is slower."
        folders = ClusterFolders(memory, disk, warning if reason else None, locks)
        undo.pop_all()
    return folders


def locked_folder(parent: Path, undo: contextlib.ExitStack) -> tuple[Path, IO[str]]:
    """A new folder and its lock; renamed once it is locked, so that it never looks orphaned."""
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT_PREFIX, dir=parent))
    folder = parent / draft.name.replace(_DRAFT_PREFIX, _PREFIX, 1)
    with contextlib.ExitStack() as undo_draft:
        undo_draft.callback(remove_folder, draft)
        lock = undo_draft.enter_context((draft / LOCK).open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        undo.callback(remove_folder, folder)
        undo.enter_context(lock)
        draft.rename(folder)
        undo_draft.pop_all()
    return folder, lock


def remove_folder(folder: Path) -> None:
    """Remove a session's or node's folder, if it is this user's; nothing if it is gone."""
    orphans.remove(folder, LOCK)


def remove_if_orphaned(folder: Path) -> bool:
    """Remove a session's or node's folder if its owner is dead; whether it did."""
    return folder.name.startswith(_PREFIX) and orphans.remove_if_orphaned(folder, LOCK)


def make_spill_folder(node: Path) -> None:
    """Make the folder where a node's executors spill, and remove files of killed executors."""
    # Each executor has a folder `<pid>-<slot>` in it. Does nothing if the session's folder is gone.
    folder = node / SPILL
    with contextlib.suppress(FileNotFoundError):
        node.mkdir(exist_ok=True)
        folder.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        for spilled in folder.iterdir():
            pid, _, _ = spilled.name.partition("-")
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(spilled, ignore_errors=True)


def candidates(parent: Path) -> list[Path]:
    """What may be sessions' and nodes' folders, by name; none if there is no such parent."""
    with contextlib.suppress(OSError):
        return list(parent.glob(f"{_PREFIX}*"))
    return []


def reap_all(shared_memory: Path | None = None) -> None:
    """Remove what dead sessions and nodes of this user left in shared memory and on disk."""
    for parent in (shared_memory or SHARED_MEMORY, Path(tempfile.gettempdir())):
        reap(parent)


def reap(parent: Path) -> None:
    """Remove the folders in `parent` that dead sessions and nodes of this user left."""
    for folder in candidates(parent):
        remove_if_orphaned(folder)
