"""Nodes on a Dask cluster: workers of Dask host them, as children of their processes.

Dask does not know of the cores that they take: its own tasks share them. Everything goes through
functions that the client runs on workers, outside of Dask's tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from distributed import Client, get_client
from distributed.comm.addressing import get_address_host

from minishark.errors import ClusterError
from minishark_platforms.host import NodeEnd, NodeHost, NodeSpec
from minishark_platforms.supervisor import Ended, Event, Launch, Placed, Started

_LOOK_EVERY_S = 0.5
_LOOK_S = 2.0  # how long a look waits for workers that are busy
_CALLS = 16
_WORKERS_S = 15.0  # for the first worker of a cluster that starts
_hosts: dict[str, NodeHost] = {}  # of this worker's process, by the node's name


async def _place(name: str, ip: str, before: str) -> str:
    """On a worker: a host for a node, and the address that it is going to have."""
    host = _hosts[name] = NodeHost(ip)
    return await asyncio.to_thread(host.reserve, before)


async def _start(spec: NodeSpec) -> str:
    return await asyncio.to_thread(_hosts[spec.name].start, spec)


async def _ended(names: tuple[str, ...]) -> dict[str, NodeEnd]:
    """How those of the nodes have ended that have."""
    found = {}
    for name in names:
        host = _hosts.get(name)
        end = NodeEnd("Its worker was started again.", left=False) if host is None else host.poll()
        if end is not None:
            found[name] = end
            _hosts.pop(name, None)
    return found


async def _end(names: tuple[str, ...]) -> None:
    hosts = [host for name in names if (host := _hosts.pop(name, None)) is not None]
    await asyncio.gather(*(asyncio.to_thread(host.end) for host in hosts))


@dataclass(slots=True)
class _Node:
    worker: str
    runs: bool = False


@dataclass(slots=True, kw_only=True)
class DaskNodes:
    """Dask's distributed as a `Platform`."""

    client: Client
    disconnect: Callable[[], None] = lambda: None
    label: str = "Dask"
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _wanted: list[Launch] = field(default_factory=list)  # that wait for a machine
    _found: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    _calls: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_CALLS, thread_name_prefix="minishark-dask")
    )
    _looked_s: float = 0.0

    def launch(self, launch: Launch) -> None:
        """Take a worker that has no node yet; a head shares one."""
        self._wanted.append(launch)
        self._place_wanted()

    def _place_wanted(self) -> None:
        workers = _workers(self.client)
        waiting, self._wanted = self._wanted, []
        for launch in waiting:
            # Heads share workers with nodes, but not with each other if that is possible.
            taken = {n.worker for name, n in self._nodes.items() if _is_head(name) == launch.head}
            free = [worker for worker in workers if worker not in taken]
            if launch.head:
                free = free or workers
                free.sort(key=lambda worker: get_address_host(worker) not in launch.before)
            if not free:
                self._wanted.append(launch)
                continue
            worker = free[0]
            self._nodes[launch.name] = _Node(worker)
            self._call(launch.name, partial(self._placed, launch.name, worker, launch.before))

    def _placed(self, name: str, worker: str, before: str) -> Event:
        address = self._on(worker, _place, name, get_address_host(worker), before)
        return Placed(name, worker, address)

    def _on(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function on a worker."""
        return self.client.run(function, *arguments, workers=[worker])[worker]

    def _call(self, name: str, call: Callable[[], Event]) -> None:
        def run() -> None:
            try:
                event = call()
            except Exception as error:  # noqa: BLE001 - Dask passes on what workers raise
                event = Ended(name, str(error) or type(error).__name__)
            self._found.put(event)

        self._calls.submit(run)

    def start(self, spec: NodeSpec) -> None:
        """Have the worker start the node."""
        node = self._nodes.get(spec.name)
        if node is not None:
            self._call(
                spec.name, lambda: Started(spec.name, str(self._on(node.worker, _start, spec)))
            )

    def events(self, timeout_s: float) -> list[Event]:
        """What workers have answered, and which nodes or workers are gone."""
        now = time.monotonic()
        if now - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now
            self._look()
        with contextlib.suppress(queue.Empty):
            event = self._found.get(timeout=timeout_s)
            node = self._nodes.get(event.name)
            if isinstance(event, Started) and node is not None:
                node.runs = True
            if isinstance(event, Ended):
                self._nodes.pop(event.name, None)
            return [event]
        return []

    def _look(self) -> None:
        """Ask workers for nodes that have ended."""
        self._place_wanted()
        live = _workers(self.client)
        by_worker: dict[str, list[str]] = {}
        for name, node in self._nodes.items():
            if node.worker not in live:
                self._found.put(Ended(name, f"Dask's worker {node.worker} is gone."))
            elif node.runs:
                by_worker.setdefault(node.worker, []).append(name)
        asked = [
            self._calls.submit(self._on, worker, _ended, tuple(names))
            for worker, names in by_worker.items()
        ]
        wait(asked, _LOOK_S)
        for future in asked:
            if (
                future.cancel() or not future.done()
            ):  # it is busy, or hangs: the next look asks again
                continue
            with contextlib.suppress(Exception):  # it goes now: the next look finds it gone
                for name, end in future.result().items():
                    self._found.put(Ended(name, end.how, end.left))

    def end(self, names: Sequence[str], timeout_s: float) -> None:
        """Have workers end their nodes."""
        self._wanted = [launch for launch in self._wanted if launch.name not in names]
        by_worker: dict[str, list[str]] = {}
        for name in names:
            node = self._nodes.pop(name, None)
            if node is not None:
                by_worker.setdefault(node.worker, []).append(name)
        ending = [
            self._calls.submit(self._on, worker, _end, tuple(named))
            for worker, named in by_worker.items()
        ]
        deadline = time.monotonic() + timeout_s
        for future in ending:
            with contextlib.suppress(Exception):  # the worker is gone, and the node with it
                future.result(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Let go of Dask, if this client is ours."""
        self._calls.shutdown(wait=False, cancel_futures=True)
        self.disconnect()


def _is_head(name: str) -> bool:
    return name.startswith("head-")


def _workers(client: Client) -> list[str]:
    return list(client.scheduler_info(n_workers=-1)["workers"])


def connect_dask(client: Client | None) -> tuple[Client, Callable[[], None]]:
    """A client of Dask, and how to let go of it; None for the one that the program has made.

    Raises:
        ClusterError: there is none.
    """
    if client is None:
        try:
            client = get_client()
        except ValueError as error:
            raise ClusterError(
                'There is no Dask client: make one first, Client("tcp://..."), or pass it.'
            ) from error
    if client.asynchronous:
        raise ClusterError("An asynchronous Dask client can't be used; make one without that.")
    return client, lambda: None


def shape_of_dask(client: Client, nodes: int | None, cores: int | None) -> tuple[int, float]:
    """How many nodes of how many cores: by default all workers, with the threads of the smallest.

    Waits for the first worker of a cluster that has just been started.

    Raises:
        ClusterError: there are no workers.
    """
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(1, timeout=_WORKERS_S)
    threads = [
        worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()
    ]
    if not threads:
        raise ClusterError(
            f"No worker of the Dask cluster came within {_WORKERS_S:g} s: start some, or scale up "
            "a cluster that adapts, which does not know of the machines that nodes need."
        )
    return nodes or len(threads), cores or min(threads)
