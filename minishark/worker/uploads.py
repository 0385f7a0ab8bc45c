"""Files that a task has written here, moved to an object store."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from minishark.errors import DataError
from minishark.sources.filesystems import StoreAccess, remove_files, stat_file, write_file


@contextlib.contextmanager
def local_folder(parent: Path) -> Iterator[Path]:
    """A folder below one that an executor may make, removed after the block."""
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="upload-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


MARK = "open"
"""The name of a file in a staging folder that is there as long as the folder is used."""


def upload(path: Path, folder: str, access: StoreAccess) -> None:
    """Store a file, or a folder of files, with its name in a staging folder.

    If nobody uses that any more, it stays as it is: whoever has removed it did not wait for this.

    Raises:
        DataError: nobody uses the folder, or the store does not answer, or denies access.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    uris = [f"{folder}/{file.relative_to(path.parent)}" for file in files]
    stat_file(f"{folder}/{MARK}", access)
    for file, uri in zip(files, uris, strict=True):
        write_file(file, uri, access)
        file.unlink()
    try:
        stat_file(f"{folder}/{MARK}", access)
    except DataError:
        remove_files(uris, access)
        raise
