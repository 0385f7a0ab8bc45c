"""Folders of a session on nodes that were not there when they were made."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from minishark.cluster.attached import AttachedCluster
from minishark.cluster.membership import NodeFolders
from minishark.cluster.wire import Done, MakeFolder, Reply
from minishark.worker.protocol import StoreLocation


class Calls:
    """Services that answer until one falls silent."""

    def __init__(self, silent: str) -> None:
        self.silent = silent
        self.made: list[tuple[str, str]] = []

    def call_all(self, services: list[str], request: Any, timeout_s: float) -> dict[str, Reply]:
        """Answer, or not."""
        del timeout_s
        (service,) = services
        assert isinstance(request, MakeFolder)
        self.made.append((service, request.folder))
        return {} if service == self.silent else {service: Done()}


def test_a_node_that_falls_silent_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leases of all nodes are renewed between: one call to it is all that is waited for."""
    nodes = tuple(
        StoreLocation(name, "host", f"/{name}", f"/{name}", name) for name in ("dead", "alive")
    )
    monkeypatch.setattr(AttachedCluster, "_nodes", lambda _: nodes)
    cluster = AttachedCluster.__new__(AttachedCluster)
    cluster._silent, cluster._stop = frozenset(), threading.Event()
    cluster._node_folders = NodeFolders()
    cluster._node_folders.make(("t/0", "t/1", "t/2"))
    calls = Calls("dead")
    monkeypatch.setattr(cluster, "_connections", calls, raising=False)
    cluster._make_missing_folders()
    found = [service for service, _ in calls.made]
    assert ["dead", "alive", "alive", "alive"] == found
    made = {home: [*folders] for home, folders in cluster._node_folders.by_home.items()}
    assert {"/dead": [], "/alive": ["t/0", "t/1", "t/2"]} == made


def test_a_node_removes_what_it_has_missed() -> None:
    """It did not answer, or was not known yet; what was made again stays."""
    folders, asked, answers = NodeFolders(), list[str](), [False, True, True]

    def remove(some: Sequence[str]) -> bool:
        asked.extend(some)
        return answers.pop(0)

    folders.make(("q/0", "t/0"))
    folders.made_at("/cut off", ("q/0", "t/0"))
    folders.remove(("q/0", "t/0"), ["/alive", "/cut off"])
    folders.removed_at(["/alive"], ("q/0", "t/0"))
    folders.make(("t/0",))
    for _ in range(3):
        folders.complete("/cut off", lambda _: True, remove)
    assert asked == ["q/0", "q/0"]
    folders.complete("/new", lambda _: True, remove)
    folders.complete("/alive", lambda _: True, remove)
    assert asked == ["q/0"] * 3
    folders.forget_others(["/alive"])
    assert [*folders.by_home] == [*folders.left] == ["/alive"]


def test_a_folder_that_is_removed_while_it_is_made_is_made_again_when_it_is_wanted() -> None:
    folders, removed = NodeFolders(), list[str]()

    def make(folder: str) -> bool:
        folders.remove((folder,), [])
        return True

    folders.make(("q/0",))
    folders.complete("/node", make, lambda some: not removed.extend(some))
    assert removed == ["q/0"]
    folders.make(("q/0",))
    assert not folders.are_at(["/node"], ["q/0"])


def test_a_node_that_never_answers_is_told_of_the_last_folders_only() -> None:
    folders = NodeFolders()
    for number in range(1_000):
        folders.make((f"q/{number}",))
        folders.remove((f"q/{number}",), ["/silent"])
    assert [*folders.left["/silent"]] == [f"q/{number}" for number in range(744, 1_000)]
