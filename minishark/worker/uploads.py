"""Files that a task has written here, moved to an object store."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from minishark.sources.filesystems import StoreAccess, write_file


@contextlib.contextmanager
def local_folder(parent: Path) -> Iterator[Path]:
    """A folder below one that an executor may make, removed after the block."""
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="upload-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def upload(path: Path, uri: str, access: StoreAccess) -> int:
    """Store a file, or all files in a folder, under a URI; the number of bytes.

    Each is removed here as soon as it is stored.

    Raises:
        DataError: the store does not answer, or denies access.
    """
    total = 0
    folder = path.is_dir()
    for file in sorted(path.rglob("*")) if folder else [path]:
        if file.is_file():
            total += file.stat().st_size
            write_file(file, f"{uri}/{file.relative_to(path)}" if folder else uri, access)
            file.unlink()
    return total
