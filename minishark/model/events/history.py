"""The history of a session: its events as lines of JSON, in a folder of bounded size.

A file begins with SessionStarted and holds some megabytes; then the next one begins. Lines are
flushed as they are written, so a process that is killed loses a fraction of a second, and at most
its last line is torn. Of a session the newest files are kept, and of the folder the newest ones.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import structs

from minishark.errors import DataError
from minishark.model.events.kinds import FORMAT, AnyEvent, NodeReport, SessionStarted, TaskEnded

SUFFIX = ".events.jsonl"
FILE_BYTES = 16 << 20
FILES_MAX = 4
FOLDER_BYTES = 256 << 20

_encode = msgspec.json.Encoder().encode
_decode: Callable[[bytes], AnyEvent] = msgspec.json.Decoder(AnyEvent).decode


class HistoryWriter:
    """Writes the events of one session to files in a folder."""

    def __init__(self, folder: str | Path, began: SessionStarted) -> None:
        """Begin a file.

        Raises:
            DataError: the folder can't be written.
        """
        self._folder = Path(folder)
        self._began = structs.replace(began, format=FORMAT)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(began.at))
        self._stem = f"{stamp}-{began.session}"
        self._number = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = self._open()
        except OSError as error:
            raise DataError(f"Events can't be written to {folder}: {error.strerror}.") from error

    def _open(self) -> BinaryIO:
        path = self._folder / f"{self._stem}-{self._number:03d}{SUFFIX}"
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._size = file.write(_encode(self._began) + b"\n")
        file.flush()
        return file

    def write(self, events: Iterable[AnyEvent]) -> bool:
        """Write events; whether a new file has begun, which needs the present state again.

        Raises:
            OSError: the disk is full, or the folder is gone.
        """
        lines = b"".join([_encode(event) + b"\n" for event in events])
        if lines:
            self._size += self._file.write(lines)
            self._file.flush()
        if self._size < FILE_BYTES:
            return False
        self._file.close()
        self._number += 1
        self._file = self._open()
        self._remove_old()
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _remove_old(self) -> None:
        own = sorted(self._folder.glob(f"{self._stem}-*{SUFFIX}"))
        for path in own[:-FILES_MAX]:
            path.unlink(missing_ok=True)
        newest_first = sorted(_sizes(self._folder), reverse=True)
        total = 0
        for _, size, path in newest_first:
            total += size
            if total > FOLDER_BYTES and path not in own:
                path.unlink(missing_ok=True)


def _sizes(folder: Path) -> Iterator[tuple[float, int, Path]]:
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # another session may remove it
            status = path.stat()
            yield status.st_mtime, status.st_size, path


class HistoryReader:
    """Reads the events of a file, or of all files in a folder, and follows those that grow."""

    def __init__(self, source: str | Path) -> None:
        """Find the files.

        Raises:
            DataError: there is no such file, or it holds no events, or a newer version wrote it.
        """
        self._source = Path(source)
        self._offsets: dict[Path, int] = {}
        self._sessions: dict[Path, SessionStarted] = {}
        files = self._files()
        if not files:
            raise DataError(
                f"{source} has no event files; connect(event_log={str(source)!r}) writes them."
            )
        for file in files:
            self._check(file)

    def _files(self) -> list[Path]:
        if self._source.is_dir():
            return sorted(self._source.glob(f"*{SUFFIX}"))
        return [self._source]

    def _check(self, file: Path) -> SessionStarted:
        try:
            with file.open("rb") as lines:
                first = _decoded(lines.readline())
        except OSError as error:
            raise DataError(f"{file} can't be read: {error.strerror}.") from error
        if not isinstance(first, SessionStarted):
            raise DataError(f"{file} is not a file of minishark's events.")
        if first.format > FORMAT:
            raise DataError(f"{file} was written by a newer minishark; update this one.")
        return first

    def read(self) -> Iterator[AnyEvent]:
        """The events since the last call, those of each file after its SessionStarted.

        Lines that are torn, or of kinds that this version does not know, are left out.
        """
        for file in self._files():
            try:
                yield from self._new(file)
            except (OSError, DataError):  # it was removed, or is not complete yet
                continue

    def _new(self, file: Path) -> Iterator[AnyEvent]:
        offset = self._offsets.get(file, 0)
        if file.stat().st_size <= offset:
            return
        began = self._sessions.get(file) or self._check(file)
        self._sessions[file] = began
        with file.open("rb") as lines:
            lines.seek(offset)
            if offset:
                yield began  # events of other files may have come between
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # torn, or not written to its end yet
                offset += len(line)
                event = _decoded(line)
                if event is not None:
                    yield event
        self._offsets[file] = offset


def _decoded(line: bytes) -> AnyEvent | None:
    try:
        return _decode(line)
    except msgspec.DecodeError:
        return _translated(line)


def _translated(line: bytes) -> AnyEvent | None:
    """An event of an earlier format; None if it is none.

    Format 1 had a task's figures beside its numbers; 1 and 2 had a node's usage beside its status.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        if fields["type"] == "NodeReport":
            return _node_report(fields)
        return msgspec.convert(fields | {"figures": fields}, TaskEnded)
    except (msgspec.DecodeError, msgspec.ValidationError, LookupError, TypeError, ValueError):
        return None


def _node_report(fields: dict[str, Any]) -> NodeReport:
    memory: Counter[int] = Counter()
    executors = []
    for name, pid, slots, *resident in fields.get("executors", ()):
        executors.append({"name": name, "pid": pid, "slots": slots})
        memory[pid] += sum(resident)  # the processes of other hosts all had the number 0
    usage = {"memory": memory, **fields}
    status = {"name": fields["node"], "pid": 0, "alive": True, **fields, "executors": executors}
    return msgspec.convert(status | {"usage": usage}, NodeReport)
