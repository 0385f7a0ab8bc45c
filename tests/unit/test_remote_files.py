from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from minishark.cluster import remote_files, service
from minishark.cluster.connections import Connections, NoAnswerError
from minishark.cluster.node_service import NodeService
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service
from minishark.cluster.wire import Failure, GetReport, KeepSession, Kept, RemoveCopies
from minishark.errors import ClusterError
from minishark.worker.memory import NodeMemory
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.store import InputMissingError, Store

FOLDER = "s-1/queries/0"
FILE = f"{FOLDER}/0.arrow"


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    """Folders of the node n0."""
    tmp_path.chmod(0o700)
    found = StorePaths(tmp_path / "memory", tmp_path / "disk")
    found.memory.mkdir()
    found.make(FOLDER, ("n0",))
    return found


@pytest.fixture
def source(paths: StorePaths, tmp_path: Path) -> Iterator[StoreLocation]:
    """The node n0, which serves its files."""
    endpoint = f"ipc://{tmp_path}/s.sock"
    serving = Service(endpoint, paths, "n0")
    serving.start()
    yield StoreLocation("n0", "far", str(paths.memory), str(paths.disk), serving.endpoint)
    serving.stop()
    serving.stop()
    assert not (tmp_path / "s.sock").exists()


@pytest.fixture
def connections() -> Iterator[Connections]:
    """Connections to it."""
    made = Connections()
    yield made
    made.close()
    made.close()


def table(rows: int) -> pa.Table:
    """Numbers, and text with few values as a dictionary."""
    text = pa.array([f"value {i % 3}" for i in range(rows)])
    return pa.table({"x": pa.array(range(rows), pa.int64()), "t": text.dictionary_encode()})


def write(paths: StorePaths, rows: int, batch_rows: int) -> pa.Table:
    """A file on the node n0."""
    written = table(rows)
    Store(paths, "n0").write(FILE, written.schema, [written.to_batches(batch_rows)])
    return written


@pytest.mark.parametrize(("rows", "batch_rows"), [(0, 1), (1, 1), (10, 3), (300_000, 100_000)])
def test_a_file_comes_as_it_is(
    paths: StorePaths, source: StoreLocation, connections: Connections, rows: int, batch_rows: int
) -> None:
    """All rows and types come, be it in one chunk or in more than the asker has credit for."""
    expected = write(paths, rows, batch_rows)
    assert expected == RemoteFiles(connections).fetch(source, FileSlice(FILE, ("n0",)))


def test_more_chunks_than_credit(
    paths: StorePaths,
    source: StoreLocation,
    connections: Connections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The asker renews its credit until it has all."""
    monkeypatch.setattr(service, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(remote_files, "_CREDIT", 2)
    expected = write(paths, 5000, 700)
    files = RemoteFiles(connections)
    for _ in range(2):  # the second time over the same socket
        assert expected == files.fetch(source, FileSlice(FILE, ("n0",)))


def test_a_part_of_a_file(
    paths: StorePaths, source: StoreLocation, connections: Connections
) -> None:
    """Only the batches that are asked for come."""
    expected = write(paths, 10, 3).slice(3, 6)
    assert expected == RemoteFiles(connections).fetch(source, FileSlice(FILE, ("n0",), 1, 3))


def test_a_missing_file(source: StoreLocation, connections: Connections) -> None:
    """The holder says that it is not there."""
    with pytest.raises(InputMissingError, match="n0 has no"):
        RemoteFiles(connections).fetch(source, FileSlice(f"{FOLDER}/9.arrow", ("n0",)))


def test_a_senseless_request(
    paths: StorePaths, source: StoreLocation, connections: Connections
) -> None:
    """More batches than there are is a refusal, and the holder goes on to answer."""
    expected = write(paths, 10, 10)
    files = RemoteFiles(connections)
    with pytest.raises(InputMissingError):
        files.fetch(source, FileSlice(FILE, ("n0",), 0, 9))
    assert expected == files.fetch(source, FileSlice(FILE, ("n0",)))


def test_a_senseless_session(tmp_path: Path, connections: Connections) -> None:
    """A process that can't be is dead, and the node goes on to answer."""
    tmp_path.chmod(0o700)
    (tmp_path / "n0").mkdir()
    node = StoreLocation("n0", "here", str(tmp_path), str(tmp_path), "")
    memory = NodeMemory(1 << 30, 1)
    serving = NodeService(f"ipc://{tmp_path}/node.sock", node, "c", (), memory=memory)
    kept = KeepSession(
        session="s-1",
        location=StoreLocation("s-1", "here", "", "", ""),
        user="me",
        pid=-1,
        started_s=0.0,
    )
    assert Kept(()) == serving.answer(kept)
    serving.tidy()
    assert [] == list((tmp_path / "n0").iterdir())
    serving.start()
    assert {serving.endpoint} == set(connections.call_all([serving.endpoint], GetReport(), 5.0))
    serving.stop()


def test_unwanted_files_are_removed_from_other_hosts(
    tmp_path: Path, connections: Connections
) -> None:
    """The file and what was fetched of it, with the next message; others and their names stay."""
    tmp_path.chmod(0o700)
    node = StoreLocation("n0", "far", str(tmp_path / "memory"), str(tmp_path / "disk"), "")
    for place in (node.memory, node.disk):
        Path(place, "n0").mkdir(parents=True)
    folder = Path(node.memory, "n0", "s-1", "tasks")
    folder.mkdir(parents=True)
    for name in ("a", "a@n1", "a@n2", "ab", "b@n1"):
        (folder / name).touch()
    serving = NodeService(f"ipc://{tmp_path}/n.sock", node, "c", (), memory=NodeMemory(1 << 30, 1))
    serving.start()
    files = RemoteFiles(connections)
    here = StorePaths(tmp_path / "m", tmp_path / "m")
    store = Store(here, "front", "here", files)
    store.meet((serving.node,))
    store.remove(FileSlice("s-1/tasks/a", ("n0",)))
    assert (folder / "a").exists()
    files.remove_unwanted()
    assert {"ab", "b@n1"} == {path.name for path in folder.iterdir()}
    outside = connections.call(serving.endpoint, RemoveCopies(("../../x",)), 5.0)
    assert isinstance(outside, Failure)
    serving.stop()
    files.remove_unwanted()  # of which nobody is asked, as there is nothing to remove


def test_a_bad_address_among_others(source: StoreLocation, connections: Connections) -> None:
    """The sockets taken before it are given back."""
    with pytest.raises(ClusterError, match="Invalid service address"):
        connections.call_all([source.service, "nonsense"], GetReport(), 1.0)
    assert 0 == connections._in_use


def test_a_dead_holder(
    source: StoreLocation, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not answer is waited for once; the next holder is asked at once."""
    monkeypatch.setattr(remote_files, "_ANSWER_MAX_S", 0.2)
    dead = StoreLocation("n1", "far", "", "", f"{source.service}.not")
    files = RemoteFiles(connections)
    with pytest.raises(InputMissingError, match=r"no answer within 0\.2 s"):
        files.fetch(dead, FileSlice(FILE, ("n1",)))
    with pytest.raises(InputMissingError, match="n1 does not answer"):
        files.fetch(dead, FileSlice(FILE, ("n1",)))


def test_a_holder_that_is_started_anew(
    paths: StorePaths,
    source: StoreLocation,
    connections: Connections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that had not answered is asked again, and found."""
    monkeypatch.setattr(remote_files, "_ANSWER_MAX_S", 0.2)
    monkeypatch.setattr(remote_files, "_PROBE_S", 0.0)
    expected = write(paths, 10, 3)
    files = RemoteFiles(connections)
    with monkeypatch.context() as patch:
        patch.setattr(connections, "receive", _no_answer)
        for _ in range(2):
            with pytest.raises(InputMissingError, match="n0: nothing"):
                files.fetch(source, FileSlice(FILE, ("n0",)))
    monkeypatch.setattr(remote_files, "_PROBE_S", 5.0)
    monkeypatch.setitem(files._silent, source.service, -10.0)
    assert expected == files.fetch(source, FileSlice(FILE, ("n0",)))
    assert {} == files._silent


def _no_answer(*_: object) -> list[bytes]:
    raise NoAnswerError("nothing")


def test_an_interrupted_wait(source: StoreLocation, connections: Connections) -> None:
    """Whoever waits for a file can be interrupted from another thread."""
    dead = StoreLocation("n1", "far", "", "", f"{source.service}.not")
    threading.Timer(0.1, connections.interrupted.set).start()
    with pytest.raises(InputMissingError, match="interrupted"):
        RemoteFiles(connections).fetch(dead, FileSlice(FILE, ("n1",)))


def test_a_store_fetches_what_is_far(
    paths: StorePaths, source: StoreLocation, connections: Connections, tmp_path: Path
) -> None:
    """A whole file is kept beside the node's own files, a part is not; paths are not looked at."""
    expected = write(paths, 10, 3)
    own = StorePaths(tmp_path / "own", tmp_path / "own")
    own.memory.mkdir()
    own.make(FOLDER, ("n1",))
    store = Store(own, "n1", "near", RemoteFiles(connections))
    store.meet((source, StoreLocation("n1", "near", str(own.memory), str(own.disk), "")))
    part = FileSlice(FILE, ("n0",), 0, 1)
    assert expected.slice(0, 3) == store.read((part,))
    assert [] == list((own.memory / "n1" / FOLDER).iterdir())
    whole = FileSlice(FILE, ("n0",))
    assert expected == store.read((whole,))
    assert [f"{FILE}@n0"] == [
        str(path.relative_to(own.memory / "n1")) for path in (own.memory / "n1").rglob("*.arrow*")
    ]
    (paths.memory / "n0" / FILE).unlink()
    again = Store(own, "n1", "near", RemoteFiles(connections))
    again.meet((source,))
    assert expected == again.read((whole,))
    with pytest.raises(InputMissingError, match="on none of the nodes n0"):
        again.read((part,))


def test_removed_folders_are_forgotten(paths: StorePaths) -> None:
    """What a store keeps open of a folder that is gone is let go; other files stay."""
    write(paths, 10, 3)
    store = Store(paths, "n0")
    item = FileSlice(FILE, ("n0",))
    assert 10 == store.read((item,)).num_rows
    store.forget_removed()
    (paths.memory / "n0" / FILE).unlink()
    assert 10 == store.read((item,)).num_rows
    paths.remove(FOLDER, ("n0",))
    store.forget_removed()
    with pytest.raises(InputMissingError):
        store.read((item,))
