"""Folders of a session on nodes that were not there when they were made."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from minishark.cluster.acquaintance import NodeFolders
from minishark.cluster.attached import AttachedCluster
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
