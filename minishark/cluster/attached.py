"""A session's part of a cluster that it shares with others, and that outlives it.

The session is a holder of files like a node, with a service of its own: executors read from it what
a program loads, and it reads results from them. All that it has on the nodes lies in one folder of
its name, which they keep for as long as it says that it lives.
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
import os
import secrets
import threading
from collections.abc import Collection, Sequence

import psutil
import zmq

from minishark.cluster.backend import Backend, Placement
from minishark.cluster.connections import Connections
from minishark.cluster.executor import load_keys
from minishark.cluster.folders import make_folders
from minishark.cluster.joining import Listening, greet, open_schedulers
from minishark.cluster.machine import default_limit_bytes
from minishark.cluster.node import service_address, store_of, this_host
from minishark.cluster.node_service import SESSION_PREFIX
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service
from minishark.cluster.wire import (
    EndSession,
    Failure,
    KeepSession,
    MakeFolder,
    RemoveFolder,
    Reply,
    Request,
)
from minishark.errors import ClusterError, ResourceError
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from minishark.worker.store import Store
from sparrow_core import NodeStatus

_CALL_S = 2.0
_KEEP_EVERY_S = 1.0
_LOCALITY_WAIT_S = 1.0


class AttachedCluster:
    """A cluster that runs already, as one session uses it."""

    loses_files = True

    def __init__(self, address: str, keys_folder: str | None = None) -> None:
        """Attach to the cluster of the node with this address.

        Args:
            address: `ipc://path` or `tcp://host:port`, if needed with `/<public key>`.
            keys_folder: the folder of the cluster's keys, for tcp.

        Raises:
            ClusterError: nobody answers, the versions differ, or the keys are of no use.
            OptionError: the address is none.
            ResourceError: no folder can be made.
        """
        keys = load_keys(keys_folder)
        self.warnings: tuple[str, ...] = ()
        self._name = f"{SESSION_PREFIX}{secrets.token_hex(4)}"
        self._host = this_host()
        self._connections = Connections(keys)
        self._stop = threading.Event()
        self._closed = False
        self._made: set[str] = set()  # folders of the session
        self._has: dict[str, set[str]] = {}  # those that a node, known by its memory, has made
        self._silent: frozenset[str] = frozenset()  # services that did not answer the last time
        with contextlib.ExitStack() as undo:
            undo.callback(self._connections.close)
            service = service_address(address, keys)
            welcome = greet(self._connections, service)
            self._folders = make_folders()
            undo.callback(self._folders.remove)
            paths = StorePaths(self._folders.memory, self._folders.disk)
            self.scratch = self._folders.disk
            self.memory_limit_bytes = default_limit_bytes()
            self.task_bytes = welcome.task_bytes  # the other nodes are taken to be alike
            listening = Listening(service, self._folders.disk)
            self._service = Service(listening.endpoint("service"), paths, self._name, keys=keys)
            undo.callback(self._service.stop)
            self._service.start()
            self._own = StoreLocation(
                self._name,
                self._host,
                str(paths.memory),
                str(paths.disk),
                self._service.endpoint,
            )
            self.paths = paths
            self._sparrow = open_schedulers(
                welcome, listening.endpoint("front"), keys, _has_executors
            )
            undo.callback(self._sparrow.close)
            self._keep = KeepSession(
                self._name,
                self._own,
                getpass.getuser(),
                os.getpid(),
                psutil.Process().create_time(),
            )
            self._ask_nodes(self._keep)
            undo.pop_all()
        if self._folders.warning:
            self.warnings = (self._folders.warning,)
        self.total_slots = sum(each.slots for node in self.status() for each in node.executors)
        self._keeper = threading.Thread(target=self._keep_alive, name="minishark-keep", daemon=True)
        self._keeper.start()
        atexit.register(self.close)  # for programs that forget to

    # Who is there

    @property
    def backend(self) -> Backend:
        """Where tasks are submitted."""
        return self._sparrow

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that live, by name."""
        return tuple(node.name for node in self._nodes())

    def _nodes(self) -> tuple[StoreLocation, ...]:
        found = (store_of(node.name, node.attributes) for node in self._sparrow.nodes())
        return tuple(peer for peer in found if peer is not None)

    @property
    def store_name(self) -> str:
        """The holder of what the session itself writes into the store: itself."""
        return self._name

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        """How tasks are placed on the nodes that are there now.

        Raises:
            ClusterError: there is none.
        """
        nodes = self._nodes()
        if not nodes:
            raise ClusterError("No node of the cluster answers any more; connect again.")
        names = tuple(node.name for node in nodes)
        stores = (*nodes, self._own)
        return Placement(policy, probe_ratio, names, self._name, _LOCALITY_WAIT_S, stores)

    def status(self) -> tuple[NodeStatus, ...]:
        """Each node with its processes."""
        return self._sparrow.nodes()

    def lost_nodes(self, nodes: Collection[str]) -> tuple[str, ...]:
        """Those of some nodes whose files are gone, as far as is known now."""
        living = self.nodes
        if not living:
            return ()  # no scheduler answers: nothing is known
        return tuple(node for node in nodes if node not in living and node != self._name)

    def homes(self) -> dict[str, str]:
        """The nodes that live, each with the folder that tells it from an earlier one."""
        return {node.name: node.memory for node in self._nodes()}

    def copy_file(self, file: str, source: str, target: str) -> bool:
        """Give a node a file of another node's; whether it has it now."""
        stores = {node.name: node for node in self._nodes()}
        if source not in stores or target not in stores:
            return False
        folder = MakeFolder(file.rpartition("/")[0])
        if stores[target].service not in self._connections.call_all(
            [stores[target].service], folder, _CALL_S
        ):
            return False
        try:
            RemoteFiles(self._connections).replicate(file, stores[source], stores[target])
        except OSError:
            return False
        return True

    # The store

    def store(self) -> Store:
        """The session's own view of the store."""
        store = Store(self.paths, self._name, self._host, RemoteFiles(self._connections))
        store.meet((*self._nodes(), self._own))
        return store

    def folder(self, name: str) -> str:
        """Where, in each node's storage, a folder of the session's lies."""
        return f"{self._name}/{name}"

    def make_folder(self, folder: str) -> None:
        """Make a folder of the store on every node.

        Raises:
            ResourceError: a node can't.
        """
        self.paths.make(folder, (self._name,))
        self._made.add(folder)
        nodes = self._nodes()
        replies = self._ask_nodes(MakeFolder(folder))
        for node in nodes:
            if node.service in replies:
                self._has.setdefault(node.memory, set()).add(folder)

    def remove_folder(self, folder: str) -> None:
        """Delete a folder of the store on every node; tasks that still want to write to it fail."""
        self.paths.remove(folder, (self._name,))
        self._made.discard(folder)
        for has in list(self._has.values()):
            has.discard(folder)
        with contextlib.suppress(ResourceError, ClusterError):  # it goes with the session
            self._ask_nodes(RemoveFolder(folder))

    def _make_up(self) -> None:
        """Make folders on nodes that have not heard of them: started anew, or silent before."""
        for node in self._nodes():
            has = self._has.setdefault(node.memory, set())
            for folder in self._made - has if node.service not in self._silent else ():
                if not self._connections.call_all([node.service], MakeFolder(folder), _CALL_S):
                    break  # others may wait
                has.add(folder)
                if folder not in self._made:  # it was removed meanwhile
                    self._connections.call_all([node.service], RemoveFolder(folder), _CALL_S)

    def _ask_nodes(self, request: Request) -> dict[str, Reply]:
        """Ask all nodes; one that does not answer is not waited for again until it is heard."""
        asked = [node.service for node in self._nodes()]
        if not isinstance(request, KeepSession):
            asked = [service for service in asked if service not in self._silent]
        replies = self._connections.call_all(asked, request, _CALL_S)
        self._silent = (self._silent - set(asked)) | (set(asked) - set(replies))
        for reply in replies.values():
            if isinstance(reply, Failure):
                raise ResourceError(f"A node can't keep files. {reply.message}")
        return replies

    def _keep_alive(self) -> None:
        while not self._stop.wait(_KEEP_EVERY_S):
            with contextlib.suppress(ResourceError, ClusterError, zmq.ZMQError):
                self._ask_nodes(self._keep)
                self._make_up()

    def close(self) -> None:
        """Leave the cluster and remove all files of the session; may be called twice."""
        if self._closed or os.getpid() != self._keep.pid:  # a copy by fork: it is the parent's
            return
        self._closed = True
        self._stop.set()
        self._keeper.join()
        with contextlib.suppress(ResourceError, ClusterError):
            self._ask_nodes(EndSession(self._name))
        self._sparrow.close()
        self._service.stop()
        self._connections.close()
        self._folders.remove()
        atexit.unregister(self.close)


def _has_executors(nodes: Sequence[NodeStatus]) -> bool:
    return any(node.executors for node in nodes)
