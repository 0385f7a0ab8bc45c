"""Files that queries name, and that their users replace at any moment.

They lie on a file system that all hosts share, as data lakes do, and that no fault takes. What is
done about files that change is production's: sources, their snapshots, the ladder, and scans.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import cast

import duckdb
from msgspec import structs

from minishark.errors import DataError
from minishark.sources.contract import FileSplit, Relation, Split
from minishark.sources.files import FileSource
from minishark.sources.filesystems import FileReplacedError, StoredFile
from minishark.sources.formats import FileFormat, Found, Needed, Reach
from minishark.worker.scans import Scans, unpickled_read
from minishark_lab.simulation.work import COLUMNS, Row, Rows

_ROW_BYTES = 16
_LISTED_S = 0.001  # how long it takes to list files


@dataclass(slots=True)
class SharedFiles:
    """The file system: by path, the number of the last version, and its rows."""

    _files: dict[str, tuple[int, Rows]] = field(default_factory=dict)

    def put(self, path: str, rows: Rows) -> None:
        """Write a file, or replace it."""
        number, _ = self._files.get(path, (0, ()))
        self._files[path] = (number + 1, rows)

    def stat(self, path: str) -> StoredFile:
        """Which version of a file is there."""
        if path not in self._files:
            raise DataError(f"There is no file {path}.")
        number, rows = self._files[path]
        return StoredFile(path, _ROW_BYTES * len(rows), f'"{number}"')  # an ETag

    def rows(self, path: str) -> Rows:
        """The rows of the version that is there now."""
        return self._files[path][1]

    def rows_of(self, path: str) -> Rows | None:
        """The same; None if there is no such file."""
        return self._files[path][1] if path in self._files else None

    def check_unchanged(self, file: StoredFile) -> None:
        """As production's, which looks at a real file."""
        if self.stat(file.path).version != file.version:
            raise FileReplacedError(f"{file.path} was replaced while it was read; run it again.")

    def source(self, path: str, sleep: Callable[[float], None]) -> FileSource:
        """A file as a source of a session, whose time passes by `sleep`."""

        def find() -> Sequence[StoredFile]:
            found = self.stat(path)
            sleep(_LISTED_S)
            return [found]

        source = FileSource(
            name=path,
            reader="read_arrow",
            find=find,
            options={"hive_partitioning": "false"},
            reach=cast("Reach", _Reach()),
        )
        source._format = _Format(self)  # noqa: SLF001 - a format that only simulated tasks read
        return source


class _Reach:
    """What a session needs besides the file system: nothing."""

    def connect(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class _Format(FileFormat):
    """Files of rows, which are divided as they are when somebody looks."""

    files: SharedFiles

    def find(
        self, connection: duckdb.DuckDBPyConnection, files: tuple[StoredFile, ...], reach: Reach
    ) -> Found:
        return Found(files, COLUMNS, sum(len(self.files.rows(file.path)) for file in files))

    def divide(self, found: Found, needed: Needed, reach: Reach) -> Sequence[Split]:
        splits = []
        for file in (found.files[i] for i in needed.chosen):
            count = len(self.files.rows(file.path))
            size = max(1, -(-count // needed.tasks))
            for first in range(0, max(1, count), size):
                last = min(count, first + size)
                splits.append(
                    _Range(
                        file=file,
                        first=first,
                        last=last,
                        rows=last - first,
                        bytes=_ROW_BYTES * (last - first),
                    )
                )
        return splits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range(FileSplit):
    """Some rows of a file."""

    file: StoredFile
    first: int
    last: int
    rows: int | None
    bytes: int

    def files(self) -> Sequence[StoredFile]:
        return (self.file,)

    def made_of(self) -> tuple[Sequence[StoredFile], object] | None:
        # No real file tells its times: as if it were in an object store.
        file = structs.replace(self.file, path=f"s3://{self.file.path}")
        return (file,), (self.first, self.last)

    def relation(self, paths: Sequence[str]) -> Relation:
        return Relation(f"{paths[0]}[{self.first}:{self.last}]")  # nobody runs it


class Scan:
    """What a task reads of files: some rows at one moment, the others at later ones."""

    def __init__(self, files: SharedFiles, reads: dict[str, tuple[bytes, ...]]) -> None:
        """Begin to read; FileReplacedError if a file is not as it was when it was planned."""
        self.rows: dict[str, list[Row]] = {name: [] for name in reads}
        self._files = files
        self._left = [*_parts(reads)]
        scans = Scans(
            reads=reads,
            hold=lambda found, *_: contextlib.nullcontext([file.path for file in found]),
            check=files.check_unchanged,
        )
        self._open = scans.open()
        self._open.__enter__()

    def read(self) -> bool:
        """Read some more rows; whether these were the last ones."""
        if self._left:
            name, path, rows = self._left.pop(0)
            self.rows[name] += self._files.rows(path)[rows.start : rows.stop]
            return False
        self._open.__exit__(None, None, None)
        return True


def _parts(reads: dict[str, tuple[bytes, ...]]) -> Iterator[tuple[str, str, range]]:
    """The rows to read, each range in two parts: the input's name, a path, and which rows."""
    for name, pickled in reads.items():
        for split in (split for each in pickled for split in unpickled_read(each).splits):
            assert isinstance(split, _Range)
            middle = (split.first + split.last) // 2
            yield name, split.file.path, range(split.first, middle)
            yield name, split.file.path, range(middle, split.last)
