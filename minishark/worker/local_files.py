"""Where files of sources are on this host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from minishark.errors import DataError
from minishark.sources.filesystems import FileReplacedError, StoredFile, stat_file
from minishark.sources.parquet_parts import FilePart


@contextlib.contextmanager
def held(files: Sequence[StoredFile], parts: Sequence[FilePart]) -> Iterator[Sequence[str]]:
    """The local path of each file while the block runs, with what is needed of it.

    Raises:
        DataError: a file can't be had; the message names it.
    """
    del parts
    for file in files:
        if file.is_remote:
            raise DataError(f"Executors can't read {file.path}.")
    yield [file.path for file in files]


def check_unchanged(file: StoredFile) -> None:
    """Raise DataError if a file of this machine is not as it was."""
    if stat_file(file.path).version != file.version:
        raise FileReplacedError(f"{file.path} was replaced while it was read; run it again.")
