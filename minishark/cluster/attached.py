"""A session's connection to a cluster that it shares with others, and that outlives it.

Everything that a session stores on the nodes is in one folder of its name, which they keep as long
as it sends heartbeats (`KeepSession`). What it knows of the nodes is `membership`.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import secrets
import threading
from collections.abc import Callable, Collection

import psutil
from msgspec import structs

from machine_kit.keys import Keys
from minishark.cluster import wire
from minishark.cluster.endpoints import service_address
from minishark.cluster.folders import SESSION_PREFIX
from minishark.cluster.front import Front
from minishark.cluster.joining import RefusedError, greet
from minishark.cluster.local import RECOVERY_S
from minishark.cluster.membership import Ask, Keep, Node, Request, silent
from minishark.errors import ClusterError, MinisharkError, ResourceError

_CALL_S = 2.0
_KEEP_EVERY_S = 1.0


class AttachedCluster(Front):
    """A running cluster, as one session uses it; `Cluster` documents its methods."""

    def __init__(
        self,
        address: str,
        keys: str | Keys | None = None,
        *,
        slots: int = 1,
        find: Callable[[], str] | None = None,
        recovery_timeout_s: float = RECOVERY_S,
    ) -> None:
        """Connect to the cluster of the node at `address`, which may end in `/<public key>`.

        `keys` are a folder, or what is in it. The session begins when there are as many `slots`; a
        few seconds later also with fewer. When no node answers any more, `find` says where the
        cluster is now; without it, `address` is asked again.
        """
        name = f"{SESSION_PREFIX}{secrets.token_hex(4)}"
        super().__init__(name, address, keys, slots, recovery_timeout_s)
        self._find = find or (lambda: address)
        self._stop, self._closed = threading.Event(), False
        # When and why the cluster, started again, did not take this session.
        self._refused = (-math.inf, "")
        self._lease = wire.KeepSession(
            session=name,
            location=self._own,
            user=wire.own_user(),
            pid=os.getpid(),
            started_s=psutil.Process().create_time(),
            versions=wire.own_versions(),
        )
        try:
            self.ask(self.membership.beat(self.told(), self.now_s()))
        except BaseException:
            self.disconnect()
            raise
        self._keeper = threading.Thread(target=self._keep_alive, name="minishark-keep", daemon=True)
        self._keeper.start()
        atexit.register(self.close)  # for programs that forget to

    def ask(self, asked: Ask) -> Collection[Node]:
        replies = self._replies(asked)
        return [node for node in asked.nodes if node.at.service in replies]

    def _replies(self, asked: Ask) -> dict[str, wire.Reply]:
        services = [node.at.service for node in asked.nodes]
        replies = self._connections.call_all(services, self._sent(asked.request), _CALL_S)
        self.membership.heard(asked, [n for n in asked.nodes if n.at.service in replies])
        for service, reply in replies.items():
            if isinstance(reply, wire.Failure) and reply.refused:
                raise RefusedError(f"The node at {service} has another version. {reply.message}")
            if isinstance(reply, wire.Failure):
                raise ResourceError(f"A node can't store files: {reply.message}")
        return replies

    def _sent(self, request: Request) -> wire.Request:
        if isinstance(request, Keep):
            return structs.replace(
                self._lease, schedulers=self.schedulers, released=request.released
            )
        return request

    def _keep_alive(self) -> None:
        while not self._stop.wait(_KEEP_EVERY_S):
            # Files that say where the cluster is now may be written at the moment, or be wrong.
            with contextlib.suppress(MinisharkError, OSError, ValueError):
                self.learn(self._kept())
                self.make_missing_folders()
                self._remote_files.remove_unwanted()
                if self._tables is not None:
                    self._tables.renew()

    def _kept(self) -> list[tuple[str, ...]]:
        """Send a heartbeat; the schedulers that each node knows."""
        schedulers: list[tuple[str, ...]] = []
        try:
            replies = self._replies(self.membership.beat(self.told(), self.now_s())).values()
            schedulers = [reply.schedulers for reply in replies if isinstance(reply, wire.Kept)]
            if not schedulers:  # all are gone, or have started again elsewhere
                address = service_address(self._find(), self._keys)
                schedulers = [greet(self._connections, address, _CALL_S).schedulers]
        except RefusedError as error:
            self._refused = (self.now_s(), str(error))
            self._sparrow.fail_all(str(error))  # they would wait in vain
        return schedulers

    def check_awaited(self, since_s: float) -> None:
        refused_s, refusal = self._refused
        if refused_s > since_s:
            raise ClusterError(refusal)
        if self._stop.is_set():
            raise ClusterError(silent(self.recovery_s))

    def start_node(self) -> None:
        raise ClusterError(
            "The session did not start this cluster: to add a node, run `minishark cluster node "
            "--join ADDRESS` on its machine."
        )

    def close(self) -> None:
        if self._closed or os.getpid() != self._lease.pid:  # after fork(), the parent owns it
            return
        self._closed = True
        self._stop.set()
        self._keeper.join()
        with contextlib.suppress(ResourceError, ClusterError):
            self.ask(self.membership.end(self.store_name, self.told()))
        self.disconnect()
        atexit.unregister(self.close)
