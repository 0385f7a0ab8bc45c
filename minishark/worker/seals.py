"""Digests of stored files, which their names carry: what gets one, and when it is compared.

    tables/7/0-5f3a9c10-2~9c41d07be2a6f013.arrow

They are of 64 bits, by XXH3, which takes about the time that it takes to read the bytes.

A file that stays is sealed when it is written: a table's partition, an output or result with a
name. So is what goes to disk. What tasks hand to each other in shared memory is not, nor is it
compared if it has a name: it lives for moments, where nothing but the memory itself could damage
it.

A seal is compared when the file has come from another host, and once on each host before its first
row is read there, by others than the query that has written it. That it was is noted in the file's
permissions, which copies don't take along. A file whose bytes have changed is removed, and so is
lost: readers turn to its replicas. What happens to it later, while processes have it mapped, is
noticed if it makes the file unreadable or ends a process: then it is compared again.
"""

from __future__ import annotations

import contextlib
import errno
import re
import stat
import sys
from enum import Enum
from pathlib import Path

from xxhash import xxh3_64

BLOCK_BYTES = 256 << 10
"""A processor's cache has room for so much, which is read just after it was written."""

_UNREADABLE = (errno.EIO, errno.EBADMSG)
"""Error numbers of a disk, or a file system, that can't give back what was written."""

_seal = re.compile(r"~([0-9a-f]{16})(?=[.@]|$)").search


class Seal(Enum):
    """Which files get a digest when they are written."""

    NONE = "none"
    ON_DISK = "on disk"
    """Those for which there is no room in shared memory."""
    ALWAYS = "always"


def checksum(path: Path) -> int:
    """The digest of a file.

    Raises:
        OSError: the file is not there.
    """
    digest, block = xxh3_64(), memoryview(bytearray(BLOCK_BYTES))
    # Not mapped: that would end the process if the disk fails, or somebody cuts the file.
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(block[:count])
    return digest.intdigest()


def sealed_name(file: str, digest: int) -> str:
    """A file's name with the digest of its bytes."""
    folder, slash, name = file.rpartition("/")
    stem, dot, suffix = name.partition(".")
    return f"{folder}{slash}{stem}~{digest:016x}{dot}{suffix}"


def digest_of(file: str) -> int | None:
    """The digest that a file's name carries, or that of its copy; None if it has none."""
    found = _seal(file.rpartition("/")[2])
    return None if found is None else int(found[1], 16)


def is_sound(path: Path, name: str) -> bool:
    """Whether a file has the bytes for which the name that it has, or is to get, was made.

    Raises:
        OSError: the file is not there, or can't be opened.
    """
    digest = digest_of(name)
    try:
        return digest is None or checksum(path) == digest
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return False


def is_intact(path: Path, *, again: bool = False) -> bool:
    """Whether a file can be read; one that is damaged is removed, and nobody's any more.

    With `again`, it is looked at even if somebody on this host has done so before.
    """
    if digest_of(path.name) is None:
        return True
    try:
        before = path.stat()
        if not again and not before.st_mode & stat.S_IWUSR:
            return True
        if is_sound(path, path.name):
            note_sound(path)
            return True
        now = path.stat()
        if (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns):
            path.unlink()  # else somebody has put another one in its place
    except FileNotFoundError:  # removed since
        return False
    sys.stderr.write(f"{path} was damaged: it has other bytes than were written.\n")
    sys.stderr.flush()
    return False


def note_sound(path: Path) -> None:
    """A file's bytes are those that were written: it need not be looked at again on this host."""
    with contextlib.suppress(PermissionError):  # another user's: it is looked at each time
        path.chmod(stat.S_IRUSR)
