"""The outcomes of a task's calls, in a file that outlives the process which makes them.

    head: the calls in flight    length, checksum, outcomes    length, checksum, outcomes ...

Each attempt at a task appends to a file of its own, on the disk of its node, and reads those of
earlier attempts on its host; where outputs have names, also those of other queries' tasks that are
to put out the same. An outcome counts only for a call with the same number over the same
rows, told by their digest: an attempt may get its rows in another order. An attempt all of whose
calls ended well says so at its end: whoever is to make calls of the same name needs no rows then.
A file that can't be written, or read, costs calls, never an answer.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from minishark.worker.call_policy import KILLED, Guilt, InFlight, guilt
from minishark.worker.protocol import FileSlice, Value
from minishark.worker.values import dump, load_small

CALLS_ENDING = ".calls"
"""How the names of these files end."""

_HEAD = struct.Struct("<qq16s")
_RECORD = struct.Struct("<II")
_NONE = InFlight(0, 0, b"")
_ALL = (-1, b"")  # in the place of a call: what is said of all of them

Outcomes = list[tuple[int, bytes, Any]]
"""Numbers of calls, digests of the rows around them, what came of them."""


@dataclass(slots=True, kw_only=True)
class CallLog:
    """What the calls of a task have come to, in this attempt and in earlier ones."""

    path: Path | None = None  # this attempt's file; None for none
    earlier: Sequence[Path] = ()  # those of other attempts
    others: Sequence[Path] = ()  # those of other queries, of whose processes nothing is known
    kept: Sequence[bytes] = ()  # records of such files that are gone
    outlives: bool = False  # whether the file stays when the task is done
    deaths: list[InFlight] = field(default_factory=list)
    _is_read: bool = False
    _known: dict[tuple[int, bytes], Any] = field(default_factory=dict)
    _file: BinaryIO | None = None
    _head: mmap.mmap | None = None  # its first bytes: mapped, as there may be many calls
    _waiting: Outcomes = field(default_factory=list)  # are not written yet

    def open(self) -> None:
        """Read the earlier files, and begin one."""
        self.read()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self._file = self.path.open("x+b", buffering=0)
                self._file.write(bytes(_HEAD.size))
                self._head = mmap.mmap(self._file.fileno(), _HEAD.size)

    def read(self) -> None:
        """Read the earlier files, unless that was done."""
        if self._is_read:
            return
        self._is_read = True
        for path in self.earlier:
            in_flight, outcomes = read_log(path)
            if in_flight.end:
                self.deaths.append(in_flight)
            self._know(outcomes)
        for path in self.others:
            self._know(read_log(path)[1])
        for records in self.kept:
            self._know(_outcomes(records))

    def _know(self, outcomes: Iterable[tuple[int, bytes, Any]]) -> None:
        self._known.update(((number, digest), what) for number, digest, what in outcomes)

    @property
    def suspected_to(self) -> int:
        """All calls of which one may have ended a process have lower numbers."""
        return max((death.end for death in self.deaths), default=0)

    def outcome(self, number: int, digest: bytes) -> Any:
        """What came of a call before; None if it has to be made."""
        logged = self._known.pop((number, digest), None) if self._known else None
        if logged is None and self.deaths and guilt(number, digest, self.deaths) is Guilt.GUILTY:
            return KILLED
        return logged

    def all_ended(self, schema: bytes, blocks: Sequence[tuple[int, bytes, int]]) -> None:
        """Note that all calls of the task ended well, for rows of this schema.

        Of each block the number of its first call, its digest, and how many calls it has.
        """
        self.add(*_ALL, (schema, blocks))

    def all_outcomes(self) -> tuple[bytes, list[tuple[bytes, list[Any]]]] | None:
        """The schema of the rows, and by block its digest and what came of its calls.

        None if calls are missing, or did not end well.
        """
        schema, blocks = self._known.get(_ALL, (b"", ()))
        of_blocks = [
            (digest, [self._known.get((first + i, digest)) for i in range(count)])
            for first, digest, count in blocks
        ]
        if not blocks or any(what is None for _, outcomes in of_blocks for what in outcomes):
            return None
        return schema, of_blocks

    def begin(self, first: int, end: int, digest: bytes) -> None:
        """Calls with these numbers run from now on, should the process die."""
        if self._head is not None:
            _HEAD.pack_into(self._head, 0, first, end, digest)

    def add(self, number: int, digest: bytes, outcome: Any) -> None:
        """Note what came of a call; it is written by `flush`."""
        if self._file is not None:
            self._waiting.append((number, digest, outcome))

    def flush(self) -> None:
        """Write what was noted."""
        if not self._waiting or self._file is None:
            return
        try:
            data = dump(self._waiting, _none, large_bytes=sys.maxsize).pickled
            record = _RECORD.pack(len(data), zlib.crc32(data)) + data
            if self._file.write(record) < len(record):
                self._give_up()  # the disk is full
        except Exception:  # noqa: BLE001 - pickling runs code of the values' classes
            self._give_up()
        self._waiting = []

    def end(self) -> None:
        """The attempt ends otherwise than by the death of its process."""
        self.flush()
        self.begin(0, 0, b"")
        self._close()

    def done(self) -> None:
        """The task is done: delete all its files, or the empty ones."""
        self._close()
        for path in (*self.earlier, *self.others, *filter(None, (self.path,))):
            with contextlib.suppress(OSError):
                if not self.outlives or path.stat().st_size <= _HEAD.size:
                    path.unlink()

    def _give_up(self) -> None:
        self._close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._head is not None:
            self._head.close()
            self._head = None
        if self._file is not None:
            self._file.close()
            self._file = None


def _none(data: memoryview) -> FileSlice:
    message = f"{data.nbytes} bytes are not too large for the log"
    raise AssertionError(message)


def read_log(path: Path) -> tuple[InFlight, Iterable[tuple[int, bytes, Any]]]:
    """The calls that were in flight when a file was last written, and the outcomes in it."""
    try:
        data = path.read_bytes()
    except OSError:
        return _NONE, ()
    if len(data) < _HEAD.size:
        return _NONE, ()
    return InFlight(*_HEAD.unpack_from(data)), _outcomes(data[_HEAD.size :])


def log_data(path: Path, read: int = 0) -> bytes:
    """The records of a file but for the first `read` bytes of them; none if it is gone."""
    try:
        with path.open("rb") as file:
            file.seek(_HEAD.size + read)
            return file.read()
    except OSError:
        return b""


def records(data: bytes) -> Iterator[bytes]:
    """Each of the records that follow one another; the last one may not be complete yet."""
    at = 0
    while at + _RECORD.size <= len(data):
        end = at + _RECORD.size + _RECORD.unpack_from(data, at)[0]
        if end > len(data):
            break
        yield data[at:end]
        at = end


def head_of(record: bytes) -> bytes:
    """What tells a record from others of the same task: its length and its checksum."""
    return record[: _RECORD.size]


def _outcomes(data: bytes) -> Outcomes:
    outcomes: Outcomes = []
    for record in records(data):
        pickled = record[_RECORD.size :]
        if zlib.crc32(pickled) != _RECORD.unpack_from(record)[1]:
            break  # the process died while it wrote it
        try:
            outcomes += load_small(Value(pickled))
        except Exception:  # noqa: BLE001 - the values' classes are not known here
            break
    return outcomes
