"""What a session has of its own beside a cluster that outlives it: files, sockets, connections.

The session stores files like a node and runs a file service of its own: executors fetch from it
what the program loads, and it fetches results from them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from canary_core.runtime.mailbox import Mailbox
from machine_kit.addresses import Address
from machine_kit.keys import Keys
from machine_kit.refusal import refuses
from minishark.cluster import wire
from minishark.cluster.attributes import IDLE, store_of
from minishark.cluster.backend import Backend
from minishark.cluster.connections import Connections
from minishark.cluster.endpoints import own_endpoint, service_address, this_host
from minishark.cluster.folders import make_folders
from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.jobs.members import may_hold
from minishark.cluster.joining import greet, open_schedulers
from minishark.cluster.keys import load_keys
from minishark.cluster.machine import default_limit_bytes
from minishark.cluster.membership import Change, Members, Node
from minishark.cluster.outputs import SharedOutputs
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service, change_files
from minishark.cluster.shared.client import SharedTablesClient
from minishark.cluster.status import usages_elsewhere
from minishark.model.events.kinds import NodeUsage
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from minishark.worker.store import Store
from sparrow_core import NodeStatus

_SLOTS_S = 5.0
_USAGE_S = 0.5
_SCHEDULERS_MAX = 8


class Front(Members):
    """The front end of a session that is connected to a cluster."""

    has_jobs = True

    def __init__(
        self, name: str, address: str, keys: str | Keys | None, slots: int, recovery_s: float
    ) -> None:
        """Connect to the cluster of the node at `address`, as a session of this name."""
        super().__init__(name, recovery_s, now_s=time.monotonic, sleep=time.sleep)
        self._keys = load_keys(keys)
        self._host = this_host()
        self._tables: SharedTablesClient | None = None
        self._outputs: SharedOutputs | None = None
        self.address = service_address(address, self._keys)
        with contextlib.ExitStack() as undo:
            self._connections = Connections(self._keys)
            undo.callback(self._connections.close)
            self._remote_files = RemoteFiles(self._connections)
            welcome = greet(self._connections, self.address)
            self.task_bytes = welcome.task_bytes  # assumes that all nodes are alike
            self.memory_limit_bytes = default_limit_bytes()
            folders = make_folders()
            undo.callback(folders.remove)
            self._warnings = [folders.warning] if folders.warning else []
            self.paths, self.scratch = StorePaths(folders.memory, folders.disk), folders.disk
            listen = own_endpoint(self.address, self.scratch, "service")
            self._service = Service(listen, self.paths, name, keys=self._keys)
            undo.callback(self._service.stop)
            self._service.start()
            memory, disk = str(folders.memory), str(folders.disk)
            self._own = StoreLocation(name, self._host, memory, disk, self._service.endpoint)
            front = own_endpoint(self.address, self.scratch, "front")
            patience = time.monotonic() + _SLOTS_S

            def complete(nodes: Sequence[NodeStatus]) -> bool:
                there = sum(executor.slots for node in nodes for executor in node.executors)
                return there >= slots or (there > 0 and time.monotonic() > patience)

            self._sparrow = open_schedulers(welcome, front, self._keys, complete, recovery_s)
            undo.callback(self._sparrow.close)
            self.backend: Backend = self._sparrow
            self._undo = undo.pop_all()

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    @property
    def total_slots(self) -> int:
        staying = (node for node in self.status() if not node.draining)
        return sum(executor.slots for node in staying for executor in node.executors)

    @property
    def most_slots(self) -> int:
        return self.total_slots

    @property
    def cores(self) -> int:
        return self.total_slots  # nodes don't tell; few have more slots than cores

    @property
    def schedulers(self) -> tuple[str, ...]:
        return self._sparrow.live_schedulers

    def told(self) -> tuple[Node, ...]:
        """The live nodes that have executors, as schedulers tell of them."""
        stores = ((node, store_of(node)) for node in self._sparrow.nodes())
        return tuple(
            Node(at, is_draining=node.draining, is_busy=node.running > 0)
            for node, at in stores
            if at is not None and IDLE not in node.attributes
        )

    def learn(self, heard: Sequence[tuple[str, ...]]) -> None:
        """Use the schedulers that nodes know, which may have come back under another address."""
        live = self._sparrow.live_schedulers
        addresses = dict.fromkeys(
            Address(scheduler) for schedulers in heard for scheduler in schedulers
        )
        new = [address for address in addresses if address not in live]
        if new:
            self._sparrow.set_schedulers((*new, *live)[:_SCHEDULERS_MAX])

    def own_stores(self) -> tuple[StoreLocation, ...]:
        return (self._own,)

    def refuses(self, node: Node) -> bool:
        return refuses(node.at.service)

    def change_own(self, request: Change) -> None:
        change_files(self.paths, self.store_name, request)

    def transfer(self, file: str, source: Node, target: Node) -> bool:
        try:
            self._remote_files.replicate(file, source.at, target.at)
        except OSError:
            return False
        return True

    def store(self) -> Store:
        store = Store(self.paths, self.store_name, self._host, self._remote_files)
        store.meet((*(node.at for node in self.told()), self._own))
        return store

    def shared_outputs(self) -> SharedOutputs:
        if self._outputs is None:
            self._outputs = SharedOutputs(
                self.store_name,
                self._connections,
                lambda: tuple(node.at for node in self.told()),
                warn=self._warnings.append,
            )
            self._undo.callback(self._outputs.close)
        return self._outputs

    def shared_tables(self) -> SharedTablesClient | None:
        if self._tables is None and self.has_jobs:
            self._tables = SharedTablesClient(
                session=self.store_name,
                connections=self._connections,
                jobs=self.jobs(),
                leave=self.leave_folder,
            )
        return self._tables

    def mailbox(self, name: str) -> Mailbox:
        endpoint = own_endpoint(self.address, self.scratch, name)
        tcp = endpoint if endpoint.startswith("tcp://") else ""
        return Mailbox(self.scratch / f"{name}.sock", self._host, tcp=tcp, keys=self._keys)

    def share_events(self, answer: Callable[[wire.Request], wire.Reply | None]) -> None:
        """Answer requests for the session's events, on the service's thread."""
        self._service.shared = answer

    def jobs(self) -> JobsClient:
        return JobsClient(self._connections, lambda: may_hold(self._sparrow.nodes()))

    def usage(self, nodes: Sequence[NodeStatus]) -> dict[str, NodeUsage]:
        return usages_elsewhere(self._connections, nodes, _USAGE_S)

    def status(self) -> tuple[NodeStatus, ...]:
        return self._sparrow.nodes()

    def disconnect(self) -> None:
        """End all connections, and remove the session's own files."""
        self._undo.close()
