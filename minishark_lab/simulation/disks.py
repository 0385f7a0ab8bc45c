"""The files of simulated hosts, and stores that read and write them.

A host is gone with its files when it crashes; it comes back with an empty disk. A file is complete
or not there at all, as in production. What is read from another host takes a message there and
back; a host that is dead, stopped or cut off has nothing to give.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from minishark.cluster import wire
from minishark.cluster.membership import Change
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.seals import Seal
from minishark.worker.store import FolderMissingError, InputMissingError, Store
from minishark.worker.visible_rows import with_numbers, without_deleted
from minishark.worker.writing import StoredFile
from minishark_lab.simulation.files import SharedFiles
from minishark_lab.simulator.network import host_of
from minishark_lab.simulator.world import World


@dataclass(frozen=True, slots=True)
class File:
    """A stored file."""

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]
    made_s: float

    def read(self, item: FileSlice) -> pa.Table:
        """The rows of a slice as its reader wants them."""
        last = len(self.batches) if item.last is None else item.last
        rows = pa.Table.from_batches(self.batches[item.first : last], self.schema)
        if item.numbered_from is not None:
            rows = with_numbers(rows, item.numbered_from)
        return without_deleted(rows, item.deleted) if item.deleted else rows


@dataclass(slots=True, kw_only=True)
class Disk:
    """The storage of one incarnation of a host, or of a session."""

    home: str  # a name that no other has
    endpoint: str  # the process that serves its files
    since_s: float = 0.0  # when it was empty
    folders: dict[str, None] = field(default_factory=dict)
    late: dict[str, None] = field(default_factory=dict)  # those that tasks have made
    files: dict[str, File] = field(default_factory=dict)
    is_full: bool = False

    def change(self, request: Change) -> None:
        """Make or remove folders, or remove a file."""
        match request:
            case wire.MakeFolder():
                self.folders.update(dict.fromkeys(request.paths))
            case wire.RemoveFolder():
                for folder in request.paths:
                    self._remove(f"{folder}/")
            case wire.RemoveFile(file):
                self.files.pop(file, None)

    def _remove(self, within: str) -> None:
        for kept in (self.folders, self.files, self.late):
            for name in [name for name in kept if f"{name}/".startswith(within)]:
                del kept[name]

    def knows(self, file: str) -> bool:
        """Whether it has any folder of the session of a file."""
        session = f"{file.partition('/')[0]}/"
        return any(folder.startswith(session) for folder in self.folders)


class Disks:
    """All disks of a world, by the name of their node or session."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.by_name: dict[str, Disk] = {}
        # Called with the disk and the name of each file that a task has read.
        self.on_read: list[Callable[[Disk, str], None]] = []
        self.shared = SharedFiles()

    def reachable(self, reader: str, name: str) -> Disk | None:
        """The disk of a node or session, if the process `reader` gets answers from there now."""
        disk = self.by_name.get(name)
        if disk is None:
            return None
        if host_of(reader) == host_of(disk.endpoint):
            return disk
        world = self.world
        if world.frozen_until(disk.endpoint) > world.now:
            return None
        is_cut = world.is_cut(reader, disk.endpoint) or world.is_cut(disk.endpoint, reader)
        return None if is_cut else disk


class SimulatedStore(Store):
    """What one process sees of all disks."""

    def __init__(
        self,
        disks: Disks,
        name: str,
        endpoint: str,
        travel: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """The store of a node or session; `travel` takes the time that asking hosts takes."""
        self.node = name
        self._disks = disks
        self._endpoint = endpoint
        self._travel = travel

    def meet(self, stores: Sequence[StoreLocation]) -> None:
        """It knows all."""

    def in_memory(self, file: str, node: str = "") -> Path:
        """Nowhere: tasks print nothing."""
        return Path("/nonexistent", node, file)

    def read_all(self, inputs: Sequence[tuple[FileSlice, ...]]) -> list[pa.Table]:
        wanted = [item for slices in inputs for item in slices if not item.inline]
        far = dict.fromkeys(node for item in wanted for node in item.locations[:1])
        if far:
            self._travel(tuple(far))
        found = {item: self._found(item) for slices in inputs for item in slices}
        missing = tuple(item for item, rows in found.items() if rows is None)
        if missing:
            message = f"{missing[0].file} is on none of its nodes"
            asked = {node for item in missing for node in item.locations}
            is_silent = any(self._disks.reachable(self._endpoint, node) is None for node in asked)
            raise InputMissingError(message, missing, is_silent=is_silent)
        return [pa.concat_tables([found[item] for item in slices]) for slices in inputs]

    def _found(self, item: FileSlice) -> pa.Table | None:
        if item.inline:
            return pa.ipc.open_stream(item.inline).read_all()
        near_first = sorted(item.locations, key=lambda node: node != self.node)
        for node in near_first:
            disk = self._disks.reachable(self._endpoint, node)
            if disk is not None and (file := disk.files.get(item.file)) is not None:
                for told in (*self._disks.on_read,):
                    told(disk, item.file)
                return file.read(item)
        return None

    def write(
        self,
        file: str,
        schema: pa.Schema,
        groups: Iterable[Sequence[pa.RecordBatch]],
        seal: Seal = Seal.NONE,
    ) -> StoredFile:
        del seal  # bytes don't change here
        disk = self._disks.by_name[self.node]
        folder = file.rpartition("/")[0]
        if not disk.knows(file):
            disk.folders[folder] = disk.late[folder] = None
        if folder not in disk.folders:
            raise FolderMissingError(f"{self.node} has no folder {folder}")
        if disk.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
        batches = tuple(batch for group in groups for batch in group)
        assert file not in disk.files, "no two attempts write the same file"
        disk.files[file] = File(schema, batches, self._disks.world.now)
        rows, size = (sum(getattr(b, name) for b in batches) for name in ("num_rows", "nbytes"))
        return StoredFile(Path(file), bytes=size, rows=rows, on_disk=False)

    def replicate(self, stored: StoredFile, file: str, nodes: Sequence[str]) -> tuple[str, ...]:
        held = [node for node in nodes if node == self.node or self.give(file, node)]
        self._travel(tuple(held))  # back
        return tuple(held) if self.node in held else (self.node, *held)

    def give(self, file: str, node: str) -> bool:
        """Copy a file to another node; whether that took it."""
        self._travel((node,))
        own, disk = self._disks.by_name[self.node], self._disks.reachable(self._endpoint, node)
        if disk is None or disk.is_full or file not in own.files:
            return False
        folder = file.rpartition("/")[0]
        if not disk.knows(file):
            disk.folders[folder] = disk.late[folder] = None
        if folder not in disk.folders:
            return False
        disk.files[file] = own.files[file]
        return True

    def forget(self, folder: str) -> None:
        """It keeps nothing."""
