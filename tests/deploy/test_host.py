"""A node as the child of a platform's process; nodes that meet in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

import minishark
from minishark.cluster.attached import AttachedCluster
from minishark.cluster.keys import fresh_keys
from minishark.cluster.launch import make_keys
from minishark.cluster.rendezvous import head_in, met
from minishark.errors import ClusterError
from minishark_platforms.host import NodeHost, NodeSpec

_IP = "127.0.0.1"
_SOON_S = 10.0

_PARENT = """
import msgspec, signal, sys, time
from minishark_platforms.host import NodeHost, NodeSpec
host = NodeHost("127.0.0.1")
spec = msgspec.json.decode(sys.argv[1], type=NodeSpec)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in threads of Ray's workers
host.start(msgspec.structs.replace(spec, heads=(host.reserve(),)))
print(*host.folders, host._process.pid, flush=True)
time.sleep(60)
"""


def _spec(name: str, head: str, executors: int) -> NodeSpec:
    return NodeSpec(
        name=name,
        cluster="test",
        heads=(head,),
        executors=executors,
        memory_limit_bytes=1 << 30,
        keys=_KEYS,
    )


_KEYS = fresh_keys()


def _await(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SOON_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_session_on_hosted_nodes() -> None:
    """A head without executors and a node: queries run, keys stay private, and nothing is left."""
    head, node = NodeHost(_IP), NodeHost(_IP)
    try:
        address = head.reserve()
        service = head.start(_spec("head", address, 0))
        assert service == f"{address}/{_KEYS.public}"
        node.start(_spec("node", address, 1))
        cluster = AttachedCluster(service, _KEYS)
        assert cluster.nodes == ("node",)
        cluster.close()
        folders = [*head.folders, *node.folders]
        key_files = [file for folder in folders for file in folder.rglob("own.key")]
        assert {0o600} == {file.stat().st_mode & 0o777 for file in key_files}
        assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * 4
    finally:
        node.end()
        head.end()
    assert [] == [folder for folder in folders if folder.exists()]


def test_a_node_that_can_not_start_says_why() -> None:
    """With the end of its log, and without its folders."""
    host = NodeHost(_IP)
    with pytest.raises(ClusterError, match=r"memory limit of at least"):
        host.start(_spec("node", "tcp://127.0.0.1:1", 64))
    assert [] == [folder for folder in host.folders if folder.exists()]


@pytest.mark.slow
def test_a_node_does_not_outlive_its_parent() -> None:
    """A platform's process that is killed takes its node along, and the node removes its files."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, msgspec.json.encode(_spec("node", "", 1)).decode()],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout as output:
        try:
            memory, disk, pid = output.readline().split()
        finally:
            parent.kill()
            parent.wait()
    _await(lambda: not psutil.pid_exists(int(pid)))
    _await(lambda: not Path(memory).exists() and not Path(disk).exists())


def test_the_first_node_in_a_file_is_the_head(tmp_path: Path) -> None:
    """The others read its address; it removes the file when it ends."""
    file = tmp_path / "meet"
    with met(f"@{file}", "tcp://a:1") as first:
        with met(f"@{file}", "tcp://b:1") as second:
            assert (first, second) == ("tcp://a:1", "tcp://a:1")
        assert head_in(f"@{file}") == "tcp://a:1"
        with pytest.raises(ClusterError, match="within 0 s"):
            head_in(f"@{file}.none", 0.0)
        assert [file] == list(tmp_path.iterdir())
    assert [] == list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """Is told at once."""
    with (
        pytest.raises(ClusterError, match="Nodes can't meet in"),
        met(f"@{tmp_path}/none/meet", "tcp://a:1"),
    ):
        pass


@pytest.mark.slow
def test_nodes_that_srun_would_start(tmp_path: Path) -> None:
    """All with the same command; a session finds them by the same file; SIGTERM ends them."""
    keys, file = tmp_path / "keys", tmp_path / "meet"
    make_keys(keys)
    command = [sys.executable, "-m", "minishark.cli", "cluster", "node", "--join", f"@{file}"]
    nodes = [
        subprocess.Popen([*command, "--keys", str(keys)], stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    try:
        with minishark.connect(f"@{file}", keys=keys) as session:
            answer = session.sql("SELECT count(*) AS n FROM range(1000)").collect()
            assert [1000] == [row.n for row in answer]
    finally:
        for node in nodes:
            os.kill(node.pid, signal.SIGTERM)
        assert [0, 0] == [node.wait(_SOON_S) for node in nodes]
    assert not file.exists()
