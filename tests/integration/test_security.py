"""Only holders of a cluster's keys reach it, and what is secret is written nowhere."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from processes import free_port

import minishark
from machine_kit.errors import InsecureTransport
from machine_kit.keys import Keys, check_private
from minishark.cluster import joining, node
from minishark.cluster.connections import Connections
from minishark.cluster.keys import ALLOWED_KEYS, load_keys
from minishark.cluster.launch import (
    ClusterRecord,
    StartOptions,
    make_keys,
    start_cluster,
    stop_cluster,
)
from minishark.cluster.node import NodeOptions
from minishark.cluster.wire import Done, MakeFolder, RemoveFolder, own_versions
from minishark.errors import ClusterError


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keys of a node (`node`), of a session that it knows (`session`), and of one that it did."""
    root = tmp_path_factory.mktemp("security")
    public = {name: make_keys(root / name) for name in ("node", "session", "revoked")}
    for name, allowed in (
        ("node", ("node", "session")), ("session", ("node",)), ("revoked", ("node",))
    ):  # fmt: skip
        lines = "".join(f"{public[each]}\n" for each in allowed)
        (root / name / ALLOWED_KEYS).write_text(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(root))
        yield root


@pytest.fixture(scope="module")
def cluster(folders: Path) -> Iterator[ClusterRecord]:
    """A node over tcp that knows the session's key."""
    listen = f"tcp://127.0.0.1:{free_port()}"
    yield start_cluster(
        StartOptions(name="safe", nodes=1, listen=listen, keys=str(folders / "node"))
    )
    stop_cluster("safe")


def test_secrets_are_written_nowhere(cluster: ClusterRecord, folders: Path) -> None:
    """Not on command lines, in environments, logs, records, nor in what is printed of keys."""
    secrets = [_secret(folders / name) for name in ("node", "session")]
    with minishark.connect(cluster.address, keys=folders / "session", single_task_rows=0) as mine:
        mine.create_table("t", pa.table({"x": range(1000)}), partitions=2)
        assert 1000 == len(mine.sql("FROM t ORDER BY x").to_arrow())
        with pytest.raises(minishark.errors.MinisharkError) as failed:
            mine.sql("SELECT error('x') FROM t").to_arrow()
        parent = psutil.Process(cluster.nodes[0].pid)
        family = [psutil.Process(), parent, *parent.children(recursive=True)]
        assert 3 <= len(family)
        texts = [str(each.cmdline()) + str(each.environ()) for each in family]
        roots = (Path(cluster.nodes[0].log).parent, *map(Path, cluster.nodes[0].folders))
        logs = [path for root in roots for path in root.rglob("*") if path.suffix in _TEXTS]
        assert logs
        texts += [path.read_text(errors="replace") for path in logs]
        texts += [
            repr(failed.value),
            str(failed.value),
            repr(mine),
            repr(vars(mine._runtime.cluster)),
        ]
    keys = load_keys(str(folders / "node"))
    assert isinstance(keys, Keys)
    texts += [repr(keys), str(keys), f"{keys}", str(list(keys.__rich_repr__()))]
    assert [] == [secret for secret in secrets for text in texts if secret in text]
    assert keys.secret in secrets


_TEXTS = (".log", ".json")


def _secret(folder: Path) -> str:
    found = re.search(r'secret = "(\w+)"', (folder / "own.key").read_text())
    assert found is not None
    return found[1]


def test_a_key_that_is_not_listed_is_refused(
    cluster: ClusterRecord, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had a key learns nothing any more, once nodes have been started without it."""
    monkeypatch.setattr(joining, "_HELLO_S", 0.3)
    with pytest.raises(ClusterError, match="No cluster answers"):
        minishark.connect(cluster.address, keys=folders / "revoked")


def test_tcp_is_refused_without_keys(folders: Path) -> None:
    """Neither a cluster nor a session starts over tcp without keys; nothing is left of the try."""
    before = set(folders.iterdir())
    with pytest.raises(ClusterError, match="tcp needs"):
        start_cluster(StartOptions(name="bare", nodes=1, listen=f"tcp://127.0.0.1:{free_port()}"))
    assert before | {folders / "minishark"} == set(folders.iterdir()) | {folders / "minishark"}
    with pytest.raises(ClusterError, match="tcp needs"):
        minishark.connect("tcp://127.0.0.1:1")


class _Recorder(threading.Thread):
    """Passes one tcp connection on, and keeps what the client sent."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._target = port
        self.sent, self.answered = b"", b""

    def run(self) -> None:
        """Pass both directions on until one side closes."""
        with (
            closing(self._listener),
            closing(self._listener.accept()[0]) as client,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            back = threading.Thread(target=self._back, args=(server, client), daemon=True)
            back.start()
            while data := client.recv(65536):
                self.sent += data
                server.sendall(data)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(65536):
                self.answered += data
                client.sendall(data)
        except OSError:
            return


def test_replayed_bytes_do_nothing(cluster: ClusterRecord, folders: Path) -> None:
    """Who recorded a conversation and sends it again over a new connection is thrown out."""
    where, _, key = cluster.address.rpartition("/")
    recorder = _Recorder(int(where.rpartition(":")[2]))
    recorder.start()
    by_proxy = f"tcp://127.0.0.1:{recorder.port}/{key}"
    connections = Connections(load_keys(str(folders / "session")))
    made = Path(cluster.nodes[0].folders[0], cluster.nodes[0].name, "s-replay", "made")
    try:
        assert isinstance(connections.call(by_proxy, MakeFolder("s-replay/made"), 5), Done)
        assert made.is_dir()
        assert isinstance(connections.call(cluster.address, RemoveFolder("s-replay"), 5), Done)
        assert not made.exists()
        assert b"s-replay" not in recorder.sent, "it is encrypted"
        with socket.create_connection(("127.0.0.1", recorder._target), timeout=10) as again:
            again.sendall(recorder.sent)
            answered = b""
            while data := again.recv(65536):  # until it is thrown out
                answered += data
        assert len(answered) < len(recorder.answered)
        assert isinstance(connections.call(cluster.address, RemoveFolder("s-other"), 5), Done)
        assert not made.exists()
    finally:
        connections.close()


def test_another_users_folder_is_no_place_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even of mode 0700: its owner could put a socket of his own there."""
    tmp_path.chmod(0o700)
    check_private(tmp_path / "x.sock")
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    with pytest.raises(InsecureTransport, match="another user's"):
        check_private(tmp_path / "x.sock")


def test_a_node_with_other_versions_is_refused(
    cluster: ClusterRecord, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at once, and says which versions both sides have."""
    monkeypatch.setattr(node, "own_versions", lambda: own_versions() | {"pyarrow": "1.0"})
    options = NodeOptions(
        name="other",
        listen=f"tcp://127.0.0.1:{free_port()}",
        heads=(cluster.address,),
        keys=str(folders / "session"),
    )
    with pytest.raises(ClusterError, match=rf"pyarrow {pa.__version__} in .* and 1\.0 here"):
        node.run(options)
