from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec import structs

from minishark.cluster.attributes import attributes_of, store_of
from minishark.cluster.endpoints import service_address, sparrow_endpoint
from minishark.cluster.folders import remove_if_orphaned
from minishark.cluster.keys import load_keys
from minishark.cluster.launch import (
    ClusterRecord,
    NodeProcess,
    StartOptions,
    bind_address,
    make_keys,
    node_name,
    resolve,
    running_clusters,
    state_folder,
)
from minishark.cluster.wire import versions_differ
from minishark.errors import ClusterError, OptionError
from minishark.worker.protocol import StoreLocation
from sparrow_core import NodeStatus

KEY = "ab" * 32


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("ipc:///x/service.sock", "ipc:///x/service-sparrow.sock"),
        ("tcp://10.0.0.1:7077", "tcp://10.0.0.1:7078"),
        (f"tcp://host:7077/{KEY}", f"tcp://host:7078/{KEY}"),
        ("tcp://host:*", "tcp://host:*"),
    ],
)
def test_the_scheduler_is_next_door(service: str, expected: str) -> None:
    """From a service's address follows where the node's scheduler listens."""
    assert expected == sparrow_endpoint(service)


def test_addresses_get_the_key_that_they_lack(tmp_path: Path) -> None:
    """Without one, an address means a process that has the same key."""
    public = make_keys(tmp_path / "keys")
    keys = load_keys(str(tmp_path / "keys"))
    assert f"tcp://h:1/{public}" == service_address("tcp://h:1", keys)
    assert f"tcp://h:1/{KEY}" == service_address(f"tcp://h:1/{KEY}", keys)
    assert "ipc:///x" == service_address("ipc:///x", None)
    for wrong in ("tcp://h", "h:1", "tcp://h:1/short", "udp://h:1"):
        with pytest.raises(OptionError, match="Invalid address"):
            service_address(wrong, keys)
    with pytest.raises(ClusterError, match="needs the cluster's keys"):
        service_address("tcp://h:1", None)


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    """A key pair accepts itself; one that others may read is of no use."""
    folder = tmp_path / "keys"
    public = make_keys(folder)
    keys = load_keys(str(folder))
    assert keys is not None
    assert (public, (public,)) == (keys.public, keys.allowed)
    with pytest.raises(ClusterError, match="not overwritten"):
        make_keys(folder)
    (folder / "own.key").chmod(0o644)
    with pytest.raises(ClusterError, match="chmod 600"):
        load_keys(str(folder))
    assert load_keys(None) is None


def test_nodes_tell_where_their_files_lie() -> None:
    """What a node tells schedulers is what sessions hear; other programs' nodes are left out."""
    node = StoreLocation("n", "host=1/x", "/dev/shm/m", "/tmp/m", f"tcp://h:1/{KEY}")
    status = NodeStatus(name="n", pid=1, executors=(), alive=True)
    ours = structs.replace(status, attributes=("gpu", *attributes_of(node)))
    assert node == store_of(ours)
    assert store_of(structs.replace(status, attributes=("gpu", "host=1"))) is None


def test_names_and_addresses_to_listen_at() -> None:
    """A node is called by its address; it may listen on all networks at the same port."""
    assert "10.0.0.1.7077" == node_name("tcp://10.0.0.1:7077")
    assert "my.host.7077" == node_name("tcp://my-host:7077")
    assert "tcp://0.0.0.0:7077" == bind_address("tcp://0.0.0.0/", "tcp://10.0.0.1:7077")
    assert bind_address(None, "tcp://10.0.0.1:7077") is None


@pytest.mark.parametrize(
    "options",
    [
        StartOptions(name="a/b"),
        StartOptions(name=""),
        StartOptions(nodes=0),
        StartOptions(executors_per_node=-1),
        StartOptions(join=("tcp://h:1",)),
        StartOptions(listen="tcp://h:*"),
        StartOptions(listen="ipc:///x"),
    ],
)
def test_senseless_clusters(options: StartOptions) -> None:
    """What can't be started is refused before anything is."""
    with pytest.raises(OptionError):
        options.check()


def test_versions_that_differ_are_named() -> None:
    """The sentence names what differs, on both sides, and nothing else."""
    own = {"DuckDB": "2.0.0", "pyarrow": "26"}
    assert versions_differ(dict(own), own) is None
    found = versions_differ({"DuckDB": "2.0.1", "Python": "3.12"}, own)
    assert found is not None
    for part in (
        "DuckDB 2.0.0 in the cluster and 2.0.1 here",
        "pyarrow 26 in the cluster and (none) here",
        "Python (none) in the cluster and 3.12 here",
    ):
        assert part in found


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder for what is running."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("MINISHARK_KEYS", raising=False)
    return state_folder()


def _record(runtime: Path, started_s: float) -> Path:
    process = NodeProcess(
        name="n",
        pid=os.getpid(),
        started_s=started_s,
        service="ipc:///x",
        folders=("", ""),
        log=str(runtime / "log"),
    )
    record = ClusterRecord("mine", "ipc:///x", "/k", (process,))
    file = runtime / "mine.json"
    file.write_bytes(msgspec.json.encode(record))
    return file


def test_a_name_stands_for_an_address(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, files and addresses lead to an address and keys; what is said aloud comes first."""
    file = _record(runtime, psutil.Process().create_time())
    assert ("ipc:///x", "/k") == resolve("mine", None) == resolve(str(file), None)
    assert ("ipc:///x", "/other") == resolve("mine", "/other")
    assert ("tcp://h:1", None) == resolve("tcp://h:1", None)
    monkeypatch.setenv("MINISHARK_KEYS", "/env")
    assert ("tcp://h:1", "/env") == resolve("tcp://h:1", None)
    assert ("ipc:///x", "/k") == resolve("mine", None)


def test_what_is_known_of_dead_clusters_goes(runtime: Path) -> None:
    """A file whose process is gone, though its number lives on, is removed by who finds it."""
    file = _record(runtime, time.time() - 1e6)
    with pytest.raises(ClusterError, match="have ended"):
        resolve("mine", None)
    assert () == running_clusters()
    assert not file.exists()
    file.write_text("nonsense")
    with pytest.raises(ClusterError, match="not a cluster record"):
        resolve("mine", None)


def test_a_folder_that_others_can_enter(runtime: Path) -> None:
    """Addresses are not believed if somebody else could have written them."""
    runtime.chmod(0o755)
    with pytest.raises(ClusterError, match="must be owned by you"):
        state_folder()


def test_only_our_folders_are_removed(tmp_path: Path) -> None:
    """A folder that somebody names is removed only if it can be a session's or a node's."""
    for name, removed in (("minishark-old", True), ("photos", False)):
        folder = tmp_path / name
        folder.mkdir(0o700)
        (folder / "owner.lock").touch()
        assert removed == remove_if_orphaned(folder)
        assert removed != folder.exists()
