"""Sessions of other hosts that are silent: dead, or cut off."""

from __future__ import annotations

import socket
from concurrent.futures import Future

import pytest

from machine_kit.refusal import refuses
from minishark.cluster import node
from minishark.cluster.connections import Connections
from minishark.cluster.membership import spread_over_hosts
from minishark.cluster.node_service import CUT_OFF_MAX_S, LEASE_S, _Session
from minishark.cluster.wire import KeepSession, Welcome
from minishark.errors import ClusterError
from minishark.worker.protocol import StoreLocation


def session(host: str = "there") -> _Session:
    """A session on a host."""
    location = StoreLocation("s-1", host, "/m", "/d", "tcp://there:1/key")
    kept = KeepSession(session="s-1", location=location, user="me", pid=-1, started_s=0.0)
    return _Session(kept)


def answer(*, dead: bool) -> Future[bool]:
    """What its host has said."""
    said: Future[bool] = Future()
    said.set_result(dead)
    return said


@pytest.mark.parametrize("dead", [False, True])
def test_a_silent_session_is_asked_for(dead: bool) -> None:
    """Its host refuses connections if it is dead; one that says nothing may be cut off."""
    held, asked = session(), []

    def ask(service: str) -> Future[bool]:
        asked.append(service)
        return answer(dead=dead)

    assert held.is_alive("here", LEASE_S - 1, ask)
    assert [] == asked
    assert held.is_alive("here", LEASE_S + 1, ask)
    assert ["tcp://there:1/key"] == asked
    assert (not dead) == held.is_alive("here", LEASE_S + 2, ask)
    assert held.is_alive("here", LEASE_S + 3, ask)
    assert 2 == len(asked), "again and again"
    assert not held.is_alive("here", CUT_OFF_MAX_S + 1, ask)


def test_a_session_that_only_left_a_folder() -> None:
    """Nobody can be asked for it."""
    held = _Session(None)
    assert [True, False] == [
        held.is_alive("here", silent_s, lambda _: answer(dead=False))
        for silent_s in (1.0, LEASE_S + 1)
    ]


def test_the_process_on_this_host_tells_itself() -> None:
    """Whatever was heard of it."""
    assert not session("here").is_alive("here", 0.0, lambda _: answer(dead=False))


def test_a_closed_port_refuses() -> None:
    """An open one does not, nor one of which nothing is heard."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "tcp://127.0.0.1:{}/{}".format(server.getsockname()[1], "ab" * 32)
        assert not refuses(address)
    assert refuses(address)
    assert refuses("ipc:///gone")
    assert refuses("tcp://nonsense")


def test_neighbours_are_on_different_hosts() -> None:
    """Replicas go to nodes that follow each other."""

    def named(*names: str) -> list[StoreLocation]:
        return [StoreLocation(name, name[0], "", "", "") for name in names]

    assert ("a1", "b1", "c1", "a2", "b2") == spread_over_hosts(named("a1", "a2", "b1", "b2", "c1"))
    assert ("a1", "a2") == spread_over_hosts(named("a1", "a2"))


def test_a_node_waits_for_its_head_however_soon_that_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nobody listens yet, requests end at once: a second is not one of them."""
    location = StoreLocation("n0", "there", "/m", "/d", "tcp://there:1/key")
    welcome = Welcome(cluster="c", node=location, schedulers=(), task_bytes=1)
    replies = [{}] * 5 + [{"head": welcome}]
    monkeypatch.setattr(Connections, "call_all", lambda *_: replies.pop(0))
    monkeypatch.setattr(node, "_AGAIN_S", 0.0)
    assert node._greet(["head"], None, 1.0, is_head=False) == {"head": welcome}
    replies = [{}] * 2
    assert node._greet(["head"], None, 1.0, is_head=True) == {}
    with pytest.raises(ClusterError, match="None of head answers"):
        node._greet(["head"], None, -1.0, is_head=False)
