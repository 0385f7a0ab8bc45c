"""Nodes on a Ray cluster: one actor per machine hosts one.

An actor reserves its cores, so that Ray's own tasks leave them alone, and Ray's autoscaler sees
those that wait for a machine. There is no placement group: its bundles come all or not at all, and
a session begins on the machines that are there. Actors belong to the process that makes them
(a session's program, or the keeper of a shared cluster), and end with it, whatever its end.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from minishark.cluster.machine import default_limit_bytes, node_meter
from minishark.errors import ClusterError
from minishark.worker.memory import NodeMemory
from minishark.worker.paths import StorePaths
from minishark.worker.store import Store
from minishark_platforms.host import NodeEnd, NodeHost, NodeSpec
from minishark_platforms.ray_errors import sentence
from minishark_platforms.supervisor import Ended, Event, Launch, Placed, Started

if TYPE_CHECKING:
    from minishark.tables.pieces import StoredPiece
    from minishark.worker.columns import ChosenColumns
    from minishark.worker.protocol import FileSlice
    from minishark_platforms.blocks import Cut
    from minishark_platforms.pieces import PieceFile
    from minishark_platforms.ray_blocks import ResultColumns

_CLIENT = "ray://"
_NODE_ID = "ray.io/node-id"
ON_HEAD = {"node:__internal_head__": 0.001}
_THREADS = 8  # an actor's: one waits for the node's end, the others answer


class NodeActor:
    """What runs on a machine of Ray."""

    def __init__(self) -> None:
        self._host = NodeHost(ray.util.get_node_ip_address())
        self._memory = NodeMemory(0, 0)  # until it is known

    def place(self, before: str, *, head: bool) -> tuple[str, str]:
        """This machine, and for a head the address that it is going to have."""
        machine = ray.get_runtime_context().get_node_id()
        return machine, self._host.reserve(before) if head else ""

    def start(self, spec: NodeSpec, cores: float) -> str:
        """Start the node; the address of its service."""
        if spec.memory_limit_bytes is None and spec.executors:
            limit = _memory_share(cores)
            spec = NodeSpec(**{**_fields(spec), "memory_limit_bytes": limit})
        self._memory = NodeMemory(spec.memory_limit_bytes or 0, spec.executors)
        service = self._host.start(spec)
        if spec.executors:
            threading.Thread(target=_import_blocks, name="minishark-import", daemon=True).start()
        return service

    def wait(self) -> NodeEnd:
        """Wait for the node's end."""
        return self._host.wait()

    def end(self) -> None:
        """End the node and remove its files."""
        self._host.end()

    def store(
        self, node: str, file: PieceFile, cuts: Sequence[Cut], blocks: Sequence[Any]
    ) -> StoredPiece:
        """Write cuts of blocks, given by reference, to the node's store."""
        from minishark_platforms.ray_blocks import write_cuts  # noqa: PLC0415 - slow to import

        store = self._store(node)
        return write_cuts(store, self._memory.buffer_bytes, file, cuts, blocks)

    def block(
        self, node: str, item: FileSlice, columns: ChosenColumns | ResultColumns
    ) -> tuple[pa.Table | None, bool]:
        """The rows of a file of the node's store; and whether there are any to be had here."""
        from minishark_platforms.ray_blocks import read_block  # noqa: PLC0415 - slow to import

        rows = read_block(self._store(node), item, columns)
        return rows, rows is not None

    def _store(self, node: str) -> Store:
        paths = StorePaths(*self._host.folders)
        return Store(paths, node, meter=node_meter(paths, node, self._memory))


def _import_blocks() -> None:
    """Have what the first dataset needs: it would wait for a third of a second."""
    importlib.import_module("minishark_platforms.ray_blocks")


def _fields(spec: NodeSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def _memory_share(cores: float) -> int:
    """The share of this machine's memory that goes with so many of its cores."""
    own = ray.get_runtime_context().get_node_id()
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == own)
    limit = min(default_limit_bytes(), int(resources.get("memory", default_limit_bytes())))
    return int(limit * min(1.0, cores / max(1.0, resources.get("CPU", 1.0))))


@dataclass(slots=True)
class _Node:
    actor: Any
    cores: float
    placed: bool = False


@dataclass(slots=True, kw_only=True)
class RayNodes:
    """Ray as a `Platform`."""

    cores: float  # of each node
    disconnect: Callable[[], None] = lambda: None
    label: str = "Ray"
    _nodes: dict[str, _Node] = field(default_factory=dict)
    # What is awaited of an actor: its reference, with the node's name and what an answer means.
    _awaited: dict[Any, tuple[str, Callable[[Any], Event]]] = field(default_factory=dict)

    def launch(self, launch: Launch) -> None:
        """Make an actor on a machine that no other node has."""
        options: dict[str, Any] = {"num_cpus": 0 if launch.head else self.cores}
        if launch.head:
            options["resources"] = ON_HEAD
        else:
            options["scheduling_strategy"] = "SPREAD"
            if launch.avoid:
                options["label_selector"] = {_NODE_ID: f"!in({','.join(sorted(launch.avoid))})"}
        made = ray.remote(NodeActor).options(
            name=None, max_restarts=0, max_concurrency=_THREADS, **options
        )
        actor = made.remote()
        self._nodes[launch.name] = _Node(actor, self.cores)
        self._await(
            launch.name,
            actor.place.remote(launch.before, head=launch.head),
            lambda placed: Placed(launch.name, *placed),
        )

    def start(self, spec: NodeSpec) -> None:
        """Have the actor start the node."""
        node = self._nodes.get(spec.name)
        if node is not None:
            reference = node.actor.start.remote(spec, node.cores)
            self._await(spec.name, reference, lambda service: Started(spec.name, service))

    def _await(self, name: str, reference: Any, answer: Callable[[Any], Event]) -> None:
        self._awaited[reference] = (name, answer)

    def events(self, timeout_s: float) -> list[Event]:
        """What actors have answered, and which of them are dead."""
        if not self._awaited:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(self._awaited), num_returns=1, timeout=timeout_s)
        if ready and len(self._awaited) > 1:
            ready, _ = ray.wait(list(self._awaited), num_returns=len(self._awaited), timeout=0)
        return [self._event(reference) for reference in ready]

    def _event(self, reference: Any) -> Event:
        name, answer = self._awaited.pop(reference)
        node = self._nodes[name]
        try:
            event = answer(ray.get(reference))
        except (RayError, ClusterError) as error:
            event = Ended(name, sentence(error))
        match event:
            case Placed():
                node.placed = True
            case Started():
                self._await(
                    name, node.actor.wait.remote(), lambda end: Ended(name, end.how, end.left)
                )
            case Ended():
                self._forget(name)
        return event

    def end(self, names: Sequence[str], timeout_s: float) -> None:
        """Have actors end their nodes; then they end, too."""
        living = [self._nodes[name] for name in names if name in self._nodes]
        with contextlib.suppress(RayError):  # the connection is gone, and the actors with it
            ending = [node.actor.end.remote() for node in living if node.placed]
            if ending:
                ray.wait(ending, num_returns=len(ending), timeout=timeout_s)
        for name in names:
            self._forget(name)

    def _forget(self, name: str) -> None:
        node = self._nodes.pop(name, None)
        for reference in [ref for ref, (owner, _) in self._awaited.items() if owner == name]:
            del self._awaited[reference]
        if node is not None:
            with contextlib.suppress(RayError, ConnectionError, ValueError):
                ray.kill(node.actor, no_restart=True)

    def close(self) -> None:
        """Let go of Ray, if this connection to it is ours."""
        self.disconnect()

    def actor(self, name: str) -> Any:
        """The actor of a node, by the node's name; None if there is none."""
        node = self._nodes.get(name)
        return None if node is None else node.actor


def connect_ray(address: str) -> Callable[[], None]:
    """Connect this process to a running Ray cluster, if it is not; how to undo that.

    Raises:
        ClusterError: none runs there.
    """
    if ray.is_initialized() or ray.util.client.ray.is_connected():
        return lambda: None
    try:
        ray.init(
            address if address.startswith(_CLIENT) else "auto",
            namespace="minishark",
            log_to_driver=False,
            logging_level="WARNING",
        )
    except ValueError as error:  # it wants another package, or can't read the address
        raise ClusterError(f"Ray can't connect to {address}: {sentence(error)}") from error
    except (ConnectionError, RayError, RuntimeError) as error:
        where = f"at {address}" if address.startswith(_CLIENT) else "that this machine knows"
        raise ClusterError(
            f"There is no Ray cluster {where}: start one with `ray start --head`, call ray.init() "
            "first, or set RAY_ADDRESS, and RAY_AUTH_MODE=token if the cluster asks for tokens. "
            f"({sentence(error)})"
        ) from error
    shutdown: Callable[[], None] = ray.shutdown
    return shutdown


def shape_of_ray(nodes: int | None, cores: float | None) -> tuple[int, float]:
    """How many nodes of how many cores: by default all machines, with the cores of the smallest.

    Raises:
        ClusterError: no machine has cores.
    """
    core_counts = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    able = [count for count in core_counts if count >= (cores or 1)]
    if not able and (nodes is None or cores is None):
        raise ClusterError(f"No machine of the Ray cluster has {cores or 1:g} cores.")
    return nodes or len(able), cores or min(able)
