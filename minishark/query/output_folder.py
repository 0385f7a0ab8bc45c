"""Outputs of tasks in a folder, or in an object store, that outlive all clusters.

An entry is one file, written at once and never changed:

    magic | digest of all that follows | length | what is known of the output | its Arrow file

Whoever reads it compares the digest, so an entry that is damaged, or was cut, is none. What is
read becomes a file of the session that asks, which tasks read like any other. The session writes
entries in the background: what it does not come to write costs a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from minishark.cluster.background import Background
from minishark.cluster.outputs import SharedOutputs
from minishark.errors import DataError, MinisharkError
from minishark.sources.filesystems import (
    ObjectStore,
    StoreAccess,
    at_once,
    destination,
    is_remote,
    read_file,
    remove_files,
    write_file,
)
from minishark.worker.protocol import FileSlice, KeptOutput, encode
from minishark.worker.seals import digest_of, sealed_name
from minishark.worker.store import InputMissingError, Store

_decode: Callable[[bytes], KeptOutput] = msgspec.msgpack.Decoder(KeptOutput).decode

_MAGIC = b"minishark output 1\n"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_ENDING = ".output"
# What is called otherwise is somebody else's, and stays.
_is_entry = re.compile(r"[0-9a-f]{32}\.output").fullmatch
_is_draft = re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]{8}\.draft").fullmatch
_ENTRY_BYTES_MAX = 256 << 20  # more than that of one task is not kept: it is copied in memory
_READS_AT_ONCE = 16
_CLOSE_S = 30.0
_LEFT_SHARE = 0.9  # of the limit, after entries were removed
_LOOK_SHARE = 0.02  # of the limit, after so many new bytes all entries are looked at
_DRAFT_S = 3600.0  # a draft that old was left by a process that died


def entry_of(output: KeptOutput, data: bytes) -> bytes:
    """An output as an entry; `data` is its file, empty for one that travels in messages."""
    known = encode(output)
    rest = len(known).to_bytes(_LENGTH_BYTES, "little") + known + data
    return _MAGIC + hashlib.blake2b(rest, digest_size=_DIGEST_BYTES).digest() + rest


def read_entry(entry: bytes) -> tuple[KeptOutput, memoryview] | None:
    """The output of an entry, and its file; None if the entry is damaged, or of other versions."""
    view = memoryview(entry)
    first = len(_MAGIC) + _DIGEST_BYTES
    rest = view[first:]
    if view[: len(_MAGIC)] != _MAGIC or len(rest) < _LENGTH_BYTES:
        return None
    if hashlib.blake2b(rest, digest_size=_DIGEST_BYTES).digest() != view[len(_MAGIC) : first]:
        return None
    last = _LENGTH_BYTES + int.from_bytes(rest[:_LENGTH_BYTES], "little")
    try:
        return _decode(bytes(rest[_LENGTH_BYTES:last])), rest[last:]
    except msgspec.DecodeError:
        return None


class Entries(Protocol):
    """Where entries are, by name; safe to use from several threads."""

    @property
    def threads(self) -> int:
        """How many reads there are at a time."""

    def read(self, name: str) -> bytes | None:
        """An entry; None if there is none. Raises DataError."""

    def write(self, name: str, entry: bytes) -> None:
        """Keep an entry, which others see when it is complete. Raises DataError."""

    def tidy(self, limit_bytes: int) -> None:
        """Remove those that were not used for longest, if there are too many. Raises DataError."""


@dataclass(frozen=True, slots=True)
class LocalEntries:
    """Entries in a folder of this machine, or of a file system that several mount."""

    folder: Path
    threads: int = 1

    def read(self, name: str) -> bytes | None:
        path = self.folder / f"{name}{_ENDING}"
        try:
            entry = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"Can't read {path}: {error}") from error
        with contextlib.suppress(OSError):  # it may be read only, or be removed just now
            os.utime(path)
        return entry

    def write(self, name: str, entry: bytes) -> None:
        path = self.folder / f"{name}{_ENDING}"
        draft = self.folder / f".{name}.{secrets.token_hex(4)}.draft"
        try:
            draft.write_bytes(entry)
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise DataError(f"Can't write {path}: {error}") from error

    def tidy(self, limit_bytes: int) -> None:
        files = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    state = entry.stat()
                    if _is_draft(entry.name) and time.time() - state.st_mtime > _DRAFT_S:
                        os.unlink(entry.path)  # noqa: PTH108 - there may be thousands
                    elif _is_entry(entry.name):
                        files.append((state.st_mtime, state.st_size, entry.path))
        for path in _oldest(files, limit_bytes):
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Entries in an object store, which does not tell when they were read: the oldest go first."""

    uri: str
    access: Callable[[], StoreAccess]
    threads: int = _READS_AT_ONCE

    def read(self, name: str) -> bytes | None:
        stored = read_file(f"{self.uri}/{name}{_ENDING}", self.access())
        return None if stored is None else stored[0]

    def write(self, name: str, entry: bytes) -> None:
        write_file(entry, f"{self.uri}/{name}{_ENDING}", self.access())

    def tidy(self, limit_bytes: int) -> None:
        access = self.access()
        store = ObjectStore.at(self.uri, access)
        with store.errors(self.uri):
            listed = store.listed(store.key(self.uri))
        named = [(f"{store.root}{meta['path']}", meta) for meta in listed]
        files = [
            (meta["last_modified"].timestamp(), meta["size"], uri)
            for uri, meta in named
            if _is_entry(uri.removeprefix(f"{self.uri}/"))
        ]
        remove_files(_oldest(files, limit_bytes), access)


def _oldest(files: Iterable[tuple[float, int, str]], limit_bytes: int) -> list[str]:
    """Of files by time, size and name, those that have to go; none if they are below the limit."""
    ordered = sorted(files)
    size = sum(bytes_ for _, bytes_, _ in ordered)
    gone: list[str] = []
    if size <= limit_bytes:
        return gone
    for _, bytes_, name in ordered:
        if size <= limit_bytes * _LEFT_SHARE:
            break
        gone.append(name)
        size -= bytes_
    return gone


def entries_in(place: str | Path, access: Callable[[], StoreAccess]) -> Entries:
    """Where outputs are kept, by a path or URI of users.

    Raises:
        DataError: it can't be read, or the folder can't be made.
    """
    text = destination(place)
    entries: Entries
    if is_remote(text):
        entries = StoredEntries(text.rstrip("/"), access)
    else:
        folder = Path(text).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"Can't make the folder {folder}: {error}") from error
        entries = LocalEntries(folder)
    entries.read("none")
    return entries


class FolderOutputs:
    """The outputs in a folder as one session finds and keeps them, behind those of its cluster."""

    def __init__(
        self,
        entries: Entries,
        *,
        store: Callable[[], Store],
        folder: str,
        limit_bytes: int,
        read_bytes: int,
        behind: SharedOutputs | None,
        warn: Callable[[str], None],
    ) -> None:
        """For one session.

        Args:
            entries: where they are.
            store: gives the session's store, for what is read of them and what it writes.
            folder: where in it that goes.
            limit_bytes: the size of all entries, at most.
            read_bytes: how much a session reads of them, at most.
            behind: the outputs of the cluster, which are asked first; None if it has none.
            warn: takes a sentence for the user.
        """
        self._entries = entries
        self._store = store
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._left_bytes = read_bytes
        self._behind = behind
        self._warn = warn
        self._unseen_bytes = limit_bytes  # since all entries were looked at
        self._lock = threading.Lock()
        self._background = Background(
            self._write, "minishark-entries", lambda why: warn(f"Outputs can't be kept: {why}.")
        )

    def find(self, names: Sequence[str]) -> dict[str, KeptOutput]:
        """Those of the outputs that the cluster, or else the folder has."""
        outputs = {} if self._behind is None else self._behind.find(names)
        return {**outputs, **self.read([name for name in names if name not in outputs])}

    def read(self, names: Sequence[str]) -> dict[str, KeptOutput]:
        """Those of the outputs that the folder has."""
        if self._entries.threads == 1:
            read = [self._taken(name) for name in names]
        else:
            read = at_once([partial(self._taken, name) for name in names], self._entries.threads)
        outcomes = zip(names, read, strict=True)
        return {name: output for name, output in outcomes if output is not None}

    def _taken(self, name: str) -> KeptOutput | None:
        """An output of the folder, whose file is the session's from now on."""
        try:
            entry = self._entries.read(name)
        except MinisharkError as error:
            self._warn(f"Outputs are computed again, as kept ones can't be read: {error}")
            return None
        read = None if entry is None else read_entry(entry)
        if read is None:
            return None
        output, data = read
        if output.outcome.file is None:
            return output
        if not self.takes(len(data)):
            return None
        store = self._store()
        file = f"{self._folder}/{name}-{secrets.token_hex(4)}.arrow"
        digest = digest_of(output.outcome.file)
        file = file if digest is None else sealed_name(file, digest)
        try:
            store.put(file, data)
        except OSError:  # there is no room
            return None
        outcome = msgspec.structs.replace(output.outcome, file=file, locations=())
        return msgspec.structs.replace(output, outcome=outcome, node=store.node)

    def takes(self, size: int) -> bool:
        """Whether the session may store so many more bytes of the folder; then they count."""
        with self._lock:
            if size > self._left_bytes:
                return False
            self._left_bytes -= size
            return True

    def absent(self, names: Sequence[str]) -> frozenset[str]:
        """None are known to be: to look is to fetch what is there."""
        return frozenset()

    def lease(self, outputs: Mapping[str, KeptOutput]) -> frozenset[str]:
        """The names of those that are there, and stay until they are released."""
        if self._behind is None:
            return frozenset(outputs)
        node = self._store().node
        own = frozenset(name for name, output in outputs.items() if output.node == node)
        others = {name: output for name, output in outputs.items() if name not in own}
        return own | self._behind.lease(others)

    def release(self, outputs: Iterable[KeptOutput]) -> None:
        """Outputs were read."""
        if self._behind is not None:
            self._behind.release(outputs)

    def hold(self, output: KeptOutput) -> None:
        """An output that is new stays until it is released; does not wait."""
        if self._behind is not None:
            self._behind.hold(output)

    def keep(self, outputs: Mapping[str, KeptOutput]) -> None:
        """Write outputs to the folder, and let others find them, or miss them; does not wait."""
        if self._behind is not None:
            self._behind.keep(outputs)
        self.write(outputs)

    def write(self, outputs: Mapping[str, KeptOutput]) -> None:
        """Write outputs to the folder; does not wait."""
        self._background.put(dict(outputs))

    @property
    def is_behind(self) -> bool:
        """Whether outputs wait to be written."""
        return self._background.is_behind

    def close(self) -> None:
        """Write what is queued, if that does not take long."""
        self._background.close(_CLOSE_S)
        if self._behind is not None:
            self._behind.close()

    # On the thread

    def _write(self, kept: Sequence[Mapping[str, KeptOutput]]) -> None:
        for outputs in kept:
            for name, output in outputs.items():
                try:
                    self._write_one(name, output)
                except (MinisharkError, OSError) as error:
                    self._warn(f"Outputs can't be kept for later: {error}")

    def _write_one(self, name: str, output: KeptOutput) -> None:
        data = b""
        if output.outcome.file is not None:
            read = self._data(output)
            if read is None:
                return
            data = read
        entry = entry_of(output, data)
        self._entries.write(name, entry)
        self._unseen_bytes += len(entry)
        if self._unseen_bytes > self._limit_bytes * _LOOK_SHARE:
            self._unseen_bytes = 0
            self._entries.tidy(self._limit_bytes)

    def _data(self, output: KeptOutput) -> bytes | None:
        """The bytes of an output's file; None if it is gone, damaged or too large."""
        outcome = output.outcome
        if outcome.file is None or outcome.figures.bytes > _ENTRY_BYTES_MAX:
            return None
        store = self._store()
        try:
            path = store.local_path(FileSlice(outcome.file, output.nodes))
            if path is None:
                return None
            data = path.read_bytes()
        except (InputMissingError, FileNotFoundError):  # it has had to make room
            return None
        if output.node != store.node and store.node in path.parts:  # a copy from another host
            path.unlink(missing_ok=True)
        return data
