"""Seals of stored files: whatever changes in a file is found before a row of it is read."""

from __future__ import annotations

import errno
import random
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs
from xxhash import xxh3_64

from minishark.cluster.connections import Connections
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service
from minishark.worker import seals
from minishark.worker import store as store_module
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.seals import Seal, checksum, digest_of, is_intact, sealed_name
from minishark.worker.storage import StorageMeter
from minishark.worker.store import InputMissingError, Store
from minishark.worker.writing import DamagedError, RawFile, StoredFile
from tests.unit.damages import DAMAGES, changed_later, cut, damage, flipped, unreadable

FOLDER = "s-1/tables/0"
FILE = f"{FOLDER}/0.arrow"
ROWS = pa.table({"x": range(3_000), "t": [f"text {i}" for i in range(3_000)]})


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    """Folders of the nodes n0 and n1."""
    tmp_path.chmod(0o700)
    found = StorePaths(tmp_path / "memory", tmp_path / "disk")
    found.memory.mkdir()
    found.make(FOLDER, ("n0", "n1"))
    return found


def write(store: Store, seal: Seal = Seal.ALWAYS) -> tuple[StoredFile, FileSlice]:
    """A file of a node."""
    stored = store.write(FILE, ROWS.schema, [ROWS.to_batches(1_000)], seal)
    return stored, FileSlice(stored.named(FILE), (store.node,))


def test_a_digest_does_not_depend_on_how_bytes_come(tmp_path: Path) -> None:
    """In any pieces, it is that of the file."""
    chance = random.Random(1)
    for size in (0, 1, 8, 4095, 4096, 4097, 1 << 18, (1 << 18) + 5, 700_001):
        data = chance.randbytes(size)
        path = tmp_path / "a"
        path.write_bytes(data)
        for most in (7, 5_000, 1 << 20):
            digest, left = xxh3_64(), memoryview(data)
            while left:
                count = chance.randrange(1, most)
                digest.update(left[:count])
                left = left[count:]
            assert checksum(path) == digest.intdigest()


def test_all_damages_are_found(paths: StorePaths) -> None:
    """Flipped bits and torn writes, wherever they are: the rows are missing, never others."""
    chance = random.Random(7)
    for number in range(200):
        stored, item = write(Store(paths, "n0"))
        if not damage(stored.path, DAMAGES[number % len(DAMAGES)], chance):
            continue
        with pytest.raises(InputMissingError, match="on none of the nodes"):
            Store(paths, "n0").read((item,))
        assert not stored.path.exists()


def test_a_name_carries_the_digest(paths: StorePaths) -> None:
    """Of the file, wherever copies of it are; other names have none."""
    stored, item = write(Store(paths, "n0"))
    found = checksum(stored.path)
    assert [found, found] == [digest_of(item.file), digest_of(f"{item.file}@n7")]
    assert found == digest_of(sealed_name("a/b", found))
    assert [None, None] == [digest_of("a~0123456789abcdef/b.arrow"), digest_of("a/b~c.arrow")]
    assert ROWS == Store(paths, "n0").read((item,))


def test_a_file_is_looked_at_once_on_a_host(
    paths: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever reads it first; its copies are looked at again."""
    stored, item = write(Store(paths, "n0"))
    seen: list[str] = []

    def looked(path: Path, name: str) -> bool:
        seen.append(name)
        return True

    monkeypatch.setattr(seals, "is_sound", looked)
    for _ in range(2):
        assert ROWS == Store(paths, "n0").read((item,))
    assert [stored.path.name] == seen
    assert not stored.path.stat().st_mode & stat.S_IWUSR
    copy = stored.path.with_name("copy" + stored.path.name)
    copy.write_bytes(stored.path.read_bytes())
    assert is_intact(copy)
    assert [stored.path.name, copy.name] == seen


@pytest.mark.parametrize("seal", [Seal.NONE, Seal.ALWAYS])
def test_what_can_not_be_read_any_more_is_lost(paths: StorePaths, seal: Seal) -> None:
    """Although it was compared before, or has no digest: whoever opens it then removes it."""
    for number in range(6):
        stored, item = write(Store(paths, "n0"), seal)
        assert ROWS == Store(paths, "n0").read((item,))
        changed_later(stored.path, unreadable(stored.path.read_bytes())[number])
        with pytest.raises(InputMissingError, match="on none of the nodes n0"):
            Store(paths, "n0").read((item,))
        assert not stored.path.exists()


def test_what_can_not_be_read_any_more_is_replaced(paths: StorePaths) -> None:
    """By another node's replica on the same host."""
    for number in range(6):
        stored, item = write(Store(paths, "n0"))
        assert ROWS == Store(paths, "n0").read((item,))
        other = paths.memory / "n1" / item.file
        other.unlink(missing_ok=True)
        other.write_bytes(stored.path.read_bytes())
        changed_later(stored.path, unreadable(other.read_bytes())[number])
        both = FileSlice(item.file, ("n0", "n1"))
        assert ROWS == Store(paths, "n0").read((both,))
        assert checksum(stored.path) == digest_of(item.file)


def test_a_wary_store_compares_again_once(
    paths: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an executor opens that was started after another's death; others trust the note."""
    stored, item = write(Store(paths, "n0"))
    assert ROWS == Store(paths, "n0").read((item,))
    wary = Store(paths, "n0", is_wary=True)
    looked: list[Path] = []
    true = seals.checksum
    monkeypatch.setattr(seals, "checksum", lambda path: looked.append(path) or true(path))
    for _ in range(2):
        assert ROWS == wary.read((item,))
        wary._open.clear()
        wary._tables.clear()
    assert [stored.path] == looked
    data = bytearray(stored.path.read_bytes())
    data[len(data) // 2] ^= 1
    changed_later(stored.path, bytes(data))
    assert ROWS != Store(paths, "n0").read((item,))
    with pytest.raises(InputMissingError):
        Store(paths, "n0", is_wary=True).read((item,))


def test_what_the_disk_can_not_give_back_is_damaged(paths: StorePaths) -> None:
    """An input/output error, which would kill whoever had mapped the file."""
    stored, item = write(Store(paths, "n0"))
    stored.path.unlink()
    stored.path.symlink_to("/proc/self/mem")  # nothing is at its first page
    with pytest.raises(InputMissingError, match="on none of the nodes n0"):
        Store(paths, "n0").read((item,))
    assert not stored.path.is_symlink()


def test_too_many_open_files_damage_none(
    paths: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the reader are no mistakes of the file."""
    _, item = write(Store(paths, "n0"))

    def refused(_: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(seals, "checksum", refused)
        with pytest.raises(OSError, match="Too many"):
            Store(paths, "n0").read((item,))
    assert ROWS == Store(paths, "n0").read((item,))


@pytest.mark.parametrize("seal", [Seal.NONE, Seal.ALWAYS])
def test_a_linked_file_is_compared_once(
    paths: StorePaths, monkeypatch: pytest.MonkeyPatch, seal: Seal
) -> None:
    """Before it gets another name, which has the digest then; one that is damaged gets none."""
    store = Store(paths, "n0")
    stored, item = write(store, seal)
    looked: list[Path] = []
    true = seals.checksum

    def counted(path: Path) -> int:
        looked.append(path)
        return true(path)

    for module in (seals, store_module):
        monkeypatch.setattr(module, "checksum", counted)
    linked = store.linked(item, f"{FOLDER}/1.arrow")
    assert linked is not None
    assert true(stored.path) == digest_of(linked.path.name)
    new = FileSlice(linked.named(f"{FOLDER}/1.arrow"), ("n0",))
    assert ROWS == Store(paths, "n0").read((new,))
    assert 1 == len(looked)
    if seal is Seal.ALWAYS:
        assert damage(stored.path, flipped, random.Random(1))
        assert Store(paths, "n0").linked(item, f"{FOLDER}/2.arrow") is None


def test_what_passes_through_memory_has_no_seal(paths: StorePaths, tmp_path: Path) -> None:
    """Outputs for the next stage have one if there was no room for them there."""
    stored, _ = write(Store(paths, "n0"), Seal.ON_DISK)
    assert paths.memory / "n0" / FILE == stored.path
    meter = StorageMeter(paths.memory / "n0", 0)
    for seal in (Seal.ON_DISK, Seal.ALWAYS):
        spilled, item = write(Store(paths, "n1", meter=meter), seal)
        assert spilled.on_disk
        assert checksum(spilled.path) == digest_of(item.file)
        assert ROWS == Store(paths, "n1").read((item,))


def test_a_query_does_not_compare_what_it_has_just_written(
    paths: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In shared memory; others that take it do, and so does the query if it is on disk."""
    compared = list[Path]()
    monkeypatch.setattr(
        store_module,
        "is_intact",
        lambda path, *, again: bool(compared.append(path)) or is_intact(path, again=again),
    )
    reader = Store(paths, "n0")
    stored, item = write(reader)
    assert ROWS == reader.read((structs.replace(item, is_new=True),))
    assert compared == []
    assert damage(stored.path, flipped, random.Random(1))
    with pytest.raises(InputMissingError):
        reader.read((item,))
    spilled, item = write(Store(paths, "n1", meter=StorageMeter(paths.memory / "n1", 0)))
    assert spilled.on_disk
    compared.clear()
    assert ROWS == Store(paths, "n1").read((structs.replace(item, is_new=True),))
    assert compared == [spilled.path]


def test_a_file_that_moves_to_disk_keeps_its_digest(paths: StorePaths) -> None:
    """What was written before and after there was room."""
    store = Store(paths, "n0")
    room = [True]
    store.meter.has_room = lambda _: room.pop() if room else False  # type: ignore[method-assign]
    groups = [[batch] for batch in ROWS.to_batches(1_000)]
    stored = store.write(FILE, ROWS.schema, groups, Seal.ALWAYS)
    assert stored.on_disk
    assert checksum(stored.path) == digest_of(stored.path.name)


def test_a_damaged_copy_is_replaced_by_another_of_the_host(paths: StorePaths) -> None:
    """By that in another node's folder, if it is not the same file."""
    stored, item = write(Store(paths, "n0"))
    other = paths.memory / "n1" / item.file
    other.write_bytes(stored.path.read_bytes())
    assert damage(stored.path, flipped, random.Random(3))
    both = FileSlice(item.file, ("n0", "n1"))
    assert ROWS == Store(paths, "n0").read((both,))
    assert checksum(stored.path) == digest_of(item.file)
    assert ROWS == Store(paths, "n0").read((item,))


@dataclass(frozen=True, slots=True)
class Hosts:
    """Two hosts, each with a node that serves its files."""

    here: Store
    there: Store
    here_paths: StorePaths
    there_paths: StorePaths
    nodes: tuple[StoreLocation, StoreLocation]
    files: RemoteFiles

    def again(self) -> Store:
        """The first node's store, as another executor sees it."""
        found = Store(self.here_paths, "n0", "here", self.files)
        found.meet(self.nodes)
        return found


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """n0 is on the host `here`, n1 on `there`."""
    tmp_path.chmod(0o700)
    found: list[tuple[StorePaths, Service, StoreLocation]] = []
    for node, host in (("n0", "here"), ("n1", "there")):
        paths = StorePaths(tmp_path / host, tmp_path / host)
        paths.memory.mkdir()
        paths.make(FOLDER, (node,))
        service = Service(f"ipc://{tmp_path}/{host}.sock", paths, node)
        service.start()
        place = StoreLocation(node, host, str(paths.memory), str(paths.disk), service.endpoint)
        found.append((paths, service, place))
    connections = Connections()
    files, nodes = RemoteFiles(connections), (found[0][2], found[1][2])
    stores = []
    for (paths, _, place), node in zip(found, nodes, strict=True):
        store = Store(paths, node.name, place.host, files)
        store.meet(nodes)
        stores.append(store)
    yield Hosts(*stores, found[0][0], found[1][0], nodes, files)
    connections.close()
    for _, service, _ in found:
        service.stop()


def replicated(hosts: Hosts) -> FileSlice:
    """A file that both nodes have."""
    stored, item = write(hosts.here)
    there = hosts.there_paths.memory / "n1" / item.file
    there.write_bytes(stored.path.read_bytes())
    return FileSlice(item.file, ("n0", "n1"))


@pytest.mark.parametrize("part", [(0, None), (1, 2)])
def test_a_damaged_copy_is_replaced_from_another_host(
    hosts: Hosts, part: tuple[int, int | None]
) -> None:
    """Whoever reads it, or a part of it, gets the rows, and the node has the file again."""
    chance = random.Random(5)
    for number in range(2 * len(DAMAGES)):
        item = replicated(hosts)
        own = hosts.here_paths.memory / "n0" / item.file
        if not damage(own, DAMAGES[number % len(DAMAGES)], chance):
            continue
        first, last = part
        expected = pa.Table.from_batches(ROWS.to_batches(1_000)[first:last])
        asked = FileSlice(item.file, item.locations, first, last)
        assert expected == hosts.again().read((asked,))
        assert checksum(own) == digest_of(item.file)
        assert expected == hosts.again().read((asked,))


@pytest.mark.parametrize("part", [(0, None), (1, 2)])
def test_no_host_sends_what_is_damaged(hosts: Hosts, part: tuple[int, int | None]) -> None:
    """Neither the file nor a part of it; it is nobody's any more."""
    item = replicated(hosts)
    there = hosts.there_paths.memory / "n1" / item.file
    (hosts.here_paths.memory / "n0" / item.file).unlink()
    assert damage(there, flipped, random.Random(2))
    with pytest.raises(InputMissingError, match="on none of the nodes n1"):
        hosts.again().read((FileSlice(item.file, ("n1",), *part),))
    assert not there.exists()
    with pytest.raises(InputMissingError):
        hosts.again().read((item,))


def test_a_host_compares_again_what_it_sends_as_a_whole(hosts: Hosts) -> None:
    """Else whoever gets it, and finds it damaged, would be told of it each time."""
    item = replicated(hosts)
    there = hosts.there_paths.memory / "n1" / item.file
    assert ROWS == hosts.there.read((FileSlice(item.file, ("n1",)),))
    (hosts.here_paths.memory / "n0" / item.file).unlink()
    data = bytearray(there.read_bytes())
    data[len(data) // 2] ^= 1
    changed_later(there, bytes(data))
    with pytest.raises(InputMissingError, match="on none of the nodes n1"):
        hosts.again().read((FileSlice(item.file, ("n1",)),))
    assert not there.exists()


@pytest.mark.parametrize("evicts", [False, True])
def test_many_find_a_damage_at_once(hosts: Hosts, evicts: bool) -> None:
    """Each gets the rows, although others replace the file, or somebody makes room meanwhile."""
    chance = random.Random(6)
    with ThreadPoolExecutor(6) as pool:
        for number in range(16):
            item = replicated(hosts)
            own = hosts.here_paths.memory / "n0" / item.file
            assert damage(own, (flipped, cut)[number % 2], chance)
            stores = [hosts.again() for _ in range(6)]
            found = [pool.submit(store.read, ((item,))) for store in stores[1:]]
            while evicts and not all(each.done() for each in found):
                own.unlink(missing_ok=True)
            assert [ROWS] * 5 == [each.result() for each in found]
            assert ROWS == stores[0].read((item,))
            assert checksum(own) == digest_of(item.file)


def test_files_that_change_places_are_damaged(paths: StorePaths) -> None:
    """Each has the other's bytes, which are sound as such."""
    store, items = Store(paths, "n0"), []
    for number in range(2):
        rows = ROWS.slice(number * 1_000, 1_000)
        stored = store.write(
            f"{FOLDER}/{number}.arrow", ROWS.schema, [rows.to_batches()], Seal.ALWAYS
        )
        items.append((stored.path, FileSlice(stored.named(f"{FOLDER}/{number}.arrow"), ("n0",))))
    (one, _), (other, _) = items
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)
    for path, item in items:
        with pytest.raises(InputMissingError):
            store.read((item,))
        assert not path.exists()


def test_what_is_damaged_both_here_and_there_is_lost(hosts: Hosts) -> None:
    """It is missing: no rows come."""
    item, chance = replicated(hosts), random.Random(4)
    places = ((hosts.here_paths, "n0"), (hosts.there_paths, "n1"))
    for paths, node in places:
        assert damage(paths.memory / node / item.file, flipped, chance)
    with pytest.raises(InputMissingError, match="on none of the nodes n0, n1"):
        hosts.again().read((item,))
    assert [False, False] == [(p.memory / node / item.file).exists() for p, node in places]


def test_a_file_that_comes_damaged_is_not_kept(paths: StorePaths) -> None:
    """Its name says what was sent."""
    store = Store(paths, "n0")
    stored, item = write(store)
    data = bytearray(stored.path.read_bytes())
    target = paths.memory / "n1" / item.file
    data[100] ^= 1
    with (
        pytest.raises(DamagedError, match="came damaged"),
        RawFile(target, target, store.meter) as file,
    ):
        file.write(memoryview(data), len(data))
    assert [] == list(target.parent.iterdir())
    data[100] ^= 1
    with RawFile(target, target, store.meter) as file:
        file.write(memoryview(data), len(data))
    assert data == target.read_bytes()
    assert target.stat().st_mode & stat.S_IWUSR  # it is compared again before it is read
