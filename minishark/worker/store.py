"""Arrow files of a cluster on this machine: in shared memory, or on disk where that is short.

    <memory>/<node>/tables/...      <disk>/<node>/tables/...
    <memory>/<node>/queries/...     <disk>/<node>/queries/...

Each node has a folder in both places. Files are written once, under a temporary name first, and
then only memory-mapped, by every executor of the host; a replica on the same host is a hard link.
Files on other hosts are fetched: a whole file as a copy beside the node's own files, which all of
its executors share and which is removed with the folder; a part of a file into memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from minishark.worker.dictionaries import without_dictionaries
from minishark.worker.paths import StorePaths, follow, link
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.seals import Seal, checksum, digest_of, is_intact, note_sound, sealed_name
from minishark.worker.storage import StorageMeter
from minishark.worker.visible_rows import with_constants, with_numbers, without_deleted
from minishark.worker.writing import DamagedError, FileWriter, RawFile, StoredFile

_CACHED_FILES_MAX = 1024
_COPIES_AT_ONCE = 4
_ALONE_MAX_S = 60.0
_ALONE_STEP_S = 0.02


class InputMissingError(Exception):
    """No node has the stored files that it should have."""

    def __init__(
        self, message: str, files: tuple[FileSlice, ...] = (), *, is_silent: bool = False
    ) -> None:
        """`is_silent` if a node that may have them did not answer."""
        super().__init__(message)
        self.files = files
        self.is_silent = is_silent


class FolderMissingError(FileNotFoundError):
    """A node has no folder for an output file: not yet, or no longer."""


class RawSink(Protocol):
    """Takes the bytes of a file."""

    def write(self, data: memoryview, size: int) -> None:
        """The next bytes of a file of `size` bytes."""
        ...

    def restart(self) -> None:
        """Forget what was written: the bytes come again from the first."""
        ...


class Fetcher(Protocol):
    """Moves files between hosts; safe to use from several threads."""

    def fetch(
        self, wanted: Sequence[tuple[StoreLocation, FileSlice]]
    ) -> list[pa.Table | InputMissingError]:
        """The rows of slices, each from a store that has it; or why there are none.

        All hosts are asked at once, each with one request.
        """
        ...

    def copy(self, source: StoreLocation, file: str, sink: RawSink, reader: str = "") -> None:
        """The bytes of a whole file; if the service `reader` will serve it, perhaps from another.

        Raises:
            InputMissingError: `source` does not have the file, or does not answer.
        """

    def announce(self, source: StoreLocation, file: str, reader: str, copy: str) -> None:
        """Tell the source of a file that the service `reader` serves it, too, as `copy`."""
        ...

    def replicate(self, file: str, source: StoreLocation, target: StoreLocation) -> None:
        """Make `target` fetch a whole file from `source`.

        Raises:
            OSError: it could not.
        """

    def remove_soon(self, holders: Iterable[StoreLocation], file: str) -> None:
        """Delete a file, and copies of it, where `holders` have some; does not wait for them."""
        ...

    def take_received(self) -> dict[str, int]:
        """The bytes that came over the network since the last call, by the store they are from."""
        ...

    @property
    def is_interrupted(self) -> bool:
        """Whether the running task is to end."""
        ...


class Store:
    """One executor's view of the store; safe to tidy from another thread."""

    def __init__(
        self,
        paths: StorePaths,
        node: str,
        host: str = "",
        fetcher: Fetcher | None = None,
        meter: StorageMeter | None = None,
        *,
        is_wary: bool = False,
    ) -> None:
        """A view from `node`, which is on `host`.

        `paths` are its folders, and those of all nodes that have none of their own. Without a
        fetcher there is only one host, without a meter all free shared memory may be used. A wary
        one compares all files again that it opens: what has changed in one may have ended the
        process that was here before.
        """
        self.meter = meter or StorageMeter(paths.memory / node)
        self._paths = paths
        self.node = node
        self._host = host
        self._fetcher = fetcher
        self._stores: dict[str, StoreLocation] = {}
        self._open: OrderedDict[tuple[str, tuple[str, ...], bool], pa.RecordBatchFileReader] = (
            OrderedDict()
        )
        self._tables: OrderedDict[tuple[FileSlice, ...], pa.Table] = OrderedDict()
        self._lock = threading.Lock()  # guards the two above
        self._is_wary = is_wary
        self._compared: set[str] = set()  # files, by one that is wary

    @property
    def disk(self) -> Path:
        """The folder on disk that all nodes share which have none of their own."""
        return self._paths.disk

    def meet(self, stores: Sequence[StoreLocation]) -> None:
        """Update where nodes with folders of their own keep their files."""
        self._stores = {peer.name: peer for peer in stores}

    def read(self, slices: tuple[FileSlice, ...]) -> pa.Table:
        """The rows of all slices, in order: those in files memory-mapped without a copy.

        Raises:
            InputMissingError: no location has the files; names all of them.
        """
        return self.read_all((slices,))[0]

    def read_all(self, inputs: Sequence[tuple[FileSlice, ...]]) -> list[pa.Table]:
        """As `read`, for several inputs; what other hosts have of them is fetched at once."""
        cached = ((slices, self._tables.get(slices)) for slices in inputs)
        held = {slices: table for slices, table in cached if table is not None}
        missing = [item for slices in inputs if slices not in held for item in slices]
        parts = {item: _changed(rows, item) for item, rows in self._parts(missing).items()}
        for slices in inputs:
            if slices in held:
                continue
            held[slices] = table = _joined([parts[item] for item in slices])
            if any(item.inline or item.numbered_from is not None for item in slices):
                continue
            with self._lock:
                self._tables[slices] = table
                if len(self._tables) > _CACHED_FILES_MAX:
                    self._tables.popitem(last=False)
        return [held[slices] for slices in inputs]

    def _parts(self, items: Iterable[FileSlice]) -> dict[FileSlice, pa.Table]:
        """The stored rows of each slice; an InputMissingError names all that are missing."""
        parts: dict[FileSlice, pa.Table | InputMissingError] = {}
        far = []
        for item in dict.fromkeys(items):
            if item.inline:
                reader = pa.ipc.open_stream(item.inline)
                batches = [*reader][item.first : item.last]
                parts[item] = pa.Table.from_batches(batches, reader.schema)
            elif (near := self._near(item)) is not None:
                parts[item] = near
            else:
                far.append(item)
        if far:
            parts.update(self._from_afar(far))
        missing = [part for part in parts.values() if isinstance(part, InputMissingError)]
        if missing:
            files = tuple(file for error in missing for file in error.files)
            more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
            is_silent = any(error.is_silent for error in missing)
            raise InputMissingError(f"{missing[0]}{more}", files, is_silent=is_silent)
        return parts

    def local_path(self, item: FileSlice) -> Path | None:
        """Where this host has a file, fetched if only others do; None if there is no room for it.

        Raises:
            InputMissingError: no location has it, as it was.
        """
        path = self._sound(item.file, (self.node, *item.locations), again=True)
        if path is None:
            found_afar = self._copied(item)
            if isinstance(found_afar, InputMissingError):
                raise found_afar
            path = self._find(self._copy_name(item), self.node)
        return path

    def plain_file(self, file: str, node: str) -> Path:
        """A node's file that is not Arrow; copied, if it is on another host.

        Raises:
            InputMissingError: the node does not have it, or does not answer.
            OSError: there is no room for it.
        """
        if self._is_far(node):
            self.take(file, self._stores[node])
            node = self.node
        path = self._find(file, node)
        if path is None:
            raise InputMissingError(f"{file} is not on {node}")
        return path

    def in_memory(self, file: str, node: str = "") -> Path:
        """Where a node of this host, by default this one, keeps a file or folder in memory."""
        node = node or self.node
        return self._paths_of(node).memory / node / file

    def on_disk(self, file: str) -> Path:
        """Where this node keeps a file on disk that is not Arrow; its folder is there then.

        Raises:
            OSError: the folder does not exist (any more), or can't be made.
        """
        memory, disk = (
            place / self.node / file for place in (self._paths.memory, self._paths.disk)
        )
        if self._stores:
            self._make_folder_of_stranger(file)
        follow(memory.parent, disk.parent)
        return disk

    def on_disks(self, folder: str, pattern: str) -> list[Path]:
        """Such files that nodes of this host have in a folder, by a pattern of their names.

        One replica of each; those of other hosts' files may be in shared memory.
        """
        peers = [peer for peer in self._stores.values() if not self._is_far(peer.name)]
        own = (self._paths.disk, self._paths.memory)
        of_peers = (Path(place) for peer in peers for place in (peer.disk, peer.memory))
        places = dict.fromkeys([*own, *of_peers])
        paths = (path for place in places for path in place.glob(f"*/{folder}/{pattern}"))
        return sorted({path.name: path for path in paths}.values())

    def has_folder(self, folder: str) -> bool:
        """Whether this node has a folder for files."""
        return (self._paths.memory / self.node / folder).exists()

    def may_have(self, item: FileSlice) -> bool:
        """Whether a file is there, for all that this host can tell without asking others."""
        return any(map(self._is_far, item.locations)) or self.has_copy(item)

    def has_copy(self, item: FileSlice) -> bool:
        """Whether this host has a copy of a file."""
        return any(True for _ in self._copies(item))

    def remove(self, item: FileSlice) -> None:
        """Delete a file: this host's copies at once, those of others soon.

        Whoever has mapped it can go on to read it.
        """
        for path in self._copies(item):
            path.unlink(missing_ok=True)
        far = [peer for peer in self._stores.values() if self._is_far(peer.name)]
        if far and self._fetcher is not None:
            self._fetcher.remove_soon(far, item.file)

    def _copies(self, item: FileSlice) -> Iterator[Path]:
        for node in dict.fromkeys((self.node, *item.locations)):
            for name in (item.file, *(f"{item.file}@{location}" for location in item.locations)):
                path = self._find(name, node)
                if path is not None:
                    yield path

    def _near(self, item: FileSlice, *, again: bool = False) -> pa.Table | None:
        """The stored rows of a slice, if this host has the file.

        One that can't be read has changed after it was compared, so it is compared `again`, or
        counts as lost if there is no digest.
        """
        try:
            reader = self._reader(item, again=again)
            if reader is None:
                return None
            last = reader.num_record_batches
            last = last if item.last is None else min(item.last, last)  # a file may have none
            batches = [reader.get_batch(i) for i in range(item.first, last)]
            return pa.Table.from_batches(batches, reader.schema)
        except FileNotFoundError:  # removed since
            return None
        except (pa.ArrowException, OSError) as error:
            if again or getattr(error, "errno", None) is not None:  # as of too many open files
                raise
        self._forget_files({item.file})
        if digest_of(item.file) is None:
            for path in self._copies(item):
                path.unlink(missing_ok=True)
        return self._near(item, again=True)

    def _reader(self, item: FileSlice, *, again: bool) -> pa.RecordBatchFileReader | None:
        """A reader of the nearest copy on this host, if there is one."""
        key = (item.file, item.locations, item.is_new)
        reader = self._open.get(key)
        if reader is None:
            near_first = sorted(item.locations, key=lambda node: node != self.node)
            again |= self._is_wary and item.file not in self._compared
            path = self._sound(item.file, near_first, again=again, is_new=item.is_new)
            if path is None:
                return None
            if self._is_wary:
                self._compared.add(item.file)
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            with self._lock:
                self._open[key] = reader
                if len(self._open) > _CACHED_FILES_MAX:
                    self._open.popitem(last=False)
        return reader

    def _sound(
        self, file: str, nodes: Iterable[str], *, again: bool = False, is_new: bool = False
    ) -> Path | None:
        """The first copy of a file on this host that is what was written; others are replaced."""
        damaged: list[str] = []
        for node in nodes:
            path = self._find(file, node)
            if path is None:
                continue
            is_fresh = is_new and not again and path.is_relative_to(self._paths_of(node).memory)
            if is_fresh or is_intact(path, again=again):
                for other in damaged:
                    with contextlib.suppress(OSError):  # it is full, or the folder is gone
                        self._paths_of(other).take(path, other, file)
                return path
            damaged.append(node)
        return None

    def _find(self, file: str, node: str) -> Path | None:
        if self._is_far(node):
            return None
        return self._paths_of(node).find(file, (node,))

    def _is_far(self, node: str) -> bool:
        """Whether the node is on another host; this node never is, even if it has moved."""
        peer = self._stores.get(node)
        return peer is not None and node != self.node and peer.host != self._host

    def _paths_of(self, node: str) -> StorePaths:
        peer = self._stores.get(node)
        if peer is None or node == self.node:  # it may have been restarted since
            return self._paths
        return StorePaths(Path(peer.memory), Path(peer.disk))

    def _from_afar(
        self, items: Sequence[FileSlice]
    ) -> Iterable[tuple[FileSlice, pa.Table | InputMissingError]]:
        """Slices that only other hosts have; whole files are copied for the node's executors.

        So are those that this node should have: its copy was damaged, or lost.
        """
        whole: list[FileSlice] = []
        parts: list[FileSlice] = []
        for item in items:
            (whole if _is_whole(item) or self.node in item.locations else parts).append(item)
        with ThreadPoolExecutor(_COPIES_AT_ONCE, "minishark-copy") as pool:
            copied = pool.map(self._copied, whole)
            fetched = self._fetched(parts) if parts else {}
            return [*zip(whole, copied, strict=True), *fetched.items()]

    def _copy_name(self, item: FileSlice) -> str:
        """The name of this node's copy of another host's file: its own, if it should have one."""
        return item.file if self.node in item.locations else f"{item.file}@{item.locations[0]}"

    def _copied(self, item: FileSlice) -> pa.Table | InputMissingError:
        """A whole file, copied to this node unless another of its executors was faster."""
        copy = FileSlice(self._copy_name(item), (self.node,), item.first, item.last)
        with self._alone(copy.file):
            rows = self._near(copy)
            # It may have been dropped, or there is no room: the rows can still be had.
            with contextlib.suppress(OSError):
                for node in filter(self._is_far, item.locations):
                    if rows is None and self._copy(item.file, self._stores[node], copy.file):
                        rows = self._near(copy)
        return self._fetched([item])[item] if rows is None else rows

    def _copy(self, file: str, source: StoreLocation, name: str) -> bool:
        """Copy a file of another host under this name; whether that host had it."""
        if self._fetcher is None:
            return False
        own = self._stores.get(self.node)
        reader = own.service if own is not None else ""
        try:
            with self._raw(name) as sink:
                self._fetcher.copy(source, file, sink, reader)
        except (InputMissingError, DamagedError):
            return False
        if reader:
            self._fetcher.announce(source, file, reader, name)
        return True

    def _raw(self, file: str) -> RawFile:
        memory, disk = (
            place / self.node / file for place in (self._paths.memory, self._paths.disk)
        )
        if self._stores:
            self._make_folder_of_stranger(file)
        return RawFile(memory, disk, self.meter)

    def put(self, file: str, data: memoryview) -> None:
        """Store the bytes of a whole file on this node.

        Raises:
            OSError: there is no room, or no folder for it.
        """
        with self._raw(file) as sink:
            sink.write(data, len(data))

    def take(self, file: str, source: StoreLocation) -> None:
        """Copy a file of another host to this node.

        Raises:
            InputMissingError: `source` does not have it, or does not answer.
            OSError: it can't be stored here.
        """
        assert self._fetcher is not None, "there are other hosts"
        with self._raw(file) as sink:
            self._fetcher.copy(source, file, sink)

    def linked(self, item: FileSlice, file: str) -> StoredFile | None:
        """A whole file of this node under another name; None if the node does not have it."""
        is_same = _is_whole(item) and not (item.deleted or item.constants)
        path = self._sound(item.file, (self.node,)) if is_same else None
        if path is None or self.node not in item.locations:
            return None
        if self._stores:
            self._make_folder_of_stranger(file)
        try:
            self._paths.take(path, self.node, file)
        except OSError:  # whoever copies it is told why
            return None
        copy = self._paths.find(file, (self.node,))
        if copy is None:
            return None
        digest = digest_of(item.file)
        if digest is None:
            digest = checksum(copy)
            note_sound(copy)  # what was read is what the name tells
        copy = copy.rename(copy.with_name(sealed_name(copy.name, digest)))
        batches = self.read((item,)).to_batches()
        return StoredFile(
            copy,
            bytes=sum(batch.nbytes for batch in batches),
            rows=sum(batch.num_rows for batch in batches),
            on_disk=not copy.is_relative_to(self._paths.memory),
        )

    @contextlib.contextmanager
    def _alone(self, file: str) -> Iterator[None]:
        """While the block runs, no other process of this host is in one for the same file."""
        path = self._paths.memory / self.node / file
        lock = path.with_name(f".{zlib.crc32(path.name.encode()):08x}.lock")
        try:
            held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # its folder is not there: what is missing is said elsewhere
            yield
            return
        deadline = time.monotonic() + _ALONE_MAX_S
        try:
            while not _locked(held) and time.monotonic() < deadline:
                if self._fetcher is None or self._fetcher.is_interrupted:
                    break
                time.sleep(_ALONE_STEP_S)
            yield
        finally:
            lock.unlink(missing_ok=True)
            os.close(held)

    def _fetched(self, items: Sequence[FileSlice]) -> dict[FileSlice, pa.Table | InputMissingError]:
        """Slices of other hosts, in memory; each from its next location if one does not have it."""
        parts: dict[FileSlice, pa.Table | InputMissingError] = {}
        left = {item: list(filter(self._is_far, item.locations)) for item in items}
        reasons: dict[FileSlice, str] = dict.fromkeys(items, "")
        silent: set[FileSlice] = set()
        while self._fetcher is not None and (asked := [item for item in left if left[item]]):
            places = [(self._stores[left[item].pop(0)], item) for item in asked]
            for item, answer in zip(asked, self._fetcher.fetch(places), strict=True):
                if isinstance(answer, InputMissingError):
                    reasons[item] += f" ({answer})"
                    if answer.is_silent:
                        silent.add(item)
                else:
                    parts[item] = answer
                    del left[item]
        for item in left:
            locations = ", ".join(item.locations) or "(all that had it are gone)"
            message = f"{item.file} is on none of the nodes {locations}{reasons[item]}"
            parts[item] = InputMissingError(message, (item,), is_silent=item in silent)
        return parts

    def take_received(self) -> dict[str, int]:
        """The bytes that came over the network since the last call, by the store they are from."""
        return {} if self._fetcher is None else self._fetcher.take_received()

    def forget(self, folder: str) -> None:
        """Drop cached readers and tables of the files in `folder`."""
        prefix = f"{folder}/"
        with self._lock:
            for opened in [key for key in self._open if key[0].startswith(prefix)]:
                del self._open[opened]
            for key in [k for k in self._tables if any(s.file.startswith(prefix) for s in k)]:
                del self._tables[key]
        self._compared = {file for file in self._compared if not file.startswith(prefix)}

    def forget_removed(self, others: Iterable[str] = ()) -> list[str]:
        """Drop cached files that are gone, alone or with their folder: that frees their memory.

        Returns:
            The folders that are gone, of those of cached files and of `others`.
        """
        with self._lock:
            opened = [*self._open]
            files = [file for file, _, _ in opened]
            files += [item.file for slices in self._tables for item in slices]
        roots = [place / self.node for place in (self._paths.memory, self._paths.disk)]
        folders = dict.fromkeys([*(file.rpartition("/")[0] for file in files), *others])
        gone = [name for name in folders if not any((root / name).exists() for root in roots)]
        for folder in gone:
            self.forget(folder)
        left = [entry for entry in opened if entry[0].rpartition("/")[0] not in gone]
        self._forget_files({file for file, nodes, _ in left if not self._is_near(file, nodes)})
        return gone

    def _is_near(self, file: str, nodes: tuple[str, ...]) -> bool:
        return any(self._find(file, node) is not None for node in (self.node, *nodes))

    def _forget_files(self, files: set[str]) -> None:
        """Drop cached readers and tables of files that changes of their tables have replaced."""
        with self._lock:
            for opened in [key for key in self._open if key[0] in files]:
                del self._open[opened]
            for key in [k for k in self._tables if any(s.file in files for s in k)]:
                del self._tables[key]

    def forget_all(self) -> None:
        with self._lock:
            self._open.clear()
            self._tables.clear()

    def write(
        self,
        file: str,
        schema: pa.Schema,
        groups: Iterable[Sequence[pa.RecordBatch]],
        seal: Seal = Seal.NONE,
    ) -> StoredFile:
        """Write groups of batches to `file` on this node, in shared memory or else on disk.

        It gets another name if it is sealed: `StoredFile.named`. A node that joined after the
        session creates the folder when it first needs it.

        Raises:
            FolderMissingError: the folder of `file` does not exist (any more).
            OSError: the disk is full too.
        """
        memory, disk = (
            place / self.node / file for place in (self._paths.memory, self._paths.disk)
        )
        try:
            if self._stores:
                self._make_folder_of_stranger(file)
            with FileWriter(memory, disk, schema, self.meter, seal) as writer:
                for batches in groups:
                    writer.write(batches)
        except FileNotFoundError as error:
            if memory.parent.exists():
                raise
            folder = file.rpartition("/")[0]
            raise FolderMissingError(f"{self.node} has no folder {folder}") from error
        assert writer.stored is not None
        return writer.stored

    def _make_folder_of_stranger(self, file: str) -> None:
        """Create the folder of `file` if this node does not know its session yet."""
        session, _, _ = file.partition("/")
        if not (self._paths.memory / self.node / session).exists():
            self._paths.make(file.rpartition("/")[0], (self.node,))

    def replicate(self, stored: StoredFile, file: str, nodes: Sequence[str]) -> tuple[str, ...]:
        """Replicate a file to other nodes: a link on the same host, a copy on others.

        A node that can't store it is left out.

        Returns:
            The nodes that have it now, in the order of `nodes`.
        """
        groups: dict[str, list[str]] = {}
        for node in nodes:
            host = self._stores[node].host if self._is_far(node) else self._host
            groups.setdefault(host, []).append(node)
        # One copy goes to each host; its other nodes take theirs from there.
        held = {self.node}
        far = [group for host, group in groups.items() if host != self._host]
        if far:
            with ThreadPoolExecutor(min(_COPIES_AT_ONCE, len(far)), "minishark-replica") as pool:
                held.update(*pool.map(partial(self._given_far, file), far))
        held.update(node for node in groups.get(self._host, ()) if self._give(stored, file, node))
        holders = tuple(node for node in nodes if node in held)
        return holders if self.node in holders else (self.node, *holders)

    def keep(self, stored: StoredFile, file: str, spares: Sequence[str]) -> FileSlice | None:
        """Have a file under another name, too, and give it to another node, if there is one.

        Returns:
            The file, and who has it; None if there is no room.
        """
        try:
            self._paths.take(stored.path, self.node, file)
        except OSError:
            return None
        others = [node for node in spares if node != self.node][:1]
        return FileSlice(file, self.replicate(stored, file, [self.node, *others]))

    def _given_far(self, file: str, nodes: Sequence[str]) -> list[str]:
        """Those of another host's nodes that have taken a file."""
        source = self._stores.get(self.node)
        held: list[str] = []
        if source is None or self._fetcher is None:  # it came later than the task's stage
            return held
        for node in nodes:
            with contextlib.suppress(OSError):  # it died, or is full
                self._fetcher.replicate(file, source, self._stores[node])
                held.append(node)
                source = self._stores[held[0]]
        return held

    def _give(self, stored: StoredFile, file: str, node: str) -> bool:
        """Link a file into the folder of a node on this host; whether it could be."""
        if node == self.node:
            return True
        try:
            paths = self._paths_of(node)
            copy = paths.memory / node / file
            if stored.on_disk:
                follow(copy.parent, (paths.disk / node / file).parent)
                copy = paths.disk / node / file
            link(stored.path, copy)
        except OSError:  # it died, or is full
            return False
        return True


def _changed(rows: pa.Table, item: FileSlice) -> pa.Table:
    """The rows of a slice as its reader wants them."""
    if item.constants:
        rows = with_constants(rows, item.constants)
    if item.numbered_from is not None:
        rows = with_numbers(rows, item.numbered_from)
    return without_deleted(rows, item.deleted) if item.deleted else rows


def _is_whole(item: FileSlice) -> bool:
    return not item.first and item.last is None and bool(item.locations)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _joined(tables: list[pa.Table]) -> pa.Table:
    """The rows of tables whose text columns may be dictionaries in some, with any index type."""
    if all(table.schema == tables[0].schema for table in tables):
        return pa.concat_tables(tables)
    texts = {
        position
        for table in tables
        for position, field in enumerate(table.schema)
        if not pa.types.is_dictionary(field.type)
    }
    plain = [without_dictionaries(table, texts) for table in tables]
    return pa.concat_tables(plain, promote_options="permissive")  # the widest indices for all
