from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from minishark.cluster import connections as connecting
from minishark.cluster import links, remote_files, service
from minishark.cluster.connections import Connections, NoAnswerError, ended
from minishark.cluster.node_service import NodeService
from minishark.cluster.outputs import FOLDER as OUTPUTS
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service
from minishark.cluster.wire import (
    Chunk,
    Done,
    Elsewhere,
    Failure,
    Fetch,
    GetUsage,
    Holds,
    KeepSession,
    Kept,
    Part,
    RemoveCopies,
    encode_message,
    own_versions,
)
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


def fetched(files: RemoteFiles, source: StoreLocation, item: FileSlice) -> pa.Table:
    """The rows of one slice, or the error."""
    (found,) = files.fetch([(source, item)])
    if isinstance(found, InputMissingError):
        raise found
    return found


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
    assert expected == fetched(RemoteFiles(connections), source, FileSlice(FILE, ("n0",)))


def test_more_chunks_than_credit(
    paths: StorePaths,
    source: StoreLocation,
    connections: Connections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The asker renews its credit until it has all."""
    monkeypatch.setattr(links, "_SMALL_CHUNK_BYTES", 1000)
    monkeypatch.setattr(links, "_FIRST_CHUNK_BYTES", 500)
    monkeypatch.setattr(links, "_CREDIT_MIN", 2)
    expected = write(paths, 5000, 700)
    files = RemoteFiles(connections)
    for _ in range(2):  # the second time over the same socket
        assert expected == fetched(files, source, FileSlice(FILE, ("n0",)))


def test_a_part_of_a_file(
    paths: StorePaths, source: StoreLocation, connections: Connections
) -> None:
    """Only the batches that are asked for come."""
    expected = write(paths, 10, 3).slice(3, 6)
    assert expected == fetched(RemoteFiles(connections), source, FileSlice(FILE, ("n0",), 1, 3))


def test_a_missing_file(source: StoreLocation, connections: Connections) -> None:
    """The holder says that it is not there."""
    with pytest.raises(InputMissingError, match="n0 has no"):
        fetched(RemoteFiles(connections), source, FileSlice(f"{FOLDER}/9.arrow", ("n0",)))


def test_a_senseless_request(
    paths: StorePaths, source: StoreLocation, connections: Connections
) -> None:
    """More batches than there are is a refusal, and the holder goes on to answer."""
    expected = write(paths, 10, 10)
    files = RemoteFiles(connections)
    with pytest.raises(InputMissingError):
        fetched(files, source, FileSlice(FILE, ("n0",), 0, 9))
    assert expected == fetched(files, source, FileSlice(FILE, ("n0",)))


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
        versions=own_versions(),
    )
    assert Kept(()) == serving.answer(kept)
    serving.tidy()
    assert [OUTPUTS] == [path.name for path in (tmp_path / "n0").iterdir()]
    serving.start()
    assert {serving.endpoint} == set(connections.call_all([serving.endpoint], GetUsage(), 5.0))
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


def test_a_busy_holder_is_asked_again_to_remove_files(
    source: StoreLocation, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few times, then no more."""
    asked: list[tuple[str, ...]] = []

    def unanswered(services: tuple[str, ...], request: RemoveCopies, _: float) -> dict[str, Done]:
        asked.append(request.files)
        return {}

    monkeypatch.setattr(connections, "call_all", unanswered)
    files = RemoteFiles(connections)
    files.remove_soon((source,), FILE)
    for _ in range(20):
        files.remove_unwanted()
    assert [(FILE,)] * (1 + remote_files._REMOVALS_MAX) == asked


def test_many_files_are_removed_by_one_look_at_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service answers nobody else meanwhile, and a session may have thousands of values."""
    tmp_path.chmod(0o700)
    folder = tmp_path / "n0" / "s-1" / "tasks"
    node = StoreLocation("n0", "far", str(tmp_path), str(tmp_path), "")
    serving = NodeService(f"ipc://{tmp_path}/n.sock", node, "c", (), memory=NodeMemory(1 << 30, 1))
    folder.mkdir(parents=True)
    names = [f"{number}" for number in range(20)]
    for name in names:
        (folder / name).touch()
        (folder / f"{name}@n@1").touch()
    (folder / "20").touch()
    looks: list[Path] = []

    def scandir(path: Path) -> object:
        looks.append(path)
        return listed(path)

    listed = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    assert Done() == serving.answer(RemoveCopies(tuple(f"s-1/tasks/{name}" for name in names)))
    monkeypatch.undo()
    assert [folder] == looks
    assert ["20"] == [path.name for path in folder.iterdir()]
    serving.start()
    serving.stop()


def test_connections_to_nodes_that_have_left_are_closed(
    source: StoreLocation, connections: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others stay; whoever needs one again gets a new one."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("minishark.cluster.connections.time", clock)
    gone = f"ipc://{tmp_path}/gone.sock"
    with connections.socket(gone) as old:
        pass
    now[0] += 50.0
    with connections.socket(source.service) as kept:
        pass
    assert not old.closed
    now[0] += 50.0
    with connections.socket(source.service) as again:
        assert again is kept
    assert old.closed
    assert not kept.closed
    with connections.socket(gone) as new:
        assert not new.closed


def test_a_bad_address_among_others(source: StoreLocation, connections: Connections) -> None:
    """The sockets taken before it are given back."""
    with pytest.raises(ClusterError, match="Invalid service address"):
        connections.call_all([source.service, "nonsense"], GetUsage(), 1.0)
    assert 0 == connections._in_use


def test_a_dead_holder(
    source: StoreLocation,
    connections: Connections,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that does not answer is waited for once; the next holder is asked at once."""
    monkeypatch.setattr(remote_files, "_ANSWER_MAX_S", 0.2)
    dead = StoreLocation("n1", "far", "", "", f"{source.service}.not")
    files = RemoteFiles(connections)
    with pytest.raises(InputMissingError, match=r"no answer within 0\.2 s"):
        fetched(files, dead, FileSlice(FILE, ("n1",)))
    with pytest.raises(InputMissingError, match="n1 does not answer"):
        fetched(files, dead, FileSlice(FILE, ("n1",)))
    store = Store(StorePaths(tmp_path, tmp_path), "n2", "near", files)
    store.meet((dead, source))
    for node, is_silent in (("n1", True), ("n0", False)):  # that one says that it has no such file
        with pytest.raises(InputMissingError) as found:
            store.read((FileSlice(f"{FOLDER}/1.arrow", (node,), 0, 0),))
        assert is_silent == found.value.is_silent


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
        patch.setattr(connections, "_await", _no_answer)
        for _ in range(2):
            with pytest.raises(InputMissingError, match="n0: nothing"):
                fetched(files, source, FileSlice(FILE, ("n0",)))
    monkeypatch.setattr(remote_files, "_PROBE_S", 5.0)
    monkeypatch.setitem(files._silent, source.service, -10.0)
    assert expected == fetched(files, source, FileSlice(FILE, ("n0",)))
    assert {} == files._silent


def _no_answer(*_: object) -> None:
    raise NoAnswerError("nothing")


def test_an_interrupted_wait(source: StoreLocation, connections: Connections) -> None:
    """Whoever waits for a file can be interrupted from another thread."""
    dead = StoreLocation("n1", "far", "", "", f"{source.service}.not")
    threading.Timer(0.1, connections.interrupted.set).start()
    with pytest.raises(InputMissingError, match="interrupted"):
        fetched(RemoteFiles(connections), dead, FileSlice(FILE, ("n1",)))


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


def test_several_parts_in_one_request(
    paths: StorePaths, source: StoreLocation, connections: Connections
) -> None:
    """Each part comes, or the reason why it does not, in the order in which they were asked for."""
    expected = write(paths, 10, 3)
    wanted = [(1, 3), (0, 0), (0, 9), (3, None)]
    items = [FileSlice(FILE, ("n0",), *part) for part in wanted]
    items.append(FileSlice(f"{FOLDER}/none.arrow", ("n0",)))
    found = RemoteFiles(connections).fetch([(source, item) for item in items])
    assert [expected.slice(3, 6), expected.slice(0, 0), expected.slice(9)] == [
        found[0], found[1], found[3],
    ]  # fmt: skip
    assert "has 4 batches, not 0 to 9" in str(found[2])
    assert "has no" in str(found[4])


def test_slow_links_carry_fewer_bytes(
    paths: StorePaths, source: StoreLocation, connections: Connections
) -> None:
    """As soon as a link is known to be slow; what comes is the same."""
    expected = write(paths, 300_000, 100_000)
    files, item = RemoteFiles(connections), FileSlice(FILE, ("n0",))
    assert expected == fetched(files, source, item)
    plain = files.take_received()["n0"]
    assert plain >= expected.nbytes
    files._links[source.service] = links.Link()
    files._link(source.service).transferred(1 << 20, 1.0)
    assert expected == fetched(files, source, item)
    assert files.take_received()["n0"] < 0.7 * plain
    assert {} == files.take_received()


class Sink:
    """Takes a file."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.data = b""
        self.restarts = 0
        self._on_first = on_first

    def write(self, data: memoryview, size: int) -> None:
        """The next bytes; the first ones are told of."""
        if not self.data:
            self._on_first()
        self.data += data
        assert len(self.data) <= size

    def restart(self) -> None:
        """From the beginning."""
        self.data = b""
        self.restarts += 1


@pytest.fixture
def other(tmp_path: Path) -> Iterator[StoreLocation]:
    """The node n1, which serves a copy of the file."""
    paths = StorePaths(tmp_path / "other", tmp_path / "other-disk")
    paths.memory.mkdir()
    paths.make(FOLDER, ("n1",))
    endpoint = f"ipc://{tmp_path}/o.sock"
    serving = Service(endpoint, paths, "n1")
    serving.start()
    yield StoreLocation("n1", "afar", str(paths.memory), str(paths.disk), serving.endpoint)
    serving.stop()


def test_a_file_that_many_want_comes_from_those_that_have_it(
    paths: StorePaths,
    source: StoreLocation,
    other: StoreLocation,
    connections: Connections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the source sends it to others; if they do not have it any more, the source does."""
    monkeypatch.setattr(service, "_READERS_AT_ONCE", 0)
    monkeypatch.setattr(remote_files, "_QUEUE_MAX_S", 0.2)
    write(paths, 1000, 100)
    stored = paths.memory / "n0" / FILE
    copy = Path(other.memory, "n1", f"{FILE}@n0")
    files, sink = RemoteFiles(connections), Sink()
    files.copy(source, FILE, sink, "ipc:///me")
    assert stored.read_bytes() == sink.data, "nobody else has it"
    files.announce(source, FILE, other.service, f"{FILE}@n0")
    copy.write_bytes(b"as if it were the same")
    sink = Sink()
    files.copy(source, FILE, sink, "ipc:///me")
    assert b"as if it were the same" == sink.data
    copy.unlink()
    sink = Sink()
    files.copy(source, FILE, sink, "ipc:///me")
    assert stored.read_bytes() == sink.data
    assert sink.restarts > 0
    sink = Sink()
    files.copy(source, FILE, sink)
    assert stored.read_bytes() == sink.data, "who does not serve it gets it at once"


def test_only_some_readers_at_once(
    paths: StorePaths, source: StoreLocation, connections: Connections
) -> None:
    """A third reader of a whole file is told to wait, or where it is, while two are served."""
    write(paths, 400_000, 100_000)
    part = (Part(FILE),)
    asks = [Fetch(parts=part, credit=1, whole=True, reader=f"ipc:///r{i}") for i in range(3)]
    with (
        connections.socket(source.service) as first,
        connections.socket(source.service) as second,
        connections.socket(source.service) as third,
    ):
        for socket, ask in zip((first, second), asks, strict=False):
            socket.send(encode_message(ask))
            assert isinstance(connections.decoded(connections.receive(socket, 5.0)[0]), Chunk)
        third.send(encode_message(asks[2]))
        assert Elsewhere() == connections.decoded(connections.receive(third, 5.0)[0])
        third.send(encode_message(Holds(FILE, "ipc:///there", "copy")))
        third.send(encode_message(asks[2]))
        found = connections.decoded(connections.receive(third, 5.0)[0])
        assert Elsewhere("ipc:///there", "copy") == found
        third.send(encode_message(Holds(FILE, "ipc:///r0", "mine")))
        third.send(encode_message(asks[2]))
        assert isinstance(connections.decoded(connections.receive(third, 5.0)[0]), Chunk)


def test_a_slow_link_gets_small_chunks(
    paths: StorePaths, source: StoreLocation, connections: Connections
) -> None:
    """Some arrive in time to show that the sender lives; the first chunk is small on any link."""
    write(paths, 400_000, 100_000)
    sizes = {}
    for link_bytes_s in (0.0, 1e6, 1e9):
        with connections.socket(source.service) as socket:
            part = (Part(FILE),)
            ask = Fetch(parts=part, credit=64, link_bytes_s=link_bytes_s, whole=True)
            socket.send(encode_message(ask))
            found: list[int] = []
            last = False
            while not last:
                header, data = connections.receive(socket, 5.0)
                chunk = connections.decoded(header)
                assert isinstance(chunk, Chunk)
                found.append(chunk.raw or len(data))
                last = chunk.last
            assert chunk.size == sum(found)
            sizes[link_bytes_s] = (found[0], max(found))
    small, large = (64 << 10, 256 << 10), (64 << 10, 1 << 20)
    assert {0.0: small, 1e6: small, 1e9: large} == sizes


def test_a_request_for_nothing(source: StoreLocation, connections: Connections) -> None:
    """It is refused."""
    reply = connections.call(source.service, Fetch(parts=(), credit=1), 5.0)
    assert isinstance(reply, Failure)
    assert "Ask for 1 to" in reply.message


def test_looks_for_ended_processes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut network, where each look takes a while, does not use up the time of a request."""
    asked: list[str] = []

    def refuses(service: str, _: float) -> bool:
        asked.append(service)
        return service == "ended"

    monkeypatch.setattr(connecting, "refuses", refuses)
    waiting: Any = {1: "cut", 2: "ended", 3: "slow"}
    found: list[Any] = [*ended(waiting, 0.0)]
    assert [] == found
    found = [*ended(waiting, math.inf)]
    assert [2] == found
    assert [2, 1, 3] == [*waiting], "the others are behind"
    assert ["cut", "ended", "slow"] == asked
