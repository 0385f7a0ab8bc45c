from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from minishark.worker import storage
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.storage import StorageMeter
from minishark.worker.store import (
    FolderMissingError,
    InputMissingError,
    RawSink,
    Store,
    StorePaths,
)
from minishark.worker.writing import RawFile, StoredFile, follow

FILE = "queries/1/0.arrow"
SCHEMA = pa.schema([("x", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    """A record batch of one column."""
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    """Folders for memory and disk."""
    found = StorePaths(tmp_path / "memory", tmp_path / "disk")
    found.memory.mkdir()
    for folder in ("queries/1", "q/1", "q/10"):
        found.make(folder, ("n0", "n1", "n2"))
    return found


def write(store: Store, file: str = FILE, *batches: pa.RecordBatch) -> StoredFile:
    """A stored file of some batches."""
    return store.write(file, SCHEMA, [list(batches or (batch(1, 2), batch(3)))])


def values(table: pa.Table) -> list[int]:
    """The column of a table."""
    found: list[int] = table.column("x").to_pylist()
    return found


def test_what_was_written_is_read(paths: StorePaths) -> None:
    """A file has its batches in order, in memory, and says how large it is."""
    store = Store(paths, "n0")
    stored = write(store)
    assert (paths.memory / "n0" / FILE, 3, False) == (stored.path, stored.rows, stored.on_disk)
    assert batch(1, 2).nbytes + batch(3).nbytes == stored.bytes
    assert [1, 2, 3] == values(store.read((FileSlice(FILE, ("n0",)),)))


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(0, 1, [1, 2]), (1, 2, [3]), (1, None, [3]), (1, 1, [])]
)
def test_slices_are_batches(
    paths: StorePaths, first: int, last: int | None, expected: list[int]
) -> None:
    """A slice has the batches from its first to before its last one; none keeps the schema."""
    store = Store(paths, "n0")
    write(store)
    found = store.read((FileSlice(FILE, ("n0",), first, last),))
    assert expected == values(found)
    assert SCHEMA == found.schema


def test_slices_of_several_files_come_in_order(paths: StorePaths) -> None:
    """All slices are one table, in the order in which they are asked for."""
    store = Store(paths, "n0")
    write(store, "q/1.arrow", batch(1))
    write(store, "q/2.arrow", batch(2))
    slices = (FileSlice("q/2.arrow", ("n0",)), FileSlice("q/1.arrow", ("n0",)))
    assert [2, 1] == values(store.read(slices))


def test_empty_file_has_its_schema(paths: StorePaths) -> None:
    """A file without batches can be read."""
    store = Store(paths, "n0")
    stored = store.write(FILE, SCHEMA, [[], []])
    assert (0, 0) == (stored.rows, stored.bytes)
    assert [] == values(store.read((FileSlice(FILE, ("n0",)),)))


def test_own_copy_is_read_first(paths: StorePaths) -> None:
    """Of several holders the node itself is the nearest."""
    far, near = Store(paths, "n0"), Store(paths, "n1")
    write(far, FILE, batch(1))
    write(near, FILE, batch(2))
    item = FileSlice(FILE, ("n0", "n1"))
    assert [2] == values(near.read((item,)))
    assert [1] == values(far.read((item,)))


def test_other_holders_serve_where_the_own_copy_is_missing(paths: StorePaths) -> None:
    """Any holder will do."""
    write(Store(paths, "n2"))
    assert [1, 2, 3] == values(Store(paths, "n0").read((FileSlice(FILE, ("n0", "n1", "n2")),)))


def test_missing_file_is_named(paths: StorePaths) -> None:
    """The error says which file, and who should have had it."""
    with pytest.raises(InputMissingError, match=r"queries/1/0\.arrow is on none .* n0, n1"):
        Store(paths, "n0").read((FileSlice(FILE, ("n0", "n1")),))


def test_replicas_are_links(paths: StorePaths) -> None:
    """Replicas on the same machine share the data, and outlive the original."""
    store = Store(paths, "n0")
    stored = write(store)
    store.replicate(stored, FILE, ("n0", "n1", "n2"))
    copies = [paths.memory / node / FILE for node in ("n1", "n2")]
    assert [True, True] == [copy.samefile(stored.path) for copy in copies]
    stored.path.unlink()
    assert [1, 2, 3] == values(Store(paths, "n0").read((FileSlice(FILE, ("n0", "n2")),)))


def test_replica_replaces_an_older_one(paths: StorePaths) -> None:
    """A task that runs a second time replicates again."""
    store = Store(paths, "n0")
    store.replicate(write(store, FILE, batch(1)), FILE, ("n1",))
    store.replicate(write(store, FILE, batch(2)), FILE, ("n1",))
    assert [2] == values(Store(paths, "n1").read((FileSlice(FILE, ("n1",)),)))


def test_short_memory_goes_to_disk(paths: StorePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room in shared memory, files and their replicas lie on disk, and are found there."""
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 0)
    store = Store(paths, "n0")
    stored = write(store)
    assert (paths.disk / "n0" / FILE, True) == (stored.path, stored.on_disk)
    store.replicate(stored, FILE, ("n1",))
    assert (paths.disk / "n1" / FILE).samefile(stored.path)
    assert [1, 2, 3] == values(Store(paths, "n1").read((FileSlice(FILE, ("n1",)),)))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_memory_that_fills_up_while_writing(
    paths: StorePaths, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """If memory ends in the middle of a file, it goes on on disk and leaves nothing behind."""
    calls = []

    def full_the_second_time(descriptor: int, offset: int, length: int) -> None:
        calls.append(length)
        if len(calls) > 1:
            raise OSError(code, "full")

    monkeypatch.setattr(StorageMeter, "has_plenty", lambda *_: False)
    monkeypatch.setattr(os, "posix_fallocate", full_the_second_time)
    store = Store(paths, "n0")
    stored = store.write(FILE, SCHEMA, [[batch(1, 2)], [batch(3)], [batch(4)]])
    assert (True, 4, 2) == (stored.on_disk, stored.rows, len(calls))
    assert [1, 2, 3, 4] == values(store.read((FileSlice(FILE, ("n0",)),)))
    assert [stored.path] == [path for path in paths.disk.rglob("*") if path.is_file()]
    assert [] == [path for path in paths.memory.rglob("*") if path.is_file()]


def test_other_errors_are_raised(paths: StorePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a full memory is a reason to write elsewhere."""

    def broken(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(StorageMeter, "has_plenty", lambda *_: False)
    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="broken"):
        write(Store(paths, "n0"))
    assert [] == [path for path in paths.memory.rglob("*") if path.is_file()]


def test_files_above_the_share_go_to_disk(paths: StorePaths) -> None:
    """A node's files take no more of shared memory than its share, whoever wrote them."""
    rows = pa.record_batch([pa.array(range(45_000), pa.int64())], schema=SCHEMA)

    def store() -> Store:
        """As another process has one."""
        return Store(paths, "n0", meter=StorageMeter(paths.memory / "n0", 1 << 20))

    files = [f"queries/1/{i}.arrow" for i in range(4)]
    stored = [store().write(file, SCHEMA, [[rows]]) for file in files]
    assert [False, False, True, True] == [each.on_disk for each in stored]
    (paths.memory / "n0" / files[0]).unlink()
    assert not store().write(files[2], SCHEMA, [[rows]]).on_disk


def test_failed_write_leaves_no_temporary_file(paths: StorePaths) -> None:
    """A file is whole or is not there."""
    other = pa.record_batch([pa.array(["x"])], names=["y"])
    with pytest.raises(pa.ArrowInvalid):
        Store(paths, "n0").write(FILE, SCHEMA, [[batch(1), other]])
    assert [] == [path for path in paths.memory.rglob("*") if path.is_file()]


def test_one_folder_for_both_is_no_disk_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no shared memory at all, nobody is warned for each file."""
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 0)
    paths = StorePaths(tmp_path, tmp_path)
    paths.make("queries/1", ("n0",))
    assert not write(Store(paths, "n0")).on_disk


def test_forget_drops_what_is_cached(paths: StorePaths) -> None:
    """After a forget the file is opened again; files of other folders stay open."""
    store = Store(paths, "n0")
    one, ten = FileSlice("q/1/0.arrow", ("n0",)), FileSlice("q/10/0.arrow", ("n0",))
    for item in (one, ten):
        write(store, item.file, batch(1))
        store.read((item,))
    for item in (one, ten):
        (paths.memory / "n0" / item.file).unlink()
    assert [1] == values(store.read((one,)))
    store.forget("q/1")
    with pytest.raises(InputMissingError):
        store.read((one,))
    assert [1] == values(store.read((ten,)))


def test_missing_folder_has_no_room(tmp_path: Path) -> None:
    """A memory folder that is gone counts as full, and as empty."""
    assert (0, 0) == (storage.free_bytes(tmp_path / "x"), storage.folder_bytes(tmp_path / "x"))


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    """A replica on the same host takes no more memory: each of the two nodes has half of it."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a/x").write_bytes(bytes(1 << 20))
    (tmp_path / "b/x").hardlink_to(tmp_path / "a/x")
    assert [1 << 19, 1 << 19] == [storage.folder_bytes(tmp_path / folder) for folder in "ab"]


def test_text_may_be_a_dictionary_in_some_files(paths: StorePaths) -> None:
    """Files of which some have a text column as a dictionary are read as one table."""
    store = Store(paths, "n0")
    plain = pa.record_batch({"x": pa.array(["a", None])})
    encoded = pa.record_batch({"x": pa.array(["b", "a", None]).dictionary_encode()})
    for name, rows in (("q/1/plain.arrow", plain), ("q/1/encoded.arrow", encoded)):
        store.write(name, rows.schema, [[rows]])
    both = (FileSlice("q/1/plain.arrow", ("n0",)), FileSlice("q/1/encoded.arrow", ("n0",)))
    assert ["a", None, "b", "a", None] == store.read(both).column("x").to_pylist()


def test_indices_of_dictionaries_may_differ_in_width(paths: StorePaths) -> None:
    """Files whose dictionaries have indices of several types are read as one, still encoded."""
    store = Store(paths, "n0")
    few = pa.array(["b", "a", None])
    for name, kind in (("few", pa.int8()), ("more", pa.int16())):
        encoded = few.cast(pa.dictionary(kind, pa.string()))
        rows = pa.record_batch({"x": encoded, "y": few if name == "few" else encoded})
        store.write(f"q/1/{name}.arrow", rows.schema, [[rows]])
    found = store.read(tuple(FileSlice(f"q/1/{n}.arrow", ("n0",)) for n in ("few", "more")))
    assert [pa.dictionary(pa.int16(), pa.string()), pa.string()] == found.schema.types
    for column in found.columns:
        assert ["b", "a", None] * 2 == column.to_pylist()


def test_folder_that_was_removed_is_not_made_again_on_disk(
    paths: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of a query that has ended leaves nothing, wherever its file would have gone."""
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 0)
    store = Store(paths, "n0")
    write(store)
    paths.remove("queries/1", ("n0", "n1"))
    with pytest.raises(FolderMissingError, match="n0 has no folder queries/1"):
        write(store)
    assert [] == [path for path in paths.disk.rglob("*") if path.is_file()]
    assert not (paths.disk / "n0/queries/1").exists()


def test_a_file_that_nobody_holds_any_more(paths: StorePaths) -> None:
    """All its holders may have been started anew."""
    with pytest.raises(InputMissingError, match="all that had it are gone") as found:
        Store(paths, "n0").read((FileSlice(FILE, ()),))
    assert (FileSlice(FILE, ()),) == found.value.files


class Elsewhere:
    """Another host, which has one row in each file and takes replicas."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    is_interrupted = False

    def fetch(self, wanted: Sequence[tuple[StoreLocation, FileSlice]]) -> list[pa.Table]:
        """The rows of a part of any file."""
        self.fetched += [f"{source.name} {item.file}" for source, item in wanted]
        return [pa.Table.from_batches([batch(7)]) for _ in wanted]

    def copy(self, source: StoreLocation, file: str, sink: RawSink, *_: str) -> None:
        """The bytes of any file."""
        self.fetched.append(f"{source.name} {file}")
        bytes_ = pa.BufferOutputStream()
        with pa.ipc.new_file(bytes_, batch(7).schema) as writer:
            writer.write(batch(7))
        data = memoryview(bytes_.getvalue()).cast("B")
        sink.write(data[:100], len(data))
        sink.write(data[100:], len(data))

    def announce(self, source: StoreLocation, file: str, reader: str, copy: str) -> None:
        """Nobody else wants it."""

    def take_received(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def replicate(self, file: str, source: StoreLocation, target: StoreLocation) -> None:
        """Every replica is taken."""


def peer(name: str, host: str, folder: str) -> StoreLocation:
    """A node with folders of its own."""
    return StoreLocation(name, host, folder, folder, "")


def test_a_node_finds_its_files_whatever_is_told_of_it(paths: StorePaths) -> None:
    """Started anew, it has other folders than a stage says that was begun before."""
    far = Elsewhere()
    store = Store(paths, "n0", "here", far)
    store.meet((peer("n0", "here", "/gone"), peer("n1", "there", "/far")))
    write(store)
    assert [1, 2, 3] == values(store.read((FileSlice(FILE, ("n0",)),)))
    for _ in range(2):
        assert [7] == values(store.read((FileSlice("queries/1/far.arrow", ("n1",)),)))
        store.forget("queries/1")
    assert ["n1 queries/1/far.arrow"] == far.fetched


def test_a_node_that_a_stage_does_not_know_gives_no_replicas(paths: StorePaths) -> None:
    """Others could not fetch from it; healing makes them."""
    store = Store(paths, "n0", "here", Elsewhere())
    stored = write(store)
    store.meet((peer("n1", "there", "/far"),))
    assert ("n0",) == store.replicate(stored, FILE, ("n1",))
    store.meet((peer("n0", "here", "/gone"), peer("n1", "there", "/far")))
    assert ("n0", "n1") == store.replicate(stored, FILE, ("n1",))


def test_files_on_disk_are_found_by_all_nodes_of_a_host(paths: StorePaths, tmp_path: Path) -> None:
    """Wherever these have their folders; not by other hosts, and not where the folder is gone."""
    own, other = Store(paths, "n0", "here"), Store(paths, "n1", "here")
    folder = FILE.rpartition("/")[0]
    for number, store in enumerate((own, other)):
        store.on_disk(f"{folder}/0-{number}.calls").touch()
        store.on_disk(f"{folder}/0-0.calls").touch()  # a replica, or the file itself
    assert 2 == len(own.on_disks(folder, "0-*.calls"))
    for name, host in (("n2", "here"), ("n3", "there")):
        at = tmp_path / name / name / folder
        at.mkdir(parents=True)
        (at / "0-2.calls").touch()
        own.meet((peer("n0", "here", "/x"), peer(name, host, str(tmp_path / name))))
        assert 2 + (host == "here") == len(own.on_disks(folder, "0-*.calls"))
        assert [] == own.on_disks(folder, "1-*.calls")
    own.meet(())
    with pytest.raises(FileNotFoundError):
        own.on_disk("queries/none/0-1.calls")


@pytest.mark.parametrize("stores", [(), (StoreLocation("n0", "h", "", "", ""),)])
@pytest.mark.parametrize("is_short", [False, True])
def test_what_its_owner_removed_is_not_made_again(
    paths: StorePaths,
    monkeypatch: pytest.MonkeyPatch,
    stores: tuple[StoreLocation, ...],
    is_short: bool,
) -> None:
    """An executor that outlives its node leaves nothing that nobody would remove."""
    store = Store(paths, "n0", "h")
    store.meet(stores)
    if is_short:
        monkeypatch.setattr(storage, "free_bytes", lambda folder: 0)
    for place in (paths.memory, paths.disk):
        shutil.rmtree(place, ignore_errors=True)
    with pytest.raises(FolderMissingError):
        write(store, "s-1/queries/1/0.arrow")
    assert [False, False] == [place.exists() for place in (paths.memory, paths.disk)]


def test_a_place_that_goes_while_a_file_moves_to_disk(
    paths: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that was just made on disk goes too, with all above it that is empty."""
    memory, disk = paths.memory / "n0/q/1", paths.disk / "n0/q/1"
    found = iter([True, False])
    monkeypatch.setattr(Path, "exists", lambda _: next(found))
    with pytest.raises(FileNotFoundError):
        follow(memory, disk)
    monkeypatch.undo()
    assert not paths.disk.exists()


@pytest.mark.parametrize("room", ["memory", "reserved", "disk"])
def test_raw_files(paths: StorePaths, monkeypatch: pytest.MonkeyPatch, room: str) -> None:
    """Bytes of another host's file: in shared memory or on disk, complete or not at all."""
    meter = StorageMeter(paths.memory / "n0", 4 if room == "disk" else None)
    monkeypatch.setattr(meter, "has_plenty", lambda _: room == "memory")
    memory, disk = paths.memory / "n0" / FILE, paths.disk / "n0" / FILE
    found = disk if room == "disk" else memory
    with RawFile(memory, disk, meter) as file:
        file.write(memoryview(b"begun wro"), 10)
        file.restart()
        file.write(memoryview(b"12345"), 10)
        file.write(memoryview(b"67890"), 10)
        assert not found.exists()
    assert b"1234567890" == found.read_bytes()
    found.unlink()
    with pytest.raises(OSError, match="5 bytes of 10"), RawFile(memory, disk, meter) as file:
        file.write(memoryview(b"12345"), 10)
    with RawFile(memory, disk, meter):
        """Nothing came."""
    assert [] == [*memory.parent.iterdir(), *disk.parent.rglob("*")]


def test_another_hosts_nodes_take_one_copy(paths: StorePaths) -> None:
    """The first gets it from here, the others on its host from there."""
    far = Elsewhere()
    given: list[tuple[str, str]] = []
    far.replicate = lambda file, source, target: given.append((source.name, target.name))  # type: ignore[method-assign]
    store = Store(paths, "n0", "here", far)
    store.meet((
        peer("n0", "here", "/x"), *(peer(f"{host}{i}", host, "/far") for host in "ab" for i in "01")
    ))  # fmt: skip
    stored = write(store)
    targets = ("n0", "a0", "b0", "a1", "b1")
    assert targets == store.replicate(stored, FILE, targets)
    assert [("a0", "a1"), ("b0", "b1"), ("n0", "a0"), ("n0", "b0")] == sorted(given)


def test_a_file_takes_another_name_without_a_copy(paths: StorePaths) -> None:
    """Only a whole one of this node: of others, and of slices, rows are copied."""
    store = Store(paths, "n0")
    stored = write(store, FILE, batch(1, 2), batch(3))
    folder = FILE.rpartition("/")[0]
    linked = store.linked(FileSlice(FILE, ("n0",)), f"{folder}/other.arrow")
    assert linked is not None
    assert linked.path.samefile(stored.path)
    assert (linked.rows, linked.bytes, linked.on_disk) == (3, stored.bytes, False)
    stored.path.unlink()
    other = linked.named(f"{folder}/other.arrow")
    assert values(store.read((FileSlice(other, ("n0",)),))) == [1, 2, 3]
    write(store, FILE, batch(1))
    assert store.linked(FileSlice(FILE, ("n0",), 0, 1), f"{folder}/slice.arrow") is None
    assert store.linked(FileSlice(FILE, ("n1",)), f"{folder}/else.arrow") is None
    assert store.linked(FileSlice(FILE, ("n0",)), "gone/other.arrow") is None
