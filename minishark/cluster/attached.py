"""A session's connection to a cluster that it shares with others, and that outlives it.

The session stores files like a node and runs a file service of its own: executors fetch from it
what the program loads, and it fetches results from them. Everything it stores on the nodes is in
one folder of its name, which they keep as long as the session sends heartbeats (`KeepSession`).
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
import math
import operator
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import psutil
from msgspec import structs

from canary_core.runtime.mailbox import Mailbox
from machine_kit.addresses import Address
from machine_kit.keys import Keys
from machine_kit.refusal import refuses
from minishark.cluster import wire
from minishark.cluster.attributes import IDLE, store_of
from minishark.cluster.backend import Backend, Placement
from minishark.cluster.connections import Connections
from minishark.cluster.endpoints import own_endpoint
from minishark.cluster.folders import make_folders
from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.jobs.members import may_hold
from minishark.cluster.joining import RefusedError, greet, open_schedulers
from minishark.cluster.keys import load_keys
from minishark.cluster.local import RECOVERY_S
from minishark.cluster.machine import default_limit_bytes
from minishark.cluster.membership import LastSeen, NodeFolders, awaited, placed_on, silent
from minishark.cluster.node import service_address, this_host
from minishark.cluster.node_service import SESSION_PREFIX
from minishark.cluster.outputs import SharedOutputs
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service
from minishark.cluster.status import node_usages
from minishark.errors import ClusterError, MinisharkError, OptionError, ResourceError
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from minishark.worker.store import Store
from sparrow_core import NodeStatus

_CALL_S = 2.0
_USAGE_S = 0.5
_KEEP_EVERY_S = 1.0
_SLOTS_S = 5.0
_SCHEDULERS_MAX = 8


def spread_over_hosts(nodes: Sequence[StoreLocation]) -> tuple[str, ...]:
    """The names of nodes: the first of each host, then the next of each, and so on."""
    counts: Counter[str] = Counter()
    turns = []
    for node in nodes:
        turns.append((counts[node.host], node.name))
        counts[node.host] += 1
    return tuple(name for _, name in sorted(turns, key=operator.itemgetter(0)))


class AttachedCluster:
    """A running cluster, as one session uses it; `Cluster` documents its methods."""

    loses_files = True
    elastic = True
    has_jobs = True

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
        keys = load_keys(keys)
        self.store_name = f"{SESSION_PREFIX}{secrets.token_hex(4)}"  # of files that it writes
        self._host = this_host()
        self._connections = Connections(keys)
        self._remote_files = RemoteFiles(self._connections)
        self._stop = threading.Event()
        self._closed = False
        # A node's home is its folder in shared memory, which is new at each start.
        self._node_folders = NodeFolders()
        self._silent: frozenset[str] = frozenset()  # services that did not answer the last time
        self._known: list[str] = []  # services of the nodes that there were at last
        self._last_seen = LastSeen[StoreLocation]()
        self._find = find or (lambda: address)
        self.recovery_s = recovery_timeout_s
        # When and why the cluster, started again, did not take this session.
        self._refused = (-math.inf, "")
        self._released: frozenset[str] = frozenset()  # draining nodes that it needs no more
        self._needed: Callable[[], frozenset[str]] = frozenset
        with contextlib.ExitStack() as undo:
            undo.callback(self._connections.close)
            self._keys = keys
            self._head = self.address = service = service_address(address, keys)
            welcome = greet(self._connections, service)
            self._folders = make_folders()
            undo.callback(self._folders.remove)
            warning = self._folders.warning
            self._folder_warnings = (warning,) if warning else ()
            paths = StorePaths(self._folders.memory, self._folders.disk)
            self.scratch = self._folders.disk
            self.memory_limit_bytes = default_limit_bytes()
            self.task_bytes = welcome.task_bytes  # assumes that all nodes are alike
            listen = own_endpoint(service, self._folders.disk, "service")
            self._service = Service(listen, paths, self.store_name, keys=keys)
            undo.callback(self._service.stop)
            self._service.start()
            self._own = StoreLocation(
                self.store_name,
                self._host,
                str(paths.memory),
                str(paths.disk),
                self._service.endpoint,
            )
            self.paths = paths
            front = own_endpoint(service, self._folders.disk, "front")
            patience = time.monotonic() + _SLOTS_S

            def complete(nodes: Sequence[NodeStatus]) -> bool:
                found = sum(each.slots for node in nodes for each in node.executors)
                return found >= slots or (found > 0 and time.monotonic() > patience)

            self._sparrow = open_schedulers(welcome, front, keys, complete, self.recovery_s)
            undo.callback(self._sparrow.close)
            self.backend: Backend = self._sparrow
            started_s = psutil.Process().create_time()
            user = getpass.getuser()
            self._keep = wire.KeepSession(
                session=self.store_name,
                location=self._own,
                user=user,
                pid=os.getpid(),
                started_s=started_s,
                versions=wire.own_versions(),
            )
            self._ask_nodes(self._keep)
            undo.pop_all()
        self._keeper = threading.Thread(target=self._keep_alive, name="minishark-keep", daemon=True)
        self._keeper.start()
        atexit.register(self.close)  # for programs that forget to

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._folder_warnings

    @property
    def nodes(self) -> tuple[str, ...]:
        # Replicas go to nodes that follow each other: to different hosts, as far as there are some.
        return spread_over_hosts(self._nodes(lambda status: not status.draining))

    @property
    def draining(self) -> tuple[str, ...]:
        return tuple(node.name for node in self._nodes(lambda status: status.draining))

    def _nodes(
        self, wanted: Callable[[NodeStatus], bool] = lambda _: True
    ) -> tuple[StoreLocation, ...]:
        """The live nodes that have executors, and so store tables."""
        found = (
            store_of(node.name, node.attributes)
            for node in self._sparrow.nodes()
            if IDLE not in node.attributes and wanted(node)
        )
        return tuple(location for location in found if location is not None)

    @property
    def total_slots(self) -> int:
        staying = (node for node in self.status() if not node.draining)
        return sum(each.slots for node in staying for each in node.executors)

    @property
    def most_slots(self) -> int:
        return self.total_slots

    @property
    def cores(self) -> int:
        return self.total_slots  # nodes don't tell; few have more slots than cores

    @property
    def open_folders(self) -> frozenset[str]:
        return frozenset(self._node_folders.made)

    def release(self, nodes: Collection[str]) -> None:
        if self.nodes:  # else all drain: what is not moved by their end is lost
            # A task that ends may leave a result there, of which the session does not know yet.
            busy = {node.name for node in self.status() if node.running}
            nodes = frozenset(nodes) - busy - self._needed()
        self._released = frozenset(nodes)

    def keep_nodes(self, needed: Callable[[], frozenset[str]]) -> None:
        self._needed = needed

    @property
    def schedulers(self) -> tuple[str, ...]:
        return self._sparrow.live_schedulers

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        """How tasks are placed on the live nodes; ClusterError if none comes back in time."""
        began_s = time.monotonic()

        def check() -> None:
            refused_s, refusal = self._refused
            if refused_s > began_s:
                raise ClusterError(refusal)
            if self._stop.is_set():
                raise ClusterError(silent(self.recovery_s))

        nodes = awaited(
            self._nodes, self.recovery_s, now_s=time.monotonic, sleep=time.sleep, check=check
        )
        return placed_on(
            self.nodes,
            policy=policy,
            probe_ratio=probe_ratio,
            user=self.store_name,
            stores=(*nodes, self._own),
        )

    def share_events(self, answer: Callable[[wire.Request], wire.Reply | None]) -> None:
        """Answer requests for the session's events, on the service's thread."""
        self._service.shared = answer

    def jobs(self) -> JobsClient:
        return JobsClient(self._connections, lambda: may_hold(self._sparrow.nodes()))

    def usage(self, nodes: Sequence[NodeStatus]) -> dict[str, wire.Usage]:
        return node_usages(self._connections, nodes, _USAGE_S)

    def status(self) -> tuple[NodeStatus, ...]:
        return self._sparrow.nodes()

    def lost_nodes(self, nodes: Collection[str]) -> tuple[str, ...]:
        live = tuple(node.name for node in self._nodes())
        if not live:
            return ()  # no scheduler answers: nothing is known
        return tuple(node for node in nodes if node not in live and node != self.store_name)

    def may_return(self, node: str) -> bool:
        self._meet()
        met = self._last_seen.last(node)
        if met is None:
            return False
        there = [live for live in self._nodes() if live.service == met.service]
        return all(live.memory == met.memory for live in there) and not refuses(met.service)

    def _meet(self) -> None:
        self._last_seen.note({node.name: node for node in self._nodes()}, time.monotonic())

    def homes(self) -> dict[str, str]:
        return {node.name: node.memory for node in self._nodes()}

    def copy_file(self, file: str, source: str, target: str) -> bool:
        stores = {node.name: node for node in self._nodes()}
        if source not in stores or target not in stores:
            return False
        if not self._call(stores[target], wire.MakeFolder(file.rpartition("/")[0])):
            return False
        try:
            self._remote_files.replicate(file, stores[source], stores[target])
        except OSError:
            return False
        return True

    def store(self) -> Store:
        store = Store(self.paths, self.store_name, self._host, self._remote_files)
        store.meet((*self._nodes(), self._own))
        return store

    def shared_outputs(self) -> SharedOutputs:
        return SharedOutputs(self.store_name, self._connections, self._nodes)

    def folder(self, name: str) -> str:
        return f"{self.store_name}/{name}"

    def make_folder(self, *folders: str) -> None:
        for folder in folders:
            self.paths.make(folder, (self.store_name,))
        self._node_folders.make(folders)
        nodes = self._nodes()
        if self._node_folders.are_at((node.memory for node in nodes), folders):
            return
        replies = self._ask_nodes(wire.MakeFolder(folders[0], folders[1:]))
        for node in nodes:
            if node.service in replies:
                self._node_folders.made_at(node.memory, folders)

    def remove_folder(self, *folders: str) -> None:
        for folder in folders:
            self.paths.remove(folder, (self.store_name,))
        nodes = self._nodes()
        self._node_folders.remove(folders, [node.memory for node in nodes])
        # A node that does not answer is asked again when it does.
        with contextlib.suppress(ResourceError, ClusterError):
            replies = self._ask_nodes(wire.RemoveFolder(folders[0], folders[1:]))
            answered = [node.memory for node in nodes if node.service in replies]
            self._node_folders.removed_at(answered, folders)

    def _make_missing_folders(self) -> None:
        for node in self._nodes():
            if node.service not in self._silent:
                self._make_missing_folders_at(node)

    def _make_missing_folders_at(self, node: StoreLocation) -> None:
        self._node_folders.complete(
            node.memory,
            lambda folder: self._call(node, wire.MakeFolder(folder)),
            lambda some: self._call(node, wire.RemoveFolder(some[0], tuple(some[1:]))),
        )

    def _call(self, node: StoreLocation, request: wire.Request) -> bool:
        """Send a request to one node; whether it answered."""
        return bool(self._connections.call_all([node.service], request, _CALL_S))

    def remove_copy(self, file: str, node: str) -> None:
        stores = {each.name: each for each in self._nodes()}
        if node in stores:
            self._call(stores[node], wire.RemoveFile(file))
        elif node == self.store_name:
            for place in (self.paths.memory, self.paths.disk):
                (place / node / file).unlink(missing_ok=True)

    def _ask_nodes(self, request: wire.Request) -> dict[str, wire.Reply]:
        # A node that does not answer is not asked again until it answers a heartbeat: each silent
        # node would delay every request by the timeout.
        asked = [node.service for node in self._nodes()]
        if not isinstance(request, wire.KeepSession):
            asked = [service for service in asked if service not in self._silent]
        elif asked:
            self._known = asked
        else:
            asked = self._known  # no scheduler answers: one may have come back elsewhere
        replies = self._connections.call_all(asked, request, _CALL_S)
        self._silent = (self._silent - set(asked)) | (set(asked) - set(replies))
        for service, reply in replies.items():
            if isinstance(reply, wire.Failure) and reply.refused:
                raise RefusedError(f"The node at {service} has another version. {reply.message}")
            if isinstance(reply, wire.Failure):
                raise ResourceError(f"A node can't store files: {reply.message}")
        return replies

    def _keep_alive(self) -> None:
        while not self._stop.wait(_KEEP_EVERY_S):
            # Files that say where the cluster is now may be written at the moment, or be wrong.
            with contextlib.suppress(MinisharkError, OSError, ValueError):
                released = tuple(self._released)
                beat = structs.replace(
                    self._keep, released=released, schedulers=self._sparrow.live_schedulers
                )
                self._meet()
                self._node_folders.forget_others([place.memory for place in self._last_seen.places])
                self._learn(self._kept(beat))
                self._make_missing_folders()
                self._remote_files.remove_unwanted()

    def _kept(self, beat: wire.KeepSession) -> list[tuple[str, ...]]:
        """Send a heartbeat; the schedulers that each node knows."""
        found: list[tuple[str, ...]] = []
        try:
            replies = self._ask_nodes(beat).values()
            found = [reply.schedulers for reply in replies if isinstance(reply, wire.Kept)]
            if not found:  # all are gone, or have started again elsewhere
                address = service_address(self._find(), self._keys)
                found = [greet(self._connections, address, _CALL_S).schedulers]
        except RefusedError as error:
            self._refused = (time.monotonic(), str(error))
            self._sparrow.fail_all(str(error))  # they would wait in vain
        return found

    def _learn(self, told: Iterable[tuple[str, ...]]) -> None:
        """Use the schedulers that nodes know, which may have come back under another address."""
        known = self._sparrow.live_schedulers
        found = dict.fromkeys(Address(each) for schedulers in told for each in schedulers)
        new = [each for each in found if each not in known]
        if new:
            self._sparrow.set_schedulers((*new, *known)[:_SCHEDULERS_MAX])

    def start_node(self) -> None:
        raise ClusterError(
            "The session did not start this cluster: to add a node, run `minishark cluster node "
            "--join ADDRESS` on its machine."
        )

    def drain(self, node: str) -> None:
        found = [each for each in self._nodes() if each.name == node]
        if not found:
            names = ", ".join(self.nodes)
            raise OptionError(f"There is no node {node!r} to drain; the nodes are {names}.")
        if not self._call(found[0], wire.DrainNode()):
            raise ClusterError(f"Node {node} does not answer.")

    def mailbox(self, name: str) -> Mailbox:
        own = own_endpoint(self._head, self.scratch, name)
        tcp = own if own.startswith("tcp://") else ""
        return Mailbox(self.scratch / f"{name}.sock", self._host, tcp=tcp, keys=self._keys)

    def close(self) -> None:
        if self._closed or os.getpid() != self._keep.pid:  # after fork(), the parent owns it
            return
        self._closed = True
        self._stop.set()
        self._keeper.join()
        with contextlib.suppress(ResourceError, ClusterError):
            self._ask_nodes(wire.EndSession(self.store_name))
        self._sparrow.close()
        self._service.stop()
        self._connections.close()
        self._folders.remove()
        atexit.unregister(self.close)
