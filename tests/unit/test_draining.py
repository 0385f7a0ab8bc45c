"""When a drained node may leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from minishark.cluster import node_service
from minishark.cluster.node_service import NodeControl, NodeService
from minishark.cluster.wire import (
    Announce,
    Done,
    DrainNode,
    EndSession,
    GetUsage,
    KeepSession,
    Kept,
    RemoveFile,
    Usage,
    own_versions,
)
from minishark.worker.memory import NodeMemory
from minishark.worker.protocol import StoreLocation


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeService]:
    """The service of node n0, which does not run."""
    tmp_path.chmod(0o700)
    at = StoreLocation("n0", "here", str(tmp_path), str(tmp_path), "")
    memory = NodeMemory(1 << 30, 1)
    serving = NodeService(f"ipc://{tmp_path}/node.sock", at, "c", (), memory=memory)
    yield serving
    serving.stop()


def drained(node: NodeService, drain_s: float = 100.0) -> list[str]:
    """What the node does when it is drained, as it happens."""
    done: list[str] = []
    node.control(
        NodeControl(
            set_schedulers=lambda _: None,
            hold=lambda: done.append("hold"),
            release=lambda: done.append("release"),
            stop=lambda: done.append("stop"),
            drain_s=drain_s,
        )
    )
    assert Done() == node.answer(DrainNode())
    return done


def kept(name: str, *released: str) -> KeepSession:
    """The heartbeat of a session of this process."""
    return KeepSession(
        session=name,
        location=StoreLocation(name, "here", "", "", ""),
        user="me",
        pid=os.getpid(),
        started_s=psutil.Process().create_time(),
        released=released,
        versions=own_versions(),
    )


def test_a_node_leaves_when_all_sessions_have_released_it(node: NodeService) -> None:
    """Its tasks are held off first; other nodes' names release nothing."""
    node.answer(kept("s-1"))
    node.answer(kept("s-2"))
    done = drained(node)
    assert not node.drain()
    node.tidy()
    node.answer(kept("s-1", "n0"))
    node.answer(kept("s-2", "n1"))
    node.tidy()
    assert ["hold"] == done
    node.answer(kept("s-2", "n1", "n0"))
    node.tidy()
    assert ["hold", "release"] == done


def test_ended_and_dead_sessions_hold_nothing(
    node: NodeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that is known by a folder only, when its lease is over."""
    node.answer(kept("s-1"))
    (Path(node.node.memory) / "n0" / "s-9").mkdir()
    node.tidy()
    done = drained(node)
    node.answer(EndSession("s-1"))
    node.tidy()
    assert ["hold"] == done
    monkeypatch.setattr(node_service, "LEASE_S", 0.0)
    node.tidy()  # finds it dead
    node.tidy()
    assert ["hold", "release"] == done


def test_the_wait_has_a_limit(node: NodeService) -> None:
    """A session that needs the node for ever does not keep it."""
    node.answer(kept("s-1"))
    done = drained(node, 0.0)
    node.tidy()
    assert ["hold", "stop"] == done


def test_a_node_learns_of_schedulers(node: NodeService) -> None:
    """From other nodes and from sessions, which it tells of those that it knows; not too many."""
    told: list[tuple[str, ...]] = []
    node.control(
        NodeControl(
            set_schedulers=told.append,
            hold=lambda: None,
            release=lambda: None,
            stop=lambda: None,
            drain_s=1.0,
        )
    )
    assert Done() == node.answer(Announce(("a", "b")))
    assert Kept(("c", "a", "b")) == node.answer(structs.replace(kept("s-1"), schedulers=("c", "a")))
    node.answer(Announce(("a", "c")))
    assert [(), ("a", "b"), ("c", "a", "b")] == told
    for number in range(20):
        node.answer(Announce((str(number),)))
    assert len(told[-1]) == 8
    assert told[-1][0] == "19"


def test_a_report_counts_what_is_there(node: NodeService) -> None:
    """Files go while they are counted."""
    node.answer(kept("s-1"))
    folder = Path(node.node.memory) / "n0" / "s-1"
    (folder / "0.arrow").write_bytes(b"12345")
    (folder / "1.arrow").symlink_to(folder / "gone")
    count = node.work(GetUsage())
    assert count is not None
    counted = count()
    assert isinstance(counted, Usage)
    assert [(1, 5)] == [(each.files, each.bytes) for each in counted.usage.sessions]
    assert os.getpid() == counted.usage.pid


def test_a_moved_replica_is_deleted(node: NodeService) -> None:
    """Only this node's, and no path leads outside."""
    root = Path(node.node.memory)
    file = root / "n0" / "t"
    file.mkdir()
    (file / "0.arrow").touch()
    assert Done() == node.answer(RemoveFile("t/0.arrow"))
    assert Done() == node.answer(RemoveFile("t/0.arrow"))
    assert [] == list(file.iterdir())
